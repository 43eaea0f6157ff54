//! Why a job failed: by an exception of the program, or in the job's own words.

use super::pickled;
use crate::error::{described, raised};
use cool_map::Error;
use pyo3::prelude::*;
use std::fmt;

/// Why a job failed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The program, or an object of it, raised this.
    Raised(PyErr),
    /// A stage failed.
    Stage(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Stage(error)
    }
}

impl From<PyErr> for Failed {
    fn from(error: PyErr) -> Failed {
        Failed::Raised(error)
    }
}

/// As other ranks are told of it.
impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::Raised(error) => error.fmt(f),
            Failed::Stage(error) => error.fmt(f),
        }
    }
}

impl From<Failed> for PyErr {
    fn from(failed: Failed) -> PyErr {
        Python::attach(|py| match failed {
            Failed::Raised(error) => error,
            // What an object said when it was to become bytes tells more.
            Failed::Stage(error @ Error::Value(_)) => {
                pickled::refusal().unwrap_or_else(|| described(py, error.to_string(), &[]))
            }
            Failed::Stage(Error::Collective(error)) => raised(py, &error),
            Failed::Stage(error @ Error::Lost(_)) => crate::error::lost(py, error.to_string()),
            Failed::Stage(Error::Elsewhere { rank, message }) => {
                described(py, format!("rank {rank}: {message}"), &[rank])
            }
            Failed::Stage(error) => described(py, error.to_string(), &[]),
        })
    }
}
