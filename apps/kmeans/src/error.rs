//! What can go wrong, each naming the thing and what to do about it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Why a clustering could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder could not be read or written.
    #[error("{}: {source}{}", path.display(), remedy(source))]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A picture does not decode.
    #[error("{}: not a picture that can be read ({source}); mend or remove it, or pass --skip-bad-images", path.display())]
    Picture {
        /// The picture.
        path: PathBuf,
        /// What the decoder said.
        source: image::ImageError,
    },
    /// A line of the text form is wrong.
    #[error("{}:{line}: {problem}", path.display())]
    Line {
        /// The text file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// A file does not hold what it should.
    #[error("{}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file is no model that can be used.
    #[error("{}: {problem}; cool-kmeans fit and cool-kmeans classify train write such files", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The inputs do not go together, or hold nothing.
    #[error("{0}")]
    Input(String),
    /// More clusters asked for than there are points.
    #[error(
        "{k} clusters were asked for but there are only {points} points; lower -k or give more data (for pictures: a smaller --stride)"
    )]
    TooManyClusters {
        /// Clusters asked for.
        k: usize,
        /// Points there are.
        points: u64,
    },
    /// An option has a value that makes no sense.
    #[error("{0}")]
    Option(String),
    /// Another rank failed.
    #[error("rank {rank}: {message}")]
    Elsewhere {
        /// The smallest rank that failed.
        rank: usize,
        /// Why.
        message: String,
    },
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] cool::Error),
    /// The job of all ranks failed.
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
    /// For `map_err` on the file operations of `path`.
    pub fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::File { path: path.to_owned(), source }
    }
}

/// What to do about a file that cannot be read or written.
fn remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound => "; check the name, which must be the same at every rank",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "; make room or name another place: nothing half-written was kept"
        }
        _ => "",
    }
}
