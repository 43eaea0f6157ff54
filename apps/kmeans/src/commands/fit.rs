//! `fit`: clusters points.

use super::on_all_ranks;
use super::options::{InputFiles, PatchOptions, WorkOptions, bytes, create_parent, seconds};
use super::terminal::{Terminal, significant};
use crate::Error;
use crate::algorithm::bounds::Bounds;
use crate::algorithm::lloyd::GridClustering;
use crate::algorithm::tuning::{AssignMethod, Tuning};
use crate::data::grid::{Metric, Reals};
use crate::data::inputs::formats::ElementKind;
use crate::data::npy;
use crate::data::point_share::{LoadOptions, PointSelection, PointShare};
use crate::options::{ClusteringOptions, Empty, Init};
use crate::output::model::{Clusters, Model, Provenance};
use crate::output::report::{self, NetworkTotals, RunInfo};
use crate::output::tables::TableFile;
use crate::output::visual_words;
use crate::peer_ranks::PeerRanks;
use crate::progress::ClusteringProgress;
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Groups image patches, or any points, into clusters, on as many nodes as there are.
///
/// Pictures are cut into patches, each described by 512 numbers (histograms of oriented gradients); the clusters' centres
/// are the pictures' visual words. The result is the same to the bit on any number of ranks and threads.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct FitCommand {
    #[command(flatten)]
    files: InputFiles,

    #[command(flatten)]
    patches: PatchOptions,

    /// Number of clusters. Time and traffic grow in proportion.
    #[arg(short, long = "clusters", value_name = "N")]
    k: usize,

    /// Most iterations; fewer if no centroid moves any more.
    #[arg(short, long, default_value_t = 20, value_name = "N")]
    iterations: usize,

    /// Stop as soon as an iteration lowers the inertia by less than this share of it; 0 goes on until nothing moves.
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    tolerance: f64,

    /// Stop as soon as an iteration moves the centroids by no more than this share of the points' variance: scikit-learn's
    /// `tol`. 0 goes on until nothing moves.
    ///
    /// Compared are the sum of the squared distances that centroids move, and the mean of the variances of all coordinates.
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    movement: f64,

    /// Stop after the first iteration that ends later than this.
    ///
    /// How far the run comes then depends on the machine; all else does not.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time_limit: Option<Duration>,

    /// Runs, of which the one of the least inertia counts; each has first centroids of its own, by the next seed.
    #[arg(long, default_value_t = 1, value_name = "N")]
    restarts: usize,

    /// What distance is; with cosine, points and centroids are scaled to length 1 (spherical K-means).
    #[arg(long, value_name = "METRIC", default_value = "euclidean")]
    metric: Metric,

    /// How numbers that are no bytes are held: in 16 bits, 65,535 steps over their range, or as floats, 2^24 steps, as fine as
    /// the mantissas of 32-bit floating-point numbers.
    ///
    /// With float a coordinate takes 4 bytes in place of 2, and distances more time. Bytes are exact either way.
    #[arg(long, value_name = "HOW", default_value = "short")]
    precision: Reals,

    /// How many times each point counts: a number for each row of the input, at least 0.
    ///
    /// Whole numbers up to 65,535 are taken as they are; of others the largest becomes 65,535, and the rest are rounded.
    #[arg(long, value_name = "FILE.npy")]
    weights: Option<PathBuf>,

    /// What becomes of centroids without points: they stay where they are, or each gets half of the largest cluster.
    #[arg(long, value_name = "HOW", default_value = "keep")]
    empty: Empty,

    /// Before the first iteration, move the centroids by one pass over all points, N at a time.
    ///
    /// That costs about as much as an iteration and spares several: centroids follow their points within the pass.
    #[arg(long, value_name = "N")]
    mini_batch: Option<u64>,

    /// Names the run: the same seed and inputs give the same result.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    /// Where the first centroids come from: k-means||, k-means++, random, or an .npy file of as many rows.
    ///
    /// By default k-means++ up to 1000 clusters, and k-means|| above. k-means|| looks at 32 points a cluster, by all ranks,
    /// and lets rank 0 choose among some of them.
    #[arg(long, value_name = "HOW", value_parser = |name: &str| Ok::<_, std::convert::Infallible>(Init::from_name(name)))]
    init: Option<Init>,

    /// Points sampled for each first centroid, among which k-means++ chooses; 1 takes random points as they are.
    ///
    /// A larger sample starts nearer to a good result; rank 0 computes, and all send, in proportion.
    #[arg(long, default_value_t = 4, value_name = "N")]
    sample: usize,

    /// Most points; if there are more, they are thinned evenly over all inputs.
    #[arg(long, value_name = "N")]
    max_points: Option<u64>,

    /// How nearest centroids are found: by all distances, by bounds that spare most of them once centroids move little, or
    /// by whichever takes less time. The result is the same.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    assign: AssignMethod,

    /// Centroids for which each point keeps a bound of its own, of 12 bytes; by default as many as there is room for.
    #[arg(long, value_name = "N")]
    near: Option<usize>,

    /// Memory that each rank may take, as 4G or 512M: bounds take what points, centroids and sums leave of it.
    ///
    /// Without it, bounds take three eighths of the points' memory.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory: Option<u64>,

    /// Write how far the run has come to this file after every iteration; a crash leaves the last one whole.
    ///
    /// If ranks are lost, another one may be rank 0 and write it: use a folder that all nodes share.
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,

    /// Go on from the checkpoint, if there is one, with the result of a run that was never interrupted.
    #[arg(long, requires = "checkpoint")]
    resume: bool,

    /// Write all that is needed to assign other points to the clusters: cool-kmeans assign, histogram, inspect.
    #[arg(long, value_name = "FILE.cool")]
    model: Option<PathBuf>,

    /// Write each point's cluster, in order of the points: .npy of <i4, or text.
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,

    /// Write the centroids as a table of <f8.
    #[arg(long, value_name = "FILE.npy")]
    centroids: Option<PathBuf>,

    /// Write figures of the run: inertia, times and bytes of every iteration.
    #[arg(long, value_name = "FILE.json")]
    summary: Option<PathBuf>,

    /// Write the points nearest to some centroids, of large clusters to small; for pictures also their mosaic, FILE.png.
    #[arg(long, value_name = "FILE.json")]
    words: Option<PathBuf>,

    /// How many clusters --words shows.
    #[arg(long, default_value_t = 24, value_name = "N")]
    word_count: usize,

    /// How many points --words shows of each.
    #[arg(long, default_value_t = 10, value_name = "N")]
    word_points: usize,

    #[command(flatten)]
    work: WorkOptions,
}

const EXAMPLES: &str = "\
Examples:
  cool-kmeans -k 256 --words words.json photographs/
      on this machine alone
  cool run -n 16 -- cool-kmeans -k 1000 --max-points 1000000 --summary run.json /data/photographs
      by 16 ranks on the nodes of a cluster
  cool run --survive -- cool-kmeans -k 1000 --checkpoint /shared/run.ckpt --resume --centroids /shared/c.npy /data/photographs
      goes on when nodes are lost, and, started again, when all were
  cool-kmeans -k 10 --tolerance 1e-4 --model points.cool --labels labels.npy points.npy
      any points, their labels, and a model that assigns others: cool-kmeans assign --model points.cool more.npy";

impl FitCommand {
    /// Runs on all ranks.
    pub(crate) fn start(&self) -> Result<(), Error> {
        on_all_ranks(self.work.alone, || {
            let mut kept = SurvivingState::default();
            move |peers: &PeerRanks<'_>| rank(self, peers, &mut kept)
        })
    }

    /// What to read.
    fn loading(&self, threads: usize) -> Result<LoadOptions, Error> {
        Ok(LoadOptions {
            input: self.files.input(self.patches.cut()?, self.patches.sampling(self.seed)?),
            select: PointSelection {
                max_points: self.max_points.unwrap_or(u64::MAX),
                seed: self.seed,
                threads,
                metric: self.metric,
                reals: self.precision,
                weights: self.weights.clone(),
            },
        })
    }

    /// What to do with it.
    fn clustering(&self, threads: usize) -> ClusteringOptions {
        ClusteringOptions {
            k: self.k,
            iterations: self.iterations,
            tolerance: self.tolerance,
            movement: self.movement,
            time_limit: self.time_limit,
            seed: self.seed,
            restarts: self.restarts,
            empty: self.empty,
            mini_batch: self.mini_batch,
            sample: self.sample,
            init: self.init.clone(),
            tuning: Tuning {
                method: self.assign,
                near: self.near,
                memory: self.memory,
                level: self.work.level(),
                threads,
            },
            checkpoint: self.checkpoint.clone(),
            resume: self.resume,
        }
    }

    /// The files to be written.
    fn outputs(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.model, &self.labels, &self.centroids, &self.summary, &self.words, &self.checkpoint]
            .into_iter()
            .flatten()
    }
}

/// What a rank keeps when others are lost.
#[derive(Default)]
struct SurvivingState {
    start: Option<Instant>,
    share: Option<PointShare>,
    progress: ClusteringProgress,
}

/// What each rank does, again whenever others are lost.
fn rank(fit: &FitCommand, peers: &PeerRanks<'_>, kept: &mut SurvivingState) -> Result<(), Error> {
    let start = *kept.start.get_or_insert_with(Instant::now);
    let threads = fit.work.threads(peers);
    let options = fit.clustering(threads);
    let terminal = Terminal::new(peers.leads(), options.iterations);
    // What would spoil a long run at its end is better found out before it.
    let ready = if peers.leads() { fit.outputs().try_for_each(|path| create_parent(path)) } else { Ok(()) };
    let loading = peers.agree(ready.and_then(|()| fit.loading(threads)))?;

    let share = PointShare::reload(&mut kept.share, peers, &loading, &terminal)?;
    let loaded = start.elapsed().as_secs_f64();
    for path in share.source.skipped() {
        terminal.print_line(&format!("left out, as it does not decode: {}", path.display()));
    }
    terminal.print_line(&format!(
        "{} points of {} coordinates, {} ranks of {threads} threads; loaded in {loaded:.1} s",
        share.chosen.len(),
        share.points.dims,
        peers.size()
    ));
    terminal.print_line(&plan(share, &options));
    let clustered = share.cluster(peers, &options, &terminal, &mut kept.progress)?;
    terminal.finish();

    let found = match fit.words {
        Some(_) => visual_words::find(peers, share, &clustered, fit.word_count, fit.word_points)?,
        None => Vec::new(),
    };
    let labels = match fit.labels {
        Some(_) => peers.gather_all(clustered.labels.clone())?,
        None => Vec::new(),
    };
    let network = NetworkTotals::total(peers)?;
    let write = || {
        if let Some(path) = &fit.labels {
            write_labels(path, &labels)?;
        }
        if let Some(path) = &fit.words {
            visual_words::write(path, &share.source, &found)?;
        }
        let run =
            RunInfo { seed: options.seed, threads, loading: loaded, total: start.elapsed().as_secs_f64() };
        finish(fit, peers, share, &clustered, &run, network, &terminal)
    };
    // The others stay until it is done: if rank 0 is lost, one of them does it.
    peers.agree(if peers.leads() { write() } else { Ok(()) })
}

/// What was chosen to make it fast.
fn plan(share: &PointShare, options: &ClusteringOptions) -> String {
    let bounds = match options.tuning.near(&share.points, options.k) {
        Some(near) if options.tuning.method != AssignMethod::Full => {
            let (near, bytes) =
                (near.min(options.k), Bounds::bytes_per_point(near.min(options.k), options.k));
            format!("bounds for {near} centroids a point, {bytes} bytes each")
        }
        _ => "no bounds".to_owned(),
    };
    format!("{} instructions; {bounds}", options.tuning.level)
}

/// Rank 0's last words and files.
fn finish(
    fit: &FitCommand,
    peers: &PeerRanks<'_>,
    share: &PointShare,
    clustered: &GridClustering,
    run: &RunInfo,
    network: NetworkTotals,
    terminal: &Terminal,
) -> Result<(), Error> {
    terminal.print_line(&format!(
        "{} clusters after {} iterations{}; inertia {}",
        clustered.centroids.len(),
        clustered.iterations.len(),
        if clustered.converged { " (converged)" } else { "" },
        significant(clustered.inertia)
    ));
    if let Some(path) = &fit.model {
        let clusters = Clusters::from_clustering(share, clustered);
        let provenance = Provenance::from_clustering(share, clustered, &fit.clustering(run.threads))
            .made_by_this_command();
        Model { clusters, classifier: None, provenance }.write(path)?;
    }
    if let Some(path) = &fit.centroids {
        npy::write(path, &share.grid.real(&clustered.centroids), share.points.dims)?;
    }
    if let Some(path) = &fit.summary {
        report::write_json(path, &report::summarize(peers, share, clustered, run, network))?;
    }
    Ok(())
}

fn write_labels(path: &Path, labels: &[u32]) -> Result<(), Error> {
    let mut table = TableFile::create(path, ElementKind::I32, labels.len() as u64, 1)?;
    let bytes: Vec<u8> = labels.iter().flat_map(|label| label.to_le_bytes()).collect();
    table.write(&bytes, &[])?;
    table.keep()
}
