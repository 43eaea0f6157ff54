//! Reductions with sharded leaders, for large vectors: every node leads for its share, so that no
//! leader's link carries the vectors of its whole rack, and an uplink still carries each byte once.
//!
//! First each rack combines its values, each shard at the shard's owner in the rack. Then the
//! destination racks of the shards combine those, and the results are sent to the root, or
//! multicast to all ranks. Owners are spread so that a host's link carries one vector in each
//! direction. The rack of a reduce's root therefore only combines its own values, and the root
//! itself, which receives all results, owns nothing.
//!
//! Values are combined in chain order: the ranks of a node, the nodes of a rack, the racks.

use super::part_order::offsets;
use super::{ScheduleEmitter, output, segments};
use crate::builder::{RankSpan, ScratchSlot};
use crate::layout::Layout;
use crate::schedule::Span;
use core::ops::Range;

/// Consecutive bytes of a segment with one owner in each rack.
struct Shard {
    index: u32,
    bytes: Range<u64>,
    /// The destination rack, in which the owner combines the values of all racks.
    home: usize,
    /// For each rack the node of its owner.
    owners: Vec<usize>,
}

impl Shard {
    fn len(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }
}

impl ScheduleEmitter<'_, '_> {
    pub(super) fn sharded_reduce(&mut self) {
        let root = self.root;
        for s in segments(self.bytes, self.segment) {
            let values = self.node_values(s.start, s.end - s.start);
            for shard in shards(self.layout, &s, self.element, Some(self.layout.node_of(root))) {
                let goal = ScheduleEmitter::at_output(root, shard.bytes.start, shard.len());
                self.shard_to(&shard, s.start, &values, goal);
            }
        }
    }

    pub(super) fn sharded_allreduce(&mut self) {
        let nodes = self.nodes();
        for s in segments(self.bytes, self.segment) {
            let values = self.node_values(s.start, s.end - s.start);
            let mut totals: Vec<RankSpan> = Vec::new();
            for shard in shards(self.layout, &s, self.element, None) {
                let rank = self.layout.node_leader(shard.owners[shard.home]);
                let total = ScheduleEmitter::at_output(rank, shard.bytes.start, shard.len());
                self.shard_to(&shard, s.start, &values, total);
                // Consecutive shards of one owner are one message.
                match totals.last_mut() {
                    Some(last) if last.rank == rank && last.span.end() == total.span.offset => {
                        last.span.len += total.span.len;
                    }
                    _ => totals.push(total),
                }
            }
            let places: Vec<Span> = totals.iter().map(|total| total.span).collect();
            if nodes.members.len() > 1
                && let Some(allgather) = self.plan.center.up.allgather
            {
                allgather(self.b, &nodes, &totals, &|_, i| places[i]);
            }
            self.spread_in_nodes(output(s.start, s.end - s.start), None);
        }
    }

    /// Every rank's part is a shard with that rank's node as its destination.
    pub(super) fn sharded_reduce_scatter(&mut self) {
        let offsets = offsets(self.layout.ranks().map(|rank| self.call.part(rank)));
        let mut turns = vec![0; self.layout.racks()];
        for rank in self.layout.ranks() {
            let node = self.layout.node_of(rank);
            let home = self.layout.rack_of(rank);
            let owners: Vec<usize> = (0..self.layout.racks())
                .map(|rack| {
                    let nodes = self.layout.nodes_of_rack(rack);
                    turns[rack] += usize::from(rack != home);
                    if rack == home { node } else { nodes.start + (turns[rack] - 1) % nodes.len() }
                })
                .collect();
            let start = offsets[rank.0 as usize];
            for s in segments(self.call.part(rank), self.segment).filter(|s| !s.is_empty()) {
                let bytes = start + s.start..start + s.end;
                let values = self.node_values(bytes.start, bytes.end - bytes.start);
                let shard = Shard { index: rank.0, bytes, home, owners: owners.clone() };
                let goal = ScheduleEmitter::at_output(rank, s.start, s.end - s.start);
                self.shard_to(&shard, shard.bytes.start, &values, goal);
            }
        }
    }

    /// Combines a shard of all nodes' values, which start at byte `start` of the vector, and moves
    /// it to a place.
    fn shard_to(&mut self, shard: &Shard, start: u64, values: &[RankSpan], goal: RankSpan) {
        let rank = self.layout.node_leader(shard.owners[shard.home]);
        let span = if goal.rank == rank {
            goal.span
        } else {
            self.b.slot(rank, ScratchSlot::Shard { index: shard.index, total: true }, shard.len())
        };
        let total = RankSpan { rank, span };
        let mut partials = Vec::with_capacity(shard.owners.len());
        for (rack, owner) in shard.owners.iter().enumerate() {
            let owner = self.layout.node_leader(*owner);
            let values: Vec<RankSpan> = self
                .layout
                .nodes_of_rack(rack)
                .map(|node| RankSpan {
                    span: values[node].span.sub(shard.bytes.start - start, shard.len()),
                    ..values[node]
                })
                .collect();
            partials.push(match values.as_slice() {
                [only] => *only,
                // The first rack's partial value may grow into the total.
                values if rack == 0 && owner == total.rank => {
                    self.plan.rack.up.reduce()(self.b, values, total);
                    total
                }
                values => {
                    let slot = ScratchSlot::Shard { index: shard.index, total: false };
                    let span = self.b.slot(owner, slot, shard.len());
                    let into = RankSpan { rank: owner, span };
                    self.plan.rack.up.reduce()(self.b, values, into);
                    into
                }
            });
        }
        match partials.as_slice() {
            [only] => self.b.send(*only, total),
            partials => self.plan.center.up.reduce()(self.b, partials, total),
        }
        self.b.send(total, goal);
    }
}

/// Returns the shards of a segment. The segment is split into regions, one per destination rack,
/// and each region into at least as many shards as the largest rack has owners. In the other racks,
/// owners take turns.
fn shards(layout: &Layout, s: &Range<u64>, element: u64, root: Option<usize>) -> Vec<Shard> {
    let owners: Vec<Vec<usize>> = (0..layout.racks()).map(|rack| owners(layout, rack, root)).collect();
    let most = owners.iter().map(Vec::len).max().unwrap_or(1);
    let away = root.map(|node| layout.rack_of_node(node)).filter(|_| layout.racks() > 1);
    let homes: Vec<usize> = (0..layout.racks()).filter(|rack| Some(*rack) != away).collect();
    let mut shards = Vec::new();
    // For each rack, the number of shards that were assigned to its owners without being their
    // destination.
    let mut given = vec![0; owners.len()];
    for (region, home) in split(s, homes.len(), element).zip(&homes) {
        let own = owners[*home].len();
        let count = own * most.div_ceil(own);
        for (i, bytes) in split(&region, count, element).enumerate() {
            if bytes.is_empty() {
                continue;
            }
            let owner = |(rack, nodes): (usize, &Vec<usize>)| {
                if rack == *home {
                    return nodes[i * own / count];
                }
                given[rack] += 1;
                nodes[(given[rack] - 1) % nodes.len()]
            };
            let owners = owners.iter().enumerate().map(owner).collect();
            shards.push(Shard { index: shards.len() as u32, bytes, home: *home, owners });
        }
    }
    shards
}

/// Returns the nodes of a rack that combine values: all, except the root's if there are others.
fn owners(layout: &Layout, rack: usize, root: Option<usize>) -> Vec<usize> {
    let nodes = layout.nodes_of_rack(rack);
    if nodes.len() == 1 {
        return nodes.collect();
    }
    nodes.filter(|node| Some(*node) != root).collect()
}

/// Splits a range into parts that differ by at most one element. Some are empty if the range has
/// fewer elements than parts.
fn split(range: &Range<u64>, parts: usize, element: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let (start, elements) = (range.start, (range.end - range.start) / element);
    let at = move |i: usize| start + (u128::from(elements) * i as u128 / parts as u128) as u64 * element;
    (0..parts).map(move |i| at(i)..at(i + 1))
}
