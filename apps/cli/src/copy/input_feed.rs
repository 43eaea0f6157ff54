//! Sends standard input to the rank on this machine, frame by frame.

use super::private_directory::PrivateDirectory;
use crate::error::SpoolError;
use crate::progress_bar::progress_bar;
use cool_copy::send_frames;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

const NAME: &str = "input";

/// Name of a file that exists only to determine the mode of new files.
const NEW_FILE: &str = "mode";

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

    /// Returns the mode that this process gives to new files, which depends on its umask.
    pub(super) fn mode(&self) -> Result<u32, SpoolError> {
        mode_of_new_files(self.directory.path())
    }

    /// Returns the error if the input could not be read or sent.
    pub(super) fn error(&mut self) -> Option<SpoolError> {
        self.errors.try_recv().ok()
    }
}

/// Returns the mode of new files, by creating one in a private directory and removing it. The umask
/// itself cannot be read without changing it for the other threads, too.
fn mode_of_new_files(directory: &Path) -> Result<u32, SpoolError> {
    let path = directory.join(NEW_FILE);
    let created = File::create_new(&path).and_then(|file| file.metadata());
    let about = created.map_err(SpoolError::at(&path))?;
    std::fs::remove_file(&path).map_err(SpoolError::at(&path))?;
    Ok(about.mode() & 0o777)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use tempfile::TempDir;

    #[test]
    fn the_mode_of_a_stream_is_that_of_new_files() {
        let directory = TempDir::new().unwrap();
        let mode = mode_of_new_files(directory.path()).unwrap();
        let other = directory.path().join("other");
        assert!(Command::new("touch").arg(&other).status().unwrap().success());
        assert_eq!(other.metadata().unwrap().mode() & 0o777, mode);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
