//! SOURCE `-`: standard input is spooled to a file that only the user can read, and then copied.

use super::private_directory::{PrivateDirectory, parent_directory};
use crate::error::SpoolError;
use crate::progress_bar::progress_bar;
use cool_copy::read_some;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

const NAME: &str = "input";
/// Number of bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// A file with all of standard input, which is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Spool {
    directory: PrivateDirectory,
}

impl Spool {
    /// Reads all of standard input.
    ///
    /// # Errors
    /// If it cannot be read or written, or `interrupted` returns a signal before its end.
    pub(super) async fn from_stdin(interrupted: impl Future<Output = i32>) -> Result<Spool, SpoolError> {
        Spool::fill(io::stdin(), &parent_directory(), interrupted).await
    }

    async fn fill(
        input: impl Read + Send + 'static,
        parent: &Path,
        interrupted: impl Future<Output = i32>,
    ) -> Result<Spool, SpoolError> {
        let spool = Spool { directory: PrivateDirectory::within(parent)? };
        let path = spool.path();
        // The file has the default mode of new files, because the copies get its mode. It is
        // created before the thread starts; otherwise, after an early signal, the thread could
        // create it while the directory is being removed.
        let file = File::create_new(&path).map_err(SpoolError::at(&path))?;
        let bar = progress_bar("{spinner} {bytes} read, {bytes_per_sec}");
        bar.enable_steady_tick(Duration::from_millis(500));
        let (sender, filled) = oneshot::channel();
        let read = bar.clone();
        // The input is read in a thread, which ends with the process even while it waits for input.
        // Sending fails only if the receiver was dropped by then.
        let work = move || drop(sender.send(copy_input(input, (file, &path), |bytes| read.inc(bytes))));
        thread::Builder::new().name("spool".into()).spawn(work).map_err(SpoolError::Input)?;
        let outcome = tokio::select! {
            filled = filled => filled.unwrap_or_else(|_| Err(SpoolError::Input(ErrorKind::Other.into()))),
            signal = interrupted => Err(SpoolError::Interrupted { signal }),
        };
        bar.finish_and_clear();
        outcome.map(|()| spool)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.path().join(NAME)
    }
}

/// Writes all of the input to a file, and calls `on_read` with the length of each part.
fn copy_input(
    mut input: impl Read,
    (mut file, path): (File, &Path),
    mut on_read: impl FnMut(u64),
) -> Result<(), SpoolError> {
    let mut bytes = vec![0; READ_BYTES];
    loop {
        let length = read_some(&mut input, &mut bytes).map_err(SpoolError::Input)?;
        if length == 0 {
            return Ok(());
        }
        file.write_all(&bytes[..length]).map_err(SpoolError::at(path))?;
        on_read(length as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;
    use tempfile::TempDir;

    fn is_empty(directory: &TempDir) -> bool {
        std::fs::read_dir(directory.path()).unwrap().next().is_none()
    }

    #[tokio::test]
    async fn a_spool_is_private_and_removed_when_dropped() {
        let directory = TempDir::new().unwrap();
        let bytes: Vec<u8> = (0..3 * READ_BYTES + 7).map(|i| (i % 251) as u8).collect();
        let spool = Spool::fill(io::Cursor::new(bytes.clone()), directory.path(), pending()).await.unwrap();
        assert!(std::fs::read(spool.path()).unwrap() == bytes);
        let around = spool.path().parent().unwrap().metadata().unwrap();
        assert_eq!(around.mode() & 0o777, 0o700);
        let like = File::create(directory.path().join("like")).unwrap().metadata().unwrap();
        assert_eq!(spool.path().metadata().unwrap().mode(), like.mode());
        std::fs::remove_file(directory.path().join("like")).unwrap();
        drop(spool);
        assert!(is_empty(&directory));
    }

    #[tokio::test]
    async fn a_signal_interrupts_it_while_no_input_arrives() {
        let directory = TempDir::new().unwrap();
        let (input, _open) = UnixStream::pair().unwrap();
        let error = Spool::fill(input, directory.path(), ready(2)).await.unwrap_err();
        assert!(matches!(error, SpoolError::Interrupted { signal: 2 }), "{error}");
        assert!(is_empty(&directory));
    }

    /// Input that fails after some bytes.
    struct Broken(bool);

    impl Read for Broken {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            if std::mem::replace(&mut self.0, true) {
                Err(ErrorKind::ConnectionReset.into())
            } else {
                Ok(bytes.len())
            }
        }
    }

    #[tokio::test]
    async fn errors_of_reading_and_writing_are_named() {
        let directory = TempDir::new().unwrap();
        let error = Spool::fill(Broken(false), directory.path(), pending()).await.unwrap_err();
        assert_eq!(error.to_string(), "standard input: connection reset");
        assert!(is_empty(&directory));
        let nowhere = directory.path().join("nowhere");
        let error = Spool::fill(io::empty(), &nowhere, pending()).await.unwrap_err().to_string();
        assert!(
            error.contains("No such file") && error.contains("nowhere") && !error.contains('\n'),
            "{error}"
        );
    }
}
