//! Communicators.

#![allow(unsafe_code, reason = "the documentation of `lending` states what the program guarantees")]

use crate::error::{argument_error, duration, exception_for, unsigned};
use crate::interrupts::waiting;
use crate::memory;
use cool_rust::{Comm, Operation};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A rank's place in its group and its connection to the other ranks. As a context manager, it
/// leaves the group at the end of the block.
#[pyclass(module = "cool", name = "Comm", frozen)]
pub(crate) struct PyComm {
    /// Shared by all handles of the communicator.
    rank: Arc<Mutex<Option<Arc<Comm>>>>,
    /// Timeout of calls through this handle. If it is `None`, the group's timeout applies.
    timeout: Option<Duration>,
    /// Whether the program promised not to access the arrays of started calls.
    lends: bool,
}

impl PyComm {
    pub(crate) fn new(rank: Comm) -> PyComm {
        PyComm { rank: Arc::new(Mutex::new(Some(Arc::new(rank)))), timeout: None, lends: false }
    }

    /// Returns the communicator of the library, unless it was freed.
    pub(crate) fn get_rank(&self, py: Python<'_>) -> PyResult<Arc<Comm>> {
        let rank = self.rank.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let rank = rank.ok_or_else(|| argument_error(py, "this communicator was freed"))?;
        let rank =
            self.timeout.map_or_else(|| Arc::clone(&rank), |timeout| Arc::new(rank.with_timeout(timeout)));
        // SAFETY: the documentation of `lending` requires the program not to access the arrays.
        Ok(if self.lends { Arc::new(unsafe { rank.lending() }) } else { rank })
    }

    /// Leaves the group.
    pub(crate) fn close(&self) {
        self.rank.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

#[pymethods]
impl PyComm {
    /// This rank's number, from 0.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.get_rank(py)?.rank())
    }

    /// The number of ranks.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.get_rank(py)?.size())
    }

    /// The group's number in the network, as errors and `cool groups` show it.
    #[getter]
    fn group(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.get_rank(py)?.group())
    }

    /// Returns the location of a rank: the name of its node, the index of the node within the
    /// group, and the number of its rack.
    fn place(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = unsigned)] rank: usize,
    ) -> PyResult<(String, usize, usize)> {
        let comm = self.get_rank(py)?;
        let place = comm.place(rank).ok_or_else(|| argument_error(py, format!("there is no rank {rank}")))?;
        Ok((place.name.clone(), place.node, place.rack))
    }

    /// The plan of the last completed call, or an empty string.
    #[getter]
    fn last_plan(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.get_rank(py)?.last_plan())
    }

    /// Returns an array of zeros in memory that is shared with the agent.
    ///
    /// Calls that wait, and calls that were started through `lending`, send from and receive into
    /// such an array without a copy. A copy is still made if a call works in place, uses another
    /// communicator, or receives into a part of the array that does not begin and end at multiples
    /// of the system's page size or at its ends. A call that fails may have overwritten a part of
    /// the memory that it receives into.
    #[pyo3(signature = (shape, dtype = None))]
    fn alloc<'py>(
        &self,
        py: Python<'py>,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        memory::array(py, &*self.get_rank(py)?, shape, dtype)
    }

    /// Sets the time without progress after which later calls fail, in seconds. The default is 5
    /// minutes.
    fn set_timeout(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let timeout = duration(py, "timeout", seconds)?;
        self.get_rank(py)?.set_timeout(timeout);
        Ok(())
    }

    /// Sets whether multicasts of this rank's node for later calls of the group yield to other
    /// traffic.
    fn set_background(&self, py: Python<'_>, background: bool) -> PyResult<()> {
        self.get_rank(py)?.set_background(background);
        Ok(())
    }

    /// Returns a handle of this communicator with another timeout in seconds, which ignores
    /// `set_timeout`. For example: `world.with_timeout(5).barrier()`. It is freed together with
    /// this one.
    fn with_timeout(&self, py: Python<'_>, seconds: f64) -> PyResult<PyComm> {
        let timeout = duration(py, "timeout", seconds)?;
        Ok(PyComm { rank: Arc::clone(&self.rank), timeout: Some(timeout), lends: self.lends })
    }

    /// Returns a handle of this communicator for started calls that use arrays of `alloc` without a
    /// copy, as calls that wait do.
    ///
    /// Until a call that was started through it was waited for, the program must not write to its
    /// `send` array. It must not access `recv`, as for all started calls. The handle is freed
    /// together with this one.
    fn lending(&self) -> PyComm {
        PyComm { rank: Arc::clone(&self.rank), timeout: self.timeout, lends: true }
    }

    /// Forces the plan of later calls of an operation, such as "allreduce", as `cool plan` prints
    /// it. "" lets the agents choose again. All ranks must force the same plan.
    fn set_plan(&self, py: Python<'_>, operation: &str, plan: &str) -> PyResult<()> {
        let operation: Operation =
            operation.parse().map_err(|e| argument_error(py, format!("set_plan: {e}")))?;
        let rank = self.get_rank(py)?;
        py.detach(|| rank.set_plan(operation, plan)).map_err(|e| exception_for(py, &e))
    }

    /// Splits the group. Ranks that pass the same color form a new group, ordered by `key`, and by
    /// rank where keys are equal. Returns None at a rank that passes None. All ranks of the group
    /// must call this.
    #[pyo3(signature = (color, key = 0))]
    fn split(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = unsigned)] color: Option<u64>,
        key: i64,
    ) -> PyResult<Option<PyComm>> {
        let rank = self.get_rank(py)?;
        let part = waiting(py, || rank.split(color, key))?;
        Ok(part.map(PyComm::new))
    }

    /// Returns a group of the same ranks with independent calls. All ranks of the group must call
    /// this.
    fn dup(&self, py: Python<'_>) -> PyResult<PyComm> {
        let rank = self.get_rank(py)?;
        waiting(py, || rank.dup()).map(PyComm::new)
    }

    /// Returns a group of some of the ranks, in the given order, or None at other ranks. All ranks
    /// of the group must call this with the same `ranks`.
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 passes it by value")]
    fn subset(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = unsigned)] ranks: Vec<usize>,
    ) -> PyResult<Option<PyComm>> {
        let rank = self.get_rank(py)?;
        let part = waiting(py, || rank.subset(&ranks))?;
        Ok(part.map(PyComm::new))
    }

    /// Returns a group of the surviving ranks, in their old order; its attribute `gone` contains
    /// the lost ranks. All survivors must call this. It works after calls of this group have
    /// failed.
    ///
    /// A rank counts as lost if it has ended or freed its communicator, its agent is unreachable,
    /// or it does not call this within the shortest timeout that any survivor has set.
    fn shrink(&self, py: Python<'_>) -> PyResult<PyComm> {
        let rank = self.get_rank(py)?;
        py.detach(|| rank.shrink()).map(PyComm::new).map_err(|e| exception_for(py, &e))
    }

    /// Returns the bitwise AND of the flags (0 to 2**64 - 1) of all surviving ranks, and a list of
    /// the lost ranks. All survivors must call this. It works after calls of this group have
    /// failed.
    #[pyo3(signature = (flags = u64::MAX))]
    fn agree(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = unsigned)] flags: u64,
    ) -> PyResult<(u64, Vec<usize>)> {
        let rank = self.get_rank(py)?;
        let agreed = py.detach(|| rank.agree(flags)).map_err(|e| exception_for(py, &e))?;
        Ok((agreed.flags, agreed.gone))
    }

    /// Makes all pending and later calls of this group raise RevokedError, at every rank. Only
    /// `agree` and `shrink` work afterwards.
    fn revoke(&self, py: Python<'_>) -> PyResult<()> {
        let rank = self.get_rank(py)?;
        py.detach(|| rank.revoke()).map_err(|e| exception_for(py, &e))
    }

    /// The lost ranks of the group from which `shrink` created this one.
    #[getter]
    fn gone(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        Ok(self.get_rank(py)?.gone().to_vec())
    }

    /// Leaves the group. Pending calls are still executed.
    fn free(&self) {
        self.close();
    }

    fn __enter__(this: Py<PyComm>) -> Py<PyComm> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close();
    }
}
