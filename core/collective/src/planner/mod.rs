//! Picks a plan for a call: times what every fitting plan would do by a cost model, on a quick network of
//! queues. It knows no pattern by name, so a new one is a candidate at once.
//!
//! What takes many events is timed on smaller groups of the same make, and long messages by a few of their segments;
//! what is left out is extrapolated. So what a pick takes is bounded, whatever is asked; and it is kept.

mod estimate;
mod queues;

use crate::layout::Layout;
use crate::plan::Plan;
use crate::schedule::{Call, Operation, Rank};
use crate::timing::AgentCosts;
use cool_types::limits;
use core::time::Duration;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Picks that are kept of a group; more are only made of different sizes and roots than anyone uses.
const PICKS_MAX: usize = 1024;

/// Of the best plans, how many are also tried in segments of other sizes than their own.
const REFINED: usize = 3;

/// A plan is given up once it has taken this many times as long as the best so far: other segments gain less.
const HOPEFUL: f64 = 2.0;

/// The margin, as a factor of time, by which another plan than the rule's must be faster, and other segments than a plan's
/// own: estimates are not more exact than that.
const MARGIN: f64 = 1.02;

/// The same of barriers, which need 30 % gain: all that they cost is messages, and those off the critical path are not timed.
const MARGIN_BARRIER: f64 = 1.3;

/// What the links of a level cost: latency and rate, Hockney's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCost {
    /// One way, for a small packet between two nodes.
    pub latency: Duration,
    /// Of one link, each way.
    pub bytes_per_second: u64,
}

/// What things cost on a network, as measured when agents join. All agents of a group need the same one:
/// they must make the same picks. Copies within a node are among the `costs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostModel {
    /// The work of agents.
    pub costs: AgentCosts,
    /// Between nodes of one rack: the hosts' links.
    pub rack: LinkCost,
    /// Between nodes of different racks: the uplinks to the core (spine).
    #[serde(alias = "center")]
    pub core: LinkCost,
    /// Equal-cost paths (ECMP) out of each rack, one by each uplink: unicast messages are divided among them by their
    /// destinations' racks.
    #[serde(alias = "lanes")]
    pub ecmp_paths: u32,
    /// Bytes that pass an idle link at once, as a token bucket lets them; 0 for links as they are in hardware.
    pub burst: u64,
}

impl Default for CostModel {
    /// The emulated test bed: links of 20 Mbit/s.
    fn default() -> CostModel {
        let level = |micros| LinkCost { latency: Duration::from_micros(micros), bytes_per_second: 2_500_000 };
        CostModel {
            costs: AgentCosts::default(),
            rack: level(100),
            core: level(200),
            ecmp_paths: 1,
            burst: 16_000,
        }
    }
}

/// A plan and how long it is expected to take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The plan.
    pub plan: Plan,
    /// From call to answer, in seconds.
    pub seconds: f64,
    /// Events that timing all of it one by one would take, about.
    pub events: f64,
}

/// What calls have in common that get the same pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PickKey {
    operation: u8,
    root: u32,
    bytes: u64,
    element: u32,
}

/// Picks plans for the calls of one group, each size once.
#[derive(Clone, Debug)]
pub struct Planner {
    model: CostModel,
    layout: Layout,
    picks: BTreeMap<PickKey, Plan>,
}

impl Planner {
    /// A planner for a group on a network.
    pub fn new(model: CostModel, layout: Layout) -> Planner {
        Planner { model, layout, picks: BTreeMap::new() }
    }

    /// Where the group's ranks are.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The best plan for a call. Calls of about one size, within a quarter, get the same; so do equal calls of
    /// all agents with the same model, whatever they called before.
    pub fn pick(&mut self, call: &Call) -> Plan {
        self.known(call).unwrap_or_else(|| {
            let plan = self.best(call);
            self.keep(call, plan);
            plan
        })
    }

    /// What [`Planner::pick`] answers, if it need not be found first.
    pub fn known(&self, call: &Call) -> Option<Plan> {
        self.picks.get(&self.key(call)).copied()
    }

    /// What [`Planner::pick`] answers, found anew.
    pub fn best(&self, call: &Call) -> Plan {
        let alike = self.alike(call);
        let best = self.rank(&alike).first().map(|estimate| estimate.plan);
        best.unwrap_or_else(|| Plan::default_for(&alike, &self.layout))
    }

    /// Keeps what [`Planner::best`] has found for a call.
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

    /// The better candidates for a call with their estimates, the best first.
    pub fn rank(&self, call: &Call) -> Vec<Estimate> {
        let call = self.evened(call);
        let bench = estimate::PlanEstimator::new(&self.model, &self.layout, &call);
        let mut estimates: Vec<Estimate> = Vec::new();
        let mut best = f64::INFINITY;
        let margin = if call.operation == Operation::Barrier { MARGIN_BARRIER } else { MARGIN };
        // A good one first, so that bad ones are soon given up.
        let likely = Plan::default_for(&call, &self.layout);
        let others = Planner::candidates(&call, &self.layout).into_iter().filter(|plan| *plan != likely);
        for plan in std::iter::once(likely).chain(others) {
            if let Some(mut estimate) = bench.estimate(plan, best * HOPEFUL) {
                best = best.min(estimate.seconds);
                // What is hardly better is not worth an exception.
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

    /// The estimate for one plan; none if it does not fit.
    pub fn estimate(&self, call: &Call, plan: Plan) -> Option<Estimate> {
        let call = self.evened(call);
        estimate::PlanEstimator::new(&self.model, &self.layout, &call).estimate(plan, f64::INFINITY)
    }

    /// The plans that compete for a call: all with a name, and all patterns by themselves; those over the ranks rack
    /// by rack, too, if the ranks are in another order.
    pub fn candidates(call: &Call, layout: &Layout) -> Vec<Plan> {
        let in_order = (0..layout.nodes()).flat_map(|node| layout.ranks_of_node(node).iter().copied());
        let plans = Plan::fitting(call.operation);
        if in_order.eq(layout.ranks()) {
            plans.collect()
        } else {
            plans.chain(Plan::racked(call.operation)).collect()
        }
    }

    /// A plan in all segments that are worth a try, besides those it takes by itself.
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

    /// The call that stands for all that get the same pick.
    fn alike(&self, call: &Call) -> Call {
        let call = self.evened(call);
        let element = u64::from(call.element.max(1));
        let grain = 1 << call.bytes.max(1).ilog2().saturating_sub(2);
        let bytes = (call.bytes / grain * grain).next_multiple_of(element);
        let root = if call.operation.rooted() { call.root } else { Rank(0) };
        Call { bytes, root, ..call }
    }

    /// The same with parts of one length, the mean.
    fn evened(&self, call: &Call) -> Call {
        let Some(counts) = &call.counts else { return call.clone() };
        let total: u128 = counts.iter().map(|count| u128::from(*count)).sum();
        let mean = u64::try_from(total / counts.len().max(1) as u128).unwrap_or(u64::MAX);
        let element = u64::from(call.element.max(1));
        Call { bytes: mean / element * element, counts: None, ..call.clone() }
    }
}

fn sort(estimates: &mut [Estimate]) {
    // Of equals the one that stands first in the list of plans.
    estimates.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
}

#[cfg(test)]
mod tests;
