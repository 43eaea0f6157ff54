//! Scan and exscan, in rank order. Consecutive ranks of one rack form a run. Each run scans its
//! values, the totals of the runs are scanned, and each run adds the total of the runs before it.
//! If ranks alternate between racks, runs are short, and the pattern across racks does all the
//! work.

use super::{ScheduleEmitter, input, output, segments};
use crate::builder::{RankSpan, ScratchSlot};
use crate::patterns::Subgroup;
use crate::schedule::{Rank, Span};
use core::ops::Range;

impl ScheduleEmitter<'_, '_> {
    pub(super) fn scan(&mut self, exclusive: bool) {
        let runs = self.runs();
        let longest = runs.iter().map(Vec::len).max().unwrap_or(0);
        for s in segments(self.bytes, self.segment) {
            if runs.len() == 1 || longest == 1 {
                let level = match runs.len() {
                    _ if self.is_flat() => self.plan.node,
                    1 => self.plan.rack,
                    _ => self.plan.center,
                };
                let ranks: Vec<Rank> = runs.concat();
                let values: Vec<RankSpan> =
                    ranks.iter().map(|rank| held(*rank, input(s.start, s.end - s.start))).collect();
                let places: Vec<RankSpan> =
                    ranks.iter().map(|rank| held(*rank, output(s.start, s.end - s.start))).collect();
                match (values.as_slice(), exclusive) {
                    ([_], true) => {}
                    ([only], false) => self.b.send(*only, places[0]),
                    _ => level.up.scan()(self.b, &values, exclusive, &places),
                }
            } else {
                self.scan_runs(&runs, &s, exclusive);
            }
        }
    }

    /// Returns the runs: consecutive ranks of one rack, or all ranks if the plan has one level.
    fn runs(&self) -> Vec<Vec<Rank>> {
        let mut runs: Vec<Vec<Rank>> = Vec::new();
        for rank in self.layout.ranks() {
            match runs.last_mut().and_then(|run| Some((*run.last()?, run))) {
                Some((last, run)) if self.layout.rack_of(last) == self.layout.rack_of(rank) => run.push(rank),
                _ => runs.push(vec![rank]),
            }
        }
        runs
    }

    fn scan_runs(&mut self, runs: &[Vec<Rank>], s: &Range<u64>, exclusive: bool) {
        let (start, len) = (s.start, s.end - s.start);
        // By run, the places at which the ranks have the combination up to their own value. An
        // exclusive scan moves it to the next rank at the end.
        let mut totals = Vec::new();
        // The combinations of whole runs, and the places for those of all runs before.
        let mut sums = Vec::new();
        let mut before = Vec::new();
        let mut own: Vec<Vec<RankSpan>> = Vec::new();
        for (i, run) in runs.iter().enumerate() {
            let places: Vec<RankSpan> = run
                .iter()
                .map(|rank| {
                    held(
                        *rank,
                        if exclusive {
                            self.b.slot(*rank, ScratchSlot::Total, len)
                        } else {
                            output(start, len)
                        },
                    )
                })
                .collect();
            // The results of the first run are complete.
            let scanned: Vec<RankSpan> = places
                .iter()
                .map(|place| {
                    if i == 0 {
                        *place
                    } else {
                        held(place.rank, self.b.slot(place.rank, ScratchSlot::Partial, len))
                    }
                })
                .collect();
            let values: Vec<RankSpan> = run.iter().map(|rank| held(*rank, input(start, len))).collect();
            match values.as_slice() {
                [only] => self.b.send(*only, scanned[0]),
                _ => self.plan.rack.up.scan()(self.b, &values, false, &scanned),
            }
            sums.extend(scanned.last());
            before.extend(places.last());
            own.push(scanned);
            totals.push(places);
        }
        self.plan.center.up.scan()(self.b, &sums, true, &before);
        for ((run, own), places) in runs.iter().zip(&own).zip(&totals).skip(1) {
            let group = Subgroup { members: run.clone(), tree: None };
            let Some(from) = places.last() else { continue };
            let place = |rank: Rank| places[(rank.0 - run[0].0) as usize].span;
            self.bcast_by(self.plan.rack.down, &group, *from, &place);
            for (own, place) in own.iter().zip(places) {
                self.b.reduce(own.rank, own.span, place.span);
            }
        }
        if exclusive {
            let totals = totals.concat();
            for (total, next) in totals.iter().zip(self.layout.ranks().skip(1)) {
                self.b.send(*total, held(next, output(start, len)));
            }
        }
    }
}

fn held(rank: Rank, span: Span) -> RankSpan {
    RankSpan { rank, span }
}
