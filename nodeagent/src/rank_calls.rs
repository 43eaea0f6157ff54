//! The calls that ranks of this node execute themselves, as they record them in their segments
//! ([`cool_shm::segment::records`]). The agent counts the calls, and keeps records for traces. It
//! reads a segment when the metrics or a trace are requested, and when the group ends.
//!
//! Ranks may write anything to the segment. Impossible records are ignored, and the counts are
//! limited by the amount that a rank can have done in its lifetime.

use crate::call_counters::CallCounters;
use crate::shared_segment::SharedSegment;
use cool_proto::control::{self, Arrival, RankTimes};
use cool_shm::segment::records::{self, RankPlan, RankRecord, Totals};
use cool_types::{Call, CallDescription, Operation, Rank};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum number of records that are returned at once, and that are kept of ended groups.
const LATEST: usize = 4096;

/// The minimum average time that a rank needs for a call or for a NAK, in nanoseconds.
const NANOSECONDS_PER_CALL: u64 = 16;
/// Maximum number of threads of a rank that may be in calls at the same time.
const THREADS: u64 = 1024;
/// The maximum number of bytes of a rank's calls per nanosecond of its lifetime. A rank moves
/// fewer.
const BYTES_PER_NANOSECOND: u64 = 1 << 20;

/// The calls that ranks of this node execute themselves.
#[derive(Debug)]
pub(crate) struct RankCalls {
    counters: Arc<CallCounters>,
    groups: Mutex<BTreeMap<u64, Arc<SharingGroup>>>,
    /// The latest records of ended groups.
    ended: Mutex<Vec<control::CallRecord>>,
}

/// A group with ranks that execute calls themselves.
#[derive(Debug)]
struct SharingGroup {
    group: (u64, u32),
    size: usize,
    shared: Arc<SharedSegment>,
    /// When its first rank attached, in nanoseconds of the clock that ranks and agent share.
    since: u64,
    /// The counts so far, by rank, plan and operation.
    counted: Mutex<BTreeMap<(u32, RankPlan, Operation), Totals>>,
    /// The reason for the first failed call.
    failure: OnceLock<Arc<str>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves the state consistent, because every change is a single step, or is
    // harmless if it is incomplete.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RankCalls {
    pub(crate) fn new(counters: Arc<CallCounters>) -> RankCalls {
        RankCalls { counters, groups: Mutex::default(), ended: Mutex::default() }
    }

    /// Registers the segment in which the ranks of a group of `size` ranks execute calls.
    pub(crate) fn share(&self, group: (u64, u32), size: usize, shared: &Arc<SharedSegment>) {
        lock(&self.groups).entry(group.0).or_insert_with(|| Arc::new(SharingGroup::new(group, size, shared)));
    }

    /// Records that a watched call of a group has failed, and with it the group.
    pub(crate) fn failed(&self, group: u64, why: &str) {
        if let Some(known) = lock(&self.groups).get(&group) {
            known.failure.get_or_init(|| why.into());
        }
    }

    /// Counts and keeps the calls of a group that has ended, before its segment is dropped.
    pub(crate) fn end(&self, group: u64) {
        let Some(known) = lock(&self.groups).remove(&group) else { return };
        known.count(&self.counters);
        let records = known.records();
        let mut ended = lock(&self.ended);
        ended.extend(records);
        keep_latest(&mut ended, LATEST);
    }

    /// Counts the calls of all ranks since the last count.
    pub(crate) fn count(&self) {
        self.groups(None).iter().for_each(|known| known.count(&self.counters));
    }

    /// Returns the last records of a group, or of all groups, oldest first.
    pub(crate) fn latest(&self, last: usize, group: Option<u64>) -> Vec<control::CallRecord> {
        let last = last.min(LATEST);
        // The running groups must be read first, because a group that ends meanwhile is then found
        // among the ended ones.
        let known = self.groups(group);
        let is_wanted = |record: &&control::CallRecord| {
            let is_known = known.iter().any(|known| known.group.0 == record.group);
            !is_known && group.is_none_or(|group| record.group == group)
        };
        let mut records: Vec<control::CallRecord> =
            lock(&self.ended).iter().filter(is_wanted).cloned().collect();
        for known in &known {
            records.extend(known.records());
            keep_latest(&mut records, last);
        }
        keep_latest(&mut records, last);
        records
    }

    fn groups(&self, group: Option<u64>) -> Vec<Arc<SharingGroup>> {
        let groups = lock(&self.groups);
        groups.values().filter(|known| group.is_none_or(|group| known.group.0 == group)).cloned().collect()
    }
}

/// Keeps the last `count` records, ordered by their start.
pub(crate) fn keep_latest(records: &mut Vec<control::CallRecord>, count: usize) {
    records.sort_by_key(|record| record.begun_ns);
    records.drain(..records.len().saturating_sub(count));
}

impl SharingGroup {
    fn new(group: (u64, u32), size: usize, shared: &Arc<SharedSegment>) -> SharingGroup {
        let (shared, since) = (Arc::clone(shared), records::now());
        SharingGroup { group, size, shared, since, counted: Mutex::default(), failure: OnceLock::new() }
    }

    fn count(&self, counters: &CallCounters) {
        let mut counted = lock(&self.counted);
        let lifetime = records::now().saturating_sub(self.since);
        for (rank, part) in self.shared.parts().filter(|(_, part)| part.has_records()) {
            for (plan, operation) in
                RankPlan::ALL.into_iter().flat_map(|plan| Operation::ALL.map(|operation| (plan, operation)))
            {
                let totals = part.totals(plan, operation);
                if totals == Totals::default() || !is_plausible(&totals, lifetime) {
                    continue;
                }
                let before = counted.entry((rank, plan, operation)).or_default();
                counters.carried_by_rank(plan, operation, &new_counts(before, &totals));
            }
        }
    }

    /// Returns one record for each of the latest calls in the segment.
    fn records(&self) -> Vec<control::CallRecord> {
        // Both clocks must be read together, because reading the records may take a while.
        let (now, time) = (records::now(), SystemTime::now());
        let since_1970 = time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
        let origin = u64::try_from(since_1970).unwrap_or(u64::MAX).saturating_sub(now);
        let mut calls: BTreeMap<u64, RanksCall> = BTreeMap::new();
        for (rank, part) in self.shared.parts() {
            for record in part.records().into_iter().filter(|record| self.makes_sense(record, now)) {
                let call = calls.entry(record.number).or_insert_with(|| RanksCall::from_record(&record));
                call.add(rank, &record, self.size);
                if calls.len() > LATEST {
                    calls.pop_first();
                }
            }
        }
        calls.into_iter().map(|(number, call)| call.into_record(self, number, origin)).collect()
    }

    fn makes_sense(&self, record: &RankRecord, now: u64) -> bool {
        let is_over = record.begun.checked_add(record.took).is_some_and(|end| end <= now);
        is_over && record.begun >= self.since && (record.root as usize) < self.size
    }
}

/// Returns the increase of a rank's totals. Totals never decrease; if a rank writes smaller ones,
/// nothing is counted twice.
fn new_counts(before: &mut Totals, totals: &Totals) -> Totals {
    let more = |before: &mut u64, now: u64| {
        let more = now.saturating_sub(*before);
        *before += more;
        more
    };
    Totals {
        calls: std::array::from_fn(|bucket| more(&mut before.calls[bucket], totals.calls[bucket])),
        nanoseconds: more(&mut before.nanoseconds, totals.nanoseconds),
        bytes: more(&mut before.bytes, totals.bytes),
        multicast: more(&mut before.multicast, totals.multicast),
        unicast: more(&mut before.unicast, totals.unicast),
        requested: more(&mut before.requested, totals.requested),
        retransmitted: more(&mut before.retransmitted, totals.retransmitted),
    }
}

/// Returns whether a rank can have done so much in a lifetime of this many nanoseconds.
fn is_plausible(totals: &Totals, lifetime: u64) -> bool {
    let Totals { calls, nanoseconds, bytes, multicast, unicast, requested, retransmitted } = *totals;
    let (often, moved) = (lifetime / NANOSECONDS_PER_CALL, lifetime.saturating_mul(BYTES_PER_NANOSECOND));
    let calls = calls.into_iter().fold(0, u64::saturating_add);
    [calls, requested, retransmitted].into_iter().all(|count| count <= often)
        && [bytes, multicast, unicast].into_iter().all(|bytes| bytes <= moved)
        && nanoseconds <= lifetime.saturating_mul(THREADS)
}

/// A call from the records of this node's ranks. The times are those of the clock that the ranks
/// share with their agent.
struct RanksCall {
    first: RankRecord,
    ranks: Vec<RankTimes>,
    arrivals: Vec<Arrival>,
    /// Bytes sent by multicast, bytes sent by unicast, and repaired messages.
    traffic: [u64; 3],
    failed: bool,
}

impl RanksCall {
    fn from_record(first: &RankRecord) -> RanksCall {
        RanksCall { first: *first, ranks: Vec::new(), arrivals: Vec::new(), traffic: [0; 3], failed: false }
    }

    fn add(&mut self, rank: u32, record: &RankRecord, size: usize) {
        let (begun, ended) = (record.begun, record.begun + record.took);
        self.ranks.push(RankTimes { rank, came_ns: begun, ended_ns: ended });
        self.failed |= record.failed;
        let traffic = record.traffic;
        let more = [traffic.multicast, traffic.unicast, traffic.retransmitted];
        self.traffic.iter_mut().zip(more).for_each(|(sum, more)| *sum += u64::from(more));
        for arrival in record.arrivals.iter().flatten().filter(|arrival| (arrival.from as usize) < size) {
            self.arrived(arrival.from, begun.saturating_add(arrival.after).min(ended));
        }
    }

    fn arrived(&mut self, from: u32, at: u64) {
        match self.arrivals.iter_mut().find(|known| known.from == from) {
            Some(known) => {
                (known.first_ns, known.last_ns) = (known.first_ns.min(at), known.last_ns.max(at));
                known.messages += 1;
            }
            None => self.arrivals.push(Arrival { from, first_ns: at, last_ns: at, messages: 1 }),
        }
    }

    /// Converts the call to a record for the controller. `origin` is the time in nanoseconds since
    /// 1970 at which the clock was 0.
    fn into_record(mut self, of: &SharingGroup, number: u64, origin: u64) -> control::CallRecord {
        let begun = self.ranks.iter().map(|times| times.came_ns).min().unwrap_or_default();
        for RankTimes { came_ns, ended_ns, .. } in &mut self.ranks {
            (*came_ns, *ended_ns) = (*came_ns - begun, *ended_ns - begun);
        }
        for Arrival { first_ns, last_ns, .. } in &mut self.arrivals {
            (*first_ns, *last_ns) = (*first_ns - begun, *last_ns - begun);
        }
        let failure = of.failure.get().map_or("given up by a rank, which knows why", |why| why);
        let [bytes_multicast, bytes_unicast, chunks_repaired] = self.traffic;
        control::CallRecord {
            group: of.group.0,
            epoch: of.group.1,
            call: number,
            words: words(&self.first),
            plan: self.first.plan.name().to_owned(),
            begun_ns: origin.saturating_add(begun),
            ranks: self.ranks,
            arrivals: self.arrivals,
            bytes_multicast,
            bytes_unicast,
            chunks_repaired,
            chunks_resent: 0,
            failure: if self.failed { failure.to_owned() } else { String::new() },
        }
    }
}

/// Returns the description of a call, for example "bcast of 8 u8 from rank 1".
fn words(record: &RankRecord) -> String {
    let element = record.element.map_or(1, |element| element.bytes() as u32);
    let call = Call::new(record.operation, Rank(record.root), record.bytes, element);
    let words = CallDescription { call: &call, element: record.element, reduce: record.reduce };
    if record.unequal { format!("{words}, in unequal parts") } else { words.to_string() }
}

#[cfg(test)]
mod tests;
