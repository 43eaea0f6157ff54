//! The cost of recent collectives on this node. A record states when each local rank started and
//! completed the call, and when data arrived from which ranks. The engine keeps records even if
//! they are never read, so recording must be cheap: a few stores per message and one small record
//! per call.

use crate::failure::TrafficTotals;
use cool_machine::Time;
use std::collections::VecDeque;
use std::sync::Arc;

/// Number of calls of which records are kept.
const RECORDS: usize = 4096;

/// Number of ranks whose arrivals one record lists separately: the ranks from which data arrived
/// last.
const ARRIVALS: usize = 32;

/// One collective on this node.
#[derive(Clone, Debug)]
pub struct CallRecord {
    /// Group and epoch.
    pub group: (u64, u32),
    /// The call's number in its group.
    pub call: u64,
    /// The call, as text.
    pub words: Arc<str>,
    /// The plan, as text.
    pub plan: Arc<str>,
    /// The local ranks in the call.
    pub ranks: Vec<RankTimes>,
    /// The ranks from which data arrived.
    pub arrivals: Vec<DataArrival>,
    /// The traffic of all local ranks in the call, until their replies.
    pub traffic: TrafficTotals,
    /// The reason why the call failed, if it did.
    pub failure: Option<Arc<str>>,
}

/// The times at which a local rank started and completed a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankTimes {
    /// The rank.
    pub rank: u32,
    /// When the rank made the call.
    pub came: Time,
    /// When the engine replied to it.
    pub ended: Time,
}

/// The data that local ranks received from one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataArrival {
    /// The rank.
    pub from: u32,
    /// When its first message arrived.
    pub first: Time,
    /// When its last message arrived.
    pub last: Time,
    /// The number of its messages.
    pub messages: u32,
}

/// The data that is recorded while a call runs.
#[derive(Debug, Default)]
pub(crate) struct CallNotes {
    pub(crate) ranks: Vec<RankTimes>,
    pub(crate) arrivals: Vec<DataArrival>,
    pub(crate) traffic: TrafficTotals,
}

impl CallNotes {
    /// Records that a message from a rank has arrived.
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

    /// Records that a rank has completed the call.
    pub(crate) fn record_end(&mut self, times: RankTimes, traffic: &TrafficTotals) {
        self.ranks.push(times);
        self.traffic += *traffic;
    }
}

/// The most recent records.
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

    /// Returns the last `count` records of a group, or of all groups, oldest first.
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
    fn a_record_lists_the_ranks_with_the_latest_arrivals() {
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
