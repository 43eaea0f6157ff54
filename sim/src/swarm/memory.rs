//! A node's memory of a content, as a driver of the swarm keeps it: bytes by slot, and of blocks that have come.

use cool_swarm::{Division, Recovery, Slot, Term, field};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

/// A content by chance: blocks of this many bytes.
pub(super) fn content(blocks: u32, bytes: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut chance = ChaCha8Rng::seed_from_u64(!seed);
    let block = |_| {
        let mut block = vec![0; bytes];
        chance.fill(&mut block[..]);
        block
    };
    (0..blocks).map(block).collect()
}

#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    slots: BTreeMap<(u32, Slot), Vec<u8>>,
    /// By sender and transfer.
    came: BTreeMap<(usize, u32), Vec<u8>>,
}

impl Memory {
    pub(super) fn fill(&mut self, division: &Division, content: &[Vec<u8>]) {
        for (block, bytes) in (0..).zip(content) {
            let (generation, block) = division.place(block);
            self.slots.insert((generation, Slot::Block(block)), bytes.clone());
        }
    }

    /// # Panics
    /// If a slot is named that nothing was stored in.
    pub(super) fn sum(&self, generation: u32, terms: &[Term], bytes: usize) -> Vec<u8> {
        let mut sum = vec![0; bytes];
        for term in terms {
            let row = self.slots.get(&(generation, term.slot)).expect("only slots that are stored are named");
            field::add_multiple(&mut sum, term.factor, row);
        }
        sum
    }

    pub(super) fn came(&mut self, from: usize, transfer: u32, bytes: Vec<u8>) {
        self.came.insert((from, transfer), bytes);
    }

    pub(super) fn store(&mut self, from: usize, transfer: u32, generation: u32, slot: Slot) {
        let bytes = self.came.remove(&(from, transfer)).expect("only what has come is stored");
        self.slots.insert((generation, slot), bytes);
    }

    pub(super) fn forget(&mut self, from: usize, transfer: u32) {
        self.came.remove(&(from, transfer));
    }

    pub(super) fn decode(&mut self, generation: u32, recoveries: &[Recovery], bytes: usize) {
        let blocks: Vec<_> = recoveries
            .iter()
            .map(|recovery| (recovery.block, self.sum(generation, &recovery.terms, bytes)))
            .collect();
        for (block, bytes) in blocks {
            self.slots.insert((generation, Slot::Block(block)), bytes);
        }
    }

    /// The first block that is not as it should be.
    pub(super) fn first_difference(&self, division: &Division, content: &[Vec<u8>]) -> Option<(u32, u16)> {
        let places = (0..).map(|block| division.place(block));
        let wrong = places.zip(content).find(|((generation, block), bytes)| {
            self.slots.get(&(*generation, Slot::Block(*block))) != Some(bytes)
        });
        wrong.map(|(place, _)| place)
    }
}
