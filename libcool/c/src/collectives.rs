//! The collectives that wait for their results.

use crate::arguments::{CallArguments, ElementCount};
use crate::codes::{cool_comm, cool_op, cool_status, cool_type};
use crate::error::guarded;
use cool_rust::Operation;
use std::ffi::c_void;
use std::ptr;

/// Runs a call to its end.
///
/// # Safety
/// As for [`CallArguments::run`].
unsafe fn run(call: CallArguments) -> cool_status {
    // SAFETY: as promised.
    guarded(|| unsafe { call.run() })
}

/// Sends the root's `data`, of `count` elements, to all.
///
/// # Safety
/// The buffers are as long as the operation says, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_bcast(
    data: *mut c_void,
    count: usize,
    dtype: cool_type,
    root: usize,
    comm: cool_comm,
) -> cool_status {
    let call =
        CallArguments::new(Operation::Bcast, ptr::null(), data, ElementCount::Each(count), dtype, comm)
            .root(root);
    // SAFETY: as promised.
    unsafe { run(call) }
}

/// Combines all ranks' `count` elements into the root's `recv`.
///
/// # Safety
/// The buffers are as long as the operation says, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_reduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    op: cool_op,
    root: usize,
    comm: cool_comm,
) -> cool_status {
    let call = CallArguments::new(Operation::Reduce, send, recv, ElementCount::Each(count), dtype, comm)
        .op(op)
        .root(root);
    // SAFETY: as promised.
    unsafe { run(call) }
}

/// Combines all ranks' `count` elements into every rank's `recv`.
///
/// # Safety
/// The buffers are as long as the operation says, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_allreduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    op: cool_op,
    comm: cool_comm,
) -> cool_status {
    let call =
        CallArguments::new(Operation::Allreduce, send, recv, ElementCount::Each(count), dtype, comm).op(op);
    // SAFETY: as promised.
    unsafe { run(call) }
}

/// Combines all ranks' `send` and deals the result out: rank i gets the i-th `count` elements.
///
/// # Safety
/// The buffers are as long as the operation says, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_reduce_scatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    op: cool_op,
    comm: cool_comm,
) -> cool_status {
    let call =
        CallArguments::new(Operation::ReduceScatter, send, recv, ElementCount::Each(count), dtype, comm)
            .op(op);
    // SAFETY: as promised.
    unsafe { run(call) }
}

/// cool_reduce_scatter in parts of unequal lengths: rank i gets `counts[i]` elements. All ranks pass the
/// same counts.
///
/// # Safety
/// The buffers are as long as the operation says, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_reduce_scatter_counts(
    send: *const c_void,
    recv: *mut c_void,
    counts: *const usize,
    dtype: cool_type,
    op: cool_op,
    comm: cool_comm,
) -> cool_status {
    let call =
        CallArguments::new(Operation::ReduceScatter, send, recv, ElementCount::Parts(counts), dtype, comm)
            .op(op);
    // SAFETY: as promised.
    unsafe { run(call) }
}

/// Combines the `count` elements of this rank and of all before it.
///
/// # Safety
/// The buffers are as long as the operation says, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_scan(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    op: cool_op,
    comm: cool_comm,
) -> cool_status {
    let call = CallArguments::new(Operation::Scan, send, recv, ElementCount::Each(count), dtype, comm).op(op);
    // SAFETY: as promised.
    unsafe { run(call) }
}

/// Combines the `count` elements of all ranks before this one; rank 0's `recv` stays as it is.
///
/// # Safety
/// The buffers are as long as the operation says, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_exscan(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    op: cool_op,
    comm: cool_comm,
) -> cool_status {
    let call =
        CallArguments::new(Operation::Exscan, send, recv, ElementCount::Each(count), dtype, comm).op(op);
    // SAFETY: as promised.
    unsafe { run(call) }
}

/// Puts all ranks' `count` elements, in rank order, into the root's `recv`.
///
/// # Safety
/// The buffers are as long as the operation says, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_gather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    root: usize,
    comm: cool_comm,
) -> cool_status {
    let call =
        CallArguments::new(Operation::Gather, send, recv, ElementCount::Each(count), dtype, comm).root(root);
    // SAFETY: as promised.
    unsafe { run(call) }
}

/// cool_gather of parts of unequal lengths: rank i sends `counts[i]` elements. All ranks pass the same
/// counts.
///
/// # Safety
/// The buffers are as long as the operation says, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_gatherv(
    send: *const c_void,
    recv: *mut c_void,
    counts: *const usize,
    dtype: cool_type,
    root: usize,
    comm: cool_comm,
) -> cool_status {
    let call = CallArguments::new(Operation::Gather, send, recv, ElementCount::Parts(counts), dtype, comm)
        .root(root);
    // SAFETY: as promised.
    unsafe { run(call) }
}

/// Puts all ranks' `count` elements, in rank order, into every rank's `recv`. In place, each has its own
/// part there.
///
/// # Safety
/// The buffers are as long as the operation says, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_allgather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    comm: cool_comm,
) -> cool_status {
    let call = CallArguments::new(Operation::Allgather, send, recv, ElementCount::Each(count), dtype, comm);
    // SAFETY: as promised.
    unsafe { run(call) }
}

/// cool_allgather of parts of unequal lengths: rank i sends `counts[i]` elements. All ranks pass the same
/// counts.
///
/// # Safety
/// The buffers are as long as the operation says, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_allgatherv(
    send: *const c_void,
    recv: *mut c_void,
    counts: *const usize,
    dtype: cool_type,
    comm: cool_comm,
) -> cool_status {
    let call = CallArguments::new(Operation::Allgather, send, recv, ElementCount::Parts(counts), dtype, comm);
    // SAFETY: as promised.
    unsafe { run(call) }
}

/// Deals the root's `send` out: rank i gets the i-th `count` elements.
///
/// # Safety
/// The buffers are as long as the operation says, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_scatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    root: usize,
    comm: cool_comm,
) -> cool_status {
    let call =
        CallArguments::new(Operation::Scatter, send, recv, ElementCount::Each(count), dtype, comm).root(root);
    // SAFETY: as promised.
    unsafe { run(call) }
}

/// cool_scatter in parts of unequal lengths: rank i gets `counts[i]` elements. All ranks pass the same
/// counts.
///
/// # Safety
/// The buffers are as long as the operation says, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_scatterv(
    send: *const c_void,
    recv: *mut c_void,
    counts: *const usize,
    dtype: cool_type,
    root: usize,
    comm: cool_comm,
) -> cool_status {
    let call = CallArguments::new(Operation::Scatter, send, recv, ElementCount::Parts(counts), dtype, comm)
        .root(root);
    // SAFETY: as promised.
    unsafe { run(call) }
}

/// Deals every rank's `send` out: the i-th `count` elements go to rank i.
///
/// # Safety
/// The buffers are as long as the operation says, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_alltoall(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    comm: cool_comm,
) -> cool_status {
    let call = CallArguments::new(Operation::Alltoall, send, recv, ElementCount::Each(count), dtype, comm);
    // SAFETY: as promised.
    unsafe { run(call) }
}

/// cool_alltoall of parts of unequal lengths: `counts[i * size + j]` elements go from rank i to rank j. All
/// ranks pass the same counts.
///
/// # Safety
/// The buffers are as long as the operation says, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_alltoallv(
    send: *const c_void,
    recv: *mut c_void,
    counts: *const usize,
    dtype: cool_type,
    comm: cool_comm,
) -> cool_status {
    let call = CallArguments::new(Operation::Alltoall, send, recv, ElementCount::Parts(counts), dtype, comm);
    // SAFETY: as promised.
    unsafe { run(call) }
}

/// Returns when all ranks have called it.
#[unsafe(no_mangle)]
pub extern "C" fn cool_barrier(comm: cool_comm) -> cool_status {
    let call =
        CallArguments::new(Operation::Barrier, ptr::null(), ptr::null_mut(), ElementCount::Each(0), 0, comm);
    // SAFETY: there are no buffers.
    unsafe { run(call) }
}
