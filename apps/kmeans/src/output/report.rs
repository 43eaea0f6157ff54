//! Figures of a clustering for other programs.

use crate::algorithm::lloyd::GridClustering;
use crate::data::point_share::PointShare;
use crate::error::Error;
use crate::peer_ranks::PeerRanks;
use cool::Op;
use cool_map::replace_file;
use std::path::Path;

/// Figures of a clustering. Times are those of rank 0; communication includes waiting for slower
/// ranks.
#[derive(Debug, serde::Serialize)]
pub struct Summary {
    /// Number of clustered points.
    pub points: u64,
    /// Coordinates per point.
    pub dims: usize,
    /// Number of clusters.
    pub k: usize,
    /// Seed of the run.
    pub seed: u64,
    /// Number of ranks.
    pub ranks: usize,
    /// Threads per rank, at rank 0.
    pub threads: usize,
    /// Number of iterations.
    pub iterations: usize,
    /// Whether the last iteration moved no centroid, moved the centroids by at most the limit of
    /// movement, or lowered the inertia by less than the tolerance.
    pub converged: bool,
    /// For each iteration, the sum of the points' squared distances from their centroids at its
    /// start, each multiplied by the point's weight.
    pub inertia: Vec<f64>,
    /// Sum of the points' squared distances from their final centroids, each multiplied by the
    /// point's weight.
    pub final_inertia: f64,
    /// Number of clusters without points at the end.
    pub empty_clusters: usize,
    /// For each iteration, the payload bytes on the busiest link of a node or rack in one
    /// direction.
    pub busiest_link_bytes: Vec<u64>,
    /// For each iteration, the share of all distances between points and centroids that it
    /// measured.
    pub distances: Vec<f64>,
    /// Seconds of computation in each iteration.
    pub seconds_computing: Vec<f64>,
    /// Seconds of communication in each iteration.
    pub seconds_communicating: Vec<f64>,
    /// Seconds of the whole run.
    pub seconds: Seconds,
    /// Bytes that rank 0 sent to all ranks.
    pub bytes_broadcast: u64,
    /// Bytes that rank 0 sent for reductions.
    pub bytes_reduced: u64,
    /// Network traffic of all nodes.
    pub network: NetworkTotals,
    /// Pictures that were skipped because they cannot be decoded.
    pub skipped_images: Vec<String>,
}

/// Seconds of a whole run.
#[derive(Debug, serde::Serialize)]
pub struct Seconds {
    /// Reading and describing the points of rank 0.
    pub loading: f64,
    /// Computation in all iterations.
    pub computing: f64,
    /// Communication in all iterations.
    pub communicating: f64,
    /// From start to end.
    pub total: f64,
}

/// Traffic of all nodes: payload bytes, and numbers of repaired and retransmitted chunks.
#[derive(Debug, serde::Serialize)]
pub struct NetworkTotals {
    /// Bytes sent by multicast.
    pub multicast_bytes: u64,
    /// Bytes sent by unicast, without repairs.
    pub unicast_bytes: u64,
    /// Missing chunks that nodes received by repair.
    pub chunks_repaired: u64,
    /// Chunks that nodes retransmitted.
    pub chunks_resent: u64,
}

impl NetworkTotals {
    /// Returns the traffic of all nodes for the calls so far. All ranks must call this.
    pub fn total(peers: &PeerRanks<'_>) -> Result<Self, Error> {
        // Each node's statistics are counted once.
        let (_, is_first_on_node) = peers.on_node();
        let stats = peers.stats();
        let mine = [stats.multicast_bytes, stats.unicast_bytes, stats.chunks_repaired, stats.chunks_resent];
        let mine = if is_first_on_node { mine.to_vec() } else { vec![0; mine.len()] };
        let all = peers.combine(mine, Op::Sum)?;
        Ok(Self {
            multicast_bytes: all[0],
            unicast_bytes: all[1],
            chunks_repaired: all[2],
            chunks_resent: all[3],
        })
    }
}

/// Facts about a run that only the caller knows.
#[derive(Debug)]
pub struct RunInfo {
    /// Seed of the run.
    pub seed: u64,
    /// Threads per rank.
    pub threads: usize,
    /// Seconds of loading.
    pub loading: f64,
    /// Seconds from start to end.
    pub total: f64,
}

/// Returns the figures of a run. Only rank 0's result is complete, so rank 0 should call this; no
/// other rank needs to.
pub fn summarize(
    peers: &PeerRanks<'_>,
    share: &PointShare,
    clustered: &GridClustering,
    run: &RunInfo,
    network: NetworkTotals,
) -> Summary {
    let each = |f: fn(&crate::progress::Iteration) -> f64| -> Vec<f64> {
        clustered.iterations.iter().map(f).collect()
    };
    let (computing, communicating) = (each(|i| i.seconds_computing), each(|i| i.seconds_communicating));
    let tally = peers.tally();
    Summary {
        points: share.chosen.len(),
        dims: share.points.dims,
        k: clustered.centroids.len(),
        seed: run.seed,
        ranks: peers.size(),
        threads: run.threads,
        iterations: clustered.iterations.len(),
        converged: clustered.converged,
        inertia: each(|i| i.inertia),
        final_inertia: clustered.inertia,
        distances: distances(share.chosen.len(), clustered),
        empty_clusters: clustered.sizes.iter().filter(|&&n| n == 0).count(),
        seconds: Seconds {
            loading: run.loading,
            computing: computing.iter().sum(),
            communicating: communicating.iter().sum(),
            total: run.total,
        },
        busiest_link_bytes: clustered.iterations.iter().map(|i| i.busiest_link_bytes).collect(),
        seconds_computing: computing,
        seconds_communicating: communicating,
        bytes_broadcast: tally.bytes_broadcast,
        bytes_reduced: tally.bytes_reduced,
        network,
        skipped_images: share.source.skipped().iter().map(|p| p.display().to_string()).collect(),
    }
}

/// Returns the share of all distances that each iteration measured.
fn distances(points: u64, clustered: &GridClustering) -> Vec<f64> {
    let all = points as f64 * clustered.centroids.len() as f64;
    clustered.iterations.iter().map(|i| i.measured as f64 / all).collect()
}

/// Writes a value as JSON, completely or not at all.
///
/// # Errors
/// If the file cannot be written.
pub fn write_json(path: &Path, value: &(impl serde::Serialize + ?Sized)) -> Result<(), Error> {
    let text = serde_json::to_vec_pretty(value).map_err(std::io::Error::from).map_err(Error::file(path))?;
    replace_file(path, &[&text, b"\n"]).map_err(Error::file(path))
}
