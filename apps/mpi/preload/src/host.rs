//! The host's MPI library: which of the three binary interfaces (ABIs) it has, and its `PMPI_`
//! functions, which are looked up at the program's first call.

use crate::report::report;
use cool_mpi::{Abi, NumberClass, number_classes, reduce_ops};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// A handle of any kind, or an address, as passed in a register.
pub(crate) type MpiHandle = usize;

/// The address of a buffer that a call reads.
pub(crate) type InPointer = *const c_void;
/// The address of a buffer that a call writes.
pub(crate) type OutPointer = *mut c_void;

/// `MPI_Comm_delete_attr_function`: is called before an attribute is deleted, with the
/// communicator, the key, the value and the extra state.
type AttributeDeleteFunction = extern "C" fn(MpiHandle, c_int, *mut c_void, *mut c_void) -> c_int;
/// `MPI_Comm_copy_attr_function`: is called when a communicator with the attribute is duplicated,
/// with the communicator, the key, the extra state, the value, and memory for the copied value and
/// for whether the copy receives the attribute.
type AttributeCopyFunction =
    extern "C" fn(MpiHandle, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;

macro_rules! functions {
    ($($field:ident = $name:literal ($($argument:ty),*);)*) => {
        /// The functions of the host's library that this library calls.
        #[allow(clippy::type_complexity, reason = "MPI defines the arguments")]
        #[derive(Debug)]
        pub(crate) struct HostFunctions {
            $(#[doc = $name] pub(crate) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl HostFunctions {
            fn find() -> HostFunctions {
                // SAFETY: these are the arguments of the functions of these names in each of the
                // binary interfaces. Handles are pointers, or ints in the lower half of the
                // register.
                HostFunctions { $($field: unsafe {
                    std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($argument),*) -> c_int>(required($name))
                },)* }
            }
        }
    };
}

functions! {
    allreduce = "PMPI_Allreduce" (*const c_void, *mut c_void, c_int, MpiHandle, MpiHandle, MpiHandle);
    bcast = "PMPI_Bcast" (*mut c_void, c_int, MpiHandle, c_int, MpiHandle);
    call_errhandler = "PMPI_Comm_call_errhandler" (MpiHandle, c_int);
    comm_rank = "PMPI_Comm_rank" (MpiHandle, *mut c_int);
    comm_remote_size = "PMPI_Comm_remote_size" (MpiHandle, *mut c_int);
    comm_size = "PMPI_Comm_size" (MpiHandle, *mut c_int);
    comm_test_inter = "PMPI_Comm_test_inter" (MpiHandle, *mut c_int);
    create_keyval = "PMPI_Comm_create_keyval" (AttributeCopyFunction, AttributeDeleteFunction, *mut c_int, *mut c_void);
    initialized = "PMPI_Initialized" (*mut c_int);
    iprobe = "PMPI_Iprobe" (c_int, c_int, MpiHandle, *mut c_int, *mut c_void);
    pack = "PMPI_Pack" (*const c_void, c_int, MpiHandle, *mut c_void, c_int, *mut c_int, MpiHandle);
    set_attr = "PMPI_Comm_set_attr" (MpiHandle, c_int, *mut c_void);
    type_contents = "PMPI_Type_get_contents" (MpiHandle, c_int, c_int, c_int, *mut c_int, *mut isize, *mut MpiHandle);
    type_envelope = "PMPI_Type_get_envelope" (MpiHandle, *mut c_int, *mut c_int, *mut c_int, *mut c_int);
    type_extent = "PMPI_Type_get_extent" (MpiHandle, *mut isize, *mut isize);
    type_free = "PMPI_Type_free" (*mut MpiHandle);
    type_size = "PMPI_Type_size_x" (MpiHandle, *mut i64);
    unpack = "PMPI_Unpack" (*const c_void, c_int, *mut c_int, *mut c_void, c_int, MpiHandle, MpiHandle);
}

/// `MPI_Type_get_envelope_c`: returns how a type was constructed, and from how many integers,
/// addresses, long counts and types.
type EnvelopeFunction =
    unsafe extern "C" fn(MpiHandle, *mut i64, *mut i64, *mut i64, *mut i64, *mut c_int) -> c_int;
/// `MPI_Type_get_contents_c`: returns the integers, addresses, long counts and types from which a
/// type was constructed, given the maximum number of each.
type ContentsFunction = unsafe extern "C" fn(
    MpiHandle,
    i64,
    i64,
    i64,
    i64,
    *mut c_int,
    *mut isize,
    *mut i64,
    *mut MpiHandle,
) -> c_int;

/// Large-count forms (suffix `_c`) of two functions. They support types with long counts, for which
/// the other forms return errors. MPI 4 libraries have both; older ones have neither, and no such
/// types.
#[derive(Debug)]
pub(crate) struct LargeCountFunctions {
    pub(crate) type_envelope: EnvelopeFunction,
    pub(crate) type_contents: ContentsFunction,
}

impl LargeCountFunctions {
    fn find() -> Option<LargeCountFunctions> {
        let (envelope, contents) =
            (function("PMPI_Type_get_envelope_c")?, function("PMPI_Type_get_contents_c")?);
        // SAFETY: these are the arguments of the functions of these names.
        Some(unsafe {
            LargeCountFunctions {
                type_envelope: std::mem::transmute::<NonNull<c_void>, EnvelopeFunction>(envelope),
                type_contents: std::mem::transmute::<NonNull<c_void>, ContentsFunction>(contents),
            }
        })
    }
}

/// The host's MPI library.
#[derive(Debug)]
pub(crate) struct HostMpi {
    pub(crate) abi: Abi,
    pub(crate) functions: HostFunctions,
    pub(crate) large: Option<LargeCountFunctions>,
    pub(crate) world: MpiHandle,
    comm_null: MpiHandle,
    type_null: MpiHandle,
    pub(crate) int: MpiHandle,
    pub(crate) byte: MpiHandle,
    pub(crate) min: MpiHandle,
    classes: BTreeMap<MpiHandle, NumberClass>,
    ops: BTreeMap<MpiHandle, cool::Op>,
}

/// Returns the host's MPI library, which is looked up at the first call.
pub(crate) fn host() -> &'static HostMpi {
    static HOST: OnceLock<HostMpi> = OnceLock::new();
    HOST.get_or_init(|| {
        let abi = abi();
        let of = |mpich, standard, open_mpi| match abi {
            Abi::Mpich => mpich,
            Abi::Standard => standard,
            Abi::OpenMpi => address(open_mpi).unwrap_or_else(|| missing_symbol(open_mpi)),
        };
        HostMpi {
            abi,
            functions: HostFunctions::find(),
            large: LargeCountFunctions::find(),
            world: of(0x4400_0000, 0x101, "ompi_mpi_comm_world"),
            comm_null: of(0x0400_0000, 0x100, "ompi_mpi_comm_null"),
            type_null: of(0x0c00_0000, 0x200, "ompi_mpi_datatype_null"),
            int: of(0x4c00_0405, 0x209, "ompi_mpi_int"),
            byte: of(0x4c00_010d, 0x247, "ompi_mpi_byte"),
            min: of(0x5800_0002, 0x22, "ompi_mpi_op_min"),
            classes: number_classes(abi, address),
            ops: reduce_ops(abi, address),
        }
    })
}

impl HostMpi {
    /// Returns the class of a predefined type's elements, if COOL can reduce them.
    pub(crate) fn number_class(&self, datatype: MpiHandle) -> Option<NumberClass> {
        self.classes.get(&datatype).copied()
    }

    /// Returns the reduction of a handle, if it is predefined and COOL supports it.
    pub(crate) fn reduce_op(&self, op: MpiHandle) -> Option<cool::Op> {
        self.ops.get(&op).copied()
    }

    /// Returns this process' rank in `MPI_COMM_WORLD`, if MPI is initialized.
    pub(crate) fn world_rank(&self) -> Option<c_int> {
        let (mut initialized, mut rank) = (0, 0);
        // SAFETY: memory for numbers; the communicator exists if the library is initialized.
        let code = unsafe {
            (self.functions.initialized)(&raw mut initialized);
            if initialized == 0 {
                return None;
            }
            (self.functions.comm_rank)(self.world, &raw mut rank)
        };
        (code == 0).then_some(rank)
    }

    /// Returns whether a handle may be used as a communicator.
    pub(crate) fn is_comm(&self, comm: MpiHandle) -> bool {
        comm != 0 && comm != self.comm_null
    }

    /// Returns whether a handle may be used as a type.
    pub(crate) fn is_type(&self, datatype: MpiHandle) -> bool {
        datatype != 0 && datatype != self.type_null
    }
}

/// Returns the binary interface. The standard interface is tested first, because a library with it
/// may be loaded next to another.
fn abi() -> Abi {
    if let Some(version) = function("PMPI_Abi_get_version") {
        // SAFETY: this is MPI's function of this name.
        let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int =
            unsafe { std::mem::transmute(version) };
        let (mut major, mut minor) = (-1, -1);
        // SAFETY: memory for two numbers.
        let code = unsafe { version(&raw mut major, &raw mut minor) };
        if code == 0 && major > 0 {
            return Abi::Standard;
        }
    }
    if address("ompi_mpi_comm_self").is_some() { Abi::OpenMpi } else { Abi::Mpich }
}

/// Returns the next function of this name after this library (`RTLD_NEXT`). If the MPI library is
/// outside that search, for example because Python has loaded it, looks the function up in the
/// library with one of the known sonames.
pub(crate) fn function(name: &str) -> Option<NonNull<c_void>> {
    symbol(libc::RTLD_NEXT, name)
}

/// Returns the address of a symbol of the host's library. Open MPI's predefined handles are
/// addresses of symbols. The search starts at the program (`RTLD_DEFAULT`), because its copy (copy
/// relocation), if it has one, is the one that the library uses.
pub(crate) fn address(name: &str) -> Option<MpiHandle> {
    symbol(libc::RTLD_DEFAULT, name).map(|symbol| symbol.addr().get())
}

/// Returns the address of a symbol that the dynamic loader finds in `scope` or, otherwise, in a
/// loaded MPI library.
fn symbol(scope: *mut c_void, name: &str) -> Option<NonNull<c_void>> {
    let name = CString::new(name).ok()?;
    find(scope, &name).or_else(|| {
        [Abi::Standard, Abi::Mpich, Abi::OpenMpi].into_iter().find_map(|abi| {
            let library = CString::new(abi.soname()).ok()?;
            // SAFETY: a terminated name; a library that is not loaded yet is not loaded now.
            let library = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            if library.is_null() { None } else { find(library, &name) }
        })
    })
}

fn find(library: *mut c_void, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: a loaded library or all following ones, and a terminated name.
    NonNull::new(unsafe { libc::dlsym(library, name.as_ptr()) })
}

/// Returns a function that must exist.
pub(crate) fn required(name: &str) -> NonNull<c_void> {
    function(name).unwrap_or_else(|| missing_symbol(name))
}

/// Aborts, because the program's MPI library does not have a function that it must have.
fn missing_symbol(name: &str) -> ! {
    report(&format!("the program's MPI library has no {name}; unset LD_PRELOAD to run it without COOL"));
    std::process::abort()
}
