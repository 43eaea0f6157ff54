//! The progress of a job's iterations.

use super::map_failure::MapFailure;
use super::pickled::Object;
use crate::error::argument_error;
use cool_map::{Checkpoint, Progress, Report, Stage};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

/// The progress of a job's iterations.
///
/// With `checkpoint`, rank 0 writes the state to that file after each iteration. With `resume`, a
/// later run continues from it if it has the same `run`, a text that must identify everything the
/// results depend on, such as input and options. States are pickled: resume only from files that
/// you trust.
#[pyclass(module = "cool.map", name = "Progress", frozen)]
pub(crate) struct PyProgress {
    progress: Mutex<Progress<Object>>,
}

impl PyProgress {
    /// Locks the progress, unless iterations are running.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Progress<Object>>, MapFailure> {
        let busy = |_| Python::attach(|py| argument_error(py, "iterations are under way"));
        Ok(self.progress.try_lock().map_err(busy)?)
    }
}

#[pymethods]
impl PyProgress {
    #[new]
    #[pyo3(signature = (checkpoint = None, run = String::new(), resume = false))]
    fn new(checkpoint: Option<PathBuf>, run: String, resume: bool) -> PyProgress {
        let mut progress = Progress::new();
        if let Some(path) = checkpoint {
            progress.keep_in(Checkpoint { path, run, resume });
        }
        PyProgress { progress: Mutex::new(progress) }
    }

    /// The state after the iterations so far, or None before the first state exists.
    #[getter]
    fn state(&self) -> PyResult<Option<Py<PyAny>>> {
        Ok(self.lock()?.state().map(Object::clone_object))
    }

    /// The number of iterations so far, including those of earlier runs.
    #[getter]
    fn iterations(&self) -> PyResult<usize> {
        Ok(self.lock()?.iterations())
    }

    /// Reports of the iterations of this run: dicts with `iteration`, `seconds`,
    /// `busiest_link_bytes` and `stages`. Each stage has `stage`, `rows`, `bytes`,
    /// `busiest_link_bytes` and `seconds`.
    #[getter]
    fn reports<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.lock()?.reports().iter().map(|report| iteration_dict(py, report)).collect()
    }
}

fn iteration_dict<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let stages = report.stages.iter().map(|stage| stage_dict(py, stage)).collect::<PyResult<Vec<_>>>()?;
    let dict = PyDict::new(py);
    dict.set_item("iteration", report.iteration)?;
    dict.set_item("seconds", report.seconds)?;
    dict.set_item("busiest_link_bytes", report.busiest_link_bytes())?;
    dict.set_item("stages", stages)?;
    Ok(dict)
}

fn stage_dict<'py>(py: Python<'py>, stage: &Stage) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("stage", stage.kind.name())?;
    dict.set_item("rows", stage.rows)?;
    dict.set_item("bytes", stage.bytes)?;
    dict.set_item("busiest_link_bytes", stage.links.busiest())?;
    dict.set_item("seconds", stage.seconds)?;
    Ok(dict)
}
