//! Many calls under way, and which of them is done first.

use crate::error::{duration, raised};
use crate::request::PyRequest;
use cool_rust::CompletionQueue;
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// As long as is waited at once, so that a signal is noticed meanwhile.
pub(crate) const WAIT: Duration = Duration::from_millis(500);

/// Requests, of any communicators, each with a token; `next` gives the first that is done. Any number of threads may add
/// requests and wait for the next; one that does nothing else suffices for all calls of a process.
#[pyclass(module = "cool", name = "Queue", frozen)]
pub(crate) struct PyQueue {
    queue: CompletionQueue<'static, QueuedRequest>,
}

/// A request in a queue.
struct QueuedRequest {
    token: Py<PyAny>,
    request: Py<PyRequest>,
    reported: bool,
}

/// Whoever waits for the request waits no more.
impl Drop for QueuedRequest {
    fn drop(&mut self) {
        if !self.reported {
            self.request.get().give_up();
        }
    }
}

#[pymethods]
impl PyQueue {
    #[new]
    fn new() -> PyQueue {
        PyQueue { queue: CompletionQueue::new() }
    }

    /// Adds a request, with a token by which the program knows it (None: the request itself). Whoever waits for the request
    /// then waits until `next` has given it.
    #[pyo3(signature = (request, token = None))]
    fn add(&self, py: Python<'_>, request: Py<PyRequest>, token: Option<Py<PyAny>>) -> PyResult<()> {
        let pending = request.get().take(py)?;
        let token = token.unwrap_or_else(|| request.clone_ref(py).into_any());
        let entry = QueuedRequest { token, request, reported: false };
        py.detach(|| self.queue.add(pending, entry)).map_err(|e| raised(py, &e))
    }

    /// Waits for a request that is done, also for one that another thread adds meanwhile; its token and the request, whose
    /// `wait()` then returns what was received or raises at once. None if there is none within `timeout` seconds (None: no
    /// limit). Each is given once, in the order in which they end.
    #[pyo3(signature = (timeout = None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<(Py<PyAny>, Py<PyRequest>)>> {
        let timeout = timeout.map(|seconds| duration(py, "timeout", seconds)).transpose()?;
        let timeout = timeout.unwrap_or(Duration::MAX);
        let begun = Instant::now();
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            let done = py.detach(|| {
                let mut done = self.queue.next(left.min(WAIT))?;
                done.token.reported = true;
                done.token.request.get().finish(done.result);
                Some(done.token)
            });
            if let Some(entry) = done {
                return Ok(Some((entry.token.clone_ref(py), entry.request.clone_ref(py))));
            }
            if left <= WAIT || self.queue.is_closed() {
                return Ok(None);
            }
            py.check_signals()?;
        }
    }

    /// Lets `next` wait no more, in whatever thread: it gives the requests that are done, and then None at once. A thread
    /// that does nothing but ask for the next must be ended so before the interpreter is.
    fn close(&self) {
        self.queue.close();
    }

    /// Requests that `next` has not given.
    fn __len__(&self) -> usize {
        self.queue.len()
    }
}
