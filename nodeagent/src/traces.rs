//! Converts the engine's records of calls, and those of calls that ranks execute themselves, to
//! messages for the controller.

use crate::agent::Agent;
use crate::engine::{CallRecord, EngineTrace};
use crate::rank_calls::keep_latest;
use cool_machine::Time;
use cool_proto::control::{self, TraceRequest, Traced};
use cool_proto::job_ids;
use std::sync::Arc;
use std::time::UNIX_EPOCH;
use tracing::warn;

/// Number of records in one message, which is about 100 KiB.
const PIECE: usize = 512;

/// Returns the response to a request in several messages. The last one is marked.
pub(crate) async fn answer(agent: &Agent, request: &TraceRequest) -> Vec<Traced> {
    let last = if request.last == 0 { usize::MAX } else { request.last as usize };
    let records = match request.group {
        0 => latest(agent, last, None).await,
        short if job_ids::short(short) == short => {
            let mut records = all(agent).await;
            records.retain(|record| job_ids::short(record.group) == short);
            keep_latest(&mut records, last);
            records
        }
        group => latest(agent, last, Some(group)).await,
    };
    let mut pieces: Vec<Traced> = records
        .chunks(PIECE)
        .map(|piece| Traced { id: request.id, records: piece.to_vec(), end: false })
        .collect();
    pieces.push(Traced { id: request.id, records: Vec::new(), end: true });
    pieces
}

/// Returns all records that the agent still has, oldest first.
pub(crate) async fn all(agent: &Agent) -> Vec<control::CallRecord> {
    latest(agent, usize::MAX, None).await
}

/// Returns the last records of a group, or of all groups.
async fn latest(agent: &Agent, last: usize, group: Option<u64>) -> Vec<control::CallRecord> {
    let by_agent = agent.trace(last, group).await;
    let mut calls = by_agent.map(|trace| records(&trace)).unwrap_or_default();
    // Reading the records of ranks may take a while.
    let rank_calls = Arc::clone(agent.rank_calls());
    match tokio::task::spawn_blocking(move || rank_calls.latest(last, group)).await {
        Ok(by_ranks) => calls.extend(by_ranks),
        Err(error) => warn!(%error, "calls of ranks are missing from a trace"),
    }
    keep_latest(&mut calls, last);
    calls
}

fn records(trace: &EngineTrace) -> Vec<control::CallRecord> {
    let origin = trace.origin.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let origin = u64::try_from(origin).unwrap_or(u64::MAX);
    trace.records.iter().map(|record| message(record, origin)).collect()
}

fn message(record: &CallRecord, origin: u64) -> control::CallRecord {
    let begun = record.ranks.iter().map(|rank| rank.came).min().unwrap_or(Time::ZERO);
    let since = |time: Time| u64::try_from(time.since(begun).as_nanos()).unwrap_or(u64::MAX);
    let rank = |times: &crate::engine::RankTimes| control::RankTimes {
        rank: times.rank,
        came_ns: since(times.came),
        ended_ns: since(times.ended),
    };
    let arrival = |arrival: &crate::engine::DataArrival| control::Arrival {
        from: arrival.from,
        first_ns: since(arrival.first),
        last_ns: since(arrival.last),
        messages: arrival.messages,
    };
    control::CallRecord {
        group: record.group.0,
        epoch: record.group.1,
        call: record.call,
        words: record.words.to_string(),
        plan: record.plan.to_string(),
        begun_ns: origin.saturating_add(begun.as_nanos()),
        ranks: record.ranks.iter().map(rank).collect(),
        arrivals: record.arrivals.iter().map(arrival).collect(),
        bytes_multicast: record.traffic.bytes_multicast,
        bytes_unicast: record.traffic.bytes_unicast,
        chunks_repaired: record.traffic.chunks_repaired,
        chunks_resent: record.traffic.chunks_resent,
        failure: record.failure.as_deref().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{DataArrival, RankTimes};
    use cool_engine::TrafficTotals;

    #[test]
    fn times_are_relative_to_the_first_rank() {
        let at = Time::from_nanos;
        let record = CallRecord {
            group: (3, 1),
            call: 5,
            words: "barrier".into(),
            plan: "flat".into(),
            ranks: vec![
                RankTimes { rank: 1, came: at(250), ended: at(300) },
                RankTimes { rank: 0, came: at(200), ended: at(310) },
            ],
            arrivals: vec![DataArrival { from: 7, first: at(220), last: at(290), messages: 2 }],
            traffic: TrafficTotals { chunks_repaired: 4, ..TrafficTotals::default() },
            failure: None,
        };
        let converted = message(&record, 1000);
        assert_eq!(
            (converted.begun_ns, converted.ranks[0].came_ns, converted.ranks[1].ended_ns),
            (1200, 50, 110)
        );
        assert_eq!(
            (converted.arrivals[0].first_ns, converted.arrivals[0].last_ns, converted.chunks_repaired),
            (20, 90, 4)
        );
    }
}
