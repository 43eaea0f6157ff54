//! Options that several commands have.

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

/// Who does the work, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Work")]
pub(crate) struct WorkOptions {
    /// Threads of each rank; by default a node's processors are shared out among its ranks.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,

    /// Vector instructions to use: scalar, sse2, avx2, avx512, vnni or amx; by default the best of the processor.
    ///
    /// The result is the same with all of them.
    #[arg(long, env = "COOL_SIMD", value_name = "LEVEL")]
    simd: Option<SimdLevel>,

    /// Work in this process only, also where `cool run` started it.
    ///
    /// A program started by hand does so anyway, unless it was built with the feature `embedded`.
    #[arg(long)]
    pub(crate) alone: bool,
}

impl WorkOptions {
    /// Lets all ranks do their part, again whenever others are lost.
    pub(crate) fn run(&self, part: impl Fn(&PeerRanks<'_>) -> Result<(), Error> + Sync) -> Result<(), Error> {
        on_all_ranks(self.alone, || &part)
    }

    /// Threads of this rank.
    pub(crate) fn threads(&self, peers: &PeerRanks<'_>) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let shared = || (processors / peers.on_node().0).max(1);
        self.threads.map_or_else(shared, NonZeroUsize::get)
    }

    /// The instructions that do the work.
    pub(crate) fn level(&self) -> SimdLevel {
        self.simd.unwrap_or_else(SimdLevel::best)
    }
}

/// What to read.
#[derive(Debug, Args)]
#[command(next_help_heading = "Input")]
pub(crate) struct InputFiles {
    /// Pictures, folders or tar files of them, tables (.npy, .fvecs, .bvecs, .parquet, .csv) or text files.
    ///
    /// Pictures are .jpg, .jpeg and .png. An .npy file is a table of |u1, |i1, <i4, <f2, <f4 or <f8 in C order, one point a row.
    #[cfg_attr(
        feature = "parquet",
        doc = "A .parquet file has columns of numbers, or one of lists of as many numbers each."
    )]
    #[cfg_attr(
        not(feature = "parquet"),
        doc = "This program was built without the feature `parquet`, and refuses .parquet files."
    )]
    /// A .csv or .tsv file has numbers between commas, semicolons or tabs, with a header or without. Any other file is text with a point a line:
    /// pictureID rowID colID f1 f2 ... Several files of one form are read one behind the other. Every rank must find the inputs
    /// under the same names, and reads its own share of them only.
    #[arg(required = true, value_name = "INPUT")]
    paths: Vec<PathBuf>,

    /// Numbers on each line of a text file; by default as many as on the first.
    #[arg(long, value_name = "N")]
    dims: Option<usize>,

    /// Report and leave out pictures that do not decode; costs decoding every picture once more.
    #[arg(long)]
    skip_bad_images: bool,
}

impl InputFiles {
    /// With how patches are cut out of pictures.
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
    /// Numbers that describe a patch: histograms of oriented gradients of 5 x 5 cells (512) or 9 x 9 (2048).
    #[arg(long, default_value = "512", value_name = "N")]
    hog: HogLength,

    /// Side of a patch in pixels, a multiple of 5 or 9; by default 8 pixels for each cell, to classify pictures 4.
    #[arg(long, value_name = "PIXELS")]
    patch: Option<u32>,

    /// Pixels from one patch to the next; halving it gives four times the patches. By default 20, to classify pictures 8.
    #[arg(long, value_name = "PIXELS")]
    stride: Option<u32>,

    /// Cluster N patches from random places of each picture, and not all.
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
    /// The patches of clusterings.
    pub(crate) fn cut(&self) -> Result<PatchLayout, Error> {
        self.cut_by(8, 20)
    }

    /// The finer patches of classifiers.
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

    /// The patches that are drawn, if not all are taken.
    pub(crate) fn sampling(&self, seed: u64) -> Result<Option<PatchSampling>, Error> {
        match self.patches {
            Some(0) => Err(Error::Option("--patches 0: one patch of each picture is the least".into())),
            each => Ok(each.map(|each| PatchSampling { each, seed })),
        }
    }
}

/// A number of bytes, with K, M or G for powers of 1024.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
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

/// Makes the folder that a file is to be in.
pub(crate) fn create_parent(file: &Path) -> Result<(), Error> {
    let directory = file.parent().unwrap_or(Path::new(""));
    std::fs::create_dir_all(directory).map_err(|source| Error::File { path: directory.to_owned(), source })
}

/// A time in seconds, more than 0.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "a number of seconds".to_owned())
}
