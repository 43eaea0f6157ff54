//! libcool's Python module, `cool._cool`. Programs use it through the package `cool`
//! (`libcool/python/package/cool`).
//!
//! The module also wraps `cool-kmeans` and `cool-map`, which are built on libcool, as `cool.kmeans`
//! and `cool.map`.

mod arguments;
mod arrays;
mod comm;
mod dlpack;
mod error;
mod files;
mod functions;
mod interrupts;
mod join;
#[cfg(feature = "kmeans")]
mod kmeans;
mod map;
mod memory;
mod messages;
mod operations;
mod queue;
mod request;

use cool_rust::Comm;
use pyo3::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Returns the communicator of all ranks of the program, which a launcher must have started.
/// Returns when all ranks have joined.
#[pyfunction]
fn world(py: Python<'_>) -> PyResult<comm::PyComm> {
    interrupts::in_thread(py, Comm::world).map(comm::PyComm::new)
}

/// Returns the socket of this process's agent: COOL_SOCKET, or the only socket in /run/cool.
#[pyfunction]
fn agent_socket(py: Python<'_>) -> PyResult<PathBuf> {
    cool_rust::agent_socket().map_err(|e| error::exception_for(py, &e))
}

/// Runs `main(world)` as the rank for which a launcher started this process. In a process that was
/// started by hand, runs it as 4 ranks (COOL_EMBEDDED sets another number), in threads of this
/// process. Returns the results of the ranks that ran here, or raises the first exception.
#[pyfunction]
fn launch(py: Python<'_>, main: Py<PyAny>) -> PyResult<Vec<Py<PyAny>>> {
    let failed: Mutex<Option<PyErr>> = Mutex::new(None);
    let rank = |comm: Comm| {
        Python::attach(|py| {
            let result = Py::new(py, comm::PyComm::new(comm)).and_then(|comm| {
                let result = main.call1(py, (comm.clone_ref(py),));
                // Closed even if main or a traceback keeps a reference, because other ranks must
                // not wait for it.
                comm.get().close();
                result
            });
            result.map_err(|e| {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
            })
        })
    };
    let results = py.detach(|| cool_rust::launch(rank)).map_err(|e| error::exception_for(py, &e))?;
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(results.into_iter().flatten().collect()),
    }
}

/// libcool for Python.
#[pymodule]
fn _cool(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // The programs of the wheel are next to the interpreter of its environment.
    let interpreter: Option<PathBuf> = module.py().import("sys")?.getattr("executable")?.extract()?;
    if let Some(directory) = interpreter.as_deref().and_then(Path::parent) {
        cool_rust::set_program_directory(directory.to_owned());
    }
    module.add_function(wrap_pyfunction!(world, module)?)?;
    module.add_function(wrap_pyfunction!(launch, module)?)?;
    module.add_function(wrap_pyfunction!(agent_socket, module)?)?;
    module.add_function(wrap_pyfunction!(join::join, module)?)?;
    module.add_class::<join::PyCluster>()?;
    module.add_class::<comm::PyComm>()?;
    module.add_class::<queue::PyQueue>()?;
    module.add_class::<request::PyRequest>()?;
    files::add(module)?;
    map::add(module)?;
    #[cfg(feature = "kmeans")]
    kmeans::add(module)?;
    error::add(module)
}
