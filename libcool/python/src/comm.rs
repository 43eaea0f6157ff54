//! Communicators.

#![allow(unsafe_code, reason = "what a program that lends arrays promises stands in its documentation")]

use crate::error::{argument_error, duration, raised, unsigned};
use crate::memory;
use cool_rust::{Comm as Rank, Operation};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A rank's place in its group, and the way to the others. As a context manager, it is left at the end of the block.
#[pyclass(module = "cool", name = "Comm", frozen)]
pub(crate) struct PyComm {
    /// Shared with those that are the same again.
    rank: Arc<Mutex<Option<Arc<Rank>>>>,
    /// Of calls by this one, in place of the group's.
    timeout: Option<Duration>,
    /// The program has promised to leave arrays alone.
    lends: bool,
}

impl PyComm {
    pub(crate) fn new(rank: Rank) -> PyComm {
        PyComm { rank: Arc::new(Mutex::new(Some(Arc::new(rank)))), timeout: None, lends: false }
    }

    /// The library's, unless it was freed.
    pub(crate) fn get_rank(&self, py: Python<'_>) -> PyResult<Arc<Rank>> {
        let rank = self.rank.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let rank = rank.ok_or_else(|| argument_error(py, "this communicator was freed"))?;
        let rank =
            self.timeout.map_or_else(|| Arc::clone(&rank), |timeout| Arc::new(rank.with_timeout(timeout)));
        // SAFETY: whoever has made such a communicator was told to leave arrays alone, as for all other calls.
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

    /// The group's number in the network.
    #[getter]
    fn group(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.get_rank(py)?.group())
    }

    /// Where a rank runs: its node's name, the node's number in the group, and its rack.
    fn place(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = unsigned)] rank: usize,
    ) -> PyResult<(String, usize, usize)> {
        let comm = self.get_rank(py)?;
        let place = comm.place(rank).ok_or_else(|| argument_error(py, format!("there is no rank {rank}")))?;
        Ok((place.name.clone(), place.node, place.rack))
    }

    /// The plan by which the last call that was done went.
    #[getter]
    fn last_plan(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.get_rank(py)?.last_plan())
    }

    /// An array of zeros in memory that is shared with the agent: calls that wait (or are started by `lending`) take what they send from there, and
    /// put there what they receive, without a copy; what is overwritten in place is copied all the same before it is
    /// sent, and so is what comes into a part of the array that does not begin and end at multiples of the system's page
    /// size or at the ends. A call that fails may have overwritten a part of what it was to receive. Other
    /// communicators copy it.
    #[pyo3(signature = (shape, dtype = None))]
    fn alloc<'py>(
        &self,
        py: Python<'py>,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        memory::array(py, &*self.get_rank(py)?, shape, dtype)
    }

    /// Lets later calls fail when they make no progress for this many seconds; 5 minutes if never set.
    fn set_timeout(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let timeout = duration(py, "timeout", seconds)?;
        self.get_rank(py)?.set_timeout(timeout);
        Ok(())
    }

    /// Lets what this rank's node multicasts for later calls of the group give way to whatever else uses its path.
    fn set_background(&self, py: Python<'_>, background: bool) -> PyResult<()> {
        self.get_rank(py)?.set_background(background);
        Ok(())
    }

    /// This communicator again, whose calls fail when they make no progress for this many seconds, whatever `set_timeout`
    /// says: `world.with_timeout(5).barrier()`. It is freed with this one.
    fn with_timeout(&self, py: Python<'_>, seconds: f64) -> PyResult<PyComm> {
        let timeout = duration(py, "timeout", seconds)?;
        Ok(PyComm { rank: Arc::clone(&self.rank), timeout: Some(timeout), lends: self.lends })
    }

    /// This communicator again, to which calls that are started lend their arrays: those of `alloc` are used where they are,
    /// as by calls that wait, without a copy when a call starts and when it is done. Who starts a call by it promises to write
    /// nothing to `send` until that was waited for; and to leave `recv` alone, as always. It is freed with this one.
    fn lending(&self) -> PyComm {
        PyComm { rank: Arc::clone(&self.rank), timeout: self.timeout, lends: true }
    }

    /// Forces the plan of later calls of an operation ("allreduce"), as `cool plan` writes it; "" leaves it to the
    /// agents again. All ranks force the same.
    fn set_plan(&self, py: Python<'_>, operation: &str, plan: &str) -> PyResult<()> {
        let operation: Operation =
            operation.parse().map_err(|e| argument_error(py, format!("set_plan: {e}")))?;
        let rank = self.get_rank(py)?;
        py.detach(|| rank.set_plan(operation, plan)).map_err(|e| raised(py, &e))
    }

    /// Splits the group: ranks that give the same color form a new group, ordered by `key`, then by rank. Who gives
    /// None is in none. All ranks of the group call this.
    #[pyo3(signature = (color, key = 0))]
    fn split(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = unsigned)] color: Option<u64>,
        key: i64,
    ) -> PyResult<Option<PyComm>> {
        let rank = self.get_rank(py)?;
        let part = py.detach(|| rank.split(color, key)).map_err(|e| raised(py, &e))?;
        Ok(part.map(PyComm::new))
    }

    /// A group of the same ranks, whose calls do not meet those of this one. All ranks of the group call this.
    fn dup(&self, py: Python<'_>) -> PyResult<PyComm> {
        let rank = self.get_rank(py)?;
        py.detach(|| rank.dup()).map(PyComm::new).map_err(|e| raised(py, &e))
    }

    /// A group of some of the ranks, in that order; None at the others. All ranks of the group call this alike.
    #[allow(clippy::needless_pass_by_value, reason = "as it comes from Python")]
    fn subset(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = unsigned)] ranks: Vec<usize>,
    ) -> PyResult<Option<PyComm>> {
        let rank = self.get_rank(py)?;
        let part = py.detach(|| rank.subset(&ranks)).map_err(|e| raised(py, &e))?;
        Ok(part.map(PyComm::new))
    }

    /// A group of the ranks that are left, in their old order; `gone` of it says who is not in it. It works after
    /// calls of this group have failed. A rank is gone if it has ended or freed its communicator, its agent is gone,
    /// or it does not come within the shortest timeout that any has set. All ranks that are left call this.
    fn shrink(&self, py: Python<'_>) -> PyResult<PyComm> {
        let rank = self.get_rank(py)?;
        py.detach(|| rank.shrink()).map(PyComm::new).map_err(|e| raised(py, &e))
    }

    /// The bitwise and of what all ranks give that are left (0 to 2**64 - 1), and a list of those who are gone. It
    /// works after calls of this group have failed. All ranks that are left call this.
    #[pyo3(signature = (flags = u64::MAX))]
    fn agree(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = unsigned)] flags: u64,
    ) -> PyResult<(u64, Vec<usize>)> {
        let rank = self.get_rank(py)?;
        let agreed = py.detach(|| rank.agree(flags)).map_err(|e| raised(py, &e))?;
        Ok((agreed.flags, agreed.gone))
    }

    /// Lets all calls of this group fail with RevokedError that are under way or come later, at every rank. Only
    /// `agree` and `shrink` work afterwards.
    fn revoke(&self, py: Python<'_>) -> PyResult<()> {
        let rank = self.get_rank(py)?;
        py.detach(|| rank.revoke()).map_err(|e| raised(py, &e))
    }

    /// The ranks of the group from which `shrink` made this one that are not in it.
    #[getter]
    fn gone(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        Ok(self.get_rank(py)?.gone().to_vec())
    }

    /// Leaves the group. Calls that are under way are finished.
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
