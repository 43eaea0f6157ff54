//! The functions that initialize MPI. After the host's library is initialized, all ranks compare
//! their settings: ranks with different settings would decide differently which calls are
//! intercepted, so some would wait in COOL and others in the host's library, forever.

#![allow(non_snake_case, reason = "MPI's names")]
#![allow(missing_docs, reason = "MPI documents them")]
#![allow(unreachable_pub, reason = "called by the program, by their names")]

use crate::calls::settings;
use crate::groups::CommunicatorState;
use crate::host::{host, required};
use crate::report::report;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Time after which a rank that waits for the settings of others reports this to the user.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why no call is intercepted, if the settings of the ranks differ.
static DIFFERENCE: Mutex<Option<String>> = Mutex::new(None);
/// Whether [`DIFFERENCE`] is set.
static SETTINGS_DIFFER: AtomicBool = AtomicBool::new(false);

/// The last argument of Fortran's functions: where to store the return code, or null.
type FortranError = *mut c_int;

/// Defines functions that call the host's function and then compare the settings.
macro_rules! initializing {
    ($($name:ident, $host:literal, ($($argument:ident: $of:ty),*), $code:ty;)*) => {$(
        /// # Safety
        /// The arguments must be valid for the MPI function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $of),*) -> $code {
            // SAFETY: the host's function of this name has the same arguments.
            let host_function: unsafe extern "C" fn($($of),*) -> $code =
                unsafe { std::mem::transmute(required($host)) };
            // SAFETY: guaranteed by the caller, as MPI requires.
            let code = unsafe { host_function($($argument),*) };
            compare_settings();
            code
        }
    )*};
}

initializing! {
    MPI_Init, "PMPI_Init", (count: *mut c_int, values: *mut *mut *mut c_char), c_int;
    MPI_Init_thread, "PMPI_Init_thread",
        (count: *mut c_int, values: *mut *mut *mut c_char, level: c_int, provided: *mut c_int), c_int;
}

/// As `initializing`, for Fortran's subroutines.
macro_rules! initializing_subroutines {
    ($($name:ident, $host:literal, ($($argument:ident: $of:ty),*);)*) => {$(
        /// # Safety
        /// The arguments must be valid for the MPI function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $of),*) {
            // SAFETY: the host's function of this name has the same arguments.
            let host_function: unsafe extern "C" fn($($of),*) =
                unsafe { std::mem::transmute(required($host)) };
            // SAFETY: guaranteed by the caller, as MPI requires.
            unsafe { host_function($($argument),*) };
            compare_settings();
        }
    )*};
}

initializing_subroutines! {
    mpi_init_, "mpi_init_", (error: FortranError);
    mpi_init_thread_, "mpi_init_thread_", (level: *const c_int, provided: *mut c_int, error: FortranError);
    mpi_init_f08_, "mpi_init_f08_", (error: FortranError);
    mpi_init_thread_f08_, "mpi_init_thread_f08_",
        (level: *const c_int, provided: *mut c_int, error: FortranError);
}

/// Returns why no call is intercepted, if the settings of the ranks differ.
pub(crate) fn difference_of_settings() -> Option<String> {
    if !SETTINGS_DIFFER.load(Ordering::Relaxed) {
        return None;
    }
    DIFFERENCE.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Compares the settings of all ranks, once. A function of MPI may call another one of this module.
fn compare_settings() {
    static COMPARED: AtomicBool = AtomicBool::new(false);
    let host = host();
    // The library is not initialized if its function has failed.
    if host.world_rank().is_none() || COMPARED.swap(true, Ordering::Relaxed) {
        return;
    }
    let Some(world) = CommunicatorState::of_world(host).filter(|world| world.size > 1) else { return };
    let compared = report_long_wait(world.rank);
    let outcome = world.find_different_text(host, host.world, &settings().to_string());
    drop(compared);
    let why = match outcome {
        Ok(None) => return,
        Ok(Some((first, [expected, found]))) => format!(
            "the ranks have different settings: rank {first} has {found}, and rank 0 has {expected}; pass the \
             same variables to all ranks, for example by mpirun -x or -genv"
        ),
        // The library has called an error handler.
        Err(failure) => failure.to_string(),
    };
    if world.rank == 0 {
        report(&format!("collectives stay with the host's MPI library: {why}"));
    }
    *DIFFERENCE.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    SETTINGS_DIFFER.store(true, Ordering::Relaxed);
}

/// Reports a rank that waits for long, until the result is dropped.
fn report_long_wait(rank: usize) -> mpsc::Sender<()> {
    let (sender, receiver) = mpsc::channel::<()>();
    let watch = move || {
        if receiver.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            report(&format!(
                "rank {rank}: MPI_Init has waited {} s for the settings of all ranks; load libcool_mpi.so at \
                 all of them, or at none",
                PATIENCE.as_secs()
            ));
        }
    };
    // Without a thread, only the message is missing.
    let thread = thread::Builder::new().name("cool-mpi-init".into());
    let _ = cool::with_signals_blocked(|| thread.spawn(watch));
    sender
}
