//! How a collective is put together from patterns at three levels: the ranks of a node, the node leaders of
//! a rack, the rack leaders (paper 003, III.A and III.C). Everything is done segment by segment, so that the
//! levels overlap.

mod parts;
mod values;

use crate::builder::{Builder, Held};
use crate::layout::{Layout, Scope};
use crate::patterns::Subgroup;
use crate::plan::{Composition, Plan};
use crate::schedule::{Buffer, Call, Operation, Rank, Span};
use core::ops::Range;

/// Segments of one array: more would only lengthen the schedule, so segments of very large arrays are longer.
const MAX_SEGMENTS: u64 = 1024;

/// Writes the messages of `call` into the builder.
pub(crate) fn emit(call: &Call, plan: &Plan, builder: &mut Builder<'_>) {
    let size = builder.layout().size() as u64;
    let element = u64::from(call.element);
    // The tokens of a barrier are the empty messages of an allreduce of nothing.
    let bytes = if call.operation == Operation::Barrier { 0 } else { call.bytes };
    let array = match call.operation {
        Operation::Gather | Operation::Allgather | Operation::Scatter => bytes * size,
        Operation::Bcast | Operation::Reduce | Operation::Allreduce | Operation::Barrier => bytes,
    };
    let wanted = plan.segment(array).max(array.div_ceil(MAX_SEGMENTS));
    let segment = wanted.min(array).max(1).next_multiple_of(element);
    builder.set_segment(segment);
    let mut levels = Levels {
        layout: builder.layout(),
        b: builder,
        plan: plan.composition(),
        operation: call.operation,
        root: call.root,
        bytes,
        segment,
    };
    match call.operation {
        Operation::Bcast => levels.bcast(),
        Operation::Reduce => levels.reduce(),
        Operation::Allreduce | Operation::Barrier => levels.allreduce(),
        Operation::Gather => levels.gather(),
        Operation::Scatter => levels.scatter(),
        Operation::Allgather => levels.allgather(),
    }
}

struct Levels<'b, 'l> {
    b: &'b mut Builder<'l>,
    layout: &'l Layout,
    plan: &'static Composition,
    operation: Operation,
    root: Rank,
    bytes: u64,
    segment: u64,
}

impl Levels<'_, '_> {
    /// The leader of the rack that holds the root.
    fn root_leader(&self) -> Rank {
        self.layout.rack_leader(self.layout.rack_of(self.root))
    }

    fn leaders(&self) -> Subgroup {
        let members = (0..self.layout.racks()).map(|rack| self.layout.rack_leader(rack)).collect();
        Subgroup { members, tree: Some(Scope::Leaders) }
    }

    fn rack(&self, rack: usize) -> Subgroup {
        let members = self.layout.nodes_of_rack(rack).map(|node| self.layout.node_leader(node)).collect();
        Subgroup { members, tree: Some(Scope::Rack(rack)) }
    }

    fn nodes(&self) -> Subgroup {
        let members = (0..self.layout.nodes()).map(|node| self.layout.node_leader(node)).collect();
        Subgroup { members, tree: Some(Scope::All) }
    }

    /// From every rack leader's output to the outputs of its rack.
    fn spread_in_racks(&mut self, span: Span) {
        for rack in 0..self.layout.racks() {
            let from = Held { rank: self.layout.rack_leader(rack), span };
            (self.plan.rack.bcast)(self.b, &self.rack(rack), from, &|_| span);
        }
        self.spread_in_nodes(span, None);
    }

    /// From one rank's output to the outputs of all, by one multicast.
    fn spread_at_once(&mut self, from: Rank, span: Span) {
        let group = self.nodes();
        (self.plan.center.bcast)(self.b, &group, Held { rank: from, span }, &|_| span);
        self.spread_in_nodes(span, Some(from));
    }

    /// From every node leader's output to the outputs of its node. On the node of `source`, which holds the
    /// data already, it comes from there.
    fn spread_in_nodes(&mut self, span: Span, source: Option<Rank>) {
        for node in 0..self.layout.nodes() {
            let members = self.layout.ranks_of_node(node);
            let local = source.filter(|rank| self.layout.node_of(*rank) == node);
            let from = Held { rank: local.unwrap_or(members[0]), span };
            let group = Subgroup { members: members.to_vec(), tree: None };
            (self.plan.node.bcast)(self.b, &group, from, &|_| span);
        }
    }
}

fn output(offset: u64, len: u64) -> Span {
    Span { buffer: Buffer::Output, offset, len }
}

fn input(offset: u64, len: u64) -> Span {
    Span { buffer: Buffer::Input, offset, len }
}

/// The consecutive segments of an array; one empty one if the array is empty.
fn segments(bytes: u64, segment: u64) -> impl Iterator<Item = Range<u64>> {
    let count = bytes.div_ceil(segment).max(1);
    (0..count).map(move |i| i * segment..bytes.min((i + 1) * segment))
}
