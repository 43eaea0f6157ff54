//! The state of a clustering, from which survivors of lost ranks and later runs continue.

use serde::{Deserialize, Serialize};

/// Receives reports of the progress.
pub trait ProgressObserver: Sync {
    /// This rank is about to read this number of points.
    fn loading(&self, points: u64);
    /// This rank has read this number of further points.
    fn loaded(&self, points: u64);
    /// An iteration is complete, and its state is stored.
    fn iteration(&self, iteration: &Iteration);
}

/// Figures of an iteration. Its times are those of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    /// Number of the iteration, from 1.
    pub number: usize,
    /// Sum of squared distances between the points and the centroids at its start.
    pub inertia: f64,
    /// Number of points that changed their centroid. In the first iteration after a loss of ranks,
    /// these are all points.
    pub moved_points: u64,
    /// Number of distances between points and centroids that were measured.
    pub measured: u64,
    /// Number of centroids that moved.
    pub moved_centroids: usize,
    /// Sum of their squared movements.
    pub movement: f64,
    /// Number of centroids without points.
    pub empty: usize,
    /// Bytes on the busiest link of a node or rack in one direction.
    pub busiest_link_bytes: u64,
    /// Seconds of computation.
    pub seconds_computing: f64,
    /// Seconds of collectives, including waiting for slower ranks.
    pub seconds_communicating: f64,
}

/// The state of a clustering, which all ranks hold: the centroids, and the iterations that led to
/// them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Coordinates of the centroids after the iterations so far.
    pub centroids: Vec<i16>,
    /// The iterations of this run so far.
    pub iterations: Vec<Iteration>,
    /// Number of the run, from 0.
    pub run: usize,
    /// The best of the previous runs.
    pub best: Option<FinishedRun>,
    /// Whether the time limit has passed.
    pub late: bool,
}

/// A completed run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FinishedRun {
    /// Coordinates of its centroids.
    pub centroids: Vec<i16>,
    /// Its iterations.
    pub iterations: Vec<Iteration>,
    /// Sum of squared distances between the points and their centroids.
    pub inertia: f64,
}

/// State and checkpoint of a clustering.
pub type ClusteringProgress = cool_map::Progress<RunState>;

impl RunState {
    /// Returns the state of a first run with these initial centroids.
    pub(crate) fn first(centroids: Vec<i16>) -> Self {
        Self { centroids, iterations: Vec::new(), run: 0, best: None, late: false }
    }
}
