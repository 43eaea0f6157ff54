//! The choice between two ways of assigning points: all distances by the blocked product, or only
//! some distances by bounds, whichever takes less time.
//!
//! Both ways return the same labels. Therefore each rank chooses by its own clock, without
//! communication: the choice affects only the run time.

use crate::algorithm::assign::{self, AssignmentStats, LabelRun, PIECE, TimedStats};
use crate::algorithm::bounds::{BoundCoverage, Bounds};
use crate::algorithm::prefetch::Prefetch;
use crate::algorithm::tuning::{AssignMethod, Tuning};
use crate::data::grid::{Centroids, Points};
use std::ops::Range;

/// One point in this many tries bounds while the others are assigned by all distances.
const TRIAL: usize = 32;

/// Minimum number of points in a trial's piece.
const LEAST_PIECE: usize = 32;

/// Assigns a rank's points, iteration after iteration.
///
/// Bounds are first tried on a few of the points. They are extended to all points once those few
/// have saved, per point, the cost of starting bounds, and they are given up by the same rule. As
/// in the ski rental problem (buy the skis when the rent has reached their price), this takes at
/// most twice the time of the best choice in hindsight.
pub struct Assigner {
    tuning: Tuning,
    bounds: Option<(BoundCoverage, Bounds)>,
    /// Whether bounds are kept for all points.
    everywhere: bool,
    costs: AssignmentCosts,
    /// The nearest of the centroids that have arrived so far.
    prefetch: Option<Prefetch>,
}

/// Costs in seconds of thread time per point.
#[derive(Clone, Copy, Debug, Default)]
struct AssignmentCosts {
    /// By all distances.
    full: f64,
    /// To start bounds.
    begin: f64,
    /// Time that the other way would have saved since the present one was chosen.
    regret: f64,
}

impl AssignmentCosts {
    /// Records the cost of an iteration by bounds. Returns whether to switch to the other way.
    fn learn(&mut self, by_bounds: f64, everywhere: bool) -> bool {
        let gain = if everywhere { by_bounds - self.full } else { self.full - by_bounds };
        self.regret = (self.regret + gain).max(0.0);
        let changes = self.regret > (self.begin - self.full).max(0.0);
        if changes {
            self.regret = 0.0;
        }
        changes
    }
}

impl Assigner {
    /// Starts with points that have not been assigned yet.
    pub fn new(tuning: Tuning) -> Self {
        let everywhere = tuning.method == AssignMethod::Bounds;
        Self { tuning, bounds: None, everywhere, costs: AssignmentCosts::default(), prefetch: None }
    }

    /// Compares points with runs of centroids that have arrived while others are in transit. Only
    /// points that are compared with all centroids take part. The caller must call
    /// [`Assigner::assign`] after the last run.
    pub fn look_ahead(&mut self, points: &Points, centroids: &Centroids, runs: &[Range<usize>]) {
        let coverage = self.coverage(points, centroids.len()).map(|(_, coverage)| coverage);
        // If there are few centroids, one part may contain all of them and the others none.
        let some = (1..centroids.len()).contains(&runs.iter().map(Range::len).sum());
        if some && coverage != Some(BoundCoverage::ALL) {
            let Tuning { level, threads, .. } = self.tuning;
            let prefetch = self.prefetch.get_or_insert_with(|| Prefetch::new(coverage, points.len()));
            prefetch.compare(points, centroids, runs, level, threads);
        }
    }

    /// Returns how many near centroids have bounds and which points have them, or `None` if there
    /// are no bounds.
    fn coverage(&self, points: &Points, clusters: usize) -> Option<(usize, BoundCoverage)> {
        let near = self.tuning.near(points, clusters).filter(|_| self.tuning.method != AssignMethod::Full)?;
        Some((near, if self.everywhere { BoundCoverage::ALL } else { trial(points.len()) }))
    }

    /// Assigns each point to its nearest centroid, of equally near ones to that with the smallest
    /// number. Returns the statistics.
    pub fn assign(&mut self, points: &Points, centroids: &Centroids, labels: &mut [u32]) -> AssignmentStats {
        let Tuning { method, level, threads, .. } = self.tuning;
        let prefetch = self.prefetch.take();
        let all = |runs: Vec<LabelRun<'_>>| match prefetch {
            Some(prefetch) => prefetch.assign(points, centroids, runs),
            None => assign::assign_runs(points, centroids, runs, level, threads),
        };
        let Some((near, coverage)) = self.coverage(points, centroids.len()) else {
            return all(LabelRun::pieces(labels, PIECE).collect()).found;
        };
        let [with, without] = coverage.split(labels);
        let full = all(without);
        let kept = self.bounds.as_mut().filter(|(covered, _)| *covered == coverage);
        let begins = kept.is_none();
        let bounded = match kept {
            Some((_, bounds)) => bounds.assign(points, centroids, with, level, threads),
            None => {
                self.bounds = None;
                let (bounds, found) = Bounds::begin(points, centroids, near, with, level, threads);
                self.bounds = Some((coverage, bounds));
                found
            }
        };
        if method == AssignMethod::Auto {
            self.learn(begins, full, bounded);
        }
        AssignmentStats::total([full.found, bounded.found])
    }

    /// Decides how the next iteration assigns points.
    fn learn(&mut self, begins: bool, full: TimedStats, bounded: TimedStats) {
        let each = |timed: TimedStats| timed.seconds / timed.points.max(1) as f64;
        if full.points > 0 {
            self.costs.full = each(full);
        }
        if begins {
            self.costs.begin = each(bounded);
        } else if self.costs.learn(each(bounded), self.everywhere) {
            self.everywhere = !self.everywhere;
        }
    }
}

/// Returns a coverage in which only some points have bounds.
fn trial(points: usize) -> BoundCoverage {
    BoundCoverage { piece: points.div_ceil(TRIAL).clamp(LEAST_PIECE, PIECE), every: TRIAL }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_distance::Precision;

    #[test]
    fn prefetching_gives_the_same_labels_in_any_parts() {
        let points = Points::new(Precision::Byte, 2, (0..60).map(|i| i * 37 % 250).collect());
        let centroids =
            Centroids { precision: Precision::Byte, dims: 2, values: vec![9, 200, 120, 7, 90, 90] };
        let found = |parts: &[Vec<Range<usize>>]| {
            let mut assigner =
                Assigner::new(Tuning { method: AssignMethod::Full, ..Tuning::with_threads(1) });
            parts.iter().for_each(|runs| assigner.look_ahead(&points, &centroids, runs));
            let mut labels = vec![assign::NO_LABEL; points.len()];
            let inertia = assigner.assign(&points, &centroids, &mut labels).inertia;
            (labels, inertia)
        };
        let expected = found(&[]);
        for parts in [
            vec![vec![0..1, 2..3], vec![1..2]],
            vec![vec![0..1, 1..3], vec![1..1]],
            vec![vec![0..0], vec![0..3], vec![3..3]],
        ] {
            assert_eq!(found(&parts), expected, "{parts:?}");
        }
    }
}
