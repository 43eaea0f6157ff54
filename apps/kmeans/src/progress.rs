//! How far a clustering has come: what survivors of lost ranks, and later runs, go on from.

use serde::{Deserialize, Serialize};

/// Who wants to hear how it goes.
pub trait ProgressObserver: Sync {
    /// This rank will read this number of points.
    fn loading(&self, points: u64);
    /// It has read this number of further points.
    fn loaded(&self, points: u64);
    /// An iteration is done and kept.
    fn iteration(&self, iteration: &Iteration);
}

/// An iteration. Its times are those of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    /// Its number, from 1.
    pub number: usize,
    /// Sum of squared distances of the points from the centroids it began with.
    pub inertia: f64,
    /// Points whose centroid is another than in the iteration before; all, in the first after ranks were lost.
    pub moved_points: u64,
    /// Distances of points from centroids that it measured.
    pub measured: u64,
    /// Centroids that it moved.
    pub moved_centroids: usize,
    /// How far it moved them, squared and added up.
    pub movement: f64,
    /// Centroids without points.
    pub empty: usize,
    /// Bytes that the busiest link of a node or rack had to carry in one direction.
    pub busiest_link_bytes: u64,
    /// Time spent in computing.
    pub seconds_computing: f64,
    /// Time spent in collectives, with waiting for slower ranks.
    pub seconds_communicating: f64,
}

/// Centroids and the iterations that led to them: the state of a clustering, which all ranks have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Coordinates of the centroids after the iterations so far.
    pub centroids: Vec<i16>,
    /// The iterations so far, of this run.
    pub iterations: Vec<Iteration>,
    /// Which of several runs it is, from 0.
    pub run: usize,
    /// The best of the runs before it.
    pub best: Option<FinishedRun>,
    /// Whether the time allowed is over.
    pub late: bool,
}

/// A run that has come to its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FinishedRun {
    /// Coordinates of its centroids.
    pub centroids: Vec<i16>,
    /// Its iterations.
    pub iterations: Vec<Iteration>,
    /// Sum of squared distances of the points from the centroids.
    pub inertia: f64,
}

/// How far a clustering has come.
pub type ClusteringProgress = cool_map::Progress<RunState>;

impl RunState {
    /// Of a first run that begins with these centroids.
    pub(crate) fn first(centroids: Vec<i16>) -> Self {
        Self { centroids, iterations: Vec::new(), run: 0, best: None, late: false }
    }
}
