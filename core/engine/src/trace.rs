//! What collectives cost this node: the last few thousand, each a record of who came and left when, and whose data
//! came when. It is kept whether anybody asks or not, so it takes a few stores a message and one small record a call.

use crate::failure::TrafficTotals;
use cool_machine::Time;
use std::collections::VecDeque;
use std::sync::Arc;

/// Calls that are remembered.
const RECORDS: usize = 4096;

/// Ranks whose data is told apart in a record: those heard last.
const ARRIVALS: usize = 32;

/// One collective on this node.
#[derive(Clone, Debug)]
pub struct CallRecord {
    /// Group and epoch.
    pub group: (u64, u32),
    /// Its number in the group.
    pub call: u64,
    /// As text.
    pub words: Arc<str>,
    /// By what plan.
    pub plan: Arc<str>,
    /// Local ranks.
    pub ranks: Vec<RankTimes>,
    /// Whose data they got.
    pub arrivals: Vec<DataArrival>,
    /// Of all local ranks, until they were answered.
    pub traffic: TrafficTotals,
    /// Why it failed, if it did.
    pub failure: Option<Arc<str>>,
}

/// When a local rank was in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankTimes {
    /// The rank.
    pub rank: u32,
    /// It called.
    pub came: Time,
    /// It was answered.
    pub ended: Time,
}

/// Data that local ranks got from a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataArrival {
    /// The rank.
    pub from: u32,
    /// When the first of its messages was here.
    pub first: Time,
    /// The last.
    pub last: Time,
    /// How many.
    pub messages: u32,
}

/// What is noted of a call while it runs.
#[derive(Debug, Default)]
pub(crate) struct CallNotes {
    pub(crate) ranks: Vec<RankTimes>,
    pub(crate) arrivals: Vec<DataArrival>,
    pub(crate) traffic: TrafficTotals,
}

impl CallNotes {
    /// A message from a rank is here.
    pub(crate) fn record_arrival(&mut self, now: Time, from: u32) {
        if let Some(known) = self.arrivals.iter_mut().find(|arrival| arrival.from == from) {
            known.last = now;
            known.messages = known.messages.saturating_add(1);
            return;
        }
        let arrival = DataArrival { from, first: now, last: now, messages: 1 };
        if self.arrivals.len() < ARRIVALS {
            self.arrivals.push(arrival);
        } else if let Some(oldest) = self.arrivals.iter_mut().min_by_key(|arrival| arrival.last) {
            *oldest = arrival;
        }
    }

    /// A rank is through.
    pub(crate) fn record_end(&mut self, times: RankTimes, traffic: &TrafficTotals) {
        self.ranks.push(times);
        self.traffic += *traffic;
    }
}

/// The latest records.
#[derive(Debug, Default)]
pub(crate) struct TraceRing {
    records: VecDeque<Arc<CallRecord>>,
}

impl TraceRing {
    pub(crate) fn push(&mut self, record: CallRecord) {
        if self.records.len() >= RECORDS {
            self.records.pop_front();
        }
        self.records.push_back(Arc::new(record));
    }

    /// The last `count` of a group, or of all, oldest first.
    pub(crate) fn last(&self, count: usize, group: Option<u64>) -> Vec<Arc<CallRecord>> {
        let wanted = self.records.iter().rev().filter(|r| group.is_none_or(|group| r.group.0 == group));
        let mut records: Vec<_> = wanted.take(count).cloned().collect();
        records.reverse();
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_tells_the_first_and_last_message_of_the_ranks_heard_last() {
        let at = Time::from_nanos;
        let mut notes = CallNotes::default();
        for (time, from) in [(1, 7), (2, 8), (5, 7)] {
            notes.record_arrival(at(time), from);
        }
        let arrival =
            |from, first, last, messages| DataArrival { from, first: at(first), last: at(last), messages };
        assert_eq!(notes.arrivals, [arrival(7, 1, 5, 2), arrival(8, 2, 2, 1)]);
        for from in 100..100 + ARRIVALS as u32 {
            notes.record_arrival(at(u64::from(from)), from);
        }
        assert_eq!(notes.arrivals.len(), ARRIVALS);
        assert!(notes.arrivals.iter().all(|arrival| arrival.from >= 100));
    }

    #[test]
    fn the_ring_keeps_the_latest_calls_of_all_groups() {
        let mut ring = TraceRing::default();
        for call in 0..RECORDS as u64 + 10 {
            ring.push(CallRecord {
                group: (call % 2, 1),
                call,
                words: "barrier".into(),
                plan: "flat".into(),
                ranks: Vec::new(),
                arrivals: Vec::new(),
                traffic: TrafficTotals::default(),
                failure: None,
            });
        }
        let calls = |count, group| ring.last(count, group).iter().map(|r| r.call).collect::<Vec<_>>();
        let newest = RECORDS as u64 + 9;
        assert_eq!(calls(2, None), [newest - 1, newest]);
        assert_eq!(calls(2, Some(0)), [newest - 3, newest - 1]);
        assert_eq!((calls(usize::MAX, None).len(), calls(usize::MAX, None)[0]), (RECORDS, 10));
    }
}
