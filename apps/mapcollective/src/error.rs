//! Errors of a job, with the remedy.

use std::path::{Path, PathBuf};

/// Why a job failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] cool::Error),
    /// A collective failed because ranks are lost. The job has recorded this, so
    /// [`run`](crate::run) starts the program again as soon as the program returns this or any
    /// other error.
    #[error("{0}")]
    Lost(String),
    /// Another rank failed.
    #[error("rank {rank}: {message}")]
    Elsewhere {
        /// The smallest rank that failed.
        rank: usize,
        /// Its error message.
        message: String,
    },
    /// A rank sent data that is not a table of this program, because the ranks run different
    /// programs.
    #[error(
        "rank {rank} sent data that is not a table of this program ({source}); run the same program at all ranks"
    )]
    Table {
        /// The sender.
        rank: usize,
        /// The problem.
        source: Malformed,
    },
    /// A value cannot be serialized.
    #[error("a value cannot be serialized: {0}")]
    Value(postcard::Error),
    /// A checkpoint belongs to another run, or is damaged.
    #[error("{}: {problem}; remove the file, or choose another, to start from the beginning", .path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        |source| Error::File { path: path.to_owned(), source }
    }
}

/// Why received bytes are not a table of the expected shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes end within a key or a value.
    #[error("it ends too early")]
    Short,
    /// A key or a value has an invalid encoding.
    #[error("a key or a value has an invalid encoding")]
    Form,
    /// The number of a row is too large.
    #[error("there is no row {0}")]
    Row(u64),
    /// Partitions are missing or occur twice, because not every rank has mapped its part.
    #[error("partitions are missing or occur twice")]
    Partitions,
}

impl From<postcard::Error> for Malformed {
    fn from(error: postcard::Error) -> Malformed {
        match error {
            postcard::Error::DeserializeUnexpectedEnd => Malformed::Short,
            _ => Malformed::Form,
        }
    }
}
