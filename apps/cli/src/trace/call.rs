//! Collectives, each with the records of all its nodes.

use cool_proto::control::CallRecord;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Traced calls by group, epoch and number.
#[derive(Debug, Default)]
pub(super) struct TracedCalls {
    calls: BTreeMap<(u64, u32, u64), TracedCall>,
}

impl TracedCalls {
    /// Adds the record of a node.
    pub(super) fn add(&mut self, node: &str, record: CallRecord) {
        let key = (record.group, record.epoch, record.call);
        let call =
            self.calls.entry(key).or_insert_with(|| TracedCall { first: record.clone(), parts: Vec::new() });
        // The reason of a failure may be in the record of any node.
        if call.first.failure.is_empty() {
            call.first.failure.clone_from(&record.failure);
        }
        call.parts.push((node.to_owned(), record));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &TracedCall> {
        self.calls.values()
    }
}

/// One collective.
#[derive(Debug)]
pub(super) struct TracedCall {
    /// The properties that are the same on all nodes, and why the call failed.
    first: CallRecord,
    parts: Vec<(String, CallRecord)>,
}

/// An event of a rank on a node, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment<'a> {
    pub(super) at: u64,
    pub(super) rank: u32,
    pub(super) node: &'a str,
}

impl TracedCall {
    /// Returns the properties of the call. The times in it are those of one node.
    pub(super) fn record(&self) -> &CallRecord {
        &self.first
    }

    /// Returns the record of each node.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&str, &CallRecord)> {
        self.parts.iter().map(|(node, record)| (node.as_str(), record))
    }

    fn callers(&self) -> impl Iterator<Item = Moment<'_>> {
        self.parts().flat_map(|(node, record)| {
            let at = |ns| record.begun_ns.saturating_add(ns);
            record.ranks.iter().map(move |times| Moment { at: at(times.came_ns), rank: times.rank, node })
        })
    }

    fn first_call(&self) -> u64 {
        self.callers().map(|moment| moment.at).min().unwrap_or(0)
    }

    /// Returns the rank that called last.
    pub(super) fn last_caller(&self) -> Option<Moment<'_>> {
        self.callers().max_by_key(|moment| moment.at)
    }

    /// Returns the time from the first rank's call to the last rank's call, in nanoseconds.
    pub(super) fn lateness(&self) -> u64 {
        self.last_caller().map_or(0, |last| last.at - self.first_call())
    }

    /// Returns the duration in nanoseconds, from the first rank's call until the last rank's
    /// result.
    pub(super) fn nanoseconds(&self) -> u64 {
        let ends = self.parts().flat_map(|(_, record)| {
            record.ranks.iter().map(|times| record.begun_ns.saturating_add(times.ended_ns))
        });
        ends.max().unwrap_or(0).saturating_sub(self.first_call())
    }

    /// Returns the rank whose data arrived last, and the node at which it did.
    pub(super) fn last_data(&self) -> Option<Moment<'_>> {
        let data = self.parts().flat_map(|(node, record)| {
            let at = |ns| record.begun_ns.saturating_add(ns);
            record.arrivals.iter().map(move |data| Moment { at: at(data.last_ns), rank: data.from, node })
        });
        data.max_by_key(|moment| moment.at)
    }

    /// Returns the number of chunks that were lost and repaired.
    pub(super) fn repaired(&self) -> u64 {
        self.parts().map(|(_, record)| record.chunks_repaired).sum()
    }

    pub(super) fn document(&self) -> Value {
        let part = |(node, record): (&str, &CallRecord)| {
            let rank = |r: &cool_proto::control::RankTimes| json!({ "rank": r.rank, "came_ns": r.came_ns, "ended_ns": r.ended_ns });
            let data = |a: &cool_proto::control::Arrival| json!({ "from": a.from, "first_ns": a.first_ns, "last_ns": a.last_ns, "messages": a.messages });
            json!({
                "node": node,
                "begun_ns": record.begun_ns,
                "ranks": record.ranks.iter().map(rank).collect::<Vec<_>>(),
                "data": record.arrivals.iter().map(data).collect::<Vec<_>>(),
                "bytes_multicast": record.bytes_multicast,
                "bytes_unicast": record.bytes_unicast,
                "chunks_repaired": record.chunks_repaired,
                "chunks_resent": record.chunks_resent,
            })
        };
        let late = self.last_caller();
        json!({
            "group": self.first.group,
            "epoch": self.first.epoch,
            "call": self.first.call,
            "operation": self.first.words,
            "plan": self.first.plan,
            "nanoseconds": self.nanoseconds(),
            "last_to_come": late.map(|late| json!({ "rank": late.rank, "node": late.node, "after_ns": self.lateness() })),
            "last_data": self.last_data().map(|data| json!({ "from": data.rank, "node": data.node })),
            "failure": (!self.first.failure.is_empty()).then_some(&self.first.failure),
            "nodes": self.parts().map(part).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use cool_proto::control::{Arrival, RankTimes};

    pub(crate) const MILLISECOND: u64 = 1_000_000;

    /// Returns one call on two nodes, where the second record has the reason of its failure.
    pub(crate) fn calls() -> TracedCalls {
        let record = |begun: u64, ranks: &[(u32, u64, u64)], from: u32| CallRecord {
            group: 3,
            call: 7,
            words: "barrier".into(),
            plan: "flat:binomial".into(),
            begun_ns: begun * MILLISECOND,
            ranks: ranks
                .iter()
                .map(|(rank, callers, ended)| RankTimes {
                    rank: *rank,
                    came_ns: callers * MILLISECOND,
                    ended_ns: ended * MILLISECOND,
                })
                .collect(),
            arrivals: vec![Arrival { from, first_ns: 1, last_ns: 4 * MILLISECOND, messages: 2 }],
            ..CallRecord::default()
        };
        let mut calls = TracedCalls::default();
        calls.add("h2", CallRecord { chunks_repaired: 5, ..record(106, &[(2, 0, 3)], 0) });
        let failure = "rank 9 is gone".to_owned();
        calls.add("h1", CallRecord { failure, ..record(100, &[(0, 0, 9), (1, 2, 10)], 7) });
        calls.add("h1", CallRecord { begun_ns: 107 * MILLISECOND, ..record(0, &[], 2) });
        calls
    }

    #[test]
    fn the_records_of_a_call_are_combined_by_the_clocks() {
        let calls = calls();
        assert_eq!(calls.iter().count(), 1);
        let call = calls.iter().next().unwrap();
        assert_eq!(call.last_caller(), Some(Moment { at: 106 * MILLISECOND, rank: 2, node: "h2" }));
        assert_eq!((call.lateness(), call.repaired()), (6 * MILLISECOND, 5));
        assert_eq!(call.last_data(), Some(Moment { at: 111 * MILLISECOND, rank: 2, node: "h1" }));
        assert_eq!(call.document()["last_to_come"]["rank"], 2);
    }
}
