//! The memory of a node, as a driver of the swarm manages it: bytes by slot, and blocks that have
//! arrived.

use cool_swarm::{Division, Member, Origin, Recovery, Slot, Term, field};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

/// Returns a random content of blocks of this many bytes.
pub(super) fn content(blocks: u32, bytes: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut rng = ChaCha8Rng::seed_from_u64(!seed);
    let block = |_| {
        let mut block = vec![0; bytes];
        rng.fill(&mut block[..]);
        block
    };
    (0..blocks).map(block).collect()
}

#[derive(Clone, Debug, Default)]
pub(super) struct SwarmMemory {
    slots: BTreeMap<(u32, Slot), Vec<u8>>,
    /// Coded blocks of polluted generations, kept until the generation is right.
    aside: BTreeMap<u32, BTreeMap<Slot, Vec<u8>>>,
    /// Blocks that have arrived and are not stored yet, by sender and transfer.
    arrived: BTreeMap<(usize, u32), Vec<u8>>,
}

impl SwarmMemory {
    pub(super) fn fill(&mut self, division: &Division, content: &[Vec<u8>]) {
        for (block, bytes) in (0..).zip(content) {
            let (generation, block) = division.place(block);
            self.slots.insert((generation, Slot::Block(block)), bytes.clone());
        }
    }

    /// # Panics
    /// Panics if a term names a slot in which nothing is stored.
    pub(super) fn sum(&self, generation: u32, terms: &[Term], bytes: usize) -> Vec<u8> {
        let mut sum = vec![0; bytes];
        for term in terms {
            let row =
                self.slots.get(&(generation, term.slot)).expect("terms name only slots that are filled");
            field::add_multiple(&mut sum, term.factor, row);
        }
        sum
    }

    pub(super) fn receive(&mut self, from: usize, transfer: u32, bytes: Vec<u8>) {
        self.arrived.insert((from, transfer), bytes);
    }

    pub(super) fn store(&mut self, from: usize, transfer: u32, generation: u32, slot: Slot) {
        let bytes = self.arrived.remove(&(from, transfer)).expect("only blocks that have arrived are stored");
        self.slots.insert((generation, slot), bytes);
    }

    pub(super) fn forget(&mut self, from: usize, transfer: u32) {
        self.arrived.remove(&(from, transfer));
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

    /// Removes the coded blocks of a polluted generation. Those of the first attempt are set aside.
    pub(super) fn set_aside(&mut self, generation: u32) {
        let of = (generation, Slot::Block(0))..(generation + 1, Slot::Block(0));
        let rows = self.slots.extract_if(of, |_, _| true).map(|((_, slot), bytes)| (slot, bytes)).collect();
        self.aside.entry(generation).or_insert(rows);
    }

    /// Returns the senders of those blocks that do not match their announcements, and removes all
    /// blocks set aside.
    pub(super) fn wrong_rows(&mut self, generation: u32, suspects: &[Origin]) -> Vec<(Member, bool)> {
        let Some(rows) = self.aside.remove(&generation) else { return Vec::new() };
        let is_wrong = |suspect: &&Origin| {
            let row = &rows[&suspect.slot];
            self.sum(generation, &suspect.row.terms(), row.len()) != *row
        };
        suspects.iter().filter(is_wrong).map(|suspect| (suspect.from, suspect.checked)).collect()
    }

    /// Returns whether a generation has the right bytes.
    pub(super) fn is_right(&self, generation: u32, division: &Division, content: &[Vec<u8>]) -> bool {
        (0..division.size(generation)).all(|block| {
            let number = (division.first(generation) + u32::from(block)) as usize;
            self.slots.get(&(generation, Slot::Block(block))) == content.get(number)
        })
    }

    /// Keeps only the content of the node's disk: generations that are right.
    pub(super) fn keep_only(&mut self, generations: &[u32]) {
        self.aside.clear();
        self.arrived.clear();
        self.slots.retain(|(generation, slot), _| {
            matches!(slot, Slot::Block(_)) && generations.contains(generation)
        });
    }

    /// Returns the first block with wrong bytes.
    pub(super) fn first_difference(&self, division: &Division, content: &[Vec<u8>]) -> Option<(u32, u16)> {
        let places = (0..).map(|block| division.place(block));
        let wrong = places.zip(content).find(|((generation, block), bytes)| {
            self.slots.get(&(*generation, Slot::Block(*block))) != Some(bytes)
        });
        wrong.map(|(place, _)| place)
    }
}
