//! Where a clustering keeps its state, and which runs may continue from it.

use crate::data::grid::Metric;
use crate::data::point_share::Share;
use crate::options::{Clustering, Empty, Init};
use cool_map::Checkpoint;

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
pub(crate) fn for_run(share: &Share, how: &Clustering) -> Option<Checkpoint> {
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
