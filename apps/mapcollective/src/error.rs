//! Why a job did not work, and what to do.

use std::path::{Path, PathBuf};

/// Why a job did not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] cool::Error),
    /// A collective failed because ranks are lost: [`run`](crate::run) takes note, and begins again once the program
    /// has returned with this or any other error.
    #[error("{0}")]
    Lost(String),
    /// Another rank failed; its error in words.
    #[error("rank {rank}: {message}")]
    Elsewhere {
        /// The smallest rank that failed.
        rank: usize,
        /// What it said.
        message: String,
    },
    /// What a rank sent is no table as this rank has it: the ranks run different programs.
    #[error("what rank {rank} sent is no table of this program ({source}); do all ranks run the same one?")]
    Table {
        /// The sender.
        rank: usize,
        /// What is wrong.
        source: Malformed,
    },
    /// A value does not become bytes.
    #[error("a value cannot be sent or written: {0}")]
    Value(postcard::Error),
    /// A checkpoint belongs to something else, or is damaged.
    #[error("{}: {problem}; remove the file, or name another, to begin anew", .path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        |source| Error::File { path: path.to_owned(), source }
    }
}

/// Bytes that are no table of the expected shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// They end within a key or a value.
    #[error("it ends too early")]
    Short,
    /// A key or a value is not as it was written.
    #[error("a key or a value has no such form")]
    Form,
    /// A row has a number that is not below the number of rows.
    #[error("there is no row {0}")]
    Row(u64),
    /// Not all partitions are in it, or some twice: not every rank has mapped its part.
    #[error("its partitions are not each there once")]
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
