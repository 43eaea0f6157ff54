//! The functions that the program calls instead of the host's: MPI's collectives, those with the
//! suffix `_c`, and `MPI_Finalize`. Each call is either intercepted, or passed through to the
//! host's function, which has the prefix `PMPI_`.

#![allow(non_snake_case, reason = "MPI's names")]
#![allow(missing_docs, reason = "MPI documents them")]
#![allow(unreachable_pub, reason = "called by the program, by their names")]

use crate::calls::{
    self, BufferArgument, FINALIZED, TALLY, allgather, allgatherv, alltoall, bcast, gather, reduce_scatter,
    reduction, scatter,
};
use crate::groups::leave_all;
use crate::host::{InPointer, MpiHandle, OutPointer, function, host, required};
use cool::Operation;
use std::ffi::c_int;
use std::num::TryFromIntError;
use std::sync::atomic::Ordering;
use std::sync::{OnceLock, PoisonError};

/// Defines functions, given their names, the names of the host's functions, the arguments, and the
/// expression that tries to intercept a call. If the call is not intercepted, the host's function
/// is called. If the host's library does not have it, because it is older than MPI 4, its function
/// without the suffix `_c` is called, which counts in `int`.
macro_rules! interposed {
    ($($name:ident, $host:literal, ($($argument:ident: $of:ty),*), $tried:expr,
        $first:literal on $comm:ident ($($narrow:expr => $narrow_of:ty),*);)*) => {$(
        /// # Safety
        /// The arguments must be valid for the MPI function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $of),*) -> c_int {
            // SAFETY: guaranteed by the caller, as MPI requires.
            let tried: Option<c_int> = unsafe { $tried };
            if let Some(code) = tried {
                return code;
            }
            static HOST: OnceLock<Option<unsafe extern "C" fn($($of),*) -> c_int>> = OnceLock::new();
            let host_function = HOST.get_or_init(|| {
                // SAFETY: the host's function of this name has the same arguments.
                function($host).map(|found| unsafe { std::mem::transmute(found) })
            });
            if let Some(host_function) = host_function {
                // SAFETY: guaranteed by the caller, as MPI requires.
                return unsafe { host_function($($argument),*) };
            }
            // SAFETY: the host's function of that name has these arguments, with the same meaning
            // as the caller's.
            let narrow = || -> Result<c_int, TryFromIntError> { unsafe {
                let host_function: unsafe extern "C" fn($($narrow_of),*) -> c_int = std::mem::transmute(required($first));
                Ok(host_function($($narrow),*))
            } };
            narrow().unwrap_or_else(|_| calls::count_exceeds_int($first, $comm))
        }
    )*};
}

/// Converts a count to `int`, the type of counts in functions without the suffix `_c`.
fn int(count: impl Into<i64>) -> Result<c_int, TryFromIntError> {
    c_int::try_from(count.into())
}

/// Converts the first `ranks` counts of an array to `int`.
///
/// # Safety
/// The array must contain `ranks` counts, or be null.
unsafe fn ints<N: Copy + TryInto<i64>>(array: *const N, ranks: usize) -> Result<Vec<c_int>, TryFromIntError> {
    // SAFETY: guaranteed by the caller.
    (0..ranks).map(|rank| int(unsafe { number(array, rank) })).collect()
}

/// Returns the number at index `at` of an array that the program passed, or -1 if the array is
/// null.
///
/// # Safety
/// The array must contain more than `at` numbers, or be null.
pub(crate) unsafe fn number<N: Copy + TryInto<i64>>(array: *const N, at: usize) -> i64 {
    if array.is_null() {
        return -1;
    }
    // SAFETY: guaranteed by the caller.
    let number = unsafe { array.add(at).read_unaligned() };
    number.try_into().unwrap_or(-1)
}

fn buffer(data: InPointer, count: impl Into<i64>, datatype: MpiHandle) -> BufferArgument {
    BufferArgument { data, count: count.into(), datatype }
}

/// Defines all functions for one type of counts.
macro_rules! counted {
    ($count:ty, $place:ty, $bcast:ident $pbcast:literal, $reduce:ident $preduce:literal, $allreduce:ident $pallreduce:literal,
     $scan:ident $pscan:literal, $exscan:ident $pexscan:literal, $block:ident $pblock:literal, $scattered:ident $pscattered:literal,
     $gather:ident $pgather:literal, $scatter:ident $pscatter:literal, $allgather:ident $pallgather:literal,
     $allgatherv:ident $pallgatherv:literal, $alltoall:ident $palltoall:literal) => {
        interposed! {
            $bcast, $pbcast, (data: OutPointer, count: $count, datatype: MpiHandle, root: c_int, comm: MpiHandle),
                bcast(data, count.into(), datatype, root, comm),
                "PMPI_Bcast" on comm (data => OutPointer, int(count)? => c_int, datatype => MpiHandle, root => c_int, comm => MpiHandle);
            $reduce, $preduce, (send: InPointer, recv: OutPointer, count: $count, datatype: MpiHandle, op: MpiHandle, root: c_int, comm: MpiHandle),
                reduction(Operation::Reduce, (send, recv), count.into(), (datatype, op), root, comm),
                "PMPI_Reduce" on comm (send => InPointer, recv => OutPointer, int(count)? => c_int, datatype => MpiHandle, op => MpiHandle, root => c_int,
                                       comm => MpiHandle);
            $allreduce, $pallreduce, (send: InPointer, recv: OutPointer, count: $count, datatype: MpiHandle, op: MpiHandle, comm: MpiHandle),
                reduction(Operation::Allreduce, (send, recv), count.into(), (datatype, op), 0, comm),
                "PMPI_Allreduce" on comm (send => InPointer, recv => OutPointer, int(count)? => c_int, datatype => MpiHandle, op => MpiHandle, comm => MpiHandle);
            $scan, $pscan, (send: InPointer, recv: OutPointer, count: $count, datatype: MpiHandle, op: MpiHandle, comm: MpiHandle),
                reduction(Operation::Scan, (send, recv), count.into(), (datatype, op), 0, comm),
                "PMPI_Scan" on comm (send => InPointer, recv => OutPointer, int(count)? => c_int, datatype => MpiHandle, op => MpiHandle, comm => MpiHandle);
            $exscan, $pexscan, (send: InPointer, recv: OutPointer, count: $count, datatype: MpiHandle, op: MpiHandle, comm: MpiHandle),
                reduction(Operation::Exscan, (send, recv), count.into(), (datatype, op), 0, comm),
                "PMPI_Exscan" on comm (send => InPointer, recv => OutPointer, int(count)? => c_int, datatype => MpiHandle, op => MpiHandle, comm => MpiHandle);
            $block, $pblock, (send: InPointer, recv: OutPointer, count: $count, datatype: MpiHandle, op: MpiHandle, comm: MpiHandle),
                reduce_scatter((send, recv), &|_| count.into(), (datatype, op), comm),
                "PMPI_Reduce_scatter_block" on comm (send => InPointer, recv => OutPointer, int(count)? => c_int, datatype => MpiHandle, op => MpiHandle, comm => MpiHandle);
            $scattered, $pscattered, (send: InPointer, recv: OutPointer, counts: *const $count, datatype: MpiHandle, op: MpiHandle, comm: MpiHandle),
                reduce_scatter((send, recv), &|rank| number(counts, rank), (datatype, op), comm),
                "PMPI_Reduce_scatter" on comm (send => InPointer, recv => OutPointer, ints(counts, calls::sizes(comm).0)?.as_ptr() => *const c_int,
                                               datatype => MpiHandle, op => MpiHandle,
                                       comm => MpiHandle);
            $gather, $pgather, (send: InPointer, count: $count, datatype: MpiHandle, recv: OutPointer, recv_count: $count, recv_type: MpiHandle,
                                root: c_int, comm: MpiHandle),
                gather(buffer(send, count, datatype), buffer(recv, recv_count, recv_type), root, comm),
                "PMPI_Gather" on comm (send => InPointer, int(count)? => c_int, datatype => MpiHandle, recv => OutPointer, int(recv_count)? => c_int,
                                       recv_type => MpiHandle,
                               root => c_int, comm => MpiHandle);
            $scatter, $pscatter, (send: InPointer, count: $count, datatype: MpiHandle, recv: OutPointer, recv_count: $count, recv_type: MpiHandle,
                                  root: c_int, comm: MpiHandle),
                scatter(buffer(send, count, datatype), buffer(recv, recv_count, recv_type), root, comm),
                "PMPI_Scatter" on comm (send => InPointer, int(count)? => c_int, datatype => MpiHandle, recv => OutPointer, int(recv_count)? => c_int,
                                        recv_type => MpiHandle,
                                root => c_int, comm => MpiHandle);
            $allgather, $pallgather, (send: InPointer, count: $count, datatype: MpiHandle, recv: OutPointer, recv_count: $count, recv_type: MpiHandle,
                                      comm: MpiHandle),
                allgather(buffer(send, count, datatype), buffer(recv, recv_count, recv_type), comm),
                "PMPI_Allgather" on comm (send => InPointer, int(count)? => c_int, datatype => MpiHandle, recv => OutPointer, int(recv_count)? => c_int,
                                          recv_type => MpiHandle,
                                   comm => MpiHandle);
            $allgatherv, $pallgatherv, (send: InPointer, count: $count, datatype: MpiHandle, recv: OutPointer, recv_counts: *const $count,
                                        places: *const $place, recv_type: MpiHandle, comm: MpiHandle),
                allgatherv(buffer(send, count, datatype), (recv, recv_type), &|rank| number(recv_counts, rank),
                           &|rank| number(places, rank), comm),
                "PMPI_Allgatherv" on comm (send => InPointer, int(count)? => c_int, datatype => MpiHandle, recv => OutPointer, ints(recv_counts,
                                           calls::sizes(comm).1)?.as_ptr() => *const c_int,
                                   ints(places, calls::sizes(comm).1)?.as_ptr() => *const c_int, recv_type => MpiHandle, comm => MpiHandle);
            $alltoall, $palltoall, (send: InPointer, count: $count, datatype: MpiHandle, recv: OutPointer, recv_count: $count, recv_type: MpiHandle,
                                    comm: MpiHandle),
                alltoall(buffer(send, count, datatype), buffer(recv, recv_count, recv_type), comm),
                "PMPI_Alltoall" on comm (send => InPointer, int(count)? => c_int, datatype => MpiHandle, recv => OutPointer, int(recv_count)? => c_int,
                                         recv_type => MpiHandle,
                                  comm => MpiHandle);
        }
    };
}

counted! {
    c_int, c_int, MPI_Bcast "PMPI_Bcast", MPI_Reduce "PMPI_Reduce", MPI_Allreduce "PMPI_Allreduce", MPI_Scan "PMPI_Scan",
    MPI_Exscan "PMPI_Exscan", MPI_Reduce_scatter_block "PMPI_Reduce_scatter_block", MPI_Reduce_scatter "PMPI_Reduce_scatter",
    MPI_Gather "PMPI_Gather", MPI_Scatter "PMPI_Scatter", MPI_Allgather "PMPI_Allgather", MPI_Allgatherv "PMPI_Allgatherv",
    MPI_Alltoall "PMPI_Alltoall"
}

counted! {
    i64, i64, MPI_Bcast_c "PMPI_Bcast_c", MPI_Reduce_c "PMPI_Reduce_c", MPI_Allreduce_c "PMPI_Allreduce_c",
    MPI_Scan_c "PMPI_Scan_c", MPI_Exscan_c "PMPI_Exscan_c", MPI_Reduce_scatter_block_c "PMPI_Reduce_scatter_block_c",
    MPI_Reduce_scatter_c "PMPI_Reduce_scatter_c", MPI_Gather_c "PMPI_Gather_c", MPI_Scatter_c "PMPI_Scatter_c",
    MPI_Allgather_c "PMPI_Allgather_c", MPI_Allgatherv_c "PMPI_Allgatherv_c", MPI_Alltoall_c "PMPI_Alltoall_c"
}

/// # Safety
/// The program must be allowed to call `MPI_Finalize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Finalize() -> c_int {
    finalize();
    // SAFETY: the host's function of this name has no arguments.
    let host_function: unsafe extern "C" fn() -> c_int =
        unsafe { std::mem::transmute(required("PMPI_Finalize")) };
    // SAFETY: guaranteed by the caller.
    unsafe { host_function() }
}

/// Ends interception: prints the statistics at rank 0, and leaves all groups. The host's library
/// must be finalized afterwards.
pub(crate) fn finalize() {
    if FINALIZED.swap(true, Ordering::Relaxed) {
        return;
    }
    let host = host();
    if calls::settings().stats && host.world_rank() == Some(0) {
        eprint!("{}", TALLY.lock().unwrap_or_else(PoisonError::into_inner));
    }
    leave_all();
}
