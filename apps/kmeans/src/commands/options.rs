//! Options that several commands share.

use super::on_all_ranks;
use crate::Error;
use crate::data::inputs::InputOptions;
use crate::data::inputs::pictures::{PatchLayout, PatchSampling};
use crate::peer_ranks::PeerRanks;
use clap::{Args, ValueEnum};
use cool_distance::SimdLevel;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of the execution.
#[derive(Debug, Args)]
#[command(next_help_heading = "Work")]
pub(crate) struct WorkOptions {
    /// Threads per rank; by default the CPUs of a node are divided among its ranks.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,

    /// Vector instructions to use: scalar, sse2, avx2, avx512, vnni or amx; by default the best
    /// that the CPU supports.
    ///
    /// The result is the same with all of them.
    #[arg(long, env = "COOL_SIMD", value_name = "LEVEL")]
    simd: Option<SimdLevel>,

    /// Use only this process, even if `cool run` started it.
    ///
    /// A program that is started without `cool run` uses only its own process anyway, unless it was
    /// built with the feature `embedded`.
    #[arg(long)]
    pub(crate) alone: bool,
}

impl WorkOptions {
    /// Executes `part` on all ranks. It is called again after each loss of ranks.
    pub(crate) fn run(&self, part: impl Fn(&PeerRanks<'_>) -> Result<(), Error> + Sync) -> Result<(), Error> {
        on_all_ranks(self.alone, || &part)
    }

    /// Returns the number of threads of this rank.
    pub(crate) fn threads(&self, peers: &PeerRanks<'_>) -> usize {
        let cpus = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let shared = || (cpus / peers.on_node().0).max(1);
        self.threads.map_or_else(shared, NonZeroUsize::get)
    }

    /// Returns the vector instructions to use.
    pub(crate) fn level(&self) -> SimdLevel {
        self.simd.unwrap_or_else(SimdLevel::best)
    }
}

/// Input files.
#[derive(Debug, Args)]
#[command(next_help_heading = "Input")]
pub(crate) struct InputFiles {
    /// Pictures, directories or tar files of pictures, tables (.npy, .fvecs, .bvecs, .parquet,
    /// .csv) or text files.
    ///
    /// Pictures are .jpg, .jpeg and .png. An .npy file contains a table of |u1, |i1, <i4, <f2, <f4
    /// or <f8 in C order, with one point per row.
    #[cfg_attr(
        feature = "parquet",
        doc = "A .parquet file has columns of numbers, or one column of lists of equal length."
    )]
    #[cfg_attr(
        not(feature = "parquet"),
        doc = "This program was built without the feature `parquet` and refuses .parquet files."
    )]
    /// A .csv or .tsv file contains numbers separated by commas, semicolons or tabs, with or
    /// without a header. Any other file is text with one point per line: pictureID rowID colID f1
    /// f2 ... Several files must have the same format; they are read one after the other. Every
    /// rank must find the inputs under the same names, and reads only its own share of them.
    #[arg(required = true, value_name = "INPUT")]
    paths: Vec<PathBuf>,

    /// Numbers per line of a text file; by default the number in the first line.
    #[arg(long, value_name = "N")]
    dims: Option<usize>,

    /// Report and skip pictures that cannot be decoded. This decodes every picture one more time.
    #[arg(long)]
    skip_bad_images: bool,
}

impl InputFiles {
    /// Returns the input options, given how patches are cut out of pictures.
    pub(crate) fn input(&self, cut: PatchLayout, sampling: Option<PatchSampling>) -> InputOptions {
        InputOptions {
            paths: self.paths.clone(),
            cut,
            sampling,
            dims: self.dims,
            skip_bad: self.skip_bad_images,
        }
    }
}

/// How patches are cut out of pictures.
#[derive(Debug, Args)]
#[command(next_help_heading = "Patches of pictures")]
pub(crate) struct PatchOptions {
    /// Numbers that describe a patch: histograms of oriented gradients with 5 x 5 cells (512) or 9
    /// x 9 cells (2048).
    #[arg(long, default_value = "512", value_name = "N")]
    hog: HogLength,

    /// Side of a patch in pixels, a multiple of 5 or 9; by default 8 pixels per cell, for
    /// classification 4.
    #[arg(long, value_name = "PIXELS")]
    patch: Option<u32>,

    /// Distance between neighboring patches in pixels. Half the distance gives four times the
    /// patches. The default is 20, for classification 8.
    #[arg(long, value_name = "PIXELS")]
    stride: Option<u32>,

    /// Cluster N random patches of each picture instead of all patches.
    #[arg(long, value_name = "N")]
    patches: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum HogLength {
    #[value(name = "512")]
    Short,
    #[value(name = "2048")]
    Long,
}

impl PatchOptions {
    /// Returns the patches for clustering.
    pub(crate) fn cut(&self) -> Result<PatchLayout, Error> {
        self.cut_by(8, 20)
    }

    /// Returns the finer patches for classification.
    pub(crate) fn fine_cut(&self) -> Result<PatchLayout, Error> {
        self.cut_by(4, 8)
    }

    fn cut_by(&self, cell: u32, stride: u32) -> Result<PatchLayout, Error> {
        let cells = match self.hog {
            HogLength::Short => 5,
            HogLength::Long => 9,
        };
        PatchLayout::new(cells, self.patch.unwrap_or(cells * cell), self.stride.unwrap_or(stride))
    }

    /// Returns the random sampling of patches, or `None` to use all of them.
    pub(crate) fn sampling(&self, seed: u64) -> Result<Option<PatchSampling>, Error> {
        match self.patches {
            Some(0) => Err(Error::Option("--patches 0: must be at least 1 patch per picture".into())),
            each => Ok(each.map(|each| PatchSampling { each, seed })),
        }
    }
}

/// Parses a number of bytes, with K, M or G for powers of 1024.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let unit: u64 = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return Err("expected a number, optionally followed by K, M or G".into()),
    };
    let number: u64 =
        digits.parse().map_err(|_| "expected a number of bytes such as 4G or 512M".to_owned())?;
    number.checked_mul(unit).ok_or_else(|| "too large".to_owned())
}

/// Creates the directory of a file.
pub(crate) fn create_parent(file: &Path) -> Result<(), Error> {
    let directory = file.parent().unwrap_or(Path::new(""));
    std::fs::create_dir_all(directory).map_err(|source| Error::File { path: directory.to_owned(), source })
}

/// Parses a time in seconds, which must be above 0.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "expected a number of seconds above 0".to_owned())
}
