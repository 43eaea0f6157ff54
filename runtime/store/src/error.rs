//! Errors of a store, in one line that begins with the path if there is one.

use crate::name::StoreName;
use crate::quota::Unfit;
use cool_content::ManifestError;
use std::io;
use std::path::{Path, PathBuf};

/// An error of a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system reports an error for a path.
    #[error("{}: {reason}", .path.display())]
    Path {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
    /// The directory cannot be a store of this user.
    #[error("{}: {reason}; name another directory with --store", .path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// The reason why it cannot be a store.
        reason: String,
    },
    /// The store was made by a program with another format.
    #[error("{}: is a store of format {found:?}, and this program supports {known:?}; install the same release on all nodes", .path.display())]
    Format {
        /// The store.
        path: PathBuf,
        /// Format of the store.
        found: String,
        /// Format that this program supports.
        known: &'static str,
    },
    /// A text is not a valid name.
    #[error("invalid name {name:?}: {why}")]
    Name {
        /// The text.
        name: String,
        /// The reason why it is invalid.
        why: &'static str,
    },
    /// A content does not fit, even after eviction.
    #[error("{}: {unfit}; nothing was changed", .path.display())]
    Full {
        /// The store.
        path: PathBuf,
        /// The sizes that do not fit.
        unfit: Unfit,
    },
    /// A later put of the same name has completed first.
    #[error("a later put of {0} has completed there, and its content stays; `cool stat {0}` shows it")]
    Superseded(StoreName),
    /// The quota cannot be read.
    #[error("{}: is not a number; `cool put --quota` replaces it", .0.display())]
    Quota(PathBuf),
    /// A file of the store differs from the one that was put.
    #[error("{}: is damaged ({why}); `cool verify --drop` removes such contents", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How it differs.
        why: String,
    },
}

impl StoreError {
    /// Returns a function that makes an error of a path and a system error.
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> StoreError + '_ {
        move |reason| StoreError::Path { path: path.to_owned(), reason }
    }

    pub(crate) fn manifest(path: &Path) -> impl FnOnce(ManifestError) -> StoreError + '_ {
        move |why| StoreError::Damaged { path: path.to_owned(), why: why.to_string() }
    }
}
