//! Errors of the library, with the remedy.

use cool_proto::local::failure::Kind;
use cool_proto::socket::SocketError;
use cool_shm::region::RegionError;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// An error of the library. Its text names the rank, the operation and the remedy.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process is not a rank.
    #[error(
        "this process is not a rank: start the program with `cool run -n N -- PROGRAM` or another launcher (srun, \
         mpirun, torchrun), or build it with libcool's feature `embedded` and use cool::launch"
    )]
    NotLaunched,
    /// An environment variable of the rank is missing or invalid.
    #[error("{variable} is {value}, but should be {expected}")]
    Environment {
        /// Name of the variable.
        variable: &'static str,
        /// Value of the variable.
        value: String,
        /// Expected value.
        expected: String,
    },
    /// `COOL_PLAN` is invalid.
    #[error(
        "COOL_PLAN is {value:?}, but must be a list of OPERATION=PLAN, such as allreduce=cool-b-r,bcast=flat:binomial: {reason}"
    )]
    Plan {
        /// Value of the variable.
        value: String,
        /// Explanation, with the expected value.
        reason: String,
    },
    /// The ranks of the job cannot start agents of their own.
    #[error("rank {rank}: cannot start an agent for the job: {message}")]
    JobCluster {
        /// This rank.
        rank: usize,
        /// Explanation, with the remedy.
        message: String,
    },
    /// The agent of the node cannot be reached, or the connection to it was lost.
    #[error("rank {rank}: {doing}: no agent at {}: {source}; is cool-nodeagent running on this node?", .socket.display())]
    Agent {
        /// This rank.
        rank: usize,
        /// Operation that failed.
        doing: &'static str,
        /// Socket of the agent.
        socket: PathBuf,
        /// Error of the connection.
        source: Arc<SocketError>,
    },
    /// The agent of the node refused this rank.
    #[error("rank {rank}: {doing}: the agent at {} refused: {message}", .socket.display())]
    Refused {
        /// This rank.
        rank: usize,
        /// Operation that failed.
        doing: &'static str,
        /// Socket of the agent.
        socket: PathBuf,
        /// Reason of the agent.
        message: String,
    },
    /// The arguments of a call are invalid. Nothing was sent.
    #[error("rank {rank}: {operation}: {reason}")]
    Argument {
        /// This rank.
        rank: usize,
        /// The operation.
        operation: &'static str,
        /// Explanation, with the expected value.
        reason: String,
    },
    /// The system cannot provide memory that is shared with the agent.
    #[error("rank {rank}: {operation}: {source}")]
    Memory {
        /// This rank.
        rank: usize,
        /// The operation.
        operation: &'static str,
        /// Cause of the error.
        source: RegionError,
    },
    /// A call cannot be awaited, because the system cannot create the thread that receives replies.
    #[error("rank {rank}: {operation}: no thread to receive answers: {source}")]
    Thread {
        /// This rank.
        rank: usize,
        /// The operation.
        operation: &'static str,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The collective or message failed.
    ///
    /// Unless the failure is [`FailureKind::Invalid`], [`FailureKind::Truncated`] or
    /// [`FailureKind::Cancelled`], all later calls of the group fail too;
    /// [`Comm::shrink`](crate::Comm::shrink) returns a working group of the surviving ranks.
    #[error("rank {rank}: {operation}: {message}")]
    Collective {
        /// This rank.
        rank: usize,
        /// The operation.
        operation: &'static str,
        /// Kind of the failure.
        failure: FailureKind,
        /// The ranks concerned, if known.
        ranks: Vec<usize>,
        /// Description of the failure.
        message: String,
    },
    /// The program has interrupted the call. If ranks execute such a call themselves, the group has
    /// failed; otherwise the agents continue with it, and its result is lost.
    #[error("rank {rank}: {operation}: interrupted while it waited for other ranks")]
    Interrupted {
        /// This rank.
        rank: usize,
        /// The operation.
        operation: &'static str,
    },
    /// The agents of an embedded run did not start.
    #[cfg(feature = "embedded")]
    #[error("embedded run: {0}")]
    Embedded(String),
}

impl Error {
    /// Returns whether the group failed because ranks are lost, did not join in time, or have
    /// revoked it.
    ///
    /// The surviving ranks can continue with [`Comm::shrink`](crate::Comm::shrink) then. Returns
    /// `false` for errors of the program.
    pub fn is_loss(&self) -> bool {
        use FailureKind::{Aborted, Lost, Revoked, Timeout};
        matches!(self, Error::Collective { failure: Aborted | Lost | Revoked | Timeout, .. })
    }
}

/// Prints the message, because a `main` that returns an error prints its `Debug` form.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// The call is invalid.
    Invalid,
    /// The ranks passed different operations, sizes, types or roots to the same call.
    Mismatch,
    /// A rank did not join in time.
    Timeout,
    /// A rank, node or agent was lost.
    Lost,
    /// An earlier call of the group failed.
    Aborted,
    /// A rank revoked the group.
    Revoked,
    /// A message was longer than its receive. Only the receive failed.
    Truncated,
    /// A receive was canceled. Only the receive failed.
    Cancelled,
    /// A kind that this version of libcool does not define.
    Other,
}

impl From<Kind> for FailureKind {
    fn from(kind: Kind) -> FailureKind {
        match kind {
            Kind::Invalid => FailureKind::Invalid,
            Kind::Mismatch => FailureKind::Mismatch,
            Kind::Timeout => FailureKind::Timeout,
            Kind::Lost => FailureKind::Lost,
            Kind::Aborted => FailureKind::Aborted,
            Kind::Revoked => FailureKind::Revoked,
            Kind::Truncated => FailureKind::Truncated,
            Kind::Cancelled => FailureKind::Cancelled,
            Kind::Unspecified => FailureKind::Other,
        }
    }
}
