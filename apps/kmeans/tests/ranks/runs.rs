//! Shared parts of the tests: generated inputs, and clusterings on embedded ranks.

use cool::embedded::Embedded;
use cool_kmeans::Error;
use cool_kmeans::inputs::InputOptions;
use cool_kmeans::inputs::pictures::PatchLayout;
use cool_kmeans::lloyd::GridClustering;
use cool_kmeans::options::ClusteringOptions;
use cool_kmeans::partition::draw;
use cool_kmeans::peer_ranks::PeerRanks;
use cool_kmeans::point_share::{LoadOptions, PointSelection, PointShare};
use cool_kmeans::progress::{ClusteringProgress, Iteration, ProgressObserver};
use cool_kmeans::tuning::Tuning;
use cool_kmeans::visual_words::{self, VisualWord};
use cool_map::Options;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options with which ranks send centroids in several parts, although there are few.
pub(crate) const PARTS: Options<'static> =
    Options { threads: 0, patience: Duration::from_secs(3600), watch: None, part: 256 };

/// The result of a rank.
pub(crate) type Outcome = Result<(PointShare, GridClustering, Vec<VisualWord>), Error>;

/// Ignores all reports.
pub(crate) struct Silent;

impl ProgressObserver for Silent {
    fn loading(&self, _: u64) {}
    fn loaded(&self, _: u64) {}
    fn iteration(&self, _: &Iteration) {}
}

/// Returns numbers from 0 to less than `below`, the same in each call.
pub(crate) fn noise(count: usize, below: u64) -> Vec<u64> {
    (0..count as u64).map(|i| draw(99, i) % below).collect()
}

/// Writes a table of bytes as an `.npy` file.
pub(crate) fn write_bytes(path: &Path, values: &[u8], dims: usize) {
    let mut header =
        format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({}, {dims}), }}", values.len() / dims);
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values);
    std::fs::write(path, bytes).expect("written");
}

pub(crate) fn loading(paths: &[PathBuf], dims: usize) -> LoadOptions {
    let cut = PatchLayout::new(5, 20, 10).expect("a cut");
    let dims = (dims > 0).then_some(dims);
    let input = InputOptions { paths: paths.to_vec(), cut, sampling: None, dims, skip_bad: false };
    LoadOptions { input, select: PointSelection::all(5, 2) }
}

pub(crate) fn clustering(k: usize, threads: usize) -> ClusteringOptions {
    ClusteringOptions {
        iterations: 8,
        sample: 3,
        ..ClusteringOptions::new(k, 5, Tuning::with_threads(threads))
    }
}

/// The result of a run, assembled from all ranks.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) centroids: Vec<i16>,
    pub(crate) real: Vec<f64>,
    pub(crate) labels: Vec<u32>,
    pub(crate) sizes: Vec<i64>,
    pub(crate) inertia: Vec<f64>,
    pub(crate) moved: Vec<(u64, usize)>,
    pub(crate) movements: Vec<f64>,
    pub(crate) converged: bool,
    pub(crate) words: Vec<VisualWord>,
    pub(crate) skipped: Vec<PathBuf>,
}

impl Whole {
    /// Returns the part of the result that must not depend on the ranks.
    pub(crate) fn result(&self) -> impl PartialEq + std::fmt::Debug + '_ {
        let words: Vec<_> = self.words.iter().map(|w| serde_json::to_string(w).expect("JSON")).collect();
        let bits = |v: &[f64]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        (
            &self.centroids,
            bits(&self.real),
            &self.labels,
            &self.sizes,
            (bits(&self.inertia), &self.moved, bits(&self.movements), self.converged),
            words,
        )
    }
}

pub(crate) fn rank(peers: &PeerRanks<'_>, loading: &LoadOptions, how: &ClusteringOptions) -> Outcome {
    let share = PointShare::load(peers, loading, &Silent)?;
    let clustered = share.cluster(peers, how, &Silent, &mut ClusteringProgress::new())?;
    let found = visual_words::find(peers, &share, &clustered, 3, 4)?;
    Ok((share, clustered, found))
}

/// Clusters on embedded ranks, and returns the result of each rank.
pub(crate) fn ranks(ranks: usize, loading: &LoadOptions, how: &ClusteringOptions) -> Vec<Outcome> {
    // Several ranks per node, and uneven racks.
    let layout = Embedded { ranks, ranks_per_node: if ranks > 5 { 3 } else { 1 }, racks: ranks.min(3) };
    cool::embedded::run(layout, |comm| rank(&PeerRanks::with_options(&comm, PARTS), loading, how))
        .expect("agents start")
}

/// Clusters on embedded ranks, all of which must succeed.
pub(crate) fn whole(count: usize, loading: &LoadOptions, how: &ClusteringOptions) -> Whole {
    join(ranks(count, loading, how))
}

/// Clusters in one process without communication.
pub(crate) fn alone(loading: &LoadOptions, how: &ClusteringOptions) -> Whole {
    join(vec![rank(&PeerRanks::alone(), loading, how)])
}

pub(crate) fn join(ranks: Vec<Outcome>) -> Whole {
    let mut labels = Vec::new();
    let mut first = None;
    for outcome in ranks {
        let (share, clustered, found) = outcome.expect("every rank succeeds");
        labels.extend_from_slice(&clustered.labels);
        first.get_or_insert((share, clustered, found));
    }
    let (share, c, words) = first.expect("a rank");
    let mut inertia: Vec<f64> = c.iterations.iter().map(|i| i.inertia).collect();
    inertia.push(c.inertia);
    Whole {
        real: share.grid.real(&c.centroids),
        centroids: c.centroids.values,
        labels,
        sizes: c.sizes,
        inertia,
        moved: c.iterations.iter().map(|i| (i.moved_points, i.moved_centroids)).collect(),
        movements: c.iterations.iter().map(|i| i.movement).collect(),
        converged: c.converged,
        words,
        skipped: share.source.skipped(),
    }
}
