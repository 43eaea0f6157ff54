//! The bytes of a member: coded blocks of incomplete generations, and a bounded cache of complete
//! ones.

use crate::gf256_simd::add_multiple;
use cool_swarm::{Slot, Term};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Immutable bytes that threads share without copying.
pub(crate) type SharedBytes = Arc<[u8]>;

/// Size of the cache of complete generations, in addition to those that are yet to be written.
const CACHE_BYTES: usize = 64 << 20;

#[derive(Debug, Default)]
pub(crate) struct BlockMemory {
    live: BTreeMap<u32, BTreeMap<Slot, SharedBytes>>,
    /// Coded blocks of polluted generations. They are kept until the generation is right, to find
    /// the senders of wrong ones.
    aside: BTreeMap<u32, BTreeMap<Slot, SharedBytes>>,
    /// Complete generations that are yet to be written.
    unwritten: BTreeMap<u32, SharedBytes>,
    /// Complete generations that have been written, the most recently used one last.
    cache: VecDeque<(u32, SharedBytes)>,
}

/// A sum of coded blocks with all that is needed to compute it in another thread.
#[derive(Debug)]
pub(crate) enum BlockSum {
    /// The sum of these coded blocks.
    Rows(Vec<(u8, SharedBytes)>),
    /// The sum of blocks of a complete generation.
    Whole(SharedBytes, Vec<Term>),
    /// The sum of blocks of a generation that must be read first.
    Unread(Vec<Term>),
}

impl BlockMemory {
    pub(crate) fn store(&mut self, generation: u32, slot: Slot, bytes: SharedBytes) {
        self.live.entry(generation).or_default().insert(slot, bytes);
    }

    /// Returns a sum of blocks of a generation, which the caller should compute in another thread.
    pub(crate) fn sum(&mut self, generation: u32, terms: Vec<Term>) -> BlockSum {
        if self.live.contains_key(&generation) {
            return BlockSum::Rows(self.rows(generation, &terms));
        }
        match self.whole(generation) {
            Some(bytes) => BlockSum::Whole(bytes, terms),
            None => BlockSum::Unread(terms),
        }
    }

    fn whole(&mut self, generation: u32) -> Option<SharedBytes> {
        if let Some(bytes) = self.unwritten.get(&generation) {
            return Some(Arc::clone(bytes));
        }
        let at = self.cache.iter().position(|(of, _)| *of == generation)?;
        let used = self.cache.remove(at)?;
        let bytes = Arc::clone(&used.1);
        self.cache.push_back(used);
        Some(bytes)
    }

    /// Returns the coded blocks that the terms of an incomplete generation name, with their
    /// factors.
    pub(crate) fn rows(&self, generation: u32, terms: &[Term]) -> Vec<(u8, SharedBytes)> {
        // The machine names only slots that it has filled.
        let row = |term: &Term| Some((term.factor, Arc::clone(self.live.get(&generation)?.get(&term.slot)?)));
        terms.iter().filter_map(row).collect()
    }

    /// Returns the originals held of an incomplete generation, in order.
    pub(crate) fn blocks(&self, generation: u32) -> BTreeMap<u16, SharedBytes> {
        let rows = self.live.get(&generation).into_iter().flatten();
        let block = |(slot, bytes): (&Slot, &SharedBytes)| match slot {
            Slot::Block(number) => Some((*number, Arc::clone(bytes))),
            Slot::Coded(_) => None,
        };
        rows.filter_map(block).collect()
    }

    /// Records that a generation is complete and right, and is yet to be written.
    pub(crate) fn complete(&mut self, generation: u32, bytes: SharedBytes) {
        self.live.remove(&generation);
        self.unwritten.insert(generation, bytes);
    }

    /// Removes the coded blocks of a polluted generation. Those of the first attempt are set aside.
    pub(crate) fn set_aside(&mut self, generation: u32) {
        if let Some(rows) = self.live.remove(&generation) {
            self.aside.entry(generation).or_insert(rows);
        }
    }

    /// Removes and returns the coded blocks set aside, together with the generation that is right.
    pub(crate) fn take_aside(
        &mut self,
        generation: u32,
    ) -> Option<(BTreeMap<Slot, SharedBytes>, SharedBytes)> {
        Some((self.aside.remove(&generation)?, self.whole(generation)?))
    }

    /// Records that a generation was written, and moves it to the cache.
    pub(crate) fn written(&mut self, generation: u32) {
        if let Some(bytes) = self.unwritten.remove(&generation) {
            self.remember(generation, bytes);
        }
    }

    /// Returns the number of bytes that are held.
    pub(crate) fn bytes(&self) -> usize {
        let rows = self.live.values().chain(self.aside.values()).flat_map(BTreeMap::values);
        let whole = self.unwritten.values().chain(self.cache.iter().map(|(_, bytes)| bytes));
        rows.chain(whole).map(|bytes| bytes.len()).sum()
    }

    /// Adds a generation to the cache.
    pub(crate) fn remember(&mut self, generation: u32, bytes: SharedBytes) {
        if self.cache.iter().all(|(of, _)| *of != generation) {
            self.cache.push_back((generation, bytes));
        }
        let mut held: usize = self.cache.iter().map(|(_, bytes)| bytes.len()).sum();
        while held > CACHE_BYTES
            && self.cache.len() > 1
            && let Some((_, oldest)) = self.cache.pop_front()
        {
            held -= oldest.len();
        }
    }
}

/// Returns the sum of coded blocks, each of `block` bytes.
pub(crate) fn sum_of_rows(rows: &[(u8, SharedBytes)], block: usize) -> SharedBytes {
    // A single block with factor 1 is the sum.
    if let [(1, row)] = rows {
        return Arc::clone(row);
    }
    let mut sum = vec![0; block];
    rows.iter().for_each(|(factor, row)| add_multiple(&mut sum, *factor, row));
    sum.into()
}

/// Returns the sum of blocks of a complete generation.
pub(crate) fn sum_of_blocks(whole: &[u8], terms: &[Term], block: usize) -> SharedBytes {
    let mut sum = vec![0; block];
    for term in terms {
        if let Slot::Block(number) = term.slot
            && let Some(row) = whole.get(usize::from(number) * block..(usize::from(number) + 1) * block)
        {
            add_multiple(&mut sum, term.factor, row);
        }
    }
    sum.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(sum: BlockSum) -> Vec<u8> {
        match sum {
            BlockSum::Rows(rows) => sum_of_rows(&rows, 2).to_vec(),
            BlockSum::Whole(bytes, terms) => sum_of_blocks(&bytes, &terms, 2).to_vec(),
            BlockSum::Unread(_) => panic!("the generation is in memory"),
        }
    }

    #[test]
    fn sums_are_the_same_before_and_after_a_generation_is_whole() {
        let mut memory = BlockMemory::default();
        let [one, two] = [[1, 2], [3, 4]].map(SharedBytes::from);
        memory.store(5, Slot::Block(0), one);
        memory.store(5, Slot::Coded(0), SharedBytes::from([9, 9]));
        memory.store(5, Slot::Block(1), two);
        let terms = vec![Term { factor: 2, slot: Slot::Block(0) }, Term { factor: 1, slot: Slot::Block(1) }];
        assert_eq!(rows(memory.sum(5, terms.clone())), [2 ^ 3, 4 ^ 4]);
        let blocks: Vec<SharedBytes> = memory.blocks(5).into_values().collect();
        assert_eq!(blocks.concat(), [1, 2, 3, 4], "combinations are excluded");
        memory.complete(5, blocks.concat().into());
        assert!(memory.blocks(5).is_empty());
        assert_eq!(rows(memory.sum(5, terms.clone())), [2 ^ 3, 4 ^ 4]);
        memory.written(5);
        assert_eq!(rows(memory.sum(5, terms.clone())), [2 ^ 3, 4 ^ 4]);
        assert!(matches!(memory.sum(6, terms), BlockSum::Unread(_)));
    }

    #[test]
    fn blocks_of_a_polluted_generation_are_kept_until_it_is_right() {
        let mut memory = BlockMemory::default();
        for wrong in [7, 8] {
            memory.store(5, Slot::Block(0), SharedBytes::from([wrong]));
            memory.set_aside(5);
            assert!(memory.blocks(5).is_empty());
        }
        memory.complete(5, SharedBytes::from([1]));
        let (rows, right) = memory.take_aside(5).unwrap();
        assert_eq!((&*rows[&Slot::Block(0)], &*right), (&[7][..], &[1][..]), "blocks of the first attempt");
        assert!(memory.take_aside(5).is_none());
    }

    #[test]
    fn the_least_recently_used_generation_is_evicted() {
        let mut memory = BlockMemory::default();
        for generation in 0..4 {
            memory.remember(generation, vec![0; CACHE_BYTES / 3].into());
            memory.sum(0, Vec::new());
        }
        let held: Vec<u32> = memory.cache.iter().map(|(generation, _)| *generation).collect();
        assert_eq!(held, [2, 3, 0]);
    }
}
