//! Starts the ranks of jobs as their users, and terminates all processes of a job when the job
//! ends.
//!
//! ```text
//!   agent ==SOCK_SEQPACKET==> supervisor (one for each job on the node) --fork, exec--> ranks
//!                             of cool-launcher, as root: ranks run as the job's user
//!                             of the agent itself:       ranks run as the agent's own account
//! ```
//!
//! A [`supervisor`] is a process of its own, because the kernel then keeps the processes of
//! different jobs apart. It starts a job's processes in a [`cgroup`]. If it cannot make one, it
//! becomes the parent of orphaned processes instead (`descendants`). The [`policy`] decides as
//! which user a job may run, and the system defines the accounts ([`account`]).

pub mod account;
pub mod cgroup;
mod descendants;
mod isolation;
pub mod job_limits;
pub mod listener;
pub mod options;
pub mod policy;
mod spawn;
mod start_failure;
pub mod supervisor;

pub use policy::Policy;
pub use supervisor::supervise;

/// The version of the protocol with agents. Other versions are refused.
pub const LAUNCHER_VERSION: u32 = 1;
