//! How far a clustering has come: what survivors of lost ranks, and later runs, go on from.

use crate::grid::Metric;
use crate::options::{Clustering, Empty, Init};
use crate::share::Share;
use cool_map::Checkpoint;
use serde::{Deserialize, Serialize};

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
pub struct State {
    /// Coordinates of the centroids after the iterations so far.
    pub centroids: Vec<i16>,
    /// The iterations so far, of this run.
    pub iterations: Vec<Iteration>,
    /// Which of several runs it is, from 0.
    pub run: usize,
    /// The best of the runs before it.
    pub best: Option<Finished>,
    /// Whether the time allowed is over.
    pub late: bool,
}

/// A run that has come to its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// Coordinates of its centroids.
    pub centroids: Vec<i16>,
    /// Its iterations.
    pub iterations: Vec<Iteration>,
    /// Sum of squared distances of the points from the centroids.
    pub inertia: f64,
}

/// How far a clustering has come.
pub type Progress = cool_map::Progress<State>;

/// When a run ends.
pub(crate) struct Ends {
    iterations: usize,
    tolerance: f64,
    /// Of centroids, squared and added up.
    movement: f64,
}

impl Ends {
    /// For points of such a variance.
    pub(crate) fn new(how: &Clustering, variance: f64) -> Self {
        Self { iterations: how.iterations, tolerance: how.tolerance, movement: how.movement * variance }
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
}

impl State {
    /// Of a first run that begins with these centroids.
    pub(crate) fn first(centroids: Vec<i16>) -> Self {
        Self { centroids, iterations: Vec::new(), run: 0, best: None, late: false }
    }

    /// Whether there is no more iteration to do in this run.
    pub(crate) fn run_is_complete(&self, ends: &Ends) -> bool {
        self.late || ends.converged(&self.iterations) || self.iterations.len() >= ends.iterations
    }
}

/// What must be the same, so that going on gives what the first run would have given.
#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
struct Identity {
    k: usize,
    seed: u64,
    restarts: usize,
    /// Where the first centroids came from.
    init: Init,
    mini_batch: Option<u64>,
    empty: Empty,
    metric: Metric,
    /// How the points' weights are scaled, if they have some.
    weight_unit: Option<f64>,
    sample: usize,
    rows: u64,
    points: u64,
    dims: usize,
    /// Stands for the grid (FNV-1a).
    grid: u64,
}

/// Where a clustering keeps how far it has come, if it does.
pub(crate) fn checkpoint(share: &Share, how: &Clustering) -> Option<Checkpoint> {
    let numbers = share.grid.origin.iter().chain([&share.grid.step]);
    let bytes = numbers.flat_map(|number| number.to_bits().to_le_bytes());
    let grid = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let (rows, points) = (share.source.rows(), share.chosen.len());
    let identity = Identity {
        k: how.k,
        seed: how.seed,
        restarts: how.restarts,
        init: how.init(),
        mini_batch: how.mini_batch,
        empty: how.empty,
        metric: share.grid.metric,
        weight_unit: share.weights.as_ref().map(|weights| weights.unit),
        sample: how.sample,
        rows,
        points,
        dims: share.points.dims,
        grid,
    };
    let run = format!("{identity:?}");
    how.checkpoint.as_ref().map(|path| Checkpoint { path: path.clone(), run, resume: how.resume })
}
