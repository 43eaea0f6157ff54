//! Estimates the time of a call by a plan. The whole group is timed if this takes few events.
//! Otherwise smaller groups of the same shape and few segments are timed, and the result is
//! extrapolated.
//!
//! Every agent must compute the same estimate to the last bit, whatever its machine. Therefore only
//! `+ - * /` and comparisons are used, which IEEE 754 rounds identically everywhere. Powers and
//! logarithms are computed by libraries that differ, so `clippy.toml` bans them.

use super::queue_network::QueueNetwork;
use super::{CostModel, Estimate};
use crate::compile::compile_within;
use crate::layout::{Layout, MulticastScope, RankPlace};
use crate::levels::cut_bytes;
use crate::plan::Plan;
use crate::schedule::{Call, Rank};
use crate::timing::time;
use cool_types::{Operation, limits};
use core::time::Duration;

/// Numbers of racks, nodes per rack and ranks per node up to which a group is timed as it is. In
/// each dimension in which a group is larger, it is timed at three sizes: this size or some
/// doublings of it, half of that, and a quarter.
const MOST: [usize; 3] = [4, 8, 4];
/// Maximum number of nodes of a group that is timed with all its racks and nodes, whatever its
/// shape.
const SMALL: usize = 32;
/// Number of segments that are timed one by one. For longer arrays, this number and half of it are
/// timed, and the difference yields the time of each further segment.
const SEGMENTS: u64 = 4;
/// If timing [`SEGMENTS`] takes fewer events than this, multiples of them are timed, up to
/// [`STEADY_MULTIPLE_MAX`], because the pipeline reaches a steady flow only after some segments.
const STEADY_EVENTS: f64 = 8_000.0;
const STEADY_MULTIPLE_MAX: f64 = 8.0;
/// The timed segments are together at least this many bursts of a link, so that bursts do not
/// matter.
const BURSTS: u64 = 6;
/// A plan that is expected to take at most this many events is timed on the whole group. Other
/// plans are not.
const EXACT_EVENTS: f64 = 20_000.0;
/// An extrapolation below the least time that the root's link needs must be wrong. It is replaced
/// by this factor of the least time, which good plans achieve.
const IMPLAUSIBLE: f64 = 1.1;
/// Maximum number of actions of a schedule that is timed, so that time and memory of a pick are
/// bounded, whatever the call.
const MOST_ACTIONS: usize = 1 << 18;

/// Estimates the candidate plans of one call.
pub(super) struct PlanEstimator<'a> {
    model: &'a CostModel,
    call: &'a Call,
    layout: &'a Layout,
    full: ScaledGroup,
    /// For a large group, smaller groups of the same shape. Each is twice as large as the one
    /// before in each dimension, up to the size of the whole.
    smaller: Vec<SmallerGroup>,
}

/// A group scaled to some size.
struct ScaledGroup {
    /// The layout, if it is not the whole group.
    layout: Option<Layout>,
    root: Rank,
}

struct SmallerGroup {
    base: ScaledGroup,
    /// The dimensions in which the whole group is larger.
    larger: Vec<GrowthDirection>,
    /// For each pair of them, the group of half the size in both.
    halves: Vec<(usize, usize, ScaledGroup)>,
}

/// A dimension in which a group is larger than another.
struct GrowthDirection {
    to_full: Growth,
    /// The growth to the next of the smaller groups, or to the whole.
    to_next: Growth,
    /// The smaller group at half and at a quarter of its size in this dimension.
    half: ScaledGroup,
    quarter: ScaledGroup,
}

/// The time of a plan on a group.
#[derive(Clone, Copy)]
struct PlanTime {
    seconds: f64,
    /// Events of all segments.
    events: f64,
    /// Events of the segments that were timed.
    timed: f64,
}

/// A plan on a smaller group, and on its halves in the dimensions in which the whole is larger.
struct Trial<'a> {
    smaller: &'a SmallerGroup,
    base: PlanTime,
    halves: Vec<PlanTime>,
}

impl Trial<'_> {
    /// Returns the expected number of events when the group grows.
    fn expected(
        &self,
        events: impl Fn(&PlanTime) -> f64,
        growth: impl Fn(&GrowthDirection) -> Growth,
    ) -> f64 {
        let base = events(&self.base);
        let directions = self.smaller.larger.iter().zip(&self.halves);
        let factors = directions.map(|(larger, half)| growth(larger).factor(base / events(half).max(1.0)));
        base * factors.product::<f64>()
    }

    fn expected_timed(&self, growth: impl Fn(&GrowthDirection) -> Growth) -> f64 {
        self.expected(|found| found.timed, growth)
    }
}

impl<'a> PlanEstimator<'a> {
    pub(super) fn new(model: &'a CostModel, layout: &'a Layout, call: &'a Call) -> PlanEstimator<'a> {
        let most = |counts: &mut dyn Iterator<Item = usize>| counts.max().unwrap_or(1);
        let nodes = most(&mut (0..layout.racks()).map(|rack| layout.nodes_of_rack(rack).len()));
        let ranks = most(&mut (0..layout.nodes()).map(|node| layout.ranks_of_node(node).len()));
        let full = [layout.racks(), nodes, ranks];
        let mut base = [0, 1, 2].map(|i| full[i].min(MOST[i]));
        if layout.nodes() <= SMALL {
            (base[0], base[1]) = (full[0], full[1]);
        }
        let mut smaller = Vec::new();
        while base != full {
            smaller.push(SmallerGroup::new(layout, call.root, base, full));
            base = [0, 1, 2].map(|i| full[i].min(2 * base[i]));
        }
        PlanEstimator { model, call, layout, full: ScaledGroup { layout: None, root: call.root }, smaller }
    }

    /// Returns the estimate of a plan, or `None` if the plan does not fit or takes longer than
    /// `most` seconds.
    pub(super) fn estimate(&self, plan: Plan, most: f64) -> Option<Estimate> {
        let PlanTime { mut seconds, events, .. } = self.found(plan, most)?;
        if seconds < self.least_seconds() {
            seconds = IMPLAUSIBLE * self.least_seconds();
        }
        (seconds <= most).then_some(Estimate { plan, seconds, events })
    }

    /// Returns the time on the whole group, or extrapolates it from the largest of the smaller
    /// groups that does not take too many events.
    fn found(&self, plan: Plan, most: f64) -> Option<PlanTime> {
        for smaller in &self.smaller {
            let trial = self.trial(plan, smaller, most)?;
            if trial.expected_timed(|larger| larger.to_full) <= EXACT_EVENTS {
                break;
            }
            if trial.expected_timed(|larger| larger.to_next) > EXACT_EVENTS {
                return self.extrapolated(plan, &trial);
            }
        }
        self.on(plan, &self.full, self.model.burst, most)
    }

    /// Returns the trial of a plan on a smaller group. It uses whole bursts, so that a plan is
    /// given up after `most` seconds only if the whole group takes longer too.
    fn trial<'s>(&self, plan: Plan, smaller: &'s SmallerGroup, most: f64) -> Option<Trial<'s>> {
        let base = self.on(plan, &smaller.base, self.model.burst, most)?;
        let halves = smaller.larger.iter().map(|larger| self.on(plan, &larger.half, self.model.burst, most));
        Some(Trial { smaller, base, halves: halves.collect::<Option<_>>()? })
    }

    /// Returns the time extrapolated from a trial, in each dimension in which the whole group is
    /// larger and in each pair of them.
    fn extrapolated(&self, plan: Plan, trial: &Trial<'_>) -> Option<PlanTime> {
        let smaller = trial.smaller;
        let seconds_on = |size| Some(self.on(plan, size, self.scaled_burst(size), f64::INFINITY)?.seconds);
        let base = seconds_on(&smaller.base)?;
        let (mut seconds, mut halves, mut added) = (base, Vec::new(), Vec::new());
        for larger in &smaller.larger {
            let half = seconds_on(&larger.half)?;
            let more = larger.to_full.added([seconds_on(&larger.quarter)?, half, base]);
            seconds += more;
            halves.push(half);
            added.push(more);
        }
        for (i, j, half) in &smaller.halves {
            // Determines whether sizes in two dimensions multiply, as bytes do, or only add, as
            // steps do.
            let both = base - halves[*i] - halves[*j] + seconds_on(half)?;
            let product = (base - halves[*i]) * (base - halves[*j]) / base;
            let share = if product > 0.0 { (both / product).clamp(0.0, 1.0) } else { 0.0 };
            seconds += share * added[*i] * added[*j] / base;
        }
        let events = trial.expected(|found| found.events, |larger| larger.to_full);
        Some(PlanTime { seconds, events, timed: trial.base.timed })
    }

    /// Returns the burst of an idle link for a group of this size. Unscaled, the burst would hide
    /// the load of links that grows with the group.
    fn scaled_burst(&self, size: &ScaledGroup) -> u64 {
        let ranks = size.layout.as_ref().unwrap_or(self.layout).size();
        (u128::from(self.model.burst) * ranks as u128 / self.layout.size() as u128) as u64
    }

    /// Returns the least time of any plan: the link of the root's node must carry the data that the
    /// ranks of all other nodes send or receive, except for a burst.
    fn least_seconds(&self) -> f64 {
        let own = self.layout.ranks_of_node(self.layout.node_of(self.call.root)).len();
        let away = (self.layout.size() - own) as u64;
        let parts = if self.call.operation.takes_counts() { away } else { away.min(1) };
        let bytes = self.call.bytes.saturating_mul(parts).saturating_sub(self.model.burst);
        bytes as f64 / self.model.rack.bytes_per_second.max(1) as f64
    }

    /// Returns the time on a group of some size, in the segments that the plan uses for the whole
    /// group.
    fn on(&self, plan: Plan, size: &ScaledGroup, burst: u64, most: f64) -> Option<PlanTime> {
        let layout = size.layout.as_ref().unwrap_or(self.layout);
        let array = array(self.call, self.layout.size());
        let segment = plan.segment_bytes(array, self.layout.nodes()).max(array.div_ceil(limits::SEGMENTS));
        let cut = cut_bytes(self.call, self.layout, &plan);
        let count = cut.div_ceil(segment.max(1)).max(1);
        // A smaller group may cut a shorter array. It must have as many segments.
        let cut_here = cut_bytes(self.call, layout, &plan);
        let forced = (u128::from(segment) * u128::from(cut_here) / u128::from(cut.max(1))) as u64;
        let plan = if count == 1 { plan } else { plan.with_segment(forced) };
        // Enough segments that the bursts of links do not matter.
        let few = SEGMENTS.max((BURSTS * self.model.burst).div_ceil(segment.max(1)));
        let call = Call { root: size.root, ..self.call.clone() };
        // Messages of an alltoall are never cut. If shorter messages were timed, the cost per
        // message would dominate, not the bytes.
        if count <= few || call.operation == Operation::Alltoall {
            return self.run(&call, layout, plan, burst, most);
        }
        let part = |segments: u64| {
            let bytes = u128::from(call.bytes) * u128::from(segments) / u128::from(count);
            let bytes = (bytes as u64).next_multiple_of(u64::from(call.element));
            self.run(&Call { bytes, ..call.clone() }, layout, plan, burst, most)
        };
        // Many segments reach a steady flow only after some.
        let first = part(few)?;
        let more = (STEADY_EVENTS / first.events.max(1.0)).clamp(1.0, STEADY_MULTIPLE_MAX) as u64;
        let (all, few, half, fewer) = match few * more {
            many if many >= count => return self.run(&call, layout, plan, burst, most),
            many if many >= 2 * few => (part(many)?, many, first, few),
            _ => (first, few, part(few / 2)?, few / 2),
        };
        let each = (all.seconds - half.seconds).max(0.0) / (few - fewer) as f64;
        let more = (count - few) as f64;
        let events = all.events * (1.0 + more / few as f64);
        Some(PlanTime { seconds: all.seconds + each * more, events, timed: all.timed })
    }

    fn run(&self, call: &Call, layout: &Layout, plan: Plan, burst: u64, most: f64) -> Option<PlanTime> {
        let most = Duration::try_from_secs_f64(most).unwrap_or(Duration::MAX);
        let schedule = compile_within(call, layout, &plan, |_| true, MOST_ACTIONS).ok()?;
        let model = CostModel { burst, ..*self.model };
        let network = QueueNetwork::new(&model, layout);
        let timing = time(&schedule, layout, &self.model.costs, network, most).ok()?;
        let events = timing.events as f64;
        Some(PlanTime { seconds: timing.time.as_secs_f64(), events, timed: events })
    }
}

impl SmallerGroup {
    fn new(layout: &Layout, root: Rank, base: [usize; 3], full: [usize; 3]) -> SmallerGroup {
        let part = |divisors: [usize; 3]| {
            ScaledGroup::new(layout, root, [0, 1, 2].map(|i| (base[i] / divisors[i]).max(1)))
        };
        let by = |at: &[usize], divisor: usize| [0, 1, 2].map(|i| if at.contains(&i) { divisor } else { 1 });
        let directions: Vec<usize> = (0..3).filter(|i| full[*i] > base[*i]).collect();
        let larger = directions.iter().map(|i| GrowthDirection {
            to_full: Growth::new(base[*i], full[*i]),
            to_next: Growth::new(base[*i], full[*i].min(2 * base[*i])),
            half: part(by(&[*i], 2)),
            quarter: part(by(&[*i], 4)),
        });
        let pairs = (0..directions.len()).flat_map(|i| (i + 1..directions.len()).map(move |j| (i, j)));
        SmallerGroup {
            base: part([1; 3]),
            larger: larger.collect(),
            halves: pairs.map(|(i, j)| (i, j, part(by(&[directions[i], directions[j]], 2)))).collect(),
        }
    }
}

/// The growth of a size: a number of doublings, and then a fraction of the last size, from 0 to
/// below 1.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Growth {
    doublings: u32,
    rest: f64,
}

impl Growth {
    fn new(base: usize, full: usize) -> Growth {
        let doublings = (full / base.max(1)).max(1).ilog2();
        let doubled = (base << doublings) as f64;
        Growth { doublings, rest: full as f64 / doubled - 1.0 }
    }

    /// Returns the factor by which a quantity grows if each doubling multiplies it by `ratio`.
    /// Within the last doubling, it grows linearly.
    fn factor(self, ratio: f64) -> f64 {
        let doubled = (0..self.doublings).fold(1.0, |factor, _| factor * ratio);
        doubled * (1.0 + (ratio - 1.0) * self.rest)
    }

    /// Returns the growth of a time, given its values at a quarter, at half and at all of the
    /// smaller size. It is a geometric series: each doubling adds `ratio` times the addition of the
    /// one before. The ratio is that of the last two additions, limited to 0.5 to 4. Within the
    /// last doubling, the growth is linear.
    fn added(self, [quarter, half, all]: [f64; 3]) -> f64 {
        let (before, last) = ((half - quarter).max(0.0), (all - half).max(0.0));
        let ratio = if before > 0.0 { (last / before).clamp(0.5, 4.0) } else { 1.0 };
        let (mut added, mut step) = (0.0, last);
        for _ in 0..self.doublings {
            step *= ratio;
            added += step;
        }
        added + step * ratio * self.rest
    }
}

/// Returns the bytes of the array from which a call's segments are cut.
pub(super) fn array(call: &Call, size: usize) -> u64 {
    if call.operation.takes_counts() { call.bytes.saturating_mul(size as u64) } else { call.bytes }
}

impl ScaledGroup {
    /// Returns a group of the first racks starting at the root's, the first nodes of each, and the
    /// first ranks of those. Its root is `root`, or another rank of the same rack if the group does
    /// not contain `root`.
    fn new(layout: &Layout, root: Rank, [racks, nodes, ranks]: [usize; 3]) -> ScaledGroup {
        let home = layout.rack_of(root);
        let mut places = Vec::new();
        let mut new_root = None;
        let mut near = 0;
        for rank in layout.ranks() {
            let (rack, node) = (layout.rack_of(rank), layout.node_of(rank));
            let in_rack = node - layout.nodes_of_rack(rack).start;
            let first = layout.ranks_of_node(node).iter().take(ranks).any(|other| *other == rank);
            if (rack + layout.racks() - home) % layout.racks() < racks && in_rack < nodes && first {
                let at = places.len() as u32;
                places.push(RankPlace { rack: rack as u32, node: node as u32 });
                if rank == root {
                    new_root = Some(at);
                } else if rack == home {
                    near = at;
                }
            }
        }
        let stripes = layout.stripes(MulticastScope::All);
        let scaled = Layout::new(&places).ok().map(|scaled| scaled.with_stripes(stripes));
        let layout = if layout.has_tree() { scaled } else { scaled.map(Layout::without_tree) };
        ScaledGroup { layout, root: Rank(new_root.unwrap_or(near)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_grows_by_doublings_and_a_part_of_the_last() {
        assert_eq!(Growth::new(4, 4), Growth { doublings: 0, rest: 0.0 });
        assert_eq!(Growth::new(4, 32), Growth { doublings: 3, rest: 0.0 });
        assert_eq!(Growth::new(4, 12), Growth { doublings: 1, rest: 0.5 });
    }

    #[test]
    fn extrapolation_follows_proportional_and_stepwise_growth() {
        let growth = Growth::new(4, 12);
        assert_eq!(growth.added([1.0, 2.0, 4.0]), 8.0, "bytes: 4 at 4, 12 at 12");
        assert_eq!(growth.factor(2.0), 3.0);
        assert_eq!(Growth::new(4, 32).added([1.0, 2.0, 3.0]), 3.0, "steps: one for each doubling");
        assert_eq!(growth.added([1.0, 1.0, 1.0]), 0.0);
    }
}
