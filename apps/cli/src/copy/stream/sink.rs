//! Where a node writes what comes, in order: a new file that takes its place at the end, or a pipe or device that is there.

use super::super::fault::Fault;
use cool_content::{Digest, Digester};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use tempfile::NamedTempFile;

/// Parts that have come and are not written yet; with more the network waits.
const WAITING: usize = 2;
/// Of a new file, without what the umask takes away.
const MODE: u32 = 0o666;

/// What is written to.
enum Place {
    File(NamedTempFile),
    /// A pipe that is read, or a device: what is written to it cannot be taken back.
    Pipe(File),
}

impl Place {
    fn open(path: &Path) -> Result<Place, Fault> {
        match path.metadata().map(|there| there.file_type()) {
            Ok(kind) if kind.is_dir() => Err(Fault::Taken { path: path.to_owned(), what: "is a folder" }),
            Ok(kind) if kind.is_fifo() || kind.is_char_device() => {
                open_pipe(path).map(Place::Pipe).map_err(Fault::at(path))
            }
            _ => {
                let folder = path.parent().unwrap_or(Path::new("/"));
                std::fs::create_dir_all(folder).map_err(Fault::at(folder))?;
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let made = tempfile::Builder::new()
                    .prefix(&format!(".{name}.cool-copy-"))
                    .permissions(Permissions::from_mode(MODE))
                    .tempfile_in(folder);
                made.map(Place::File).map_err(Fault::at(folder))
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Place::File(file) => file.write_all(bytes),
            Place::Pipe(pipe) => pipe.write_all(bytes),
        }
    }

    /// All is there.
    fn keep(self, path: &Path) -> Result<(), Fault> {
        let Place::File(file) = self else { return Ok(()) };
        file.as_file().sync_all().map_err(Fault::at(path))?;
        file.persist(path).map(drop).map_err(|e| Fault::at(path)(e.error))
    }
}

/// One that nobody reads is refused at once; then each write waits for its reader.
fn open_pipe(path: &Path) -> io::Result<File> {
    // No more than the bits of a flag.
    let at_once = OFlags::NONBLOCK.bits().cast_signed();
    let pipe = OpenOptions::new().write(true).custom_flags(at_once).open(path)?;
    fcntl_setfl(&pipe, fcntl_getfl(&pipe)? - OFlags::NONBLOCK)?;
    Ok(pipe)
}

/// Writes in a thread of its own, while more comes. One that fails takes all that comes all the same, so that the others go on.
pub(super) struct Sink {
    give: SyncSender<Vec<u8>>,
    writing: JoinHandle<Result<(Place, Digest), Fault>>,
    path: PathBuf,
}

impl Sink {
    pub(super) fn start(path: PathBuf) -> io::Result<Sink> {
        let (give, taken) = sync_channel::<Vec<u8>>(WAITING);
        let there = path.clone();
        let writing = thread::Builder::new().name("write".into()).spawn(move || {
            let (mut place, mut digester) = (Place::open(&there)?, Digester::default());
            for bytes in taken {
                digester.update(&bytes);
                place.write(&bytes).map_err(Fault::at(&there))?;
            }
            Ok((place, digester.digest()))
        })?;
        Ok(Sink { give, writing, path })
    }

    /// Takes what came, once there is room for it.
    pub(super) fn write(&mut self, bytes: Vec<u8>) {
        // Of one that has failed it is told why at the end.
        drop(self.give.send(bytes));
    }

    /// Whether it has failed already.
    pub(super) fn has_failed(&self) -> bool {
        self.writing.is_finished()
    }

    /// The source says that it was all, and what its hash is, if so; else nothing of a file is left.
    pub(super) fn finish(self, all: Option<&str>) -> Result<(), Fault> {
        drop(self.give);
        let (place, digest) = self.writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        match all {
            Some(hash) if digest.to_string() == hash => place.keep(&self.path),
            Some(_) => Err(Fault::Wrong(self.path)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::io::Read;

    fn written(path: &Path, all: Option<&str>) -> Result<(), Fault> {
        let mut sink = Sink::start(path.to_owned()).unwrap();
        sink.write(b"first, ".to_vec());
        sink.write(b"second".to_vec());
        sink.finish(all)
    }

    #[test]
    fn a_file_is_there_when_all_has_come_and_is_what_was_sent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/file");
        let hash = Digest::of(b"first, second").to_string();
        written(&path, None).unwrap();
        assert!(matches!(written(&path, Some("another")), Err(Fault::Wrong(_))));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
        written(&path, Some(&hash)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first, second");
    }

    #[test]
    fn a_pipe_gets_all_in_order_and_one_that_nobody_reads_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert!(written(&path, None).unwrap_err().to_string().contains("No such device"));
        let at_once = OFlags::NONBLOCK.bits().cast_signed();
        let mut reader = OpenOptions::new().read(true).custom_flags(at_once).open(&path).unwrap();
        written(&path, Some(&Digest::of(b"first, second").to_string())).unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "first, second");
    }
}
