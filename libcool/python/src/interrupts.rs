//! Calls of the library during which Python handles signals, so that Ctrl-C ends a wait for other
//! ranks.

use crate::error::{exception_for, system_error};
use cool_rust::{Error, interruptible, with_signals_blocked};
use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Maximum duration of one wait, so that signals are handled in time.
pub(crate) const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(500);

thread_local! {
    /// The exception of a signal handler that ended the current call of this thread.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Lets Python handle signals. Returns whether a handler raised an exception, as that of Ctrl-C
/// does.
fn handler_raises() -> bool {
    let raised = Python::attach(|py| py.check_signals()).err();
    let has_raised = raised.is_some();
    RAISED.set(raised);
    has_raised
}

/// Executes a call of the library without the interpreter lock. Raises its error, or the exception
/// of a signal handler that ran while the call waited.
pub(crate) fn waiting<R: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<R, Error> + Send,
) -> PyResult<R> {
    let done = py.detach(|| interruptible(handler_raises, call));
    done.map_err(|e| RAISED.take().unwrap_or_else(|| exception_for(py, &e)))
}

/// As [`waiting`], for work that waits long without checks. It is executed by another thread, which
/// continues after an exception of a signal handler and drops the result.
pub(crate) fn in_thread<R: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<R, Error> + Send + 'static,
) -> PyResult<R> {
    let (sender, mut receiver) = sync_channel(1);
    let thread = std::thread::Builder::new().name("cool-wait".into());
    // The receiver does not exist any more after an exception.
    let send = move || drop(sender.send(work()));
    with_signals_blocked(|| thread.spawn(send)).map_err(|e| system_error(py, &e))?;
    loop {
        let received;
        (receiver, received) = py.detach(move || {
            let received = receiver.recv_timeout(SIGNAL_CHECK_INTERVAL);
            (receiver, received)
        });
        match received {
            Ok(done) => return done.map_err(|e| exception_for(py, &e)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(system_error(py, &std::io::Error::other("the thread of the call has panicked")));
            }
        }
    }
}
