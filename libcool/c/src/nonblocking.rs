//! The collectives in their non-blocking form. Each corresponds to a function in
//! [`crate::collectives`] but returns once the call has started.

use crate::arguments::{CallArguments, ElementCount};
use crate::codes::{cool_comm, cool_op, cool_request, cool_status, cool_type};
use crate::requests::start_request;
use cool_rust::Operation;
use std::ffi::c_void;
use std::ptr;

/// Starts a call and stores its request.
///
/// # Safety
/// As for [`CallArguments::start`]. `request` must point to a request.
unsafe fn start(call: CallArguments, request: *mut cool_request) -> cool_status {
    // SAFETY: the caller guarantees this.
    unsafe { start_request(request, || call.start()) }
}

/// Starts cool_bcast and stores the request.
///
/// # Safety
/// The buffers must have the lengths that the operation requires. The caller must keep the send
/// buffer unchanged until this returns, and must not access the receive buffer until cool_wait
/// returns. `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_ibcast(
    data: *mut c_void,
    count: usize,
    dtype: cool_type,
    root: usize,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    let call =
        CallArguments::new(Operation::Bcast, ptr::null(), data, ElementCount::Each(count), dtype, comm)
            .root(root);
    // SAFETY: the caller guarantees this.
    unsafe { start(call, request) }
}

/// Starts cool_reduce and stores the request.
///
/// # Safety
/// The buffers must have the lengths that the operation requires. The caller must keep the send
/// buffer unchanged until this returns, and must not access the receive buffer until cool_wait
/// returns. `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_ireduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    op: cool_op,
    root: usize,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    let call = CallArguments::new(Operation::Reduce, send, recv, ElementCount::Each(count), dtype, comm)
        .op(op)
        .root(root);
    // SAFETY: the caller guarantees this.
    unsafe { start(call, request) }
}

/// Starts cool_allreduce and stores the request.
///
/// # Safety
/// The buffers must have the lengths that the operation requires. The caller must keep the send
/// buffer unchanged until this returns, and must not access the receive buffer until cool_wait
/// returns. `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_iallreduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    op: cool_op,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    let call =
        CallArguments::new(Operation::Allreduce, send, recv, ElementCount::Each(count), dtype, comm).op(op);
    // SAFETY: the caller guarantees this.
    unsafe { start(call, request) }
}

/// Starts cool_reduce_scatter and stores the request.
///
/// # Safety
/// The buffers must have the lengths that the operation requires. The caller must keep the send
/// buffer unchanged until this returns, and must not access the receive buffer until cool_wait
/// returns. `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_ireduce_scatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    op: cool_op,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    let call =
        CallArguments::new(Operation::ReduceScatter, send, recv, ElementCount::Each(count), dtype, comm)
            .op(op);
    // SAFETY: the caller guarantees this.
    unsafe { start(call, request) }
}

/// Starts cool_reduce_scatter_counts and stores the request.
///
/// # Safety
/// The buffers must have the lengths that the operation requires. The caller must keep the send
/// buffer unchanged until this returns, and must not access the receive buffer until cool_wait
/// returns. `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_ireduce_scatter_counts(
    send: *const c_void,
    recv: *mut c_void,
    counts: *const usize,
    dtype: cool_type,
    op: cool_op,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    let call =
        CallArguments::new(Operation::ReduceScatter, send, recv, ElementCount::Parts(counts), dtype, comm)
            .op(op);
    // SAFETY: the caller guarantees this.
    unsafe { start(call, request) }
}

/// Starts cool_scan and stores the request.
///
/// # Safety
/// The buffers must have the lengths that the operation requires. The caller must keep the send
/// buffer unchanged until this returns, and must not access the receive buffer until cool_wait
/// returns. `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_iscan(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    op: cool_op,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    let call = CallArguments::new(Operation::Scan, send, recv, ElementCount::Each(count), dtype, comm).op(op);
    // SAFETY: the caller guarantees this.
    unsafe { start(call, request) }
}

/// Starts cool_exscan and stores the request.
///
/// # Safety
/// The buffers must have the lengths that the operation requires. The caller must keep the send
/// buffer unchanged until this returns, and must not access the receive buffer until cool_wait
/// returns. `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_iexscan(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    op: cool_op,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    let call =
        CallArguments::new(Operation::Exscan, send, recv, ElementCount::Each(count), dtype, comm).op(op);
    // SAFETY: the caller guarantees this.
    unsafe { start(call, request) }
}

/// Starts cool_gather and stores the request.
///
/// # Safety
/// The buffers must have the lengths that the operation requires. The caller must keep the send
/// buffer unchanged until this returns, and must not access the receive buffer until cool_wait
/// returns. `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_igather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    root: usize,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    let call =
        CallArguments::new(Operation::Gather, send, recv, ElementCount::Each(count), dtype, comm).root(root);
    // SAFETY: the caller guarantees this.
    unsafe { start(call, request) }
}

/// Starts cool_gatherv and stores the request.
///
/// # Safety
/// The buffers must have the lengths that the operation requires. The caller must keep the send
/// buffer unchanged until this returns, and must not access the receive buffer until cool_wait
/// returns. `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_igatherv(
    send: *const c_void,
    recv: *mut c_void,
    counts: *const usize,
    dtype: cool_type,
    root: usize,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    let call = CallArguments::new(Operation::Gather, send, recv, ElementCount::Parts(counts), dtype, comm)
        .root(root);
    // SAFETY: the caller guarantees this.
    unsafe { start(call, request) }
}

/// Starts cool_allgather and stores the request.
///
/// # Safety
/// The buffers must have the lengths that the operation requires. The caller must keep the send
/// buffer unchanged until this returns, and must not access the receive buffer until cool_wait
/// returns. `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_iallgather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    let call = CallArguments::new(Operation::Allgather, send, recv, ElementCount::Each(count), dtype, comm);
    // SAFETY: the caller guarantees this.
    unsafe { start(call, request) }
}

/// Starts cool_allgatherv and stores the request.
///
/// # Safety
/// The buffers must have the lengths that the operation requires. The caller must keep the send
/// buffer unchanged until this returns, and must not access the receive buffer until cool_wait
/// returns. `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_iallgatherv(
    send: *const c_void,
    recv: *mut c_void,
    counts: *const usize,
    dtype: cool_type,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    let call = CallArguments::new(Operation::Allgather, send, recv, ElementCount::Parts(counts), dtype, comm);
    // SAFETY: the caller guarantees this.
    unsafe { start(call, request) }
}

/// Starts cool_scatter and stores the request.
///
/// # Safety
/// The buffers must have the lengths that the operation requires. The caller must keep the send
/// buffer unchanged until this returns, and must not access the receive buffer until cool_wait
/// returns. `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_iscatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    root: usize,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    let call =
        CallArguments::new(Operation::Scatter, send, recv, ElementCount::Each(count), dtype, comm).root(root);
    // SAFETY: the caller guarantees this.
    unsafe { start(call, request) }
}

/// Starts cool_scatterv and stores the request.
///
/// # Safety
/// The buffers must have the lengths that the operation requires. The caller must keep the send
/// buffer unchanged until this returns, and must not access the receive buffer until cool_wait
/// returns. `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_iscatterv(
    send: *const c_void,
    recv: *mut c_void,
    counts: *const usize,
    dtype: cool_type,
    root: usize,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    let call = CallArguments::new(Operation::Scatter, send, recv, ElementCount::Parts(counts), dtype, comm)
        .root(root);
    // SAFETY: the caller guarantees this.
    unsafe { start(call, request) }
}

/// Starts cool_alltoall and stores the request.
///
/// # Safety
/// The buffers must have the lengths that the operation requires. The caller must keep the send
/// buffer unchanged until this returns, and must not access the receive buffer until cool_wait
/// returns. `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_ialltoall(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: cool_type,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    let call = CallArguments::new(Operation::Alltoall, send, recv, ElementCount::Each(count), dtype, comm);
    // SAFETY: the caller guarantees this.
    unsafe { start(call, request) }
}

/// Starts cool_alltoallv and stores the request.
///
/// # Safety
/// The buffers must have the lengths that the operation requires. The caller must keep the send
/// buffer unchanged until this returns, and must not access the receive buffer until cool_wait
/// returns. `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_ialltoallv(
    send: *const c_void,
    recv: *mut c_void,
    counts: *const usize,
    dtype: cool_type,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    let call = CallArguments::new(Operation::Alltoall, send, recv, ElementCount::Parts(counts), dtype, comm);
    // SAFETY: the caller guarantees this.
    unsafe { start(call, request) }
}

/// Starts cool_barrier and stores the request.
///
/// # Safety
/// `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_ibarrier(comm: cool_comm, request: *mut cool_request) -> cool_status {
    let call =
        CallArguments::new(Operation::Barrier, ptr::null(), ptr::null_mut(), ElementCount::Each(0), 0, comm);
    // SAFETY: the caller guarantees this, and a barrier has no buffers.
    unsafe { start(call, request) }
}
