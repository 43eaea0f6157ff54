//! Errors: a code to return, and a message that the program can query. No panic leaves a function.

use crate::codes::*;
use cool_rust::files::FilesError;
use cool_rust::{Error, FailureKind};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The last error of a thread.
#[derive(Default)]
struct LastError {
    message: CString,
    ranks: Vec<usize>,
}

thread_local! {
    static LAST: RefCell<LastError> = RefCell::default();
}

/// An error of this interface.
#[derive(Debug)]
pub(crate) enum CError {
    /// An error of the library.
    Cool(Error),
    /// An error of a file command.
    Files(FilesError),
    /// Invalid arguments, with an explanation.
    Argument(String),
}

impl From<Error> for CError {
    fn from(error: Error) -> CError {
        CError::Cool(error)
    }
}

impl CError {
    fn code(&self) -> cool_status {
        let error = match self {
            CError::Argument(_) => return COOL_INVALID,
            CError::Files(FilesError::Start { .. }) => return COOL_SYSTEM,
            CError::Files(_) => return COOL_OTHER,
            CError::Cool(error) => error,
        };
        match error {
            Error::NotLaunched | Error::Environment { .. } | Error::Plan { .. } => COOL_ENVIRONMENT,
            Error::Agent { .. } | Error::Refused { .. } => COOL_AGENT,
            Error::Argument { .. } => COOL_INVALID,
            Error::Memory { .. } | Error::Thread { .. } | Error::Embedded(_) => COOL_SYSTEM,
            Error::Collective { failure, .. } => match failure {
                FailureKind::Invalid => COOL_INVALID,
                FailureKind::Mismatch => COOL_MISMATCH,
                FailureKind::Timeout => COOL_TIMEOUT,
                FailureKind::Lost => COOL_LOST,
                FailureKind::Aborted => COOL_ABORTED,
                FailureKind::Revoked => COOL_REVOKED,
                FailureKind::Truncated => COOL_TRUNCATED,
                _ => COOL_OTHER,
            },
            _ => COOL_OTHER,
        }
    }

    fn record(self) -> cool_status {
        let code = self.code();
        let (message, ranks) = match self {
            CError::Argument(reason) => (reason, Vec::new()),
            CError::Files(error) => (error.to_string(), Vec::new()),
            CError::Cool(error) => {
                let ranks = match &error {
                    Error::Collective { ranks, .. } => ranks.clone(),
                    _ => Vec::new(),
                };
                (error.to_string(), ranks)
            }
        };
        let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
        LAST.with_borrow_mut(|last| *last = LastError { message, ranks });
        code
    }
}

/// Runs the body of a function and returns the code of its result. Records an error for
/// cool_error_message. A panic is returned as COOL_OTHER.
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), CError>) -> cool_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => COOL_OK,
        Ok(Err(wrong)) => wrong.record(),
        Err(_) => {
            CError::Argument("libcool panicked; the message is on standard error".to_owned()).record();
            COOL_OTHER
        }
    }
}

/// Returns the message of the last failed call of this thread. The pointer is valid until the next
/// failed call of the thread.
#[unsafe(no_mangle)]
pub extern "C" fn cool_error_message() -> *const c_char {
    LAST.with_borrow(|last| last.message.as_ptr())
}

/// Writes the ranks that the last error of this thread concerns to `ranks`, at most `room` of them.
/// Returns their total number.
///
/// # Safety
/// `ranks` must have room for `room` numbers, or `room` must be 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_error_ranks(ranks: *mut usize, room: usize) -> usize {
    LAST.with_borrow(|last| {
        if !ranks.is_null() {
            for (place, rank) in last.ranks.iter().take(room).enumerate() {
                // SAFETY: the index is less than `room`, and the caller guarantees that there is
                // room.
                unsafe { ranks.add(place).write(*rank) };
            }
        }
        last.ranks.len()
    })
}
