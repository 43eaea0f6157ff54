//! Allgather: leaders collect the parts of their subgroups and exchange them, and complete segments
//! are passed on to the ranks below.

use super::gather_scatter::PieceLocation;
use super::part_order::{PartHolder, PartOrder, PartRange};
use super::{ScheduleEmitter, output, segments};
use crate::builder::RankSpan;
use crate::patterns::Subgroup;
use crate::plan::{LevelPatterns, Spread};
use crate::schedule::{Rank, RankBuffer, Span};
use core::ops::Range;
use std::collections::BTreeMap;

impl ScheduleEmitter<'_, '_> {
    pub(super) fn allgather(&mut self) {
        let order = PartOrder::new(self, None);
        let mut arrivals = SegmentArrivals::new(order.total(), self.segment);
        if self.plan.spread == Spread::Once {
            for piece in order.pieces(self.layout, self.segment) {
                let array = PieceLocation::Array(RankBuffer::Output);
                self.assemble(&order, PartHolder::Center(0), &piece, &array);
                self.pass_on(&order, &[piece], &mut arrivals);
            }
            return;
        }
        let (level, group, members) = self.exchangers(&order);
        let ranges: Vec<PartRange> = members.iter().map(|part| order.range_of(self.layout, *part)).collect();
        let longest = ranges.iter().map(|range| range.end - range.start).max().unwrap_or(0);
        for s in segments(longest, self.segment_of_parts(longest, members.len())) {
            let pieces: Vec<PartRange> = ranges
                .iter()
                .map(|all| all.end.min(all.start + s.start)..all.end.min(all.start + s.end))
                .collect();
            self.exchange(&order, level, &members, &group, &pieces);
            self.pass_on(&order, &pieces, &mut arrivals);
        }
    }

    /// Returns the members that exchange parts, and their patterns. They belong to the highest
    /// level with more than one member.
    fn exchangers(&self, order: &PartOrder) -> (LevelPatterns, Subgroup, Vec<PartHolder>) {
        let nodes = (0..self.layout.nodes()).map(PartHolder::Node).collect();
        if self.is_flat() {
            let ranks = (0..order.ranks.len()).map(PartHolder::Rank).collect();
            (self.plan.node, self.ranks_of_node(0), ranks)
        } else if self.plan.spread == Spread::Each {
            (self.plan.center, self.nodes(), nodes)
        } else if self.layout.racks() > 1 {
            (self.plan.center, self.leaders(), (0..self.layout.racks()).map(PartHolder::Rack).collect())
        } else {
            (self.plan.rack, self.rack(0), nodes)
        }
    }

    /// Passes segments that have arrived at all levels above on to those below.
    fn pass_on(&mut self, order: &PartOrder, pieces: &[PartRange], arrivals: &mut SegmentArrivals) {
        let first = self.rack_leader(0);
        for (_, span) in pieces.iter().flat_map(|piece| order.runs(piece, RankBuffer::Output)) {
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

    /// Each leader collects the parts of its subgroup and sends them to the other leaders.
    /// Afterwards all leaders have them in their outputs.
    fn exchange(
        &mut self,
        order: &PartOrder,
        level: LevelPatterns,
        members: &[PartHolder],
        group: &Subgroup,
        pieces: &[PartRange],
    ) {
        let array = PieceLocation::Array(RankBuffer::Output);
        let mut held = Vec::new();
        for (member, piece) in members.iter().zip(pieces) {
            let rank = self.leader(order, *member);
            held.push(match order.place(piece, RankBuffer::Output) {
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
            pieces.iter().map(|piece| order.place(piece, RankBuffer::Output)).collect();
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
}

/// Tracks which segments of an array over all ranks are complete.
struct SegmentArrivals {
    /// Bytes that are missing in each segment.
    missing: Vec<u64>,
    segment: u64,
    total: u64,
}

impl SegmentArrivals {
    fn new(total: u64, segment: u64) -> SegmentArrivals {
        let missing = segments(total, segment).map(|s: Range<u64>| s.end - s.start).collect();
        SegmentArrivals { missing, segment, total }
    }

    /// Records bytes that arrived. Returns the segments that they complete.
    fn add(&mut self, span: Span) -> Vec<Span> {
        let mut complete = Vec::new();
        let mut at = span.offset;
        while at < span.end() {
            let index = at / self.segment;
            let start = index * self.segment;
            let end = self.total.min(start + self.segment);
            let missing = &mut self.missing[index as usize];
            *missing -= span.end().min(end) - at;
            if *missing == 0 {
                complete.push(output(start, end - start));
            }
            at = end;
        }
        complete
    }
}
