//! Gather and scatter: one part per rank, collected by leaders or distributed by them.
//!
//! Leaders pass parts on in pieces. If a message is not contiguous in the array at its end, it goes
//! through a slot and is copied to its places.

use super::part_order::{PartHolder, PartOrder, PartRange, PartShare, locate};
use super::{ScheduleEmitter, input, output};
use crate::builder::{RankSpan, ScratchSlot};
use crate::patterns::ExchangeFn;
use crate::plan::LevelPatterns;
use crate::schedule::{Operation, Rank, RankBuffer, Span};

/// The place of a piece at a rank.
#[derive(Clone, Debug)]
pub(super) enum PieceLocation {
    /// Contiguous in a span, with the rest of a larger piece.
    Packed(PartRange, Span),
    /// Each part at its rank's place in an array over all ranks.
    Array(RankBuffer),
}

impl ScheduleEmitter<'_, '_> {
    pub(super) fn gather(&mut self) {
        let (order, center) = self.rooted();
        let array = PieceLocation::Array(RankBuffer::Output);
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
        let array = PieceLocation::Array(RankBuffer::Input);
        for piece in order.pieces(self.layout, self.segment) {
            if self.root_leader() == self.root {
                self.disperse(&order, center, &piece, &array);
            } else {
                self.hand_down(&order, self.plan.center, self.root, vec![(center, piece)], &array);
            }
        }
    }

    /// Returns the parts that travel in an operation with a root, and the highest level. If the
    /// root is not a rack leader, its own part does not travel and is copied here; a rack leader's
    /// part is a local step like that of any leader.
    fn rooted(&mut self) -> (PartOrder, PartHolder) {
        let center = PartHolder::Center(self.layout.rack_of(self.root));
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

    fn level(&self, part: PartHolder) -> LevelPatterns {
        match part {
            PartHolder::Rank(_) | PartHolder::Node(_) => self.plan.node,
            PartHolder::Rack(_) => self.plan.rack,
            PartHolder::Center(_) => self.plan.center,
        }
    }

    /// Returns the leader of a subgroup.
    pub(super) fn leader(&self, order: &PartOrder, part: PartHolder) -> Rank {
        match part {
            PartHolder::Rank(position) => order.ranks[position],
            PartHolder::Node(node) => self.node_leader(node),
            PartHolder::Rack(rack) | PartHolder::Center(rack) => self.rack_leader(rack),
        }
    }

    /// Collects a piece of a subgroup's parts at its leader.
    pub(super) fn assemble(
        &mut self,
        order: &PartOrder,
        part: PartHolder,
        piece: &PartRange,
        location: &PieceLocation,
    ) {
        let (own, others) = order.below(self.layout, part, piece);
        if let Some((own, piece)) = own {
            self.assemble(order, own, &piece, location);
        }
        let mut from = Vec::new();
        for (other, piece) in others {
            let held = self.collect(order, other, &piece);
            from.push((piece, held));
        }
        self.deliver(order, self.level(part), &from, self.leader(order, part), location);
    }

    /// Collects a piece of a subgroup's parts at its leader and returns its place, which is the
    /// input if the piece belongs to the leader alone.
    pub(super) fn collect(&mut self, order: &PartOrder, part: PartHolder, piece: &PartRange) -> RankSpan {
        let rank = self.leader(order, part);
        if let Some(own) = order.own(piece, rank) {
            return RankSpan { rank, span: input(own.start, own.end - own.start) };
        }
        let span = self.b.slot(rank, slot(part), piece.end - piece.start);
        self.assemble(order, part, piece, &PieceLocation::Packed(piece.clone(), span));
        RankSpan { rank, span }
    }

    /// Moves pieces to their location at one rank.
    fn deliver(
        &mut self,
        order: &PartOrder,
        level: LevelPatterns,
        from: &[(PartRange, RankSpan)],
        at: Rank,
        location: &PieceLocation,
    ) {
        let mut moves = Vec::new();
        for (piece, held) in from {
            moves.push((*held, RankSpan { rank: at, span: self.landing(order, piece, *held, at, location) }));
        }
        self.exchange_by(|| level.up.gather(), &moves);
        for ((piece, _), (_, to)) in from.iter().zip(moves) {
            self.unpack(order, piece, to, location);
        }
    }

    /// Exchanges by a pattern, or one by one if no bytes leave their rank.
    fn exchange_by(&mut self, exchange: impl FnOnce() -> ExchangeFn, moves: &[(RankSpan, RankSpan)]) {
        if moves.iter().any(|(from, to)| from.rank != to.rank) {
            exchange()(self.b, moves);
        } else {
            moves.iter().for_each(|(from, to)| self.b.send(*from, *to));
        }
    }

    /// Returns where a piece from `from` must arrive at `at`: at its location if that is contiguous
    /// there. Otherwise it arrives in a slot, or stays where it is if it is at `at` already, and
    /// must be unpacked.
    pub(super) fn landing(
        &mut self,
        order: &PartOrder,
        piece: &PartRange,
        from: RankSpan,
        at: Rank,
        location: &PieceLocation,
    ) -> Span {
        match location {
            PieceLocation::Packed(whole, span) => locate(whole, piece, *span),
            PieceLocation::Array(array) => match order.place(piece, *array) {
                Some(span) => span,
                None if from.rank == at => from.span,
                None => self.b.slot(at, ScratchSlot::Landing(from.rank), piece.end - piece.start),
            },
        }
    }

    /// Copies a piece that did not arrive at its location to its places.
    pub(super) fn unpack(
        &mut self,
        order: &PartOrder,
        piece: &PartRange,
        landed: RankSpan,
        location: &PieceLocation,
    ) {
        let PieceLocation::Array(array) = location else { return };
        if order.place(piece, *array).is_none() {
            for (run, place) in order.runs(piece, *array) {
                self.b.copy(landed.rank, locate(piece, &run, landed.span), place);
            }
        }
    }

    /// Distributes a piece from a leader to the ranks of its subgroup.
    pub(super) fn disperse(
        &mut self,
        order: &PartOrder,
        part: PartHolder,
        piece: &PartRange,
        location: &PieceLocation,
    ) {
        let (own, others) = order.below(self.layout, part, piece);
        self.hand_down(order, self.level(part), self.leader(order, part), others, location);
        if let Some((own, piece)) = own {
            self.disperse(order, own, &piece, location);
        }
    }

    /// Moves pieces to the leaders of their subgroups, which distribute them.
    fn hand_down(
        &mut self,
        order: &PartOrder,
        level: LevelPatterns,
        from: Rank,
        pieces: Vec<PartShare>,
        location: &PieceLocation,
    ) {
        let mut moves = Vec::new();
        let mut below = Vec::new();
        for (part, piece) in pieces {
            let rank = self.leader(order, part);
            let span = self.pack(order, &piece, from, rank, location);
            let to = match order.own(&piece, rank) {
                Some(own) => output(own.start, own.end - own.start),
                None => {
                    let slot = self.b.slot(rank, slot(part), piece.end - piece.start);
                    below.push((part, piece, slot));
                    slot
                }
            };
            moves.push((RankSpan { rank: from, span }, RankSpan { rank, span: to }));
        }
        self.exchange_by(|| level.down.scatter(), &moves);
        for (part, piece, slot) in below {
            self.disperse(order, part, &piece, &PieceLocation::Packed(piece.clone(), slot));
        }
    }

    /// Returns a contiguous place of a piece at `at` before it is sent to `to`. The piece is copied
    /// into a slot if necessary.
    fn pack(
        &mut self,
        order: &PartOrder,
        piece: &PartRange,
        at: Rank,
        to: Rank,
        location: &PieceLocation,
    ) -> Span {
        let array = match location {
            PieceLocation::Packed(whole, span) => return locate(whole, piece, *span),
            PieceLocation::Array(array) => *array,
        };
        if let Some(span) = order.place(piece, array) {
            return span;
        }
        let slot = self.b.slot(at, ScratchSlot::To(to), piece.end - piece.start);
        for (run, place) in order.runs(piece, array) {
            self.b.copy(at, place, locate(piece, &run, slot));
        }
        slot
    }
}

fn slot(part: PartHolder) -> ScratchSlot {
    ScratchSlot::Parts(match part {
        PartHolder::Rank(_) | PartHolder::Node(_) => 0,
        PartHolder::Rack(_) => 1,
        PartHolder::Center(_) => 2,
    })
}
