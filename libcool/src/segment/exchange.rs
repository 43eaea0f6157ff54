//! How publications go between the ranks of a segment: each publishes as far ahead as there is room, and takes what the
//! others have published in order.

use super::{Interrupted, PeerWait};
use cool_shm::pages::OutOfBounds;
use cool_shm::segment::{RankPart, SLOTS, Segment, SegmentRing};
use std::ops::Range;

/// One rank in one call. Publications are numbered from the first of the call.
pub(super) struct Exchange<'a, W> {
    pub(super) segment: &'a Segment,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// The publications of the calls before, by ring.
    pub(super) bases: [u64; 2],
    pub(super) waits: &'a mut W,
}

/// What ranks give to each other in a call.
pub(super) struct PublicationFlow<'p> {
    /// How many publications there are.
    pub(super) chunks: u64,
    /// Whether this rank publishes.
    pub(super) publishes: bool,
    /// Whose publications it takes; empty if none.
    pub(super) sources: Range<usize>,
    /// Whether another rank has something in a publication that this one is to take. The first one of every source is waited for:
    /// nobody ends before they have begun.
    pub(super) has: &'p dyn Fn(usize, u64) -> bool,
}

impl<'a, W: PeerWait> Exchange<'a, W> {
    pub(super) fn part(&self, rank: usize) -> RankPart<'a> {
        self.segment.rank(rank)
    }

    fn others(&self, ranks: Range<usize>) -> impl Iterator<Item = usize> + use<W> {
        let me = self.rank;
        ranks.filter(move |rank| *rank != me)
    }

    /// Its number in its ring.
    pub(super) fn number(&self, ring: SegmentRing, publication: u64) -> u64 {
        self.bases[ring as usize] + publication
    }

    /// A rank that has not released what stands where a publication is to be written.
    pub(super) fn occupies(&self, ring: SegmentRing, publication: u64) -> Option<usize> {
        let needed = self.number(ring, publication + 1).saturating_sub(SLOTS);
        self.others(0..self.size).find(|rank| self.part(*rank).released(ring) < needed)
    }

    /// A rank of some that has not published something.
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

    /// Waits until a publication can be written.
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

    /// What is there from these ranks is of the same call: who waits compares that, and of the first publication nobody may have
    /// waited, if all others received before.
    pub(super) fn compare(&mut self, sources: Range<usize>) -> Result<(), Interrupted<W::Error>> {
        self.others(sources).try_for_each(|source| self.wait_for(SegmentRing::Inputs, 0, source))
    }

    /// This rank has written a publication.
    pub(super) fn publish(&self, ring: SegmentRing, publication: u64) {
        self.part(self.rank).publish(ring, self.number(ring, publication + 1));
    }

    /// This rank needs a publication, and those before, no more.
    pub(super) fn release(&self, ring: SegmentRing, publication: u64) {
        self.part(self.rank).release(ring, self.number(ring, publication + 1));
    }

    /// Publishes what this rank gives and takes what others give, in the ring for that.
    ///
    /// # Errors
    /// If others do not come, or a step fails.
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
                // There was no room. Others may wait for just that.
                if let Some(on) = self.occupies(ring, given) {
                    self.wait_for_room(ring, given, on)?;
                }
            } else if taken == flow.chunks {
                return Ok(());
            } else if let Some(on) = self.missing_source(flow, taken) {
                self.wait_for(ring, taken, on)?;
            } else {
                if taken == 0 {
                    self.compare(flow.sources.clone())?;
                }
                for source in self.others(flow.sources.clone()).filter(|rank| (flow.has)(*rank, taken)) {
                    step(self, FlowStep::Take(source, taken))?;
                }
                step(self, FlowStep::Complete(taken))?;
                self.release(ring, taken);
                taken += 1;
            }
        }
    }

    /// A source whose part of a publication is not there.
    fn missing_source(&self, flow: &PublicationFlow<'_>, publication: u64) -> Option<usize> {
        let number = self.number(SegmentRing::Inputs, publication);
        let mut awaited = self
            .others(flow.sources.clone())
            .filter(|rank| publication == 0 || (flow.has)(*rank, publication));
        awaited.find(|rank| self.part(*rank).published(SegmentRing::Inputs) <= number)
    }
}

/// What is to be done with a publication, numbered within the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowStep {
    /// To fill this rank's.
    Write(u64),
    /// To use that of a source.
    Take(usize, u64),
    /// All sources' have been used.
    Complete(u64),
}
