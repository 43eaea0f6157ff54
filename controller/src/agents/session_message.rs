//! Messages from agents' sessions to jobs and groups.

use cool_proto::control::{Exited, Output};

/// A message from a session to a job.
#[derive(Debug)]
pub struct SessionMessage {
    /// The session's number.
    pub from: u32,
    /// The event that it reports.
    pub event: SessionEvent,
}

/// An event that a session reports.
#[derive(Debug)]
pub enum SessionEvent {
    /// The agent is ready for the group in this epoch.
    Ready(u32),
    /// The agent could not form the group, or its group has failed.
    GroupFailed(String),
    /// A rank has printed a line of output.
    Output(Output),
    /// A rank has exited.
    Exited(Exited),
    /// The node is lost, for this reason.
    NodeLost(String),
    /// No rank of the node uses the group any more.
    Unused,
}
