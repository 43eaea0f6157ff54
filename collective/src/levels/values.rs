//! Operations on one vector: bcast, reduce, allreduce, and barrier as an allreduce of nothing.

use super::{Levels, input, output, segments};
use crate::builder::{Held, Slot};
use crate::patterns::Subgroup;
use crate::plan::Spread;
use crate::schedule::{Buffer, Rank, Span};

impl Levels<'_, '_> {
    pub(super) fn bcast(&mut self) {
        if self.plan.spread == Spread::Once {
            // Nothing comes before the multicast that it could overlap with: it is one stream.
            return self.spread_at_once(self.root, output(0, self.bytes));
        }
        let leader = self.root_leader();
        for s in segments(self.bytes, self.segment) {
            let span = output(s.start, s.end - s.start);
            self.b.send(Held { rank: self.root, span }, Held { rank: leader, span });
            let leaders = self.leaders();
            (self.plan.center.bcast)(self.b, &leaders, Held { rank: leader, span }, &|_| span);
            self.bcast_in_racks(span);
            self.bcast_in_nodes(span);
        }
    }

    /// A rack's multicast reaches the root's node too, which does without.
    fn bcast_in_racks(&mut self, span: Span) {
        for rack in 0..self.layout.racks() {
            let group = self.rack(rack);
            let from = Held { rank: self.layout.rack_leader(rack), span };
            let comes_back = from.rank != self.root && group.members.contains(&self.root);
            let discard = if comes_back { self.b.slot(self.root, Slot::Discard, span.len) } else { span };
            let root = self.root;
            (self.plan.rack.bcast)(self.b, &group, from, &|to| if to == root { discard } else { span });
        }
    }

    fn bcast_in_nodes(&mut self, span: Span) {
        for node in 0..self.layout.nodes() {
            let mut members = self.layout.ranks_of_node(node).to_vec();
            let from = Held { rank: members[0], span };
            members.retain(|rank| *rank != self.root);
            (self.plan.node.bcast)(self.b, &Subgroup { members, tree: None }, from, &|_| span);
        }
    }

    pub(super) fn reduce(&mut self) {
        for s in segments(self.bytes, self.segment) {
            self.reduce_segment(s.start, s.end - s.start, self.root);
        }
    }

    pub(super) fn allreduce(&mut self) {
        for s in segments(self.bytes, self.segment) {
            let (start, len) = (s.start, s.end - s.start);
            if self.plan.spread == Spread::Once {
                let first = self.layout.rack_leader(0);
                self.reduce_segment(start, len, first);
                self.spread_at_once(first, output(start, len));
            } else {
                self.allreduce_leaders(start, len);
                self.spread_in_racks(output(start, len));
            }
        }
    }

    fn allreduce_leaders(&mut self, start: u64, len: u64) {
        let span = output(start, len);
        if self.layout.racks() == 1 {
            return self.reduce_segment(start, len, self.layout.rack_leader(0));
        }
        let values: Vec<Held> =
            (0..self.layout.racks()).map(|rack| self.rack_value(rack, start, len, None)).collect();
        (self.plan.center.allreduce)(self.b, &self.leaders(), &values, &|_| span);
    }

    /// Combines all ranks' values of a segment in the root's output.
    fn reduce_segment(&mut self, start: u64, len: u64, root: Rank) {
        let rack = self.layout.rack_of(root);
        let rank = self.layout.rack_leader(rack);
        let goal = Held { rank: root, span: output(start, len) };
        // The leader of the root's rack combines all; only in the first rack can the rack's own value,
        // which is then the first, be completed in the same place.
        let span = if rank == root { goal.span } else { self.b.slot(rank, Slot::Total, len) };
        let total = Held { rank, span };
        let values: Vec<Held> = (0..self.layout.racks())
            .map(|r| self.rack_value(r, start, len, (r == rack && r == 0).then_some(span)))
            .collect();
        (self.plan.center.reduce)(self.b, &values, total);
        self.b.send(total, goal);
    }

    /// The combination of a rack's values, at its leader: in `place` if that is given and it is not a rank's
    /// input.
    fn rack_value(&mut self, rack: usize, start: u64, len: u64, place: Option<Span>) -> Held {
        let rank = self.layout.rack_leader(rack);
        let mut values = Vec::new();
        for node in self.layout.nodes_of_rack(rack) {
            let place = place.filter(|_| self.layout.node_leader(node) == rank);
            values.push(self.node_value(node, start, len, place));
        }
        if values.len() == 1 {
            return values[0];
        }
        let into = Held { rank, span: self.place_for(values[0], place) };
        (self.plan.rack.reduce)(self.b, &values, into);
        into
    }

    /// The combination of a node's values, at its leader; as [`Levels::rack_value`].
    fn node_value(&mut self, node: usize, start: u64, len: u64, place: Option<Span>) -> Held {
        let values: Vec<Held> = self
            .layout
            .ranks_of_node(node)
            .iter()
            .map(|rank| Held { rank: *rank, span: input(start, len) })
            .collect();
        if values.len() == 1 {
            return values[0];
        }
        let into = Held { rank: values[0].rank, span: self.place_for(values[0], place) };
        (self.plan.node.reduce)(self.b, &values, into);
        into
    }

    /// Where a leader may combine: where its own value already is, unless that is its input.
    fn place_for(&mut self, own: Held, place: Option<Span>) -> Span {
        if own.span.buffer != Buffer::Input {
            return own.span;
        }
        place.unwrap_or_else(|| self.b.slot(own.rank, Slot::Partial, own.span.len))
    }
}
