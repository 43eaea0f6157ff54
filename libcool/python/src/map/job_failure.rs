//! Why a job failed: by an exception of the program, or in the job's own words.

use super::pickled;
use crate::error::{job_error, raised};
use cool_map::Error;
use pyo3::prelude::*;
use std::fmt;

/// Why a job failed.
#[derive(Debug)]
pub(crate) enum JobFailure {
    /// The program, or an object of it, raised this.
    Raised(PyErr),
    /// A stage failed.
    Stage(Error),
}

impl From<Error> for JobFailure {
    fn from(error: Error) -> JobFailure {
        JobFailure::Stage(error)
    }
}

impl From<PyErr> for JobFailure {
    fn from(error: PyErr) -> JobFailure {
        JobFailure::Raised(error)
    }
}

/// As other ranks are told of it.
impl fmt::Display for JobFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobFailure::Raised(error) => error.fmt(f),
            JobFailure::Stage(error) => error.fmt(f),
        }
    }
}

impl From<JobFailure> for PyErr {
    fn from(failed: JobFailure) -> PyErr {
        Python::attach(|py| match failed {
            JobFailure::Raised(error) => error,
            // What an object said when it was to become bytes tells more.
            JobFailure::Stage(error @ Error::Value(_)) => {
                pickled::refusal().unwrap_or_else(|| job_error(py, error.to_string(), &[]))
            }
            JobFailure::Stage(Error::Collective(error)) => raised(py, &error),
            JobFailure::Stage(error @ Error::Lost(_)) => crate::error::lost_error(py, error.to_string()),
            JobFailure::Stage(Error::Elsewhere { rank, message }) => {
                job_error(py, format!("rank {rank}: {message}"), &[rank])
            }
            JobFailure::Stage(error) => job_error(py, error.to_string(), &[]),
        })
    }
}
