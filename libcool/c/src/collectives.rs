//! The collectives that wait for their results.

use crate::arguments::{Call, Count, apart, bytes, bytes_mut, comm_of};
use crate::codes::{cool_comm, cool_op, cool_operation, cool_status, cool_type, operation_of};
use crate::error::{Wrong, guarded};
use cool_rust::Operation;
use std::ffi::c_void;
use std::ptr;

/// Runs a call to its end.
///
/// # Safety
/// As for [`Call::run`].
unsafe fn run(call: Call) -> cool_status {
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
    let call = Call::new(Operation::Bcast, ptr::null(), data, Count::Each(count), dtype, comm).root(root);
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
    let call = Call::new(Operation::Reduce, send, recv, Count::Each(count), dtype, comm).op(op).root(root);
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
    let call = Call::new(Operation::Allreduce, send, recv, Count::Each(count), dtype, comm).op(op);
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
    let call = Call::new(Operation::ReduceScatter, send, recv, Count::Each(count), dtype, comm).op(op);
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
    let call = Call::new(Operation::ReduceScatter, send, recv, Count::Parts(counts), dtype, comm).op(op);
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
    let call = Call::new(Operation::Scan, send, recv, Count::Each(count), dtype, comm).op(op);
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
    let call = Call::new(Operation::Exscan, send, recv, Count::Each(count), dtype, comm).op(op);
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
    let call = Call::new(Operation::Gather, send, recv, Count::Each(count), dtype, comm).root(root);
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
    let call = Call::new(Operation::Gather, send, recv, Count::Parts(counts), dtype, comm).root(root);
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
    let call = Call::new(Operation::Allgather, send, recv, Count::Each(count), dtype, comm);
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
    let call = Call::new(Operation::Allgather, send, recv, Count::Parts(counts), dtype, comm);
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
    let call = Call::new(Operation::Scatter, send, recv, Count::Each(count), dtype, comm).root(root);
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
    let call = Call::new(Operation::Scatter, send, recv, Count::Parts(counts), dtype, comm).root(root);
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
    let call = Call::new(Operation::Alltoall, send, recv, Count::Each(count), dtype, comm);
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
    let call = Call::new(Operation::Alltoall, send, recv, Count::Parts(counts), dtype, comm);
    // SAFETY: as promised.
    unsafe { run(call) }
}

/// Returns when all ranks have called it.
#[unsafe(no_mangle)]
pub extern "C" fn cool_barrier(comm: cool_comm) -> cool_status {
    let call = Call::new(Operation::Barrier, ptr::null(), ptr::null_mut(), Count::Each(0), 0, comm);
    // SAFETY: there are no buffers.
    unsafe { run(call) }
}

/// A function of the program that combines: `left[i] = left[i] op right[i]` for `count` elements, where `left` is of
/// smaller ranks.
pub type cool_combine =
    Option<unsafe extern "C" fn(left: *mut c_void, right: *const c_void, count: usize, context: *mut c_void)>;

/// A reduction (COOL_REDUCE, COOL_ALLREDUCE, COOL_REDUCE_SCATTER, COOL_SCAN, COOL_EXSCAN) by a function of the program,
/// which need not be commutative, on elements of `element` bytes. `count` and `root` are as for the operation. All ranks
/// pass the same function.
///
/// # Safety
/// The buffers are as long as the operation says, and nobody else uses them meanwhile; the function keeps to its arrays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_fold(
    operation: cool_operation,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    element: usize,
    combine: cool_combine,
    context: *mut c_void,
    root: usize,
    comm: cool_comm,
) -> cool_status {
    guarded(|| {
        let wrong = |reason: &str| Wrong::Argument(reason.to_owned());
        let operation = operation_of(operation).ok_or_else(|| wrong("there is no such operation"))?;
        let combine = combine.ok_or_else(|| wrong("combine is null"))?;
        let comm = comm_of(comm)?;
        let parts = if operation == Operation::ReduceScatter { comm.size() } else { 1 };
        let to_write = count.checked_mul(element);
        let to_read =
            to_write.and_then(|bytes| bytes.checked_mul(parts)).filter(|b| isize::try_from(*b).is_ok());
        let (Some(to_read), Some(to_write)) = (to_read, to_write) else {
            return Err(wrong("count is beyond any array"));
        };
        let to_write = if operation == Operation::Reduce && comm.rank() != root { 0 } else { to_write };
        // SAFETY: as promised.
        let send = unsafe { bytes("send", send, to_read) }?;
        // SAFETY: as promised.
        let recv = unsafe { bytes_mut("recv", recv, to_write) }?;
        apart(send, recv)?;
        let mut f = |left: &mut [u8], right: &[u8]| {
            let count = left.len() / element;
            // SAFETY: both have `count` elements, and begin where any element may.
            unsafe { combine(left.as_mut_ptr().cast(), right.as_ptr().cast(), count, context) };
        };
        Ok(comm.fold(operation, root, element, send, recv, &mut f)?)
    })
}
