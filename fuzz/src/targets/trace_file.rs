//! Trace files from any source: an accepted trace must be written, and read as the same trace.

use cool_proto::trace_file::{decode, encode};

pub(crate) fn check(bytes: &[u8]) {
    if let Ok(events) = decode(bytes) {
        assert_eq!(decode(&encode(&events)), Ok(events));
    }
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    use cool_proto::control::{Arrival, CallRecord, RankTimes, TraceEvent};

    let record = CallRecord {
        words: "bcast of 8 f64".into(),
        ranks: vec![RankTimes { rank: 1, came_ns: 2, ended_ns: 3 }],
        arrivals: vec![Arrival { from: 1, first_ns: 5, last_ns: 6, messages: 1 }],
        ..CallRecord::default()
    };
    let event = |node: &str| TraceEvent { node: node.into(), records: vec![record.clone()], silent: vec![] };
    vec![encode(&[]), encode(&[event("h1"), event("h2")])]
}

target!();
