//! The pieces of a job's input that a rank holds, as Python has them.

use super::map_failure::MapFailure;
use crate::error::argument_error;
use cool_map::Partitions;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard};

/// The pieces of a job's input, numbered from 0, and those of them that this rank holds in memory: the objects that
/// `Job.deal` has loaded. How many there are must not depend on the number of ranks, on which results would depend then;
/// 4 to 16 for each thread let fast threads take over from slow ones.
#[pyclass(module = "cool.map", name = "Partitions", frozen)]
pub(crate) struct PyPartitions {
    held: Mutex<Partitions<Py<PyAny>>>,
}

impl PyPartitions {
    /// Them, unless they are being loaded or mapped.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Partitions<Py<PyAny>>>, MapFailure> {
        let busy = |_| Python::attach(|py| argument_error(py, "these partitions are being loaded or mapped"));
        Ok(self.held.try_lock().map_err(busy)?)
    }
}

#[pymethods]
impl PyPartitions {
    #[new]
    fn new(count: u32) -> PyPartitions {
        PyPartitions { held: Mutex::new(Partitions::new(count as usize)) }
    }

    /// How many the job has, on all ranks.
    fn __len__(&self) -> PyResult<usize> {
        Ok(self.lock()?.count())
    }

    /// Those that this rank holds, as pairs of their number and what was loaded.
    #[getter]
    fn held(&self, py: Python<'_>) -> PyResult<Vec<(usize, Py<PyAny>)>> {
        Ok(self.lock()?.iter().map(|(number, part)| (number, part.clone_ref(py))).collect())
    }
}
