//! Folders of this command that only its user can enter, for what has to have a path while it runs. They are gone with it; of a command
//! that was killed outright the next one removes them.

use super::spool::SpoolError;
use rustix::process::geteuid;
use std::fs::{File, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Where they are unless TMPDIR says it: /tmp is often memory.
const FOLDER: &str = "/var/tmp";
const PREFIX: &str = "cool-copy-";
/// A file in each that its command keeps locked (flock(2)) as long as it lives, and its name until it is locked.
const LOCK: &str = "lock";
const UNLOCKED: &str = "lock.new";

/// One of them.
#[derive(Debug)]
pub(super) struct PrivateFolder {
    // Gone before the lock is.
    folder: TempDir,
    _lock: File,
}

impl PrivateFolder {
    /// Where TMPDIR says, or where there is room; those of this user's commands that were killed are removed there.
    pub(super) fn new() -> Result<PrivateFolder, SpoolError> {
        PrivateFolder::within(&place())
    }

    pub(super) fn within(place: &Path) -> Result<PrivateFolder, SpoolError> {
        remove_abandoned(place);
        // The job's ranks have to find what is there by its path, so it cannot be without a name.
        let private = Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix(PREFIX).permissions(private).tempdir_in(place);
        let folder = folder.map_err(SpoolError::Folder)?;
        let lock = locked(folder.path()).map_err(SpoolError::at(folder.path()))?;
        Ok(PrivateFolder { folder, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

pub(super) fn place() -> PathBuf {
    let folder = std::env::var_os("TMPDIR").filter(|folder| !folder.is_empty());
    folder.map_or_else(|| FOLDER.into(), PathBuf::from)
}

/// The folder's lock, which nobody sees before it is locked.
fn locked(folder: &Path) -> io::Result<File> {
    let lock = File::create_new(folder.join(UNLOCKED))?;
    lock.lock()?;
    std::fs::rename(folder.join(UNLOCKED), folder.join(LOCK))?;
    Ok(lock)
}

/// Removes this user's folders whose command is gone. What cannot be removed stays, and is tried again the next time.
fn remove_abandoned(place: &Path) {
    // Whether there can be a new one there is found out next.
    let Ok(entries) = place.read_dir() else { return };
    for entry in entries.flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())
            && let Err(error) = remove_if_abandoned(&entry.path())
        {
            eprintln!("cool: {} of a command that was killed stays: {error}", entry.path().display());
        }
    }
}

fn remove_if_abandoned(folder: &Path) -> io::Result<()> {
    let about = folder.symlink_metadata()?;
    if !about.is_dir() || about.uid() != geteuid().as_raw() {
        return Ok(());
    }
    let lock = match File::open(folder.join(LOCK)) {
        // Its command is yet to lock it, or is of a release that locks none.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    match lock.try_lock() {
        Ok(()) => std::fs::remove_dir_all(folder),
        Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_commands_that_were_killed_are_removed_by_the_next_and_no_others() {
        let place = TempDir::new().unwrap();
        let [lives, killed] = [(); 2].map(|()| PrivateFolder::within(place.path()).unwrap());
        std::fs::write(killed.path().join("input"), b"secret").unwrap();
        let PrivateFolder { folder, _lock } = killed;
        // As if it was killed: the system lets go of its lock, and nothing is removed.
        let killed = folder.keep();
        drop(_lock);
        let others: Vec<PathBuf> =
            ["cool-copy-of-another-release", "others"].map(|name| place.path().join(name)).into();
        others.iter().for_each(|other| std::fs::create_dir(other).unwrap());
        let file = place.path().join("cool-copy-file");
        std::fs::write(&file, b"").unwrap();
        let next = PrivateFolder::within(place.path()).unwrap();
        assert!(!killed.exists());
        assert!(lives.path().exists() && next.path().exists() && file.exists());
        assert!(others.iter().all(|other| other.exists()), "without a lock nobody knows whose it is");
        let path = next.path().to_owned();
        drop(next);
        assert!(!path.exists());
    }
}
