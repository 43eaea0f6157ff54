//! Waiting for COOL while the host's MPI library makes progress. MPI requires that a blocked call
//! advances other communication, for example a message that is not completely sent. The libraries
//! make progress only when they are called, so they are polled by a probe without side effects.

use crate::host::{HostMpi, MpiHandle};
use cool::{Error, Pending};
use std::ffi::c_int;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Time of waiting for COOL before the first poll of the host's library.
const FIRST_WAIT: Duration = Duration::from_micros(200);
/// Maximum time between two polls.
const LONGEST_WAIT: Duration = Duration::from_millis(2);

/// Waits for a call of COOL.
pub(crate) fn for_call(host: &HostMpi, comm: MpiHandle, mut call: Pending<'_>) -> Result<(), Error> {
    progress_until(host, comm, |at_most| match call.wait_for(at_most) {
        Ok(false) => None,
        Ok(true) => Some(Ok(())),
        Err(e) => Some(Err(e)),
    })
}

/// Executes work in a thread, and waits for it. The work must not call functions of MPI. Returns
/// its result, or `None` if the thread cannot be started or panics.
pub(crate) fn for_thread<R: Send + 'static>(
    host: &HostMpi,
    comm: MpiHandle,
    work: impl FnOnce() -> R + Send + 'static,
) -> Option<R> {
    let (report, reported) = mpsc::sync_channel(1);
    let work = move || {
        // An error is impossible, because the receiver waits until the thread has sent.
        let _ = report.send(work());
    };
    let thread = thread::Builder::new().name("cool-mpi-join".into());
    cool::with_signals_blocked(|| thread.spawn(work)).ok()?;
    progress_until(host, comm, |at_most| match reported.recv_timeout(at_most) {
        Ok(result) => Some(Some(result)),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(None),
    })
}

/// Calls `wait` with increasing time limits until it returns a result, and polls the host's library
/// in between. Returns the result.
fn progress_until<R>(host: &HostMpi, comm: MpiHandle, mut wait: impl FnMut(Duration) -> Option<R>) -> R {
    let mut at_most = FIRST_WAIT;
    loop {
        if let Some(result) = wait(at_most) {
            return result;
        }
        host.progress(comm);
        at_most = LONGEST_WAIT.min(2 * at_most);
    }
}

impl HostMpi {
    /// Lets the library make progress by probing for a message. The library may advance only the
    /// networks that the probed communicator uses. `MPI_COMM_WORLD` uses all of them, so it is
    /// probed if it exists, that is, if the program has called `MPI_Init`; otherwise `comm` is
    /// probed.
    fn progress(&self, comm: MpiHandle) {
        // A status has at most 32 bytes.
        let (mut initialized, mut found, mut status): (c_int, c_int, [u64; 8]) = (0, 0, [0; 8]);
        // SAFETY: memory for a number.
        unsafe { (self.functions.initialized)(&raw mut initialized) };
        let comm = if initialized == 0 { comm } else { self.world };
        let (source, tag) = (self.abi.any_source(), self.abi.any_tag());
        // The result is ignored, because a library that fails reports it in other calls. SAFETY: a
        // communicator, and memory for a number and a status.
        unsafe {
            let status = (&raw mut status).cast();
            (self.functions.iprobe)(source, tag, comm, &raw mut found, status)
        };
    }
}
