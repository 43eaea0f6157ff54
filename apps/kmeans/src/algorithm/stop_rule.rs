//! When the iterations of a run end.

use crate::options::ClusteringOptions;
use crate::progress::{Iteration, RunState};

/// When a run ends.
pub(crate) struct StopRule {
    iterations: usize,
    tolerance: f64,
    /// Of centroids, squared and added up.
    movement: f64,
}

impl StopRule {
    /// For points of such a variance.
    pub(crate) fn new(options: &ClusteringOptions, variance: f64) -> Self {
        Self {
            iterations: options.iterations,
            tolerance: options.tolerance,
            movement: options.movement * variance,
        }
    }

    /// Whether the last iteration moved no centroid, or no farther or for no more gain than is asked for.
    pub(crate) fn converged(&self, iterations: &[Iteration]) -> bool {
        let Some((last, before)) = iterations.split_last() else { return false };
        let little =
            |previous: &Iteration| previous.inertia - last.inertia < self.tolerance * previous.inertia;
        let gains_little = self.tolerance > 0.0 && before.last().is_some_and(little);
        let moves_little = self.movement > 0.0 && last.movement <= self.movement;
        last.moved_centroids == 0 || moves_little || gains_little
    }

    /// Whether there is no more iteration to do in a run.
    pub(crate) fn is_complete(&self, state: &RunState) -> bool {
        state.late || self.converged(&state.iterations) || state.iterations.len() >= self.iterations
    }
}
