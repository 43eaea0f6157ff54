//! Pending calls and the arrays that they use.

use crate::arrays::Data;
use crate::error::{argument_error, duration, exception_for, timeout_error};
use crate::functions::FunctionError;
use crate::interrupts::SIGNAL_CHECK_INTERVAL;
use cool_rust::{Error, Pending, Received};
use pyo3::prelude::*;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A call that was started. `wait()`, or `await`, returns the received array. The program must not
/// access the arrays before.
#[pyclass(module = "cool", name = "Request", frozen)]
pub(crate) struct PyRequest {
    /// The process that started the call.
    process: u32,
    // The call must be dropped before the array that it writes to.
    state: Mutex<RequestState>,
    /// Notified when the state changes.
    changed: Condvar,
    received: Option<Data>,
    receives: bool,
    /// Exception of the function, for a reduction by a function.
    failed: FunctionError,
}

/// Sender, tag, and number of elements of a message; for probes, the size in bytes.
pub(crate) type MessageInfo = (usize, u32, usize);

enum RequestState {
    /// No thread waits for the call.
    Open(Pending<'static>),
    /// A thread waits for the call, or it is in a queue.
    Awaited,
    /// The queue of the call was dropped.
    Dropped,
    /// The call was a receive that was canceled.
    Cancelled,
    /// The call was waited for.
    Done(Result<Received, PyErr>),
}

impl PyRequest {
    /// Returns a request for a call that writes to `received`.
    pub(crate) fn new(pending: Pending<'static>, received: Option<Data>) -> PyRequest {
        let state = Mutex::new(RequestState::Open(pending));
        PyRequest {
            process: std::process::id(),
            state,
            changed: Condvar::new(),
            received,
            receives: false,
            failed: FunctionError::default(),
        }
    }

    /// Returns a request for a message that is received into `received`.
    pub(crate) fn for_message(pending: Pending<'static>, received: Data) -> PyRequest {
        PyRequest { receives: true, ..PyRequest::new(pending, Some(received)) }
    }

    /// Returns a request for a reduction by a function, which may raise.
    pub(crate) fn for_function(
        pending: Pending<'static>,
        received: Data,
        failed: FunctionError,
    ) -> PyRequest {
        PyRequest { failed, ..PyRequest::new(pending, Some(received)) }
    }

    /// Removes the call from the request, for a queue or to cancel it. The queue must then call
    /// [`PyRequest::finish`] or [`PyRequest::give_up`].
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<Pending<'static>> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, RequestState::Awaited) {
            RequestState::Open(pending) => Ok(pending),
            other => {
                *state = other;
                Err(argument_error(py, "this request is waited for already, or in a queue"))
            }
        }
    }

    /// Records the result of the call.
    pub(crate) fn finish(&self, result: Result<Received, Error>) {
        let result = result.map_err(|e| Python::attach(|py| exception_for(py, &e)));
        *self.state() = RequestState::Done(result);
        self.changed.notify_all();
    }

    /// Records that the result of the call will never be known.
    pub(crate) fn give_up(&self) {
        *self.state() = RequestState::Dropped;
        self.changed.notify_all();
    }

    /// Fails if a thread that waits for the call, or its queue, is in another process, from which
    /// this process was forked.
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        if self.process == std::process::id() || !matches!(&*self.state(), RequestState::Awaited) {
            return Ok(());
        }
        let reason = format!("this call was started in process {}; wait for it there", self.process);
        Err(argument_error(py, reason))
    }

    /// Waits until the call is complete or given up. Returns false if neither is the case after
    /// `timeout`. The interpreter lock must not be held.
    fn wait_for_end(&self, timeout: Duration) -> bool {
        let begun = Instant::now();
        let mut state = self.state();
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            match std::mem::replace(&mut *state, RequestState::Awaited) {
                RequestState::Open(pending) => {
                    // Other threads may query the state meanwhile.
                    drop(state);
                    return self.wait_alone(pending, left);
                }
                RequestState::Awaited if left.is_zero() => return false,
                RequestState::Awaited => {
                    state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                }
                end => {
                    *state = end;
                    return true;
                }
            }
        }
    }

    /// Waits for a call that no other thread waits for.
    fn wait_alone(&self, mut pending: Pending<'static>, timeout: Duration) -> bool {
        match pending.wait_for(timeout) {
            Ok(true) => self.finish(pending.received()),
            Err(e) => self.finish(Err(e)),
            Ok(false) => {
                *self.state() = RequestState::Open(pending);
                // One of the waiting threads must take over.
                self.changed.notify_all();
                return false;
            }
        }
        true
    }

    // Every change to the state is complete when the lock is released, so a panic elsewhere is
    // harmless.
    fn state(&self) -> MutexGuard<'_, RequestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyRequest {
    /// Waits until the call is complete. Returns the array that it received, if any, or raises its
    /// error. May be called again, and by several threads. If the call is not complete within
    /// `timeout` seconds (None: no limit), raises TimeoutError, and the call continues.
    #[pyo3(signature = (timeout = None))]
    pub(crate) fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        self.check_process(py)?;
        let limit = timeout.map(|seconds| duration(py, "timeout", seconds)).transpose()?;
        let (limit, begun) = (limit.unwrap_or(Duration::MAX), Instant::now());
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            if py.detach(|| self.wait_for_end(left.min(SIGNAL_CHECK_INTERVAL))) {
                break;
            }
            if left <= SIGNAL_CHECK_INTERVAL {
                let reason = format!("the call is not complete after {limit:?}; it continues");
                return Err(timeout_error(py, reason));
            }
            py.check_signals()?;
        }
        match &*self.state() {
            RequestState::Done(Err(e)) => return Err(e.clone_ref(py)),
            RequestState::Dropped => {
                return Err(argument_error(py, "the queue of this request was dropped"));
            }
            _ => {}
        }
        self.failed.check()?;
        Ok(self.received.as_ref().map(|data| data.array.clone_ref(py)))
    }

    /// Cancels a receive. Returns True if no message had matched it. Otherwise the receive is
    /// complete, as after `wait()`.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        if !self.receives {
            return Err(argument_error(py, "only a receive can be cancelled"));
        }
        let pending = self.take(py)?;
        let cancelled = py.detach(|| pending.cancel());
        let (end, is_cancelled) = match cancelled {
            Ok(None) => (RequestState::Cancelled, true),
            Ok(Some(got)) => (RequestState::Done(Ok(got)), false),
            Err(e) => (RequestState::Done(Err(exception_for(py, &e))), false),
        };
        *self.state() = end;
        self.changed.notify_all();
        match &*self.state() {
            RequestState::Done(Err(e)) => Err(e.clone_ref(py)),
            _ => Ok(is_cancelled),
        }
    }

    /// Sender, tag, and number of elements of the received message, once a receive was waited for.
    #[getter]
    pub(crate) fn message(&self) -> Option<MessageInfo> {
        match &*self.state() {
            RequestState::Done(Ok(got)) if self.receives => Some((got.source, got.tag, got.count)),
            _ => None,
        }
    }

    /// Returns whether the call is complete, without waiting.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_process(py)?;
        let done = py.detach(|| match &*self.state() {
            RequestState::Open(pending) => pending.is_done(),
            RequestState::Awaited => Ok(false),
            RequestState::Dropped | RequestState::Cancelled | RequestState::Done(_) => Ok(true),
        });
        done.map_err(|e| exception_for(py, &e))
    }

    fn __await__<'py>(this: Py<PyRequest>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("cool")?.call_method1("_awaited", (this,))?.call_method0("__await__")
    }
}
