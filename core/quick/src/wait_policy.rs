//! How a rank waits in a call that ranks carry out themselves: alone at first, then with its agent, which looks after the call.

use cool_machine::Duration;

/// A rank that has waited for this long tells its agent; or half of its call's time, if that is less.
const WATCH_DELAY: Duration = Duration::from_millis(50);

/// While the agent watches, the rank looks at least this often for what it has not been woken for.
pub const RECHECK_INTERVAL: Duration = Duration::from_millis(200);

/// How long a rank waits for what, in a call that may take so long.
#[derive(Clone, Copy, Debug)]
pub struct WaitPolicy(pub Duration);

/// What a rank knows of its call beside what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitState {
    /// Its agent watches the call.
    pub watched: bool,
    /// The agent has answered, which it does only when the rank is to wait no more.
    pub answered: bool,
    /// The group has failed.
    pub failed: bool,
}

/// What a rank does that has not got what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitAction {
    /// It waits, for at most so long, and looks again.
    Wait(Duration),
    /// It has its agent watch the call, and looks again.
    Watch,
    /// It waits for nothing but its agent's answer.
    Ended,
    /// It tells its agent for whom it has waited in vain, and waits for the answer.
    Overdue,
    /// It has its agent carry the call out, which knows why the group has failed.
    ByAgent,
}

impl WaitPolicy {
    /// How long it waits without its agent.
    pub fn unwatched(&self) -> Duration {
        WATCH_DELAY.min(self.0 / 2)
    }

    /// What to do once the call has taken so long.
    pub fn next_action(&self, waited: Duration, seen: WaitState) -> WaitAction {
        let (unwatched, left) = (self.unwatched(), self.0.saturating_sub(waited));
        match seen {
            WaitState { watched: false, failed: true, .. } => WaitAction::ByAgent,
            WaitState { watched: false, .. } if waited < unwatched => WaitAction::Wait(unwatched - waited),
            WaitState { watched: false, .. } => WaitAction::Watch,
            WaitState { answered: true, .. } | WaitState { failed: true, .. } => WaitAction::Ended,
            _ if left.is_zero() => WaitAction::Overdue,
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
        assert_eq!(next(500, true, false, false), WaitAction::Overdue);
        assert_eq!(WaitPolicy(60 * MILLISECOND).unwatched(), 30 * MILLISECOND);
    }

    #[test]
    fn a_failed_group_ends_the_wait_at_once() {
        assert_eq!(next(0, false, false, true), WaitAction::ByAgent);
        assert_eq!(next(60, true, false, true), WaitAction::Ended);
        assert_eq!(next(500, true, true, false), WaitAction::Ended);
    }
}
