//! Queues of pending calls that return the first one to complete.

use crate::error::{argument_error, duration, exception_for};
use crate::interrupts::SIGNAL_CHECK_INTERVAL;
use crate::request::PyRequest;
use cool_rust::CompletionQueue;
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// A queue of requests of any communicators, each with a token. `next` returns the first one that
/// completes. Any number of threads may add requests and wait for completions; a single dedicated
/// thread suffices for all calls of a process.
#[pyclass(module = "cool", name = "Queue", frozen)]
pub(crate) struct PyQueue {
    /// The process that created the queue. A forked process has none of the threads that may hold
    /// its locks.
    process: u32,
    queue: CompletionQueue<'static, QueuedRequest>,
}

impl PyQueue {
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let reason = format!("this queue was created in process {}; create one here", self.process);
        Err(argument_error(py, reason))
    }
}

impl Drop for PyQueue {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A thread that this process does not have may hold the lock of a request.
            std::mem::forget(std::mem::take(&mut self.queue));
        }
    }
}

/// A request in a queue.
struct QueuedRequest {
    token: Py<PyAny>,
    request: Py<PyRequest>,
    reported: bool,
}

/// When the queue is dropped, wakes the threads that wait for requests with results that the queue
/// has not returned.
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
        PyQueue { process: std::process::id(), queue: CompletionQueue::new() }
    }

    /// Adds a request, with a token that identifies it (None: the request itself). Threads that
    /// wait for the request then wait until `next` has returned it.
    #[pyo3(signature = (request, token = None))]
    fn add(&self, py: Python<'_>, request: Py<PyRequest>, token: Option<Py<PyAny>>) -> PyResult<()> {
        self.check_process(py)?;
        let pending = request.get().take(py)?;
        let token = token.unwrap_or_else(|| request.clone_ref(py).into_any());
        let entry = QueuedRequest { token, request, reported: false };
        py.detach(|| self.queue.add(pending, entry)).map_err(|e| exception_for(py, &e))
    }

    /// Waits for a completed request, including those that other threads add meanwhile. Returns its
    /// token and the request, whose `wait()` then returns or raises at once. Returns None after
    /// `timeout` seconds (None: no limit). Each request is returned once, in the order of
    /// completion.
    #[pyo3(signature = (timeout = None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<(Py<PyAny>, Py<PyRequest>)>> {
        self.check_process(py)?;
        let timeout = timeout.map(|seconds| duration(py, "timeout", seconds)).transpose()?;
        let timeout = timeout.unwrap_or(Duration::MAX);
        let begun = Instant::now();
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            let done = py.detach(|| {
                let mut done = self.queue.next(left.min(SIGNAL_CHECK_INTERVAL))?;
                done.token.reported = true;
                done.token.request.get().finish(done.result);
                Some(done.token)
            });
            if let Some(entry) = done {
                return Ok(Some((entry.token.clone_ref(py), entry.request.clone_ref(py))));
            }
            if left <= SIGNAL_CHECK_INTERVAL || self.queue.is_closed() {
                return Ok(None);
            }
            py.check_signals()?;
        }
    }

    /// Makes `next` return without waiting, in all threads: it returns the completed requests, and
    /// then None. A thread that only waits for requests must be ended this way before the
    /// interpreter exits.
    fn close(&self) {
        self.queue.close();
    }

    /// Returns the number of requests that `next` has not returned.
    fn __len__(&self) -> usize {
        self.queue.len()
    }
}
