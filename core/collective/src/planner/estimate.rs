//! How long a plan takes for a call: on the whole group where that takes few events, else on smaller ones of its make, in
//! few segments, extrapolated from there.
//!
//! Every agent must come to the same estimate to the last bit, whatever its machine: only `+ - * /` and comparisons, which
//! IEEE 754 rounds correctly everywhere. Powers and logarithms it leaves to libraries, which differ; `clippy.toml` bans them.

use super::queues::Queues;
use super::{CostModel, Estimate};
use crate::compile::compile_within;
use crate::layout::{Layout, MulticastScope, RankPlace};
use crate::levels::cut_bytes;
use crate::plan::Plan;
use crate::schedule::{Call, Rank};
use crate::timing::time;
use cool_types::{Operation, limits};
use core::time::Duration;

/// Racks, nodes of a rack and ranks of a node that are timed as they are. A larger group is timed at this size, or at some
/// doublings of it, at half and at a quarter of that, in each direction in which it is larger.
const MOST: [usize; 3] = [4, 8, 4];
/// Nodes of a group that is timed as it is, whatever its make.
const SMALL: usize = 32;
/// Segments that are timed one by one. Of longer arrays this number is timed and half of it, and the difference is what
/// each further segment takes.
const SEGMENTS: u64 = 4;
/// Where timing [`SEGMENTS`] takes fewer events than this, multiples of them are timed, up to [`STEADY_MULTIPLE_MAX`], since
/// the pipeline flows steadily only after some.
const STEADY_EVENTS: f64 = 8_000.0;
const STEADY_MULTIPLE_MAX: f64 = 8.0;
/// The segments that are timed are together at least this many bursts of a link, so that bursts do not count.
const BURSTS: u64 = 6;
/// A plan that is expected to take no more events than this is timed on the whole group, and on none that takes more.
const EXACT_EVENTS: f64 = 20_000.0;
/// An extrapolation below the least time that the root's link needs is wrong. This factor of that is taken instead: good
/// plans come so near.
const IMPLAUSIBLE: f64 = 1.1;
/// Actions of a schedule that is timed at most, so that a pick takes little time and memory whatever is asked.
const MOST_ACTIONS: usize = 1 << 18;

/// Where candidates for one call compete.
pub(super) struct PlanEstimator<'a> {
    model: &'a CostModel,
    call: &'a Call,
    layout: &'a Layout,
    full: ScaledGroup,
    /// If the group is large: smaller ones of its make, each twice as large as the one before in each direction, but for the
    /// whole.
    smaller: Vec<SmallerGroup>,
}

/// A group of some size.
struct ScaledGroup {
    /// If it is not the whole.
    layout: Option<Layout>,
    root: Rank,
}

struct SmallerGroup {
    base: ScaledGroup,
    /// The directions in which the whole group is larger.
    larger: Vec<GrowthDirection>,
    /// For each two of those: the group of half the size in both.
    halves: Vec<(usize, usize, ScaledGroup)>,
}

/// A direction in which a group is larger than another.
struct GrowthDirection {
    to_full: Growth,
    /// To the next of the smaller groups, or to the whole.
    to_next: Growth,
    /// The smaller group, half and a quarter as large in this direction.
    half: ScaledGroup,
    quarter: ScaledGroup,
}

/// How long a plan takes on a group.
#[derive(Clone, Copy)]
struct PlanTime {
    seconds: f64,
    /// Of all segments.
    events: f64,
    /// Of those segments that were timed.
    timed: f64,
}

/// A plan on a smaller group, and on its halves in the directions in which the whole is larger.
struct Trial<'a> {
    smaller: &'a SmallerGroup,
    base: PlanTime,
    halves: Vec<PlanTime>,
}

impl Trial<'_> {
    /// What is to be expected of a number of events when the group grows so.
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

    /// None if the plan does not fit, or takes longer than `most` seconds.
    pub(super) fn estimate(&self, plan: Plan, most: f64) -> Option<Estimate> {
        let PlanTime { mut seconds, events, .. } = self.found(plan, most)?;
        if seconds < self.least_seconds() {
            seconds = IMPLAUSIBLE * self.least_seconds();
        }
        (seconds <= most).then_some(Estimate { plan, seconds, events })
    }

    /// On the whole group, or extrapolated from the largest of the smaller ones that does not take too many events.
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

    /// With whole bursts, so that it is given up after `most` seconds only if the whole group takes longer, too.
    fn trial<'s>(&self, plan: Plan, smaller: &'s SmallerGroup, most: f64) -> Option<Trial<'s>> {
        let base = self.on(plan, &smaller.base, self.model.burst, most)?;
        let halves = smaller.larger.iter().map(|larger| self.on(plan, &larger.half, self.model.burst, most));
        Some(Trial { smaller, base, halves: halves.collect::<Option<_>>()? })
    }

    /// Extrapolated from a trial, in each direction in which the whole group is larger and in each two of them.
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
            // Whether sizes in two directions multiply, as bytes do, or only add, as steps do.
            let both = base - halves[*i] - halves[*j] + seconds_on(half)?;
            let product = (base - halves[*i]) * (base - halves[*j]) / base;
            let share = if product > 0.0 { (both / product).clamp(0.0, 1.0) } else { 0.0 };
            seconds += share * added[*i] * added[*j] / base;
        }
        let events = trial.expected(|found| found.events, |larger| larger.to_full);
        Some(PlanTime { seconds, events, timed: trial.base.timed })
    }

    /// What an idle link lets pass at once, for a group of this size. Unscaled, it would hide in a smaller group the load of
    /// links that grows with the group.
    fn scaled_burst(&self, size: &ScaledGroup) -> u64 {
        let ranks = size.layout.as_ref().unwrap_or(self.layout).size();
        (u128::from(self.model.burst) * ranks as u128 / self.layout.size() as u128) as u64
    }

    /// What no plan is faster than: the link of the root's node carries what all other nodes' ranks send or get, but for a
    /// burst.
    fn least_seconds(&self) -> f64 {
        let own = self.layout.ranks_of_node(self.layout.node_of(self.call.root)).len();
        let away = (self.layout.size() - own) as u64;
        let parts = if self.call.operation.takes_counts() { away } else { away.min(1) };
        let bytes = self.call.bytes.saturating_mul(parts).saturating_sub(self.model.burst);
        bytes as f64 / self.model.rack.bytes_per_second.max(1) as f64
    }

    /// On a group of a size, in the segments that the plan makes for the whole group.
    fn on(&self, plan: Plan, size: &ScaledGroup, burst: u64, most: f64) -> Option<PlanTime> {
        let layout = size.layout.as_ref().unwrap_or(self.layout);
        let array = array(self.call, self.layout.size());
        let segment = plan.segment_bytes(array, self.layout.nodes()).max(array.div_ceil(limits::SEGMENTS));
        let cut = cut_bytes(self.call, self.layout, &plan);
        let count = cut.div_ceil(segment.max(1)).max(1);
        // What a smaller group cuts may be shorter; it falls into as many segments.
        let cut_here = cut_bytes(self.call, layout, &plan);
        let forced = (u128::from(segment) * u128::from(cut_here) / u128::from(cut.max(1))) as u64;
        let plan = if count == 1 { plan } else { plan.with_segment(forced) };
        // Enough of them that what links let pass at once does not count.
        let few = SEGMENTS.max((BURSTS * self.model.burst).div_ceil(segment.max(1)));
        let call = Call { root: size.root, ..self.call.clone() };
        // Alltoall's messages are never cut: of shorter ones the number would cost, not the bytes.
        if count <= few || call.operation == Operation::Alltoall {
            return self.run(&call, layout, plan, burst, most);
        }
        let part = |segments: u64| {
            let bytes = u128::from(call.bytes) * u128::from(segments) / u128::from(count);
            let bytes = (bytes as u64).next_multiple_of(u64::from(call.element));
            self.run(&Call { bytes, ..call.clone() }, layout, plan, burst, most)
        };
        // Many segments flow steadily only after some.
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
        let network = Queues::new(&model, layout);
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

/// How much larger a size is than another: doubled some times, and then by a part of itself, from 0 to below 1.
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

    /// By what something grows that grows by `ratio` with each doubling; in proportion within the last.
    fn factor(self, ratio: f64) -> f64 {
        let doubled = (0..self.doublings).fold(1.0, |factor, _| factor * ratio);
        doubled * (1.0 + (ratio - 1.0) * self.rest)
    }

    /// What is added to something that took so long at a quarter, at half and at all of the smaller size: a geometric
    /// series, of which each doubling adds `ratio` times what the one before added, the ratio of the last two within
    /// 0.5 to 4; in proportion within the last.
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

/// Bytes of the array that a call's segments are cut from.
pub(super) fn array(call: &Call, size: usize) -> u64 {
    if call.operation.takes_counts() { call.bytes.saturating_mul(size as u64) } else { call.bytes }
}

impl ScaledGroup {
    /// The first racks from the root's on, the first nodes of each, the first ranks of those; and the root. If
    /// the root is none of these, another rank of its rack.
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
        let layout = Layout::new(&places).ok().map(|layout| layout.with_stripes(stripes));
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
