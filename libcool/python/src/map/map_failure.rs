//! Failures of a job: an exception of the program, or an error of a stage.

use super::pickled;
use crate::error::{exception_for, job_error};
use cool_map::Error;
use pyo3::prelude::*;
use std::fmt;

/// The failure of a job.
#[derive(Debug)]
pub(crate) enum MapFailure {
    /// An exception of the program or of one of its objects.
    Raised(PyErr),
    /// An error of a stage.
    Stage(Error),
}

impl From<Error> for MapFailure {
    fn from(error: Error) -> MapFailure {
        MapFailure::Stage(error)
    }
}

impl From<PyErr> for MapFailure {
    fn from(error: PyErr) -> MapFailure {
        MapFailure::Raised(error)
    }
}

/// The message for other ranks.
impl fmt::Display for MapFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapFailure::Raised(error) => error.fmt(f),
            MapFailure::Stage(error) => error.fmt(f),
        }
    }
}

impl From<MapFailure> for PyErr {
    fn from(failed: MapFailure) -> PyErr {
        Python::attach(|py| match failed {
            MapFailure::Raised(error) => error,
            // The exception of pickling contains more detail.
            MapFailure::Stage(error @ Error::Value(_)) => {
                pickled::refusal().unwrap_or_else(|| job_error(py, error.to_string(), &[]))
            }
            MapFailure::Stage(Error::Collective(error)) => exception_for(py, &error),
            MapFailure::Stage(error @ Error::Lost(_)) => crate::error::lost_error(py, error.to_string()),
            MapFailure::Stage(Error::Elsewhere { rank, message }) => {
                job_error(py, format!("rank {rank}: {message}"), &[rank])
            }
            MapFailure::Stage(error) => job_error(py, error.to_string(), &[]),
        })
    }
}
