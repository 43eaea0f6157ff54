//! The result of a rank: whether its node has a copy.

use crate::errors::{CopyError, CopyFileError, without_os_code};
use crate::install::{Install, InstallResult};
use crate::protocol::CopyTask;

/// The result of a rank.
pub(crate) struct RankResult {
    /// The reason, if this node has no copy.
    pub(crate) error: Option<String>,
    /// Whether the rank has reported its end to the command already.
    pub(crate) reported: bool,
}

impl RankResult {
    /// Returns a result that has not been reported yet.
    pub(crate) fn unreported(error: Option<CopyError>) -> RankResult {
        RankResult { error: error.map(|error| without_os_code(&error.to_string())), reported: false }
    }

    /// Waits until the installation of a copy has ended, and returns its result.
    pub(crate) fn of_install(install: Install, task: &CopyTask) -> RankResult {
        let panicked =
            || InstallResult { outcome: Err(CopyFileError::Corrupt(task.source.clone())), reported: false };
        let InstallResult { outcome, reported } = install.wait().unwrap_or_else(panicked);
        RankResult { error: outcome.err().map(|error| without_os_code(&error.to_string())), reported }
    }
}
