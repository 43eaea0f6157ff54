//! How long the controller waits for agents, ranks and callers.

use std::time::Duration;

/// The timeouts of jobs, groups and agents. The time limit of a job is not among them, because the
/// caller of the job sets it.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Time within which all agents must be ready for a group.
    pub group_ready: Duration,
    /// Time within which ranks must exit after they were terminated.
    pub end: Duration,
    /// Additional time for this if the caller of the job does not read the output of its ranks. It
    /// must exceed the 30 s for which agents hold the output of ranks that have ended.
    pub unread: Duration,
    /// Time within which a disconnected caller of a job must reconnect.
    pub caller: Duration,
    /// Time within which a disconnected agent must reconnect. Otherwise its node is lost, with its
    /// groups and jobs. The same time applies after a restart of the controller, because agents may
    /// be disconnected for the same reason for which the controller failed.
    pub agent: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        let seconds = Duration::from_secs;
        Timeouts {
            group_ready: seconds(15),
            end: seconds(10),
            unread: seconds(40),
            caller: seconds(60),
            agent: seconds(60),
        }
    }
}
