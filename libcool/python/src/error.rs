//! Conversion of the library's errors to exceptions, with the ranks concerned.

use cool_rust::{Error, FailureKind};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::create_exception;
use pyo3::exceptions::{PyOverflowError, PyRuntimeError};
use pyo3::prelude::*;
use std::time::Duration;

create_exception!(
    cool,
    CoolError,
    PyRuntimeError,
    "A call failed. `ranks` contains the ranks concerned, if known."
);
create_exception!(cool, ArgumentError, CoolError, "The arguments are invalid. Nothing was sent.");
create_exception!(
    cool,
    EnvironmentError,
    CoolError,
    "The process is not a rank, or its environment is invalid."
);
create_exception!(cool, AgentError, CoolError, "The node's agent is unreachable, or refused this rank.");
create_exception!(
    cool,
    MismatchError,
    CoolError,
    "Ranks called different operations, sizes, types or roots."
);
create_exception!(cool, TimeoutError, CoolError, "A rank did not join the call in time.");
create_exception!(cool, LostError, CoolError, "A rank, node or agent was lost.");
create_exception!(
    cool,
    AbortedError,
    CoolError,
    "An earlier call of the group failed, so the group is unusable."
);

create_exception!(cool, RevokedError, CoolError, "A rank revoked the group.");
create_exception!(
    cool,
    FilesError,
    CoolError,
    "A file command did not complete everything that was requested."
);

create_exception!(
    cool,
    TruncatedError,
    CoolError,
    "A message was longer than its receive. Only the receive failed."
);

/// Adds the exceptions to the module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<CoolError>())?;
    module.add("ArgumentError", py.get_type::<ArgumentError>())?;
    module.add("EnvironmentError", py.get_type::<EnvironmentError>())?;
    module.add("AgentError", py.get_type::<AgentError>())?;
    module.add("MismatchError", py.get_type::<MismatchError>())?;
    module.add("TimeoutError", py.get_type::<TimeoutError>())?;
    module.add("LostError", py.get_type::<LostError>())?;
    module.add("AbortedError", py.get_type::<AbortedError>())?;
    module.add("RevokedError", py.get_type::<RevokedError>())?;
    module.add("FilesError", py.get_type::<FilesError>())?;
    module.add("TruncatedError", py.get_type::<TruncatedError>())
}

/// Returns the exception for an error of the library.
pub(crate) fn exception_for(py: Python<'_>, error: &Error) -> PyErr {
    let text = error.to_string();
    let (exception, ranks) = match error {
        Error::Collective { failure, ranks, .. } => {
            let exception = match failure {
                FailureKind::Invalid => ArgumentError::new_err(text),
                FailureKind::Mismatch => MismatchError::new_err(text),
                FailureKind::Timeout => TimeoutError::new_err(text),
                FailureKind::Lost => LostError::new_err(text),
                FailureKind::Aborted => AbortedError::new_err(text),
                FailureKind::Revoked => RevokedError::new_err(text),
                FailureKind::Truncated => TruncatedError::new_err(text),
                _ => CoolError::new_err(text),
            };
            (exception, ranks.as_slice())
        }
        Error::Argument { .. } => (ArgumentError::new_err(text), &[][..]),
        Error::NotLaunched | Error::Environment { .. } | Error::Plan { .. } => {
            (EnvironmentError::new_err(text), &[][..])
        }
        Error::Agent { .. } | Error::Refused { .. } => (AgentError::new_err(text), &[][..]),
        _ => (CoolError::new_err(text), &[][..]),
    };
    with_ranks(py, exception, ranks)
}

/// Returns an exception for invalid arguments.
pub(crate) fn argument_error(py: Python<'_>, reason: impl Into<String>) -> PyErr {
    with_ranks(py, ArgumentError::new_err(reason.into()), &[])
}

/// Returns an exception for an error of the system.
pub(crate) fn system_error(py: Python<'_>, error: &std::io::Error) -> PyErr {
    with_ranks(py, CoolError::new_err(error.to_string()), &[])
}

/// Returns an exception for a failed job, with the ranks concerned.
pub(crate) fn job_error(py: Python<'_>, text: String, ranks: &[usize]) -> PyErr {
    with_ranks(py, CoolError::new_err(text), ranks)
}

/// Converts an argument in seconds; `name` is the name of the argument in error messages.
pub(crate) fn duration(py: Python<'_>, name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|e| argument_error(py, format!("{name}: {e}")))
}

/// Returns an exception for an exceeded timeout.
pub(crate) fn timeout_error(py: Python<'_>, text: String) -> PyErr {
    with_ranks(py, TimeoutError::new_err(text), &[])
}

/// Returns an exception for lost ranks.
pub(crate) fn lost_error(py: Python<'_>, text: String) -> PyErr {
    with_ranks(py, LostError::new_err(text), &[])
}

/// Extracts ranks, tags and counts, none of which may be negative.
pub(crate) fn unsigned<'py, T: FromPyObjectOwned<'py>>(argument: &Bound<'py, PyAny>) -> PyResult<T> {
    let py = argument.py();
    argument.extract().map_err(Into::into).map_err(|e: PyErr| {
        let beyond = e.is_instance_of::<PyOverflowError>(py);
        if beyond { argument_error(py, format!("{argument}: negative, or too large")) } else { e }
    })
}

fn with_ranks(py: Python<'_>, exception: PyErr, ranks: &[usize]) -> PyErr {
    match exception.value(py).setattr("ranks", ranks.to_vec()) {
        Ok(()) => exception,
        Err(other) => other,
    }
}
