//! The v-forms for ranks that know the lengths of their own parts only, as MPI's have them.

use crate::arguments::{CallArguments, ElementCount, OwnedCounts, numbers, sum};
use crate::codes::{cool_comm, cool_status, cool_type};
use crate::error::{CError, guarded};
use cool_rust::{Comm, Operation};
use std::ffi::c_void;

/// The counts that the root has, and how many elements these are.
///
/// # Safety
/// At the root `counts` has as many numbers as there are ranks.
unsafe fn root_counts(
    comm: &Comm,
    counts: *const usize,
    root: usize,
) -> Result<(OwnedCounts, usize), CError> {
    let known = if comm.rank() == root { comm.size() } else { 0 };
    // SAFETY: as promised.
    let counts = unsafe { numbers("counts", counts, known) }?;
    let all = sum(counts.iter())?;
    Ok((OwnedCounts::OfRoot(counts), all))
}

/// cool_gatherv where only the root has `counts`, and each rank the `count` elements that it sends. The root tells the others
/// first (a bcast of 8 bytes for each rank). COOL_IN_PLACE is for the root.
///
/// # Safety
/// The buffers are as long as the counts say, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_gatherv_of_own(
    send: *const c_void,
    count: usize,
    recv: *mut c_void,
    counts: *const usize,
    dtype: cool_type,
    root: usize,
    comm: cool_comm,
) -> cool_status {
    guarded(|| {
        let call = CallArguments::new(Operation::Gather, send, recv, ElementCount::Each(count), dtype, comm)
            .root(root);
        // SAFETY: as promised.
        unsafe {
            call.run_with_own_counts(|comm| {
                let (own, all) = root_counts(comm, counts, root)?;
                Ok((own, count, all))
            })
        }
    })
}

/// cool_scatterv where only the root has `counts`, and each rank the `count` elements that it receives. The root tells the others
/// first (a bcast of 8 bytes for each rank).
///
/// # Safety
/// The buffers are as long as the counts say, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_scatterv_of_own(
    send: *const c_void,
    counts: *const usize,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    root: usize,
    comm: cool_comm,
) -> cool_status {
    guarded(|| {
        let call = CallArguments::new(Operation::Scatter, send, recv, ElementCount::Each(count), dtype, comm)
            .root(root);
        // SAFETY: as promised.
        unsafe {
            call.run_with_own_counts(|comm| {
                let (own, all) = root_counts(comm, counts, root)?;
                Ok((own, all, count))
            })
        }
    })
}

/// cool_alltoallv where each rank has how many elements it sends to each, and receives from each. All tell all first (an
/// allgather of 16 bytes for each pair of ranks).
///
/// # Safety
/// The buffers are as long as the counts say, of which there are as many as ranks, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_alltoallv_of_own(
    send: *const c_void,
    sent: *const usize,
    recv: *mut c_void,
    received: *const usize,
    dtype: cool_type,
    comm: cool_comm,
) -> cool_status {
    guarded(|| {
        let call = CallArguments::new(Operation::Alltoall, send, recv, ElementCount::Each(0), dtype, comm);
        // SAFETY: as promised.
        unsafe {
            call.run_with_own_counts(|comm| {
                let sent = numbers("sent", sent, comm.size())?;
                let received = numbers("received", received, comm.size())?;
                let (out, into) = (sum(sent.iter())?, sum(received.iter())?);
                Ok((OwnedCounts::OfRank(sent, received), out, into))
            })
        }
    })
}
