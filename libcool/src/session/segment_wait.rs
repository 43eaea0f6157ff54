//! How a rank waits for other ranks in a segment.
//!
//! It first polls, then sleeps on the bell of the other rank. If the wait takes long, the agent
//! watches the call and reports lost and mismatching ranks, so that no rank waits forever.

use super::spin_policy::SpinPolicy;
use super::watched_call::WatchedCall;
use crate::error::Error;
use crate::segment::{Interrupted, PeerWait};
use cool_quick::RECHECK_INTERVAL;
use cool_shm::segment::Segment;
use std::time::{Duration, Instant};

/// The wait of a rank in a call, or in a step of one.
pub(super) struct SegmentWait<'a> {
    pub(super) watch: WatchedCall<'a>,
    pub(super) segment: &'a Segment,
    /// Group ranks of the parts of the segment.
    pub(super) ranks: &'a [u32],
    pub(super) spins: SpinPolicy,
}

impl PeerWait for SegmentWait<'_> {
    type Error = Error;

    fn wait(&mut self, on: usize, condition: &dyn Fn() -> bool) -> Result<(), Interrupted<Error>> {
        if self.spins.poll(condition) {
            return self.check(on);
        }
        let begun = Instant::now();
        let patience = self.watch.patience();
        loop {
            self.sleep(on, condition, patience.saturating_sub(begun.elapsed()));
            if condition() {
                return self.check(on);
            }
            if self.segment.has_failed() {
                return Err(Interrupted::Fallback);
            }
            if begun.elapsed() >= patience || self.differs(on).is_some() {
                return self.watch(on, condition, begun + self.watch.timeout);
            }
        }
    }

    fn check(&mut self, on: usize) -> Result<(), Interrupted<Error>> {
        match self.differs(on) {
            None => Ok(()),
            Some(rank) => {
                let id = self.watch.open()?;
                self.report_difference(id, rank)
            }
        }
    }
}

impl SegmentWait<'_> {
    fn sleep(&self, on: usize, condition: &dyn Fn() -> bool, timeout: Duration) {
        self.segment.rank(on).sleep(|| condition() || self.segment.has_failed(), timeout);
    }

    /// Returns the rank if it called a different operation under the number of this call.
    fn differs(&self, rank: usize) -> Option<usize> {
        let digest = self.segment.rank(rank).digest(self.watch.number);
        digest.is_some_and(|digest| digest != self.watch.call.digest).then_some(rank)
    }

    fn report_difference(&self, id: u64, rank: usize) -> Result<(), Interrupted<Error>> {
        let text = self.segment.rank(rank).text(self.watch.number)?;
        self.watch.differs(id, self.ranks[rank], text)
    }

    /// Continues to wait while the agent watches the call.
    fn watch(
        &self,
        on: usize,
        condition: &dyn Fn() -> bool,
        until: Instant,
    ) -> Result<(), Interrupted<Error>> {
        let watch = &self.watch;
        let id = watch.open()?;
        loop {
            if watch.has_reply(id) || self.segment.has_failed() {
                return watch.ended(id);
            }
            if let Some(rank) = self.differs(on) {
                return self.report_difference(id, rank);
            }
            if condition() {
                return watch.completed(id);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let parts = self.ranks.iter().zip(self.segment.ranks());
                let missing = parts.filter(|(_, part)| part.entered_calls() <= watch.number);
                return watch.overdue(id, missing.map(|(rank, _)| *rank).collect());
            }
            let answered = || condition() || watch.has_reply(id);
            self.sleep(on, &answered, left.min(RECHECK_INTERVAL));
            watch.still_waits(id)?;
        }
    }
}
