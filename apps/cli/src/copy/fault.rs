//! Why there is no copy on a node, in one line that begins with the path.

use cool_content::{ManifestError, PathError};
use cool_store::StoreError;
use std::io;
use std::path::{Path, PathBuf};

/// What is wrong with a file or folder.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("{}: {reason}", .path.display())]
    Path { path: PathBuf, reason: io::Error },
    #[error("{}: {what}", .path.display())]
    Taken { path: PathBuf, what: &'static str },
    #[error("{}: changed while it was read; copy it again when nobody writes it", .0.display())]
    Changed(PathBuf),
    #[error("{}: is neither a file nor a folder nor a symbolic link; leave it out", .0.display())]
    Special(PathBuf),
    #[error("{}: has {extra}, which the source has not; --delete removes such", .path.display())]
    Extra { path: PathBuf, extra: String },
    #[error("{}: another copy writes there; where nodes share a file system, let {{node}} stand in DEST or --store", .0.display())]
    Locked(PathBuf),
    #[error("{}: is within the source", .0.display())]
    Within(PathBuf),
    #[error("{}: bytes that came are not those that were sent", .0.display())]
    Wrong(PathBuf),
    #[error("{}: {reason}", .path.display())]
    Name { path: PathBuf, reason: PathError },
    #[error("{}: {reason}", .path.display())]
    Manifest { path: PathBuf, reason: ManifestError },
    #[error("{}: is not what was put; `cool verify --drop` removes such contents from stores", .0.display())]
    Damaged(PathBuf),
    #[error("{}: is no longer in the store; look at `cool ls`", .0.display())]
    Gone(PathBuf),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Fault {
    /// What the system says of a path.
    pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> Fault + '_ {
        move |reason| Fault::Path { path: path.to_owned(), reason }
    }
}
