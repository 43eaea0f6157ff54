//! Operations on one vector: bcast, reduce, allreduce, and barrier, which is an allreduce without
//! data.

use super::{ScheduleEmitter, input, output, segments};
use crate::builder::{RankSpan, ScratchSlot};
use crate::patterns::Subgroup;
use crate::plan::{LevelPatterns, Spread};
use crate::schedule::{Rank, RankBuffer, Span};

impl ScheduleEmitter<'_, '_> {
    pub(super) fn bcast(&mut self) {
        if self.plan.spread == Spread::Once {
            // No step precedes the multicast that could overlap with it, so it is one stream unless
            // the plan forces segments.
            for s in segments(self.bytes, self.stream) {
                self.spread_at_once(self.root, output(s.start, s.end - s.start));
            }
            return;
        }
        let leader = self.root_leader();
        for s in segments(self.bytes, self.segment) {
            let span = output(s.start, s.end - s.start);
            self.b.send(RankSpan { rank: self.root, span }, RankSpan { rank: leader, span });
            let leaders = self.leaders();
            self.bcast_by(self.plan.center.down, &leaders, RankSpan { rank: leader, span }, &|_| span);
            self.bcast_in_racks(span);
            self.bcast_in_nodes(span);
        }
    }

    /// A rack's multicast reaches the root's node too, which discards it.
    fn bcast_in_racks(&mut self, span: Span) {
        for rack in 0..self.layout.racks() {
            let mut group = self.rack(rack);
            let from = RankSpan { rank: self.rack_leader(rack), span };
            let root = self.root;
            let mut discard = span;
            if from.rank != root && group.members.contains(&root) {
                if self.plan.rack.down.multicasts {
                    discard = self.b.slot(root, ScratchSlot::Discard, span.len);
                } else {
                    group.members.retain(|rank| *rank != root);
                }
            }
            let dst = move |to| if to == root { discard } else { span };
            self.bcast_by(self.plan.rack.down, &group, from, &dst);
        }
    }

    fn bcast_in_nodes(&mut self, span: Span) {
        for node in 0..self.layout.nodes() {
            let mut group = self.ranks_of_node(node);
            let from = RankSpan { rank: self.node_leader(node), span };
            group.members.retain(|rank| *rank != self.root || *rank == from.rank);
            self.bcast_by(self.plan.node.down, &group, from, &|_| span);
        }
    }

    pub(super) fn reduce(&mut self) {
        for s in segments(self.bytes, self.segment) {
            let (start, len) = (s.start, s.end - s.start);
            self.reduce_range(start, len, RankSpan { rank: self.root, span: output(start, len) });
        }
    }

    pub(super) fn allreduce(&mut self) {
        for s in segments(self.bytes, self.segment) {
            let (start, len) = (s.start, s.end - s.start);
            let span = output(start, len);
            if self.plan.spread == Spread::Once {
                let first = self.rack_leader(0);
                self.reduce_range(start, len, RankSpan { rank: first, span });
                self.spread_at_once(first, span);
            } else if self.layout.racks() > 1 {
                let values = self.rack_values(start, len, None);
                self.allreduce_by(self.plan.center, &self.leaders(), &values, span);
                self.spread_in_racks(span);
            } else if !self.is_flat() {
                let values: Vec<RankSpan> =
                    (0..self.layout.nodes()).map(|node| self.node_value(node, start, len, None)).collect();
                self.allreduce_by(self.plan.rack, &self.rack(0), &values, span);
                self.spread_in_nodes(span, None);
            } else {
                let values = self.rank_values(0, start, len);
                self.allreduce_by(self.plan.node, &self.ranks_of_node(0), &values, span);
            }
        }
    }

    /// Combines by an allreduce if the pattern has one, and otherwise by a reduce to the first
    /// member and a bcast.
    fn allreduce_by(&mut self, level: LevelPatterns, group: &Subgroup, values: &[RankSpan], span: Span) {
        let first = RankSpan { rank: values[0].rank, span };
        match level.up.allreduce {
            _ if values.len() == 1 => self.b.send(values[0], first),
            Some(allreduce) => allreduce(self.b, group, values, &|_| span),
            None => {
                level.up.reduce()(self.b, values, first);
                self.bcast_by(level.down, group, first, &|_| span);
            }
        }
    }

    /// Combines all ranks' values of a range of the vector. The result is left at `goal`.
    pub(super) fn reduce_range(&mut self, start: u64, len: u64, goal: RankSpan) {
        let rack = self.layout.rack_of(goal.rank);
        let rank = self.rack_leader(rack);
        // The leader of the root's rack combines all values. Only in the first rack, where its own
        // value is the first operand, can the rack's value be combined in the same place.
        let span = if rank == goal.rank { goal.span } else { self.b.slot(rank, ScratchSlot::Total, len) };
        let total = RankSpan { rank, span };
        let values = self.rack_values(start, len, (rack == 0).then_some(span));
        self.reduce_by(self.plan.center, &values, total);
        self.b.send(total, goal);
    }

    fn reduce_by(&mut self, level: LevelPatterns, values: &[RankSpan], into: RankSpan) {
        match values {
            [only] => self.b.send(*only, into),
            values => level.up.reduce()(self.b, values, into),
        }
    }

    /// Returns the combined value of each rack, at its leader. The first rack's is combined in
    /// `first` if that is given.
    fn rack_values(&mut self, start: u64, len: u64, first: Option<Span>) -> Vec<RankSpan> {
        (0..self.layout.racks())
            .map(|rack| self.rack_value(rack, start, len, first.filter(|_| rack == 0)))
            .collect()
    }

    /// Returns the combined value of a rack, at its leader: in `place` if that is given and the
    /// value is not a rank's input.
    fn rack_value(&mut self, rack: usize, start: u64, len: u64, place: Option<Span>) -> RankSpan {
        let rank = self.rack_leader(rack);
        let mut values = Vec::new();
        for node in self.layout.nodes_of_rack(rack) {
            let place = place.filter(|_| self.node_leader(node) == rank);
            values.push(self.node_value(node, start, len, place));
        }
        if values.len() == 1 {
            return values[0];
        }
        let into = RankSpan { rank, span: self.place_for(values[0], place) };
        self.plan.rack.up.reduce()(self.b, &values, into);
        into
    }

    fn rank_values(&self, node: usize, start: u64, len: u64) -> Vec<RankSpan> {
        let ranks = self.layout.ranks_of_node(node).iter();
        ranks.map(|rank| RankSpan { rank: *rank, span: input(start, len) }).collect()
    }

    /// Returns the combined value of a node, at its leader, like [`ScheduleEmitter::rack_value`].
    pub(super) fn node_value(&mut self, node: usize, start: u64, len: u64, place: Option<Span>) -> RankSpan {
        let values = self.rank_values(node, start, len);
        if values.len() == 1 {
            return values[0];
        }
        let own = RankSpan { rank: self.node_leader(node), ..values[0] };
        let into = RankSpan { rank: own.rank, span: self.place_for(own, place) };
        self.plan.node.up.reduce()(self.b, &values, into);
        into
    }

    /// Returns where a leader may combine values: the place of its own value, unless that is its
    /// input.
    fn place_for(&mut self, own: RankSpan, place: Option<Span>) -> Span {
        if own.span.buffer != RankBuffer::Input {
            return own.span;
        }
        place.unwrap_or_else(|| self.b.slot(own.rank, ScratchSlot::Partial, own.span.len))
    }

    /// Returns the values of all nodes, each at its leader.
    pub(super) fn node_values(&mut self, start: u64, len: u64) -> Vec<RankSpan> {
        (0..self.layout.nodes()).map(|node| self.node_value(node, start, len, None)).collect()
    }

    /// Returns the rank's place for a result of the call.
    pub(super) fn at_output(rank: Rank, offset: u64, len: u64) -> RankSpan {
        RankSpan { rank, span: output(offset, len) }
    }
}
