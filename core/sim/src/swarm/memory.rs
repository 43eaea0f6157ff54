//! A node's memory of a content, as a driver of the swarm keeps it: bytes by slot, and of blocks that have come.

use cool_swarm::{Division, Member, Origin, Recovery, Slot, Term, field};
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
    /// Rows of generations that were polluted, until they are right.
    aside: BTreeMap<u32, BTreeMap<Slot, Vec<u8>>>,
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

    /// A generation is polluted: its rows count no more. Those of the first time are set aside.
    pub(super) fn set_aside(&mut self, generation: u32) {
        let of = (generation, Slot::Block(0))..(generation + 1, Slot::Block(0));
        let rows = self.slots.extract_if(of, |_, _| true).map(|((_, slot), bytes)| (slot, bytes)).collect();
        self.aside.entry(generation).or_insert(rows);
    }

    /// Which of the rows that were set aside are not what their heads said; they are forgotten.
    pub(super) fn wrong_rows(&mut self, generation: u32, suspects: &[Origin]) -> Vec<(Member, bool)> {
        let Some(rows) = self.aside.remove(&generation) else { return Vec::new() };
        let is_wrong = |suspect: &&Origin| {
            let row = &rows[&suspect.slot];
            self.sum(generation, &suspect.row.terms(), row.len()) != *row
        };
        suspects.iter().filter(is_wrong).map(|suspect| (suspect.from, suspect.checked)).collect()
    }

    /// Whether a generation is as it should be.
    pub(super) fn is_right(&self, generation: u32, division: &Division, content: &[Vec<u8>]) -> bool {
        (0..division.size(generation)).all(|block| {
            let number = (division.first(generation) + u32::from(block)) as usize;
            self.slots.get(&(generation, Slot::Block(block))) == content.get(number)
        })
    }

    /// What stands on the disk of a node: generations that are right.
    pub(super) fn keep_only(&mut self, generations: &[u32]) {
        self.aside.clear();
        self.came.clear();
        self.slots.retain(|(generation, slot), _| {
            matches!(slot, Slot::Block(_)) && generations.contains(generation)
        });
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
