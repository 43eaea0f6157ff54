//! Where a clustering stores its state, and which runs may continue from it.

use crate::data::grid::Metric;
use crate::data::point_share::PointShare;
use crate::options::{ClusteringOptions, Empty, Init};
use cool_map::Checkpoint;

/// The parameters that must be equal for a run to continue from a checkpoint, because otherwise its
/// result would differ from that of an uninterrupted run. The type's name and its fields are part
/// of the file format.
#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
struct Identity {
    k: usize,
    seed: u64,
    restarts: usize,
    /// Origin of the first centroids.
    init: Init,
    mini_batch: Option<u64>,
    empty: Empty,
    metric: Metric,
    /// Scale of the points' weights, if they have weights.
    weight_unit: Option<f64>,
    sample: usize,
    rows: u64,
    points: u64,
    dims: usize,
    /// Hash of the grid (FNV-1a).
    grid: u64,
}

/// Returns the checkpoint of a run, if it has one.
pub(crate) fn for_run(share: &PointShare, options: &ClusteringOptions) -> Option<Checkpoint> {
    let numbers = share.grid.origin.iter().chain([&share.grid.step]);
    let bytes = numbers.flat_map(|number| number.to_bits().to_le_bytes());
    let grid = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let (rows, points) = (share.source.rows(), share.chosen.len());
    let identity = Identity {
        k: options.k,
        seed: options.seed,
        restarts: options.restarts,
        init: options.init(),
        mini_batch: options.mini_batch,
        empty: options.empty,
        metric: share.grid.metric,
        weight_unit: share.weights.as_ref().map(|weights| weights.unit),
        sample: options.sample,
        rows,
        points,
        dims: share.points.dims,
        grid,
    };
    let run = format!("{identity:?}");
    options.checkpoint.as_ref().map(|path| Checkpoint { path: path.clone(), run, resume: options.resume })
}
