//! A timeline of calls in Chromium's Trace Event Format, which Perfetto reads, too: a process for
//! each node, a track for each rank, a slice for each call, and a mark where data arrived.

use super::call::TracedCalls;
use cool_proto::control::{CallRecord, RankTimes};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Returns the content of the file.
pub(super) fn document(calls: &TracedCalls) -> Value {
    let mut nodes: BTreeMap<&str, Vec<&CallRecord>> = BTreeMap::new();
    for (node, record) in calls.iter().flat_map(super::call::TracedCall::parts) {
        nodes.entry(node).or_default().push(record);
    }
    // Times start at 0, because viewers store them as floating-point numbers.
    let origin = nodes.values().flatten().map(|record| record.begun_ns).min().unwrap_or(0);
    let mut events = Vec::new();
    for (process, (node, records)) in nodes.into_iter().enumerate() {
        events.push(json!({ "ph": "M", "name": "process_name", "pid": process, "args": { "name": node } }));
        events.extend(tracks(process, records, origin));
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ms" })
}

/// Returns the events of one node. Overlapping calls of a rank are on separate tracks, because the
/// slices of a track must nest.
fn tracks(process: usize, mut records: Vec<&CallRecord>, origin: u64) -> Vec<Value> {
    records.sort_by_key(|record| record.begun_ns);
    let mut events = Vec::new();
    // For each rank, the end of the last slice of each of its tracks, and the track's number.
    let mut ends: BTreeMap<u32, Vec<(u64, usize)>> = BTreeMap::new();
    let mut tracks = 0;
    for record in records {
        let begun = record.begun_ns - origin;
        for times in &record.ranks {
            let (from, to) = (begun.saturating_add(times.came_ns), begun.saturating_add(times.ended_ns));
            let of_rank = ends.entry(times.rank).or_default();
            let track = match of_rank.iter_mut().find(|(end, _)| *end <= from) {
                Some((end, track)) => {
                    *end = to;
                    *track
                }
                None => {
                    tracks += 1;
                    of_rank.push((to, tracks));
                    let name = format!("rank {}", times.rank);
                    events.push(json!({
                        "ph": "M", "name": "thread_name", "pid": process, "tid": tracks, "args": { "name": name }
                    }));
                    tracks
                }
            };
            events.push(slice(record, times, (process, track), from));
        }
        events.extend(record.arrivals.iter().map(|data| {
            json!({
                "ph": "i", "s": "p", "pid": process, "tid": 0, "ts": microseconds(begun.saturating_add(data.last_ns)),
                "name": format!("data of rank {}", data.from),
                "args": { "group": record.group, "call": record.call, "messages": data.messages,
                    "first_us": microseconds(data.first_ns) },
            })
        }));
    }
    events
}

fn slice(record: &CallRecord, times: &RankTimes, (process, track): (usize, usize), from: u64) -> Value {
    let operation = record.words.split(' ').next().unwrap_or_default();
    json!({
        "ph": "X", "pid": process, "tid": track, "cat": "collective", "name": operation,
        "ts": microseconds(from), "dur": microseconds(times.ended_ns.saturating_sub(times.came_ns)),
        "args": {
            "call": format!("{} of group {}", record.call, record.group), "what": record.words, "plan": record.plan,
            "repaired": record.chunks_repaired, "resent": record.chunks_resent, "failure": record.failure,
        },
    })
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::super::call::tests::{MILLISECOND, calls};
    use super::*;

    fn slices(document: &Value) -> Vec<(u64, u64, f64, f64)> {
        let events = document["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X");
        let number = |e: &Value, key: &str| e[key].as_u64().unwrap();
        let time = |e: &Value, key: &str| e[key].as_f64().unwrap();
        events.map(|e| (number(e, "pid"), number(e, "tid"), time(e, "ts"), time(e, "dur"))).collect()
    }

    #[test]
    fn each_rank_has_a_slice_for_each_call_from_the_first_on() {
        let slices = slices(&document(&calls()));
        assert_eq!(slices, [(0, 1, 0.0, 9000.0), (0, 2, 2000.0, 8000.0), (1, 1, 6000.0, 3000.0)]);
    }

    #[test]
    fn overlapping_calls_are_on_separate_tracks() {
        let mut calls = calls();
        for (call, begun) in [(8, 102), (9, 120)] {
            let ranks = vec![RankTimes { rank: 2, came_ns: 5 * MILLISECOND, ended_ns: 9 * MILLISECOND }];
            let record =
                CallRecord { group: 3, call, begun_ns: begun * MILLISECOND, ranks, ..CallRecord::default() };
            calls.add("h2", record);
        }
        let of_h2: Vec<_> = slices(&document(&calls)).into_iter().filter(|s| s.0 == 1).map(|s| s.1).collect();
        assert_eq!(of_h2, [1, 2, 1]);
    }
}
