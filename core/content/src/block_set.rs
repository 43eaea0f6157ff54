//! The set of a manifest's blocks that a node has.

/// A set of a manifest's blocks, by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSet {
    /// Number of blocks of the manifest.
    blocks: usize,
    words: Vec<u64>,
}

impl BlockSet {
    /// Returns the empty set for a manifest with this number of blocks.
    #[must_use]
    pub fn none(blocks: usize) -> BlockSet {
        BlockSet { blocks, words: vec![0; blocks.div_ceil(64)] }
    }

    /// Returns the set that a bitmap in the form of [`BlockSet::words`] describes. Bits beyond the
    /// last block are ignored, because the bitmap may originate at another node.
    #[must_use]
    pub fn from_words(blocks: usize, words: &[u64]) -> BlockSet {
        let mut set = BlockSet::none(blocks);
        for (own, word) in set.words.iter_mut().zip(words) {
            *own = *word;
        }
        set.trim();
        set
    }

    /// Returns the set as a bitmap: block i is bit i % 64 of word i / 64.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Adds a block.
    ///
    /// # Panics
    /// Panics if the manifest has no such block.
    pub fn insert(&mut self, block: u32) {
        assert!((block as usize) < self.blocks, "block {block} of {}", self.blocks);
        self.words[block as usize / 64] |= 1 << (block % 64);
    }

    /// Returns whether the set contains a block.
    #[must_use]
    pub fn contains(&self, block: u32) -> bool {
        self.words.get(block as usize / 64).is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    /// Removes the blocks that `other` does not contain.
    pub fn intersect(&mut self, other: &BlockSet) {
        for (own, word) in self.words.iter_mut().zip(&other.words) {
            *own &= word;
        }
    }

    /// Returns the blocks of the manifest that are not in this set.
    #[must_use]
    pub fn complement(&self) -> BlockSet {
        let mut set = BlockSet { blocks: self.blocks, words: self.words.iter().map(|word| !word).collect() };
        set.trim();
        set
    }

    /// Returns the number of blocks in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether the set contains no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Returns whether the set contains all blocks of the manifest.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() == self.blocks
    }

    /// Returns the numbers of the blocks in the set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        // A manifest has fewer than 2^32 blocks.
        (0..self.blocks as u32).filter(|block| self.contains(*block))
    }

    /// Clears the bits beyond the last block.
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
        fn block_sets_behave_like_ordinary_sets(blocks in 1usize..300, one: Vec<u32>, other: Vec<u32>) {
            let reduced = |numbers: &[u32]| numbers.iter().map(|n| n % blocks as u32).collect::<BTreeSet<_>>();
            let packed = |numbers: &BTreeSet<u32>| {
                let mut set = BlockSet::none(blocks);
                numbers.iter().for_each(|n| set.insert(*n));
                set
            };
            let (one, other) = (reduced(&one), reduced(&other));
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
        fn bits_beyond_the_last_block_are_ignored(blocks in 0usize..130, words: Vec<u64>) {
            let set = BlockSet::from_words(blocks, &words);
            prop_assert!(set.iter().all(|block| (block as usize) < blocks));
            prop_assert_eq!(set.iter().count(), set.len());
            prop_assert!(!set.contains(blocks as u32));
        }
    }
}
