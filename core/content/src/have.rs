//! Which blocks of a manifest a node has.

/// Some of a manifest's blocks, by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSet {
    /// How many there are in all.
    blocks: usize,
    words: Vec<u64>,
}

impl BlockSet {
    /// None of a manifest's blocks, which are `blocks`.
    #[must_use]
    pub fn none(blocks: usize) -> BlockSet {
        BlockSet { blocks, words: vec![0; blocks.div_ceil(64)] }
    }

    /// The set that [`BlockSet::words`] tells of; what they say of blocks that are not there is left out.
    #[must_use]
    pub fn from_words(blocks: usize, words: &[u64]) -> BlockSet {
        let mut set = BlockSet::none(blocks);
        for (own, word) in set.words.iter_mut().zip(words) {
            *own = *word;
        }
        set.trim();
        set
    }

    /// As a bitmap: block i is bit i % 64 of word i / 64.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Puts a block in.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn insert(&mut self, block: u32) {
        assert!((block as usize) < self.blocks, "block {block} of {}", self.blocks);
        self.words[block as usize / 64] |= 1 << (block % 64);
    }

    /// Whether a block is in it.
    #[must_use]
    pub fn contains(&self, block: u32) -> bool {
        self.words.get(block as usize / 64).is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    /// Those that are in both.
    pub fn intersect(&mut self, other: &BlockSet) {
        for (own, word) in self.words.iter_mut().zip(&other.words) {
            *own &= word;
        }
    }

    /// All the others.
    #[must_use]
    pub fn complement(&self) -> BlockSet {
        let mut set = BlockSet { blocks: self.blocks, words: self.words.iter().map(|word| !word).collect() };
        set.trim();
        set
    }

    /// How many are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Whether all are.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() == self.blocks
    }

    /// The numbers of those that are in it, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        // A manifest has fewer than 2^32 blocks.
        (0..self.blocks as u32).filter(|block| self.contains(*block))
    }

    /// Takes out what lies behind the last block.
    fn trim(&mut self) {
        if let Some(last) = self.words.last_mut().filter(|_| !self.blocks.is_multiple_of(64)) {
            *last &= (1 << (self.blocks % 64)) - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn sets_of_blocks_are_as_any_sets(blocks in 1usize..300, one: Vec<u32>, other: Vec<u32>) {
            let of = |numbers: &[u32]| numbers.iter().map(|n| n % blocks as u32).collect::<BTreeSet<_>>();
            let packed = |numbers: &BTreeSet<u32>| {
                let mut set = BlockSet::none(blocks);
                numbers.iter().for_each(|n| set.insert(*n));
                set
            };
            let (one, other) = (of(&one), of(&other));
            let mut set = packed(&one);
            prop_assert_eq!(&BlockSet::from_words(blocks, set.words()), &set);
            prop_assert!(set.iter().eq(one.iter().copied()));
            prop_assert_eq!((set.len(), set.is_empty()), (one.len(), one.is_empty()));
            let all: BTreeSet<u32> = (0..blocks as u32).collect();
            prop_assert!(set.complement().iter().eq(all.difference(&one).copied()));
            prop_assert_eq!(set.is_full(), one == all);
            set.intersect(&packed(&other));
            prop_assert!(set.iter().eq(one.intersection(&other).copied()));
        }

        #[test]
        fn words_of_others_never_tell_of_blocks_that_are_not_there(blocks in 0usize..130, words: Vec<u64>) {
            let set = BlockSet::from_words(blocks, &words);
            prop_assert!(set.iter().all(|block| (block as usize) < blocks));
            prop_assert_eq!(set.iter().count(), set.len());
            prop_assert!(!set.contains(blocks as u32));
        }
    }
}
