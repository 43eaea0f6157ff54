//! Waiting for COOL while the host's MPI library goes on: MPI wants a blocked call to bring forward what others have begun, as a message
//! of which this rank's part is not done. The libraries do so only when they are called, so they are, by a question that changes
//! nothing.

use crate::host::{HostMpi, MpiHandle};
use cool::{Error, Pending};
use std::ffi::c_int;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// How long COOL alone is waited for, before the host's library is asked for the first time.
const FIRST_WAIT: Duration = Duration::from_micros(200);
/// And at last.
const LONGEST_WAIT: Duration = Duration::from_millis(2);

/// Waits for a call of COOL.
pub(crate) fn for_call(host: &HostMpi, comm: MpiHandle, mut call: Pending<'_>) -> Result<(), Error> {
    progress_until(host, comm, |at_most| match call.wait_for(at_most) {
        Ok(false) => None,
        Ok(true) => Some(Ok(())),
        Err(e) => Some(Err(e)),
    })
}

/// Has a thread do what takes long and calls no function of MPI, and waits for it; `None` if there is no thread, or it has panicked.
pub(crate) fn for_thread<R: Send + 'static>(
    host: &HostMpi,
    comm: MpiHandle,
    work: impl FnOnce() -> R + Send + 'static,
) -> Option<R> {
    let (report, reported) = mpsc::sync_channel(1);
    let work = move || {
        // Who waits is still there.
        let _ = report.send(work());
    };
    thread::Builder::new().name("cool-mpi-join".into()).spawn(work).ok()?;
    progress_until(host, comm, |at_most| match reported.recv_timeout(at_most) {
        Ok(result) => Some(Some(result)),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(None),
    })
}

/// Waits by `wait`, for at most so long at a time, and then looks after the host's library.
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
    /// Has the library do what there is to do, by asking whether a message has come. It may attend only to networks that the
    /// communicator needs: `MPI_COMM_WORLD` needs all, but is there only in programs that have called `MPI_Init`.
    fn progress(&self, comm: MpiHandle) {
        // A status has 32 bytes at most.
        let (mut initialized, mut found, mut status): (c_int, c_int, [u64; 8]) = (0, 0, [0; 8]);
        // SAFETY: a place for a number.
        unsafe { (self.functions.initialized)(&raw mut initialized) };
        let comm = if initialized == 0 { comm } else { self.world };
        let (source, tag) = (self.abi.any_source(), self.abi.any_tag());
        // What it returns is of no interest: a library that has failed says so where it is asked for something.
        // SAFETY: a communicator, and places for a number and a status.
        unsafe {
            let status = (&raw mut status).cast();
            (self.functions.iprobe)(source, tag, comm, &raw mut found, status)
        };
    }
}
