//! Groups of processes without a launcher, and agents for them on one machine.

use crate::comm::PyComm;
use crate::error::{duration, exception_for, unsigned};
use crate::interrupts::{SIGNAL_CHECK_INTERVAL, in_thread};
use cool_rust::Comm;
use cool_rust::embedded::EmbeddedAgents;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Joins a group of processes that agreed on a key, as rank `rank` of `size`.
///
/// The group consists of all processes of the same user that pass the same `key` (1 to 200 bytes).
/// Returns when all `size` ranks have joined, and raises TimeoutError after `timeout` seconds. No
/// launcher is needed. `socket` is the socket of the agent. If None, the socket is COOL_SOCKET or,
/// if unset, the only one in /run/cool. A key can be used again after its group was created, but
/// keys should be random, because a leftover process of an earlier run may otherwise join.
#[pyfunction]
#[pyo3(signature = (key, rank, size, timeout = 300.0, socket = None))]
pub(crate) fn join(
    py: Python<'_>,
    key: &str,
    #[pyo3(from_py_with = unsigned)] rank: usize,
    #[pyo3(from_py_with = unsigned)] size: usize,
    timeout: f64,
    socket: Option<PathBuf>,
) -> PyResult<PyComm> {
    let timeout = duration(py, "timeout", timeout)?;
    let key = key.to_owned();
    let joined = in_thread(py, move || match &socket {
        Some(socket) => Comm::join_at(socket, &key, rank, size, timeout),
        None => Comm::join(&key, rank, size, timeout),
    });
    joined.map(PyComm::new)
}

/// Runs the agents of `nodes` nodes in `racks` racks in this process. Needs no root, switches or
/// daemons.
///
/// The ranks are processes of this machine, which join groups through `sockets`. The agents stop
/// when this object is closed, at the end of a `with` block, or garbage-collected.
#[pyclass(module = "cool", name = "Cluster", frozen)]
pub(crate) struct PyCluster {
    agents: Mutex<Option<Arc<EmbeddedAgents>>>,
}

impl PyCluster {
    fn agents(&self) -> MutexGuard<'_, Option<Arc<EmbeddedAgents>>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyCluster {
    #[new]
    #[pyo3(signature = (nodes, racks = 1))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = unsigned)] nodes: usize,
        #[pyo3(from_py_with = unsigned)] racks: usize,
    ) -> PyResult<PyCluster> {
        let agents = py.detach(|| EmbeddedAgents::start(nodes, racks)).map_err(|e| exception_for(py, &e))?;
        Ok(PyCluster { agents: Mutex::new(Some(Arc::new(agents))) })
    }

    /// Paths of the agents' sockets, one per node; pass one to `join`, or as COOL_SOCKET. Empty
    /// after `close`.
    #[getter]
    fn sockets(&self) -> Vec<String> {
        let agents = self.agents();
        let sockets = agents.iter().flat_map(|agents| agents.sockets());
        sockets.map(|socket| socket.to_string_lossy().into_owned()).collect()
    }

    /// Waits until all ranks have left the groups that they joined, but at most for `timeout`
    /// seconds. Returns whether they have. Ranks cannot continue without their agents, so call this
    /// before `close`.
    fn wait_until_unused(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = duration(py, "timeout", timeout)?;
        let agents = self.agents().clone();
        let begun = Instant::now();
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            let unused =
                |agents: &Arc<EmbeddedAgents>| agents.wait_until_unused(left.min(SIGNAL_CHECK_INTERVAL));
            if py.detach(|| agents.as_ref().is_none_or(unused)) {
                return Ok(true);
            }
            if left <= SIGNAL_CHECK_INTERVAL {
                return Ok(false);
            }
            py.check_signals()?;
        }
    }

    /// Stops the agents.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.agents().take()));
    }

    fn __enter__(this: Py<PyCluster>) -> Py<PyCluster> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }
}
