//! Exchange of publications between the ranks of a segment.
//!
//! Each rank publishes as far ahead as its ring has room, and reads the publications of other ranks
//! in order.

use super::{Interrupted, PeerWait};
use cool_shm::pages::OutOfBounds;
use cool_shm::segment::{RankPart, SLOTS, Segment, SegmentRing};
use std::ops::Range;

/// One rank's side of a call. Publications are numbered from the first one of the call.
pub(super) struct Exchange<'a, W> {
    pub(super) segment: &'a Segment,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Number of the call.
    pub(super) call: u64,
    /// Whether all ranks record the call of each publication.
    pub(super) names_calls: bool,
    /// Number of publications of all previous calls, by ring.
    pub(super) bases: [u64; 2],
    pub(super) waits: &'a mut W,
}

/// The publications that the ranks exchange in a call.
pub(super) struct PublicationFlow<'p> {
    /// Number of publications of each rank.
    pub(super) chunks: u64,
    /// Whether this rank publishes.
    pub(super) publishes: bool,
    /// Ranks of which this rank reads the publications; empty if none.
    pub(super) sources: Range<usize>,
    /// Whether a publication of another rank contains data for this rank. The first publication of
    /// every source is awaited in any case, so that no rank completes before all sources have
    /// begun.
    pub(super) has: &'p dyn Fn(usize, u64) -> bool,
}

impl<'a, W: PeerWait> Exchange<'a, W> {
    pub(super) fn part(&self, rank: usize) -> RankPart<'a> {
        self.segment.rank(rank)
    }

    pub(super) fn others(&self, ranks: Range<usize>) -> impl Iterator<Item = usize> + use<W> {
        let me = self.rank;
        ranks.filter(move |rank| *rank != me)
    }

    /// Returns the exchange that follows `publications` inputs of the same call.
    pub(super) fn after(&mut self, publications: u64) -> Exchange<'_, W> {
        let Exchange { segment, rank, size, call, names_calls, bases: [inputs, results], .. } = *self;
        let bases = [inputs + publications, results];
        Exchange { segment, rank, size, call, names_calls, bases, waits: &mut *self.waits }
    }

    /// Returns the number of a publication in its ring.
    pub(super) fn number(&self, ring: SegmentRing, publication: u64) -> u64 {
        self.bases[ring as usize] + publication
    }

    /// Writes bytes at an offset of a publication of this rank's input.
    pub(super) fn write(&self, publication: u64, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let number = self.number(SegmentRing::Inputs, publication);
        self.part(self.rank).write((SegmentRing::Inputs, number), offset, bytes)
    }

    /// Reads bytes at an offset of a publication of another rank's input.
    pub(super) fn read(
        &self,
        from: usize,
        publication: u64,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), OutOfBounds> {
        let number = self.number(SegmentRing::Inputs, publication);
        self.part(from).read((SegmentRing::Inputs, number), offset, bytes)
    }

    /// Returns a rank that has not released the slot of a publication, if there is one.
    pub(super) fn occupies(&self, ring: SegmentRing, publication: u64) -> Option<usize> {
        let needed = self.number(ring, publication + 1).saturating_sub(SLOTS);
        self.others(0..self.size).find(|rank| self.part(*rank).released(ring) < needed)
    }

    /// Returns the first of the sources that has not published a publication, if there is one.
    pub(super) fn first_missing(
        &self,
        ring: SegmentRing,
        publication: u64,
        sources: Range<usize>,
    ) -> Option<usize> {
        let number = self.number(ring, publication);
        self.others(sources).find(|rank| self.part(*rank).published(ring) <= number)
    }

    pub(super) fn wait_for_room(
        &mut self,
        ring: SegmentRing,
        publication: u64,
        on: usize,
    ) -> Result<(), Interrupted<W::Error>> {
        let (part, needed) = (self.part(on), self.number(ring, publication + 1).saturating_sub(SLOTS));
        self.waits.wait(on, &|| part.released(ring) >= needed)
    }

    /// Waits until the slot of a publication is free.
    pub(super) fn make_room(
        &mut self,
        ring: SegmentRing,
        publication: u64,
    ) -> Result<(), Interrupted<W::Error>> {
        while let Some(on) = self.occupies(ring, publication) {
            self.wait_for_room(ring, publication, on)?;
        }
        Ok(())
    }

    pub(super) fn wait_for(
        &mut self,
        ring: SegmentRing,
        publication: u64,
        on: usize,
    ) -> Result<(), Interrupted<W::Error>> {
        let (part, number) = (self.part(on), self.number(ring, publication));
        self.waits.wait(on, &|| part.published(ring) > number)
    }

    /// Checks that the first publications of these ranks belong to the same call.
    /// [`PeerWait::wait`] makes this check, but a rank does not call it if all others have
    /// published already.
    pub(super) fn compare(&mut self, sources: Range<usize>) -> Result<(), Interrupted<W::Error>> {
        self.others(sources).try_for_each(|source| self.wait_for(SegmentRing::Inputs, 0, source))
    }

    /// Checks that the ranks that have begun a call with this number have begun the same one.
    ///
    /// A rank that waits for no other rank must call this function after it has published its
    /// input. If all ranks did so without this check, for example because each one takes itself
    /// for the root, then no rank would notice the mismatch. Because a rank records its call
    /// before a sequentially consistent fence ([`RankPart::enter`]), at least one of two
    /// mismatching ranks finds the call of the other.
    fn compare_begun(&mut self) -> Result<(), Interrupted<W::Error>> {
        self.others(0..self.size).try_for_each(|rank| self.waits.check(rank))
    }

    /// Checks that an available publication of a rank belongs to this call. A rank that has left a
    /// call incomplete, or takes part in another one, would otherwise pass its data for this one's.
    pub(super) fn check_call(
        &self,
        ring: SegmentRing,
        publication: u64,
        source: usize,
    ) -> Result<(), Interrupted<W::Error>> {
        let publication = (ring, self.number(ring, publication));
        if self.names_calls && !self.part(source).is_of_call(publication, self.call) {
            return Err(Interrupted::OutOfStep(source));
        }
        Ok(())
    }

    /// Makes a publication of this rank available.
    pub(super) fn publish(&self, ring: SegmentRing, publication: u64) {
        self.part(self.rank).publish((ring, self.number(ring, publication)), self.call);
    }

    /// Releases a publication and all before it.
    pub(super) fn release(&self, ring: SegmentRing, publication: u64) {
        self.part(self.rank).release(ring, self.number(ring, publication + 1));
    }

    /// Publishes this rank's input and reads the publications of the sources. `step` reads and
    /// writes the data.
    ///
    /// # Errors
    /// If other ranks do not join the call, or a step fails.
    pub(super) fn flow(
        &mut self,
        flow: &PublicationFlow<'_>,
        mut step: impl FnMut(&Self, FlowStep) -> Result<(), OutOfBounds>,
    ) -> Result<(), Interrupted<W::Error>> {
        let ring = SegmentRing::Inputs;
        let takes = !flow.sources.is_empty();
        let (mut given, mut taken) = (0, 0);
        if !flow.publishes {
            given = flow.chunks;
        }
        if !takes {
            taken = flow.chunks;
            self.release(ring, flow.chunks - 1);
        }
        loop {
            while given < flow.chunks && self.occupies(ring, given).is_none() {
                step(self, FlowStep::Write(given))?;
                self.publish(ring, given);
                given += 1;
            }
            if given < flow.chunks && (taken == flow.chunks || given == taken) {
                // The ring is full, and the other ranks may be waiting for this rank.
                if let Some(on) = self.occupies(ring, given) {
                    self.wait_for_room(ring, given, on)?;
                }
            } else if taken == flow.chunks {
                return if takes { Ok(()) } else { self.compare_begun() };
            } else if let Some(on) = self.missing_source(flow, taken) {
                self.wait_for(ring, taken, on)?;
            } else {
                if taken == 0 {
                    self.compare(flow.sources.clone())?;
                }
                let has = |rank: &usize| taken == 0 || (flow.has)(*rank, taken);
                self.others(flow.sources.clone())
                    .filter(has)
                    .try_for_each(|source| self.check_call(ring, taken, source))?;
                for source in self.others(flow.sources.clone()).filter(|rank| (flow.has)(*rank, taken)) {
                    step(self, FlowStep::Take(source, taken))?;
                }
                step(self, FlowStep::Complete(taken))?;
                self.release(ring, taken);
                taken += 1;
            }
        }
    }

    /// Returns a source whose data in a publication is missing, if there is one.
    fn missing_source(&self, flow: &PublicationFlow<'_>, publication: u64) -> Option<usize> {
        let number = self.number(SegmentRing::Inputs, publication);
        let mut awaited = self
            .others(flow.sources.clone())
            .filter(|rank| publication == 0 || (flow.has)(*rank, publication));
        awaited.find(|rank| self.part(*rank).published(SegmentRing::Inputs) <= number)
    }
}

/// A step of the exchange, on a publication numbered within the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowStep {
    /// Fill this rank's publication.
    Write(u64),
    /// Use the publication of a source.
    Take(usize, u64),
    /// All publications with this number were used.
    Complete(u64),
}
