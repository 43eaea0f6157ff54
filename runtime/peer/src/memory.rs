//! A member's bytes: rows of generations that come, and generations that are whole, as far as there is room for them.

use crate::kernel::add_multiple;
use cool_swarm::{Slot, Term};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Bytes that are shared between threads.
pub(crate) type Bytes = Arc<[u8]>;

/// Bytes of whole generations that are kept at hand, beside those that are yet to be written.
const CACHE_BYTES: usize = 64 << 20;

#[derive(Debug, Default)]
pub(crate) struct Memory {
    live: BTreeMap<u32, BTreeMap<Slot, Bytes>>,
    /// Rows of generations that were polluted, until they are right.
    aside: BTreeMap<u32, BTreeMap<Slot, Bytes>>,
    /// Whole, and yet to be written.
    unwritten: BTreeMap<u32, Bytes>,
    /// Whole and written, the one that was used last at the end.
    cache: VecDeque<(u32, Bytes)>,
}

/// A sum of rows, apart from the memory that it is of.
#[derive(Debug)]
pub(crate) enum Sum {
    /// Of these rows.
    Rows(Vec<(u8, Bytes)>),
    /// Of blocks of a whole generation.
    Whole(Bytes, Vec<Term>),
    /// Of blocks of a generation that has to be read first.
    Unread(Vec<Term>),
}

impl Memory {
    pub(crate) fn store(&mut self, generation: u32, slot: Slot, bytes: Bytes) {
        self.live.entry(generation).or_default().insert(slot, bytes);
    }

    /// What terms add up to.
    pub(crate) fn sum(&mut self, generation: u32, terms: Vec<Term>) -> Sum {
        if self.live.contains_key(&generation) {
            return Sum::Rows(self.rows(generation, &terms));
        }
        match self.whole(generation) {
            Some(bytes) => Sum::Whole(bytes, terms),
            None => Sum::Unread(terms),
        }
    }

    fn whole(&mut self, generation: u32) -> Option<Bytes> {
        if let Some(bytes) = self.unwritten.get(&generation) {
            return Some(Arc::clone(bytes));
        }
        let at = self.cache.iter().position(|(of, _)| *of == generation)?;
        let used = self.cache.remove(at)?;
        let bytes = Arc::clone(&used.1);
        self.cache.push_back(used);
        Some(bytes)
    }

    /// The rows that terms of a generation name which is not whole, each with its factor.
    pub(crate) fn rows(&self, generation: u32, terms: &[Term]) -> Vec<(u8, Bytes)> {
        // The machine names slots only that it had filled.
        let row = |term: &Term| Some((term.factor, Arc::clone(self.live.get(&generation)?.get(&term.slot)?)));
        terms.iter().filter_map(row).collect()
    }

    /// The blocks of a generation that is not whole which came as they are, in their order.
    pub(crate) fn blocks(&self, generation: u32) -> BTreeMap<u16, Bytes> {
        let rows = self.live.get(&generation).into_iter().flatten();
        let block = |(slot, bytes): (&Slot, &Bytes)| match slot {
            Slot::Block(number) => Some((*number, Arc::clone(bytes))),
            Slot::Coded(_) => None,
        };
        rows.filter_map(block).collect()
    }

    /// All of a generation is here, right, and yet to be written.
    pub(crate) fn complete(&mut self, generation: u32, bytes: Bytes) {
        self.live.remove(&generation);
        self.unwritten.insert(generation, bytes);
    }

    /// A generation is polluted: its rows count no more. Those of the first time are set aside.
    pub(crate) fn set_aside(&mut self, generation: u32) {
        if let Some(rows) = self.live.remove(&generation) {
            self.aside.entry(generation).or_insert(rows);
        }
    }

    /// Those rows, and the generation that is right.
    pub(crate) fn take_aside(&mut self, generation: u32) -> Option<(BTreeMap<Slot, Bytes>, Bytes)> {
        Some((self.aside.remove(&generation)?, self.whole(generation)?))
    }

    /// A generation was written.
    pub(crate) fn written(&mut self, generation: u32) {
        if let Some(bytes) = self.unwritten.remove(&generation) {
            self.remember(generation, bytes);
        }
    }

    /// Has a generation at hand that was read.
    pub(crate) fn remember(&mut self, generation: u32, bytes: Bytes) {
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

/// Adds up rows of a block's length.
pub(crate) fn sum_of_rows(rows: &[(u8, Bytes)], block: usize) -> Bytes {
    // A block as it is.
    if let [(1, row)] = rows {
        return Arc::clone(row);
    }
    let mut sum = vec![0; block];
    rows.iter().for_each(|(factor, row)| add_multiple(&mut sum, *factor, row));
    sum.into()
}

/// Adds up blocks of a whole generation.
pub(crate) fn sum_of_blocks(whole: &[u8], terms: &[Term], block: usize) -> Bytes {
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

    fn rows(sum: Sum) -> Vec<u8> {
        match sum {
            Sum::Rows(rows) => sum_of_rows(&rows, 2).to_vec(),
            Sum::Whole(bytes, terms) => sum_of_blocks(&bytes, &terms, 2).to_vec(),
            Sum::Unread(_) => panic!("it is at hand"),
        }
    }

    #[test]
    fn sums_are_the_same_before_and_after_a_generation_is_whole() {
        let mut memory = Memory::default();
        let [one, two] = [[1, 2], [3, 4]].map(Bytes::from);
        memory.store(5, Slot::Block(0), one);
        memory.store(5, Slot::Coded(0), Bytes::from([9, 9]));
        memory.store(5, Slot::Block(1), two);
        let terms = vec![Term { factor: 2, slot: Slot::Block(0) }, Term { factor: 1, slot: Slot::Block(1) }];
        assert_eq!(rows(memory.sum(5, terms.clone())), [2 ^ 3, 4 ^ 4]);
        let blocks: Vec<Bytes> = memory.blocks(5).into_values().collect();
        assert_eq!(blocks.concat(), [1, 2, 3, 4], "coded rows are left out");
        memory.complete(5, blocks.concat().into());
        assert!(memory.blocks(5).is_empty());
        assert_eq!(rows(memory.sum(5, terms.clone())), [2 ^ 3, 4 ^ 4]);
        memory.written(5);
        assert_eq!(rows(memory.sum(5, terms.clone())), [2 ^ 3, 4 ^ 4]);
        assert!(matches!(memory.sum(6, terms), Sum::Unread(_)));
    }

    #[test]
    fn rows_of_a_polluted_generation_are_kept_aside_until_it_is_right() {
        let mut memory = Memory::default();
        for wrong in [7, 8] {
            memory.store(5, Slot::Block(0), Bytes::from([wrong]));
            memory.set_aside(5);
            assert!(memory.blocks(5).is_empty());
        }
        memory.complete(5, Bytes::from([1]));
        let (rows, right) = memory.take_aside(5).unwrap();
        assert_eq!((&*rows[&Slot::Block(0)], &*right), (&[7][..], &[1][..]), "of the first time");
        assert!(memory.take_aside(5).is_none());
    }

    #[test]
    fn what_was_not_used_for_longest_is_forgotten_once_there_is_too_much() {
        let mut memory = Memory::default();
        for generation in 0..4 {
            memory.remember(generation, vec![0; CACHE_BYTES / 3].into());
            memory.sum(0, Vec::new());
        }
        let held: Vec<u32> = memory.cache.iter().map(|(generation, _)| *generation).collect();
        assert_eq!(held, [2, 3, 0]);
    }
}
