//! Selects a plan for a call. It times all fitting plans with a cost model on a fast network model
//! of queues. It knows no pattern by name, so a new pattern is a candidate at once.
//!
//! Plans with many events are timed on smaller groups of the same shape, and long messages by a few
//! of their segments. The rest is extrapolated. The time of a pick is therefore bounded, whatever
//! the call, and picks are kept.

mod estimate;
mod queue_network;

use crate::layout::Layout;
use crate::plan::Plan;
use crate::schedule::{Call, Operation, Rank};
use crate::timing::AgentCosts;
use cool_types::limits;
use core::time::Duration;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of picks that are kept for a group. Only an unusual number of different sizes and
/// roots needs more.
const PICKS_MAX: usize = 1024;

/// Number of the best plans that are also tried with other segment sizes.
const REFINED: usize = 3;

/// A plan is given up once it has taken this many times as long as the best so far, because other
/// segment sizes gain less than that.
const HOPEFUL: f64 = 2.0;

/// The factor by which another plan must be faster than the default plan, and other segments than a
/// plan's own, because estimates are not more exact.
const MARGIN: f64 = 1.02;

/// The same for barriers, which must gain 30 %: they consist only of messages, and those off the
/// critical path are not timed.
const MARGIN_BARRIER: f64 = 1.3;

/// The cost of the links of a level: latency and rate (Hockney's model).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCost {
    /// One-way latency of a small packet between two nodes.
    pub latency: Duration,
    /// Rate of one link in each direction.
    pub bytes_per_second: u64,
}

/// The costs of a network, as measured when agents join. All agents of a group must use the same
/// model, because they must make the same picks. Copies within a node are part of `costs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostModel {
    /// The costs of the agents.
    pub costs: AgentCosts,
    /// Links between nodes of one rack: the hosts' links.
    pub rack: LinkCost,
    /// Links between nodes of different racks: the uplinks to the core (spine).
    #[serde(alias = "center")]
    pub core: LinkCost,
    /// Equal-cost paths (ECMP) out of each rack, one per uplink. Unicast messages are distributed
    /// over them by the rack of their destination.
    #[serde(alias = "lanes")]
    pub ecmp_paths: u32,
    /// Bytes that pass an idle link at once, as with a token bucket; 0 for hardware links.
    pub burst: u64,
    /// Whether all agents of the group plan for networks without multicast, and know the
    /// double-tree pattern. Agents of the previous release do not.
    #[serde(default)]
    pub unicast_plans: bool,
}

impl Default for CostModel {
    /// Returns the model of the emulated testbed, with links of 20 Mbit/s.
    fn default() -> CostModel {
        let level = |micros| LinkCost { latency: Duration::from_micros(micros), bytes_per_second: 2_500_000 };
        CostModel {
            costs: AgentCosts::default(),
            rack: level(100),
            core: level(200),
            ecmp_paths: 1,
            burst: 16_000,
            unicast_plans: true,
        }
    }
}

/// A plan with its estimated time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The plan.
    pub plan: Plan,
    /// The time from call to result, in seconds.
    pub seconds: f64,
    /// The approximate number of events that timing the whole call would need.
    pub events: f64,
}

/// The properties that calls with the same pick share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PickKey {
    operation: u8,
    root: u32,
    bytes: u64,
    element: u32,
}

/// Selects plans for the calls of one group, and keeps the picks.
#[derive(Clone, Debug)]
pub struct Planner {
    model: CostModel,
    layout: Layout,
    picks: BTreeMap<PickKey, Plan>,
}

impl Planner {
    /// Returns a planner for a group on a network.
    pub fn new(model: CostModel, layout: Layout) -> Planner {
        Planner { model, layout, picks: BTreeMap::new() }
    }

    /// Returns the layout of the group.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Changes the layout, for example to one without a tree. The picks are forgotten.
    pub fn set_layout(&mut self, layout: Layout) {
        self.layout = layout;
        self.picks.clear();
    }

    /// Returns the best plan for a call. Calls of similar size, within a quarter, get the same
    /// plan. Agents with the same model pick the same plan for equal calls, whatever they called
    /// before.
    pub fn pick(&mut self, call: &Call) -> Plan {
        self.known(call).unwrap_or_else(|| {
            let plan = self.best(call);
            self.keep(call, plan);
            plan
        })
    }

    /// Returns the result of [`Planner::pick`] if it is kept.
    pub fn known(&self, call: &Call) -> Option<Plan> {
        self.picks.get(&self.key(call)).copied()
    }

    /// Returns the result of [`Planner::pick`], computed anew.
    pub fn best(&self, call: &Call) -> Plan {
        let alike = self.alike(call);
        let best = self.rank(&alike).first().map(|estimate| estimate.plan);
        best.unwrap_or_else(|| Plan::default_for(&alike, &self.layout))
    }

    /// Keeps the result of [`Planner::best`] for a call.
    pub fn keep(&mut self, call: &Call, plan: Plan) {
        if self.picks.len() >= PICKS_MAX {
            self.picks.clear();
        }
        self.picks.insert(self.key(call), plan);
    }

    fn key(&self, call: &Call) -> PickKey {
        let Call { operation, root, bytes, element, .. } = self.alike(call);
        let operation = Operation::ALL.iter().position(|o| *o == operation).unwrap_or(0) as u8;
        PickKey { operation, root: root.0, bytes, element }
    }

    /// Returns the candidates for a call that were not given up, with their estimates, the best
    /// first. The estimates of all plans but the default plan are raised by the margin by which
    /// they must be faster.
    pub fn rank(&self, call: &Call) -> Vec<Estimate> {
        let call = self.evened(call);
        let bench = estimate::PlanEstimator::new(&self.model, &self.layout, &call);
        let mut estimates: Vec<Estimate> = Vec::new();
        let mut best = f64::INFINITY;
        let margin = if call.operation == Operation::Barrier { MARGIN_BARRIER } else { MARGIN };
        // A good plan is first, so that bad plans are given up early.
        let likely = Plan::default_for(&call, &self.layout);
        let others = self.candidates(&call).into_iter().filter(|plan| *plan != likely);
        for plan in std::iter::once(likely).chain(others) {
            if let Some(mut estimate) = bench.estimate(plan, best * HOPEFUL) {
                best = best.min(estimate.seconds);
                // A plan that is hardly faster than the default plan is not worth an exception.
                estimate.seconds *= if plan == likely { 1.0 } else { margin };
                estimates.push(estimate);
            }
        }
        sort(&mut estimates);
        for i in 0..estimates.len().min(REFINED) {
            for plan in Planner::segmented(estimates[i].plan, &call, &self.layout) {
                if let Some(mut estimate) = bench.estimate(plan, best) {
                    best = best.min(estimate.seconds);
                    estimate.seconds *= margin;
                    estimates.push(estimate);
                }
            }
        }
        sort(&mut estimates);
        estimates
    }

    /// Returns the estimate of one plan, or `None` if it does not fit.
    pub fn estimate(&self, call: &Call, plan: Plan) -> Option<Estimate> {
        let call = self.evened(call);
        estimate::PlanEstimator::new(&self.model, &self.layout, &call).estimate(plan, f64::INFINITY)
    }

    /// Returns the candidates for a call: the suitable plans that all agents of the group know.
    pub fn candidates(&self, call: &Call) -> Vec<Plan> {
        let plans = Planner::suitable(call, &self.layout).into_iter();
        plans.filter(|plan| self.model.unicast_plans || !plan.is_new()).collect()
    }

    /// Returns the suitable plans for a call: all named plans and all single patterns. If the ranks
    /// are not in the order of racks, they include the single patterns over the ranks in that
    /// order.
    pub fn suitable(call: &Call, layout: &Layout) -> Vec<Plan> {
        let in_order = (0..layout.nodes()).flat_map(|node| layout.ranks_of_node(node).iter().copied());
        let racked = (!in_order.eq(layout.ranks())).then(|| Plan::racked(call.operation));
        Plan::fitting(call.operation).chain(racked.into_iter().flatten()).collect()
    }

    /// Returns the plan with each segment size that is worth a try, except with its own.
    pub fn segmented(plan: Plan, call: &Call, layout: &Layout) -> Vec<Plan> {
        let array = estimate::array(call, layout.size());
        let nodes = layout.nodes() as u64;
        let own = plan.segment_bytes(array, layout.nodes());
        let eager = limits::EAGER_BYTES;
        let mut sizes = vec![own / 4, own.saturating_mul(4), eager, eager.saturating_mul(nodes), array];
        sizes.retain(|size| (4096..=array).contains(size) && *size != own && (*size < array || own < array));
        sizes.sort_unstable();
        sizes.dedup();
        sizes.into_iter().map(|size| plan.with_segment(size)).collect()
    }

    /// Returns the call that represents all calls with the same pick.
    fn alike(&self, call: &Call) -> Call {
        let call = self.evened(call);
        let element = u64::from(call.element.max(1));
        let grain = 1 << call.bytes.max(1).ilog2().saturating_sub(2);
        let bytes = (call.bytes / grain * grain).next_multiple_of(element);
        let root = if call.operation.rooted() { call.root } else { Rank(0) };
        Call { bytes, root, ..call }
    }

    /// Returns the same call with parts of equal length, the mean.
    fn evened(&self, call: &Call) -> Call {
        let Some(counts) = &call.counts else { return call.clone() };
        let total: u128 = counts.iter().map(|count| u128::from(*count)).sum();
        let mean = u64::try_from(total / counts.len().max(1) as u128).unwrap_or(u64::MAX);
        let element = u64::from(call.element.max(1));
        Call { bytes: mean / element * element, counts: None, ..call.clone() }
    }
}

fn sort(estimates: &mut [Estimate]) {
    // Of equal estimates, the one that is first in the list of plans stays first.
    estimates.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
}

#[cfg(test)]
mod tests;
