//! All distances by the blocked product, or only some by bounds: whichever takes less time, by the clock.
//!
//! The labels are the same either way, so each rank chooses for itself, and what the clock says decides about nothing but time.

use crate::assign::{self, Assigned};
use crate::bounds::Bounds;
use crate::grid::{Centroids, Points};
use cool_distance::{Level, Precision};
use std::time::{Duration, Instant};

/// How nearest centroids are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Method {
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
pub struct Effort {
    /// How nearest centroids are found.
    pub method: Method,
    /// Centroids of which a point keeps bounds one by one; none for as many as there is room for.
    pub near: Option<usize>,
    /// Bytes that this rank may take; without a limit, bounds take three eighths of the points' memory.
    pub memory: Option<u64>,
    /// The instructions that do the work.
    pub level: Level,
    /// Threads of this rank.
    pub threads: usize,
}

impl Effort {
    /// The best of this machine, on `threads` threads.
    pub fn of(threads: usize) -> Self {
        Self { method: Method::Auto, near: None, memory: None, level: Level::best(), threads }
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
        let each = Bounds::bytes_per_point(1) - Bounds::bytes_per_point(0);
        let fitting = room.saturating_sub(Bounds::bytes_per_point(0)) / each;
        match (self.near, self.memory) {
            (Some(near), _) => Some(near),
            (None, None) => Some(fitting.clamp(LEAST_NEAR, MOST_NEAR)),
            (None, Some(_)) => (fitting >= LEAST_NEAR).then_some(fitting.min(MOST_NEAR)),
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

/// Bounds pay when few points still change their centroid.
const FEW: i64 = 10;

/// Iterations without bounds after they did not pay for the first time; each further time twice as many.
const PAUSE: usize = 4;

/// Assigns a rank's points, iteration after iteration.
pub struct Assigner {
    effort: Effort,
    bounds: Option<Bounds>,
    /// How long all distances took the last time.
    full: Duration,
    /// Iterations before bounds are tried.
    wait: usize,
    pause: usize,
    /// Whether few points changed their centroid in the last iteration.
    settled: bool,
}

impl Assigner {
    /// For points that have not been assigned yet.
    pub fn new(effort: Effort) -> Self {
        Self { effort, bounds: None, full: Duration::ZERO, wait: 0, pause: PAUSE, settled: false }
    }

    /// Gives each point the number of its nearest centroid, the smallest of several equally near.
    pub fn assign(&mut self, points: &Points, centroids: &Centroids, labels: &mut [u32]) -> Assigned {
        let Effort { method, level, threads, .. } = self.effort;
        let start = Instant::now();
        if let Some(bounds) = &mut self.bounds {
            let found = bounds.assign(points, centroids, labels, level, threads);
            if method == Method::Auto && start.elapsed() > self.full {
                self.bounds = None;
                self.wait = self.pause;
                self.pause *= 2;
            }
            return found;
        }
        let begins = match method {
            Method::Auto => self.settled && self.wait == 0,
            Method::Full => false,
            Method::Bounds => true,
        };
        if let Some(near) = self.effort.near(points, centroids.len()).filter(|_| begins) {
            let (bounds, found) = Bounds::begin(points, centroids, near, labels, level, threads);
            self.bounds = Some(bounds);
            return found;
        }
        let found = assign::assign(points, centroids, labels, level, threads);
        self.full = start.elapsed();
        self.wait = self.wait.saturating_sub(1);
        self.settled = found.changed * FEW < points.len() as i64;
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_take_what_memory_is_left_and_none_if_there_is_too_little() {
        let points = Points::new(Precision::Byte, 512, vec![0; 512 * 100]);
        let least = Effort::least_memory(&points, 10);
        assert_eq!(least, 100 * (512 + 8) + 10 * 512 * 18);
        let near = |memory| Effort { memory, ..Effort::of(1) }.near(&points, 10);
        assert_eq!(near(None), Some(14));
        assert_eq!(near(Some(least + 100 * (16 + 12 * 20))), Some(20));
        assert_eq!((near(Some(least)), near(Some(0))), (None, None));
        assert_eq!(Effort { near: Some(7), ..Effort::of(1) }.near(&points, 10), Some(7));
    }
}
