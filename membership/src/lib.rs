//! Who belongs to a group, decided in one place for all of its ranks.
//!
//! [`Rendezvous`] brings together ranks that know only a common key, their number and how many they are: the worlds of
//! other launchers, and the parts of a split. [`Recovery`] lets the survivors of a group that lost ranks decide alike who
//! is gone, as ULFM's `MPI_Comm_agree` and `MPI_Comm_shrink` do (Bland et al., "Post-failure recovery of MPI communication
//! capability", 2013). Both take the time as an argument and do no I/O; making the groups and telling their agents is left
//! to the controller, or to whoever stands in for it.

mod recovery;
mod rendezvous;

pub use recovery::{Met, Purpose, Recovery, Survivor};
pub use rendezvous::{Failed, Member, Rendezvous};

/// Why somebody is not let in. The others wait on.
pub mod refusal {
    pub use crate::recovery::Refusal as Recover;
    pub use crate::rendezvous::Refusal as Enlist;
}
