//! Writes a stream on a node, in order: to a new file that is renamed into place at the end, or to
//! an existing pipe or device.

use crate::errors::CopyFileError;
use cool_content::{Digest, Digester};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use tempfile::NamedTempFile;

/// Maximum number of received parts that wait to be written. If the queue is full, the rank stops
/// receiving.
const WAITING: usize = 2;
/// Mode of a new file, from which the umask is subtracted.
const MODE: u32 = 0o666;

/// The file that is written.
enum SinkFile {
    New(NamedTempFile),
    /// A pipe or a device, to which bytes are written irrevocably.
    Pipe(File),
}

impl SinkFile {
    fn open(path: &Path) -> Result<SinkFile, CopyFileError> {
        match path.metadata().map(|existing| existing.file_type()) {
            Ok(kind) if kind.is_dir() => {
                Err(CopyFileError::Unusable { path: path.to_owned(), problem: "is a directory" })
            }
            Ok(kind) if kind.is_fifo() || kind.is_char_device() => {
                open_pipe(path).map(SinkFile::Pipe).map_err(CopyFileError::at(path))
            }
            _ => {
                let directory = path.parent().unwrap_or(Path::new("/"));
                std::fs::create_dir_all(directory).map_err(CopyFileError::at(directory))?;
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let made = tempfile::Builder::new()
                    .prefix(&format!(".{name}.cool-copy-"))
                    .permissions(Permissions::from_mode(MODE))
                    .tempfile_in(directory);
                made.map(SinkFile::New).map_err(CopyFileError::at(directory))
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            SinkFile::New(file) => file.write_all(bytes),
            SinkFile::Pipe(pipe) => pipe.write_all(bytes),
        }
    }

    /// Renames a new file into place.
    fn install(self, path: &Path) -> Result<(), CopyFileError> {
        let SinkFile::New(file) = self else { return Ok(()) };
        file.as_file().sync_all().map_err(CopyFileError::at(path))?;
        file.persist(path).map(drop).map_err(|e| CopyFileError::at(path)(e.error))
    }
}

/// Opens a pipe. Without a reader this fails at once; later writes wait for the reader.
fn open_pipe(path: &Path) -> io::Result<File> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let pipe = OpenOptions::new().write(true).custom_flags(nonblocking).open(path)?;
    fcntl_setfl(&pipe, fcntl_getfl(&pipe)? - OFlags::NONBLOCK)?;
    Ok(pipe)
}

/// Writes parts in a thread, while the next ones are being received. After an error it drops all
/// further parts, so that the other nodes can continue.
pub(super) struct StreamSink {
    sender: SyncSender<Vec<u8>>,
    thread: JoinHandle<Result<(SinkFile, Digest), CopyFileError>>,
    path: PathBuf,
}

impl StreamSink {
    pub(super) fn start(path: PathBuf) -> io::Result<StreamSink> {
        let (sender, receiver) = sync_channel::<Vec<u8>>(WAITING);
        let dest = path.clone();
        let thread = thread::Builder::new().name("write".into()).spawn(move || {
            let (mut file, mut digester) = (SinkFile::open(&dest)?, Digester::default());
            for bytes in receiver {
                digester.update(&bytes);
                file.write(&bytes).map_err(CopyFileError::at(&dest))?;
            }
            Ok((file, digester.digest()))
        })?;
        Ok(StreamSink { sender, thread, path })
    }

    /// Queues a part; blocks while the queue is full.
    pub(super) fn write(&mut self, bytes: Vec<u8>) {
        // Fails if the thread has ended with an error, which `finish` returns.
        drop(self.sender.send(bytes));
    }

    /// Returns whether writing has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the stream. A new file is installed only if its hash is `hash`; `None` removes it,
    /// because the source did not send all of the input.
    pub(super) fn finish(self, hash: Option<&str>) -> Result<(), CopyFileError> {
        drop(self.sender);
        let (file, digest) = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        match hash {
            Some(hash) if digest.to_string() == hash => file.install(&self.path),
            Some(_) => Err(CopyFileError::Corrupt(self.path)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::io::Read;

    fn written(path: &Path, hash: Option<&str>) -> Result<(), CopyFileError> {
        let mut sink = StreamSink::start(path.to_owned()).unwrap();
        sink.write(b"first, ".to_vec());
        sink.write(b"second".to_vec());
        sink.finish(hash)
    }

    #[test]
    fn a_file_exists_only_once_it_is_complete_and_correct() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/file");
        let hash = Digest::of(b"first, second").to_string();
        written(&path, None).unwrap();
        assert!(matches!(written(&path, Some("another")), Err(CopyFileError::Corrupt(_))));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
        written(&path, Some(&hash)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first, second");
    }

    #[test]
    fn a_pipe_gets_all_in_order_and_needs_a_reader() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert!(written(&path, None).unwrap_err().to_string().contains("No such device"));
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let mut reader = OpenOptions::new().read(true).custom_flags(nonblocking).open(&path).unwrap();
        written(&path, Some(&Digest::of(b"first, second").to_string())).unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "first, second");
    }
}
