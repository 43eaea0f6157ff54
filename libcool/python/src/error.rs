//! The library's errors as exceptions, with the ranks concerned.

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
    "A call failed. `ranks` are those concerned, as far as they are known."
);
create_exception!(cool, ArgumentError, CoolError, "The arguments make no sense. Nothing was sent.");
create_exception!(
    cool,
    EnvironmentError,
    CoolError,
    "The process is no rank, or its environment makes no sense."
);
create_exception!(cool, AgentError, CoolError, "The node's agent is gone, or refused.");
create_exception!(
    cool,
    MismatchError,
    CoolError,
    "Ranks called different operations, sizes, types or roots."
);
create_exception!(cool, TimeoutError, CoolError, "Somebody did not come in time.");
create_exception!(cool, LostError, CoolError, "A rank, node or agent went away.");
create_exception!(
    cool,
    AbortedError,
    CoolError,
    "An earlier call failed: the group cannot be used any more."
);

create_exception!(cool, RevokedError, CoolError, "A rank has revoked the group.");
create_exception!(cool, FilesError, CoolError, "A command on files did not do all that was asked.");

create_exception!(
    cool,
    TruncatedError,
    CoolError,
    "A message was longer than its receive, which alone failed."
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

/// An error of the library.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
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

/// An error of the arguments.
pub(crate) fn argument_error(py: Python<'_>, reason: impl Into<String>) -> PyErr {
    with_ranks(py, ArgumentError::new_err(reason.into()), &[])
}

/// An error of a job, with the ranks concerned.
pub(crate) fn job_error(py: Python<'_>, text: String, ranks: &[usize]) -> PyErr {
    with_ranks(py, CoolError::new_err(text), ranks)
}

/// Seconds as a program gives them, of an argument of that name.
pub(crate) fn duration(py: Python<'_>, name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|e| argument_error(py, format!("{name}: {e}")))
}

/// An error because something is not done in time.
pub(crate) fn timeout_error(py: Python<'_>, text: String) -> PyErr {
    with_ranks(py, TimeoutError::new_err(text), &[])
}

/// An error because ranks are lost.
pub(crate) fn lost_error(py: Python<'_>, text: String) -> PyErr {
    with_ranks(py, LostError::new_err(text), &[])
}

/// Ranks, tags and counts as an argument has them, of which none is negative.
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
