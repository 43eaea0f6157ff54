//! The metrics of an agent and its ranks for Prometheus: collectives by operation, bytes, repairs,
//! and failures.

use crate::call_counters::CallCounters;
use crate::engine::{DroppedDatagrams, RefusalCounters, RefusalReason, TrafficCounters};
use crate::rank_calls::RankCalls;
use axum::Router;
use axum::routing::get;
use cool_daemon::web;
use cool_engine::TrafficTotals;
use cool_proto::local::failure::Kind;
use cool_proto::local::{Failure, Stats};
use cool_types::Operation;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

type MetricLabels<const N: usize> = [(&'static str, String); N];
type CounterFamily<const N: usize> = Family<MetricLabels<N>, Counter>;

/// The metrics of one agent.
#[derive(Debug)]
pub struct AgentMetrics {
    registry: Arc<Registry>,
    calls: Arc<CallCounters>,
    failures: CounterFamily<2>,
    /// The dropped datagrams as of the last request, and the reader of their present number.
    dropped: Counter,
    dropped_datagrams: DroppedDatagrams,
    /// Calls that are recorded in the ranks' segments.
    rank_calls: Arc<RankCalls>,
}

/// The network traffic by operation. It is counted when it occurs, even if the call fails later,
/// and read when the metrics are requested.
#[derive(Debug)]
struct TrafficCollector {
    by_agent: Arc<TrafficCounters>,
    by_ranks: Arc<CallCounters>,
}

/// The name, the help text and the value of a counter.
type TrafficMetric = (&'static str, &'static str, fn(&TrafficTotals) -> u64);

const TRAFFIC: [TrafficMetric; 4] = [
    ("multicast_bytes", "Payload sent by multicast", |traffic| traffic.bytes_multicast),
    ("unicast_bytes", "Payload sent by unicast, without repairs", |traffic| traffic.bytes_unicast),
    ("chunks_repaired", "Chunks that were lost and received by repair", |traffic| traffic.chunks_repaired),
    ("chunks_resent", "Chunks that this node retransmitted for others", |traffic| traffic.chunks_resent),
];

/// The kinds of failures that collective calls can have. The other kinds occur only for messages.
const FAILURES: [Kind; 6] =
    [Kind::Invalid, Kind::Mismatch, Kind::Timeout, Kind::Lost, Kind::Aborted, Kind::Revoked];

fn failure_labels(operation: Operation, kind: Kind) -> MetricLabels<2> {
    [("operation", operation.name().to_owned()), ("kind", kind.as_str_name().to_lowercase())]
}

impl Collector for TrafficCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, help, value) in TRAFFIC {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for operation in Operation::ALL {
                let labels = [("operation", operation.name())];
                let [by_agent, by_ranks] = [self.by_agent.get(operation), self.by_ranks.traffic(operation)];
                let counter = ConstCounter::new(value(&by_agent).wrapping_add(value(&by_ranks)));
                counter.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// The refused datagrams and connections, by reason.
#[derive(Debug)]
struct RefusalCollector(Arc<RefusalCounters>);

impl Collector for RefusalCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Packets and connections without proof of their group or agent";
        let mut family = encoder.encode_descriptor("refused", help, None, MetricType::Counter)?;
        for why in RefusalReason::ALL {
            let counter = ConstCounter::new(self.0.get(why));
            counter.encode(family.encode_family(&[("reason", why.name())])?)?;
        }
        Ok(())
    }
}

impl AgentMetrics {
    /// Returns the metrics of an agent with these counters of its engine.
    pub(crate) fn new(
        traffic: Arc<TrafficCounters>,
        refusals: Arc<RefusalCounters>,
        dropped_datagrams: DroppedDatagrams,
    ) -> AgentMetrics {
        let mut registry = Registry::with_prefix("cool_agent");
        let calls = Arc::<CallCounters>::default();
        calls.register(&mut registry);
        let failures = CounterFamily::<2>::default();
        registry.register("failures", "Collectives of ranks of this node that failed", failures.clone());
        let dropped = Counter::default();
        let help = "Datagrams that the system dropped because the receive buffer of a socket was full";
        registry.register("datagrams_dropped", help, dropped.clone());
        // All series must exist from the start, because Prometheus computes no rate for the first
        // value of a counter.
        for operation in Operation::ALL {
            for kind in FAILURES {
                failures.get_or_create(&failure_labels(operation, kind)).inc_by(0);
            }
        }
        let by_ranks = Arc::clone(&calls);
        registry.register_collector(Box::new(TrafficCollector { by_agent: traffic, by_ranks }));
        registry.register_collector(Box::new(RefusalCollector(refusals)));
        let rank_calls = Arc::new(RankCalls::new(Arc::clone(&calls)));
        AgentMetrics { registry: Arc::new(registry), calls, failures, dropped, dropped_datagrams, rank_calls }
    }

    /// Returns the router that serves the page with the metrics.
    pub fn router(&self) -> Router {
        let (registry, rank_calls) = (self.registry.clone(), self.rank_calls.clone());
        let (dropped, dropped_datagrams) = (self.dropped.clone(), self.dropped_datagrams.clone());
        let page = move || async move {
            rank_calls.count();
            if let Some(total) = dropped_datagrams.read().await {
                dropped.inner().store(total, Ordering::Relaxed);
            }
            web::metrics(&registry)
        };
        Router::new().route("/metrics", get(page))
    }

    /// Returns the calls that ranks execute themselves.
    pub(crate) fn rank_calls(&self) -> &Arc<RankCalls> {
        &self.rank_calls
    }

    /// Returns the counter of retransmitted messages of quick calls.
    pub(crate) fn retransmit_counter(&self) -> Counter {
        self.calls.answered.clone()
    }

    /// Counts a failed call of a rank.
    pub(crate) fn failed(&self, operation: Operation, failure: &Failure) {
        self.failures.get_or_create(&failure_labels(operation, failure.kind())).inc();
    }

    /// Counts a call of a rank that has ended.
    pub(crate) fn called(&self, operation: Operation, result: &Result<Stats, Failure>) {
        match result {
            Ok(stats) => self.calls.ended(operation, stats.nanoseconds),
            Err(failure) => self.failed(operation, failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_shm::segment::records::{BUCKETS, RankPlan, Totals};
    use prometheus_client::encoding::text::encode;
    use tokio::sync::mpsc;

    #[test]
    fn calls_and_failures_are_counted_by_operation() {
        let traffic = Arc::<TrafficCounters>::default();
        let refusals = Arc::<RefusalCounters>::default();
        refusals.count(RefusalReason::Forged);
        let (commands, _) = mpsc::unbounded_channel();
        let metrics = AgentMetrics::new(Arc::clone(&traffic), refusals, DroppedDatagrams::new(&commands));
        let stats = Stats { nanoseconds: 1_000_000, ..Stats::default() };
        metrics.called(Operation::Bcast, &Ok(stats.clone()));
        metrics.called(Operation::Bcast, &Ok(stats));
        let failure = Failure { kind: Kind::Lost.into(), ..Failure::default() };
        metrics.called(Operation::Scan, &Err(failure));
        let mut counted = [TrafficTotals::default(); Operation::ALL.len()];
        counted[Operation::Bcast as usize] =
            TrafficTotals { bytes_multicast: 14, chunks_repaired: 4, ..TrafficTotals::default() };
        traffic.set(&counted);
        let mut calls = [0; BUCKETS];
        calls[3] = 5;
        let more =
            Totals { calls, nanoseconds: 1_000, bytes: 40, multicast: 6, requested: 7, ..Totals::default() };
        metrics.calls.carried_by_rank(RankPlan::QuickMulticast, Operation::Bcast, &more);
        metrics.retransmit_counter().inc();
        let mut text = String::new();
        encode(&mut text, &metrics.registry).unwrap();
        for line in [
            "cool_agent_calls_total{operation=\"bcast\"} 7",
            "cool_agent_calls_total{operation=\"barrier\"} 0",
            "cool_agent_rank_calls_total{operation=\"bcast\",plan=\"quick multicast\"} 5",
            "cool_agent_rank_calls_total{operation=\"bcast\",plan=\"segment\"} 0",
            "cool_agent_rank_call_bytes_total{operation=\"bcast\",plan=\"quick multicast\"} 40",
            "cool_agent_datagrams_asked_total 7",
            "cool_agent_datagrams_answered_total 1",
            "cool_agent_multicast_bytes_total{operation=\"bcast\"} 20",
            "cool_agent_chunks_repaired_total{operation=\"bcast\"} 4",
            "cool_agent_failures_total{operation=\"scan\",kind=\"lost\"} 1",
            "cool_agent_failures_total{operation=\"scan\",kind=\"timeout\"} 0",
            "cool_agent_datagrams_dropped_total 0",
            "cool_agent_refused_total{reason=\"forged\"} 1",
            "cool_agent_call_seconds_count{operation=\"bcast\"} 7",
            "cool_agent_call_seconds_sum{operation=\"bcast\"} 0.002001",
            "cool_agent_call_seconds_bucket{le=\"0.0001\",operation=\"bcast\"} 5",
            "cool_agent_call_seconds_bucket{le=\"+Inf\",operation=\"bcast\"} 7",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }
}
