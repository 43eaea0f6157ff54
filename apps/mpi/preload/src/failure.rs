//! Why a call that was taken failed.

use cool_mpi::ErrorClass;

/// Why a call that was taken failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MpiCallFailure {
    /// COOL says why.
    #[error("{0}")]
    Cool(#[from] cool::Error),
    /// A function of the host's MPI library failed on the way.
    #[error("{function} of the host's MPI library failed with code {code}")]
    Host {
        /// Its name.
        function: &'static str,
        /// What it returned.
        code: i32,
    },
    /// A buffer has bytes to it, and is not there.
    #[error("a buffer of {bytes} bytes is at no address")]
    Null {
        /// Its bytes.
        bytes: usize,
    },
    /// There is no such array.
    #[error("{count} elements are beyond any array")]
    Beyond {
        /// Its elements.
        count: usize,
    },
    /// Packed data has another length than its type's signature.
    #[error("the host's MPI library packed {packed} bytes where the type has {expected}")]
    Packed {
        /// What it packed or unpacked.
        packed: usize,
        /// What the type's size and the count make.
        expected: usize,
    },
    /// `COOL_MPI=require`, and there is no group.
    #[error("COOL_MPI=require, but COOL cannot be used: {0}")]
    Required(String),
}

impl MpiCallFailure {
    /// The class by which the communicator's error handler is called.
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
