//! Whether the program waits in a call.

/// Whether the program waits in the call (MPI: blocking).
///
/// A program that waits does not access registered memory meanwhile, so the memory need not be
/// copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallBlocking {
    Yes,
    No,
    /// The call returns at once, and the caller promised not to access the arrays until it is
    /// complete.
    Lent,
}
