//! How long the controller waits for agents, ranks and callers.

use std::time::Duration;

/// Time limits of jobs, groups and agents.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimits {
    /// For all agents to be ready for a group.
    pub group_ready: Duration,
    /// For ranks to exit after they were terminated.
    pub end: Duration,
    /// For a disconnected caller of a job to reconnect.
    pub caller: Duration,
    /// For nodes to reconnect after a restart of the controller.
    pub takeover: Duration,
    /// For a disconnected agent to reconnect before its node is lost.
    pub agent: Duration,
}

impl Default for TimeLimits {
    fn default() -> TimeLimits {
        let seconds = Duration::from_secs;
        TimeLimits {
            group_ready: seconds(15),
            end: seconds(10),
            caller: seconds(60),
            takeover: seconds(30),
            agent: seconds(60),
        }
    }
}
