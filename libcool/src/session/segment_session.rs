//! Calls that the ranks of one node execute themselves in the segment of their group.

use super::RankSession;
use super::agent_requests::RankAttempt;
use super::begun_call::BegunRankCall;
use super::call_account::{CallAccount, LeaderTraffic};
use super::segment_wait::SegmentWait;
use super::spin_policy::SpinPolicy;
use super::watched_call::WatchedCall;
use crate::call::CheckedCollective;
use crate::error::Error;
use crate::segment::{BegunCall, DescriptionCache, Interrupted, SegmentCalls};
use cool_shm::segment::Segment;
use cool_shm::segment::records::{self, RankPlan};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A group's segment and this rank's part in its calls, of which it executes one at a time.
#[derive(Debug)]
pub(super) struct SegmentSession {
    segment: Arc<Segment>,
    /// All ranks of the group.
    ranks: Vec<u32>,
    spins: SpinPolicy,
    calls: Mutex<(DescriptionCache, SegmentCalls)>,
}

impl SegmentSession {
    pub(super) fn new(segment: Segment, rank: usize, size: usize) -> SegmentSession {
        let segment = Arc::new(segment);
        let calls = SegmentCalls::new(Arc::clone(&segment), rank, size);
        let (ranks, calls) = ((0..size as u32).collect(), Mutex::new((DescriptionCache::default(), calls)));
        SegmentSession { segment, ranks, spins: SpinPolicy::among(size), calls }
    }

    /// Marks the group as failed, so that all ranks query the agent for the reason.
    pub(super) fn fail(&self) {
        self.segment.fail();
    }

    /// Returns the segment and the number of its ranks, if they can execute calls in it.
    pub(super) fn usable(&self) -> Option<(&Segment, usize)> {
        Some((&*self.segment, self.ranks.len())).filter(|(segment, _)| segment.is_usable())
    }
}

impl RankSession {
    /// Executes a call in the segment, if the group has one that all ranks use. The call has the
    /// given number, or the next one.
    pub(super) fn execute_in_segment(
        &self,
        checked: &mut CheckedCollective<'_, '_>,
        timeout: Duration,
        number: Option<u64>,
    ) -> Result<RankAttempt, Error> {
        let usable =
            self.segment_session.as_ref().filter(|segment_session| segment_session.segment.is_usable());
        let Some(SegmentSession { segment, ranks, spins, calls }) = usable else {
            return Ok(RankAttempt::ByAgent(number));
        };
        let begun = records::now();
        let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
        let (descriptions, calls) = &mut *calls;
        let name = checked.name;
        let number = number.unwrap_or_else(|| self.call_sender().next_call_number());
        let begun_call = BegunRankCall::new(self, segment, (name, number));
        let call = descriptions.describe(checked);
        let counts = checked.counts;
        let part = segment.rank(self.rank);
        let watch = WatchedCall { session: self, part, name, number, call: &call, counts, timeout };
        let mut waiting = SegmentWait { watch, segment, ranks, spins: *spins };
        let carried = match calls.enter(number, &call, &mut waiting) {
            Ok(BegunCall::ByRanks) => calls.execute(number, &call, &mut checked.buffers(), &mut waiting),
            Ok(BegunCall::ByAgent | BegunCall::Declined) => Err(Interrupted::Fallback),
            Err(stop) => Err(stop),
        };
        if matches!(carried, Err(Interrupted::Fallback)) && calls.must_decline() {
            segment.decline();
        }
        let account = CallAccount { part, number, call: &call, plan: RankPlan::Segment, begun };
        let carried = account.close(LeaderTraffic::default(), carried);
        begun_call.settle(RankAttempt::from_result(self, (name, number), ranks, carried))
    }
}
