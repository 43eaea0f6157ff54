//! How a rank waits in a quick call: first alone, then watched by its agent.

use cool_machine::Duration;

/// A rank asks its agent to watch the call after this time, or after half the timeout of the call
/// if that is shorter.
const WATCH_DELAY: Duration = Duration::from_millis(50);

/// Longest sleep of a rank in a watched call, because a wakeup may be missed.
pub const RECHECK_INTERVAL: Duration = Duration::from_millis(200);

/// When a rank must report that it still waits in a watched call, by the time that it has waited.
/// Datagrams may arrive far more often.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReportTimer {
    reported: Option<Duration>,
}

impl ReportTimer {
    /// Returns whether a report is due, and counts it as sent.
    pub fn take_due(&mut self, waited: Duration) -> bool {
        let is_due = self.until_due(waited).is_zero();
        if is_due {
            self.reported = Some(waited);
        }
        is_due
    }

    /// Returns the time until the next report is due.
    pub fn until_due(&self, waited: Duration) -> Duration {
        self.reported.map_or(Duration::ZERO, |reported| (reported + RECHECK_INTERVAL).saturating_sub(waited))
    }
}

/// Decides how long a rank waits, in a call with this timeout.
#[derive(Clone, Copy, Debug)]
pub struct WaitPolicy(pub Duration);

/// The state of a call that is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitState {
    /// The agent watches the call.
    pub watched: bool,
    /// The agent has answered, which it does only when the rank must stop waiting.
    pub answered: bool,
    /// The group has failed.
    pub failed: bool,
}

/// The next action of a rank with an incomplete call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitAction {
    /// Wait for at most this time, then ask again.
    Wait(Duration),
    /// Ask the agent to watch the call, then ask again.
    Watch,
    /// Wait only for the agent's answer.
    AwaitAnswer,
    /// Report to the agent for which ranks this rank waited until the timeout, and wait for its
    /// answer.
    ReportOverdue,
    /// Hand the call to the agent, which knows why the group has failed.
    HandToAgent,
}

impl WaitPolicy {
    /// Returns the time that the rank waits before the agent watches the call.
    pub fn unwatched(&self) -> Duration {
        WATCH_DELAY.min(self.0 / 2)
    }

    /// Returns the next action of a rank that has waited for `waited`.
    pub fn next_action(&self, waited: Duration, seen: WaitState) -> WaitAction {
        let (unwatched, left) = (self.unwatched(), self.0.saturating_sub(waited));
        match seen {
            WaitState { watched: false, failed: true, .. } => WaitAction::HandToAgent,
            WaitState { watched: false, .. } if waited < unwatched => WaitAction::Wait(unwatched - waited),
            WaitState { watched: false, .. } => WaitAction::Watch,
            WaitState { answered: true, .. } | WaitState { failed: true, .. } => WaitAction::AwaitAnswer,
            _ if left.is_zero() => WaitAction::ReportOverdue,
            _ => WaitAction::Wait(left.min(RECHECK_INTERVAL)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn next(waited: u32, watched: bool, answered: bool, failed: bool) -> WaitAction {
        WaitPolicy(500 * MILLISECOND)
            .next_action(waited * MILLISECOND, WaitState { watched, answered, failed })
    }

    #[test]
    fn a_rank_waits_unwatched_then_watched_and_not_forever() {
        assert_eq!(next(20, false, false, false), WaitAction::Wait(30 * MILLISECOND));
        assert_eq!(next(50, false, false, false), WaitAction::Watch);
        assert_eq!(next(50, true, false, false), WaitAction::Wait(200 * MILLISECOND));
        assert_eq!(next(400, true, false, false), WaitAction::Wait(100 * MILLISECOND));
        assert_eq!(next(500, true, false, false), WaitAction::ReportOverdue);
        assert_eq!(WaitPolicy(60 * MILLISECOND).unwatched(), 30 * MILLISECOND);
    }

    #[test]
    fn a_failed_group_ends_the_wait_at_once() {
        assert_eq!(next(0, false, false, true), WaitAction::HandToAgent);
        assert_eq!(next(60, true, false, true), WaitAction::AwaitAnswer);
        assert_eq!(next(500, true, true, false), WaitAction::AwaitAnswer);
    }

    #[test]
    fn reports_are_due_five_times_a_second_however_often_asked() {
        let mut timer = ReportTimer::default();
        let due: Vec<u32> = (0..1000).filter(|ms| timer.take_due(*ms * MILLISECOND)).collect();
        assert_eq!(due, [0, 200, 400, 600, 800]);
        assert_eq!(timer.until_due(850 * MILLISECOND), 150 * MILLISECOND);
    }
}
