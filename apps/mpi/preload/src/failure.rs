//! Errors of intercepted calls.

use cool_mpi::ErrorClass;

/// Why an intercepted call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MpiCallFailure {
    /// An error of COOL.
    #[error("{0}")]
    Cool(#[from] cool::Error),
    /// A function of the host's MPI library failed during the call.
    #[error("{function} of the host's MPI library failed with code {code}")]
    Host {
        /// Name of the function.
        function: &'static str,
        /// Its return code.
        code: i32,
    },
    /// A buffer that is not empty has a null address.
    #[error("a buffer of {bytes} bytes has no address")]
    Null {
        /// Bytes of the buffer.
        bytes: usize,
    },
    /// The size of an array in bytes overflows.
    #[error("an array of {count} elements is too large")]
    Beyond {
        /// Number of its elements.
        count: usize,
    },
    /// The length of packed data differs from that of its type's signature.
    #[error("the host's MPI library packed {packed} bytes where the type has {expected}")]
    Packed {
        /// Bytes that were packed or unpacked.
        packed: usize,
        /// Bytes according to the type's size and the count.
        expected: usize,
    },
    /// `COOL_MPI=require`, but there is no group.
    #[error("COOL_MPI=require, but COOL cannot be used: {0}")]
    Required(String),
}

impl MpiCallFailure {
    /// Returns the error class for the communicator's error handler.
    pub(crate) fn class(&self) -> ErrorClass {
        use cool::FailureKind;
        match self {
            MpiCallFailure::Cool(cool::Error::Collective { failure: FailureKind::Mismatch, .. }) => {
                ErrorClass::Truncate
            }
            MpiCallFailure::Cool(cool::Error::Memory { .. }) => ErrorClass::NoMemory,
            MpiCallFailure::Null { .. } => ErrorClass::Buffer,
            _ => ErrorClass::Other,
        }
    }
}
