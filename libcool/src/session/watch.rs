//! Calls that the ranks of a node carry out themselves in their group's segment, as the session has them: how a rank waits there
//! for others, and what the agent is told when that takes long. It then looks after the call as after its own: a rank that is gone
//! or has called something else is named, and nobody waits for ever.

use super::account::{CallAccount, Exchanged};
use super::calls::{Course, Numbered};
use super::{Session, milliseconds};
use crate::collective::Checked;
use crate::error::Error;
use crate::segment::{Described, Descriptions, SegmentCalls, Stop, Waits};
use cool_proto::local::watched::{Differs, Overdue, StillWaits, Through, What};
use cool_proto::local::{self, Call, Done, Dtype, ReduceOp, Watched, frame::Body};
use cool_quick::{RECHECK_INTERVAL, WaitPolicy};
use cool_shm::segment::records::{self, RankPlan};
use cool_shm::segment::{RankPart, Segment};
use nix::unistd::{getpid, getsid};
use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What is waited for is looked at this often before the rank sleeps, if there are processors enough for all ranks.
const LOOKS: u32 = 20_000;

/// If not, a rank that looks keeps another one from its work: it looks a few times, and yields the processor before each further look.
const LOOKS_CROWDED: u32 = 20;
const YIELDS: u32 = 200;

/// How a rank looks for what others do before it sleeps: to be woken takes longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looks {
    looks: u32,
    yields: u32,
}

impl Looks {
    /// That of a rank of as many in a segment.
    pub(super) fn among(ranks: usize) -> Looks {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        if ranks <= processors {
            return Looks { looks: LOOKS, yields: 0 };
        }
        // Ranks that were not started as one job may be sessions of their own, among which Linux shares the processors (autogroups):
        // who yields then yields to nobody, and looks on for its time slice. In a container the leader of the session may be a process
        // outside: it then has the number 0 here, which rustix's `getsid` has no place for.
        let apart = getsid(None) == Ok(getpid());
        Looks { looks: LOOKS_CROWDED, yields: if apart { 0 } else { YIELDS } }
    }

    /// Whether what is looked for is there before it is time to sleep.
    fn find(self, is_there: &dyn Fn() -> bool) -> bool {
        let look = |_| {
            std::hint::spin_loop();
            is_there()
        };
        let look_and_yield = |_| {
            std::thread::yield_now();
            is_there()
        };
        is_there() || (0..self.looks).any(look) || (0..self.yields).any(look_and_yield)
    }
}

/// A group's segment, and this rank's part in its calls: one at a time.
#[derive(Debug)]
pub(super) struct Segmented {
    segment: Arc<Segment>,
    /// All ranks of the group.
    ranks: Vec<u32>,
    looks: Looks,
    calls: Mutex<(Descriptions, SegmentCalls)>,
}

impl Segmented {
    pub(super) fn new(segment: Segment, rank: usize, size: usize) -> Segmented {
        let segment = Arc::new(segment);
        let calls = SegmentCalls::new(Arc::clone(&segment), rank, size);
        let (ranks, calls) = ((0..size as u32).collect(), Mutex::new((Descriptions::default(), calls)));
        Segmented { segment, ranks, looks: Looks::among(size), calls }
    }

    /// All ranks are to ask the agent, which knows why.
    pub(super) fn fail(&self) {
        self.segment.fail();
    }
}

impl Session {
    /// Carries a call out in the segment, if the group has one that all ranks use.
    pub(super) fn carry_out(
        &self,
        checked: &mut Checked<'_, '_>,
        timeout: Duration,
    ) -> Result<Course, Error> {
        let usable = self.segmented.as_ref().filter(|segmented| segmented.segment.is_usable());
        let Some(Segmented { segment, ranks, looks, calls }) = usable else {
            return Ok(Course::ByAgent(None));
        };
        let begun = records::now();
        let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
        let (descriptions, calls) = &mut *calls;
        let name = checked.name;
        let number = self.wire().next_number();
        let call = descriptions.describe(checked);
        let counts = checked.counts;
        let part = segment.rank(self.rank);
        let watch = Watch { session: self, part, name, number, call: &call, counts, timeout };
        let mut waiting = Waiting { watch, segment, ranks, looks: *looks };
        let carried = match calls.enter(number, &call, &mut waiting) {
            Ok(true) => calls.carry_out(number, &call, &mut checked.buffers(), &mut waiting),
            Ok(false) => Err(Stop::ByAgent),
            Err(stop) => Err(stop),
        };
        if let Err(Stop::ByAgent) = carried {
            // What some have published of this call would be taken for the next one's.
            segment.decline();
        }
        let account = CallAccount { part, number, call: &call, plan: RankPlan::Segment, begun };
        Course::of(self, (name, number), account.close(Exchanged::default(), carried))
    }
}

/// A rank in a call, or a step of one, in the segment.
pub(super) struct Waiting<'a> {
    pub(super) watch: Watch<'a>,
    pub(super) segment: &'a Segment,
    /// Those who have parts in it, as the group numbers them.
    pub(super) ranks: &'a [u32],
    pub(super) looks: Looks,
}

impl Waits for Waiting<'_> {
    type Error = Error;

    fn wait(&mut self, on: usize, is_there: &dyn Fn() -> bool) -> Result<(), Stop<Error>> {
        if self.looks.find(is_there) {
            return self.check(on);
        }
        let begun = Instant::now();
        let patience = self.watch.patience();
        loop {
            self.sleep(on, is_there, patience.saturating_sub(begun.elapsed()));
            if is_there() {
                return self.check(on);
            }
            if self.segment.has_failed() {
                return Err(Stop::ByAgent);
            }
            if begun.elapsed() >= patience || self.differs(on).is_some() {
                return self.watch(on, is_there, begun + self.watch.timeout);
            }
        }
    }
}

impl Waiting<'_> {
    fn sleep(&self, on: usize, is_there: &dyn Fn() -> bool, timeout: Duration) {
        self.segment.rank(on).sleep(|| is_there() || self.segment.has_failed(), timeout);
    }

    /// Whether another rank has called something else under the number of this call.
    fn differs(&self, rank: usize) -> Option<usize> {
        let digest = self.segment.rank(rank).digest(self.watch.number);
        digest.is_some_and(|digest| digest != self.watch.call.digest).then_some(rank)
    }

    /// What a rank has done is of this call, unless it has called something else.
    fn check(&self, on: usize) -> Result<(), Stop<Error>> {
        match self.differs(on) {
            None => Ok(()),
            Some(rank) => {
                let id = self.watch.open()?;
                self.tell_differing(id, rank)
            }
        }
    }

    fn tell_differing(&self, id: u64, rank: usize) -> Result<(), Stop<Error>> {
        let text = self.segment.rank(rank).text(self.watch.number)?;
        self.watch.differs(id, self.ranks[rank], text)
    }

    /// Waits on while the agent watches.
    fn watch(&self, on: usize, is_there: &dyn Fn() -> bool, until: Instant) -> Result<(), Stop<Error>> {
        let watch = &self.watch;
        let id = watch.open()?;
        loop {
            if watch.is_answered(id) || self.segment.has_failed() {
                return watch.ended(id);
            }
            if let Some(rank) = self.differs(on) {
                return self.tell_differing(id, rank);
            }
            if is_there() {
                return watch.through(id);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let parts = self.ranks.iter().zip(self.segment.ranks());
                let missing = parts.filter(|(_, part)| part.entered() <= watch.number);
                return watch.overdue(id, missing.map(|(rank, _)| *rank).collect());
            }
            let answered = || is_there() || watch.is_answered(id);
            self.sleep(on, &answered, left.min(RECHECK_INTERVAL));
            watch.still_waits(id)?;
        }
    }
}

/// A call that a rank carries out with others, as its agent is told of it when that takes long.
#[derive(Clone, Copy)]
pub(super) struct Watch<'a> {
    pub(super) session: &'a Session,
    /// The rank's own part of the segment, in which the agent answers.
    pub(super) part: RankPart<'a>,
    pub(super) name: &'static str,
    pub(super) number: u64,
    pub(super) call: &'a Described,
    pub(super) counts: Option<&'a [usize]>,
    pub(super) timeout: Duration,
}

impl Watch<'_> {
    /// How long the rank waits without the agent.
    pub(super) fn patience(&self) -> Duration {
        WaitPolicy(self.timeout).unwatched()
    }

    /// Whether the agent has answered.
    pub(super) fn is_answered(&self, id: u64) -> bool {
        self.part.answered() == id + 1
    }

    /// What is waited for is there.
    pub(super) fn through(&self, id: u64) -> Result<(), Stop<Error>> {
        self.tell(id, What::Through(Through {}))?;
        match self.answer(id)? {
            Done { failure: None, by_agent: false, .. } => Ok(()),
            done => self.stop(done),
        }
    }

    /// The rank has waited for as long as it may, for these ranks.
    pub(super) fn overdue(&self, id: u64, ranks: Vec<u32>) -> Result<(), Stop<Error>> {
        let timeout_ms = milliseconds(self.timeout);
        self.tell(id, What::Overdue(Overdue { ranks, timeout_ms }))?;
        self.ended(id)
    }

    /// Another rank has called something else.
    pub(super) fn differs(&self, id: u64, rank: u32, text: String) -> Result<(), Stop<Error>> {
        self.tell(id, What::Differs(Differs { rank, text }))?;
        self.ended(id)
    }

    /// The rank waits still, if the agent is there, as far as its connection says.
    pub(super) fn still_waits(&self, id: u64) -> Result<(), Stop<Error>> {
        self.tell(id, What::StillWaits(StillWaits {}))?;
        match self.session.inbox.glance() {
            Some(why) => Err(Stop::Failed(self.session.disconnected(self.name, why))),
            None => Ok(()),
        }
    }

    /// Has the agent watch the call; by which number it does.
    pub(super) fn open(&self) -> Result<u64, Stop<Error>> {
        let (session, call) = (self.session, &self.call.call);
        let element = u64::from(call.element.max(1));
        let counts = self.counts.map(|counts| session.share_counts(self.name, counts)).transpose();
        let counts = counts.map_err(Stop::Failed)?;
        let watch = Call {
            group: session.group,
            operation: local::Operation::from(call.operation).into(),
            root: call.root.0,
            dtype: self.call.dtype.map_or(Dtype::Unspecified, Dtype::from).into(),
            reduce: self.call.op.map_or(ReduceOp::Unspecified, ReduceOp::from).into(),
            count: if self.counts.is_some() { 0 } else { call.bytes / element },
            counts: counts.as_ref().map(|(_, slice)| *slice),
            timeout_ms: milliseconds(self.timeout),
            watch: true,
            ..Call::default()
        };
        let number = Numbered::Call(Some(self.number));
        let id = session
            .send_call(self.name, number, |id, number| Body::Call(Call { id, number, ..watch }))
            .map_err(Stop::Failed)?;
        if let Some((block, _)) = counts {
            session.inbox.keep(id, block);
        }
        Ok(id)
    }

    fn tell(&self, id: u64, what: What) -> Result<(), Stop<Error>> {
        let (session, watched) = (self.session, Body::Watched(Watched { id, what: Some(what) }));
        session.send(&mut session.wire(), self.name, watched, None).map_err(Stop::Failed)
    }

    fn answer(&self, id: u64) -> Result<Done, Stop<Error>> {
        self.session.inbox.wait(id).map_err(|why| Stop::Failed(self.session.disconnected(self.name, why)))
    }

    /// The agent has something to say about the call that is not that it went well.
    pub(super) fn ended(&self, id: u64) -> Result<(), Stop<Error>> {
        let done = self.answer(id)?;
        self.stop(done)
    }

    fn stop(&self, done: Done) -> Result<(), Stop<Error>> {
        match done.failure {
            Some(failure) => Err(Stop::Failed(self.session.failed(self.name, failure))),
            None => Err(Stop::ByAgent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_rank_looks_as_often_as_it_may_and_no_longer_than_it_has_to() {
        let looks = Looks { looks: 3, yields: 4 };
        for (comes_after, found, looked) in [(0, true, 1), (2, true, 3), (7, true, 8), (8, false, 8)] {
            let count = Cell::new(0);
            let is_there = || count.replace(count.get() + 1) >= comes_after;
            assert_eq!(
                (looks.find(&is_there), count.get()),
                (found, looked),
                "there after {comes_after} looks"
            );
        }
    }

    #[test]
    fn ranks_with_a_processor_each_yield_it_to_nobody() {
        assert_eq!(Looks::among(1).yields, 0);
        assert!(Looks::among(1).looks > Looks::among(usize::MAX).looks);
    }
}
