//! Options that several commands have.

use clap::Args;
use cool_distance::Level;
use cool_kmeans::Error;
use cool_kmeans::peers::Peers;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

/// Who does the work, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Work")]
pub(crate) struct Work {
    /// Threads of each rank; by default a node's processors are shared out among its ranks.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,

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
}

impl Work {
    /// Threads of this rank.
    pub(crate) fn threads(&self, peers: &Peers<'_>) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let shared = || (processors / peers.on_node().0).max(1);
        self.threads.map_or_else(shared, NonZeroUsize::get)
    }

    /// The instructions that do the work.
    pub(crate) fn level(&self) -> Level {
        self.simd.unwrap_or_else(Level::best)
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
pub(crate) fn make_folder(file: &Path) -> Result<(), Error> {
    let folder = file.parent().unwrap_or(Path::new(""));
    std::fs::create_dir_all(folder).map_err(|source| Error::File { path: folder.to_owned(), source })
}

/// A time in seconds, more than 0.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "a number of seconds".to_owned())
}
