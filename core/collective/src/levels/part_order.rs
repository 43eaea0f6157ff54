//! The parts of all ranks end to end in chain order (rack by rack, node by node). Parts of a
//! subgroup are then contiguous, whatever the numbering of ranks, and travel as one message. A
//! piece is a range of these bytes.

use super::{ScheduleEmitter, segments};
use crate::layout::Layout;
use crate::schedule::{Rank, RankBuffer, Span};
use core::ops::Range;

/// A range of the bytes of all parts in chain order.
pub(super) type PartRange = Range<u64>;

/// A subgroup with a leader that passes parts on.
#[derive(Clone, Copy, Debug)]
pub(super) enum PartHolder {
    /// One rank, by its position.
    Rank(usize),
    Node(usize),
    Rack(usize),
    /// All racks, led by the leader of this one.
    Center(usize),
}

/// A subgroup, and the piece that belongs to it.
pub(super) type PartShare = (PartHolder, PartRange);

/// The parts that travel.
pub(super) struct PartOrder {
    pub(super) ranks: Vec<Rank>,
    /// The start of each position's part, and the end of the last one.
    starts: Vec<u64>,
    /// The offset of each position's part in an array over all ranks.
    places: Vec<u64>,
    /// For each node the positions of its ranks.
    nodes: Vec<Range<usize>>,
}

impl PartOrder {
    /// Returns the order of all parts except that of `without`, which is in place already.
    pub(super) fn new(emitter: &ScheduleEmitter<'_, '_>, without: Option<Rank>) -> PartOrder {
        let ScheduleEmitter { layout, call, .. } = emitter;
        let offsets = offsets((0..layout.size() as u32).map(|rank| call.part(Rank(rank))));
        let mut order =
            PartOrder { ranks: Vec::new(), starts: vec![0], places: Vec::new(), nodes: Vec::new() };
        let mut end = 0;
        for node in 0..layout.nodes() {
            let first = order.ranks.len();
            for rank in layout.ranks_of_node(node).iter().filter(|rank| Some(**rank) != without) {
                end += call.part(*rank);
                order.ranks.push(*rank);
                order.starts.push(end);
                order.places.push(offsets[rank.0 as usize]);
            }
            order.nodes.push(first..order.ranks.len());
        }
        order
    }

    pub(super) fn total(&self) -> u64 {
        self.starts[self.ranks.len()]
    }

    /// Splits a piece of a subgroup. Returns the share of the subgroup below with the same leader,
    /// if one exists, and the shares of the others.
    pub(super) fn below(
        &self,
        layout: &Layout,
        part: PartHolder,
        piece: &PartRange,
    ) -> (Option<PartShare>, Vec<PartShare>) {
        let share = |part| Some((part, within(piece, &self.range_of(layout, part))?));
        match part {
            PartHolder::Rank(_) | PartHolder::Node(_) => {
                let ranks = self.parts(piece).map(|(position, bytes, _)| (PartHolder::Rank(position), bytes));
                (None, ranks.collect())
            }
            PartHolder::Rack(rack) => {
                let nodes = layout.nodes_of_rack(rack);
                let others = (nodes.start + 1..nodes.end).map(PartHolder::Node);
                (share(PartHolder::Node(nodes.start)), others.filter_map(share).collect())
            }
            PartHolder::Center(home) => {
                let others = (0..layout.racks()).filter(|rack| *rack != home).map(PartHolder::Rack);
                (share(PartHolder::Rack(home)), others.filter_map(share).collect())
            }
        }
    }

    /// Returns the bytes of a rank's own part that a piece consists of, or `None` if the piece
    /// includes other parts.
    pub(super) fn own(&self, piece: &PartRange, rank: Rank) -> Option<Range<u64>> {
        let mut parts = self.parts(piece);
        match (parts.next(), parts.next()) {
            (Some((position, bytes, start)), None) if self.ranks[position] == rank => {
                Some(bytes.start - start..bytes.end - start)
            }
            _ => None,
        }
    }

    /// Returns the bytes of a subgroup.
    pub(super) fn range_of(&self, layout: &Layout, part: PartHolder) -> PartRange {
        let positions = match part {
            PartHolder::Rank(position) => position..position + 1,
            PartHolder::Node(node) => self.nodes[node].clone(),
            PartHolder::Rack(rack) => {
                let nodes = layout.nodes_of_rack(rack);
                self.nodes[nodes.start].start..self.nodes[nodes.end - 1].end
            }
            PartHolder::Center(_) => 0..self.ranks.len(),
        };
        self.starts[positions.start]..self.starts[positions.end]
    }

    /// Returns all bytes in pieces of at most a segment. Small racks share a piece; larger ones
    /// take turns, so that their links work at the same time.
    pub(super) fn pieces(&self, layout: &Layout, segment: u64) -> Vec<PartRange> {
        let mut ranges: Vec<PartRange> = Vec::new();
        for rack in 0..layout.racks() {
            let range = self.range_of(layout, PartHolder::Rack(rack));
            match ranges.last_mut() {
                Some(last) if range.end - last.start <= segment => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        let cut = |all: &PartRange| -> Vec<PartRange> {
            let pieces = segments(all.end - all.start, segment);
            pieces.map(|piece| all.start + piece.start..all.start + piece.end).collect()
        };
        let in_turn: Vec<Vec<PartRange>> = ranges.iter().map(cut).collect();
        let rounds = in_turn.iter().map(Vec::len).max().unwrap_or(0);
        (0..rounds)
            .flat_map(|i| in_turn.iter().filter_map(move |pieces| pieces.get(i).cloned()))
            .filter(|piece| !piece.is_empty())
            .collect()
    }

    /// Returns the positions with bytes in a piece, each with those bytes and the start of its
    /// part.
    pub(super) fn parts(&self, piece: &PartRange) -> impl Iterator<Item = (usize, PartRange, u64)> {
        let (start, end) = (piece.start, piece.end);
        let first = self.starts.partition_point(|at| *at <= start).saturating_sub(1);
        (first..self.ranks.len())
            .take_while(move |position| self.starts[*position] < end)
            .map(move |position| {
                let part = self.starts[position]..self.starts[position + 1];
                (position, start.max(part.start)..end.min(part.end), part.start)
            })
            .filter(|(_, bytes, _)| !bytes.is_empty())
    }

    /// Returns the piece as runs that are contiguous in an array over all ranks, each with its
    /// place there.
    pub(super) fn runs(&self, piece: &PartRange, array: RankBuffer) -> Vec<(PartRange, Span)> {
        let mut runs: Vec<(PartRange, Span)> = Vec::new();
        for (position, bytes, start) in self.parts(piece) {
            let len = bytes.end - bytes.start;
            let offset = self.places[position] + bytes.start - start;
            match runs.last_mut() {
                Some((run, span)) if span.end() == offset => {
                    run.end = bytes.end;
                    span.len += len;
                }
                _ => runs.push((bytes, Span { buffer: array, offset, len })),
            }
        }
        runs
    }

    /// Returns the piece's place in such an array, or `None` if it is not contiguous there.
    pub(super) fn place(&self, piece: &PartRange, array: RankBuffer) -> Option<Span> {
        match self.runs(piece, array).as_slice() {
            [] => Some(Span { buffer: array, offset: 0, len: 0 }),
            [(_, span)] => Some(*span),
            _ => None,
        }
    }
}

/// Returns the bytes of a piece that belong to a subgroup.
fn within(piece: &PartRange, part: &PartRange) -> Option<PartRange> {
    let both = piece.start.max(part.start)..piece.end.min(part.end);
    (!both.is_empty()).then_some(both)
}

/// Returns the place of `inner` if `whole`, which must contain it, is at `span`.
pub(super) fn locate(whole: &PartRange, inner: &PartRange, span: Span) -> Span {
    span.sub(inner.start - whole.start, inner.end - inner.start)
}

/// Returns the start of each part, for parts of these lengths end to end, and the end of the last
/// one.
pub(super) fn offsets(lens: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut offsets = vec![0];
    offsets.extend(lens.scan(0, |end, len| {
        *end += len;
        Some(*end)
    }));
    offsets
}
