//! Errors of starting and controlling jobs.

use crate::jobs::allocation::AllocateError;
use cool_proto::job_ids;
use cool_proto::job_request::CommandLengthError;
use std::fmt;

/// Valid signal numbers. Linux has 64 signals.
pub(crate) const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;

/// Why a job cannot be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The request names no program.
    #[error("the request names no program")]
    NoProgram,
    /// No node can start the command.
    #[error(transparent)]
    Command(#[from] CommandLengthError),
    /// The placement is not defined by the protocol.
    #[error("unknown placement {0}; it must be 0 (racked) or 1 (interleaved)")]
    Placement(i32),
    /// Some of the named nodes are not ready.
    #[error("--hosts: no node {} is ready; {}", .unknown.join(", "), ready_note(.ready))]
    Hosts {
        /// The nodes that are not ready.
        unknown: Vec<String>,
        /// The nodes that are ready.
        ready: Vec<String>,
    },
    /// Some of the named racks have no ready node.
    #[error("--racks: no node of rack {} is ready; `cool topology` shows the racks", list(.0))]
    Racks(Vec<u32>),
    /// The user runs the maximum number of jobs.
    #[error("user {user} already runs {max} jobs, the maximum per user (--jobs-per-user of the controller)")]
    JobsOfUser {
        /// The user.
        user: String,
        /// The limit.
        max: u32,
    },
    /// There are not enough free slots.
    #[error("{error}{unusable}")]
    Allocate {
        /// The missing resource.
        error: AllocateError,
        /// The nodes that were not considered.
        unusable: Box<UnusableNodes>,
    },
    /// The controller is drained.
    #[error("the controller is drained: it starts no jobs until `cool drain --end`")]
    Drained,
    /// The controller is shutting down.
    #[error("the controller is shutting down; try again when it or another one is running")]
    Closed,
}

fn list<T: ToString>(numbers: &[T]) -> String {
    numbers.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

fn ready_note(nodes: &[String]) -> String {
    match nodes {
        [] => "no node is: `cool doctor` reports why".to_owned(),
        nodes => format!("ready nodes: {}", nodes.join(", ")),
    }
}

/// Nodes on which no rank can start, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnusableNodes {
    /// Nodes with disconnected agents, which may reconnect.
    pub disconnected: Vec<String>,
    /// Nodes that have registered but have not been located on the network.
    pub unlocated: Vec<String>,
    /// Nodes with agents that do not support a feature required by the job.
    pub outdated: Vec<String>,
    /// Nodes on which no jobs start, by request of an operator.
    pub drained: Vec<String>,
}

impl fmt::Display for UnusableNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = [
            ("disconnected", &self.disconnected),
            ("registered, but not located by LLDP", &self.unlocated),
            ("agents too old to run jobs as a user", &self.outdated),
            ("drained", &self.drained),
        ];
        for (reason, nodes) in reasons.into_iter().filter(|(_, nodes)| !nodes.is_empty()) {
            write!(f, "; {reason}: {}", nodes.join(", "))?;
        }
        Ok(())
    }
}

/// Why a job cannot be controlled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// The job has ended, or its nodes have not reconnected.
    #[error("no job {short} is running, or its nodes have not reconnected yet", short = job_ids::short(*.0))]
    NoJob(u64),
    /// The short id matches several jobs, started by different runs of the controller.
    #[error("{0} matches several jobs: {list}; give the full number", list = list(.1))]
    Several(u64, Vec<u64>),
    /// The job has ended, and its events are no longer kept.
    #[error("job {short} has ended: {}", end_note(.reason), short = job_ids::short(*.job))]
    Ended {
        /// The job.
        job: u64,
        /// Reason of its end. Empty if it was successful.
        reason: String,
    },
    /// Too many requests are waiting.
    #[error("job {short} has not processed earlier requests yet; try again", short = job_ids::short(*.0))]
    Busy(u64),
    /// The command of the job's caller is not one that nodes could have started.
    #[error(transparent)]
    Command(#[from] CommandLengthError),
    /// The signal number is invalid.
    #[error("no signal {0}; signals are numbered {first} to {last}", first = SIGNALS.start(), last = SIGNALS.end())]
    Signal(i32),
}

fn end_note(reason: &str) -> &str {
    if reason.is_empty() { "it was successful, but its last output was not kept" } else { reason }
}
