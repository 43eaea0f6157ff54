//! What a clustering leaves behind for other programs.

use crate::algorithm::lloyd::GridClustering;
use crate::data::point_share::PointShare;
use crate::error::Error;
use crate::peer_ranks::PeerRanks;
use cool::Op;
use cool_map::replace_file;
use std::path::Path;

/// A clustering in numbers. Times are those of rank 0; communicating includes waiting for slower ranks.
#[derive(Debug, serde::Serialize)]
pub struct Summary {
    /// Points clustered.
    pub points: u64,
    /// Coordinates of each.
    pub dims: usize,
    /// Clusters.
    pub k: usize,
    /// Names the run.
    pub seed: u64,
    /// Ranks that shared the work.
    pub ranks: usize,
    /// Threads of each rank, as rank 0 has them.
    pub threads: usize,
    /// Iterations run.
    pub iterations: usize,
    /// Whether the last iteration moved no centroid, or improved less than the tolerance.
    pub converged: bool,
    /// Sum of squared distances from the centroids that each iteration began with.
    pub inertia: Vec<f64>,
    /// Sum of squared distances from the centroids in the end.
    pub final_inertia: f64,
    /// Clusters without points in the end.
    pub empty_clusters: usize,
    /// Of each iteration: bytes that the busiest link of a node or rack had to carry in one direction, of payload.
    pub busiest_link_bytes: Vec<u64>,
    /// Distances of points from centroids that each iteration measured, as a share of all.
    pub distances: Vec<f64>,
    /// Of each iteration.
    pub seconds_computing: Vec<f64>,
    /// Of each iteration.
    pub seconds_communicating: Vec<f64>,
    /// Of the whole run.
    pub seconds: Seconds,
    /// Bytes that rank 0 sent to all ranks.
    pub bytes_broadcast: u64,
    /// Bytes that rank 0 sent to be added up.
    pub bytes_reduced: u64,
    /// What the network did on all nodes.
    pub network: NetworkTotals,
    /// Pictures that were left out because they do not decode.
    pub skipped_images: Vec<String>,
}

/// Times of a whole run.
#[derive(Debug, serde::Serialize)]
pub struct Seconds {
    /// Reading and describing rank 0's points.
    pub loading: f64,
    /// In iterations.
    pub computing: f64,
    /// In iterations.
    pub communicating: f64,
    /// From start to end.
    pub total: f64,
}

/// Payload that all nodes' agents sent, and what had to be mended.
#[derive(Debug, serde::Serialize)]
pub struct NetworkTotals {
    /// Bytes sent by multicast.
    pub multicast_bytes: u64,
    /// Bytes sent by unicast, without repairs.
    pub unicast_bytes: u64,
    /// Chunks that a node lacked and got by repair.
    pub chunks_repaired: u64,
    /// Chunks that a node sent as repair.
    pub chunks_resent: u64,
}

impl NetworkTotals {
    /// What the calls so far cost all nodes. All ranks call it.
    pub fn total(peers: &PeerRanks<'_>) -> Result<Self, Error> {
        let (_, prints) = peers.on_node();
        let stats = peers.stats();
        let mine = [stats.multicast_bytes, stats.unicast_bytes, stats.chunks_repaired, stats.chunks_resent];
        let mine = if prints { mine.to_vec() } else { vec![0; mine.len()] };
        let all = peers.combine(mine, Op::Sum)?;
        Ok(Self {
            multicast_bytes: all[0],
            unicast_bytes: all[1],
            chunks_repaired: all[2],
            chunks_resent: all[3],
        })
    }
}

/// What only the caller knows about a run.
#[derive(Debug)]
pub struct RunInfo {
    /// Names it.
    pub seed: u64,
    /// Threads of each rank.
    pub threads: usize,
    /// Seconds that loading took.
    pub loading: f64,
    /// Seconds from start to end.
    pub total: f64,
}

/// Sums a run up, at rank 0.
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

/// Of all distances, which each iteration measured.
fn distances(points: u64, clustered: &GridClustering) -> Vec<f64> {
    let all = points as f64 * clustered.centroids.len() as f64;
    clustered.iterations.iter().map(|i| i.measured as f64 / all).collect()
}

/// Writes a value as JSON, whole or not at all.
///
/// # Errors
/// If the file cannot be written.
pub fn write_json(path: &Path, value: &(impl serde::Serialize + ?Sized)) -> Result<(), Error> {
    let text = serde_json::to_vec_pretty(value).map_err(std::io::Error::from).map_err(Error::file(path))?;
    replace_file(path, &[&text, b"\n"]).map_err(Error::file(path))
}
