//! What an agent has done for its ranks, for Prometheus: collectives by operation, bytes, repairs, failures.

use axum::Router;
use axum::routing::get;
use cool_daemon::web;
use cool_proto::local::{Failure, Operation, Stats};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::Arc;

type Labels<const N: usize> = [(&'static str, String); N];
type Counters<const N: usize> = Family<Labels<N>, Counter>;

/// The metrics of one agent.
#[derive(Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    calls: Counters<1>,
    failures: Counters<2>,
    multicast: Counters<1>,
    unicast: Counters<1>,
    repaired: Counters<1>,
    resent: Counters<1>,
    seconds: Family<Labels<1>, Histogram, fn() -> Histogram>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut registry = Registry::with_prefix("cool_agent");
        let counters = |registry: &mut Registry, name, help| {
            let counters = Counters::<1>::default();
            registry.register(name, help, counters.clone());
            counters
        };
        let calls = counters(&mut registry, "calls", "Collectives carried out for ranks of this node");
        let multicast = counters(&mut registry, "multicast_bytes", "Payload sent by multicast");
        let unicast = counters(&mut registry, "unicast_bytes", "Payload sent by unicast, repairs apart");
        let repaired = counters(&mut registry, "chunks_repaired", "Chunks that were lost and came by repair");
        let resent =
            counters(&mut registry, "chunks_resent", "Chunks that others had lost and were sent again");
        let failures = Counters::<2>::default();
        registry.register("failures", "Collectives of ranks of this node that failed", failures.clone());
        // From 100 microseconds to some seven minutes.
        let new: fn() -> Histogram = || Histogram::new(exponential_buckets(1e-4, 4.0, 12));
        let seconds = Family::new_with_constructor(new);
        registry.register("call_seconds", "How long collectives took, seen by a rank", seconds.clone());
        let registry = Arc::new(registry);
        Metrics { registry, calls, failures, multicast, unicast, repaired, resent, seconds }
    }
}

impl Metrics {
    /// The page with these metrics, as it is to be served.
    pub fn router(&self) -> Router {
        let registry = self.registry.clone();
        Router::new().route("/metrics", get(move || async move { web::metrics(&registry) }))
    }

    /// A call of a rank has ended.
    pub(crate) fn called(&self, operation: Operation, result: &Result<Stats, Failure>) {
        let operation = operation.as_str_name().to_lowercase();
        let labels = [("operation", operation.clone())];
        let stats = match result {
            Ok(stats) => stats,
            Err(failure) => {
                let kind = failure.kind().as_str_name().to_lowercase();
                self.failures.get_or_create(&[("operation", operation), ("kind", kind)]).inc();
                return;
            }
        };
        self.calls.get_or_create(&labels).inc();
        let counts = [
            (&self.multicast, stats.bytes_multicast),
            (&self.unicast, stats.bytes_unicast),
            (&self.repaired, stats.chunks_repaired),
            (&self.resent, stats.chunks_resent),
        ];
        for (counters, count) in counts {
            counters.get_or_create(&labels).inc_by(count);
        }
        self.seconds.get_or_create(&labels).observe(stats.nanoseconds as f64 / 1e9);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::local::failure::Kind;
    use prometheus_client::encoding::text::encode;

    #[test]
    fn calls_and_failures_are_counted_by_operation() {
        let metrics = Metrics::default();
        let stats =
            Stats { nanoseconds: 1_000_000, bytes_multicast: 7, chunks_repaired: 2, ..Stats::default() };
        metrics.called(Operation::Bcast, &Ok(stats.clone()));
        metrics.called(Operation::Bcast, &Ok(stats));
        let failure = Failure { kind: Kind::Lost.into(), ..Failure::default() };
        metrics.called(Operation::Scan, &Err(failure));
        let mut text = String::new();
        encode(&mut text, &metrics.registry).unwrap();
        for line in [
            "cool_agent_calls_total{operation=\"bcast\"} 2",
            "cool_agent_multicast_bytes_total{operation=\"bcast\"} 14",
            "cool_agent_chunks_repaired_total{operation=\"bcast\"} 4",
            "cool_agent_failures_total{operation=\"scan\",kind=\"lost\"} 1",
            "cool_agent_call_seconds_count{operation=\"bcast\"} 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }
}
