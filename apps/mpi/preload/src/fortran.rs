//! The names that Fortran programs call (`mpif.h`, `use mpi`; of compilers that append one underscore). MPICH's functions of these
//! names call those of C, which are ours; Open MPI's call those with `P`, and so are taken here. Those of Open MPI's module `mpi_f08` have
//! names of its own and stay with it.

#![allow(missing_docs, reason = "MPI says what they do")]
#![allow(unreachable_pub, reason = "called by the program, by their names")]

use crate::calls::{
    BufferArgument, allgather, allgatherv, alltoall, bcast, gather, reduce_scatter, reduction, scatter,
};
use crate::host::{InPointer, MpiHandle, OutPointer, address, host, required};
use crate::names::{finalize, number};
use cool::Operation;
use cool_mpi::Abi;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// Every number comes by its address.
type FortranInt = *const c_int;

/// Defines functions: their names, their arguments but the last, and how they are tried here if the host is Open MPI.
macro_rules! interposed {
    ($($name:ident, $text:literal, ($($argument:ident: $of:ty),*), $tried:expr;)*) => {$(
        /// # Safety
        /// As MPI wants it of the arguments.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $of,)* error: *mut c_int) {
            if host().abi == Abi::OpenMpi {
                #[allow(unused_unsafe, reason = "one has no arguments")]
                // SAFETY: the caller has promised MPI what is asked for here.
                let tried: Option<c_int> = unsafe { $tried };
                if let Some(code) = tried {
                    // SAFETY: a place for the code.
                    unsafe { error.write(code) };
                    return;
                }
            }
            static HOST: OnceLock<unsafe extern "C" fn($($of,)* *mut c_int)> = OnceLock::new();
            let host_function = HOST.get_or_init(|| {
                // SAFETY: the host's function of this name has the same arguments.
                unsafe { std::mem::transmute(required($text)) }
            });
            // SAFETY: the caller has promised MPI what the function asks for.
            unsafe { host_function($($argument,)* error) }
        }
    )*};
}

/// A handle of Open MPI's of Fortran's number.
type FromNumber = unsafe extern "C" fn(c_int) -> MpiHandle;

/// The function of a name that gives one.
fn from_number(name: &str) -> FromNumber {
    // SAFETY: MPI's functions of these names take an int and give a handle, which is a pointer in Open MPI.
    unsafe { std::mem::transmute::<NonNull<c_void>, FromNumber>(required(name)) }
}

/// Handles of Open MPI's by Fortran's numbers for them.
struct HandleConverters {
    comm: FromNumber,
    datatype: FromNumber,
    op: FromNumber,
    /// The addresses that stand for `MPI_IN_PLACE` and for `MPI_BOTTOM`, each by several compilers' names.
    in_place: Vec<usize>,
    bottom: Vec<usize>,
}

fn handles() -> &'static HandleConverters {
    static HANDLES: OnceLock<HandleConverters> = OnceLock::new();
    HANDLES.get_or_init(|| {
        let variants = |name: &str| {
            let upper = name.to_uppercase();
            let names = [name.to_owned(), format!("{name}_"), format!("{name}__"), upper];
            names.iter().filter_map(|name| address(name)).collect()
        };
        HandleConverters {
            comm: from_number("PMPI_Comm_f2c"),
            datatype: from_number("PMPI_Type_f2c"),
            op: from_number("PMPI_Op_f2c"),
            in_place: variants("mpi_fortran_in_place"),
            bottom: variants("mpi_fortran_bottom"),
        }
    })
}

/// An address as C would give it.
fn data(fortran: InPointer) -> InPointer {
    let handles = handles();
    if handles.in_place.contains(&fortran.addr()) {
        return std::ptr::without_provenance(host().abi.in_place());
    }
    if handles.bottom.contains(&fortran.addr()) { std::ptr::null() } else { fortran }
}

fn data_mut(fortran: OutPointer) -> OutPointer {
    data(fortran).cast_mut()
}

/// # Safety
/// The address is that of a number.
unsafe fn int(number: FortranInt) -> c_int {
    // SAFETY: as promised.
    unsafe { number.read() }
}

/// # Safety
/// The address is that of a number.
unsafe fn comm(number: FortranInt) -> MpiHandle {
    // SAFETY: as promised; the function takes any number.
    unsafe { (handles().comm)(int(number)) }
}

/// # Safety
/// The address is that of a number.
unsafe fn datatype(number: FortranInt) -> MpiHandle {
    // SAFETY: as promised; the function takes any number.
    unsafe { (handles().datatype)(int(number)) }
}

/// # Safety
/// The address is that of a number.
unsafe fn op(number: FortranInt) -> MpiHandle {
    // SAFETY: as promised; the function takes any number.
    unsafe { (handles().op)(int(number)) }
}

/// # Safety
/// The addresses are those of numbers.
unsafe fn buffer(buffer: InPointer, count: FortranInt, of: FortranInt) -> BufferArgument {
    // SAFETY: as promised.
    unsafe { BufferArgument { data: data(buffer), count: int(count).into(), datatype: datatype(of) } }
}

interposed! {
    mpi_bcast_, "mpi_bcast_", (buffer: OutPointer, count: FortranInt, of: FortranInt, root: FortranInt, on: FortranInt),
        bcast(data_mut(buffer), int(count).into(), datatype(of), int(root), comm(on));
    mpi_reduce_, "mpi_reduce_", (send: InPointer, recv: OutPointer, count: FortranInt, of: FortranInt, by: FortranInt, root: FortranInt, on: FortranInt),
        reduction(Operation::Reduce, (data(send), data_mut(recv)), int(count).into(), (datatype(of), op(by)), int(root), comm(on));
    mpi_allreduce_, "mpi_allreduce_", (send: InPointer, recv: OutPointer, count: FortranInt, of: FortranInt, by: FortranInt, on: FortranInt),
        reduction(Operation::Allreduce, (data(send), data_mut(recv)), int(count).into(), (datatype(of), op(by)), 0, comm(on));
    mpi_scan_, "mpi_scan_", (send: InPointer, recv: OutPointer, count: FortranInt, of: FortranInt, by: FortranInt, on: FortranInt),
        reduction(Operation::Scan, (data(send), data_mut(recv)), int(count).into(), (datatype(of), op(by)), 0, comm(on));
    mpi_exscan_, "mpi_exscan_", (send: InPointer, recv: OutPointer, count: FortranInt, of: FortranInt, by: FortranInt, on: FortranInt),
        reduction(Operation::Exscan, (data(send), data_mut(recv)), int(count).into(), (datatype(of), op(by)), 0, comm(on));
    mpi_reduce_scatter_block_, "mpi_reduce_scatter_block_", (send: InPointer, recv: OutPointer, count: FortranInt, of: FortranInt, by: FortranInt, on: FortranInt),
        reduce_scatter((data(send), data_mut(recv)), &|_| int(count).into(), (datatype(of), op(by)), comm(on));
    mpi_reduce_scatter_, "mpi_reduce_scatter_", (send: InPointer, recv: OutPointer, counts: FortranInt, of: FortranInt, by: FortranInt, on: FortranInt),
        reduce_scatter((data(send), data_mut(recv)), &|rank| number(counts, rank), (datatype(of), op(by)), comm(on));
    mpi_gather_, "mpi_gather_", (send: InPointer, count: FortranInt, of: FortranInt, recv: OutPointer, recv_count: FortranInt, recv_of: FortranInt, root: FortranInt, on: FortranInt),
        gather(buffer(send, count, of), buffer(recv, recv_count, recv_of), int(root), comm(on));
    mpi_scatter_, "mpi_scatter_", (send: InPointer, count: FortranInt, of: FortranInt, recv: OutPointer, recv_count: FortranInt, recv_of: FortranInt, root: FortranInt, on: FortranInt),
        scatter(buffer(send, count, of), buffer(recv, recv_count, recv_of), int(root), comm(on));
    mpi_allgather_, "mpi_allgather_", (send: InPointer, count: FortranInt, of: FortranInt, recv: OutPointer, recv_count: FortranInt, recv_of: FortranInt, on: FortranInt),
        allgather(buffer(send, count, of), buffer(recv, recv_count, recv_of), comm(on));
    mpi_allgatherv_, "mpi_allgatherv_", (send: InPointer, count: FortranInt, of: FortranInt, recv: OutPointer, counts: FortranInt, places: FortranInt, recv_of: FortranInt, on: FortranInt),
        allgatherv(buffer(send, count, of), (data_mut(recv), datatype(recv_of)), &|rank| number(counts, rank), &|rank| number(places, rank), comm(on));
    mpi_alltoall_, "mpi_alltoall_", (send: InPointer, count: FortranInt, of: FortranInt, recv: OutPointer, recv_count: FortranInt, recv_of: FortranInt, on: FortranInt),
        alltoall(buffer(send, count, of), buffer(recv, recv_count, recv_of), comm(on));
    mpi_finalize_, "mpi_finalize_", (), {
        finalize();
        None
    };
}
