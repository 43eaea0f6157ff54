//! Points compared with the centroids that have arrived, while the others are on their way.

use crate::algorithm::assign::{Assigned, PIECE, Run, Timed};
use crate::algorithm::bounds::Cover;
use crate::data::grid::{Centroids, Points};
use cool_distance::{Level, Nearest, Panels, Picked};
use cool_map::threads;
use std::ops::Range;

/// Farther than all centroids.
const NONE: Nearest = Nearest { index: u32::MAX, squared: i64::MAX };

/// Of each point without bounds, the nearest centroid so far.
pub(crate) struct Ahead {
    /// Points that have bounds, which wait for all centroids.
    cover: Option<Cover>,
    nearest: Vec<Nearest>,
    centroids: usize,
    seconds: f64,
}

impl Ahead {
    pub(crate) fn new(cover: Option<Cover>, points: usize) -> Self {
        Self { cover, nearest: vec![NONE; points], centroids: 0, seconds: 0.0 }
    }

    /// Compares points with some runs of centroids.
    pub(crate) fn look(
        &mut self,
        points: &Points,
        centroids: &Centroids,
        runs: &[Range<usize>],
        level: Level,
        threads: usize,
    ) {
        let labels: Vec<u32> = runs.iter().flat_map(|run| run.start as u32..run.end as u32).collect();
        let values: Vec<i16> = labels.iter().flat_map(|j| centroids.row(*j as usize)).copied().collect();
        let panels = Panels::new(level, centroids.precision, &values, centroids.dims);
        let piece = self.cover.map_or(PIECE, |cover| cover.piece);
        let pieces = self.nearest.chunks_mut(piece).enumerate();
        let pieces: Vec<_> = pieces.filter(|(i, _)| self.cover.is_none_or(|cover| !cover.has(*i))).collect();
        let timed = threads::map_mut(threads, pieces, |_, (i, best): (usize, &mut [Nearest])| {
            let picked = Picked::Run { first: i * piece, count: best.len() };
            Timed::of(picked.len(), || {
                panels.nearest(points.rows(), picked, |i, found| {
                    let found = Nearest { index: labels[found.index as usize], ..found };
                    // Of equally near ones the first, though it came later.
                    if (found.squared, found.index) < (best[i].squared, best[i].index) {
                        best[i] = found;
                    }
                });
                Assigned::default()
            })
        });
        self.centroids += labels.len();
        self.seconds += Timed::total(timed).seconds;
    }

    /// Gives points the nearest centroids, when there is none left to compare them with.
    pub(crate) fn assign(self, points: &Points, centroids: &Centroids, runs: Vec<Run<'_>>) -> Timed {
        assert_eq!(self.centroids, centroids.len(), "all centroids have come");
        let (mut found, mut count) = (Assigned::default(), 0);
        for Run { first, labels } in runs {
            count += labels.len();
            for (i, label) in (first..).zip(labels) {
                let Nearest { index, squared } = self.nearest[i];
                found.note(label, (squared, index), points.weight(i));
            }
        }
        found.measured = (count * centroids.len()) as u64;
        Timed { found, points: count, seconds: self.seconds }
    }
}
