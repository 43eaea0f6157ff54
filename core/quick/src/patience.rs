//! How a rank waits in a call that ranks carry out themselves: alone at first, then with its agent, which looks after the call.

use cool_machine::Duration;

/// A rank that has waited for this long tells its agent; or half of its call's time, if that is less.
const WATCH_AFTER: Duration = Duration::from_millis(50);

/// While the agent watches, the rank looks at least this often for what it has not been woken for.
pub const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// How long a rank waits for what, in a call that may take so long.
#[derive(Clone, Copy, Debug)]
pub struct Patience(pub Duration);

/// What a rank knows of its call beside what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its agent watches the call.
    pub watched: bool,
    /// The agent has answered, which it does only when the rank is to wait no more.
    pub answered: bool,
    /// The group has failed.
    pub failed: bool,
}

/// What a rank does that has not got what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
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

impl Patience {
    /// How long it waits without its agent.
    pub fn alone(&self) -> Duration {
        WATCH_AFTER.min(self.0 / 2)
    }

    /// What to do once the call has taken so long.
    pub fn next(&self, waited: Duration, seen: Seen) -> Next {
        let (alone, left) = (self.alone(), self.0.saturating_sub(waited));
        match seen {
            Seen { watched: false, failed: true, .. } => Next::ByAgent,
            Seen { watched: false, .. } if waited < alone => Next::Wait(alone - waited),
            Seen { watched: false, .. } => Next::Watch,
            Seen { answered: true, .. } | Seen { failed: true, .. } => Next::Ended,
            _ if left.is_zero() => Next::Overdue,
            _ => Next::Wait(left.min(LOOK_AGAIN)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn next(waited: u32, watched: bool, answered: bool, failed: bool) -> Next {
        Patience(500 * MILLISECOND).next(waited * MILLISECOND, Seen { watched, answered, failed })
    }

    #[test]
    fn a_rank_waits_alone_then_with_its_agent_and_not_for_ever() {
        assert_eq!(next(20, false, false, false), Next::Wait(30 * MILLISECOND));
        assert_eq!(next(50, false, false, false), Next::Watch);
        assert_eq!(next(50, true, false, false), Next::Wait(200 * MILLISECOND));
        assert_eq!(next(400, true, false, false), Next::Wait(100 * MILLISECOND));
        assert_eq!(next(500, true, false, false), Next::Overdue);
        assert_eq!(Patience(60 * MILLISECOND).alone(), 30 * MILLISECOND);
    }

    #[test]
    fn what_an_agent_has_to_say_is_asked_for_at_once() {
        assert_eq!(next(0, false, false, true), Next::ByAgent);
        assert_eq!(next(60, true, false, true), Next::Ended);
        assert_eq!(next(500, true, true, false), Next::Ended);
    }
}
