//! Who belongs to a group, decided in one place for all of its ranks.
//!
//! [`Membership`] is the service that agents ask for groups. Ranks that know only a common key, their number and how many
//! they are meet by it (a *rendezvous*): the worlds of other launchers, and the parts of a split. Survivors of a group that
//! lost ranks agree by it on who is gone, as with ULFM's `MPI_Comm_agree` and `MPI_Comm_shrink` (Bland et al.,
//! "Post-failure recovery of MPI communication capability", IJHPCA 2013). It has groups formed, tells their nodes, and has
//! those released that no node uses any more.
//!
//! The machine does no I/O and takes the time as an argument. Trees and messages are its driver's matter: the controller,
//! or in embedded mode the process itself.

mod events;
mod recovery;
mod rendezvous;
mod service;

pub use events::{Enlisted, Input, Output, Place, Recovered};
pub use recovery::Purpose;
pub use service::{LONGEST_WAIT, Membership};
