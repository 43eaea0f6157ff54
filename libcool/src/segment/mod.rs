//! Calls that the ranks of a node carry out themselves, in the segment that their group shares ([`cool_shm::segment`]): how a
//! call is described to the others and taken part in. What each operation does there is in [`operations`]; who looks after a
//! rank that waits is the [session](crate::session)'s matter.

mod direct;
mod exchange;
mod nodes;
mod operations;
#[cfg(test)]
mod tests;

use crate::call::{CallBuffers, CheckedCollective};
use crate::{Op, Operation, Type};
use bytemuck::{bytes_of, cast_slice_mut};
use cool_shm::pages::OutOfBounds;
use cool_shm::segment::{Segment, SegmentRing};
use cool_types::{Call, CallDescription, Rank};
use direct::MemoryMark;
use exchange::Exchange;
pub(crate) use nodes::NodeRanks;
use operations::Combining;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// What keeps a rank from going on in the segment.
#[derive(Debug)]
pub(crate) enum Interrupted<E> {
    /// The agent is to carry the call out: others have it do so, or it knows why the group has failed.
    Fallback,
    /// The call has failed.
    Failed(E),
    /// A place that the segment does not have.
    OutOfBounds(OutOfBounds),
}

impl<E> From<OutOfBounds> for Interrupted<E> {
    fn from(e: OutOfBounds) -> Interrupted<E> {
        Interrupted::OutOfBounds(e)
    }
}

/// How a rank waits for others, in a call.
pub(crate) trait PeerWait {
    /// Why a call fails.
    type Error;

    /// Waits until something is there that rank `on` does.
    ///
    /// # Errors
    /// If it will not be.
    fn wait(&mut self, on: usize, condition: &dyn Fn() -> bool) -> Result<(), Interrupted<Self::Error>>;
}

/// A rank's part in the calls of its group's segment.
#[derive(Debug)]
pub(crate) struct SegmentCalls {
    segment: Arc<Segment>,
    rank: usize,
    size: usize,
    /// The publications of all calls so far, by ring; the same at all ranks.
    published: [u64; 2],
    /// Whether all ranks have come, and use it.
    complete: bool,
    /// Whether all ranks can read each other's memory, once they have tried.
    direct: Option<bool>,
}

/// How calls are described. Programs repeat the same few.
#[derive(Debug, Default)]
pub(crate) struct DescriptionCache {
    /// The last call without counts.
    last: Option<DescribedCall>,
}

impl DescriptionCache {
    /// Describes a call.
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

/// A call as others compare it.
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

    /// Whether it is the description of a call without counts.
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
    /// Takes part, as `rank` of `size`.
    pub(crate) fn new(segment: Arc<Segment>, rank: usize, size: usize) -> SegmentCalls {
        segment.rank(rank).attach();
        SegmentCalls { segment, rank, size, published: [0; 2], complete: false, direct: None }
    }

    /// Begins a call by its number: whether it is for the ranks to carry out. Until all have come, that is not known.
    ///
    /// # Errors
    /// If not all come.
    pub(crate) fn enter<W: PeerWait>(
        &mut self,
        number: u64,
        call: &DescribedCall,
        waits: &mut W,
    ) -> Result<bool, Interrupted<W::Error>> {
        let segment = &self.segment;
        if !self.complete {
            for rank in 0..self.size {
                let part = segment.rank(rank);
                waits.wait(rank, &|| part.is_attached() || segment.is_declined())?;
            }
            self.complete = true;
        }
        if segment.is_declined() {
            return Ok(false);
        }
        segment.rank(self.rank).enter(number, call.digest, &call.text)?;
        Ok(true)
    }

    /// Carries out a call that was begun.
    ///
    /// # Errors
    /// If others do not come, or have called something else.
    pub(crate) fn execute<W: PeerWait>(
        &mut self,
        number: u64,
        DescribedCall { dtype, op, call, .. }: &DescribedCall,
        buffers: &mut CallBuffers<'_>,
        waits: &mut W,
    ) -> Result<(), Interrupted<W::Error>> {
        self.step(call, dtype.zip(*op), buffers, waits)?;
        self.complete(number);
        Ok(())
    }

    /// Takes part in an operation that is a call that was begun, or a step of it.
    fn step<W: PeerWait>(
        &mut self,
        call: &Call,
        combining: Option<Combining>,
        buffers: &mut CallBuffers<'_>,
        waits: &mut W,
    ) -> Result<(), Interrupted<W::Error>> {
        let direct = operations::pulls(call) && self.can_read_each_other(waits)?;
        let used =
            operations::execute_operation(&mut self.exchange(waits), call, combining, direct, buffers)?;
        self.advance(used);
        Ok(())
    }

    /// Whether all ranks can read each other's memory.
    fn can_read_each_other<W: PeerWait>(&mut self, waits: &mut W) -> Result<bool, Interrupted<W::Error>> {
        if let Some(known) = self.direct {
            return Ok(known);
        }
        let all_know = (0..self.size).all(|rank| self.segment.rank(rank).reads_peer_memory());
        let all = all_know && {
            // Others look for it until all have own.
            let content = RandomState::new().hash_one(self.rank);
            let can = self.can_read_all(&content, waits)?;
            self.all_agree(can, waits)?
        };
        self.direct = Some(all);
        Ok(all)
    }

    /// Whether this rank can read the memory of all others, who look for some content in its own.
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

    /// Whether all ranks say yes.
    fn all_agree<W: PeerWait>(&mut self, yes: bool, waits: &mut W) -> Result<bool, Interrupted<W::Error>> {
        let (own, mut least) = ([u8::from(yes)], [0]);
        let allreduce = Call::new(Operation::Allreduce, Rank(0), 1, 1);
        self.step(&allreduce, Some((Type::U8, Op::Min)), &mut CallBuffers::new(&own, &mut least), waits)?;
        Ok(least == [1])
    }

    /// As a step of a call, a rank gives bytes to those of the others who take them, of which this one may be.
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
        Exchange { segment: &self.segment, rank: self.rank, size: self.size, bases: self.published, waits }
    }

    /// A step has used as many publications of each ring.
    fn advance(&mut self, used: [u64; 2]) {
        for ring in [SegmentRing::Inputs, SegmentRing::Results] {
            self.published[ring as usize] += used[ring as usize];
            // Of what it had no need of, too.
            self.segment.rank(self.rank).release(ring, self.published[ring as usize]);
        }
    }

    /// A call is done here.
    fn complete(&self, number: u64) {
        self.segment.rank(self.rank).complete(number + 1);
    }
}
