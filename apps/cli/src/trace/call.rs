//! Collectives, each of all nodes that remember it.

use cool_proto::control::CallRecord;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Calls by group, epoch and number.
#[derive(Debug, Default)]
pub(super) struct Calls {
    calls: BTreeMap<(u64, u32, u64), Call>,
}

impl Calls {
    /// What a node remembers of a call.
    pub(super) fn add(&mut self, node: &str, record: CallRecord) {
        let key = (record.group, record.epoch, record.call);
        let call = self.calls.entry(key).or_insert_with(|| Call { first: record.clone(), parts: Vec::new() });
        // If any node knows why it failed, that is said.
        if call.first.failure.is_empty() {
            call.first.failure.clone_from(&record.failure);
        }
        call.parts.push((node.to_owned(), record));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Call> {
        self.calls.values()
    }
}

/// One collective.
#[derive(Debug)]
pub(super) struct Call {
    /// What all nodes say alike, and why it failed.
    first: CallRecord,
    parts: Vec<(String, CallRecord)>,
}

/// Something about a rank, at a time in nanoseconds since 1970, on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment<'a> {
    pub(super) at: u64,
    pub(super) rank: u32,
    pub(super) node: &'a str,
}

impl Call {
    /// What it was; the times in it are those of one node.
    pub(super) fn record(&self) -> &CallRecord {
        &self.first
    }

    /// What each node remembers.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&str, &CallRecord)> {
        self.parts.iter().map(|(node, record)| (node.as_str(), record))
    }

    fn came(&self) -> impl Iterator<Item = Moment<'_>> {
        self.parts().flat_map(|(node, record)| {
            let at = |ns| record.begun_ns.saturating_add(ns);
            record.ranks.iter().map(move |times| Moment { at: at(times.came_ns), rank: times.rank, node })
        })
    }

    fn first_came(&self) -> u64 {
        self.came().map(|moment| moment.at).min().unwrap_or(0)
    }

    /// The rank that called last.
    pub(super) fn last_to_come(&self) -> Option<Moment<'_>> {
        self.came().max_by_key(|moment| moment.at)
    }

    /// How much later than the first it called.
    pub(super) fn lateness(&self) -> u64 {
        self.last_to_come().map_or(0, |last| last.at - self.first_came())
    }

    /// From the first rank's call to the last one's answer.
    pub(super) fn nanoseconds(&self) -> u64 {
        let ends = self.parts().flat_map(|(_, record)| {
            record.ranks.iter().map(|times| record.begun_ns.saturating_add(times.ended_ns))
        });
        ends.max().unwrap_or(0).saturating_sub(self.first_came())
    }

    /// The rank whose data came last, and where.
    pub(super) fn last_data(&self) -> Option<Moment<'_>> {
        let data = self.parts().flat_map(|(node, record)| {
            let at = |ns| record.begun_ns.saturating_add(ns);
            record.arrivals.iter().map(move |data| Moment { at: at(data.last_ns), rank: data.from, node })
        });
        data.max_by_key(|moment| moment.at)
    }

    /// Chunks that were lost and repaired.
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
        let late = self.last_to_come();
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

    /// One call on two nodes, of which the second says why it failed.
    pub(crate) fn calls() -> Calls {
        let record = |begun: u64, ranks: &[(u32, u64, u64)], from: u32| CallRecord {
            group: 3,
            call: 7,
            words: "barrier".into(),
            plan: "flat:binomial".into(),
            begun_ns: begun * MILLISECOND,
            ranks: ranks
                .iter()
                .map(|(rank, came, ended)| RankTimes {
                    rank: *rank,
                    came_ns: came * MILLISECOND,
                    ended_ns: ended * MILLISECOND,
                })
                .collect(),
            arrivals: vec![Arrival { from, first_ns: 1, last_ns: 4 * MILLISECOND, messages: 2 }],
            ..CallRecord::default()
        };
        let mut calls = Calls::default();
        calls.add("h2", CallRecord { chunks_repaired: 5, ..record(106, &[(2, 0, 3)], 0) });
        let failure = "rank 9 is gone".to_owned();
        calls.add("h1", CallRecord { failure, ..record(100, &[(0, 0, 9), (1, 2, 10)], 7) });
        calls.add("h1", CallRecord { begun_ns: 107 * MILLISECOND, ..record(0, &[], 2) });
        calls
    }

    #[test]
    fn the_parts_of_a_call_are_put_together_by_the_clocks() {
        let calls = calls();
        assert_eq!(calls.iter().count(), 1);
        let call = calls.iter().next().unwrap();
        assert_eq!(call.last_to_come(), Some(Moment { at: 106 * MILLISECOND, rank: 2, node: "h2" }));
        assert_eq!((call.lateness(), call.repaired()), (6 * MILLISECOND, 5));
        assert_eq!(call.last_data(), Some(Moment { at: 111 * MILLISECOND, rank: 2, node: "h1" }));
        assert_eq!(call.document()["last_to_come"]["rank"], 2);
    }
}
