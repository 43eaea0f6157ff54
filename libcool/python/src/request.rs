//! Calls under way, and the arrays that they use.

use crate::arrays::Data;
use crate::error::{raised, wrong};
use crate::functions::Failed;
use cool_rust::Pending;
use numpy::PyUntypedArray;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A call that was started. `wait()` gives what was received; so does `await`. The arrays must be left alone until then.
#[pyclass(module = "cool", frozen)]
pub(crate) struct Request {
    // The call goes before the array that it writes into.
    pending: Mutex<Option<Pending<'static>>>,
    received: Option<Data>,
    /// What came, of a receive that is done.
    message: Mutex<Option<Message>>,
    receives: bool,
    /// Of a reduction by a function.
    failed: Failed,
}

/// Who sent a message, with which tag, and how many elements.
pub(crate) type Message = (usize, u32, usize);

impl Request {
    /// A call that writes into `received`.
    pub(crate) fn new(pending: Pending<'static>, received: Option<Data>) -> Request {
        let (pending, message) = (Mutex::new(Some(pending)), Mutex::default());
        Request { pending, received, message, receives: false, failed: Failed::default() }
    }

    /// A message that is received into `received`.
    pub(crate) fn of_message(pending: Pending<'static>, received: Data) -> Request {
        Request { receives: true, ..Request::new(pending, Some(received)) }
    }

    /// A reduction by a function, which may fail.
    pub(crate) fn of_function(pending: Pending<'static>, received: Data, failed: Failed) -> Request {
        Request { failed, ..Request::new(pending, Some(received)) }
    }

    fn pending(&self) -> MutexGuard<'_, Option<Pending<'static>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Request {
    /// Waits until the call is done; returns the array that it received, if any. May be called again.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<Option<Py<PyUntypedArray>>> {
        // The lock is held while waiting, so that nobody takes a call for done that another thread waits for.
        let done = py.detach(|| self.pending().take().map(Pending::received).transpose());
        if let Some(got) = done.map_err(|e| raised(py, &e))?.filter(|_| self.receives) {
            *self.message.lock().unwrap_or_else(PoisonError::into_inner) =
                Some((got.source, got.tag, got.count));
        }
        self.failed.check()?;
        Ok(self.received.as_ref().map(|data| data.array.clone_ref(py)))
    }

    /// Takes a receive back: whether nothing has come that it takes. Else it is done, as after `wait()`.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        if !self.receives {
            return Err(wrong(py, "only a receive can be cancelled"));
        }
        let cancelled = py.detach(|| self.pending().take().map(Pending::cancel).transpose());
        match cancelled.map_err(|e| raised(py, &e))? {
            Some(None) => Ok(true),
            Some(Some(got)) => {
                *self.message.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some((got.source, got.tag, got.count));
                Ok(false)
            }
            None => Ok(false),
        }
    }

    /// Of a receive that was waited for: who sent what came, with which tag, and how many elements.
    #[getter]
    pub(crate) fn message(&self) -> Option<Message> {
        *self.message.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `wait()` would return at once.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        let done = py.detach(|| self.pending().as_ref().map_or(Ok(true), Pending::is_done));
        done.map_err(|e| raised(py, &e))
    }

    fn __await__<'py>(this: Py<Request>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("cool")?.call_method1("_awaited", (this,))?.call_method0("__await__")
    }
}
