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
    /// Centroids of which a point keeps bounds one by one; none for as many as take three eighths of the points' memory.
    pub near: Option<usize>,
    /// The instructions that do the work.
    pub level: Level,
    /// Threads of this rank.
    pub threads: usize,
}

impl Effort {
    /// The best of this machine, on so many threads.
    pub fn of(threads: usize) -> Self {
        Self { method: Method::Auto, near: None, level: Level::best(), threads }
    }

    fn near(&self, points: &Points) -> usize {
        let bytes = match points.precision() {
            Precision::Byte => points.dims,
            Precision::Wide => 2 * points.dims,
        };
        let room = bytes * 3 / 8;
        let each = Bounds::bytes_per_point(1) - Bounds::bytes_per_point(0);
        self.near.unwrap_or((room.saturating_sub(Bounds::bytes_per_point(0)) / each).clamp(4, 400))
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
        if begins {
            let near = self.effort.near(points);
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
