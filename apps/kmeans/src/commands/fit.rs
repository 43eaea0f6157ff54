//! The command `fit`: clusters points.

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

/// Cluster image patches, or any points, on many nodes.
///
/// Pictures are cut into patches, each described by 512 numbers (histograms of oriented gradients).
/// The centers of the clusters are the visual words of the pictures. The result is the same to the
/// bit on any number of ranks and threads.
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

    /// Maximum number of iterations. The run ends earlier if no centroid moves.
    #[arg(short, long, default_value_t = 20, value_name = "N")]
    iterations: usize,

    /// Stop when an iteration lowers the inertia by less than this share of it; 0 continues until
    /// no centroid moves.
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    tolerance: f64,

    /// Stop when an iteration moves the centroids by no more than this share of the points'
    /// variance, as scikit-learn's `tol`. 0 continues until no centroid moves.
    ///
    /// The sum of the centroids' squared movements is compared with the mean variance of the
    /// coordinates.
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    movement: f64,

    /// Stop after the first iteration that ends later than this.
    ///
    /// The number of iterations then depends on the machine, but nothing else does.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time_limit: Option<Duration>,

    /// Number of runs with different first centroids, from consecutive seeds. The run with the
    /// least inertia is returned.
    #[arg(long, default_value_t = 1, value_name = "N")]
    restarts: usize,

    /// How distance is defined. With cosine, points and centroids are scaled to length 1 (spherical
    /// K-means).
    #[arg(long, value_name = "METRIC", default_value = "euclidean")]
    metric: Metric,

    /// How numbers other than bytes are stored: in 16 bits, with 65,535 steps over their range, or
    /// as floats, with 2^24 steps, as fine as the mantissas of 32-bit floating-point numbers.
    ///
    /// With float, a coordinate takes 4 bytes instead of 2, and distances take more time. Bytes are
    /// exact either way.
    #[arg(long, value_name = "HOW", default_value = "short")]
    precision: Reals,

    /// Weights of the points: a number for each row of the input, at least 0.
    ///
    /// Whole numbers up to 65,535 are used as they are. Otherwise the largest weight becomes
    /// 65,535, and the others are rounded.
    #[arg(long, value_name = "FILE.npy")]
    weights: Option<PathBuf>,

    /// Treatment of centroids without points: they keep their positions, or each gets half of the
    /// largest cluster.
    #[arg(long, value_name = "HOW", default_value = "keep")]
    empty: Empty,

    /// Before the first iteration, move the centroids by one pass over all points, N at a time.
    ///
    /// The pass takes about as long as an iteration and saves several, because centroids are
    /// updated after each batch.
    #[arg(long, value_name = "N")]
    mini_batch: Option<u64>,

    /// Seed of the run. The same seed and inputs give the same result.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    /// Origin of the first centroids: k-means||, k-means++, random, or an .npy file with as many
    /// rows.
    ///
    /// The default is k-means++ up to 1000 clusters, and k-means|| above. k-means|| examines 32
    /// points per cluster on all ranks; rank 0 then chooses among some of them.
    #[arg(long, value_name = "HOW", value_parser = |name: &str| Ok::<_, std::convert::Infallible>(Init::from_name(name)))]
    init: Option<Init>,

    /// Points sampled per first centroid, among which k-means++ chooses. 1 uses random points.
    ///
    /// A larger sample gives a better start. The work of rank 0 and the traffic grow in proportion.
    #[arg(long, default_value_t = 4, value_name = "N")]
    sample: usize,

    /// Maximum number of points. If there are more, an even subsample over all inputs is used.
    #[arg(long, value_name = "N")]
    max_points: Option<u64>,

    /// How nearest centroids are found: by all distances, by bounds, which avoid most distances
    /// once centroids move little, or by the faster of the two. The result is the same.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    assign: AssignMethod,

    /// Number of centroids for which each point keeps an individual bound of 12 bytes; by default
    /// as many as fit the memory.
    #[arg(long, value_name = "N")]
    near: Option<usize>,

    /// Maximum memory of each rank, for example 4G or 512M. Bounds use the memory that remains
    /// after points, centroids and sums.
    ///
    /// By default, bounds take three eighths of the points' memory.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory: Option<u64>,

    /// Write the state to this file after every iteration. A crash leaves the last complete state.
    ///
    /// If ranks are lost, another rank may become rank 0 and write the file, so it should be in a
    /// directory that all nodes share.
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,

    /// Continue from the checkpoint, if it exists. The result is that of an uninterrupted run.
    #[arg(long, requires = "checkpoint")]
    resume: bool,

    /// Write a model file, with which other points can be assigned to the clusters (see cool-kmeans
    /// assign, histogram and inspect).
    #[arg(long, value_name = "FILE.cool")]
    model: Option<PathBuf>,

    /// Write the cluster of each point, in the order of the points: .npy with <i4, or text.
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,

    /// Write the centroids as an .npy array of 64-bit floats.
    #[arg(long, value_name = "FILE.npy")]
    centroids: Option<PathBuf>,

    /// Write figures of the run: inertia, times and bytes of every iteration.
    #[arg(long, value_name = "FILE.json")]
    summary: Option<PathBuf>,

    /// Write the points nearest to some centroids, from large clusters to small ones. For pictures,
    /// also write a mosaic of them to FILE.png.
    #[arg(long, value_name = "FILE.json")]
    words: Option<PathBuf>,

    /// Number of clusters that --words shows.
    #[arg(long, default_value_t = 24, value_name = "N")]
    word_count: usize,

    /// Number of points per cluster that --words shows.
    #[arg(long, default_value_t = 10, value_name = "N")]
    word_points: usize,

    #[command(flatten)]
    work: WorkOptions,
}

const EXAMPLES: &str = "\
Examples:
  cool-kmeans -k 256 --words words.json photographs/
      on this machine only
  cool run -n 16 -- cool-kmeans -k 1000 --max-points 1000000 --summary run.json /data/photographs
      with 16 ranks on the nodes of a cluster
  cool run --survive -- cool-kmeans -k 1000 --checkpoint /shared/run.ckpt --resume --centroids /shared/c.npy /data/photographs
      survives the loss of nodes and, started again, resumes after the loss of all
  cool-kmeans -k 10 --tolerance 1e-4 --model points.cool --labels labels.npy points.npy
      clusters any points; the model assigns others: cool-kmeans assign --model points.cool more.npy";

impl FitCommand {
    /// Executes the command on all ranks.
    pub(crate) fn start(&self) -> Result<(), Error> {
        on_all_ranks(self.work.alone, || {
            let mut surviving = SurvivingState::default();
            move |peers: &PeerRanks<'_>| rank(self, peers, &mut surviving)
        })
    }

    /// Returns which points to load.
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

    /// Returns the options of the clustering.
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

    /// Returns the output files.
    fn outputs(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.model, &self.labels, &self.centroids, &self.summary, &self.words, &self.checkpoint]
            .into_iter()
            .flatten()
    }
}

/// State that a rank keeps when other ranks are lost.
#[derive(Default)]
struct SurvivingState {
    start: Option<Instant>,
    share: Option<PointShare>,
    progress: ClusteringProgress,
}

/// Executes the command as one rank. It is called again after each loss of ranks.
fn rank(fit: &FitCommand, peers: &PeerRanks<'_>, surviving: &mut SurvivingState) -> Result<(), Error> {
    let start = *surviving.start.get_or_insert_with(Instant::now);
    let threads = fit.work.threads(peers);
    let options = fit.clustering(threads);
    let terminal = Terminal::new(peers.leads(), options.iterations);
    // Creates the directories now, because a long run should not fail at its end.
    let ready = if peers.leads() { fit.outputs().try_for_each(|path| create_parent(path)) } else { Ok(()) };
    let loading = peers.agree(ready.and_then(|()| fit.loading(threads)))?;

    let share = PointShare::reload(&mut surviving.share, peers, &loading, &terminal)?;
    let loaded = start.elapsed().as_secs_f64();
    for path in share.source.skipped() {
        terminal.print_line(&format!("skipped, because it cannot be decoded: {}", path.display()));
    }
    terminal.print_line(&format!(
        "{} points of {} coordinates, {} ranks of {threads} threads; loaded in {loaded:.1} s",
        share.chosen.len(),
        share.points.dims,
        peers.size()
    ));
    terminal.print_line(&plan(share, &options));
    let clustered = share.cluster(peers, &options, &terminal, &mut surviving.progress)?;
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
    // The other ranks wait until rank 0 has written: if rank 0 is lost, one of them must write.
    peers.agree(if peers.leads() { write() } else { Ok(()) })
}

/// Returns a description of the instructions and bounds that will be used.
fn plan(share: &PointShare, options: &ClusteringOptions) -> String {
    let bounds = match options.tuning.near(&share.points, options.k) {
        Some(near) if options.tuning.method != AssignMethod::Full => {
            let (near, bytes) =
                (near.min(options.k), Bounds::bytes_per_point(near.min(options.k), options.k));
            format!("bounds for {near} centroids per point, {bytes} bytes per point")
        }
        _ => "no bounds".to_owned(),
    };
    format!("{} instructions; {bounds}", options.tuning.level)
}

/// Writes the model, the centroids and the summary, and prints the result. Only the rank that also
/// writes labels and words may call this.
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
    table.commit()
}
