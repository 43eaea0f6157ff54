//! Calls under way, and the arrays that they use.

use crate::arrays::Data;
use crate::error::raised;
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
}

impl Request {
    /// A call that writes into `received`.
    pub(crate) fn new(pending: Pending<'static>, received: Option<Data>) -> Request {
        Request { pending: Mutex::new(Some(pending)), received }
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
        let done = py.detach(|| self.pending().take().map_or(Ok(()), Pending::wait));
        done.map_err(|e| raised(py, &e))?;
        Ok(self.received.as_ref().map(|data| data.array.clone_ref(py)))
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
