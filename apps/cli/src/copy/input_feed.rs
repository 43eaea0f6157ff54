//! Sends standard input to the rank on this machine, frame by frame.

use super::private_directory::PrivateDirectory;
use crate::error::SpoolError;
use crate::progress_bar::progress_bar;
use cool_copy::send_frames;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

const NAME: &str = "input";

/// Standard input on its way to a rank. The socket is removed when this is dropped.
pub(super) struct InputFeed {
    directory: PrivateDirectory,
    errors: Receiver<SpoolError>,
}

impl InputFeed {
    /// Starts a thread that waits for the rank and sends it the input. The thread ends with the
    /// process.
    pub(super) fn from_stdin() -> Result<InputFeed, SpoolError> {
        let directory = PrivateDirectory::new()?;
        let path = directory.path().join(NAME);
        let listener = UnixListener::bind(&path).map_err(SpoolError::at(&path))?;
        let (sender, errors) = channel();
        let bar = progress_bar("{spinner} {bytes} read, {bytes_per_sec}");
        bar.enable_steady_tick(Duration::from_millis(500));
        let work = move || {
            let accepted = listener.accept();
            let sent = accepted.and_then(|(rank, _)| send_frames(&mut io::stdin(), rank, |n| bar.inc(n)));
            bar.finish_and_clear();
            if let Err(error) = sent {
                // Sending fails only if the receiver was dropped. The error is then not needed.
                drop(sender.send(SpoolError::Input(error)));
            }
        };
        thread::Builder::new().name("feed".into()).spawn(work).map_err(SpoolError::Input)?;
        Ok(InputFeed { directory, errors })
    }

    /// Returns the path of the socket, to which the rank connects.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.path().join(NAME)
    }

    /// Returns the error if the input could not be read or sent.
    pub(super) fn error(&mut self) -> Option<SpoolError> {
        self.errors.try_recv().ok()
    }
}
