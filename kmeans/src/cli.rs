//! The command line.

use clap::Parser;
use cool_distance::Level;
use cool_kmeans::Error;
use cool_kmeans::choose::{Effort, Method};
use cool_kmeans::lloyd::{Clustering, Init, Loading};
use cool_kmeans::pictures::Cut;
use cool_kmeans::source::Input;
use std::path::{Path, PathBuf};

/// Groups image patches, or any points, into clusters, on as many nodes as there are.
///
/// Pictures are cut into patches, each described by 512 numbers (histograms of oriented gradients); the clusters' centres
/// are the pictures' visual words. The result is the same to the bit on any number of ranks and threads.
#[derive(Debug, Parser)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Pictures (.jpg, .jpeg, .png) or folders of them, or text files, or one .npy file.
    ///
    /// A text file has one point a line: pictureID rowID colID f1 f2 ... An .npy file is a table of |u1, <f4 or <f8 in C
    /// order, one point a row. Every rank must find the inputs under the same names.
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,

    /// Number of clusters. Time and traffic grow in proportion.
    #[arg(short, long = "clusters", value_name = "N")]
    k: usize,

    /// Most iterations; fewer if no centroid moves any more.
    #[arg(short, long, default_value_t = 20, value_name = "N")]
    iterations: usize,

    /// Stop as soon as an iteration lowers the inertia by less than this share of it; 0 goes on until nothing moves.
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    tolerance: f64,

    /// Names the run: the same seed and inputs give the same result.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    /// Where the first centroids come from: k-means||, k-means++, random, or an .npy file of as many rows.
    ///
    /// By default k-means++ up to 1000 clusters, and k-means|| above. k-means|| looks at 32 points a cluster, by all ranks,
    /// and lets rank 0 choose among some of them.
    #[arg(long, value_name = "HOW", value_parser = |name: &str| Ok::<_, std::convert::Infallible>(Init::named(name)))]
    init: Option<Init>,

    /// Points sampled for each first centroid, among which k-means++ chooses; 1 takes random points as they are.
    ///
    /// A larger sample starts nearer to a good result; rank 0 computes, and all send, in proportion.
    #[arg(long, default_value_t = 4, value_name = "N")]
    sample: usize,

    /// Side of a patch in pixels, a multiple of 5.
    #[arg(long, default_value_t = 40, value_name = "PIXELS")]
    patch: u32,

    /// Pixels from one patch to the next; halving it gives four times the points.
    #[arg(long, default_value_t = 20, value_name = "PIXELS")]
    stride: u32,

    /// Numbers on each line of a text file.
    #[arg(long, default_value_t = 512, value_name = "N")]
    dims: usize,

    /// Most points; if there are more, they are thinned evenly over all inputs.
    #[arg(long, value_name = "N")]
    max_points: Option<u64>,

    /// Report and leave out pictures that do not decode; costs decoding every picture once more.
    #[arg(long)]
    skip_bad_images: bool,

    /// Threads of each rank; by default a node's processors are shared out among its ranks.
    #[arg(long, value_name = "N")]
    threads: Option<std::num::NonZeroUsize>,

    /// How nearest centroids are found: by all distances, by bounds that spare most of them once centroids move little, or
    /// by whichever takes less time. The result is the same.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    assign: Method,

    /// Centroids for which each point keeps a bound of its own, of 12 bytes; by default as many as there is room for.
    #[arg(long, value_name = "N")]
    near: Option<usize>,

    /// Memory that each rank may take, as 4G or 512M: bounds take what points, centroids and sums leave of it.
    ///
    /// Without it, bounds take three eighths of the points' memory.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory: Option<u64>,

    /// Vector instructions to use: scalar, sse2, avx2, avx512, vnni or amx; by default the best of the processor.
    ///
    /// The result is the same with all of them.
    #[arg(long, env = "COOL_SIMD", value_name = "LEVEL")]
    simd: Option<Level>,

    /// Work in this process only, also where `cool run` started it.
    ///
    /// A program started by hand does so anyway, unless it was built with the feature `embedded`.
    #[arg(long)]
    pub(crate) alone: bool,

    /// Write how far the run has come to this file after every iteration; a crash leaves the last one whole.
    ///
    /// If ranks are lost, another one may be rank 0 and write it: use a folder that all nodes share.
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,

    /// Go on from the checkpoint, if there is one, with the result of a run that was never interrupted.
    #[arg(long, requires = "checkpoint")]
    resume: bool,

    /// Write the centroids as a table of <f8.
    #[arg(long, value_name = "FILE.npy")]
    pub(crate) centroids: Option<PathBuf>,

    /// Write figures of the run: inertia, times and bytes of every iteration.
    #[arg(long, value_name = "FILE.json")]
    pub(crate) summary: Option<PathBuf>,

    /// Write the points nearest to some centroids, of large clusters to small; for pictures also their mosaic, FILE.png.
    #[arg(long, value_name = "FILE.json")]
    pub(crate) words: Option<PathBuf>,

    /// How many clusters --words shows.
    #[arg(long, default_value_t = 24, value_name = "N")]
    pub(crate) word_count: usize,

    /// How many points --words shows of each.
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub(crate) word_points: usize,
}

/// A number of bytes, with K, M or G for powers of 1024.
fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let unit: u64 = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return Err("one of K, M and G may follow the number".into()),
    };
    let number: u64 = digits.parse().map_err(|_| "a number of bytes such as 4G or 512M".to_owned())?;
    number.checked_mul(unit).ok_or_else(|| "more than there can be".to_owned())
}

const EXAMPLES: &str = "\
Examples:
  cool-kmeans -k 256 --words words.json photographs/
      on this machine alone
  cool run -n 16 -- cool-kmeans -k 1000 --max-points 1000000 --summary run.json /data/photographs
      by 16 ranks on the nodes of a cluster
  cool run --survive -- cool-kmeans -k 1000 --checkpoint /shared/run.ckpt --resume --centroids /shared/c.npy /data/photographs
      goes on when nodes are lost, and, started again, when all were
  cool-kmeans -k 10 --tolerance 1e-4 --centroids centres.npy points.npy
      any points";

impl Cli {
    /// What to read.
    pub(crate) fn loading(&self, threads: usize) -> Result<Loading, Error> {
        let cut = Cut::new(self.patch, self.stride)?;
        Ok(Loading {
            input: Input { paths: self.inputs.clone(), cut, dims: self.dims },
            max_points: self.max_points.unwrap_or(u64::MAX),
            skip_bad: self.skip_bad_images,
            seed: self.seed,
            threads,
        })
    }

    /// What to do with it.
    pub(crate) fn clustering(&self, threads: usize) -> Clustering {
        Clustering {
            k: self.k,
            iterations: self.iterations,
            tolerance: self.tolerance,
            seed: self.seed,
            sample: self.sample,
            init: self.init.clone(),
            effort: Effort {
                method: self.assign,
                near: self.near,
                memory: self.memory,
                level: self.simd.unwrap_or_else(Level::best),
                threads,
            },
            checkpoint: self.checkpoint.clone(),
            resume: self.resume,
        }
    }

    /// Threads of a rank that shares its node with `ranks - 1` others.
    pub(crate) fn threads(&self, ranks: usize) -> usize {
        self.threads.map_or_else(|| default_threads(ranks), |n| n.get())
    }

    /// The files to be written.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.centroids, &self.summary, &self.words, &self.checkpoint].into_iter().flatten()
    }
}

/// Threads of each of the `ranks` of a node that share its processors.
pub(crate) fn default_threads(ranks: usize) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    (processors / ranks).max(1)
}

/// Makes the folder that a file is to be in.
pub(crate) fn make_folder(file: &Path) -> Result<(), Error> {
    let folder = file.parent().unwrap_or(Path::new(""));
    std::fs::create_dir_all(folder).map_err(|source| Error::File { path: folder.to_owned(), source })
}
