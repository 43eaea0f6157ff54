//! One generation (the paper's batch): a set of blocks that are coded with each other, and the part
//! of it that a node holds.
//!
//! A node holds *coded blocks* ([`CodedBlock`]): each is either an original block, or a combination
//! of blocks together with its coefficients. This crate stores the coefficients; the driver stores
//! the bytes, each coded block in a [`Slot`]. A block that arrived by a tree, from disk or from an
//! earlier version is a coded block with one coefficient, so one decoder serves all cases.
//! Progressive Gaussian elimination, on the coefficients alone, decides whether a coded block is
//! new. Bytes are combined once, when the last coded block has arrived ([`Generation::decoding`]),
//! and only for blocks that did not arrive as originals. That takes as many multiplications as
//! eliminating bytes row by row, in one pass over each slot.

use crate::field::{add_multiple, inverse, multiply, product, scale};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// A coded block, described by its coefficients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CodedBlock {
    /// An original block of the generation.
    Original(u16),
    /// A combination: one coefficient for each block of the generation.
    Coded(Box<[u8]>),
}

impl CodedBlock {
    /// Returns the terms of which this coded block is the sum, for a node that holds all originals.
    pub fn terms(&self) -> Vec<Term> {
        match self {
            CodedBlock::Original(block) => vec![Term { factor: 1, slot: Slot::Block(*block) }],
            CodedBlock::Coded(factors) => {
                let terms =
                    (0..).map(Slot::Block).zip(factors.iter().copied()).filter(|(_, factor)| *factor != 0);
                terms.map(|(slot, factor)| Term { factor, slot }).collect()
            }
        }
    }
}

/// The place where the driver stores the bytes of a coded block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    /// The block's own place in the content.
    Block(u16),
    /// A buffer outside the content, numbered from 0. It is free once the generation is decoded.
    Coded(u16),
}

/// One term of a sum over slots: a slot, and the factor by which each of its bytes is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The coefficient. Must not be 0.
    pub factor: u8,
    /// The slot with the bytes to multiply.
    pub slot: Slot,
}

/// A sum that the driver must write to a block's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The block to compute.
    pub block: u16,
    /// The terms of which the block is the sum.
    pub terms: Vec<Term>,
}

/// The part of a generation that a node holds.
#[derive(Clone, Debug)]
pub struct Generation {
    size: u16,
    rank: u16,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// Coded blocks are held; there may already be as many as the generation has blocks.
    Rows(Box<CodedRows>),
    /// Every block is in place.
    Whole,
}

#[derive(Clone, Debug, Default)]
struct CodedRows {
    /// The originals that are held.
    blocks: Vec<u16>,
    /// Coefficients of the combinations, in the order of their slots.
    coded: Vec<u8>,
    /// All coefficients in echelon form, `size` for each row. Row `i` begins with a 1 at position
    /// `i`, or consists of zeros if no row begins there.
    echelon: Vec<u8>,
}

impl Generation {
    /// Returns a generation of `size` blocks of which nothing is held.
    pub fn new(size: u16) -> Generation {
        Generation { size, rank: 0, state: State::Rows(Box::default()) }
    }

    /// Returns a generation of `size` blocks that is held completely.
    pub fn whole(size: u16) -> Generation {
        Generation { size, rank: size, state: State::Whole }
    }

    /// Returns the number of blocks of the generation.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Returns the number of independent coded blocks that are held.
    pub fn rank(&self) -> u16 {
        self.rank
    }

    /// Returns whether every block is in place.
    pub fn is_whole(&self) -> bool {
        matches!(self.state, State::Whole)
    }

    /// Returns whether a block is held as an original.
    pub fn holds(&self, block: u16) -> bool {
        match &self.state {
            State::Rows(rows) => rows.blocks.contains(&block),
            State::Whole => block < self.size,
        }
    }

    /// Returns whether a coded block belongs to this generation: its block exists, or it has a
    /// coefficient for each block and not all of them are 0.
    pub fn admits(&self, row: &CodedBlock) -> bool {
        match row {
            CodedBlock::Original(block) => *block < self.size,
            CodedBlock::Coded(coefficients) => {
                coefficients.len() == usize::from(self.size) && coefficients.iter().any(|factor| *factor != 0)
            }
        }
    }

    /// Returns whether a coded block would be new, which means that it is not a combination of
    /// those held. Returns false for a coded block that does not belong to this generation.
    pub fn needs(&self, row: &CodedBlock) -> bool {
        self.rank < self.size && self.admits(row) && self.reduced(row).is_some()
    }

    /// Adds a coded block if it is new. Returns the slot in which its bytes must be stored.
    pub fn insert(&mut self, row: &CodedBlock) -> Option<Slot> {
        if self.rank == self.size || !self.admits(row) {
            return None;
        }
        let (pivot, reduced) = self.reduced(row)?;
        let State::Rows(rows) = &mut self.state else { return None };
        let size = usize::from(self.size);
        if rows.echelon.is_empty() {
            rows.echelon = vec![0; size * size];
        }
        rows.echelon[pivot * size..][..size].copy_from_slice(&reduced);
        self.rank += 1;
        Some(match row {
            CodedBlock::Original(block) => {
                rows.blocks.push(*block);
                Slot::Block(*block)
            }
            CodedBlock::Coded(coefficients) => {
                rows.coded.extend_from_slice(coefficients);
                Slot::Coded((rows.coded.len() / size - 1) as u16)
            }
        })
    }

    /// Returns the remainder of a coded block after elimination, scaled so that its first
    /// coefficient is 1, and the position of that coefficient. Returns none if the remainder is 0.
    fn reduced(&self, row: &CodedBlock) -> Option<(usize, Vec<u8>)> {
        let State::Rows(rows) = &self.state else { return None };
        let size = usize::from(self.size);
        let mut left = match row {
            CodedBlock::Coded(coefficients) => coefficients.to_vec(),
            CodedBlock::Original(block) => {
                let mut unit = vec![0; size];
                unit[usize::from(*block)] = 1;
                unit
            }
        };
        for pivot in 0..size {
            let factor = left[pivot];
            if factor == 0 {
                continue;
            }
            match rows.echelon.get(pivot * size..(pivot + 1) * size) {
                Some(held) if held[pivot] != 0 => {
                    add_multiple(&mut left[pivot..], factor, &held[pivot..]);
                }
                _ => {
                    scale(&mut left[pivot..], inverse(factor)?);
                    return Some((pivot, left));
                }
            }
        }
        None
    }

    /// Returns a random vector of the null space of the coded blocks held: the inner product of
    /// each with it is 0. Returns none if nothing or everything is held.
    pub fn null_vector(&self, rng: &mut ChaCha8Rng) -> Option<Box<[u8]>> {
        let State::Rows(rows) = &self.state else { return None };
        if self.rank == 0 || self.rank == self.size {
            return None;
        }
        let size = usize::from(self.size);
        let mut vector = vec![0; size];
        rng.fill(&mut vector[..]);
        // Positions without a pivot are free. The others are computed from the last to the first.
        for (pivot, row) in rows.echelon.chunks_exact(size).enumerate().rev() {
            if row[pivot] != 0 {
                vector[pivot] = product(&row[pivot + 1..], &vector[pivot + 1..]);
            }
        }
        Some(vector.into())
    }

    /// Returns whether a coded block is held that is not orthogonal to a null vector of another
    /// member. Such a block is new to that member. If there is no such block, nothing held here is
    /// new to it, except with a probability of 1 in 256.
    pub fn exceeds(&self, null_vector: &[u8]) -> bool {
        match &self.state {
            State::Whole => null_vector.iter().any(|element| *element != 0),
            State::Rows(rows) => {
                let held = rows.echelon.chunks_exact(usize::from(self.size).max(1));
                held.into_iter().any(|row| product(row, null_vector) != 0)
            }
        }
    }

    /// Returns a random combination of all coded blocks held, and its terms, or none if nothing is
    /// held.
    pub fn combined(&self, rng: &mut ChaCha8Rng) -> Option<(CodedBlock, Vec<Term>)> {
        if self.rank == 0 {
            return None;
        }
        let size = usize::from(self.size);
        let mut factors = vec![0; usize::from(self.rank)];
        rng.fill(&mut factors[..]);
        if factors.iter().all(|factor| *factor == 0) {
            factors[0] = 1;
        }
        let mut sum = vec![0; size];
        let mut terms = Vec::with_capacity(factors.len());
        let mut term = |factor: u8, slot| {
            if factor != 0 {
                terms.push(Term { factor, slot });
            }
        };
        match &self.state {
            State::Whole => {
                (0..self.size).zip(&factors).for_each(|(block, factor)| term(*factor, Slot::Block(block)));
                sum = factors;
            }
            State::Rows(rows) => {
                let (of_blocks, of_coded) = factors.split_at(rows.blocks.len());
                for (block, factor) in rows.blocks.iter().zip(of_blocks) {
                    sum[usize::from(*block)] ^= factor;
                    term(*factor, Slot::Block(*block));
                }
                for ((slot, row), factor) in (0..).zip(rows.coded.chunks_exact(size)).zip(of_coded) {
                    add_multiple(&mut sum, *factor, row);
                    term(*factor, Slot::Coded(slot));
                }
            }
        }
        Some((CodedBlock::Coded(sum.into()), terms))
    }

    /// Returns an original block and its term, if it is held.
    pub fn plain(&self, block: u16) -> Option<(CodedBlock, Vec<Term>)> {
        let term = Term { factor: 1, slot: Slot::Block(block) };
        self.holds(block).then(|| (CodedBlock::Original(block), vec![term]))
    }

    /// Returns how to compute each block that did not arrive as an original, once as many coded
    /// blocks are held as there are blocks. Returns none before that. When the driver has written
    /// these blocks, the caller must call [`Generation::decoded`].
    pub fn decoding(&self) -> Option<Vec<Recovery>> {
        let State::Rows(rows) = &self.state else { return None };
        if self.rank < self.size {
            return None;
        }
        let size = usize::from(self.size);
        let missing: Vec<u16> = (0..self.size).filter(|block| !rows.blocks.contains(block)).collect();
        let inverse = inverted(&rows.coded, size, &missing)?;
        let coded = || rows.coded.chunks_exact(size);
        let recovery = |(block, factors): (&u16, &[u8])| {
            let of_coded = (0..).map(Slot::Coded).zip(factors.iter().copied());
            let of_blocks = rows.blocks.iter().map(|held| {
                let products =
                    coded().zip(factors).map(|(row, factor)| multiply(row[usize::from(*held)], *factor));
                (Slot::Block(*held), products.fold(0, |sum, product| sum ^ product))
            });
            let terms = of_coded.chain(of_blocks).filter(|(_, factor)| *factor != 0);
            Recovery { block: *block, terms: terms.map(|(slot, factor)| Term { factor, slot }).collect() }
        };
        Some(missing.iter().zip(inverse.chunks_exact(missing.len().max(1))).map(recovery).collect())
    }

    /// Records that every block is in place, and drops the coefficients.
    pub fn decoded(&mut self) {
        if self.rank == self.size {
            self.state = State::Whole;
        }
    }
}

/// Returns the inverse of the square matrix formed by the columns `places` of rows of `size`
/// coefficients, or none if it is singular.
fn inverted(rows: &[u8], size: usize, places: &[u16]) -> Option<Vec<u8>> {
    let n = places.len();
    let width = 2 * n;
    let mut both = vec![0; n * width];
    for (at, row) in rows.chunks_exact(size).enumerate() {
        let target = &mut both[at * width..][..width];
        target.iter_mut().zip(places).for_each(|(element, place)| *element = row[usize::from(*place)]);
        target[n + at] = 1;
    }
    for column in 0..n {
        let pivot = (column..n).find(|row| both[row * width + column] != 0)?;
        for i in 0..width {
            both.swap(pivot * width + i, column * width + i);
        }
        let first = inverse(both[column * width + column])?;
        scale(&mut both[column * width..][..width], first);
        let by = both[column * width..][..width].to_vec();
        for row in (0..n).filter(|row| *row != column) {
            let factor = both[row * width + column];
            add_multiple(&mut both[row * width..][..width], factor, &by);
        }
    }
    Some(both.chunks_exact(width.max(1)).flat_map(|row| row[n..].to_vec()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use std::collections::BTreeMap;

    const BYTES: usize = 24;

    /// A node with its bytes, stored as a driver stores them.
    struct Node {
        generation: Generation,
        slots: BTreeMap<Slot, Vec<u8>>,
    }

    impl Node {
        fn sum(&self, terms: &[Term]) -> Vec<u8> {
            let mut sum = vec![0; BYTES];
            terms.iter().for_each(|term| add_multiple(&mut sum, term.factor, &self.slots[&term.slot]));
            sum
        }

        fn take(&mut self, row: &CodedBlock, bytes: Vec<u8>) -> bool {
            let needed = self.generation.needs(row);
            let slot = self.generation.insert(row);
            assert_eq!(needed, slot.is_some());
            slot.is_some_and(|slot| self.slots.insert(slot, bytes).is_none())
        }

        fn decode(&mut self) {
            for recovery in self.generation.decoding().unwrap() {
                let bytes = self.sum(&recovery.terms);
                self.slots.insert(Slot::Block(recovery.block), bytes);
            }
            self.generation.decoded();
            self.slots.retain(|slot, _| matches!(slot, Slot::Block(_)));
        }
    }

    fn source(size: u16, rng: &mut ChaCha8Rng) -> Node {
        let mut block = |block| {
            let mut bytes = vec![0; BYTES];
            rng.fill(&mut bytes[..]);
            (Slot::Block(block), bytes)
        };
        Node { generation: Generation::whole(size), slots: (0..size).map(&mut block).collect() }
    }

    fn sink(size: u16) -> Node {
        Node { generation: Generation::new(size), slots: BTreeMap::new() }
    }

    proptest! {
        /// The blocks pass through a relay that codes again before it holds everything. Originals
        /// and combinations are mixed.
        #[test]
        fn any_mix_of_coded_blocks_decodes(seed: u64, size in 1u16..40, plain in 0u16..40) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let source = source(size, &mut rng);
            let (mut relay, mut last) = (sink(size), sink(size));
            for _ in 0..20 * size {
                let as_it_is = rng.random_range(0..40) < plain;
                let block = rng.random_range(0..size);
                let (row, terms) = if as_it_is {
                    source.generation.plain(block).unwrap()
                } else {
                    source.generation.combined(&mut rng).unwrap()
                };
                relay.take(&row, source.sum(&terms));
                let (row, terms) = relay.generation.combined(&mut rng).unwrap();
                prop_assert!(!relay.generation.needs(&row), "a combination of the blocks that it holds");
                last.take(&row, relay.sum(&terms));
                if last.generation.rank() == size {
                    break;
                }
            }
            prop_assert!(last.generation.decoding().is_some());
            last.decode();
            prop_assert_eq!(last.slots, source.slots);
            prop_assert!(last.generation.is_whole() && last.generation.holds(size - 1));
        }

        /// The two nodes have some coded blocks in common.
        #[test]
        fn a_null_vector_shows_whether_another_holds_anything_new(seed: u64, size in 1u16..40, common in 0u16..40, own in 0u16..4) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let source = Generation::whole(size);
            let mut nodes = [Generation::new(size), Generation::new(size)];
            for _ in 0..common.min(size) {
                let (row, _) = source.combined(&mut rng).unwrap();
                for node in &mut nodes {
                    node.insert(&row);
                }
            }
            for _ in 0..own {
                nodes[1].insert(&source.combined(&mut rng).unwrap().0);
            }
            let [mine, other] = &nodes;
            let Some(vectors) = (0..20).map(|_| mine.null_vector(&mut rng)).collect::<Option<Vec<_>>>() else {
                prop_assert!(mine.rank() == 0 || mine.rank() == size);
                return Ok(());
            };
            prop_assert!(vectors.iter().all(|vector| !mine.exceeds(vector)));
            // Each vector misses it with a probability of 1 in 256.
            prop_assert_eq!(vectors.iter().any(|vector| other.exceeds(vector)), other.rank() > mine.rank());
            prop_assert!(vectors.iter().any(|vector| source.exceeds(vector)));
        }

        /// An independent decoder, which eliminates bytes together with coefficients, finds the
        /// same blocks. The rows are random, because version 0.8.7 of that decoder accepts some
        /// sparse rows that are not new.
        #[test]
        fn another_decoder_agrees(seed: u64, pieces in 2u16..24) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut source = source(pieces, &mut rng);
            // It requires a marker byte after the data.
            source.slots.get_mut(&Slot::Block(pieces - 1)).unwrap()[BYTES - 1] = 0x81;
            let mut other = rlnc::full::Decoder::new(BYTES, usize::from(pieces)).unwrap();
            let mut ours = sink(pieces);
            while !other.is_already_decoded() {
                let (row, terms) = source.generation.combined(&mut rng).unwrap();
                let bytes = source.sum(&terms);
                let CodedBlock::Coded(factors) = &row else { panic!("{row:?}") };
                let whole: Vec<u8> = factors.iter().chain(&bytes).copied().collect();
                prop_assert_eq!(ours.take(&row, bytes), other.decode(&whole).is_ok());
            }
            ours.decode();
            let data: Vec<u8> = ours.slots.values().flatten().copied().collect();
            let theirs = other.get_decoded_data().unwrap();
            prop_assert_eq!(&data[..theirs.len()], &theirs[..]);
        }
    }

    #[test]
    fn coded_blocks_of_another_generation_are_not_admitted() {
        let mut generation = Generation::new(3);
        for row in
            [CodedBlock::Original(3), CodedBlock::Coded([1, 2].into()), CodedBlock::Coded([0, 0, 0].into())]
        {
            assert!(!generation.needs(&row));
            assert_eq!(generation.insert(&row), None);
        }
        assert_eq!(generation.insert(&CodedBlock::Coded([0, 5, 0].into())), Some(Slot::Coded(0)));
        assert!(!generation.needs(&CodedBlock::Original(1)), "a multiple of it is held");
        assert_eq!(generation.decoding(), None);
    }

    #[test]
    fn originals_are_not_decoded() {
        let mut generation = Generation::new(3);
        generation.insert(&CodedBlock::Original(2));
        generation.insert(&CodedBlock::Coded([1, 0, 7].into()));
        generation.insert(&CodedBlock::Original(1));
        let terms = vec![Term { factor: 1, slot: Slot::Coded(0) }, Term { factor: 7, slot: Slot::Block(2) }];
        assert_eq!(generation.decoding(), Some(vec![Recovery { block: 0, terms }]));
    }
}
