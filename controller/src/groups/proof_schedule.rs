//! When the trees of a group in use are proven again: after a node has received nothing from one,
//! and while some are withdrawn.

use cool_machine::{Duration, Time, earliest};

/// The pause between two proofs of a group, within which hosts report a membership (RFC 2236,
/// 8.10). It doubles with each proof that fails.
const FIRST_PAUSE: Duration = Duration::from_secs(10);

/// Most doublings of the pause: it grows to 160 s, less than the time for which failed paths are
/// remembered, so that `cool doctor` names them as long as proofs fail.
const DOUBLINGS_MAX: u32 = 4;

/// The schedule of the proofs of one group.
#[derive(Debug, Default)]
pub(super) struct ProofSchedule {
    /// Number of proofs that failed since all trees last worked for a long time, up to the maximum
    /// number of doublings.
    failures: u32,
    /// When the latest proof ended, and whether it withdrew a tree.
    ended: Option<(Time, bool)>,
    due: Option<Time>,
}

impl ProofSchedule {
    /// Returns when the next proof is due.
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Records that a proof has begun.
    pub(super) fn begin(&mut self) {
        self.due = None;
    }

    /// Records that a proof has ended, and whether trees are withdrawn now. A tree that works only
    /// for a short time is not tried more often than one that never works (compare route flap
    /// damping, RFC 2439).
    pub(super) fn end(&mut self, now: Time, failed: bool) {
        let longest = FIRST_PAUSE * (1 << DOUBLINGS_MAX);
        if self.ended.is_some_and(|(ended, failed)| !failed && ended + longest <= now) {
            self.failures = 0;
        }
        self.ended = Some((now, failed));
        if failed {
            self.due = Some(now + FIRST_PAUSE * (1 << self.failures));
            self.failures = (self.failures + 1).min(DOUBLINGS_MAX);
        }
    }

    /// Records that a node receives nothing from a tree.
    pub(super) fn on_silence(&mut self, now: Time) {
        let not_before = self.ended.map_or(now, |(ended, _)| now.max(ended + FIRST_PAUSE));
        self.due = earliest(self.due, Some(not_before));
    }

    /// Records that the network has changed. Withdrawn trees are proven again at once.
    pub(super) fn on_change(&mut self, now: Time) {
        if self.ended.is_some_and(|(_, failed)| failed) {
            (self.failures, self.due) = (0, Some(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    /// Runs a proof at a time.
    fn prove(schedule: &mut ProofSchedule, second: u64, failed: bool) -> Option<Time> {
        schedule.begin();
        schedule.end(at(second), failed);
        schedule.due()
    }

    #[test]
    fn withdrawn_trees_are_tried_with_growing_pauses() {
        let mut schedule = ProofSchedule::default();
        let tried: Vec<_> = (0..6).map(|_| prove(&mut schedule, 0, true)).collect();
        assert_eq!(tried, [10, 20, 40, 80, 160, 160].map(|second| Some(at(second))));
        assert_eq!(prove(&mut schedule, 1, false), None);
        assert_eq!(prove(&mut schedule, 50, true), Some(at(210)), "the trees worked for a short time");
        assert_eq!(prove(&mut schedule, 210, false), None);
        assert_eq!(prove(&mut schedule, 370, true), Some(at(380)));
    }

    #[test]
    fn a_silent_tree_is_proven_soon_but_not_again_and_again() {
        let mut schedule = ProofSchedule::default();
        schedule.on_silence(at(5));
        assert_eq!(schedule.due(), Some(at(5)));
        assert_eq!(prove(&mut schedule, 7, false), None);
        (8..20).for_each(|second| schedule.on_silence(at(second)));
        assert_eq!(schedule.due(), Some(at(17)));
    }

    #[test]
    fn a_changed_network_is_tried_at_once() {
        let mut schedule = ProofSchedule::default();
        schedule.on_change(at(1));
        assert_eq!(schedule.due(), None, "no tree is withdrawn");
        for _ in 0..5 {
            prove(&mut schedule, 2, true);
        }
        schedule.on_change(at(3));
        assert_eq!(schedule.due(), Some(at(3)));
        assert_eq!(prove(&mut schedule, 4, true), Some(at(14)));
    }
}
