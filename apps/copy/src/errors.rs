//! Errors of the ranks. The text of each is one line.
//!
//! There are three types: a [`CopyFileError`] is about a path on one node, a [`CopyError`] ends the
//! copy of a rank, and a [`RankError`] is a defect of the process itself.

use crate::secret::SECRET_VARIABLE;
use cool_content::{ManifestError, PathError};
use cool_peer::InquiryError;
use cool_store::StoreError;
use std::io;
use std::path::{Path, PathBuf};

/// A file or directory that cannot be read or written. The text begins with its path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyFileError {
    #[error("{}: {reason}", .path.display())]
    Path { path: PathBuf, reason: io::Error },
    #[error("{}: {problem}", .path.display())]
    Unusable { path: PathBuf, problem: &'static str },
    #[error("{}: changed while it was being read; copy it again when no program writes to it", .0.display())]
    Changed(PathBuf),
    #[error("{}: its content has another length than the system reports, as in /proc and /sys; use SOURCE `-`, or copy it to a regular file first", .0.display())]
    WrongSize(PathBuf),
    #[error("{}: is not a file, directory or symbolic link; exclude it", .0.display())]
    Special(PathBuf),
    #[error("{}: is not a file, directory or symbolic link; --delete removes it", .0.display())]
    SpecialDestination(PathBuf),
    #[error("{}: was created or changed during the copy, so DEST was left as it is; copy again when no program writes there", .0.display())]
    ChangedDestination(PathBuf),
    #[error("{reason}; the previous content could not be moved back and is in {}", .aside.display())]
    KeptAside { reason: String, aside: PathBuf },
    #[error("{}: has {extra}, which is not in the source; --delete removes such files", .path.display())]
    Extra { path: PathBuf, extra: String },
    #[error("{}: another copy is writing there; if nodes share a file system, use {{node}} in DEST or --store", .0.display())]
    Locked(PathBuf),
    #[error("{}: is inside the source", .0.display())]
    InsideSource(PathBuf),
    #[error("{}: contains the source {}, which the copy would replace; choose another DEST", .dest.display(), .source_path.display())]
    ContainsSource { dest: PathBuf, source_path: PathBuf },
    #[error("{}: received bytes differ from those that were sent", .0.display())]
    Corrupt(PathBuf),
    #[error("{}: {reason}", .path.display())]
    Name { path: PathBuf, reason: PathError },
    #[error("{}: {reason}", .path.display())]
    Manifest { path: PathBuf, reason: ManifestError },
    #[error("{}: is damaged; `cool verify --drop` removes damaged content from stores", .0.display())]
    Damaged(PathBuf),
    #[error("{}: is no longer in the store; `cool ls` lists what is there", .0.display())]
    Removed(PathBuf),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl CopyFileError {
    /// Returns a function that adds the path to an error of the system.
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> CopyFileError + '_ {
        move |reason| CopyFileError::Path { path: path.to_owned(), reason }
    }
}

/// An error that ends a pass of the ranks, or because of which a rank cannot take part.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error(transparent)]
    Group(#[from] cool::Error),
    #[error("{0}")]
    Source(String),
    #[error("lost source node {0}")]
    SourceLost(String),
    #[error("{0}")]
    File(#[from] CopyFileError),
    #[error("cannot decode the manifest of the source: {0}")]
    Manifest(#[from] ManifestError),
    #[error("{0}")]
    System(#[from] io::Error),
    #[error("the task has no secret, by which ranks recognize each other")]
    NoSecret,
    #[error(transparent)]
    Inquiry(#[from] InquiryError),
    #[error("joined late, and no remaining node has the missing blocks")]
    Alone,
    #[error("joined after the copy had ended{0}")]
    TooLate(String),
}

/// An error that ends the process of a rank. If only its node cannot have a copy, the rank reports
/// an event instead.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// The argument is not a task.
    #[error("the argument is not a task of this release's `cool`: {0}")]
    Task(serde_json::Error),
    /// The secret in the environment has the wrong form.
    #[error("{SECRET_VARIABLE}: {0}")]
    Secret(&'static str),
    /// The process is not a rank, or its group failed.
    #[error(transparent)]
    Cool(#[from] cool::Error),
    /// Standard output cannot be written.
    #[error("cannot report: {0}")]
    Report(io::Error),
}

/// Returns an error text without the numbers of system errors, such as " (os error 2)", because
/// they repeat the words before them.
#[must_use]
pub fn without_os_code(text: &str) -> String {
    const CODE: &str = " (os error ";
    let mut parts = text.split(CODE);
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((code, rest)) if code.bytes().all(|byte| byte.is_ascii_digit()) => result += rest,
            _ => result.extend([CODE, part]),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_system_errors_are_left_out() {
        let text = "/a: No such file or directory (os error 2); name another";
        assert_eq!(without_os_code(text), "/a: No such file or directory; name another");
        let twice = io::Error::from_raw_os_error(13).to_string().repeat(2);
        assert_eq!(without_os_code(&twice), "Permission deniedPermission denied");
        for other in ["", "plain", "x (os error is unknown)", "x (os error 2"] {
            assert_eq!(without_os_code(other), other);
        }
    }
}
