//! How long a plan takes for a call: on groups that are small enough, in few segments, extrapolated from there.

use super::queues::Queues;
use super::{CostModel, Estimate};
use crate::compile::compile;
use crate::layout::{Layout, Place};
use crate::plan::Plan;
use crate::schedule::{Call, Rank};
use crate::timing::time;

/// Racks, nodes of a rack and ranks of a node that are timed as they are; of more, so many, half and a quarter.
const MOST: [usize; 3] = [8, 8, 4];
/// Nodes of a group that is timed as it is, whatever its make.
const SMALL: usize = 32;
/// Segments that are timed one by one; of more, so many and half.
const SEGMENTS: u64 = 6;
/// A message falls into no more (see `levels`).
const MAX_SEGMENTS: u64 = 1024;

/// Where candidates for one call compete.
pub(super) struct Bench<'a> {
    model: &'a CostModel,
    call: &'a Call,
    layout: &'a Layout,
    /// The call on the group or on the largest smaller one.
    base: Size,
    /// In how many directions the group is larger, how many times it is doubled there, and half and a quarter
    /// of the smaller one.
    beyond: Vec<(f64, Size, Size)>,
}

/// A group of some size.
struct Size {
    layout: Option<Layout>,
    root: Rank,
}

impl<'a> Bench<'a> {
    pub(super) fn new(model: &'a CostModel, layout: &'a Layout, call: &'a Call) -> Bench<'a> {
        let racks = layout.racks();
        let most = |counts: &mut dyn Iterator<Item = usize>| counts.max().unwrap_or(1);
        let nodes = most(&mut (0..racks).map(|rack| layout.nodes_of_rack(rack).len()));
        let ranks = most(&mut (0..layout.nodes()).map(|node| layout.ranks_of_node(node).len()));
        let full = [racks, nodes, ranks];
        let mut base = full;
        for (base, most) in base.iter_mut().zip(MOST) {
            *base = (*base).min(most);
        }
        if layout.nodes() <= SMALL {
            (base[0], base[1]) = (full[0], full[1]);
        }
        let size = |size: [usize; 3]| Size::new(layout, call.root, size);
        let beyond = (0..3)
            .filter(|i| full[*i] > base[*i])
            .map(|i| {
                let part = |divisor: usize| {
                    let mut size = base;
                    size[i] = (size[i] / divisor).max(1);
                    size
                };
                ((full[i] as f64 / base[i] as f64).log2(), size(part(2)), size(part(4)))
            })
            .collect();
        let base = if base == full { Size { layout: None, root: call.root } } else { size(base) };
        Bench { model, call, layout, base, beyond }
    }

    /// None if the plan does not fit.
    pub(super) fn estimate(&self, plan: Plan) -> Option<Estimate> {
        let base = self.on(plan, &self.base)?;
        let mut seconds = base;
        for (doublings, half, quarter) in &self.beyond {
            let (half, quarter) = (self.on(plan, half)?, self.on(plan, quarter)?);
            seconds += grown([quarter, half, base], *doublings);
        }
        Some(Estimate { plan, seconds })
    }

    fn on(&self, plan: Plan, size: &Size) -> Option<f64> {
        let layout = size.layout.as_ref().unwrap_or(self.layout);
        // The segments that the plan makes for the whole group.
        let array = array(self.call, self.layout.size());
        let segment = plan.segment(array, self.layout.nodes()).max(array.div_ceil(MAX_SEGMENTS));
        let count = array.div_ceil(segment.max(1)).max(1);
        let parts = self.call.operation.takes_counts();
        let run = |segments: u64| {
            let part = |bytes: u64| {
                let bytes = u128::from(bytes) * u128::from(segments) / u128::from(count);
                (bytes as u64).next_multiple_of(u64::from(self.call.element))
            };
            let bytes = if segments == count { self.call.bytes } else { part(self.call.bytes) };
            // A smaller group's arrays of parts are shorter; they fall into as many segments.
            let segment = if parts { segment * layout.size() as u64 / self.layout.size() as u64 } else { segment };
            let plan = if count == 1 && layout.size() == self.layout.size() { plan } else { plan.with_segment(segment) };
            let call = Call { bytes, root: size.root, ..self.call.clone() };
            let schedule = compile(&call, layout, &plan, |_| true).ok()?;
            let timing = time(&schedule, layout, &self.model.costs, Queues::new(self.model, layout)).ok()?;
            Some(timing.time.as_secs_f64())
        };
        if count <= SEGMENTS {
            return run(count);
        }
        let (all, half) = (run(SEGMENTS)?, run(SEGMENTS / 2)?);
        let each = (all - half).max(0.0) / (SEGMENTS - SEGMENTS / 2) as f64;
        Some(all + each * (count - SEGMENTS) as f64)
    }
}

/// What is added by so many more doublings of a size, if it took so long at a quarter, at half and at all of it:
/// each doubling adds as many times more than the one before as the last did.
fn grown([quarter, half, all]: [f64; 3], doublings: f64) -> f64 {
    let (before, last) = ((half - quarter).max(0.0), (all - half).max(0.0));
    let ratio = if before > 0.0 { (last / before).clamp(0.5, 4.0) } else { 1.0 };
    let mut added = 0.0;
    let mut step = last;
    let mut rest = doublings;
    while rest > 0.0 {
        step *= ratio;
        added += step * rest.min(1.0);
        rest -= 1.0;
    }
    added
}

/// Bytes of the array that a call's segments are cut from.
pub(super) fn array(call: &Call, size: usize) -> u64 {
    if call.operation.takes_counts() { call.bytes.saturating_mul(size as u64) } else { call.bytes }
}

impl Size {
    /// The first racks from the root's on, the first nodes of each, the first ranks of those; and the root. If
    /// the root is none of these, another rank of its rack.
    fn new(layout: &Layout, root: Rank, [racks, nodes, ranks]: [usize; 3]) -> Size {
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
                places.push(Place { rack: rack as u32, node: node as u32 });
                if rank == root {
                    new_root = Some(at);
                } else if rack == home {
                    near = at;
                }
            }
        }
        Size { layout: Layout::new(&places).ok(), root: Rank(new_root.unwrap_or(near)) }
    }
}
