//! Calls with parts of unequal lengths in which each rank knows only the lengths of its own parts,
//! as in MPI's v-forms.

use crate::arguments::{CallArguments, ElementCount, OwnedCounts, sum};
use crate::codes::{cool_comm, cool_status, cool_type};
use crate::error::{CError, guarded};
use crate::pointers::numbers;
use cool_rust::{Comm, Operation};
use std::ffi::c_void;

/// Returns the root's counts and their sum.
///
/// # Safety
/// At the root, `counts` must have one number for each rank.
unsafe fn root_counts(
    comm: &Comm,
    counts: *const usize,
    root: usize,
) -> Result<(OwnedCounts, usize), CError> {
    let known = if comm.rank() == root { comm.size() } else { 0 };
    // SAFETY: the caller guarantees this.
    let counts = unsafe { numbers("counts", counts, known) }?;
    let all = sum(counts.iter())?;
    Ok((OwnedCounts::OfRoot(counts), all))
}

/// As cool_gatherv, but only the root must pass `counts`; each rank passes the `count` of elements
/// that it sends. The root broadcasts the counts first, 8 bytes for each rank. Only the root may
/// pass COOL_IN_PLACE.
///
/// # Safety
/// The buffers must have the lengths that the counts require, and no other code may access them
/// during the call.
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
        // SAFETY: the caller guarantees this.
        unsafe {
            call.run_with_own_counts(|comm| {
                let (own, all) = root_counts(comm, counts, root)?;
                Ok((own, count, all))
            })
        }
    })
}

/// As cool_scatterv, but only the root must pass `counts`; each rank passes the `count` of elements
/// that it receives. The root broadcasts the counts first, 8 bytes for each rank.
///
/// # Safety
/// The buffers must have the lengths that the counts require, and no other code may access them
/// during the call.
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
        // SAFETY: the caller guarantees this.
        unsafe {
            call.run_with_own_counts(|comm| {
                let (own, all) = root_counts(comm, counts, root)?;
                Ok((own, all, count))
            })
        }
    })
}

/// As cool_alltoallv, but each rank passes only the number of elements that it sends to and
/// receives from each rank. All ranks exchange their counts first, 16 bytes for each pair of ranks.
///
/// # Safety
/// `sent` and `received` must have one number for each rank. The buffers must have the lengths that
/// these counts require, and no other code may access them during the call.
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
        // SAFETY: the caller guarantees this.
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
