//! File commands of the installed program `cool`, for the package's `cool.files`.

use crate::error::{FilesError, job_error};
use cool_rust::files::{self, run};
use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs `cool` with arguments and returns its output. Raises `FilesError`, with the output as
/// `outcome`, if the command did not complete everything that was requested.
#[pyfunction]
fn run_files(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<String> {
    py.detach(|| run(arguments)).map_err(|error| {
        let json = match &error {
            files::FilesError::Failed { json, .. } => json.as_str(),
            _ => "",
        };
        let raised = FilesError::new_err(error.to_string());
        let value = raised.value(py);
        let set = value.setattr("ranks", Vec::<usize>::new()).and_then(|()| value.setattr("outcome", json));
        set.map_or_else(|_| job_error(py, error.to_string(), &[]), |()| raised)
    })
}

/// Adds the function to the module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(run_files, module)?)
}
