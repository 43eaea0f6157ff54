//! Why something did not work, and what to do.

use cool_proto::local::failure::Kind;
use cool_proto::socket::SocketError;
use cool_shm::region::RegionError;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Why something did not work. The text names the rank, the operation and the remedy.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process is no rank.
    #[error(
        "this process is not a rank: start the program with `cool run -n N -- PROGRAM` or another launcher (srun, \
         mpirun, torchrun), or build it with libcool's feature `embedded` and use cool::launch"
    )]
    NotLaunched,
    /// A variable of a rank's environment is missing or makes no sense.
    #[error("{variable} is {value}, but should be {expected}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        value: String,
        /// What it should hold.
        expected: String,
    },
    /// `COOL_PLAN` does not force plans.
    #[error(
        "COOL_PLAN is {value:?}, but should force plans of operations, as allreduce=cool-b-r,bcast=flat:binomial: {reason}"
    )]
    Plan {
        /// What it holds.
        value: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// The node's agent cannot be reached or is gone.
    #[error("rank {rank}: {doing}: no agent at {}: {source}; is cool-nodeagent running on this node?", .socket.display())]
    Agent {
        /// This rank.
        rank: usize,
        /// What this rank was about to do.
        doing: &'static str,
        /// The agent's socket.
        socket: PathBuf,
        /// What happened.
        source: Arc<SocketError>,
    },
    /// The node's agent does not want this rank.
    #[error("rank {rank}: {doing}: the agent at {} refused: {message}", .socket.display())]
    Refused {
        /// This rank.
        rank: usize,
        /// What this rank was about to do.
        doing: &'static str,
        /// The agent's socket.
        socket: PathBuf,
        /// What the agent said.
        message: String,
    },
    /// The arguments of a call make no sense. Nothing was sent.
    #[error("rank {rank}: {operation}: {reason}")]
    Argument {
        /// This rank.
        rank: usize,
        /// The operation.
        operation: &'static str,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// There is no memory to share with the agent.
    #[error("rank {rank}: {operation}: {source}")]
    Memory {
        /// This rank.
        rank: usize,
        /// The operation.
        operation: &'static str,
        /// What happened.
        source: RegionError,
    },
    /// A call cannot be awaited without waiting: there is no thread to receive the answer.
    #[error("rank {rank}: {operation}: no thread to receive answers: {source}")]
    Thread {
        /// This rank.
        rank: usize,
        /// The operation.
        operation: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The collective or message failed. Unless that was [`FailureKind::Invalid`], [`FailureKind::Truncated`] or
    /// [`FailureKind::Cancelled`], so will all later ones of the group;
    /// [`Comm::shrink`](crate::Comm::shrink) gives the ranks that are left one that works.
    #[error("rank {rank}: {operation}: {message}")]
    Collective {
        /// This rank.
        rank: usize,
        /// The operation.
        operation: &'static str,
        /// What kind of failure it is.
        failure: FailureKind,
        /// The ranks concerned, as far as they are known.
        ranks: Vec<usize>,
        /// What happened, in words.
        message: String,
    },
    /// The agents of an embedded run did not start.
    #[cfg(feature = "embedded")]
    #[error("embedded run: {0}")]
    Embedded(String),
}

impl Error {
    /// Whether the group failed because ranks are lost, do not come, or have revoked it, so that those that are left
    /// can go on with [`Comm::shrink`](crate::Comm::shrink); not by what the program did wrong.
    pub fn is_loss(&self) -> bool {
        use FailureKind::{Aborted, Lost, Revoked, Timeout};
        matches!(self, Error::Collective { failure: Aborted | Lost | Revoked | Timeout, .. })
    }
}

/// In words, since a `main` that returns an error prints this.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a collective failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// The call makes no sense.
    Invalid,
    /// Ranks called different operations, sizes, types or roots.
    Mismatch,
    /// Somebody did not come in time.
    Timeout,
    /// A rank, node or agent went away.
    Lost,
    /// An earlier call failed.
    Aborted,
    /// A rank has revoked the group.
    Revoked,
    /// A message was longer than its receive, which alone failed.
    Truncated,
    /// A receive was cancelled, which alone failed.
    Cancelled,
    /// A kind that this version of libcool does not know.
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
