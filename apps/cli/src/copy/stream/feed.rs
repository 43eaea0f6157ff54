//! Between the command and the rank on its machine: standard input as frames.

use super::super::outcome::bar;
use super::super::private::PrivateFolder;
use super::super::spool::{SpoolError, read_some};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

const NAME: &str = "input";
/// Bytes of the longest frame.
pub(super) const FRAME_MAX: usize = 1 << 20;

/// Standard input on its way to a rank, as long as this is there.
pub(super) struct Feed {
    folder: PrivateFolder,
    failed: Receiver<SpoolError>,
}

impl Feed {
    /// Waits for the rank, in a thread that the end of the process ends, too.
    pub(super) fn of_input() -> Result<Feed, SpoolError> {
        let folder = PrivateFolder::new()?;
        let path = folder.path().join(NAME);
        let listener =
            UnixListener::bind(&path).map_err(|reason| SpoolError::Path { path: path.clone(), reason })?;
        let (give, failed) = channel();
        let bar = bar("{spinner} {bytes} read, {bytes_per_sec}");
        bar.enable_steady_tick(Duration::from_millis(500));
        let work = move || {
            let fed = listener.accept().and_then(|(rank, _)| feed(&mut io::stdin(), rank, |n| bar.inc(n)));
            bar.finish_and_clear();
            if let Err(error) = fed {
                // Nobody may want to know any more.
                drop(give.send(SpoolError::Input(error)));
            }
        };
        thread::Builder::new().name("feed".into()).spawn(work).map_err(SpoolError::Input)?;
        Ok(Feed { folder, failed })
    }

    /// Where the rank connects.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join(NAME)
    }

    /// Why standard input could not be read or handed on, if so.
    pub(super) fn failed(&mut self) -> Option<SpoolError> {
        self.failed.try_recv().ok()
    }
}

/// Hands on all that comes. A rank that has gone tells why in its own words.
fn feed(input: &mut impl Read, mut rank: impl Write, mut came: impl FnMut(u64)) -> io::Result<()> {
    let mut bytes = vec![0; FRAME_MAX];
    loop {
        let length = read_some(input, &mut bytes)?;
        // No longer than a frame.
        let head = (length as u32).to_le_bytes();
        if rank.write_all(&head).and_then(|()| rank.write_all(&bytes[..length])).is_err() || length == 0 {
            return Ok(());
        }
        came(length as u64);
    }
}

/// At the rank: the frames of a command, up to the empty one.
pub(super) struct Frames(UnixStream);

impl Frames {
    pub(super) fn connect(path: &Path) -> io::Result<Frames> {
        UnixStream::connect(path).map(Frames)
    }

    /// The next one; nothing after the last.
    ///
    /// # Errors
    /// If the command has gone before, or says what it cannot say.
    pub(super) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut head = [0; 4];
        self.0.read_exact(&mut head)?;
        let length = u32::from_le_bytes(head) as usize;
        if length > FRAME_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes)?;
        Ok((length > 0).then_some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_comes_is_handed_on_and_only_the_command_says_that_it_was_all() {
        let (command, rank) = UnixStream::pair().unwrap();
        let bytes: Vec<u8> = (0..FRAME_MAX + 9).map(|i| (i % 251) as u8).collect();
        let mut frames = Frames(rank);
        let given = bytes.clone();
        let feeding = thread::spawn(move || feed(&mut &given[..], &command, |_| ()).map(|()| command));
        let mut came = Vec::new();
        while let Some(frame) = frames.next().unwrap() {
            came.extend(frame);
        }
        assert!(came == bytes);
        drop(feeding.join().unwrap().unwrap());
        assert_eq!(frames.next().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused() {
        let (mut command, rank) = UnixStream::pair().unwrap();
        command.write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert_eq!(Frames(rank).next().unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
