//! SOURCE `-`: what comes by standard input is kept in a file that only its user can reach, until it is copied.

use super::outcome::bar;
use super::private::{PrivateFolder, place};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

const NAME: &str = "input";
/// Bytes that are read at once.
const READ: usize = 1 << 20;

/// Why standard input cannot be copied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpoolError {
    #[error("SOURCE - is what comes to this machine by standard input; leave out --from")]
    From,
    #[error("SOURCE - is kept where only you can read it until it is copied; leave out --user")]
    User,
    #[error("--stream sends what comes by standard input: let SOURCE be - and give it {}", .0.display())]
    Stream(PathBuf),
    #[error("a swarm does not pass on in order: leave out --via swarm, or --stream")]
    StreamBySwarm,
    #[error("SOURCE - has no name that its copies in {} could have; name them, too", .0.display())]
    NoName(PathBuf),
    #[error("standard input: {0}")]
    Input(io::Error),
    #[error("standard input cannot be kept: {0}; name another folder by TMPDIR")]
    Folder(io::Error),
    #[error("standard input cannot be kept: {}: {reason}; name another folder by TMPDIR", .path.display())]
    Path { path: PathBuf, reason: io::Error },
    #[error("interrupted while standard input was read; nothing was copied")]
    Interrupted { signal: i32 },
}

impl SpoolError {
    pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> SpoolError + '_ {
        move |reason| SpoolError::Path { path: path.to_owned(), reason }
    }
}

/// A file that is gone with this.
#[derive(Debug)]
pub(super) struct Spool {
    folder: PrivateFolder,
}

impl Spool {
    /// All of standard input, unless a signal comes before its end.
    pub(super) async fn of_input(interrupted: impl Future<Output = i32>) -> Result<Spool, SpoolError> {
        Spool::of(io::stdin(), &place(), interrupted).await
    }

    async fn of(
        input: impl Read + Send + 'static,
        within: &Path,
        interrupted: impl Future<Output = i32>,
    ) -> Result<Spool, SpoolError> {
        let spool = Spool { folder: PrivateFolder::within(within)? };
        let path = spool.path();
        // Its mode is that of any new file: copies get it. It is there before the thread, which may begin only when the folder is
        // being removed: a new file would keep that.
        let file = File::create_new(&path).map_err(SpoolError::at(&path))?;
        let bar = bar("{spinner} {bytes} read, {bytes_per_sec}");
        bar.enable_steady_tick(Duration::from_millis(500));
        let (give, filled) = oneshot::channel();
        let read = bar.clone();
        // In a thread that the end of the process ends, too, whatever it waits for. Nobody may want to know any more.
        let work = move || drop(give.send(fill(input, (file, &path), |bytes| read.inc(bytes))));
        thread::Builder::new().name("spool".into()).spawn(work).map_err(SpoolError::Input)?;
        let outcome = tokio::select! {
            filled = filled => filled.unwrap_or_else(|_| Err(SpoolError::Input(ErrorKind::Other.into()))),
            signal = interrupted => Err(SpoolError::Interrupted { signal }),
        };
        bar.finish_and_clear();
        outcome.map(|()| spool)
    }

    /// Where it is.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join(NAME)
    }
}

/// Writes all that comes into a file.
fn fill(
    mut input: impl Read,
    (mut file, path): (File, &Path),
    mut came: impl FnMut(u64),
) -> Result<(), SpoolError> {
    let mut bytes = vec![0; READ];
    loop {
        let length = read_some(&mut input, &mut bytes).map_err(SpoolError::Input)?;
        if length == 0 {
            return Ok(());
        }
        file.write_all(&bytes[..length]).map_err(SpoolError::at(path))?;
        came(length as u64);
    }
}

/// What comes next, 0 bytes at the end; a signal does not end it.
pub(super) fn read_some(input: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        match input.read(bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;
    use tempfile::TempDir;

    fn is_empty(folder: &TempDir) -> bool {
        std::fs::read_dir(folder.path()).unwrap().next().is_none()
    }

    #[tokio::test]
    async fn what_comes_is_its_users_alone_and_gone_with_the_spool() {
        let folder = TempDir::new().unwrap();
        let bytes: Vec<u8> = (0..3 * READ + 7).map(|i| (i % 251) as u8).collect();
        let spool = Spool::of(io::Cursor::new(bytes.clone()), folder.path(), pending()).await.unwrap();
        assert!(std::fs::read(spool.path()).unwrap() == bytes);
        let around = spool.path().parent().unwrap().metadata().unwrap();
        assert_eq!(around.mode() & 0o777, 0o700);
        let like = File::create(folder.path().join("like")).unwrap().metadata().unwrap();
        assert_eq!(spool.path().metadata().unwrap().mode(), like.mode());
        std::fs::remove_file(folder.path().join("like")).unwrap();
        drop(spool);
        assert!(is_empty(&folder));
    }

    #[tokio::test]
    async fn a_signal_ends_it_though_nothing_comes() {
        let folder = TempDir::new().unwrap();
        let (input, _open) = UnixStream::pair().unwrap();
        let error = Spool::of(input, folder.path(), ready(2)).await.unwrap_err();
        assert!(matches!(error, SpoolError::Interrupted { signal: 2 }), "{error}");
        assert!(is_empty(&folder));
    }

    /// One that fails after some bytes.
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
    async fn what_cannot_be_read_or_kept_is_named() {
        let folder = TempDir::new().unwrap();
        let error = Spool::of(Broken(false), folder.path(), pending()).await.unwrap_err();
        assert_eq!(error.to_string(), "standard input: connection reset");
        assert!(is_empty(&folder));
        let nowhere = folder.path().join("nowhere");
        let error = Spool::of(io::empty(), &nowhere, pending()).await.unwrap_err().to_string();
        assert!(
            error.contains("No such file") && error.contains("nowhere") && !error.contains('\n'),
            "{error}"
        );
    }
}
