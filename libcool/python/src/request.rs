//! Calls under way, and the arrays that they use.

use crate::arrays::Data;
use crate::error::{argument_error, duration, raised, timeout_error};
use crate::functions::FunctionError;
use cool_rust::{Error, Pending, Received};
use pyo3::prelude::*;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A call that was started. `wait()` gives what was received; so does `await`. The arrays must be left alone until then.
#[pyclass(module = "cool", name = "Request", frozen)]
pub(crate) struct PyRequest {
    // The call goes before the array that it writes into.
    state: Mutex<RequestState>,
    /// The state has changed.
    changed: Condvar,
    received: Option<Data>,
    receives: bool,
    /// Of a reduction by a function.
    failed: FunctionError,
}

/// Who sent a message, with which tag, and how many elements.
pub(crate) type MessageInfo = (usize, u32, usize);

enum RequestState {
    /// Nobody waits for it.
    Open(Pending<'static>),
    /// A thread waits for it, or a queue has it.
    Awaited,
    /// Its queue is gone.
    Dropped,
    /// It was a receive that was taken back.
    Cancelled,
    /// It was waited for.
    Done(Result<Received, PyErr>),
}

impl PyRequest {
    /// A call that writes into `received`.
    pub(crate) fn new(pending: Pending<'static>, received: Option<Data>) -> PyRequest {
        let state = Mutex::new(RequestState::Open(pending));
        PyRequest {
            state,
            changed: Condvar::new(),
            received,
            receives: false,
            failed: FunctionError::default(),
        }
    }

    /// A message that is received into `received`.
    pub(crate) fn for_message(pending: Pending<'static>, received: Data) -> PyRequest {
        PyRequest { receives: true, ..PyRequest::new(pending, Some(received)) }
    }

    /// A reduction by a function, which may fail.
    pub(crate) fn for_function(
        pending: Pending<'static>,
        received: Data,
        failed: FunctionError,
    ) -> PyRequest {
        PyRequest { failed, ..PyRequest::new(pending, Some(received)) }
    }

    /// The call, for a queue that tells by [`Request::finish`] what came of it, or by [`Request::give_up`] that it does not.
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

    /// The call is done.
    pub(crate) fn finish(&self, result: Result<Received, Error>) {
        let result = result.map_err(|e| Python::attach(|py| raised(py, &e)));
        *self.state() = RequestState::Done(result);
        self.changed.notify_all();
    }

    /// Nobody will tell what came of the call.
    pub(crate) fn give_up(&self) {
        *self.state() = RequestState::Dropped;
        self.changed.notify_all();
    }

    /// Waits until it is done or given up, for as long as is given: whether it is. The interpreter lock is not held.
    fn wait_for_end(&self, timeout: Option<Duration>) -> bool {
        let begun = Instant::now();
        let mut state = self.state();
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
            match std::mem::replace(&mut *state, RequestState::Awaited) {
                RequestState::Open(pending) => {
                    // Others ask meanwhile whether it is done.
                    drop(state);
                    return self.wait_alone(pending, left);
                }
                RequestState::Awaited if left == Some(Duration::ZERO) => return false,
                RequestState::Awaited => {
                    let most = left.unwrap_or(Duration::MAX);
                    state = self.changed.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner).0;
                }
                end => {
                    *state = end;
                    return true;
                }
            }
        }
    }

    /// Waits for a call for which nobody else waits.
    fn wait_alone(&self, mut pending: Pending<'static>, timeout: Option<Duration>) -> bool {
        let done = timeout.map_or(Ok(true), |timeout| pending.wait_for(timeout));
        match done {
            Ok(true) => self.finish(pending.received()),
            Err(e) => self.finish(Err(e)),
            Ok(false) => {
                *self.state() = RequestState::Open(pending);
                // One of those who wait meanwhile is to take it over.
                self.changed.notify_all();
                return false;
            }
        }
        true
    }

    // Every change to it is whole.
    fn state(&self) -> MutexGuard<'_, RequestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyRequest {
    /// Waits until the call is done; returns the array that it received, if any, or raises why it failed. May be called
    /// again, and by several threads. If it is not done within `timeout` seconds (None: no limit), raises TimeoutError, and
    /// the call goes on.
    #[pyo3(signature = (timeout = None))]
    pub(crate) fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        let limit = timeout.map(|seconds| duration(py, "timeout", seconds)).transpose()?;
        if !py.detach(|| self.wait_for_end(limit)) {
            let after = limit.unwrap_or_default();
            return Err(timeout_error(py, format!("the call is not done after {after:?}, and goes on")));
        }
        match &*self.state() {
            RequestState::Done(Err(e)) => return Err(e.clone_ref(py)),
            RequestState::Dropped => {
                return Err(argument_error(py, "the queue that had this request is gone"));
            }
            _ => {}
        }
        self.failed.check()?;
        Ok(self.received.as_ref().map(|data| data.array.clone_ref(py)))
    }

    /// Takes a receive back: whether nothing has come that it takes. Else it is done, as after `wait()`.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        if !self.receives {
            return Err(argument_error(py, "only a receive can be cancelled"));
        }
        let pending = self.take(py)?;
        let cancelled = py.detach(|| pending.cancel());
        let (end, is_cancelled) = match cancelled {
            Ok(None) => (RequestState::Cancelled, true),
            Ok(Some(got)) => (RequestState::Done(Ok(got)), false),
            Err(e) => (RequestState::Done(Err(raised(py, &e))), false),
        };
        *self.state() = end;
        self.changed.notify_all();
        match &*self.state() {
            RequestState::Done(Err(e)) => Err(e.clone_ref(py)),
            _ => Ok(is_cancelled),
        }
    }

    /// Of a receive that was waited for: who sent what came, with which tag, and how many elements.
    #[getter]
    pub(crate) fn message(&self) -> Option<MessageInfo> {
        match &*self.state() {
            RequestState::Done(Ok(got)) if self.receives => Some((got.source, got.tag, got.count)),
            _ => None,
        }
    }

    /// Whether the call is done. It never waits, also while another thread waits for the call.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        let done = py.detach(|| match &*self.state() {
            RequestState::Open(pending) => pending.is_done(),
            RequestState::Awaited => Ok(false),
            RequestState::Dropped | RequestState::Cancelled | RequestState::Done(_) => Ok(true),
        });
        done.map_err(|e| raised(py, &e))
    }

    fn __await__<'py>(this: Py<PyRequest>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("cool")?.call_method1("_awaited", (this,))?.call_method0("__await__")
    }
}
