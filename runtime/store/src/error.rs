//! Why a store does not do what is asked, in one line that begins with the path where there is one.

use crate::quota::Unfit;
use cool_content::ManifestError;
use std::io;
use std::path::{Path, PathBuf};

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// What the system says of a path.
    #[error("{}: {reason}", .path.display())]
    Path {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// The folder cannot be a store of this user.
    #[error("{}: {what}; name another folder with --store", .path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// A later program's.
    #[error("{}: is a store of format {found:?}, and this program knows {known:?}; install the same release on all nodes", .path.display())]
    Format {
        /// The store.
        path: PathBuf,
        /// What it says it is.
        found: String,
        /// What it should say.
        known: &'static str,
    },
    /// A name that names nothing.
    #[error("{name:?} is no name: {why}")]
    Name {
        /// The text.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A content does not fit, whatever is evicted.
    #[error("{}: {unfit}; nothing was changed", .path.display())]
    Full {
        /// The store.
        path: PathBuf,
        /// In figures.
        unfit: Unfit,
    },
    /// The quota cannot be read.
    #[error("{}: is no number; `cool put --quota` writes it anew", .0.display())]
    Quota(PathBuf),
    /// What is there is not what was put.
    #[error("{}: is damaged ({why}); `cool verify --drop` removes such contents", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl StoreError {
    /// What the system says of a path.
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> StoreError + '_ {
        move |reason| StoreError::Path { path: path.to_owned(), reason }
    }

    pub(crate) fn manifest(path: &Path) -> impl FnOnce(ManifestError) -> StoreError + '_ {
        move |why| StoreError::Damaged { path: path.to_owned(), why: why.to_string() }
    }
}
