//! Reduce_scatter: values are combined and each rank receives its part, from leaders or in one step
//! among all ranks.

use super::gather_scatter::PieceLocation;
use super::part_order::{PartHolder, PartOrder, locate};
use super::{ScheduleEmitter, input, output, segments};
use crate::builder::{RankSpan, ScratchSlot};
use crate::schedule::RankBuffer;
use core::ops::Range;

impl ScheduleEmitter<'_, '_> {
    /// Combines all vectors at the first leader, piece by piece, and distributes the parts from
    /// there.
    pub(super) fn reduce_scatter(&mut self) {
        let order = PartOrder::new(self, None);
        let rank = self.rack_leader(0);
        for piece in order.pieces(self.layout, self.segment) {
            let span = self.b.slot(rank, ScratchSlot::Total, piece.end - piece.start);
            for (run, place) in order.runs(&piece, RankBuffer::Input) {
                let goal = RankSpan { rank, span: locate(&piece, &run, span) };
                self.reduce_range(place.offset, place.len, goal);
            }
            self.disperse(&order, PartHolder::Center(0), &piece, &PieceLocation::Packed(piece.clone(), span));
        }
    }

    pub(super) fn flat_reduce_scatter(&mut self) {
        let order = PartOrder::new(self, None);
        let vector = self.call.parts(0..self.layout.size());
        let mut values = Vec::new();
        let mut parts = Vec::new();
        let mut places = Vec::new();
        for (position, rank) in order.ranks.iter().copied().enumerate() {
            let piece = order.range_of(self.layout, PartHolder::Rank(position));
            let place = order.place(&piece, RankBuffer::Input).unwrap_or(input(0, 0));
            values.push(RankSpan { rank, span: input(0, vector) });
            parts.push(place.offset..place.end());
            places.push(ScheduleEmitter::at_output(rank, 0, place.len));
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
}
