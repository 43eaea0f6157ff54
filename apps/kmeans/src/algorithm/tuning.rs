//! How fast points are assigned, and at what cost in memory. Nothing here changes a result.

use crate::algorithm::bounds::Bounds;
use crate::data::grid::Points;
use cool_distance::{Precision, SimdLevel};

/// How nearest centroids are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum AssignMethod {
    /// By whichever of the others takes less time.
    #[default]
    Auto,
    /// By all distances.
    Full,
    /// By bounds that spare most distances once centroids move little.
    Bounds,
}

/// What decides how fast points are assigned, and about nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// How nearest centroids are found.
    pub method: AssignMethod,
    /// Centroids of which a point keeps bounds one by one; none for as many as there is room for.
    pub near: Option<usize>,
    /// Bytes that this rank may take; without a limit, bounds take three eighths of the points' memory.
    pub memory: Option<u64>,
    /// The instructions that do the work.
    pub level: SimdLevel,
    /// Threads of this rank.
    pub threads: usize,
}

impl Tuning {
    /// The best of this machine, on `threads` threads.
    pub fn with_threads(threads: usize) -> Self {
        Self { method: AssignMethod::Auto, near: None, memory: None, level: SimdLevel::best(), threads }
    }

    /// Bytes that are needed in any case: points, labels, and sums, centroids and their packed copies.
    pub fn least_memory(points: &Points, clusters: usize) -> u64 {
        let each = points.dims * coordinate_bytes(points) + 2 * size_of::<u32>();
        let centroid = points.width() * WORD_BYTES + points.dims * size_of::<i64>();
        (points.len() * each + clusters * centroid) as u64
    }

    /// Centroids of which each point keeps bounds, if there is room for bounds.
    pub fn near(&self, points: &Points, clusters: usize) -> Option<usize> {
        let room = match self.memory {
            None => points.dims * coordinate_bytes(points) * 3 / 8,
            Some(memory) => {
                let rest = memory.saturating_sub(Self::least_memory(points, clusters));
                rest as usize / points.len().max(1)
            }
        };
        let fits = |near: &usize| Bounds::bytes_per_point(*near, clusters) <= room;
        let fitting = (1..=MOST_NEAR).take_while(fits).count();
        match (self.near, self.memory) {
            (Some(near), _) => Some(near),
            (None, None) => Some(fitting.max(LEAST_NEAR)),
            (None, Some(_)) => (fitting >= LEAST_NEAR).then_some(fitting),
        }
    }
}

/// Bytes of a word of a centroid's coordinate in all its copies: one to send, three to compare, two planes of panels. The
/// coordinate's sum comes on top.
const WORD_BYTES: usize = 10;

/// With fewer near centroids bounds hardly spare a distance.
const LEAST_NEAR: usize = 4;

/// As many as the papers keep.
const MOST_NEAR: usize = 400;

fn coordinate_bytes(points: &Points) -> usize {
    match points.precision() {
        Precision::Byte => 1,
        Precision::Wide => 2,
        Precision::Fine => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_use_the_remaining_memory_or_are_omitted() {
        let points = Points::new(Precision::Byte, 512, vec![0; 512 * 100]);
        let least = Tuning::least_memory(&points, 10);
        assert_eq!(least, 100 * (512 + 8) + 10 * 512 * 18);
        let near = |memory| Tuning { memory, ..Tuning::with_threads(1) }.near(&points, 10);
        assert_eq!(near(None), Some(14));
        assert_eq!(near(Some(least + 100 * (16 + 12 * 20))), Some(20));
        assert_eq!((near(Some(least)), near(Some(0))), (None, None));
        assert_eq!(Tuning { near: Some(7), ..Tuning::with_threads(1) }.near(&points, 10), Some(7));
    }
}
