//! Records of the calls that ranks execute without their agent.
//!
//! Each rank writes a record of every completed call and adds it to totals, both in its part of the
//! [segment](super). Writing takes a few memory accesses and never waits. The agent reads the
//! records on demand, for traces and metrics.
//!
//! A record begins with the number of its call plus one. The rank clears this word while it writes
//! the rest, so a concurrent reader skips the record. The agent must not trust the content: a
//! record that does not decode is ignored, and texts are derived from validated numbers only.

use super::{CALL_BYTES, CALLS, RECENT_CALLS, RING_BYTES, RINGS, RankPart, SegmentMemory, SharedWord};
use cool_types::{ElementType, Operation, ReduceOp};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::Ordering;

/// Number of records kept for each rank: those of the latest calls.
pub const RECORDS: u64 = 1024;

/// Number of arrivals in a record: those of the latest messages.
pub const ARRIVALS: usize = 8;

/// Number of duration buckets. The first bucket ends at 1.5625 microseconds, each further one at
/// four times the previous end, up to about seven minutes; the last one has no end.
pub const BUCKETS: usize = 16;

/// End of the first bucket, in half nanoseconds.
const FIRST_BUCKET: u128 = 3125;

/// Offsets within a rank's part: the number of records written so far, the latest records, which
/// follow the rings, and the totals.
const WRITTEN: u64 = CALLS + RECENT_CALLS * CALL_BYTES;
const RECORDS_START: u64 = RINGS + 2 * RING_BYTES;
const TOTALS_START: u64 = RECORDS_START + RECORDS * RECORD_BYTES;
const _: () = assert!(WRITTEN + 8 <= super::SLOT_CALLS_START);

/// Offset of the end of a rank's part.
pub(super) const END: u64 =
    (TOTALS_START + (KINDS * TOTALS_WORDS) as u64 * 8).next_multiple_of(super::PAGE_BYTES);

const RECORD_WORDS: usize = 8 + ARRIVALS;
const RECORD_BYTES: u64 = RECORD_WORDS as u64 * 8;
const TOTALS_WORDS: usize = BUCKETS + 6;

/// Number of totals: one for each plan and operation.
const KINDS: usize = RankPlan::ALL.len() * Operation::ALL.len();

/// Number of low bits that contain the time in the word of an arrival; the sender is above them.
const ARRIVAL_TIME_BITS: u32 = 48;

/// How ranks execute a call without their agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RankPlan {
    /// In the segment of their node.
    Segment,
    /// By datagrams: one rank multicasts the data to all.
    QuickMulticast,
    /// Like [`RankPlan::QuickMulticast`], in several datagrams.
    QuickMulticastSegments,
    /// Each rank multicasts its own part.
    QuickMulticastEach,
    /// By datagrams to one rank each, through the leaders of racks.
    QuickParallel,
    /// By datagrams directly to or from one rank.
    QuickStraight,
    /// By datagrams up binomial trees.
    QuickBinomial,
    /// By datagrams up binomial trees, followed by a multicast of the result.
    QuickBinomialMulticast,
    /// Each rank combines its share of the vector; the shares are sent to one rank or multicast.
    QuickSharded,
    /// Like [`RankPlan::QuickMulticast`], in several long messages.
    QuickMulticastLongSegments,
    /// Like [`RankPlan::QuickMulticastEach`], in long messages.
    QuickMulticastEachLongSegments,
    /// Like [`RankPlan::QuickParallel`], in long messages.
    QuickParallelLongSegments,
    /// Like [`RankPlan::QuickStraight`], in long messages.
    QuickStraightLongSegments,
}

impl RankPlan {
    /// All plans.
    pub const ALL: [RankPlan; 13] = [
        RankPlan::Segment,
        RankPlan::QuickMulticast,
        RankPlan::QuickMulticastSegments,
        RankPlan::QuickMulticastEach,
        RankPlan::QuickParallel,
        RankPlan::QuickStraight,
        RankPlan::QuickBinomial,
        RankPlan::QuickBinomialMulticast,
        RankPlan::QuickSharded,
        RankPlan::QuickMulticastLongSegments,
        RankPlan::QuickMulticastEachLongSegments,
        RankPlan::QuickParallelLongSegments,
        RankPlan::QuickStraightLongSegments,
    ];

    /// Returns the value for quick calls with this plan, or `None` if ranks do not support it.
    pub fn quick(plan: &str) -> Option<RankPlan> {
        RankPlan::ALL.into_iter().find(|known| known.name().strip_prefix("quick ") == Some(plan))
    }

    /// Returns the name that statistics, traces and metrics use.
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
            RankPlan::QuickMulticastLongSegments => "quick multicast/57344",
            RankPlan::QuickMulticastEachLongSegments => "quick multicast-each/57344",
            RankPlan::QuickParallelLongSegments => "quick cool-p-p/114688",
            RankPlan::QuickStraightLongSegments => "quick flat:parallel/114688",
        }
    }
}

/// A completed call, as reported by a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankRecord {
    /// Number of the call within its group.
    pub number: u64,
    /// Operation of the call.
    pub operation: Operation,
    /// Type of the elements; `None` for a barrier.
    pub element: Option<ElementType>,
    /// How elements were combined, for reductions and scans.
    pub reduce: Option<ReduceOp>,
    /// Root of the call, if the operation has one; otherwise 0.
    pub root: u32,
    /// Bytes as in [`cool_types::Call`]; for parts of unequal lengths, the sum of all parts.
    pub bytes: u64,
    /// Whether the parts may have unequal lengths.
    pub unequal: bool,
    /// How the call was executed.
    pub plan: RankPlan,
    /// Whether the call failed.
    pub failed: bool,
    /// Start of the call, as returned by [`now`].
    pub begun: u64,
    /// Duration of the call, in nanoseconds.
    pub took: u64,
    /// Messages that the rank sent, requested and received as retransmissions.
    pub traffic: RankTraffic,
    /// Latest messages that arrived from other nodes.
    pub arrivals: [Option<RankArrival>; ARRIVALS],
}

/// Traffic of one call between this rank and other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankTraffic {
    /// Payload bytes sent by multicast.
    pub multicast: u32,
    /// Payload bytes sent to single ranks.
    pub unicast: u32,
    /// Number of NAKs sent for missing messages.
    pub requested: u32,
    /// Number of messages received as retransmissions by the sender's agent, after a NAK.
    pub retransmitted: u32,
}

/// Arrival of a message from another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankArrival {
    /// Rank that sent the message.
    pub from: u32,
    /// Nanoseconds between the start of the call and the arrival.
    pub after: u64,
}

/// Totals of a rank's calls with one plan and one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of successful calls, by duration; see [`bucket`].
    pub calls: [u64; BUCKETS],
    /// Sum of the durations of successful calls, in nanoseconds.
    pub nanoseconds: u64,
    /// Sum of the bytes of successful calls.
    pub bytes: u64,
    /// Payload bytes sent by multicast, including those of failed calls, as the following fields.
    pub multicast: u64,
    /// Payload bytes sent to single ranks.
    pub unicast: u64,
    /// Number of NAKs sent.
    pub requested: u64,
    /// Number of messages received as retransmissions.
    pub retransmitted: u64,
}

/// Returns the time in nanoseconds of a clock that rank and agent share (`CLOCK_MONOTONIC`).
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or_default())
}

/// Returns the index of the bucket for a duration.
pub fn bucket(nanoseconds: u64) -> usize {
    let within = |bucket: &usize| 2 * u128::from(nanoseconds) <= FIRST_BUCKET << (2 * bucket);
    (0..BUCKETS - 1).find(within).unwrap_or(BUCKETS - 1)
}

/// Returns the end of a bucket in seconds, or `None` for the last one.
pub fn bucket_end(bucket: usize) -> Option<f64> {
    (bucket < BUCKETS - 1).then(|| (FIRST_BUCKET << (2 * bucket)) as f64 / 2e9)
}

impl<M: SegmentMemory> RankPart<'_, M> {
    /// Records a completed call of this rank and adds it to the totals.
    ///
    /// Only one thread of the rank may call this at a time.
    pub fn record(&self, record: &RankRecord) {
        let written = self.word(WRITTEN).load(Ordering::Relaxed);
        let at = record_offset(written);
        let [state, words @ ..] = record.encode();
        self.word(at).store(0, Ordering::Relaxed);
        // A reader that sees one of the following words must also see the cleared state.
        M::fence(Ordering::Release);
        for (word, place) in words.into_iter().zip((at + 8..).step_by(8)) {
            self.word(place).store(word, Ordering::Relaxed);
        }
        self.word(at).store(state, Ordering::Release);
        self.word(WRITTEN).store(written.wrapping_add(1), Ordering::Release);
        self.count(record);
    }

    /// Adds a record to the totals. Plain loads and stores suffice because only this rank writes
    /// them.
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

    /// Returns the valid records of the latest calls, oldest first.
    pub fn records(&self) -> Vec<RankRecord> {
        let written = self.word(WRITTEN).load(Ordering::Acquire);
        // Entries that were never written use no memory until they are read, so they are skipped.
        let first = written.saturating_sub(RECORDS);
        (first..written).filter_map(|number| self.read_record(record_offset(number))).collect()
    }

    fn read_record(&self, at: u64) -> Option<RankRecord> {
        let state = self.word(at).load(Ordering::Acquire);
        let mut words = [state; RECORD_WORDS];
        for (word, place) in words.iter_mut().zip((at..).step_by(8)).skip(1) {
            *word = self.word(place).load(Ordering::Relaxed);
        }
        M::fence(Ordering::Acquire);
        let is_whole = self.word(at).load(Ordering::Relaxed) == state;
        RankRecord::decode(&words).filter(|_| is_whole)
    }

    /// Returns whether the rank has completed calls without its agent.
    pub fn has_records(&self) -> bool {
        self.word(WRITTEN).load(Ordering::Acquire) > 0
    }

    /// Returns the totals of a plan and operation. Each figure is read atomically, but not all at
    /// the same instant.
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

/// Returns the offset of the record that is written after `written` others.
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

    /// Returns the record that these words encode, or `None` if they are invalid.
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

/// Returns the entry with index `number - 1`, `Some(None)` for 0, or `None` if there is no such
/// entry.
fn named<T: Copy>(all: &[T], number: u8) -> Option<Option<T>> {
    match usize::from(number).checked_sub(1) {
        None => Some(None),
        Some(place) => all.get(place).copied().map(Some),
    }
}

impl RankArrival {
    /// Returns a word that is never 0. Values that do not fit are clamped.
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
