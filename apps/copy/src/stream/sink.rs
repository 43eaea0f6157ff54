//! Writes a stream on a node, in order: to a new file that is renamed into place at the end, or to
//! an existing pipe or device.

use crate::errors::CopyFileError;
use crate::placement::place;
use crate::previous_destination::ExpectedDestination;
use crate::work_directory::{PRIVATE_FILE, WorkDirectory};
use cool_content::{Digest, Digester};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::{File, FileType, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// Maximum number of received parts that wait to be written. If the queue is full, the rank stops
/// receiving.
const WAITING: usize = 2;
/// Mode of a new file if the command has sent none, from which the rank's umask is subtracted.
const DEFAULT_MODE: u32 = 0o666;
/// Identity of a stream's file in the working directory. It is never resumed.
const IDENTITY: &str = "stream";

/// The file that is written.
enum SinkFile {
    New {
        file: File,
        work: WorkDirectory,
        expected: ExpectedDestination,
    },
    /// A pipe or a device, to which bytes are written irrevocably.
    Pipe(File),
}

impl SinkFile {
    /// Opens the sink. A new file gets this mode.
    fn open(path: &Path, mode: Option<u32>) -> Result<SinkFile, CopyFileError> {
        let unusable = |problem| Err(CopyFileError::Unusable { path: path.to_owned(), problem });
        let kind = match path.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => return open_new(path, mode),
            about => about.map_err(CopyFileError::at(path))?.file_type(),
        };
        let target = path.metadata().map(|target| target.file_type());
        match target {
            Ok(target) if target.is_fifo() || target.is_char_device() || target.is_block_device() => {
                open_pipe(path, target).map(SinkFile::Pipe).map_err(CopyFileError::at(path))
            }
            _ if kind.is_symlink() => unusable("is a symbolic link"),
            _ if kind.is_dir() => unusable("is a directory"),
            _ if kind.is_file() => open_new(path, mode),
            _ => unusable("is neither a file nor a pipe or device"),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            SinkFile::New { file, .. } => file.write_all(bytes),
            SinkFile::Pipe(pipe) => pipe.write_all(bytes),
        }
    }

    /// Renames a new file into place, and flushes a device.
    fn install(self, path: &Path) -> Result<(), CopyFileError> {
        let (file, work, expected) = match self {
            SinkFile::Pipe(pipe) => return flush(&pipe).map_err(CopyFileError::at(path)),
            SinkFile::New { file, work, expected } => (file, work, expected),
        };
        let flushed = file.sync_all().map_err(CopyFileError::at(path));
        let placed = flushed.and_then(|()| place(&work, &file, &expected));
        if matches!(placed, Err(CopyFileError::KeptAside { .. })) {
            return placed;
        }
        if let Err(later) = work.remove() {
            // The copy is in place, or the first error explains more.
            eprintln!("{later}");
        }
        placed
    }

    /// Removes a new file.
    fn discard(self) -> Result<(), CopyFileError> {
        match self {
            SinkFile::New { work, .. } => work.remove(),
            SinkFile::Pipe(_) => Ok(()),
        }
    }
}

/// Creates the new file in the working directory of `path`, with this mode.
fn open_new(path: &Path, mode: Option<u32>) -> Result<SinkFile, CopyFileError> {
    let work = WorkDirectory::lock(path)?;
    match create(&work, mode) {
        Ok((file, expected)) => Ok(SinkFile::New { file, work, expected }),
        Err(error) => {
            drop(work.remove());
            Err(error)
        }
    }
}

fn create(work: &WorkDirectory, mode: Option<u32>) -> Result<(File, ExpectedDestination), CopyFileError> {
    let tree = work.tree();
    work.restore_previous()?;
    let expected = ExpectedDestination::of(work.dest())?;
    work.begin(IDENTITY)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let private = mode.map_or(DEFAULT_MODE, |_| PRIVATE_FILE);
    let file = options.mode(private).open(&tree).map_err(CopyFileError::at(&tree))?;
    if let Some(mode) = mode {
        let permissions = Permissions::from_mode(mode & 0o777);
        file.set_permissions(permissions).map_err(CopyFileError::at(&tree))?;
    }
    Ok((file, expected))
}

/// Flushes a block device, so that the disk has all bytes. Pipes have no disk.
fn flush(file: &File) -> io::Result<()> {
    if file.metadata()?.file_type().is_block_device() { file.sync_all() } else { Ok(()) }
}

/// Opens a pipe or device. A pipe without a reader fails at once, and later writes wait for the
/// reader. A block device fails if it is mounted or in use otherwise.
fn open_pipe(path: &Path, kind: FileType) -> io::Result<File> {
    let exclusive = if kind.is_block_device() { OFlags::EXCL } else { OFlags::empty() };
    let flags = (OFlags::NONBLOCK | exclusive).bits().cast_signed();
    let pipe = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
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
    /// Starts to write to this path. A new file gets this mode; without one, it gets the default
    /// mode of this process.
    pub(super) fn start(path: PathBuf, mode: Option<u32>) -> io::Result<StreamSink> {
        let (sender, receiver) = sync_channel::<Vec<u8>>(WAITING);
        let dest = path.clone();
        let thread = thread::Builder::new().name("write".into()).spawn(move || {
            let (mut file, mut digester) = (SinkFile::open(&dest, mode)?, Digester::default());
            for bytes in receiver {
                digester.update(&bytes);
                if let Err(error) = file.write(&bytes) {
                    drop(file.discard());
                    return Err(CopyFileError::at(&dest)(error));
                }
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
            Some(_) => file.discard().and(Err(CopyFileError::Corrupt(self.path))),
            None => file.discard(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::io::Read;

    fn written(path: &Path, hash: Option<&str>) -> Result<(), CopyFileError> {
        let mut sink = StreamSink::start(path.to_owned(), Some(0o640)).unwrap();
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
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        // Names as long as the system permits.
        let long = path.with_file_name("x".repeat(255));
        written(&long, Some(&hash)).unwrap();
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
    }

    #[test]
    fn a_socket_or_link_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (socket, link) = (directory.path().join("socket"), directory.path().join("link"));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        let hash = Digest::of(b"first, second").to_string();
        for (path, problem) in [(&socket, "is neither a file"), (&link, "is a symbolic link")] {
            let error = written(path, Some(&hash)).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        assert!(socket.symlink_metadata().unwrap().file_type().is_socket() && link.is_symlink());
    }

    #[test]
    fn a_block_device_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        // No device has such a number. Only root may create the node.
        let device = rustix::fs::makedev(4000, 0);
        if mknodat(CWD, &path, FileType::BlockDevice, Mode::from_raw_mode(0o600), device).is_ok() {
            written(&path, Some(&Digest::of(b"first, second").to_string())).unwrap_err();
            assert!(path.symlink_metadata().unwrap().file_type().is_block_device());
        }
    }

    #[test]
    fn a_file_that_appears_meanwhile_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let sink = SinkFile::open(&path, None).unwrap_or_else(|error| panic!("{error}"));
        std::fs::write(&path, "mine").unwrap();
        sink.install(&path).unwrap_err();
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
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
