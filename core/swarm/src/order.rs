//! The order in which generations are sent.

use crate::division::Division;
use core::ops::Range;

/// The rule by which a sender chooses the generation for a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One generation at a time: the next one begins when all members hold the current one.
    Sequential,
    /// Cooper, algorithm 1 (Overlap-1): the first generation of which the receiver is missing
    /// blocks.
    Overlap1,
    /// Cooper, algorithm 2 (Overlap-2): each generation begins some rounds before the previous one
    /// is complete. It has priority over the previous one for log2(members) rounds, and follows it
    /// after that.
    Overlap2 {
        /// The paper's C1, C2, ...: the number of rounds, in addition to its blocks, after which a
        /// generation is almost complete.
        margin: u32,
    },
    /// The generation of which the receiver holds least, among the first ones that it is missing.
    LowestRank {
        /// Number of generations among which to choose. A node holds about as many in part, and its
        /// driver should keep them in memory.
        window: u32,
    },
}

/// The progress of the swarm, as needed to choose a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// The paper's round (5.3): the number of the block that the source is sending, from 1.
    pub round: u64,
    /// All members hold all generations before this one.
    pub settled: u32,
    /// Number of members.
    pub members: u32,
}

/// Whether a block of a generation would be new to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Usefulness {
    /// The receiver holds all of it.
    Complete,
    /// The sender has nothing to send of it.
    Nothing,
    /// A block may be new, although the receiver holds as many as the sender.
    MaybeNew,
    /// The receiver holds fewer blocks, so that one sent to it is new, except with a probability of
    /// at most 1 in 256.
    New,
}

impl Order {
    /// Returns the maximum number of incomplete generations among which one is chosen.
    pub(crate) fn window(self) -> usize {
        match self {
            Order::Sequential | Order::Overlap1 => 1,
            Order::Overlap2 { .. } => 2,
            Order::LowestRank { window } => window.max(1) as usize,
        }
    }

    /// Returns the generation to send, given the usefulness of each for the receiver and the
    /// receiver's rank in it, or none if nothing can be sent now. The receiver must hold all
    /// generations before `numbers`.
    pub(crate) fn pick(
        self,
        division: &Division,
        numbers: Range<u32>,
        phase: &Phase,
        rank: impl Fn(u32) -> u16,
        good: impl Fn(u32) -> Usefulness,
    ) -> Option<u32> {
        let can = |generation: &u32| good(*generation) >= Usefulness::MaybeNew;
        let incomplete = || numbers.clone().filter(|generation| good(*generation) != Usefulness::Complete);
        match self {
            Order::Sequential => Some(phase.settled).filter(|next| numbers.contains(next)).filter(can),
            // As in the algorithm, the next generation is not chosen if this node holds nothing of
            // this one.
            Order::Overlap1 => incomplete().next().filter(can),
            Order::Overlap2 { margin } => {
                let schedule = Overlap { margin, rounds: log2_ceil(phase.members) };
                // If no generation has priority, the earliest one that can be sent is chosen. A
                // generation thus begins no earlier than in the algorithm, unless nothing else can
                // be sent. That exception is needed because rounds count the source's blocks: they
                // would stop if the source did not send its next block.
                schedule.first(division, phase.round).filter(can).or_else(|| numbers.clone().find(can))
            }
            Order::LowestRank { .. } => {
                let window = || incomplete().take(self.window());
                let least = |which: Usefulness| {
                    window().filter(|of| good(*of) == which).min_by_key(|generation| rank(*generation))
                };
                least(Usefulness::New).or_else(|| least(Usefulness::MaybeNew))
            }
        }
    }
}

/// The rounds at which generations begin in Overlap-2.
struct Overlap {
    margin: u32,
    /// Number of rounds for which the next generation has priority.
    rounds: u64,
}

impl Overlap {
    /// Returns the generation that has priority over the earlier ones in a round, if any.
    fn first(&self, division: &Division, round: u64) -> Option<u32> {
        let mut begins = 1;
        for generation in 0..division.generations() {
            if generation > 0 && (begins..begins + self.rounds).contains(&round) {
                return Some(generation);
            }
            begins += u64::from(division.size(generation)) + u64::from(self.margin);
            // The next generation's priority begins where that of this one ends.
            begins += if generation > 0 { self.rounds } else { 0 };
        }
        None
    }
}

/// Returns the exponent of the least power of two that is not less than `number`.
pub(crate) fn log2_ceil(number: u32) -> u64 {
    u64::from(u32::BITS - number.saturating_sub(1).leading_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: Division = Division { blocks: 30, generation: 10 };

    fn pick(order: Order, round: u64, ranks: [u16; 3], good: [Usefulness; 3]) -> Option<u32> {
        let phase = Phase { round, settled: 0, members: 16 };
        order.pick(&THREE, 0..3, &phase, |of| ranks[of as usize], |of| good[of as usize])
    }

    #[test]
    fn overlap_2_gives_priority_in_the_rounds_of_the_algorithm() {
        // k = 10, C = 1, log2 16 = 4: generation 2 begins in round 12, 3 in round 12 + 4 + 11.
        let overlap = Overlap { margin: 1, rounds: 4 };
        let expected =
            [(1, None), (11, None), (12, Some(1)), (15, Some(1)), (16, None), (26, None), (27, Some(2))];
        for (round, first) in expected.into_iter().chain([(30, Some(2)), (31, None), (1000, None)]) {
            assert_eq!(overlap.first(&THREE, round), first, "round {round}");
        }
    }

    #[test]
    fn only_overlap_1_waits_for_the_first_missing_generation() {
        use Usefulness::{Complete, MaybeNew, New, Nothing};
        assert_eq!(pick(Order::Overlap1, 1, [10, 3, 0], [Complete, MaybeNew, New]), Some(1));
        assert_eq!(pick(Order::Overlap1, 1, [5, 3, 0], [Nothing, MaybeNew, New]), None);
        let two = Order::Overlap2 { margin: 1 };
        assert_eq!(pick(two, 20, [5, 3, 0], [Nothing, MaybeNew, New]), Some(1));
        assert_eq!(pick(two, 20, [5, 3, 0], [MaybeNew, MaybeNew, New]), Some(0));
        assert_eq!(pick(two, 13, [5, 3, 0], [MaybeNew, MaybeNew, New]), Some(1));
        assert_eq!(pick(two, 5, [10, 3, 0], [Complete, MaybeNew, New]), Some(1), "nothing else can be sent");
    }

    #[test]
    fn the_lowest_rank_that_is_surely_new_is_first() {
        use Usefulness::{Complete, MaybeNew, New};
        let lowest = Order::LowestRank { window: 2 };
        assert_eq!(pick(lowest, 1, [7, 3, 0], [New, New, New]), Some(1), "the third is beyond the window");
        assert_eq!(pick(lowest, 1, [10, 3, 0], [Complete, New, New]), Some(2));
        assert_eq!(pick(lowest, 1, [7, 3, 0], [New, MaybeNew, New]), Some(0));
        assert_eq!(pick(Order::Sequential, 1, [7, 3, 0], [Complete, New, New]), None);
    }

    #[test]
    fn logarithms_are_rounded_up() {
        let logarithms = [1, 2, 3, 4, 5, 64, 65].map(log2_ceil);
        assert_eq!(logarithms, [0, 1, 2, 2, 3, 6, 7]);
    }
}
