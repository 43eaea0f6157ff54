//! What a rank tells its agent of the calls that it has carried out with others: a record of each of the latest, and totals of all, in its
//! part of the [segment](super). It writes a few words when a call is over, and waits for nobody; the agent reads when somebody asks.
//!
//! A record begins with its call's number and one, which is taken away while the rest is written: who reads meanwhile leaves it aside.
//! Nothing that stands here is believed: what makes no sense is no record, and text is made of numbers that do.

use super::{CALL_BYTES, CALLS, RECENT_CALLS, RING_BYTES, RINGS, RankPart};
use cool_types::{ElementType, Operation, ReduceOp};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{Ordering, fence};

/// Calls of a rank of which there are records: the latest.
pub const RECORDS: u64 = 1024;

/// Messages of a call of which is said whence and when they came: those that came last.
pub const ARRIVALS: usize = 8;

/// Calls are counted by how long they took: up to 1.5625 microseconds, up to four times as long, and so on up to some seven minutes; and
/// longer ones.
pub const BUCKETS: usize = 16;

/// Half nanoseconds of the first of them.
const FIRST_BUCKET: u128 = 3125;

/// A rank's records so far; then, behind its rings, the latest of them, then its totals.
const WRITTEN: u64 = CALLS + RECENT_CALLS * CALL_BYTES;
const RECORDS_START: u64 = RINGS + 2 * RING_BYTES;
const TOTALS_START: u64 = RECORDS_START + RECORDS * RECORD_BYTES;
const _: () = assert!(WRITTEN + 8 <= RINGS);

/// Where what follows in a rank's part begins.
pub(super) const END: u64 = (TOTALS_START + (KINDS * TOTALS_WORDS) as u64 * 8).next_multiple_of(super::PAGE_BYTES);

const RECORD_WORDS: usize = 8 + ARRIVALS;
const RECORD_BYTES: u64 = RECORD_WORDS as u64 * 8;
const TOTALS_WORDS: usize = BUCKETS + 6;

/// Calls are counted by plan and operation.
const KINDS: usize = RankPlan::ALL.len() * Operation::ALL.len();

/// Of the word with a message's sender and time, those of the time.
const ARRIVAL_TIME_BITS: u32 = 48;

/// How ranks carry calls out themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RankPlan {
    /// In their segment.
    Segment,
    /// By datagrams: one multicasts what all get.
    QuickMulticast,
    /// That in several datagrams.
    QuickMulticastSegments,
    /// Each multicasts its own part.
    QuickMulticastEach,
    /// By datagrams to one rank each, over leaders of racks.
    QuickParallel,
    /// Straight to one rank or from it.
    QuickStraight,
    /// Up binomial trees.
    QuickBinomial,
    /// Up binomial trees, then one multicasts it.
    QuickBinomialMulticast,
    /// Each combines its share of a vector, which goes to one or is multicast to all.
    QuickSharded,
}

impl RankPlan {
    /// All of them.
    pub const ALL: [RankPlan; 9] = [
        RankPlan::Segment,
        RankPlan::QuickMulticast,
        RankPlan::QuickMulticastSegments,
        RankPlan::QuickMulticastEach,
        RankPlan::QuickParallel,
        RankPlan::QuickStraight,
        RankPlan::QuickBinomial,
        RankPlan::QuickBinomialMulticast,
        RankPlan::QuickSharded,
    ];

    /// That of quick calls which go by a plan.
    pub fn quick(plan: &str) -> Option<RankPlan> {
        RankPlan::ALL.into_iter().find(|known| known.name().strip_prefix("quick ") == Some(plan))
    }

    /// As statistics, traces and metrics have it.
    pub const fn name(self) -> &'static str {
        match self {
            RankPlan::Segment => "segment",
            RankPlan::QuickMulticast => "quick multicast",
            RankPlan::QuickMulticastSegments => "quick multicast/4096",
            RankPlan::QuickMulticastEach => "quick multicast-each",
            RankPlan::QuickParallel => "quick cool-p-p",
            RankPlan::QuickStraight => "quick flat:parallel",
            RankPlan::QuickBinomial => "quick node:parallel,rack:binomial,center:binomial",
            RankPlan::QuickBinomialMulticast => {
                "quick node:parallel,rack:binomial+parallel,center:binomial+parallel,spread:once"
            }
            RankPlan::QuickSharded => "quick sharded",
        }
    }
}

/// A call as a rank that has carried it out tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankRecord {
    /// Its number in the group.
    pub number: u64,
    /// What was called.
    pub operation: Operation,
    /// Of which elements; absent for a barrier.
    pub element: Option<ElementType>,
    /// How they were combined, of operations that do.
    pub reduce: Option<ReduceOp>,
    /// From or to which rank, of operations that have one.
    pub root: u32,
    /// Bytes as [`cool_types::Call`] has them; of parts of unequal lengths, of all together.
    pub bytes: u64,
    /// Whether parts may have unequal lengths.
    pub unequal: bool,
    /// How it was carried out.
    pub plan: RankPlan,
    /// Whether it failed.
    pub failed: bool,
    /// When it began, by [`now`].
    pub begun: u64,
    /// Nanoseconds until it was over.
    pub took: u64,
    /// What the rank sent and lacked.
    pub traffic: RankTraffic,
    /// Messages that came last, of those that came from other nodes.
    pub arrivals: [Option<RankArrival>; ARRIVALS],
}

/// What a rank has sent to other nodes for calls, and what it lacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankTraffic {
    /// Payload sent over the tree.
    pub multicast: u32,
    /// Payload sent to one rank.
    pub unicast: u32,
    /// Messages that it requested for, each time that it did.
    pub requested: u32,
    /// Messages that came from its sender's agent, since it had asked.
    pub retransmitted: u32,
}

/// A message that came from another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankArrival {
    /// From this rank.
    pub from: u32,
    /// Nanoseconds after the call had begun.
    pub after: u64,
}

/// Calls of a rank by one plan, of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Those that went well, by how long they took; see [`bucket`].
    pub calls: [u64; BUCKETS],
    /// Nanoseconds that these took.
    pub nanoseconds: u64,
    /// Their bytes, as they were called.
    pub bytes: u64,
    /// Payload sent over the tree, also for those that failed, and so on.
    pub multicast: u64,
    /// Payload sent to one rank.
    pub unicast: u64,
    /// Messages requested for.
    pub requested: u64,
    /// Messages that came since they were requested for.
    pub retransmitted: u64,
}

/// Nanoseconds of the clock that a rank and its agent share, which nobody sets (CLOCK_MONOTONIC).
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or_default())
}

/// By how long calls took they are counted in this bucket.
pub fn bucket(nanoseconds: u64) -> usize {
    let within = |bucket: &usize| 2 * u128::from(nanoseconds) <= FIRST_BUCKET << (2 * bucket);
    (0..BUCKETS - 1).find(within).unwrap_or(BUCKETS - 1)
}

/// The seconds that calls in a bucket took at most; the last has no end.
pub fn bucket_end(bucket: usize) -> Option<f64> {
    (bucket < BUCKETS - 1).then(|| (FIRST_BUCKET << (2 * bucket)) as f64 / 2e9)
}

impl RankPart<'_> {
    /// The rank has carried out a call. One thread at a time says so.
    pub fn record(&self, record: &RankRecord) {
        let written = self.word(WRITTEN).load(Ordering::Relaxed);
        let at = record_offset(written);
        let [state, words @ ..] = record.encode();
        self.word(at).store(0, Ordering::Relaxed);
        // Who reads something of what follows finds it taken away.
        fence(Ordering::Release);
        for (word, place) in words.into_iter().zip((at + 8..).step_by(8)) {
            self.word(place).store(word, Ordering::Relaxed);
        }
        self.word(at).store(state, Ordering::Release);
        self.word(WRITTEN).store(written.wrapping_add(1), Ordering::Release);
        self.count(record);
    }

    /// Only the rank writes its totals.
    fn count(&self, record: &RankRecord) {
        let at = totals(record.plan, record.operation);
        let add = |word: usize, more: u64| {
            if more > 0 {
                let total = self.word(at + word as u64 * 8);
                total.store(total.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
            }
        };
        let RankTraffic { multicast, unicast, requested, retransmitted } = record.traffic;
        if !record.failed {
            add(bucket(record.took), 1);
            add(BUCKETS, record.took);
            add(BUCKETS + 1, record.bytes);
        }
        for (word, more) in (BUCKETS + 2..).zip([multicast, unicast, requested, retransmitted]) {
            add(word, more.into());
        }
    }

    /// The latest calls that the rank has carried out, oldest first, of those that make sense.
    pub fn records(&self) -> Vec<RankRecord> {
        let written = self.word(WRITTEN).load(Ordering::Acquire);
        // Places that were never written take no memory, unless they are read.
        let first = written.saturating_sub(RECORDS);
        (first..written).filter_map(|number| self.read_record(record_offset(number))).collect()
    }

    fn read_record(&self, at: u64) -> Option<RankRecord> {
        let state = self.word(at).load(Ordering::Acquire);
        let mut words = [state; RECORD_WORDS];
        for (word, place) in words.iter_mut().zip((at..).step_by(8)).skip(1) {
            *word = self.word(place).load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        let is_whole = self.word(at).load(Ordering::Relaxed) == state;
        RankRecord::decode(&words).filter(|_| is_whole)
    }

    /// Whether the rank has carried out calls.
    pub fn has_records(&self) -> bool {
        self.word(WRITTEN).load(Ordering::Acquire) > 0
    }

    /// All calls that the rank has carried out by a plan, of an operation. Each figure is read whole, but not all at one instant.
    pub fn totals(&self, plan: RankPlan, operation: Operation) -> Totals {
        let at = totals(plan, operation);
        let word = |word: usize| self.word(at + word as u64 * 8).load(Ordering::Relaxed);
        Totals {
            calls: std::array::from_fn(word),
            nanoseconds: word(BUCKETS),
            bytes: word(BUCKETS + 1),
            multicast: word(BUCKETS + 2),
            unicast: word(BUCKETS + 3),
            requested: word(BUCKETS + 4),
            retransmitted: word(BUCKETS + 5),
        }
    }
}

/// Where the record lies that is written after a number of others.
fn record_offset(written: u64) -> u64 {
    RECORDS_START + written % RECORDS * RECORD_BYTES
}

fn totals(plan: RankPlan, operation: Operation) -> u64 {
    let kind = plan as usize * Operation::ALL.len() + operation as usize;
    TOTALS_START + (kind * TOTALS_WORDS) as u64 * 8
}

impl RankRecord {
    fn encode(&self) -> [u64; RECORD_WORDS] {
        let RankRecord { operation, element, reduce, root, plan, traffic, .. } = *self;
        let named = |place: Option<usize>| place.map_or(0, |place| place as u8 + 1);
        let kind = [
            operation as u8,
            named(element.map(|element| element as usize)),
            named(reduce.map(|reduce| reduce as usize)),
            plan as u8,
            u8::from(self.unequal),
            u8::from(self.failed),
            0,
            0,
        ];
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let mut words = [0; RECORD_WORDS];
        words[..8].copy_from_slice(&[
            self.number.wrapping_add(1),
            u64::from_le_bytes(kind),
            root.into(),
            self.bytes,
            self.begun,
            self.took,
            pair(traffic.multicast, traffic.unicast),
            pair(traffic.requested, traffic.retransmitted),
        ]);
        for (word, arrival) in words[8..].iter_mut().zip(self.arrivals) {
            *word = arrival.map_or(0, RankArrival::encode);
        }
        words
    }

    /// The record of these words, if they are one's.
    fn decode(words: &[u64; RECORD_WORDS]) -> Option<RankRecord> {
        let [state, kind, root, bytes, begun, took, sent, lacked, arrivals @ ..] = *words;
        let [operation, element, reduce, plan, unequal, failed, 0, 0] = kind.to_le_bytes() else {
            return None;
        };
        let halves = |word: u64| ((word >> 32) as u32, word as u32);
        let ((multicast, unicast), (requested, retransmitted)) = (halves(sent), halves(lacked));
        Some(RankRecord {
            number: state.checked_sub(1)?,
            operation: *Operation::ALL.get(usize::from(operation))?,
            element: named(&ElementType::ALL, element)?,
            reduce: named(&ReduceOp::ALL, reduce)?,
            root: u32::try_from(root).ok()?,
            bytes,
            unequal: flag(unequal)?,
            plan: *RankPlan::ALL.get(usize::from(plan))?,
            failed: flag(failed)?,
            begun,
            took,
            traffic: RankTraffic { multicast, unicast, requested, retransmitted },
            arrivals: arrivals.map(RankArrival::decode),
        })
    }
}

fn flag(byte: u8) -> Option<bool> {
    (byte < 2).then_some(byte == 1)
}

/// What stands at one less than a number; `Some(None)` of 0.
fn named<T: Copy>(all: &[T], number: u8) -> Option<Option<T>> {
    match usize::from(number).checked_sub(1) {
        None => Some(None),
        Some(place) => all.get(place).copied().map(Some),
    }
}

impl RankArrival {
    /// Never 0. What does not fit is cut to what does.
    fn encode(self) -> u64 {
        let from = self.from.saturating_add(1).min(u32::from(u16::MAX));
        u64::from(from) << ARRIVAL_TIME_BITS | self.after.min((1 << ARRIVAL_TIME_BITS) - 1)
    }

    fn decode(word: u64) -> Option<RankArrival> {
        let from = ((word >> ARRIVAL_TIME_BITS) as u32).checked_sub(1)?;
        Some(RankArrival { from, after: word & ((1 << ARRIVAL_TIME_BITS) - 1) })
    }
}

#[cfg(test)]
mod tests;
