//! Calls of this node's ranks, counted: those that the agent carries out as they end, and those that ranks carry out themselves when
//! somebody asks ([`crate::rank_calls`]).

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

/// Calls that went well, whoever has carried them out, and what ranks have sent and lacked in theirs.
#[derive(Debug, Default)]
pub(crate) struct CallCounters {
    operations: [OperationCounters; OPERATIONS],
    /// Calls that ranks have carried out themselves, by plan and operation, and their bytes.
    by_ranks: [[[AtomicU64; 2]; OPERATIONS]; PLANS],
    /// Messages of quick calls that ranks have asked for.
    asked: Counter,
    /// Messages of quick calls that ranks of other nodes have asked for and got.
    pub(crate) answered: Counter,
}

#[derive(Debug, Default)]
struct OperationCounters {
    /// Calls by how long they took.
    buckets: [AtomicU64; BUCKETS],
    nanoseconds: AtomicU64,
    /// What ranks have sent themselves, by multicast and by unicast, and got by repair.
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
    /// The agent has carried a call out for a rank.
    pub(crate) fn ended(&self, operation: Operation, nanoseconds: u64) {
        let OperationCounters { buckets, nanoseconds: total, .. } = &self.operations[operation as usize];
        add(&buckets[bucket(nanoseconds)], 1);
        add(total, nanoseconds);
    }

    /// A rank has carried out so much more with others.
    pub(crate) fn carried_by_rank(&self, plan: RankPlan, operation: Operation, more: &Totals) {
        let OperationCounters { buckets, nanoseconds, by_ranks } = &self.operations[operation as usize];
        buckets.iter().zip(more.calls).for_each(|(bucket, calls)| add(bucket, calls));
        add(nanoseconds, more.nanoseconds);
        let traffic = [more.multicast, more.unicast, more.retransmitted];
        by_ranks.iter().zip(traffic).for_each(|(counter, more)| add(counter, more));
        let [calls, bytes] = &self.by_ranks[plan as usize][operation as usize];
        add(calls, sum(more.calls));
        add(bytes, more.bytes);
        self.asked.inc_by(more.requested);
    }

    /// What ranks have sent themselves for an operation, and got by repair.
    pub(crate) fn traffic(&self, operation: Operation) -> TrafficTotals {
        let [bytes_multicast, bytes_unicast, chunks_repaired] =
            self.operations[operation as usize].by_ranks.each_ref().map(read);
        TrafficTotals { bytes_multicast, bytes_unicast, chunks_repaired, ..TrafficTotals::default() }
    }

    /// Has them told.
    pub(crate) fn register(self: &Arc<CallCounters>, registry: &mut Registry) {
        registry.register_collector(Box::new(CallCollector(Arc::clone(self))));
        let asked = "Messages of quick calls that ranks of this node asked for, each time that they did";
        registry.register("datagrams_asked", asked, self.asked.clone());
        let answered = "Messages of quick calls that others asked for and this agent sent again";
        registry.register("datagrams_answered", answered, self.answered.clone());
    }
}

/// Those with labels. All series are there from the start: Prometheus knows no rate of a counter that is there only when it has risen.
#[derive(Debug)]
struct CallCollector(Arc<CallCounters>);

impl Collector for CallCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.calls(&mut encoder)?;
        self.seconds(&mut encoder)?;
        for (name, help, which) in [
            ("rank_calls", "Of these collectives, those that ranks carried out themselves", 0),
            ("rank_call_bytes", "Bytes of a message, vector or part in these calls", 1),
        ] {
            self.by_ranks(&mut encoder, (name, help), which)?;
        }
        Ok(())
    }
}

impl CallCollector {
    fn calls(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Collectives carried out for ranks of this node";
        let mut family = encoder.encode_descriptor("calls", help, None, MetricType::Counter)?;
        for (operation, of) in Operation::ALL.into_iter().zip(&self.0.operations) {
            let calls = ConstCounter::new(sum(of.buckets.iter().map(read)));
            calls.encode(family.encode_family(&[("operation", operation.name())])?)?;
        }
        Ok(())
    }

    fn seconds(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "How long collectives took, seen by a rank";
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
