//! Renaming a complete copy into place, in the background.

use crate::background::BackgroundTask;
use crate::destination::DestinationCopy;
use crate::errors::CopyFileError;
use crate::protocol::CopyEvent;
use std::io;
use std::time::Instant;

/// A copy that is being checked and renamed into place while its rank does other work, such as
/// serving other nodes. The thread reports the outcome to the command as soon as it is known.
pub(crate) struct Install(BackgroundTask<InstallResult>);

/// Result of an [`Install`].
pub(crate) struct InstallResult {
    pub(crate) outcome: Result<(), CopyFileError>,
    /// Whether the outcome was reported to the command.
    pub(crate) reported: bool,
}

impl Install {
    /// Starts to install a copy that has all its blocks, for a rank that started at `began`.
    pub(crate) fn of_destination(
        destination: DestinationCopy,
        began: Instant,
    ) -> Result<Install, CopyFileError> {
        let dest = destination.dest().to_owned();
        Install::start(began, move || destination.finish()).map_err(CopyFileError::at(&dest))
    }

    /// Starts `install` in a thread, for a rank that started at `began`.
    pub(crate) fn start(
        began: Instant,
        install: impl FnOnce() -> Result<(), CopyFileError> + Send + 'static,
    ) -> io::Result<Install> {
        let task = BackgroundTask::start("install", move || {
            let outcome = install();
            let reported = CopyEvent::ended(began, outcome.as_ref().err()).send().is_ok();
            InstallResult { outcome, reported }
        });
        task.map(Install)
    }

    /// Waits for the end, and returns the outcome; `None` if the thread has panicked.
    pub(crate) fn wait(self) -> Option<InstallResult> {
        self.0.wait()
    }
}
