//! Allgather: leaders collect their subgroups' parts and exchange them, and what is complete goes on to the ranks below, segment
//! by segment.

use super::gather_scatter::Site;
use super::part_order::{Part, PartOrder, Piece};
use super::{Levels, output, segments};
use crate::builder::RankSpan;
use crate::patterns::Subgroup;
use crate::plan::{Level, Spread};
use crate::schedule::{Buffer, Rank, Span};
use core::ops::Range;
use std::collections::BTreeMap;

impl Levels<'_, '_> {
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
