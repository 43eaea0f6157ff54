//! Counters of the calls of this node's ranks. Calls that the agent executes are counted when they
//! end, and calls that ranks execute themselves when the metrics are requested
//! ([`crate::rank_calls`]).

use cool_engine::TrafficTotals;
use cool_shm::segment::records::{BUCKETS, RankPlan, Totals, bucket, bucket_end};
use cool_types::Operation;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const OPERATIONS: usize = Operation::ALL.len();
const PLANS: usize = RankPlan::ALL.len();

/// Successful calls, executed by the agent or by ranks, and the traffic of the latter.
#[derive(Debug, Default)]
pub(crate) struct CallCounters {
    operations: [OperationCounters; OPERATIONS],
    /// The number and the bytes of calls that ranks executed themselves, by plan and operation.
    by_ranks: [[[AtomicU64; 2]; OPERATIONS]; PLANS],
    /// Messages of quick calls that ranks have requested by NAKs.
    requested: Counter,
    /// Messages of quick calls that were retransmitted to ranks of other nodes.
    pub(crate) answered: Counter,
}

#[derive(Debug, Default)]
struct OperationCounters {
    /// The number of calls, by duration.
    buckets: [AtomicU64; BUCKETS],
    nanoseconds: AtomicU64,
    /// The traffic of ranks that execute calls themselves: sent by multicast, sent by unicast, and
    /// repaired.
    by_ranks: [AtomicU64; 3],
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn sum(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::wrapping_add)
}

impl CallCounters {
    /// Counts a call that the agent executed for a rank, and its duration.
    pub(crate) fn ended(&self, operation: Operation, nanoseconds: u64) {
        let OperationCounters { buckets, nanoseconds: total, .. } = &self.operations[operation as usize];
        add(&buckets[bucket(nanoseconds)], 1);
        add(total, nanoseconds);
    }

    /// Adds the calls that a rank has executed itself, as the increase of its totals since the last
    /// addition.
    pub(crate) fn carried_by_rank(&self, plan: RankPlan, operation: Operation, more: &Totals) {
        let OperationCounters { buckets, nanoseconds, by_ranks } = &self.operations[operation as usize];
        buckets.iter().zip(more.calls).for_each(|(bucket, calls)| add(bucket, calls));
        add(nanoseconds, more.nanoseconds);
        let traffic = [more.multicast, more.unicast, more.retransmitted];
        by_ranks.iter().zip(traffic).for_each(|(counter, more)| add(counter, more));
        let [calls, bytes] = &self.by_ranks[plan as usize][operation as usize];
        add(calls, sum(more.calls));
        add(bytes, more.bytes);
        self.requested.inc_by(more.requested);
    }

    /// Returns the traffic of an operation in calls that ranks executed themselves.
    pub(crate) fn traffic(&self, operation: Operation) -> TrafficTotals {
        let [bytes_multicast, bytes_unicast, chunks_repaired] =
            self.operations[operation as usize].by_ranks.each_ref().map(read);
        TrafficTotals { bytes_multicast, bytes_unicast, chunks_repaired, ..TrafficTotals::default() }
    }

    /// Registers the metrics.
    pub(crate) fn register(self: &Arc<CallCounters>, registry: &mut Registry) {
        registry.register_collector(Box::new(CallCollector(Arc::clone(self))));
        let requested = "Requests of ranks of this node for missing messages of quick calls";
        registry.register("datagrams_asked", requested, self.requested.clone());
        let answered = "Messages of quick calls that this agent retransmitted for others";
        registry.register("datagrams_answered", answered, self.answered.clone());
    }
}

/// The metrics with labels. All series must exist from the start, because Prometheus computes no
/// rate for the first value of a counter.
#[derive(Debug)]
struct CallCollector(Arc<CallCounters>);

impl Collector for CallCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.calls(&mut encoder)?;
        self.seconds(&mut encoder)?;
        for (name, help, which) in [
            ("rank_calls", "Of these collectives, those that ranks executed themselves", 0),
            ("rank_call_bytes", "Bytes of a message, vector or part in these calls", 1),
        ] {
            self.by_ranks(&mut encoder, (name, help), which)?;
        }
        Ok(())
    }
}

impl CallCollector {
    fn calls(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Collectives executed for ranks of this node";
        let mut family = encoder.encode_descriptor("calls", help, None, MetricType::Counter)?;
        for (operation, of) in Operation::ALL.into_iter().zip(&self.0.operations) {
            let calls = ConstCounter::new(sum(of.buckets.iter().map(read)));
            calls.encode(family.encode_family(&[("operation", operation.name())])?)?;
        }
        Ok(())
    }

    fn seconds(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Duration of collectives, as seen by a rank";
        let mut family = encoder.encode_descriptor("call_seconds", help, None, MetricType::Histogram)?;
        for (operation, of) in Operation::ALL.into_iter().zip(&self.0.operations) {
            let calls = of.buckets.each_ref().map(read);
            let ends = (0..BUCKETS).map(|bucket| bucket_end(bucket).unwrap_or(f64::INFINITY));
            let buckets: Vec<(f64, u64)> = ends.zip(calls).collect();
            let seconds = read(&of.nanoseconds) as f64 / 1e9;
            family.encode_family(&[("operation", operation.name())])?.encode_histogram::<NoLabelSet>(
                seconds,
                sum(calls),
                &buckets,
                None,
            )?;
        }
        Ok(())
    }

    fn by_ranks(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        which: usize,
    ) -> Result<(), fmt::Error> {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (plan, operations) in RankPlan::ALL.into_iter().zip(&self.0.by_ranks) {
            for (operation, counters) in Operation::ALL.into_iter().zip(operations) {
                let labels = [("operation", operation.name()), ("plan", plan.name())];
                ConstCounter::new(read(&counters[which])).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
