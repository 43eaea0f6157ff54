//! Group membership: decides, in one place for all ranks, which ranks form a group.
//!
//! [`Membership`] is the service from which agents request groups. It supports two ways to form
//! one:
//!
//! - *Rendezvous*: ranks that know only a common key, their rank and the size of the group find
//!   each other. The worlds of other launchers and the parts of a split are formed like this.
//! - *Recovery*: the survivors of a group that lost ranks agree on the set of lost ranks, like
//!   ULFM's `MPI_Comm_agree` and `MPI_Comm_shrink` (Bland et al., "Post-failure recovery of MPI
//!   communication capability", IJHPCA 2013).
//!
//! The service requests that groups be formed, reports the result to their nodes, and releases a
//! group once no node uses it.
//!
//! The machine does no I/O and receives the time as an argument. Its driver must install the trees
//! and send the messages: the controller does, or in embedded mode the process itself.

mod events;
mod recovery;
mod rendezvous;
mod service;

pub use events::{EnlistOutcome, Input, Output, RankLocation, RecoveryOutcome};
pub use recovery::RecoveryPurpose;
pub use service::{MAX_WAIT, Membership};
