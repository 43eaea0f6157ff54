//! Random rings without lists: in each round all members form a ring, and each sends to its
//! successor.
//!
//! In Cooper (2.1) each round uses a uniformly random permutation of all nodes, and a central
//! generator distributes lists of permutations (section 5). Here a member computes its successor
//! from a shared seed: one keyed bijection orders the racks, and another one the members of each
//! rack. Members of a rack are adjacent, so that in each round one block enters each rack and one
//! leaves it, which is all that an uplink of a host's rate can carry. If all members are declared
//! to be in one rack, they form a uniformly random ring, as in the paper.

use serde::{Deserialize, Serialize};

/// The identity of a member: a slot of a rack. It does not change; slots may be vacant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// The rack, from 0.
    pub rack: u32,
    /// The slot in the rack, from 0.
    pub slot: u32,
}

/// The rings of a swarm, one for each round.
#[derive(Clone, Debug)]
pub struct Rings {
    key: u64,
    /// Number of slots of each rack.
    racks: Vec<u32>,
}

impl Rings {
    /// Returns the rings over racks with the given numbers of slots. `epoch` is the version of the
    /// membership; different epochs have different rings.
    pub fn new(seed: u64, epoch: u32, racks: Vec<u32>) -> Rings {
        Rings { key: mixed(seed, u64::from(epoch)), racks }
    }

    /// Adds a slot for a member. Until all members have added it, their rings differ. That causes
    /// some refusals but does no harm.
    pub fn include(&mut self, member: Member) {
        let rack = member.rack as usize;
        if self.racks.len() <= rack {
            self.racks.resize(rack + 1, 0);
        }
        self.racks[rack] = self.racks[rack].max(member.slot + 1);
    }

    /// Returns the next member after `of` in the ring of a round for which `here` holds, or none if
    /// there is no other.
    ///
    /// Vacant slots are skipped, so the remaining members still form a ring. The cost is a few
    /// hashes, and a few more for each slot that is skipped.
    pub fn successor(&self, round: u64, of: Member, here: impl Fn(Member) -> bool) -> Option<Member> {
        let key = mixed(self.key, round);
        let mut rack = of.rack;
        let mut inside = Permutation::new(mixed(key, 1 + u64::from(rack)), *self.racks.get(rack as usize)?);
        if of.slot >= inside.size() {
            return None;
        }
        let racks = u32::try_from(self.racks.len()).ok()?;
        let mut order = None;
        let mut at = inside.place(of.slot);
        let slots: u64 = self.racks.iter().map(|slots| u64::from(*slots)).sum();
        let mut passed = 1;
        while passed < slots {
            at += 1;
            while at >= inside.size() {
                let order = order.get_or_insert_with(|| Permutation::new(key, racks));
                rack = order.at((order.place(rack) + 1) % racks);
                inside = Permutation::new(mixed(key, 1 + u64::from(rack)), self.racks[rack as usize]);
                at = 0;
            }
            let member = Member { rack, slot: inside.at(at) };
            if here(member) {
                return Some(member);
            }
            passed += 1;
        }
        None
    }
}

/// Maximum size of a permutation that is listed. Below it a list is faster than a Feistel network,
/// because the network needs more iterations the smaller the range is.
const LISTED_MAX: u32 = 64;

/// A keyed permutation of the numbers below a size.
#[derive(Clone, Debug)]
enum Permutation {
    /// The numbers in shuffled order (Durstenfeld 1964).
    Listed(Vec<u32>),
    Computed(Bijection),
}

impl Permutation {
    fn new(key: u64, size: u32) -> Permutation {
        if size > LISTED_MAX {
            return Permutation::Computed(Bijection::new(key, size));
        }
        let mut list: Vec<u32> = (0..size).collect();
        for last in (1..list.len()).rev() {
            list.swap(last, (mixed(key, last as u64) % (last as u64 + 1)) as usize);
        }
        Permutation::Listed(list)
    }

    fn size(&self) -> u32 {
        match self {
            Permutation::Listed(list) => list.len() as u32,
            Permutation::Computed(bijection) => bijection.size,
        }
    }

    /// Returns the position of a number, which must be less than the size.
    fn place(&self, number: u32) -> u32 {
        match self {
            Permutation::Listed(list) => list.iter().position(|at| *at == number).map_or(0, |at| at as u32),
            Permutation::Computed(bijection) => bijection.place(number),
        }
    }

    /// Returns the number at a position, which must be less than the size.
    fn at(&self, place: u32) -> u32 {
        match self {
            Permutation::Listed(list) => list[place as usize],
            Permutation::Computed(bijection) => bijection.at(place),
        }
    }
}

/// Number of rounds of the Feistel network. Four hide a large permutation (Luby and Rackoff 1988),
/// but for a few dozen numbers four make some successors ten times as likely as others. Six do not,
/// and standards use eight to ten (NIST SP 800-38G).
const FEISTEL: u64 = 8;

/// A keyed bijection of the numbers below `size`: a Feistel network over the next power of four,
/// repeated until the result is below `size` (cycle walking: Black and Rogaway 2002).
#[derive(Clone, Copy, Debug)]
struct Bijection {
    key: u64,
    size: u32,
    half: u32,
}

impl Bijection {
    fn new(key: u64, size: u32) -> Bijection {
        let bits = u32::BITS - size.saturating_sub(1).leading_zeros();
        Bijection { key, size, half: bits.div_ceil(2) }
    }

    /// Returns the position of a number, which must be less than the size.
    fn place(&self, mut number: u32) -> u32 {
        loop {
            let (mut left, mut right) = self.halves(number);
            for round in 0..FEISTEL {
                (left, right) = (right, left ^ self.scrambled(round, right));
            }
            number = self.joined(left, right);
            if number < self.size {
                return number;
            }
        }
    }

    /// Returns the number at a position, which must be less than the size.
    fn at(&self, mut place: u32) -> u32 {
        loop {
            let (mut left, mut right) = self.halves(place);
            for round in (0..FEISTEL).rev() {
                (left, right) = (right ^ self.scrambled(round, left), left);
            }
            place = self.joined(left, right);
            if place < self.size {
                return place;
            }
        }
    }

    fn halves(&self, number: u32) -> (u64, u64) {
        (u64::from(number) >> self.half, u64::from(number) & self.mask())
    }

    fn joined(&self, left: u64, right: u64) -> u32 {
        (left << self.half | right) as u32
    }

    fn mask(&self) -> u64 {
        (1 << self.half) - 1
    }

    fn scrambled(&self, round: u64, half: u64) -> u64 {
        mixed(self.key, round << 32 | half) & self.mask()
    }
}

/// Returns a hash of two numbers: the finalizer of SplitMix64 (Steele, Lea and Flood 2014), applied
/// to one and then to both.
fn mixed(a: u64, b: u64) -> u64 {
    finalized(finalized(a).wrapping_add(b))
}

fn finalized(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn members(racks: &[u32]) -> Vec<Member> {
        let slots = |(rack, slots): (u32, &u32)| (0..*slots).map(move |slot| Member { rack, slot });
        (0u32..).zip(racks).flat_map(slots).collect()
    }

    /// Returns the ring of a round, starting at a member.
    fn ring(rings: &Rings, round: u64, from: Member, here: impl Fn(Member) -> bool) -> Vec<Member> {
        let mut ring = vec![from];
        while let Some(next) = rings.successor(round, *ring.last().unwrap(), &here) {
            if next == from {
                break;
            }
            ring.push(next);
            assert!(ring.len() < 10_000, "no ring");
        }
        ring
    }

    proptest! {
        #[test]
        fn a_permutation_and_its_inverse_meet(key: u64, size in 1u32..5000, number: u32) {
            for size in [size, 1 + size % LISTED_MAX] {
                let permutation = Permutation::new(key, size);
                let place = permutation.place(number % size);
                prop_assert!(place < size);
                prop_assert_eq!(permutation.at(place), number % size);
            }
        }

        /// The ring contains each present member once, and those of a rack are adjacent.
        #[test]
        fn every_round_is_one_ring_that_enters_each_rack_once(
            seed: u64,
            round: u64,
            racks in prop::collection::vec(0u32..9, 1..9),
            vacant in prop::collection::btree_set((0u32..9, 0u32..9), 0..20),
        ) {
            let here = |member: Member| !vacant.contains(&(member.rack, member.slot));
            let all: Vec<Member> = members(&racks).into_iter().filter(|member| here(*member)).collect();
            let rings = Rings::new(seed, 1, racks.clone());
            let Some(first) = all.first() else { return Ok(()) };
            let ring = ring(&rings, round, *first, here);
            prop_assert_eq!(ring.iter().copied().collect::<BTreeSet<_>>(), all.iter().copied().collect());
            prop_assert_eq!(ring.len(), all.len());
            let pairs = ring.iter().zip(ring.iter().cycle().skip(1));
            let entered: Vec<u32> = pairs.filter(|(a, b)| a.rack != b.rack).map(|(_, b)| b.rack).collect();
            prop_assert_eq!(entered.iter().collect::<BTreeSet<_>>().len(), entered.len());
        }
    }

    #[test]
    fn neither_a_lone_member_nor_a_stranger_has_a_successor() {
        let rings = Rings::new(1, 1, vec![3, 2]);
        let me = Member { rack: 1, slot: 1 };
        assert_eq!(rings.successor(5, me, |member| member == me), None);
        assert_eq!(rings.successor(5, Member { rack: 2, slot: 0 }, |_| true), None);
        assert_eq!(rings.successor(5, Member { rack: 1, slot: 2 }, |_| true), None);
    }

    /// Chi-squared test over many rounds, for sizes from the smallest on: all other members are the
    /// successor equally often.
    #[test]
    fn all_others_are_successors_equally_often() {
        for size in [3u32, 4, 7, 16, 17, 64, 100] {
            let rings = Rings::new(u64::from(size), 3, vec![size]);
            let rounds = 400 * u64::from(size);
            for of in [0, size - 1] {
                let mut counts = vec![0f64; size as usize];
                for round in 0..rounds {
                    let next = rings.successor(round, Member { rack: 0, slot: of }, |_| true).unwrap();
                    counts[next.slot as usize] += 1.0;
                }
                assert_eq!(counts[of as usize], 0.0);
                let freedom = f64::from(size - 2);
                let expected = rounds as f64 / f64::from(size - 1);
                let squares: f64 =
                    counts.iter().map(|count| (count - expected) * (count - expected) / expected).sum();
                let chi_squared = squares - expected; // the member itself is never a successor
                assert!(chi_squared < freedom + 5.0 * (2.0 * freedom).sqrt(), "{size}: {chi_squared}");
            }
        }
    }

    #[test]
    fn a_new_member_finds_room_and_another_epoch_has_other_rings() {
        let mut rings = Rings::new(9, 1, vec![2]);
        let new = Member { rack: 2, slot: 1 };
        rings.include(new);
        let ring = ring(&rings, 3, new, |member| member.rack != 2 || member.slot == 1);
        assert_eq!(ring.len(), 3);
        let (one, two) = (Rings::new(9, 1, vec![500]), Rings::new(9, 2, vec![500]));
        let of = Member { rack: 0, slot: 7 };
        let same = (0..100)
            .filter(|round| one.successor(*round, of, |_| true) == two.successor(*round, of, |_| true));
        assert!(same.count() < 10);
    }
}
