//! Composes a collective from patterns at three levels: the ranks of a node, the node leaders of a
//! rack, and the rack leaders (COOL paper, III.A and III.C). All levels work segment by segment, so
//! that they overlap. A plan of one level sees all ranks as if they were on one node with the root
//! as its leader.

mod allgather;
mod alltoall;
mod gather_scatter;
mod part_order;
mod reduce_scatter;
mod reductions;
mod scan;
mod sharded;

use crate::builder::{RankSpan, ScheduleBuilder};
use crate::layout::{Layout, MulticastScope};
use crate::patterns::{Pattern, Subgroup};
use crate::plan::{Composition, Leaders, Plan, PlanShape, Spread};
use crate::schedule::{Call, Operation, Rank, RankBuffer, Span};
use cool_types::limits;
use core::ops::Range;

/// Adds the messages of `call` to the builder. The plan must fit the operation.
pub(crate) fn emit(call: &Call, plan: &Plan, builder: &mut ScheduleBuilder<'_>) {
    let size = builder.layout().size();
    let element = u64::from(call.element);
    let composition = plan.composition();
    let flat = match composition.shape {
        PlanShape::Levels => None,
        PlanShape::Flat => Some(builder.layout().flat(false)),
        // A scan depends on the order of ranks, so the order of racks is ignored.
        PlanShape::Racked => {
            Some(builder.layout().flat(!matches!(call.operation, Operation::Scan | Operation::Exscan)))
        }
    };
    // The tokens of a barrier are the empty messages of an allreduce without data.
    let bytes = if call.operation == Operation::Barrier { 0 } else { call.bytes };
    let array = match call.operation {
        operation if operation.takes_counts() => call.parts(0..size),
        _ => bytes,
    };
    let wanted = plan.segment_bytes(array, builder.layout().nodes()).max(array.div_ceil(limits::SEGMENTS));
    let segment = wanted.min(array).max(1).next_multiple_of(element);
    ScheduleEmitter {
        layout: flat.as_ref().unwrap_or(builder.layout()),
        b: builder,
        plan: composition,
        call,
        root: call.root,
        bytes,
        segment,
        stream: if plan.forces_segments() { segment } else { bytes.max(1) },
        element,
    }
    .emit();
}

/// Returns the bytes that a plan cuts into segments, for a call with parts of one length: the whole
/// array, or, where members exchange parts without shares of a segment, the longest part.
pub(crate) fn cut_bytes(call: &Call, layout: &Layout, plan: &Plan) -> u64 {
    let composition = plan.composition();
    let flat = composition.shape != PlanShape::Levels;
    let longest = |sizes: &mut dyn Iterator<Item = usize>| sizes.max().unwrap_or(1);
    let ranks_of_node = |node: usize| layout.ranks_of_node(node).len();
    let ranks_of_rack = |rack: usize| layout.nodes_of_rack(rack).map(ranks_of_node).sum::<usize>();
    let parts = match call.operation {
        operation if !operation.takes_counts() => 1,
        _ if flat && composition.node.up.shares => layout.size(),
        Operation::Allgather | Operation::ReduceScatter if flat => 1,
        Operation::Allgather if composition.spread == Spread::Once => layout.size(),
        Operation::Allgather if composition.spread == Spread::Levels && layout.racks() > 1 => {
            longest(&mut (0..layout.racks()).map(ranks_of_rack))
        }
        Operation::Allgather => longest(&mut (0..layout.nodes()).map(ranks_of_node)),
        _ => layout.size(),
    };
    call.bytes.saturating_mul(parts as u64)
}

struct ScheduleEmitter<'b, 'l> {
    b: &'b mut ScheduleBuilder<'l>,
    /// The layout as the plan sees it.
    layout: &'b Layout,
    plan: Composition,
    call: &'b Call,
    root: Rank,
    bytes: u64,
    segment: u64,
    /// Bytes of one multicast of an array that is complete from the start.
    stream: u64,
    element: u64,
}

impl ScheduleEmitter<'_, '_> {
    fn emit(&mut self) {
        let sharded = self.plan.leaders == Leaders::Sharded;
        match self.call.operation {
            Operation::Bcast => self.bcast(),
            Operation::Reduce if sharded => self.sharded_reduce(),
            Operation::Reduce => self.reduce(),
            Operation::Allreduce if sharded => self.sharded_allreduce(),
            Operation::Allreduce | Operation::Barrier => self.allreduce(),
            Operation::Gather => self.gather(),
            Operation::Scatter => self.scatter(),
            Operation::Allgather => self.allgather(),
            Operation::ReduceScatter if self.is_flat() => self.flat_reduce_scatter(),
            Operation::ReduceScatter if sharded => self.sharded_reduce_scatter(),
            Operation::ReduceScatter => self.reduce_scatter(),
            Operation::Alltoall if self.is_flat() => self.flat_alltoall(),
            Operation::Alltoall => self.alltoall(),
            Operation::Scan => self.scan(false),
            Operation::Exscan => self.scan(true),
        }
    }

    /// Returns how much of each member's part is one segment, given the length of the longest part.
    fn segment_of_parts(&self, longest: u64, members: usize) -> u64 {
        if !(self.is_flat() && self.plan.node.up.shares) {
            return self.segment;
        }
        let share = (self.segment / members as u64).max(longest.div_ceil(limits::SEGMENTS)).max(1);
        share.next_multiple_of(self.element)
    }

    fn is_flat(&self) -> bool {
        self.plan.shape != PlanShape::Levels
    }

    fn node_leader(&self, node: usize) -> Rank {
        if self.is_flat() && self.call.operation.rooted() { self.root } else { self.layout.node_leader(node) }
    }

    fn rack_leader(&self, rack: usize) -> Rank {
        self.node_leader(self.layout.nodes_of_rack(rack).start)
    }

    /// Returns the leader of the root's rack.
    fn root_leader(&self) -> Rank {
        self.rack_leader(self.layout.rack_of(self.root))
    }

    fn leaders(&self) -> Subgroup {
        let members = (0..self.layout.racks()).map(|rack| self.rack_leader(rack)).collect();
        Subgroup { members, tree: Some(MulticastScope::Leaders) }
    }

    fn rack(&self, rack: usize) -> Subgroup {
        let members = self.layout.nodes_of_rack(rack).map(|node| self.node_leader(node)).collect();
        Subgroup { members, tree: Some(MulticastScope::Rack(rack)) }
    }

    fn nodes(&self) -> Subgroup {
        let members = (0..self.layout.nodes()).map(|node| self.node_leader(node)).collect();
        Subgroup { members, tree: Some(MulticastScope::All) }
    }

    fn ranks_of_node(&self, node: usize) -> Subgroup {
        Subgroup { members: self.layout.ranks_of_node(node).to_vec(), tree: None }
    }

    /// Broadcasts from one member to the others, if there are any.
    fn bcast_by(&mut self, pattern: &Pattern, group: &Subgroup, from: RankSpan, dst: &dyn Fn(Rank) -> Span) {
        if group.members.iter().any(|rank| *rank != from.rank) {
            pattern.bcast()(self.b, group, from, dst);
        }
    }

    /// Broadcasts from every rack leader's output to the outputs of its rack.
    fn spread_in_racks(&mut self, span: Span) {
        for rack in 0..self.layout.racks() {
            let from = RankSpan { rank: self.rack_leader(rack), span };
            let group = self.rack(rack);
            self.bcast_by(self.plan.rack.down, &group, from, &|_| span);
        }
        self.spread_in_nodes(span, None);
    }

    /// Broadcasts from one rank's output to the outputs of all ranks by one multicast.
    fn spread_at_once(&mut self, from: Rank, span: Span) {
        let group = self.nodes();
        self.bcast_by(self.plan.center.down, &group, RankSpan { rank: from, span }, &|_| span);
        self.spread_in_nodes(span, Some(from));
    }

    /// Broadcasts from every node leader's output to the outputs of its node. On the node of
    /// `source`, which has the data already, `source` sends it.
    fn spread_in_nodes(&mut self, span: Span, source: Option<Rank>) {
        for node in 0..self.layout.nodes() {
            let local = source.filter(|rank| self.layout.node_of(*rank) == node);
            let from = RankSpan { rank: local.unwrap_or(self.node_leader(node)), span };
            let group = self.ranks_of_node(node);
            self.bcast_by(self.plan.node.down, &group, from, &|_| span);
        }
    }
}

fn output(offset: u64, len: u64) -> Span {
    Span { buffer: RankBuffer::Output, offset, len }
}

fn input(offset: u64, len: u64) -> Span {
    Span { buffer: RankBuffer::Input, offset, len }
}

/// Returns the consecutive segments of an array. An empty array has one empty segment.
fn segments(bytes: u64, segment: u64) -> impl Iterator<Item = Range<u64>> {
    let count = bytes.div_ceil(segment).max(1);
    (0..count).map(move |i| i * segment..bytes.min((i + 1) * segment))
}
