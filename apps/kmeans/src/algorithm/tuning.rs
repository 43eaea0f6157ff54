//! Options of the speed and the memory of an assignment. None of them changes a result.

use crate::algorithm::bounds::Bounds;
use crate::data::grid::Points;
use cool_distance::{Precision, SimdLevel};

/// How nearest centroids are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum AssignMethod {
    /// By the faster of the other two.
    #[default]
    Auto,
    /// By all distances.
    Full,
    /// By bounds, which avoid most distances once centroids move little.
    Bounds,
}

/// Options that affect the run time only.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// How nearest centroids are found.
    pub method: AssignMethod,
    /// Number of centroids for which a point keeps individual bounds; by default the largest number
    /// that fits the memory.
    pub near: Option<usize>,
    /// Maximum bytes of memory of this rank. Without a limit, the bounds use three eighths of the
    /// points' memory.
    pub memory: Option<u64>,
    /// The vector instructions to use.
    pub level: SimdLevel,
    /// Threads of this rank.
    pub threads: usize,
}

impl Tuning {
    /// Returns the fastest tuning of this machine, on `threads` threads.
    pub fn with_threads(threads: usize) -> Self {
        Self { method: AssignMethod::Auto, near: None, memory: None, level: SimdLevel::best(), threads }
    }

    /// Returns the bytes that this rank needs without bounds: for points, labels, sums, centroids
    /// and their packed copies.
    pub fn least_memory(points: &Points, clusters: usize) -> u64 {
        let each = points.dims * coordinate_bytes(points) + 2 * size_of::<u32>();
        let centroid = points.width() * WORD_BYTES + points.dims * size_of::<i64>();
        (points.len() * each + clusters * centroid) as u64
    }

    /// Returns for how many centroids each point keeps bounds, or `None` if there is no room for
    /// bounds.
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

/// Bytes per word of a centroid's coordinate, in all copies together: one to send and three to
/// compare, of 2 bytes each, and 2 bytes in packed panels. The coordinate's sum is counted
/// separately.
const WORD_BYTES: usize = 10;

/// Minimum number of near centroids, because bounds for fewer avoid hardly any distance.
const LEAST_NEAR: usize = 4;

/// Maximum number of near centroids, as in the papers.
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
