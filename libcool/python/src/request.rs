//! Calls under way, and the arrays that they use.

use crate::arrays::Data;
use crate::error::{duration, late, raised, wrong};
use crate::functions::Failed;
use cool_rust::{Error, Pending, Received};
use pyo3::prelude::*;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A call that was started. `wait()` gives what was received; so does `await`. The arrays must be left alone until then.
#[pyclass(module = "cool", frozen)]
pub(crate) struct Request {
    // The call goes before the array that it writes into.
    state: Mutex<State>,
    /// The state has changed.
    changed: Condvar,
    received: Option<Data>,
    receives: bool,
    /// Of a reduction by a function.
    failed: Failed,
}

/// Who sent a message, with which tag, and how many elements.
pub(crate) type Message = (usize, u32, usize);

enum State {
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

impl Request {
    /// A call that writes into `received`.
    pub(crate) fn new(pending: Pending<'static>, received: Option<Data>) -> Request {
        let state = Mutex::new(State::Open(pending));
        Request { state, changed: Condvar::new(), received, receives: false, failed: Failed::default() }
    }

    /// A message that is received into `received`.
    pub(crate) fn of_message(pending: Pending<'static>, received: Data) -> Request {
        Request { receives: true, ..Request::new(pending, Some(received)) }
    }

    /// A reduction by a function, which may fail.
    pub(crate) fn of_function(pending: Pending<'static>, received: Data, failed: Failed) -> Request {
        Request { failed, ..Request::new(pending, Some(received)) }
    }

    /// The call, for a queue that tells by [`Request::finish`] what came of it, or by [`Request::give_up`] that it does not.
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<Pending<'static>> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Awaited) {
            State::Open(pending) => Ok(pending),
            other => {
                *state = other;
                Err(wrong(py, "this request is waited for already, or in a queue"))
            }
        }
    }

    /// The call is done.
    pub(crate) fn finish(&self, result: Result<Received, Error>) {
        let result = result.map_err(|e| Python::attach(|py| raised(py, &e)));
        *self.state() = State::Done(result);
        self.changed.notify_all();
    }

    /// Nobody will tell what came of the call.
    pub(crate) fn give_up(&self) {
        *self.state() = State::Dropped;
        self.changed.notify_all();
    }

    /// Waits until it is done or given up, for as long as is given: whether it is. The interpreter lock is not held.
    fn wait_for_end(&self, timeout: Option<Duration>) -> bool {
        let begun = Instant::now();
        let mut state = self.state();
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
            match std::mem::replace(&mut *state, State::Awaited) {
                State::Open(pending) => {
                    // Others ask meanwhile whether it is done.
                    drop(state);
                    return self.wait_alone(pending, left);
                }
                State::Awaited if left == Some(Duration::ZERO) => return false,
                State::Awaited => {
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
                *self.state() = State::Open(pending);
                // One of those who wait meanwhile is to take it over.
                self.changed.notify_all();
                return false;
            }
        }
        true
    }

    // Every change to it is whole.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Request {
    /// Waits until the call is done; returns the array that it received, if any, or raises why it failed. May be called
    /// again, and by several threads. If it is not done within `timeout` seconds (None: no limit), raises TimeoutError, and
    /// the call goes on.
    #[pyo3(signature = (timeout = None))]
    pub(crate) fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        let limit = timeout.map(|seconds| duration(py, "timeout", seconds)).transpose()?;
        if !py.detach(|| self.wait_for_end(limit)) {
            let after = limit.unwrap_or_default();
            return Err(late(py, format!("the call is not done after {after:?}, and goes on")));
        }
        match &*self.state() {
            State::Done(Err(e)) => return Err(e.clone_ref(py)),
            State::Dropped => return Err(wrong(py, "the queue that had this request is gone")),
            _ => {}
        }
        self.failed.check()?;
        Ok(self.received.as_ref().map(|data| data.array.clone_ref(py)))
    }

    /// Takes a receive back: whether nothing has come that it takes. Else it is done, as after `wait()`.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        if !self.receives {
            return Err(wrong(py, "only a receive can be cancelled"));
        }
        let pending = self.take(py)?;
        let cancelled = py.detach(|| pending.cancel());
        let (end, is_cancelled) = match cancelled {
            Ok(None) => (State::Cancelled, true),
            Ok(Some(got)) => (State::Done(Ok(got)), false),
            Err(e) => (State::Done(Err(raised(py, &e))), false),
        };
        *self.state() = end;
        self.changed.notify_all();
        match &*self.state() {
            State::Done(Err(e)) => Err(e.clone_ref(py)),
            _ => Ok(is_cancelled),
        }
    }

    /// Of a receive that was waited for: who sent what came, with which tag, and how many elements.
    #[getter]
    pub(crate) fn message(&self) -> Option<Message> {
        match &*self.state() {
            State::Done(Ok(got)) if self.receives => Some((got.source, got.tag, got.count)),
            _ => None,
        }
    }

    /// Whether the call is done. It never waits, also while another thread waits for the call.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        let done = py.detach(|| match &*self.state() {
            State::Open(pending) => pending.is_done(),
            State::Awaited => Ok(false),
            State::Dropped | State::Cancelled | State::Done(_) => Ok(true),
        });
        done.map_err(|e| raised(py, &e))
    }

    fn __await__<'py>(this: Py<Request>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("cool")?.call_method1("_awaited", (this,))?.call_method0("__await__")
    }
}
