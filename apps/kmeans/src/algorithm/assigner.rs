//! All distances by the blocked product, or only some by bounds: whichever takes less time, by the clock.
//!
//! The labels are the same either way, so each rank chooses for itself, and what the clock says decides about nothing but time.

use crate::algorithm::assign::{self, AssignmentStats, LabelRun, PIECE, TimedStats};
use crate::algorithm::bounds::{BoundCoverage, Bounds};
use crate::algorithm::prefetch::Prefetch;
use crate::algorithm::tuning::{AssignMethod, Tuning};
use crate::data::grid::{Centroids, Points};
use std::ops::Range;

/// One point of this number is tried by bounds while the others are assigned by all distances.
const TRIAL: usize = 32;

/// Points of a trial's piece at least.
const LEAST_PIECE: usize = 32;

/// Assigns a rank's points, iteration after iteration.
///
/// Whether bounds pay is tried on a few of the points, for which they are kept from the beginning. They are kept for all when those few
/// have spared, for each point, what it costs to begin; and given up in the same way (as one who rents skis buys
/// them when the rents come to their price: that takes at most twice the time of who knows the future).
pub struct Assigner {
    tuning: Tuning,
    bounds: Option<(BoundCoverage, Bounds)>,
    /// Whether bounds are kept for all points.
    everywhere: bool,
    costs: AssignmentCosts,
    /// The nearest of those centroids that have arrived.
    ahead: Option<Prefetch>,
}

/// Seconds that a thread takes for a point.
#[derive(Clone, Copy, Debug, Default)]
struct AssignmentCosts {
    /// By all distances.
    full: f64,
    /// To begin bounds.
    begin: f64,
    /// What the other way than the present one would have spared since it was taken.
    regret: f64,
}

impl AssignmentCosts {
    /// Takes note of what an iteration took by bounds. Says whether the other way is to be taken from now on.
    fn learn(&mut self, assign_by_bounds: f64, everywhere: bool) -> bool {
        let gain = if everywhere { assign_by_bounds - self.full } else { self.full - assign_by_bounds };
        self.regret = (self.regret + gain).max(0.0);
        let changes = self.regret > (self.begin - self.full).max(0.0);
        if changes {
            self.regret = 0.0;
        }
        changes
    }
}

impl Assigner {
    /// For points that have not been assigned yet.
    pub fn new(tuning: Tuning) -> Self {
        let everywhere = tuning.method == AssignMethod::Bounds;
        Self { tuning, bounds: None, everywhere, costs: AssignmentCosts::default(), ahead: None }
    }

    /// Looks for the nearest of runs of centroids, for points that are compared with all: the others are on their way, and
    /// [`Assigner::assign`] will be called when the last of them has been looked at.
    pub fn look_ahead(&mut self, points: &Points, centroids: &Centroids, runs: &[Range<usize>]) {
        let cover = self.cover(points, centroids.len()).map(|(_, cover)| cover);
        // Of few centroids all may come in one part, and none in the others.
        let some = (1..centroids.len()).contains(&runs.iter().map(Range::len).sum());
        if some && cover != Some(BoundCoverage::ALL) {
            let Tuning { level, threads, .. } = self.tuning;
            let ahead = self.ahead.get_or_insert_with(|| Prefetch::new(cover, points.len()));
            ahead.compare(points, centroids, runs, level, threads);
        }
    }

    /// How many near centroids have bounds, and which points do; none if there are no bounds.
    fn cover(&self, points: &Points, clusters: usize) -> Option<(usize, BoundCoverage)> {
        let near = self.tuning.near(points, clusters).filter(|_| self.tuning.method != AssignMethod::Full)?;
        Some((near, if self.everywhere { BoundCoverage::ALL } else { trial(points.len()) }))
    }

    /// Gives each point the number of its nearest centroid, the smallest of several equally near.
    pub fn assign(&mut self, points: &Points, centroids: &Centroids, labels: &mut [u32]) -> AssignmentStats {
        let Tuning { method, level, threads, .. } = self.tuning;
        let ahead = self.ahead.take();
        let all = |runs: Vec<LabelRun<'_>>| match ahead {
            Some(ahead) => ahead.assign(points, centroids, runs),
            None => assign::assign_runs(points, centroids, runs, level, threads),
        };
        let Some((near, cover)) = self.cover(points, centroids.len()) else {
            return all(LabelRun::pieces(labels, PIECE).collect()).found;
        };
        let [with, without] = cover.split(labels);
        let full = all(without);
        let kept = self.bounds.as_mut().filter(|(covered, _)| *covered == cover);
        let begins = kept.is_none();
        let bounded = match kept {
            Some((_, bounds)) => bounds.assign(points, centroids, with, level, threads),
            None => {
                self.bounds = None;
                let (bounds, found) = Bounds::begin(points, centroids, near, with, level, threads);
                self.bounds = Some((cover, bounds));
                found
            }
        };
        if method == AssignMethod::Auto {
            self.learn(begins, full, bounded);
        }
        AssignmentStats::total([full.found, bounded.found])
    }

    /// Decides how the next iteration is done.
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

/// Some points that have bounds while the others have none.
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
