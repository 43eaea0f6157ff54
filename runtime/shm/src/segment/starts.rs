//! The decision whether ranks or agents execute a call that some ranks start and others wait in.
//!
//! A rank that waits in a call records it ([`super::RankPart::enter`]) and continues in the
//! segment, unless a rank has started the call before. A rank that starts the call without waiting
//! in it first claims the word of the call, then looks which ranks have entered. If none has, the
//! agents execute the call; otherwise the ranks do, because a root may have completed its part
//! already. Both sides write before a sequentially consistent fence and read after it. So at least
//! one of two ranks finds the other, and a rank that waits and finds the claim waits for the
//! decision.
//!
//! A word contains the decisions of 16 calls, two bits for each, below the number of the lap: how
//! often the calls have gone through all words. Laps only grow. A rank that finds a later lap is
//! more than [`DECISIONS`] calls behind another rank. If it starts the call, the agents execute it.
//! If it waits in the call, its agent replies that they do, as soon as the rank reports its wait.

use super::{STARTS, Segment, SegmentMemory, SharedWord};
use std::sync::atomic::Ordering;

/// Number of words.
const WORDS: u64 = 256;
/// Size of all words in bytes.
pub(super) const STARTS_BYTES: u64 = WORDS * 8;
/// Number of calls whose decisions are in one word.
const CALLS_PER_WORD: u64 = 16;
/// Number of calls for which decisions are kept.
const DECISIONS: u64 = WORDS * CALLS_PER_WORD;

/// Number of low bits that contain the decision of a call, 0 if no rank has started it.
const DECISION_BITS: u64 = 2;
const DECISION_MASK: u64 = (1 << DECISION_BITS) - 1;
const CLAIMED: u64 = 1;
const BY_AGENT: u64 = 2;
const BY_RANKS: u64 = 3;
/// Number of low bits that contain all decisions of a word.
const LAP_SHIFT: u64 = CALLS_PER_WORD * DECISION_BITS;

// A rank can start as many calls as may be open before another rank waits in the first of them.
const _: () = assert!(DECISIONS >= 2 * cool_types::limits::OPEN_CALLS as u64);

/// The side that executes a call which a rank has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartDecision {
    /// A rank has claimed the call and is about to decide. The rank must wait.
    Undecided,
    /// The agents.
    Agent,
    /// The ranks, in the segment.
    Ranks,
}

impl Segment {
    /// Returns which side executes a call that this rank has entered, or `None` if no rank has
    /// started it.
    pub fn started_by(&self, call: u64) -> Option<StartDecision> {
        started_by(&self.region, call)
    }

    /// Decides which side executes a call that `rank` starts, unless another rank has decided.
    ///
    /// Wakes ranks that wait for the decision.
    pub fn decide_start(&self, rank: usize, call: u64) -> StartDecision {
        let others = || self.ranks().enumerate().filter(|(other, _)| *other != rank);
        let decision = decide(&self.region, call, || others().any(|(_, part)| part.entered_calls() > call));
        self.ranks().for_each(|part| part.wake());
        decision
    }
}

/// As [`Segment::started_by`].
pub(super) fn started_by<M: SegmentMemory>(memory: &M, call: u64) -> Option<StartDecision> {
    let place = DecisionPlace::of(call);
    place.read(memory.word(place.word).load(Ordering::SeqCst))
}

/// Decides which side executes a call that this rank starts. `has_begun` returns whether another
/// rank has entered it.
pub(super) fn decide<M: SegmentMemory>(memory: &M, call: u64, has_begun: impl Fn() -> bool) -> StartDecision {
    let place = DecisionPlace::of(call);
    let mut found = place.write(memory, 0, CLAIMED);
    if place.read(found) == Some(StartDecision::Undecided) {
        M::fence(Ordering::SeqCst);
        found = place.write(memory, CLAIMED, if has_begun() { BY_RANKS } else { BY_AGENT });
    }
    // If another rank is so far ahead that the decision was overwritten, this rank acts alone.
    place.read(found).unwrap_or(StartDecision::Agent)
}

/// Where the decision of a call is.
#[derive(Clone, Copy, Debug)]
struct DecisionPlace {
    /// Position of the word in bytes.
    word: u64,
    lap: u64,
    /// Position of the decision in the word in bits.
    shift: u64,
}

impl DecisionPlace {
    fn of(call: u64) -> DecisionPlace {
        DecisionPlace {
            word: STARTS + call / CALLS_PER_WORD % WORDS * 8,
            // Laps have 32 bits, enough for 2^44 calls.
            lap: call / DECISIONS % (1 << (u64::BITS as u64 - LAP_SHIFT)),
            shift: call % CALLS_PER_WORD * DECISION_BITS,
        }
    }

    /// Returns the decision in a word, or `None` if there is none or the word has a different lap.
    fn read(self, word: u64) -> Option<StartDecision> {
        match self.bits(word)? {
            CLAIMED => Some(StartDecision::Undecided),
            BY_AGENT => Some(StartDecision::Agent),
            BY_RANKS => Some(StartDecision::Ranks),
            _ => None,
        }
    }

    /// Returns the bits of this call in a word, or `None` if the word has a later lap. Words of an
    /// earlier lap contain no decision of this call.
    fn bits(self, word: u64) -> Option<u64> {
        match (word >> LAP_SHIFT).cmp(&self.lap) {
            std::cmp::Ordering::Less => Some(0),
            std::cmp::Ordering::Equal => Some(word >> self.shift & DECISION_MASK),
            std::cmp::Ordering::Greater => None,
        }
    }

    /// Replaces the bits `from` of this call by `to`, unless others or a later lap are there.
    /// Returns the word afterwards.
    fn write<M: SegmentMemory>(self, memory: &M, from: u64, to: u64) -> u64 {
        let word = memory.word(self.word);
        let mut found = word.load(Ordering::SeqCst);
        while self.bits(found) == Some(from) {
            let others = if found >> LAP_SHIFT == self.lap { found } else { self.lap << LAP_SHIFT };
            let new = others & !(DECISION_MASK << self.shift) | to << self.shift;
            match word.compare_exchange(found, new) {
                Ok(_) => return new,
                Err(other) => found = other,
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_of_many_calls_are_kept_for_ranks_that_are_behind() {
        let segment = Segment::create(2).unwrap();
        let first = 3 * DECISIONS + 5;
        let calls = first..first + DECISIONS - CALLS_PER_WORD;
        for call in calls.clone().step_by(2) {
            assert_eq!(segment.started_by(call), None);
            // Rank 1 waits in every fourth call.
            if call % 4 == 3 {
                segment.rank(1).enter(call, 0, "").unwrap();
            }
            let expected = if call % 4 == 3 { StartDecision::Ranks } else { StartDecision::Agent };
            assert_eq!(segment.decide_start(0, call), expected, "call {call}");
        }
        for call in calls {
            let expected = match call % 4 {
                1 => Some(StartDecision::Agent),
                3 => Some(StartDecision::Ranks),
                _ => None,
            };
            assert_eq!(segment.started_by(call), expected, "call {call}");
        }
    }

    #[test]
    fn a_later_lap_replaces_decisions_and_is_not_mistaken_for_them() {
        let segment = Segment::create(2).unwrap();
        assert_eq!(segment.decide_start(0, 7), StartDecision::Agent);
        assert_eq!(segment.decide_start(1, DECISIONS + 8), StartDecision::Agent);
        assert_eq!([7, 8, DECISIONS + 7].map(|call| segment.started_by(call)), [None; 3]);
        assert_eq!(segment.started_by(DECISIONS + 8), Some(StartDecision::Agent));
    }
}
