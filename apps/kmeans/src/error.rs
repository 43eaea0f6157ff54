//! Errors of a clustering. Each message must name the affected file or option, and the remedy.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Why a clustering failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory could not be read or written.
    #[error("{}: {source}{}", path.display(), remedy(source))]
    File {
        /// The file or directory.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A picture cannot be decoded.
    #[error("{}: not a readable picture ({source}); repair or remove it, or pass --skip-bad-images", path.display())]
    Picture {
        /// The picture.
        path: PathBuf,
        /// Error of the decoder.
        source: image::ImageError,
    },
    /// A line of a text file is invalid.
    #[error("{}:{line}: {problem}", path.display())]
    Line {
        /// The text file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// The problem.
        problem: String,
    },
    /// The contents of a file are invalid.
    #[error("{}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A file is not a usable model.
    #[error("{}: {problem}; use a file of cool-kmeans fit or cool-kmeans classify train", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The inputs do not fit together, or are empty.
    #[error("{0}")]
    Input(String),
    /// There are fewer points than requested clusters.
    #[error(
        "{k} clusters were requested but there are only {points} points; lower -k or provide more data (for pictures: a smaller --stride)"
    )]
    TooManyClusters {
        /// Number of requested clusters.
        k: usize,
        /// Number of points.
        points: u64,
    },
    /// An option has an invalid value.
    #[error("{0}")]
    Option(String),
    /// Another rank failed.
    #[error("rank {rank}: {message}")]
    Elsewhere {
        /// The smallest rank that failed.
        rank: usize,
        /// Its error message.
        message: String,
    },
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] cool::Error),
    /// The Map-Collective job failed.
    #[error(transparent)]
    Job(cool_map::Error),
}

impl From<cool_map::Error> for Error {
    fn from(error: cool_map::Error) -> Self {
        match error {
            cool_map::Error::Elsewhere { rank, message } => Self::Elsewhere { rank, message },
            cool_map::Error::Collective(error) => Self::Collective(error),
            error => Self::Job(error),
        }
    }
}

impl Error {
    /// Returns a function for `map_err` on the file operations of `path`.
    pub fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::File { path: path.to_owned(), source }
    }
}

/// Returns the remedy for a file that cannot be read or written.
fn remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound => "; check the name, which must be the same at every rank",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "; free some space or choose another location; no partial file was left"
        }
        _ => "",
    }
}
