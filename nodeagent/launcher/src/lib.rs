//! Starts the ranks of jobs as their users, and ends with a job whatever its processes have started.
//!
//! ```text
//!   agent ==SOCK_SEQPACKET==> supervisor (one for each job of the node) --fork, exec--> ranks
//!                             of cool-launcher, as root: ranks run as the job's user
//!                             of the agent itself:       ranks run as the agent's own account
//! ```
//!
//! A [`supervisor`] is a process of its own, by which the kernel tells whose children are whose: it keeps a job's processes in a
//! [`cgroup`], or where none can be made takes in those whose parents have ended (`descendants`). Who may run as whom is
//! [`policy`]'s to say, what an account is the system's ([`account`]).

pub mod account;
pub mod cgroup;
mod descendants;
pub mod options;
pub mod policy;
mod spawn;
mod start_failure;
pub mod supervisor;

pub use policy::Policy;
pub use supervisor::supervise;

/// The version of the contract with agents; others are refused.
pub const LAUNCHER_VERSION: u32 = 1;
