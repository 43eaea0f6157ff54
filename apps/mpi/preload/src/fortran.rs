//! The functions that Fortran programs with `mpif.h` or `use mpi` call, under the names that
//! compilers form by appending one underscore. MPICH's Fortran functions call the C functions,
//! which are intercepted. Those of Open MPI call the `PMPI_` functions, so they must be intercepted
//! here. The functions of Open MPI's module `mpi_f08` have other names and are not intercepted, nor
//! are those of an Open MPI whose `INTEGER` is not C's `int` (compiled with `-fdefault-integer-8`).

#![allow(missing_docs, reason = "MPI documents them")]
#![allow(unreachable_pub, reason = "called by the program, by their names")]

use crate::calls::{
    BufferArgument, allgather, allgatherv, alltoall, bcast, gather, reduce_scatter, reduction, scatter,
};
use crate::host::{InPointer, MpiHandle, OutPointer, address, host, required};
use crate::interposed_functions::{finalize, number};
use cool::Operation;
use cool_mpi::Abi;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// An `INTEGER` argument, or an array of them. Fortran passes all arguments by address.
type FortranInt = *const c_int;

/// Defines functions, given their names, their arguments except the last one (the return code), and
/// the expression that tries to intercept a call. The expression is evaluated only if the host's
/// library is that of Open MPI.
macro_rules! interposed {
    ($($name:ident, $text:literal, ($($argument:ident: $of:ty),*), $tried:expr;)*) => {$(
        /// # Safety
        /// The arguments must be valid for the MPI function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $of,)* error: *mut c_int) {
            if host().abi == Abi::OpenMpi && ($text == FINALIZE || integers_are_ints()) {
                #[allow(unused_unsafe, reason = "one function has no arguments")]
                // SAFETY: guaranteed by the caller, as MPI requires.
                let tried: Option<c_int> = unsafe { $tried };
                if let Some(code) = tried {
                    // SAFETY: memory for the code.
                    unsafe { error.write(code) };
                    return;
                }
            }
            static HOST: OnceLock<unsafe extern "C" fn($($of,)* *mut c_int)> = OnceLock::new();
            let host_function = HOST.get_or_init(|| {
                // SAFETY: the host's function of this name has the same arguments.
                unsafe { std::mem::transmute(required($text)) }
            });
            // SAFETY: guaranteed by the caller, as MPI requires.
            unsafe { host_function($($argument,)* error) }
        }
    )*};
}

/// The function that has no argument of type `INTEGER` except the return code.
const FINALIZE: &str = "mpi_finalize_";

/// Returns whether Fortran's `INTEGER` has the size of C's `int` in the host's library. Otherwise
/// counts would be read at wrong addresses, and only half of the return code would be written.
fn integers_are_ints() -> bool {
    static ARE_INTS: OnceLock<bool> = OnceLock::new();
    *ARE_INTS.get_or_init(|| {
        let host = host();
        let mut bytes = 0;
        address("ompi_mpi_integer").is_some_and(|integer| {
            // SAFETY: a predefined type, and memory for its size.
            let code = unsafe { (host.functions.type_size)(integer, &raw mut bytes) };
            code == 0 && bytes == size_of::<c_int>() as i64
        })
    })
}

/// Converts Fortran's number of a handle to a handle of Open MPI.
type FromNumber = unsafe extern "C" fn(c_int) -> MpiHandle;

/// Returns the conversion function of this name.
fn from_number(name: &str) -> FromNumber {
    // SAFETY: MPI's functions of these names take an int and return a handle, which is a pointer in
    // Open MPI.
    unsafe { std::mem::transmute::<NonNull<c_void>, FromNumber>(required(name)) }
}

/// Converts Fortran's numbers to handles of Open MPI.
struct HandleConverters {
    comm: FromNumber,
    datatype: FromNumber,
    op: FromNumber,
    /// Addresses of the symbol that represents `MPI_IN_PLACE`, under the names that several
    /// compilers form.
    in_place: Vec<usize>,
    /// Addresses of the symbol that represents `MPI_BOTTOM`, likewise.
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

/// Returns the address that a C program would pass, with C's values of `MPI_IN_PLACE` and
/// `MPI_BOTTOM`.
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
/// The address must be that of a number.
unsafe fn int(number: FortranInt) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { number.read() }
}

/// # Safety
/// The address must be that of a number.
unsafe fn comm(number: FortranInt) -> MpiHandle {
    // SAFETY: guaranteed by the caller; the function accepts any number.
    unsafe { (handles().comm)(int(number)) }
}

/// # Safety
/// The address must be that of a number.
unsafe fn datatype(number: FortranInt) -> MpiHandle {
    // SAFETY: guaranteed by the caller; the function accepts any number.
    unsafe { (handles().datatype)(int(number)) }
}

/// # Safety
/// The address must be that of a number.
unsafe fn op(number: FortranInt) -> MpiHandle {
    // SAFETY: guaranteed by the caller; the function accepts any number.
    unsafe { (handles().op)(int(number)) }
}

/// # Safety
/// The addresses must be those of numbers.
unsafe fn buffer(buffer: InPointer, count: FortranInt, of: FortranInt) -> BufferArgument {
    // SAFETY: guaranteed by the caller.
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
