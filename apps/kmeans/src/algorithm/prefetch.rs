//! Comparison of points with the centroids that have arrived, while others are in transit.

use crate::algorithm::assign::{AssignmentStats, LabelRun, PIECE, TimedStats};
use crate::algorithm::bounds::BoundCoverage;
use crate::data::grid::{Centroids, Points};
use cool_distance::{NearestCentroid, Panels, RowSelection, SimdLevel};
use cool_map::threads;
use std::ops::Range;

/// A placeholder that is farther than any centroid.
const NONE: NearestCentroid = NearestCentroid { index: u32::MAX, squared: i64::MAX };

/// The nearest centroid so far of each point without bounds.
pub(crate) struct Prefetch {
    /// Which points have bounds; those wait for all centroids.
    coverage: Option<BoundCoverage>,
    nearest: Vec<NearestCentroid>,
    centroids: usize,
    seconds: f64,
}

impl Prefetch {
    pub(crate) fn new(coverage: Option<BoundCoverage>, points: usize) -> Self {
        Self { coverage, nearest: vec![NONE; points], centroids: 0, seconds: 0.0 }
    }

    /// Compares the points with some runs of centroids.
    pub(crate) fn compare(
        &mut self,
        points: &Points,
        centroids: &Centroids,
        runs: &[Range<usize>],
        level: SimdLevel,
        threads: usize,
    ) {
        let labels: Vec<u32> = runs.iter().flat_map(|run| run.start as u32..run.end as u32).collect();
        let values: Vec<i16> = labels.iter().flat_map(|j| centroids.row(*j as usize)).copied().collect();
        let panels = Panels::new(level, centroids.precision, &values, centroids.dims);
        let piece = self.coverage.map_or(PIECE, |coverage| coverage.piece);
        let pieces = self.nearest.chunks_mut(piece).enumerate();
        let pieces: Vec<_> =
            pieces.filter(|(i, _)| self.coverage.is_none_or(|coverage| !coverage.has(*i))).collect();
        let timed = threads::map_mut(threads, pieces, |_, (i, best): (usize, &mut [NearestCentroid])| {
            let picked = RowSelection::Run { first: i * piece, count: best.len() };
            TimedStats::measure(picked.len(), || {
                panels.nearest(points.rows(), picked, |i, found| {
                    let found = NearestCentroid { index: labels[found.index as usize], ..found };
                    // Of equally near centroids the first counts, even if it arrives later.
                    if (found.squared, found.index) < (best[i].squared, best[i].index) {
                        best[i] = found;
                    }
                });
                AssignmentStats::default()
            })
        });
        self.centroids += labels.len();
        self.seconds += TimedStats::total(timed).seconds;
    }

    /// Assigns the points to their nearest centroids. All centroids must have been compared.
    pub(crate) fn assign(
        self,
        points: &Points,
        centroids: &Centroids,
        runs: Vec<LabelRun<'_>>,
    ) -> TimedStats {
        assert_eq!(self.centroids, centroids.len(), "all centroids have come");
        let (mut found, mut count) = (AssignmentStats::default(), 0);
        for LabelRun { first, labels } in runs {
            count += labels.len();
            for (i, label) in (first..).zip(labels) {
                let NearestCentroid { index, squared } = self.nearest[i];
                found.record(label, (squared, index), points.weight(i));
            }
        }
        found.measured = (count * centroids.len()) as u64;
        TimedStats { found, points: count, seconds: self.seconds }
    }
}
