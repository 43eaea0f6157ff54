//! Calls that the ranks of a node execute themselves in the shared segment of their group
//! ([`cool_shm::segment`]).
//!
//! This module begins and completes calls, with descriptions by which the ranks compare them.
//! [`operations`] implements each operation, and the [session](crate::session) watches over waiting
//! ranks.

mod direct;
mod exchange;
mod node_leader_steps;
mod operations;
#[cfg(test)]
mod seeded_tests;
#[cfg(test)]
mod tests;

use crate::call::{CallBuffers, CheckedCollective};
use crate::{Op, Operation, Type};
use bytemuck::{bytes_of, cast_slice_mut};
use cool_shm::pages::OutOfBounds;
use cool_shm::segment::{Segment, SegmentRing, StartDecision};
use cool_types::{Call, CallDescription, Rank};
use direct::MemoryMark;
use exchange::Exchange;
pub(crate) use node_leader_steps::NodeRanks;
use operations::CombineRule;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Reasons why a rank cannot continue in the segment.
#[derive(Debug)]
pub(crate) enum Interrupted<E> {
    /// The agent must execute the call, because other ranks request it, or must report why the
    /// group failed.
    Fallback,
    /// The call has failed.
    Failed(E),
    /// An offset lies outside the segment.
    OutOfBounds(OutOfBounds),
    /// A publication of this rank of the segment belongs to another call, because a rank has left a
    /// call incomplete.
    OutOfStep(usize),
}

/// The next step of a rank that has begun a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BegunCall {
    /// The ranks execute the call.
    ByRanks,
    /// The agents execute the call, because another rank has started it without waiting in it. No
    /// rank has published data for it.
    ByAgent,
    /// A rank cannot use the segment, so the agents execute this call and all later ones.
    Declined,
}

impl<E> From<OutOfBounds> for Interrupted<E> {
    fn from(e: OutOfBounds) -> Interrupted<E> {
        Interrupted::OutOfBounds(e)
    }
}

/// Strategy for waiting for other ranks during a call.
pub(crate) trait PeerWait {
    /// Error of a failed call.
    type Error;

    /// Waits until `condition` holds, which depends on the progress of rank `on`.
    ///
    /// # Errors
    /// If the condition cannot be fulfilled.
    fn wait(&mut self, on: usize, condition: &dyn Fn() -> bool) -> Result<(), Interrupted<Self::Error>>;

    /// Checks that rank `on` has not begun a different operation under the number of this call.
    ///
    /// # Errors
    /// If it has.
    fn check(&mut self, on: usize) -> Result<(), Interrupted<Self::Error>>;
}

/// A rank's part in the calls of its group's segment.
#[derive(Debug)]
pub(crate) struct SegmentCalls {
    segment: Arc<Segment>,
    rank: usize,
    size: usize,
    /// Number of publications of all calls so far, by ring. It is the same at all ranks.
    published: [u64; 2],
    /// Number of the current call.
    number: u64,
    /// Whether the current call, or the last one, is incomplete: this rank may have published other
    /// data than the other ranks expect, so it must not begin another call in the segment.
    is_incomplete: bool,
    /// Whether all ranks have attached to the segment.
    complete: bool,
    /// Whether all ranks follow the rules of this release ([`RankPart::names_calls`]).
    ///
    /// [`RankPart::names_calls`]: cool_shm::segment::RankPart::names_calls
    names_calls: bool,
    /// Whether all ranks can read each other's memory; `None` until they have tested it.
    direct: Option<bool>,
}

/// Cache of call descriptions, because programs repeat the same few calls.
#[derive(Debug, Default)]
pub(crate) struct DescriptionCache {
    /// The last call without counts.
    last: Option<DescribedCall>,
}

impl DescriptionCache {
    /// Returns the description of a call.
    pub(crate) fn describe(&mut self, checked: &CheckedCollective<'_, '_>) -> DescribedCall {
        match &self.last {
            Some(last) if last.describes(checked) => last.clone(),
            _ => {
                let described = DescribedCall::new(checked);
                self.last = Some(described.clone()).filter(|_| checked.counts.is_none());
                described
            }
        }
    }
}

/// The description of a call, which other ranks compare with theirs.
#[derive(Clone, Debug)]
pub(crate) struct DescribedCall {
    pub(crate) dtype: Option<Type>,
    pub(crate) op: Option<Op>,
    pub(crate) call: Call,
    pub(crate) digest: u64,
    pub(crate) text: String,
}

impl DescribedCall {
    fn new(checked: &CheckedCollective<'_, '_>) -> DescribedCall {
        let element = checked.dtype.map_or(1, |dtype| dtype.bytes() as u64);
        let root = if checked.operation.rooted() { checked.root } else { 0 };
        let bytes = checked.count as u64 * element;
        let mut call = Call::new(checked.operation, Rank(root), bytes, element as u32);
        if let Some(counts) = checked.counts {
            call = call.with_counts(counts.iter().map(|n| *n as u64 * element).collect::<Vec<u64>>());
        }
        let op = checked.op.filter(|_| checked.operation.combines());
        let dtype = checked.dtype.filter(|_| checked.operation != Operation::Barrier);
        let words = CallDescription { call: &call, element: dtype, reduce: op };
        let (digest, text) = (words.digest(format_args!("")), words.to_string());
        DescribedCall { dtype, op, call, digest, text }
    }

    /// Returns whether this is the description of a call. Returns `false` if one of both has
    /// counts.
    fn describes(&self, checked: &CheckedCollective<'_, '_>) -> bool {
        let Call { operation, root, bytes, element, counts } = &self.call;
        let same_kind = *operation == checked.operation && counts.is_none() && checked.counts.is_none();
        let same_root = !operation.rooted() || root.0 == checked.root;
        let same_elements =
            self.dtype == checked.dtype && *bytes == checked.count as u64 * u64::from(*element);
        let same_op = self.op == checked.op.filter(|_| operation.combines());
        same_kind && same_root && same_elements && same_op
    }
}

impl SegmentCalls {
    /// Attaches to the segment as `rank` of `size`.
    pub(crate) fn new(segment: Arc<Segment>, rank: usize, size: usize) -> SegmentCalls {
        segment.rank(rank).attach();
        SegmentCalls {
            segment,
            rank,
            size,
            published: [0; 2],
            number: 0,
            is_incomplete: false,
            complete: false,
            names_calls: false,
            direct: None,
        }
    }

    /// Begins the call `number`. Returns who executes it; this is unknown until all ranks have
    /// attached, so the first call waits for that.
    ///
    /// # Errors
    /// If not all ranks attach, or this rank has left a call incomplete.
    pub(crate) fn enter<W: PeerWait>(
        &mut self,
        number: u64,
        call: &DescribedCall,
        waits: &mut W,
    ) -> Result<BegunCall, Interrupted<W::Error>> {
        self.wait_for_all(waits)?;
        let segment = &self.segment;
        if segment.is_declined() {
            return Ok(BegunCall::Declined);
        }
        if self.is_incomplete {
            return Err(Interrupted::OutOfStep(self.rank));
        }
        segment.rank(self.rank).enter(number, call.digest, &call.text)?;
        self.number = number;
        if !self.names_calls {
            return Ok(BegunCall::ByRanks);
        }
        if segment.started_by(number) == Some(StartDecision::Undecided) {
            waits.wait(self.rank, &|| segment.started_by(number) != Some(StartDecision::Undecided))?;
        }
        match segment.started_by(number) {
            Some(StartDecision::Agent) => Ok(BegunCall::ByAgent),
            _ => Ok(BegunCall::ByRanks),
        }
    }

    /// Waits until all ranks have attached, or a rank has declined the segment.
    fn wait_for_all<W: PeerWait>(&mut self, waits: &mut W) -> Result<(), Interrupted<W::Error>> {
        if self.complete {
            return Ok(());
        }
        let segment = &self.segment;
        for rank in 0..self.size {
            let part = segment.rank(rank);
            waits.wait(rank, &|| part.is_attached() || segment.is_declined())?;
        }
        self.complete = true;
        self.names_calls = (0..self.size).all(|rank| segment.rank(rank).names_calls());
        Ok(())
    }

    /// Executes a call that was begun.
    ///
    /// # Errors
    /// If other ranks do not join the call, or called a different operation.
    pub(crate) fn execute<W: PeerWait>(
        &mut self,
        number: u64,
        DescribedCall { dtype, op, call, .. }: &DescribedCall,
        buffers: &mut CallBuffers<'_>,
        waits: &mut W,
    ) -> Result<(), Interrupted<W::Error>> {
        self.begin(number);
        self.step(call, dtype.zip(*op), buffers, waits)?;
        self.complete(number);
        Ok(())
    }

    /// Returns whether the segment must be declined because an agent executes the current call:
    /// otherwise, publications that ranks have made for this call could be expected in the next
    /// one.
    pub(crate) fn must_decline(&self) -> bool {
        self.is_incomplete || !self.names_calls
    }

    /// Must precede the first step of a call.
    fn begin(&mut self, number: u64) {
        (self.number, self.is_incomplete) = (number, true);
    }

    /// Executes one operation, which is a whole call or a step of it.
    fn step<W: PeerWait>(
        &mut self,
        call: &Call,
        combining: Option<CombineRule>,
        buffers: &mut CallBuffers<'_>,
        waits: &mut W,
    ) -> Result<(), Interrupted<W::Error>> {
        let direct = operations::pulls(call) && self.can_read_each_other(waits)?;
        let used =
            operations::execute_operation(&mut self.exchange(waits), call, combining, direct, buffers)?;
        self.advance(used);
        Ok(())
    }

    /// Returns whether all ranks can read each other's memory.
    fn can_read_each_other<W: PeerWait>(&mut self, waits: &mut W) -> Result<bool, Interrupted<W::Error>> {
        if let Some(known) = self.direct {
            return Ok(known);
        }
        let all = self.names_calls && {
            // The value must stay in place until all ranks have reported their result.
            let content = RandomState::new().hash_one(self.rank);
            let can = self.can_read_all(&content, waits)?;
            self.all_agree(can, waits)?
        };
        self.direct = Some(all);
        Ok(all)
    }

    /// Returns whether this rank can read the memory of all others. Meanwhile the others try to
    /// read `content` in the memory of this rank.
    fn can_read_all<W: PeerWait>(
        &mut self,
        content: &u64,
        waits: &mut W,
    ) -> Result<bool, Interrupted<W::Error>> {
        let own = direct::mark(content);
        let mut marks = vec![MemoryMark::default(); self.size];
        let allgather = Call::new(Operation::Allgather, Rank(0), size_of::<MemoryMark>() as u64, 1);
        let buffers = &mut CallBuffers::new(bytes_of(&own), cast_slice_mut(&mut marks));
        self.step(&allgather, None, buffers, waits)?;
        Ok(marks.into_iter().all(direct::finds))
    }

    /// Returns whether all ranks pass `true`.
    fn all_agree<W: PeerWait>(&mut self, yes: bool, waits: &mut W) -> Result<bool, Interrupted<W::Error>> {
        let (own, mut least) = ([u8::from(yes)], [0]);
        let allreduce = Call::new(Operation::Allreduce, Rank(0), 1, 1);
        self.step(&allreduce, Some((Type::U8, Op::Min)), &mut CallBuffers::new(&own, &mut least), waits)?;
        Ok(least == [1])
    }

    /// Distributes bytes of rank `from` to the ranks that receive them, as a step of a call.
    /// `takes` states whether this rank is one of them.
    fn spread<W: PeerWait>(
        &mut self,
        (from, takes): (usize, bool),
        bytes: u64,
        buffers: &mut CallBuffers<'_>,
        waits: &mut W,
    ) -> Result<(), Interrupted<W::Error>> {
        let used = operations::spread(&mut self.exchange(waits), (from, takes), bytes, buffers)?;
        self.advance([used, 0]);
        Ok(())
    }

    fn exchange<'a, W: PeerWait>(&'a self, waits: &'a mut W) -> Exchange<'a, W> {
        Exchange {
            segment: &self.segment,
            rank: self.rank,
            size: self.size,
            call: self.number,
            names_calls: self.names_calls,
            bases: self.published,
            waits,
        }
    }

    /// Advances the numbering by the publications that a step used.
    fn advance(&mut self, used: [u64; 2]) {
        for ring in [SegmentRing::Inputs, SegmentRing::Results] {
            self.published[ring as usize] += used[ring as usize];
            // Publications that this rank did not read must be released, too.
            self.segment.rank(self.rank).release(ring, self.published[ring as usize]);
        }
    }

    /// Records that this rank has completed a call.
    fn complete(&mut self, number: u64) {
        self.is_incomplete = false;
        self.segment.rank(self.rank).complete(number + 1);
    }
}
