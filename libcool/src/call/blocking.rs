//! Whether the program waits in a call.

/// Whether the program waits in the call (MPI: blocking). Who waits leaves registered memory alone meanwhile, which then
/// need not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocking {
    Yes,
    No,
    /// It does not wait, but has promised to leave the arrays alone until the call is done.
    Lent,
}
