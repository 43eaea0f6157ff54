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
//! The word contains the number of the call plus one, above two bits with the decision. Numbers
//! only grow. A rank that finds a later call is more than [`STARTS_MAX`] calls behind another rank;
//! it acts alone then.

use super::{STARTS, Segment, SegmentMemory, SharedWord};
use std::sync::atomic::Ordering;

/// Number of calls for which decisions are kept.
const STARTS_MAX: u64 = 256;
/// Size of all words in bytes.
pub(super) const STARTS_BYTES: u64 = STARTS_MAX * 8;

/// Number of low bits that contain the decision.
const DECISION_BITS: u32 = 2;
const CLAIMED: u64 = 0;
const BY_AGENT: u64 = 1;
const BY_RANKS: u64 = 2;

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

/// Returns the word of a call without a decision.
fn claim(call: u64) -> u64 {
    call.wrapping_add(1) << DECISION_BITS | CLAIMED
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
    read(start_word(memory, call).load(Ordering::SeqCst), call)
}

/// Decides which side executes a call that this rank starts. `has_begun` returns whether another
/// rank has entered it.
pub(super) fn decide<M: SegmentMemory>(memory: &M, call: u64, has_begun: impl Fn() -> bool) -> StartDecision {
    let (word, claim) = (start_word(memory, call), claim(call));
    let mut found = word.load(Ordering::SeqCst);
    while found < claim {
        found = word.compare_exchange(found, claim).err().unwrap_or(claim);
    }
    if found == claim {
        M::fence(Ordering::SeqCst);
        let decision = claim | if has_begun() { BY_RANKS } else { BY_AGENT };
        found = word.compare_exchange(claim, decision).err().unwrap_or(decision);
    }
    // If another rank is so far ahead that the decision was overwritten, this rank acts alone.
    read(found, call).unwrap_or(StartDecision::Agent)
}

fn start_word<M: SegmentMemory>(memory: &M, call: u64) -> &M::Word {
    memory.word(STARTS + call % STARTS_MAX * 8)
}

fn read(found: u64, call: u64) -> Option<StartDecision> {
    match found.checked_sub(claim(call))? {
        CLAIMED => Some(StartDecision::Undecided),
        BY_AGENT => Some(StartDecision::Agent),
        BY_RANKS => Some(StartDecision::Ranks),
        _ => None,
    }
}
