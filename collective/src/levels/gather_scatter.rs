//! Operations on one part per rank: gather, scatter, allgather, reduce_scatter.
//!
//! Leaders pass parts on in pieces. A message that does not lie side by side in the array at its end goes
//! through a slot and is copied to its places.

use super::part_order::{Part, PartOrder, Piece, locate, within};
use super::{Levels, input, output, segments};
use crate::builder::{RankSpan, Slot};
use crate::patterns::{Exchange, Subgroup};
use crate::plan::{Level, Spread};
use crate::schedule::{Buffer, Operation, Rank, Span};
use cool_types::limits;
use core::ops::Range;
use std::collections::BTreeMap;

/// Where a piece is, or is to be, at a rank.
#[derive(Clone, Debug)]
enum Site {
    /// Side by side, with others of a larger piece, in a span.
    Packed(Piece, Span),
    /// Each part at its rank's place in an array over all ranks.
    Array(Buffer),
}

impl Levels<'_, '_> {
    fn leader(&self, order: &PartOrder, part: Part) -> Rank {
        match part {
            Part::Rank(position) => order.ranks[position],
            Part::Node(node) => self.node_leader(node),
            Part::Rack(rack) | Part::Center(rack) => self.rack_leader(rack),
        }
    }

    /// The subgroup below that has the same leader, and the others; none below a node.
    fn below(&self, part: Part) -> Option<(Part, Vec<Part>)> {
        match part {
            Part::Rank(_) | Part::Node(_) => None,
            Part::Rack(rack) => {
                let nodes = self.layout.nodes_of_rack(rack);
                Some((Part::Node(nodes.start), (nodes.start + 1..nodes.end).map(Part::Node).collect()))
            }
            Part::Center(home) => {
                let others = (0..self.layout.racks()).filter(|rack| *rack != home).map(Part::Rack).collect();
                Some((Part::Rack(home), others))
            }
        }
    }

    fn level(&self, part: Part) -> Level {
        match part {
            Part::Rank(_) | Part::Node(_) => self.plan.node,
            Part::Rack(_) => self.plan.rack,
            Part::Center(_) => self.plan.center,
        }
    }

    pub(super) fn gather(&mut self) {
        let (order, center) = self.rooted();
        let array = Site::Array(Buffer::Output);
        for piece in order.pieces(self.layout, self.segment) {
            if self.root_leader() == self.root {
                self.assemble(&order, center, &piece, &array);
            } else {
                let from = self.collect(&order, center, &piece);
                self.deliver(&order, self.plan.center, &[(piece, from)], self.root, &array);
            }
        }
    }

    pub(super) fn scatter(&mut self) {
        let (order, center) = self.rooted();
        let array = Site::Array(Buffer::Input);
        for piece in order.pieces(self.layout, self.segment) {
            if self.root_leader() == self.root {
                self.disperse(&order, center, &piece, &array);
            } else {
                self.hand_down(&order, self.plan.center.down.scatter(), self.root, &[center], &piece, &array);
            }
        }
    }

    /// For an operation with a root: what travels, and the level above all others. A root that is no rack
    /// leader keeps its own part to itself, which is placed here; a rack leader's is a local step like any
    /// leader's.
    fn rooted(&mut self) -> (PartOrder, Part) {
        let center = Part::Center(self.layout.rack_of(self.root));
        if self.root_leader() == self.root {
            return (PartOrder::new(self, None), center);
        }
        let len = self.call.part(self.root);
        let own = self.call.parts(0..self.root.0 as usize);
        let (src, dst) = match self.call.operation {
            Operation::Scatter => (input(own, len), output(0, len)),
            _ => (input(0, len), output(own, len)),
        };
        self.b.copy(self.root, src, dst);
        (PartOrder::new(self, Some(self.root)), center)
    }

    /// All vectors combined at the first leader, piece by piece, who hands the parts on.
    pub(super) fn reduce_scatter(&mut self) {
        let order = PartOrder::new(self, None);
        let rank = self.rack_leader(0);
        for piece in order.pieces(self.layout, self.segment) {
            let span = self.b.slot(rank, Slot::Total, piece.end - piece.start);
            for (run, place) in order.runs(&piece, Buffer::Input) {
                let goal = RankSpan { rank, span: locate(&piece, &run, span) };
                self.reduce_range(place.offset, place.len, goal);
            }
            self.disperse(&order, Part::Center(0), &piece, &Site::Packed(piece.clone(), span));
        }
    }

    pub(super) fn flat_reduce_scatter(&mut self) {
        let order = PartOrder::new(self, None);
        let vector = self.call.parts(0..self.layout.size());
        let mut values = Vec::new();
        let mut parts = Vec::new();
        let mut places = Vec::new();
        for (position, rank) in order.ranks.iter().copied().enumerate() {
            let piece = order.of(self.layout, Part::Rank(position));
            let place = order.place(&piece, Buffer::Input).unwrap_or(input(0, 0));
            values.push(RankSpan { rank, span: input(0, vector) });
            parts.push(place.offset..place.end());
            places.push(Levels::at_output(rank, 0, place.len));
        }
        if let [only] = values.as_slice() {
            return self.b.send(*only, places[0]);
        }
        let longest = parts.iter().map(|part| part.end - part.start).max().unwrap_or(0);
        for s in segments(longest, self.segment_of_parts(longest, parts.len())) {
            let cut = |end: u64, start: u64| end.min(start + s.start)..end.min(start + s.end);
            let parts: Vec<Range<u64>> = parts.iter().map(|part| cut(part.end, part.start)).collect();
            let at = |place: &RankSpan| cut(place.span.end(), place.span.offset);
            let places: Vec<RankSpan> = places
                .iter()
                .map(|place| RankSpan {
                    span: output(at(place).start, at(place).end - at(place).start),
                    ..*place
                })
                .collect();
            self.plan.node.up.reduce_scatter()(self.b, &values, &parts, &places);
        }
    }

    /// How much of each member's part is one segment, where the longest part is this long.
    fn segment_of_parts(&self, longest: u64, members: usize) -> u64 {
        if !(self.is_flat() && self.plan.node.up.shares) {
            return self.segment;
        }
        let share = (self.segment / members as u64).max(longest.div_ceil(limits::SEGMENTS)).max(1);
        share.next_multiple_of(self.element)
    }

    pub(super) fn allgather(&mut self) {
        let order = PartOrder::new(self, None);
        let mut arrivals = Arrivals::new(order.total(), self.segment);
        if self.plan.spread == Spread::Once {
            for piece in order.pieces(self.layout, self.segment) {
                self.assemble(&order, Part::Center(0), &piece, &Site::Array(Buffer::Output));
                self.pass_on(&order, &[piece], &mut arrivals);
            }
            return;
        }
        let (level, group, members) = self.exchangers(&order);
        let ranges: Vec<Piece> = members.iter().map(|part| order.of(self.layout, *part)).collect();
        let longest = ranges.iter().map(|range| range.end - range.start).max().unwrap_or(0);
        for s in segments(longest, self.segment_of_parts(longest, members.len())) {
            let pieces: Vec<Piece> = ranges
                .iter()
                .map(|all| all.end.min(all.start + s.start)..all.end.min(all.start + s.end))
                .collect();
            self.exchange(&order, level, &members, &group, &pieces);
            self.pass_on(&order, &pieces, &mut arrivals);
        }
    }

    /// Who exchanges parts in an allgather, and by which patterns: the highest level that has several.
    fn exchangers(&self, order: &PartOrder) -> (Level, Subgroup, Vec<Part>) {
        let nodes = (0..self.layout.nodes()).map(Part::Node).collect();
        if self.is_flat() {
            let ranks = (0..order.ranks.len()).map(Part::Rank).collect();
            (self.plan.node, self.ranks_of_node(0), ranks)
        } else if self.plan.spread == Spread::Each {
            (self.plan.center, self.nodes(), nodes)
        } else if self.layout.racks() > 1 {
            (self.plan.center, self.leaders(), (0..self.layout.racks()).map(Part::Rack).collect())
        } else {
            (self.plan.rack, self.rack(0), nodes)
        }
    }

    /// What has arrived where all levels above have it goes on to those below.
    fn pass_on(&mut self, order: &PartOrder, pieces: &[Piece], arrivals: &mut Arrivals) {
        let first = self.rack_leader(0);
        for (_, span) in pieces.iter().flat_map(|piece| order.runs(piece, Buffer::Output)) {
            for complete in arrivals.add(span) {
                match self.plan.spread {
                    _ if self.is_flat() => {}
                    Spread::Levels if self.layout.racks() > 1 => self.spread_in_racks(complete),
                    Spread::Levels | Spread::Each => self.spread_in_nodes(complete, None),
                    Spread::Once => self.spread_at_once(first, complete),
                }
            }
        }
    }

    /// Every member's leader collects its subgroup's parts and gives them to the other leaders; all have them
    /// in their outputs then.
    fn exchange(
        &mut self,
        order: &PartOrder,
        level: Level,
        members: &[Part],
        group: &Subgroup,
        pieces: &[Piece],
    ) {
        let array = Site::Array(Buffer::Output);
        let mut held = Vec::new();
        for (member, piece) in members.iter().zip(pieces) {
            let rank = self.leader(order, *member);
            held.push(match order.place(piece, Buffer::Output) {
                Some(span) => {
                    if !piece.is_empty() {
                        self.assemble(order, *member, piece, &array);
                    }
                    RankSpan { rank, span }
                }
                None => self.collect(order, *member, piece),
            });
        }
        let in_place: Vec<Option<Span>> =
            pieces.iter().map(|piece| order.place(piece, Buffer::Output)).collect();
        let mut slots: BTreeMap<(Rank, usize), Span> = BTreeMap::new();
        for (i, _) in in_place.iter().enumerate().filter(|(_, place)| place.is_none()) {
            for to in group.members.iter().copied() {
                slots.insert((to, i), self.landing(order, &pieces[i], held[i], to, &array));
            }
        }
        let place = |to, i: usize| in_place[i].unwrap_or_else(|| slots[&(to, i)]);
        match level.up.allgather {
            _ if held.len() == 1 => {}
            Some(allgather) => allgather(self.b, group, &held, &place),
            None => {
                for (i, part) in held.iter().enumerate() {
                    self.bcast_by(level.down, group, *part, &|to| place(to, i));
                }
            }
        }
        for ((rank, i), span) in slots {
            self.unpack(order, &pieces[i], RankSpan { rank, span }, &array);
        }
    }

    /// Brings a piece of a subgroup's parts together at its leader.
    fn assemble(&mut self, order: &PartOrder, part: Part, piece: &Piece, site: &Site) {
        let mut from = Vec::new();
        if let Some((own, others)) = self.below(part) {
            if let Some(piece) = within(piece, &order.of(self.layout, own)) {
                self.assemble(order, own, &piece, site);
            }
            for other in others {
                if let Some(piece) = within(piece, &order.of(self.layout, other)) {
                    let held = self.collect(order, other, &piece);
                    from.push((piece, held));
                }
            }
        } else {
            for (position, bytes, start) in order.parts(piece) {
                let span = input(bytes.start - start, bytes.end - bytes.start);
                from.push((bytes, RankSpan { rank: order.ranks[position], span }));
            }
        }
        self.deliver(order, self.level(part), &from, self.leader(order, part), site);
    }

    /// A piece of a subgroup's parts side by side at its leader: in the input, if it is the leader's alone.
    fn collect(&mut self, order: &PartOrder, part: Part, piece: &Piece) -> RankSpan {
        let rank = self.leader(order, part);
        let mut parts = order.parts(piece);
        if let (Some((position, bytes, start)), None) = (parts.next(), parts.next())
            && order.ranks[position] == rank
        {
            return RankSpan { rank, span: input(bytes.start - start, bytes.end - bytes.start) };
        }
        drop(parts);
        let span = self.b.slot(rank, slot(part), piece.end - piece.start);
        self.assemble(order, part, piece, &Site::Packed(piece.clone(), span));
        RankSpan { rank, span }
    }

    /// Moves pieces from where they are to their site at one rank.
    fn deliver(
        &mut self,
        order: &PartOrder,
        level: Level,
        from: &[(Piece, RankSpan)],
        at: Rank,
        site: &Site,
    ) {
        let moves: Vec<(RankSpan, RankSpan)> = from
            .iter()
            .map(|(piece, held)| {
                (*held, RankSpan { rank: at, span: self.landing(order, piece, *held, at, site) })
            })
            .collect();
        if moves.iter().any(|(from, _)| from.rank != at) {
            level.up.gather()(self.b, &moves);
        } else {
            moves.iter().for_each(|(from, to)| self.b.send(*from, *to));
        }
        for ((piece, _), (_, to)) in from.iter().zip(moves) {
            self.unpack(order, piece, to, site);
        }
    }

    /// Where a piece that comes from `from` is to arrive at `at`: at its site, or if it is in several places
    /// there, in a slot (or where it is, if it is there already), to be unpacked.
    fn landing(&mut self, order: &PartOrder, piece: &Piece, from: RankSpan, at: Rank, site: &Site) -> Span {
        match site {
            Site::Packed(whole, span) => locate(whole, piece, *span),
            Site::Array(array) => match order.place(piece, *array) {
                Some(span) => span,
                None if from.rank == at => from.span,
                None => self.b.slot(at, Slot::Landing(from.rank), piece.end - piece.start),
            },
        }
    }

    /// Copies a piece that did not land at its site to its places.
    fn unpack(&mut self, order: &PartOrder, piece: &Piece, landed: RankSpan, site: &Site) {
        let Site::Array(array) = site else { return };
        if order.place(piece, *array).is_none() {
            for (run, place) in order.runs(piece, *array) {
                self.b.copy(landed.rank, locate(piece, &run, landed.span), place);
            }
        }
    }

    /// Hands a piece that is at a leader to the subgroup's ranks.
    fn disperse(&mut self, order: &PartOrder, part: Part, piece: &Piece, site: &Site) {
        let leader = self.leader(order, part);
        let scatter = self.level(part).down.scatter();
        if let Some((own, others)) = self.below(part) {
            self.hand_down(order, scatter, leader, &others, piece, site);
            if let Some(piece) = within(piece, &order.of(self.layout, own)) {
                self.disperse(order, own, &piece, site);
            }
            return;
        }
        let mut moves = Vec::new();
        for (position, bytes, start) in order.parts(piece) {
            let rank = order.ranks[position];
            let from = RankSpan { rank: leader, span: self.pack(order, &bytes, leader, rank, site) };
            moves.push((from, Levels::at_output(rank, bytes.start - start, bytes.end - bytes.start)));
        }
        self.scatter_by(scatter, &moves);
    }

    fn scatter_by(&mut self, scatter: Exchange, moves: &[(RankSpan, RankSpan)]) {
        if moves.iter().any(|(from, to)| from.rank != to.rank) {
            scatter(self.b, moves);
        } else {
            moves.iter().for_each(|(from, to)| self.b.send(*from, *to));
        }
    }

    /// Moves what subgroups need of a piece to their leaders, who hand it on.
    fn hand_down(
        &mut self,
        order: &PartOrder,
        scatter: Exchange,
        from: Rank,
        parts: &[Part],
        piece: &Piece,
        site: &Site,
    ) {
        let mut moves = Vec::new();
        let mut below = Vec::new();
        for part in parts {
            let Some(piece) = within(piece, &order.of(self.layout, *part)) else { continue };
            let rank = self.leader(order, *part);
            let span = self.pack(order, &piece, from, rank, site);
            let mut owners = order.parts(&piece);
            let to = match (owners.next(), owners.next()) {
                (Some((position, bytes, start)), None) if order.ranks[position] == rank => {
                    output(bytes.start - start, bytes.end - bytes.start)
                }
                _ => {
                    drop(owners);
                    let slot = self.b.slot(rank, slot(*part), piece.end - piece.start);
                    below.push((*part, piece.clone(), slot));
                    slot
                }
            };
            moves.push((RankSpan { rank: from, span }, RankSpan { rank, span: to }));
        }
        self.scatter_by(scatter, &moves);
        for (part, piece, slot) in below {
            self.disperse(order, part, &piece, &Site::Packed(piece.clone(), slot));
        }
    }

    /// Where a piece lies side by side at `at`, put so in a slot if need be, before it goes to `to`.
    fn pack(&mut self, order: &PartOrder, piece: &Piece, at: Rank, to: Rank, site: &Site) -> Span {
        let array = match site {
            Site::Packed(whole, span) => return locate(whole, piece, *span),
            Site::Array(array) => *array,
        };
        if let Some(span) = order.place(piece, array) {
            return span;
        }
        let slot = self.b.slot(at, Slot::To(to), piece.end - piece.start);
        for (run, place) in order.runs(piece, array) {
            self.b.copy(at, place, locate(piece, &run, slot));
        }
        slot
    }
}

fn slot(part: Part) -> Slot {
    Slot::Parts(match part {
        Part::Rank(_) | Part::Node(_) => 0,
        Part::Rack(_) => 1,
        Part::Center(_) => 2,
    })
}

/// Which segments of an array over all ranks have arrived in full.
struct Arrivals {
    /// Bytes that a segment still lacks.
    lacking: Vec<u64>,
    segment: u64,
    total: u64,
}

impl Arrivals {
    fn new(total: u64, segment: u64) -> Arrivals {
        let lacking = segments(total, segment).map(|s: Range<u64>| s.end - s.start).collect();
        Arrivals { lacking, segment, total }
    }

    /// The segments that these bytes complete.
    fn add(&mut self, span: Span) -> Vec<Span> {
        let mut complete = Vec::new();
        let mut at = span.offset;
        while at < span.end() {
            let index = at / self.segment;
            let start = index * self.segment;
            let end = self.total.min(start + self.segment);
            let lacking = &mut self.lacking[index as usize];
            *lacking -= span.end().min(end) - at;
            if *lacking == 0 {
                complete.push(output(start, end - start));
            }
            at = end;
        }
        complete
    }
}
