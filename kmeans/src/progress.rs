//! How far a clustering has come: what survivors of lost ranks, and later runs, go on from.

use crate::lloyd::{Clustering, Init};
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
    /// The iterations so far.
    pub iterations: Vec<Iteration>,
}

/// How far a clustering has come.
pub type Progress = cool_map::Progress<State>;

impl State {
    /// Whether the last iteration moved no centroid, or improved less than the tolerance.
    pub fn converged(&self, how: &Clustering) -> bool {
        let Some((last, before)) = self.iterations.split_last() else { return false };
        let little =
            |previous: &Iteration| previous.inertia - last.inertia < how.tolerance * previous.inertia;
        last.moved_centroids == 0 || how.tolerance > 0.0 && before.last().is_some_and(little)
    }

    /// Whether there is no more iteration to do.
    pub fn is_complete(&self, how: &Clustering) -> bool {
        self.converged(how) || self.iterations.len() >= how.iterations
    }
}

/// What must be the same, so that going on gives what the first run would have given.
#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
struct Identity {
    k: usize,
    seed: u64,
    /// Where the first centroids came from.
    init: Init,
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
    let (k, seed, sample, dims) = (how.k, how.seed, how.sample, share.points.dims);
    let run = format!("{:?}", Identity { k, seed, init: how.init(), sample, rows, points, dims, grid });
    how.checkpoint.as_ref().map(|path| Checkpoint { path: path.clone(), run, resume: how.resume })
}
