//! When the iterations of a run end.

use crate::options::ClusteringOptions;
use crate::progress::{Iteration, RunState};

/// Limits at which a run ends.
pub(crate) struct StopRule {
    iterations: usize,
    tolerance: f64,
    /// Sum of the centroids' squared movements, in real units.
    movement: f64,
}

impl StopRule {
    /// Derives the limits from the options and the variance of the points.
    pub(crate) fn new(options: &ClusteringOptions, variance: f64) -> Self {
        Self {
            iterations: options.iterations,
            tolerance: options.tolerance,
            movement: options.movement * variance,
        }
    }

    /// Returns whether the last iteration moved no centroid, moved the centroids by at most the
    /// limit of movement, or lowered the inertia by less than the tolerance.
    pub(crate) fn converged(&self, iterations: &[Iteration]) -> bool {
        let Some((last, before)) = iterations.split_last() else { return false };
        let little =
            |previous: &Iteration| previous.inertia - last.inertia < self.tolerance * previous.inertia;
        let gains_little = self.tolerance > 0.0 && before.last().is_some_and(little);
        let moves_little = self.movement > 0.0 && last.movement <= self.movement;
        last.moved_centroids == 0 || moves_little || gains_little
    }

    /// Returns whether a run needs no further iteration.
    pub(crate) fn is_complete(&self, state: &RunState) -> bool {
        state.late || self.converged(&state.iterations) || state.iterations.len() >= self.iterations
    }
}
