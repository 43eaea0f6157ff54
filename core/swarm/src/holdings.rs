//! The blocks that a node holds of a content, as generations with their ranks, and the choice of
//! the block for a receiver: a linear combination, a random block or the rarest one (piece
//! selection in BitTorrent's terms).

use crate::division::Division;
use crate::generation::{CodedBlock, Generation, Recovery, Slot, Term};
use crate::order::{Order, Phase, Usefulness};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// Maximum number of generations for which a receiver reports a null vector in addition to its
/// rank.
const NULL_VECTORS: usize = 8;
/// Maximum number of generations for which a receiver reports its rank. Later ones follow when
/// earlier ones are complete, so that reports do not grow with the content.
pub(crate) const REPORTED_MAX: usize = 4096;

/// The kind of blocks that members send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Code {
    /// Random linear combinations of a generation, drawn again at every node. A source sends each
    /// original once before it codes.
    Linear,
    /// A random block that the sender holds and the receiver does not, of any generation (Random
    /// Block in the Cooper paper).
    RandomBlock,
    /// Among those blocks, the one that the fewest members are known to hold: BitTorrent's rule.
    RarestBlock,
}

/// A node's report of the blocks that it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldingsReport {
    /// The first generation of which it does not hold all blocks.
    pub first: u32,
    /// Its rank in each generation from [`HoldingsReport::first`] on. It may hold blocks of
    /// generations beyond the end, too, but reports none.
    pub ranks: Vec<u16>,
    /// Bitmap of the blocks, 64 to a word from the lowest bit. Empty if blocks are coded.
    pub blocks: Vec<u64>,
    /// For each of the next incomplete generations, a random vector that is orthogonal to all coded
    /// blocks held of it ([`Generation::null_vector`]). It shows a sender whether it holds anything
    /// new; ranks alone do not show that (null-space-based feedback: Koutsonikolas, Wang and Hu,
    /// CCACK, INFOCOM 2010).
    pub null_vectors: Vec<(u32, Box<[u8]>)>,
}

impl HoldingsReport {
    /// Returns whether the report contains a block.
    pub fn holds(&self, block: u32) -> bool {
        self.blocks.get(block as usize / 64).is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    /// Adds a coded block, which must be new.
    pub(crate) fn add(&mut self, division: &Division, generation: u32, row: &CodedBlock) {
        if let Some(rank) = self.rank_mut(generation) {
            // A report may be that of a hostile member.
            *rank = rank.saturating_add(1);
        }
        if let CodedBlock::Original(block) = row {
            let block = division.first(generation) + u32::from(*block);
            if let Some(word) = self.blocks.get_mut(block as usize / 64) {
                *word |= 1 << (block % 64);
            }
        }
    }

    /// Removes all blocks of a generation.
    fn reset(&mut self, division: &Division, generation: u32) {
        self.set(division, generation, 0, |word, bit| *word &= !bit);
    }

    /// Adds all blocks of a generation, because they are held or because none should be sent.
    pub(crate) fn fill(&mut self, division: &Division, generation: u32) {
        self.set(division, generation, division.size(generation), |word, bit| *word |= bit);
    }

    fn set(&mut self, division: &Division, generation: u32, to: u16, set: impl Fn(&mut u64, u64)) {
        if let Some(rank) = self.rank_mut(generation) {
            *rank = to;
        }
        let first = division.first(generation);
        for block in first..first + u32::from(division.size(generation)) {
            if let Some(word) = self.blocks.get_mut(block as usize / 64) {
                set(word, 1 << (block % 64));
            }
        }
    }

    /// Returns the reported rank in a generation; the maximum for generations of which it holds all
    /// blocks.
    pub(crate) fn rank(&self, generation: u32) -> u16 {
        let index = generation.checked_sub(self.first);
        index.map_or(u16::MAX, |index| self.ranks.get(index as usize).copied().unwrap_or(0))
    }

    /// Returns the rank in a generation, to change it. Extends the report up to the generation, as
    /// far as it may become that long. Returns none for generations that it does not list.
    fn rank_mut(&mut self, generation: u32) -> Option<&mut u16> {
        let index = generation.checked_sub(self.first)? as usize;
        if (self.ranks.len()..REPORTED_MAX).contains(&index) {
            self.ranks.resize(index + 1, 0);
        }
        self.ranks.get_mut(index)
    }

    fn null_vector(&self, generation: u32) -> Option<&[u8]> {
        self.null_vectors.iter().find(|(number, _)| *number == generation).map(|(_, vector)| &**vector)
    }
}

/// The index of one of several sources. The source first sends the originals with number `index`
/// modulo `of`, so that several sources start with different blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceIndex {
    /// Index of this source, from 0.
    pub index: u16,
    /// Number of sources.
    pub of: u16,
}

/// A block to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The generation of the block.
    pub generation: u32,
    /// The coefficients of the block.
    pub row: CodedBlock,
    /// The terms of which its bytes are the sum. An original has one term with factor 1.
    pub terms: Vec<Term>,
}

/// The information on which a sender bases its choice of a block.
#[derive(Clone, Copy, Debug)]
pub struct Knowledge<'a> {
    /// The receiver's last report of its holdings, which may be outdated.
    pub receiver: &'a HoldingsReport,
    /// Number of nodes known to hold each block; 0 for blocks beyond its end. Needed only by
    /// [`Code::RarestBlock`].
    pub holders: &'a [u32],
    /// The progress of the swarm.
    pub phase: Phase,
    /// Generations to skip, because a block of them was not new to the receiver.
    pub not_new: &'a [u32],
    /// For a receiver in another rack: the blocks that have left the sender's rack. Only
    /// generations of which the sender holds more are chosen.
    pub left: Option<&'a HoldingsReport>,
}

/// The blocks that a node holds of a content.
#[derive(Clone, Debug)]
pub struct Holdings {
    division: Division,
    code: Code,
    order: Order,
    generations: Vec<Generation>,
    /// All ranks and blocks.
    have: HoldingsReport,
    /// No generation before this one is incomplete, and none from `end` on has a coded block.
    first: u32,
    end: u32,
    /// Number of coded blocks held.
    rows: u64,
    /// Number of generations of which as many independent coded blocks are held as they have
    /// blocks, and number of those in which every block is also in place.
    complete: u32,
    whole: u32,
    /// At a source, for each generation: the originals not sent yet, in reverse order.
    unsent_originals: Vec<Vec<u16>>,
    /// No generation before this one has unsent originals.
    first_unsent: usize,
}

impl Holdings {
    /// Returns the holdings of a node that has no blocks yet.
    pub fn empty(division: Division, code: Code, order: Order) -> Holdings {
        Holdings::new(division, code, order, Generation::new)
    }

    /// Returns the holdings of a source, which holds all blocks and sends its share of the
    /// originals first.
    pub fn source(division: Division, code: Code, order: Order, source: SourceIndex) -> Holdings {
        let mut holdings = Holdings::new(division, code, order, Generation::whole);
        let of = source.of.max(1);
        let originals = |size: u16| (0..size).rev().filter(|block| block % of == source.index % of).collect();
        if code == Code::Linear {
            holdings.unsent_originals =
                holdings.generations.iter().map(|generation| originals(generation.size())).collect();
        }
        holdings
    }

    fn new(division: Division, code: Code, order: Order, make: fn(u16) -> Generation) -> Holdings {
        let numbers = 0..division.generations();
        let generations: Vec<Generation> = numbers.map(|number| make(division.size(number))).collect();
        let ranks: Vec<u16> = generations.iter().map(Generation::rank).collect();
        let whole = generations.iter().filter(|generation| generation.is_whole()).count() as u32;
        let mut blocks = Vec::new();
        if code != Code::Linear {
            blocks = vec![0; division.blocks.div_ceil(64) as usize];
            for block in 0..if whole > 0 { division.blocks } else { 0 } {
                blocks[block as usize / 64] |= 1 << (block % 64);
            }
        }
        let rows: u64 = ranks.iter().map(|rank| u64::from(*rank)).sum();
        let have = HoldingsReport { first: 0, ranks, blocks, null_vectors: Vec::new() };
        let mut holdings = Holdings {
            division,
            code,
            order,
            generations,
            have,
            first: 0,
            end: if rows > 0 { division.generations() } else { 0 },
            rows,
            complete: whole,
            whole,
            unsent_originals: Vec::new(),
            first_unsent: 0,
        };
        holdings.advance();
        holdings
    }

    /// Moves `first` past the generations that have become complete.
    fn advance(&mut self) {
        while self.generation(self.first).is_some_and(|held| held.rank() >= held.size()) {
            self.first += 1;
        }
    }

    /// Returns the division of the content.
    pub fn division(&self) -> &Division {
        &self.division
    }

    /// Returns the ranks in all generations, and the blocks held.
    pub fn have(&self) -> &HoldingsReport {
        &self.have
    }

    /// Returns the report of the blocks that will be held once those in `under_way` have arrived.
    /// It lists only the generations from the first incomplete one to the last one of which
    /// anything is held, and at most [`REPORTED_MAX`] of them.
    pub(crate) fn expected<'r>(
        &self,
        under_way: impl Iterator<Item = &'r (u32, CodedBlock)>,
    ) -> HoldingsReport {
        let (first, end) = (self.first as usize, self.end as usize);
        let listed = first..end.clamp(first, first.saturating_add(REPORTED_MAX));
        let ranks = self.have.ranks.get(listed).unwrap_or_default().to_vec();
        let blocks = self.have.blocks.clone();
        let mut have = HoldingsReport { first: self.first, ranks, blocks, null_vectors: Vec::new() };
        under_way.for_each(|(number, row)| have.add(&self.division, *number, row));
        have
    }

    /// Returns null vectors for the next incomplete generations ([`HoldingsReport::null_vectors`]).
    pub(crate) fn null_vectors<'r>(
        &self,
        under_way: impl Iterator<Item = &'r (u32, CodedBlock)> + Clone,
        rng: &mut ChaCha8Rng,
    ) -> Vec<(u32, Box<[u8]>)> {
        if self.code != Code::Linear {
            return Vec::new();
        }
        let incomplete = self.generations_from(self.first).filter(|(_, held)| held.rank() < held.size());
        let wanted = incomplete.take(self.order.window().min(NULL_VECTORS));
        let vector = |(number, held): (u32, &Generation)| {
            let mut held = held.clone();
            for (_, row) in under_way.clone().filter(|(of, _)| *of == number) {
                held.insert(row);
            }
            Some((number, held.null_vector(rng)?))
        };
        wanted.filter_map(vector).collect()
    }

    /// Returns the generations with this number and later ones.
    fn generations_from(&self, first: u32) -> impl Iterator<Item = (u32, &Generation)> {
        // The numbers come second, because the first one may be that of a hostile member.
        let generations = self.generations.get(first as usize..).unwrap_or_default();
        generations.iter().zip(first..).map(|(held, number)| (number, held))
    }

    /// Returns a generation, or none if its number is too large.
    pub fn generation(&self, number: u32) -> Option<&Generation> {
        self.generations.get(number as usize)
    }

    /// Returns the progress in a generation: its rank, plus 1 once it is decoded. After progress, a
    /// block may be new to a member to which an earlier one was not.
    pub(crate) fn progress(&self, number: u32) -> u16 {
        self.generation(number).map_or(0, |held| held.rank() + u16::from(held.is_whole()))
    }

    /// Returns whether as many coded blocks are held as the content has blocks. Nothing more is
    /// needed then, although generations may remain to be decoded.
    pub fn is_complete(&self) -> bool {
        self.complete == self.division.generations()
    }

    /// Returns whether every block is in place.
    pub fn is_whole(&self) -> bool {
        self.whole == self.division.generations()
    }

    /// Returns whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns whether a node with the holdings `have` needs no more blocks.
    pub fn suffices(&self, have: &HoldingsReport) -> bool {
        self.generations_from(have.first).all(|(number, held)| have.rank(number) >= held.size())
    }

    /// Returns whether more blocks are held of at least one generation than in `other`.
    pub(crate) fn exceeds(&self, other: &Holdings) -> bool {
        // No rank exceeds those of the complete generations of `other`.
        let mut numbers = other.first..self.end;
        numbers.any(|number| self.have.rank(number) > other.have.rank(number))
    }

    /// Returns whether a coded block would be new.
    pub fn needs(&self, generation: u32, row: &CodedBlock) -> bool {
        self.generation(generation).is_some_and(|generation| generation.needs(row))
    }

    /// Adds a coded block if it is new. Returns the slot in which its bytes must be stored.
    pub fn insert(&mut self, number: u32, row: &CodedBlock) -> Option<Slot> {
        let generation = self.generations.get_mut(number as usize)?;
        let slot = generation.insert(row)?;
        self.complete += u32::from(generation.rank() == generation.size());
        self.rows += 1;
        self.end = self.end.max(number + 1);
        self.have.add(&self.division, number, row);
        self.advance();
        Some(slot)
    }

    /// Adds a coded block without storing its bytes, in order to record the holdings of others.
    pub(crate) fn learn(&mut self, number: u32, row: &CodedBlock) {
        self.insert(number, row);
        self.decoded(number);
    }

    /// Removes all coded blocks of a generation.
    pub(crate) fn reset(&mut self, number: u32) {
        let Some(generation) = self.generations.get_mut(number as usize) else { return };
        let size = generation.size();
        self.complete -= u32::from(generation.rank() == size);
        self.whole -= u32::from(generation.is_whole());
        self.rows -= u64::from(generation.rank());
        self.first = self.first.min(number);
        *generation = Generation::new(size);
        self.have.reset(&self.division, number);
    }

    /// Returns the sums that remain to be computed, once the rank of a generation equals its size
    /// ([`Generation::decoding`]).
    pub fn decoding(&self, number: u32) -> Option<Vec<Recovery>> {
        self.generation(number)?.decoding()
    }

    /// Records that a generation is decoded.
    pub fn decoded(&mut self, number: u32) {
        let Some(generation) = self.generations.get_mut(number as usize) else { return };
        if !generation.is_whole() {
            generation.decoded();
            self.whole += u32::from(generation.is_whole());
        }
    }

    /// Returns a block for a receiver, or none if this node holds nothing new for it or should not
    /// send it yet.
    pub fn pick(&mut self, known: &Knowledge<'_>, rng: &mut ChaCha8Rng) -> Option<Pick> {
        match self.code {
            Code::Linear => self.pick_linear(known, rng),
            Code::RandomBlock => self.pick_block(known, rng, |_| 0),
            Code::RarestBlock => {
                self.pick_block(known, rng, |block| known.holders.get(block as usize).copied().unwrap_or(0))
            }
        }
    }

    fn pick_linear(&mut self, known: &Knowledge<'_>, rng: &mut ChaCha8Rng) -> Option<Pick> {
        let spread = matches!(self.order, Order::LowestRank { .. });
        let number = match self.generation_with_most_unsent(known).filter(|_| spread) {
            Some(number) => number,
            None => {
                let rank = |number| known.receiver.rank(number);
                let numbers = known.receiver.first..self.division.generations();
                self.order
                    .pick(&self.division, numbers, &known.phase, rank, |of| self.usefulness(known, of))?
            }
        };
        let generation = &self.generations[number as usize];
        let original = self
            .unsent_originals
            .get_mut(number as usize)
            .and_then(|unsent_originals| take_original(unsent_originals, known, number));
        let (row, terms) = match original {
            Some(block) => generation.plain(block)?,
            None => generation.combined(rng)?,
        };
        Some(Pick { generation: number, row, terms })
    }

    /// Returns, at a source that has not sent each original once, the generation with the most
    /// unsent originals among the next ones of which the receiver surely needs blocks.
    fn generation_with_most_unsent(&mut self, known: &Knowledge<'_>) -> Option<u32> {
        let Order::LowestRank { window } = self.order else { return None };
        while self.unsent_originals.get(self.first_unsent).is_some_and(Vec::is_empty) {
            self.first_unsent += 1;
        }
        let unsent = self.unsent_originals.get(self.first_unsent..).unwrap_or_default();
        let owing = (self.first_unsent as u32..)
            .zip(unsent)
            .filter(|(_, unsent_originals)| !unsent_originals.is_empty())
            .take(window.max(1) as usize);
        let useful = owing.filter(|(number, _)| self.usefulness(known, *number) == Usefulness::New);
        useful
            .max_by_key(|(number, unsent_originals)| (unsent_originals.len(), core::cmp::Reverse(*number)))
            .map(|(number, _)| number)
    }

    fn usefulness(&self, known: &Knowledge<'_>, number: u32) -> Usefulness {
        let generation = &self.generations[number as usize];
        let theirs = known.receiver.rank(number);
        let holds_nothing_new = || {
            let vector = known.receiver.null_vector(number);
            vector.is_some_and(|vector| !generation.exceeds(vector))
        };
        if theirs >= generation.size() {
            Usefulness::Complete
        } else if generation.rank() <= known.left.map_or(0, |left| left.rank(number))
            || known.not_new.contains(&number)
            || holds_nothing_new()
        {
            Usefulness::Nothing
        } else if generation.rank() > theirs {
            Usefulness::New
        } else {
            Usefulness::MaybeNew
        }
    }

    /// Returns a block with the least `weight` among those that the receiver is missing, chosen at
    /// random among equals.
    fn pick_block(
        &self,
        known: &Knowledge<'_>,
        rng: &mut ChaCha8Rng,
        weight: impl Fn(u32) -> u32,
    ) -> Option<Pick> {
        let (mut least, mut equals, mut picked) = (u32::MAX, 0u32, None);
        for (at, mine) in self.have.blocks.iter().enumerate() {
            let mut news = mine & !known.receiver.blocks.get(at).copied().unwrap_or(0);
            while news != 0 {
                let block = at as u32 * 64 + news.trailing_zeros();
                news &= news - 1;
                let weight = weight(block);
                equals = if weight < least { 1 } else { equals + u32::from(weight == least) };
                if weight < least || weight == least && rng.random_range(0..equals) == 0 {
                    (least, picked) = (weight, Some(block));
                }
            }
        }
        let (generation, block) = self.division.place(picked?);
        let (row, terms) = self.generations[generation as usize].plain(block)?;
        Some(Pick { generation, row, terms })
    }

    /// Records that a block did not arrive. If it was an original of a source, it must be sent
    /// again.
    pub fn lost(&mut self, generation: u32, row: &CodedBlock) {
        if let (Some(unsent_originals), CodedBlock::Original(block)) =
            (self.unsent_originals.get_mut(generation as usize), row)
            && !unsent_originals.contains(block)
        {
            unsent_originals.push(*block);
            self.first_unsent = self.first_unsent.min(generation as usize);
        }
    }
}

/// Removes and returns the next original of a generation that the source has not sent and that is
/// new to the receiver. An original is orthogonal to a null vector if the vector has a 0 in its
/// position. The receiver then holds it, except with a probability of 1 in 256.
fn take_original(unsent_originals: &mut Vec<u16>, known: &Knowledge<'_>, generation: u32) -> Option<u16> {
    let vector = known.receiver.null_vector(generation);
    let is_new = |block: &u16| vector.is_none_or(|vector| vector.get(usize::from(*block)) != Some(&0));
    unsent_originals.iter().rposition(is_new).map(|at| unsent_originals.remove(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use std::collections::BTreeSet;

    const DIVISION: Division = Division { blocks: 10, generation: 4 };
    const LOWEST: Order = Order::LowestRank { window: 8 };

    fn known<'a>(receiver: &'a HoldingsReport, holders: &'a [u32]) -> Knowledge<'a> {
        Knowledge {
            receiver,
            holders,
            phase: Phase { round: 1, settled: 0, members: 4 },
            not_new: &[],
            left: None,
        }
    }

    #[test]
    fn a_source_sends_each_original_once_evenly_before_it_codes() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut source = Holdings::source(DIVISION, Code::Linear, LOWEST, SourceIndex { index: 0, of: 1 });
        let have = HoldingsReport::default();
        let picks: Vec<Pick> = (0..11).filter_map(|_| source.pick(&known(&have, &[]), &mut rng)).collect();
        let generations: Vec<u32> = picks[..4].iter().map(|pick| pick.generation).collect();
        assert_eq!(generations, [0, 1, 0, 1], "the shorter one later");
        let originals: BTreeSet<_> = picks[..10]
            .iter()
            .map(|pick| match pick.row {
                CodedBlock::Original(block) => DIVISION.first(pick.generation) + u32::from(block),
                CodedBlock::Coded(_) => panic!("{pick:?}"),
            })
            .collect();
        assert_eq!(originals, (0..10).collect());
        assert!(matches!(picks[10].row, CodedBlock::Coded(_)));
        source.lost(picks[3].generation, &picks[3].row);
        let again = source.pick(&known(&have, &[]), &mut rng).unwrap();
        assert_eq!((again.generation, &again.row), (picks[3].generation, &picks[3].row));
    }

    #[test]
    fn a_source_sends_no_original_that_the_receiver_already_has() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut source = Holdings::source(DIVISION, Code::Linear, LOWEST, SourceIndex { index: 0, of: 1 });
        let mut sink = Holdings::empty(DIVISION, Code::Linear, LOWEST);
        assert!((0..3).all(|block| sink.insert(0, &CodedBlock::Original(block)).is_some()));
        let null_vectors = vec![(0, [0, 0, 0, 7].into())];
        let have = HoldingsReport { null_vectors, ..sink.have().clone() };
        let known = known(&have, &[]);
        let of_first = |pick: &Pick| pick.generation == 0;
        let mut picks = core::iter::from_fn(|| source.pick(&known, &mut rng)).filter(of_first);
        assert_eq!(picks.next().unwrap().row, CodedBlock::Original(3));
        assert!(matches!(picks.next().unwrap().row, CodedBlock::Coded(_)), "the others are owed to others");
    }

    #[test]
    fn several_sources_begin_with_different_originals() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut originals = BTreeSet::new();
        for index in 0..2 {
            let mut source = Holdings::source(DIVISION, Code::Linear, LOWEST, SourceIndex { index, of: 2 });
            for _ in 0..5 {
                let pick = source.pick(&known(&HoldingsReport::default(), &[]), &mut rng).unwrap();
                let CodedBlock::Original(block) = pick.row else { panic!("{pick:?}") };
                assert!(originals.insert((pick.generation, block)));
            }
        }
        assert_eq!(originals.len(), 10);
    }

    #[test]
    fn uncoded_blocks_are_new_and_the_rarest_is_sent_first() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut holders = [5; 10];
        holders[7] = 1;
        let mut source =
            Holdings::source(DIVISION, Code::RarestBlock, LOWEST, SourceIndex { index: 0, of: 1 });
        let mut sink = Holdings::empty(DIVISION, Code::RarestBlock, LOWEST);
        let first = source.pick(&known(sink.have(), &holders), &mut rng).unwrap();
        assert_eq!((first.generation, &first.row), (1, &CodedBlock::Original(3)));
        for _ in 0..10 {
            let pick = source.pick(&known(sink.have(), &holders), &mut rng).unwrap();
            assert!(sink.insert(pick.generation, &pick.row).is_some());
        }
        assert_eq!(source.pick(&known(sink.have(), &holders), &mut rng), None);
        assert!(sink.is_complete() && sink.have().holds(9) && !sink.have().holds(10));
        (0..3).for_each(|generation| sink.decoded(generation));
        assert!(sink.is_whole());
    }
}
