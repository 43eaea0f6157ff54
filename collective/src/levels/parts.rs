//! Operations on one part per rank: gather, scatter, allgather.
//!
//! Ranks are put in chain order (rack by rack, node by node), so that the parts of a subgroup stand side by
//! side whatever the numbering, and travel as one message. Leaders pass them on in pieces: several whole
//! parts where parts are small, segments of one part where they are large. A message that does not lie
//! side by side in the array at its end goes through a slot and is copied to its places.

use super::{Levels, input, output, segments};
use crate::builder::{Held, Slot};
use crate::layout::Layout;
use crate::patterns::{Exchange, Pattern, Subgroup};
use crate::plan::{Composition, Spread};
use crate::schedule::{Buffer, Operation, Rank, Span};
use core::ops::Range;
use std::collections::BTreeMap;

/// The same bytes of consecutive parts in chain order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    parts: Range<usize>,
    bytes: Range<u64>,
}

impl Piece {
    fn part_len(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }

    fn len(&self) -> u64 {
        self.parts.len() as u64 * self.part_len()
    }

    /// What of it belongs to these parts.
    fn within(&self, parts: &Range<usize>) -> Option<Piece> {
        let parts = self.parts.start.max(parts.start)..self.parts.end.min(parts.end);
        (!parts.is_empty()).then(|| Piece { parts, bytes: self.bytes.clone() })
    }

    /// Where `inner`, a piece of this one, is when this one is at `span`.
    fn locate(&self, inner: &Piece, span: Span) -> Span {
        span.sub((inner.parts.start - self.parts.start) as u64 * self.part_len(), inner.len())
    }
}

/// A subgroup whose leader passes parts on.
#[derive(Clone, Copy, Debug)]
enum Level {
    Node(usize),
    Rack(usize),
    /// All racks, led by the leader of this one.
    Center(usize),
}

impl Level {
    fn leader(self, layout: &Layout) -> Rank {
        match self {
            Level::Node(node) => layout.node_leader(node),
            Level::Rack(rack) | Level::Center(rack) => layout.rack_leader(rack),
        }
    }

    /// The subgroup below that has the same leader, and the others; none below a node.
    fn below(self, layout: &Layout) -> Option<(Level, Vec<Level>)> {
        match self {
            Level::Node(_) => None,
            Level::Rack(rack) => {
                let nodes = layout.nodes_of_rack(rack);
                Some((Level::Node(nodes.start), (nodes.start + 1..nodes.end).map(Level::Node).collect()))
            }
            Level::Center(home) => {
                let others = (0..layout.racks()).filter(|rack| *rack != home).map(Level::Rack).collect();
                Some((Level::Rack(home), others))
            }
        }
    }

    fn pattern(self, plan: &Composition) -> &'static Pattern {
        match self {
            Level::Node(_) => plan.node,
            Level::Rack(_) => plan.rack,
            Level::Center(_) => plan.center,
        }
    }

    fn slot(self) -> Slot {
        match self {
            Level::Node(_) => Slot::Parts(0),
            Level::Rack(_) => Slot::Parts(1),
            Level::Center(_) => Slot::Parts(2),
        }
    }
}

/// Where a piece is, or is to be, at a rank.
#[derive(Clone, Debug)]
enum Site {
    /// Side by side, with others of a larger piece, in a span.
    Packed(Piece, Span),
    /// Each part at its rank's place in an array over all ranks.
    Array(Buffer),
}

/// The chain order of the parts that travel.
struct Order {
    ranks: Vec<Rank>,
    /// For each node the positions of its ranks.
    nodes: Vec<Range<usize>>,
    part: u64,
}

impl Order {
    /// All parts but that of `without`, whose rank has it where it should be.
    fn new(layout: &Layout, part: u64, without: Option<Rank>) -> Order {
        let mut order = Order { ranks: Vec::with_capacity(layout.size()), nodes: Vec::new(), part };
        for node in 0..layout.nodes() {
            let start = order.ranks.len();
            order.ranks.extend(layout.ranks_of_node(node).iter().filter(|rank| Some(**rank) != without));
            order.nodes.push(start..order.ranks.len());
        }
        order
    }

    fn of(&self, layout: &Layout, level: Level) -> Range<usize> {
        match level {
            Level::Node(node) => self.nodes[node].clone(),
            Level::Rack(rack) => {
                let nodes = layout.nodes_of_rack(rack);
                self.nodes[nodes.start].start..self.nodes[nodes.end - 1].end
            }
            Level::Center(_) => 0..self.ranks.len(),
        }
    }

    /// All parts in pieces of at most a segment, taken from the racks in turn, so that their links work at
    /// the same time.
    fn pieces(&self, layout: &Layout, segment: u64) -> Vec<Piece> {
        let mut by_rack: Vec<Vec<Piece>> = vec![Vec::new(); layout.racks()];
        let together = segment.checked_div(self.part).map_or(self.ranks.len(), |n| n.max(1) as usize);
        let mut start = 0;
        while start < self.ranks.len() {
            let end = self.ranks.len().min(start.saturating_add(together));
            let rack = layout.rack_of(self.ranks[start]);
            by_rack[rack]
                .extend(segments(self.part, segment).map(|bytes| Piece { parts: start..end, bytes }));
            start = end;
        }
        let rounds = by_rack.iter().map(Vec::len).max().unwrap_or(0);
        (0..rounds).flat_map(|i| by_rack.iter().filter_map(move |pieces| pieces.get(i).cloned())).collect()
    }

    /// The piece as runs that stand side by side in an array over all ranks, each with its place there.
    fn runs(&self, piece: &Piece, array: Buffer) -> Vec<(Piece, Span)> {
        let mut runs: Vec<(Piece, Span)> = Vec::new();
        for position in piece.parts.clone() {
            let offset = u64::from(self.ranks[position].0) * self.part + piece.bytes.start;
            match runs.last_mut() {
                Some((run, span)) if span.end() == offset => {
                    run.parts.end = position + 1;
                    span.len += piece.part_len();
                }
                _ => runs.push((
                    Piece { parts: position..position + 1, bytes: piece.bytes.clone() },
                    Span { buffer: array, offset, len: piece.part_len() },
                )),
            }
        }
        runs
    }

    /// The piece's place in such an array, if that is one.
    fn place(&self, piece: &Piece, array: Buffer) -> Option<Span> {
        match self.runs(piece, array).as_slice() {
            [(_, span)] => Some(*span),
            _ => None,
        }
    }
}

impl Levels<'_, '_> {
    pub(super) fn gather(&mut self) {
        let (order, center) = self.rooted();
        let array = Site::Array(Buffer::Output);
        for piece in order.pieces(self.layout, self.segment) {
            if self.root_leader() == self.root {
                self.assemble(&order, center, &piece, &array);
            } else {
                let from = self.collect(&order, center, &piece);
                self.deliver(&order, self.plan.center.gather, &[(piece, from)], self.root, &array);
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
                self.hand_down(&order, self.plan.center.scatter, self.root, &[center], &piece, &array);
            }
        }
    }

    /// For an operation with a root: what travels, and the level above all others. A root that is no rack
    /// leader keeps its own part to itself, which is placed here; a rack leader's is a local step like any
    /// leader's.
    fn rooted(&mut self) -> (Order, Level) {
        let center = Level::Center(self.layout.rack_of(self.root));
        if self.root_leader() == self.root {
            return (Order::new(self.layout, self.bytes, None), center);
        }
        let own = u64::from(self.root.0) * self.bytes;
        let (src, dst) = match self.operation {
            Operation::Scatter => (input(own, self.bytes), output(0, self.bytes)),
            _ => (input(0, self.bytes), output(own, self.bytes)),
        };
        self.b.copy(self.root, src, dst);
        (Order::new(self.layout, self.bytes, Some(self.root)), center)
    }

    pub(super) fn allgather(&mut self) {
        let order = Order::new(self.layout, self.bytes, None);
        let first = self.layout.rack_leader(0);
        let mut arrivals = Arrivals::new(self.bytes * self.layout.size() as u64, self.segment);
        for piece in order.pieces(self.layout, self.segment) {
            match self.plan.spread {
                Spread::Levels => {
                    let racks: Vec<Level> = (0..self.layout.racks()).map(Level::Rack).collect();
                    self.exchange(&order, &racks, &self.leaders(), &piece);
                }
                Spread::Each => {
                    let nodes: Vec<Level> = (0..self.layout.nodes()).map(Level::Node).collect();
                    self.exchange(&order, &nodes, &self.nodes(), &piece);
                }
                Spread::Once => self.assemble(&order, Level::Center(0), &piece, &Site::Array(Buffer::Output)),
            }
            for (_, span) in order.runs(&piece, Buffer::Output) {
                for complete in arrivals.add(span) {
                    self.spread(first, complete);
                }
            }
        }
    }

    fn spread(&mut self, first: Rank, span: Span) {
        match self.plan.spread {
            Spread::Levels => self.spread_in_racks(span),
            Spread::Each => self.spread_in_nodes(span, None),
            Spread::Once => self.spread_at_once(first, span),
        }
    }

    /// Every level's leader collects its subgroup's parts and gives them to the other leaders; all have them
    /// in their outputs then.
    fn exchange(&mut self, order: &Order, levels: &[Level], group: &Subgroup, piece: &Piece) {
        let array = Site::Array(Buffer::Output);
        let mut parts = Vec::new();
        let mut held = Vec::new();
        for level in levels {
            let Some(part) = piece.within(&order.of(self.layout, *level)) else { continue };
            let rank = level.leader(self.layout);
            held.push(match order.place(&part, Buffer::Output) {
                Some(span) => {
                    self.assemble(order, *level, &part, &array);
                    Held { rank, span }
                }
                None => self.collect(order, *level, &part),
            });
            parts.push(part);
        }
        let in_place: Vec<Option<Span>> =
            parts.iter().map(|part| order.place(part, Buffer::Output)).collect();
        let mut slots: BTreeMap<(Rank, usize), Span> = BTreeMap::new();
        for (i, _) in in_place.iter().enumerate().filter(|(_, place)| place.is_none()) {
            for to in group.members.iter().copied() {
                slots.insert((to, i), self.landing(order, &parts[i], held[i], to, &array));
            }
        }
        let place = |to, i: usize| in_place[i].unwrap_or_else(|| slots[&(to, i)]);
        (self.plan.center.allgather)(self.b, group, &held, &place);
        for ((rank, i), span) in slots {
            self.unpack(order, &parts[i], Held { rank, span }, &array);
        }
    }

    /// Brings a piece of a subgroup's parts together at its leader.
    fn assemble(&mut self, order: &Order, level: Level, piece: &Piece, site: &Site) {
        let mut from = Vec::new();
        if let Some((own, others)) = level.below(self.layout) {
            if let Some(part) = piece.within(&order.of(self.layout, own)) {
                self.assemble(order, own, &part, site);
            }
            for other in others {
                if let Some(part) = piece.within(&order.of(self.layout, other)) {
                    let held = self.collect(order, other, &part);
                    from.push((part, held));
                }
            }
        } else {
            for position in piece.parts.clone() {
                let part = Piece { parts: position..position + 1, bytes: piece.bytes.clone() };
                let span = input(piece.bytes.start, piece.part_len());
                from.push((part, Held { rank: order.ranks[position], span }));
            }
        }
        let gather = level.pattern(self.plan).gather;
        self.deliver(order, gather, &from, level.leader(self.layout), site);
    }

    /// A piece of a subgroup's parts side by side at its leader: in the input, if it is the leader's alone.
    fn collect(&mut self, order: &Order, level: Level, piece: &Piece) -> Held {
        let rank = level.leader(self.layout);
        if order.ranks[piece.parts.clone()] == [rank] {
            return Held { rank, span: input(piece.bytes.start, piece.part_len()) };
        }
        let span = self.b.slot(rank, level.slot(), piece.len());
        self.assemble(order, level, piece, &Site::Packed(piece.clone(), span));
        Held { rank, span }
    }

    /// Moves pieces from where they are to their site at one rank.
    fn deliver(&mut self, order: &Order, gather: Exchange, from: &[(Piece, Held)], at: Rank, site: &Site) {
        let moves: Vec<(Held, Held)> = from
            .iter()
            .map(|(piece, held)| {
                (*held, Held { rank: at, span: self.landing(order, piece, *held, at, site) })
            })
            .collect();
        gather(self.b, &moves);
        for ((piece, _), (_, to)) in from.iter().zip(moves) {
            self.unpack(order, piece, to, site);
        }
    }

    /// Where a piece that comes from `from` is to arrive at `at`: at its site, or if it is in several places
    /// there, in a slot (or where it is, if it is there already), to be unpacked.
    fn landing(&mut self, order: &Order, piece: &Piece, from: Held, at: Rank, site: &Site) -> Span {
        match site {
            Site::Packed(whole, span) => whole.locate(piece, *span),
            Site::Array(array) => match order.place(piece, *array) {
                Some(span) => span,
                None if from.rank == at => from.span,
                None => self.b.slot(at, Slot::From(from.rank), piece.len()),
            },
        }
    }

    /// Copies a piece that did not land at its site to its places.
    fn unpack(&mut self, order: &Order, piece: &Piece, landed: Held, site: &Site) {
        let Site::Array(array) = site else { return };
        if order.place(piece, *array).is_none() {
            for (run, place) in order.runs(piece, *array) {
                self.b.copy(landed.rank, piece.locate(&run, landed.span), place);
            }
        }
    }

    /// Hands a piece that is at a leader to the subgroup's ranks.
    fn disperse(&mut self, order: &Order, level: Level, piece: &Piece, site: &Site) {
        let leader = level.leader(self.layout);
        let scatter = level.pattern(self.plan).scatter;
        if let Some((own, others)) = level.below(self.layout) {
            self.hand_down(order, scatter, leader, &others, piece, site);
            if let Some(part) = piece.within(&order.of(self.layout, own)) {
                self.disperse(order, own, &part, site);
            }
            return;
        }
        let mut moves = Vec::new();
        for position in piece.parts.clone() {
            let part = Piece { parts: position..position + 1, bytes: piece.bytes.clone() };
            let rank = order.ranks[position];
            let from = Held { rank: leader, span: self.pack(order, &part, leader, rank, site) };
            moves.push((from, Held { rank, span: output(piece.bytes.start, piece.part_len()) }));
        }
        scatter(self.b, &moves);
    }

    /// Moves what subgroups need of a piece to their leaders, who hand it on.
    fn hand_down(
        &mut self,
        order: &Order,
        scatter: Exchange,
        from: Rank,
        levels: &[Level],
        piece: &Piece,
        site: &Site,
    ) {
        let mut moves = Vec::new();
        let mut below = Vec::new();
        for level in levels {
            let Some(part) = piece.within(&order.of(self.layout, *level)) else { continue };
            let rank = level.leader(self.layout);
            let span = self.pack(order, &part, from, rank, site);
            let to = if order.ranks[part.parts.clone()] == [rank] {
                output(part.bytes.start, part.part_len())
            } else {
                let slot = self.b.slot(rank, level.slot(), part.len());
                below.push((*level, part, slot));
                slot
            };
            moves.push((Held { rank: from, span }, Held { rank, span: to }));
        }
        scatter(self.b, &moves);
        for (level, part, slot) in below {
            self.disperse(order, level, &part, &Site::Packed(part.clone(), slot));
        }
    }

    /// Where a piece lies side by side at `at`, put so in a slot if need be, before it goes to `to`.
    fn pack(&mut self, order: &Order, piece: &Piece, at: Rank, to: Rank, site: &Site) -> Span {
        let array = match site {
            Site::Packed(whole, span) => return whole.locate(piece, *span),
            Site::Array(array) => *array,
        };
        if let Some(span) = order.place(piece, array) {
            return span;
        }
        let slot = self.b.slot(at, Slot::To(to), piece.len());
        for (run, place) in order.runs(piece, array) {
            self.b.copy(at, place, piece.locate(&run, slot));
        }
        slot
    }
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
        Arrivals { lacking: segments(total, segment).map(|s| s.end - s.start).collect(), segment, total }
    }

    /// The segments that these bytes complete.
    fn add(&mut self, span: Span) -> Vec<Span> {
        let mut complete = Vec::new();
        if self.total == 0 {
            complete.push(span);
        }
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
