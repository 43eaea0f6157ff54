//! The partitions of a job's input that a rank holds.

use super::map_failure::MapFailure;
use crate::error::argument_error;
use cool_map::Partitions;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard};

/// The partitions of a job's input, numbered from 0, and the objects that `Job.deal` loaded at this
/// rank.
///
/// The number of partitions must not depend on the number of ranks, because results would depend on
/// it then. With 4 to 16 partitions for each thread, fast threads can take over work from slow
/// ones.
#[pyclass(module = "cool.map", name = "Partitions", frozen)]
pub(crate) struct PyPartitions {
    held: Mutex<Partitions<Py<PyAny>>>,
}

impl PyPartitions {
    /// Locks the partitions, unless they are being loaded or mapped.
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

    /// Returns the number of partitions on all ranks.
    fn __len__(&self) -> PyResult<usize> {
        Ok(self.lock()?.count())
    }

    /// The partitions of this rank, as pairs of their number and the loaded object.
    #[getter]
    fn held(&self, py: Python<'_>) -> PyResult<Vec<(usize, Py<PyAny>)>> {
        Ok(self.lock()?.iter().map(|(number, part)| (number, part.clone_ref(py))).collect())
    }
}
