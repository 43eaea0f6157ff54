//! The collectives in their blocking form.

use crate::arguments::{CallArguments, ElementCount};
use crate::codes::{cool_comm, cool_op, cool_status, cool_type};
use crate::error::guarded;
use cool_rust::Operation;
use std::ffi::c_void;
use std::ptr;

/// Executes a call.
///
/// # Safety
/// As for [`CallArguments::run`].
unsafe fn run(call: CallArguments) -> cool_status {
    // SAFETY: the caller guarantees this.
    guarded(|| unsafe { call.run() })
}

/// Sends the root's `data`, of `count` elements, to all ranks, where it overwrites `data`.
///
/// # Safety
/// The buffers must have the lengths that the operation requires, and no other code may access them
/// during the call.
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
    // SAFETY: the caller guarantees this.
    unsafe { run(call) }
}

/// Combines the `count` elements of all ranks, element by element, into the root's `recv`. Other
/// ranks may pass NULL as `recv`.
///
/// # Safety
/// The buffers must have the lengths that the operation requires, and no other code may access them
/// during the call.
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
    // SAFETY: the caller guarantees this.
    unsafe { run(call) }
}

/// Combines the `count` elements of all ranks, element by element, into the `recv` of every rank.
///
/// # Safety
/// The buffers must have the lengths that the operation requires, and no other code may access them
/// during the call.
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
    // SAFETY: the caller guarantees this.
    unsafe { run(call) }
}

/// Combines the `send` arrays of all ranks and distributes the result: rank i receives the i-th
/// `count` elements. `send` has `count` elements for each rank.
///
/// # Safety
/// The buffers must have the lengths that the operation requires, and no other code may access them
/// during the call.
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
    // SAFETY: the caller guarantees this.
    unsafe { run(call) }
}

/// As cool_reduce_scatter, in parts of unequal lengths: rank i receives `counts[i]` elements. All
/// ranks must pass the same counts.
///
/// # Safety
/// The buffers must have the lengths that the operation requires, and no other code may access them
/// during the call.
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
    // SAFETY: the caller guarantees this.
    unsafe { run(call) }
}

/// Combines the `count` elements of this rank and all preceding ranks, element by element, into
/// `recv`.
///
/// # Safety
/// The buffers must have the lengths that the operation requires, and no other code may access them
/// during the call.
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
    // SAFETY: the caller guarantees this.
    unsafe { run(call) }
}

/// Combines the `count` elements of all preceding ranks, element by element, into `recv`. At rank
/// 0, which has no predecessors, `recv` is unchanged.
///
/// # Safety
/// The buffers must have the lengths that the operation requires, and no other code may access them
/// during the call.
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
    // SAFETY: the caller guarantees this.
    unsafe { run(call) }
}

/// Concatenates the `count` elements of all ranks, in rank order, in the root's `recv`. Other ranks
/// may pass NULL as `recv`.
///
/// # Safety
/// The buffers must have the lengths that the operation requires, and no other code may access them
/// during the call.
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
    // SAFETY: the caller guarantees this.
    unsafe { run(call) }
}

/// As cool_gather, with parts of unequal lengths: rank i sends `counts[i]` elements. All ranks must
/// pass the same counts.
///
/// # Safety
/// The buffers must have the lengths that the operation requires, and no other code may access them
/// during the call.
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
    // SAFETY: the caller guarantees this.
    unsafe { run(call) }
}

/// Concatenates the `count` elements of all ranks, in rank order, in the `recv` of every rank. With
/// COOL_IN_PLACE, each rank must have filled its own part of `recv`.
///
/// # Safety
/// The buffers must have the lengths that the operation requires, and no other code may access them
/// during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_allgather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    comm: cool_comm,
) -> cool_status {
    let call = CallArguments::new(Operation::Allgather, send, recv, ElementCount::Each(count), dtype, comm);
    // SAFETY: the caller guarantees this.
    unsafe { run(call) }
}

/// As cool_allgather, with parts of unequal lengths: rank i sends `counts[i]` elements. All ranks
/// must pass the same counts.
///
/// # Safety
/// The buffers must have the lengths that the operation requires, and no other code may access them
/// during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_allgatherv(
    send: *const c_void,
    recv: *mut c_void,
    counts: *const usize,
    dtype: cool_type,
    comm: cool_comm,
) -> cool_status {
    let call = CallArguments::new(Operation::Allgather, send, recv, ElementCount::Parts(counts), dtype, comm);
    // SAFETY: the caller guarantees this.
    unsafe { run(call) }
}

/// Distributes the root's `send`: rank i receives the i-th `count` elements. Other ranks may pass
/// NULL as `send`.
///
/// # Safety
/// The buffers must have the lengths that the operation requires, and no other code may access them
/// during the call.
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
    // SAFETY: the caller guarantees this.
    unsafe { run(call) }
}

/// As cool_scatter, in parts of unequal lengths: rank i receives `counts[i]` elements. All ranks
/// must pass the same counts.
///
/// # Safety
/// The buffers must have the lengths that the operation requires, and no other code may access them
/// during the call.
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
    // SAFETY: the caller guarantees this.
    unsafe { run(call) }
}

/// Distributes every rank's `send`: the i-th `count` elements are sent to rank i. `recv` contains
/// the received parts in rank order.
///
/// # Safety
/// The buffers must have the lengths that the operation requires, and no other code may access them
/// during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_alltoall(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    comm: cool_comm,
) -> cool_status {
    let call = CallArguments::new(Operation::Alltoall, send, recv, ElementCount::Each(count), dtype, comm);
    // SAFETY: the caller guarantees this.
    unsafe { run(call) }
}

/// As cool_alltoall, in parts of unequal lengths: `counts[i * size + j]` elements are sent from
/// rank i to rank j. All ranks must pass the same counts.
///
/// # Safety
/// The buffers must have the lengths that the operation requires, and no other code may access them
/// during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_alltoallv(
    send: *const c_void,
    recv: *mut c_void,
    counts: *const usize,
    dtype: cool_type,
    comm: cool_comm,
) -> cool_status {
    let call = CallArguments::new(Operation::Alltoall, send, recv, ElementCount::Parts(counts), dtype, comm);
    // SAFETY: the caller guarantees this.
    unsafe { run(call) }
}

/// Returns when all ranks have called it.
#[unsafe(no_mangle)]
pub extern "C" fn cool_barrier(comm: cool_comm) -> cool_status {
    let call =
        CallArguments::new(Operation::Barrier, ptr::null(), ptr::null_mut(), ElementCount::Each(0), 0, comm);
    // SAFETY: a barrier has no buffers.
    unsafe { run(call) }
}
