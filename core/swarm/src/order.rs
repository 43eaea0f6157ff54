//! In which order generations go out.

use crate::holdings::Division;

/// Which generation goes to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One after the other: the next begins when all members have the one before.
    Sequential,
    /// Cooper, algorithm 1 (Overlap-1): the earliest that the receiver lacks.
    Overlap1,
    /// Cooper, algorithm 2 (Overlap-2): each goes out some rounds before the one before it is through, first with priority for
    /// log2(members) rounds, then behind it.
    Overlap2 {
        /// The paper's C1, C2, ...: rounds beyond its blocks after which a generation is nearly through.
        margin: u32,
    },
    /// The one of which the receiver has least, among the first ones that it lacks.
    LowestRank {
        /// Among how many; what a node holds in part, and a driver keeps at hand, is about as much.
        window: u32,
    },
}

/// How far the swarm is, as far as an order asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// The paper's round (5.3): which block of the source goes out, from 1.
    pub round: u64,
    /// Generations before this one are with all members.
    pub settled: u32,
    /// How many take part.
    pub members: u32,
}

/// What a sender can do for a receiver in a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Use {
    /// The receiver has it all.
    Had,
    /// Nothing is there to send.
    Nothing,
    /// What is sent may be new, though the receiver holds as much.
    Perhaps,
    /// The receiver holds less: what is sent is new, but for a chance of 1 in 256 at most.
    Surely,
}

impl Order {
    /// Of how many generations that a receiver lacks one is picked, at most.
    pub(crate) fn window(self) -> usize {
        match self {
            Order::Sequential | Order::Overlap1 => 1,
            Order::Overlap2 { .. } => 2,
            Order::LowestRank { window } => window.max(1) as usize,
        }
    }

    /// The generation to send of, given what each would be good for and the receiver's rank in it.
    pub(crate) fn pick(
        self,
        division: &Division,
        phase: &Phase,
        rank: impl Fn(u32) -> u16,
        good: impl Fn(u32) -> Use,
    ) -> Option<u32> {
        let all = division.generations();
        let can = |generation: &u32| good(*generation) >= Use::Perhaps;
        let lacked = || (0..all).filter(|generation| good(*generation) != Use::Had);
        match self {
            Order::Sequential => Some(phase.settled).filter(|next| *next < all).filter(can),
            // As the algorithm says, not the next one if nothing of this one is here.
            Order::Overlap1 => lacked().next().filter(can),
            Order::Overlap2 { margin } => {
                let schedule = Overlap { margin, rounds: log2_ceil(phase.members) };
                // Otherwise the earliest. So a generation begins no earlier than the algorithm says, but where nothing else can be
                // sent: rounds are blocks of the source, and without its next block would not go on.
                schedule.first(division, phase.round).filter(can).or_else(|| (0..all).find(can))
            }
            Order::LowestRank { .. } => {
                let window = || lacked().take(self.window());
                let least = |which: Use| {
                    window().filter(|of| good(*of) == which).min_by_key(|generation| rank(*generation))
                };
                least(Use::Surely).or_else(|| least(Use::Perhaps))
            }
        }
    }
}

/// The times of Overlap-2.
struct Overlap {
    margin: u32,
    /// For which the next generation has priority.
    rounds: u64,
}

impl Overlap {
    /// The generation that has priority over those before it in a round.
    fn first(&self, division: &Division, round: u64) -> Option<u32> {
        let mut begins = 1;
        for generation in 0..division.generations() {
            if generation > 0 && (begins..begins + self.rounds).contains(&round) {
                return Some(generation);
            }
            begins += u64::from(division.size(generation)) + u64::from(self.margin);
            // The next begins its priority where this one's ends.
            begins += if generation > 0 { self.rounds } else { 0 };
        }
        None
    }
}

/// The least power of two that is not below a number, as an exponent.
pub(crate) fn log2_ceil(number: u32) -> u64 {
    u64::from(u32::BITS - number.saturating_sub(1).leading_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: Division = Division { blocks: 30, generation: 10 };

    fn pick(order: Order, round: u64, ranks: [u16; 3], good: [Use; 3]) -> Option<u32> {
        let phase = Phase { round, settled: 0, members: 16 };
        order.pick(&THREE, &phase, |of| ranks[of as usize], |of| good[of as usize])
    }

    #[test]
    fn overlap_2_begins_and_gives_priority_at_the_rounds_of_the_algorithm() {
        // k = 10, C = 1, log2 16 = 4: 2 begins in round 12, 3 in round 12 + 4 + 11.
        let overlap = Overlap { margin: 1, rounds: 4 };
        let expected =
            [(1, None), (11, None), (12, Some(1)), (15, Some(1)), (16, None), (26, None), (27, Some(2))];
        for (round, first) in expected.into_iter().chain([(30, Some(2)), (31, None), (1000, None)]) {
            assert_eq!(overlap.first(&THREE, round), first, "round {round}");
        }
    }

    #[test]
    fn overlap_1_waits_for_the_first_that_the_receiver_lacks_and_overlap_2_does_not() {
        use Use::{Had, Nothing, Perhaps, Surely};
        assert_eq!(pick(Order::Overlap1, 1, [10, 3, 0], [Had, Perhaps, Surely]), Some(1));
        assert_eq!(pick(Order::Overlap1, 1, [5, 3, 0], [Nothing, Perhaps, Surely]), None);
        let two = Order::Overlap2 { margin: 1 };
        assert_eq!(pick(two, 20, [5, 3, 0], [Nothing, Perhaps, Surely]), Some(1));
        assert_eq!(pick(two, 20, [5, 3, 0], [Perhaps, Perhaps, Surely]), Some(0));
        assert_eq!(pick(two, 13, [5, 3, 0], [Perhaps, Perhaps, Surely]), Some(1));
        assert_eq!(pick(two, 5, [10, 3, 0], [Had, Perhaps, Surely]), Some(1), "nothing else is to be sent");
    }

    #[test]
    fn of_the_lowest_rank_first_what_is_surely_new() {
        use Use::{Had, Perhaps, Surely};
        let lowest = Order::LowestRank { window: 2 };
        assert_eq!(
            pick(lowest, 1, [7, 3, 0], [Surely, Surely, Surely]),
            Some(1),
            "the third is beyond the window"
        );
        assert_eq!(pick(lowest, 1, [10, 3, 0], [Had, Surely, Surely]), Some(2));
        assert_eq!(pick(lowest, 1, [7, 3, 0], [Surely, Perhaps, Surely]), Some(0));
        assert_eq!(pick(Order::Sequential, 1, [7, 3, 0], [Had, Surely, Surely]), None);
    }

    #[test]
    fn logarithms_are_rounded_up() {
        let logarithms = [1, 2, 3, 4, 5, 64, 65].map(log2_ceil);
        assert_eq!(logarithms, [0, 1, 2, 2, 3, 6, 7]);
    }
}
