//! Directories that only the user can enter, for files that need a path while the command runs. A
//! command removes its directory when it ends. The next command removes the directories of killed
//! commands.

use crate::error::SpoolError;
use rustix::process::geteuid;
use std::fs::{File, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The parent directory, unless TMPDIR is set. It is not /tmp, which is often in memory.
const PARENT: &str = "/var/tmp";
const PREFIX: &str = "cool-copy-";
/// A file in each directory, which its command keeps locked (flock(2)) until it exits.
const LOCK: &str = "lock";
/// The name of this file until it is locked.
const UNLOCKED: &str = "lock.new";

/// A private directory, which is removed when this is dropped.
#[derive(Debug)]
pub(super) struct PrivateDirectory {
    // Declared before the lock, so that the directory is removed before the lock is released.
    directory: TempDir,
    _lock: File,
}

impl PrivateDirectory {
    /// Creates a directory, and removes those of this user's commands that were killed.
    pub(super) fn new() -> Result<PrivateDirectory, SpoolError> {
        PrivateDirectory::within(&parent_directory())
    }

    pub(super) fn within(parent: &Path) -> Result<PrivateDirectory, SpoolError> {
        remove_abandoned(parent);
        // It needs a name, because the ranks of the job open it by its path.
        let private = Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().prefix(PREFIX).permissions(private).tempdir_in(parent);
        let directory = directory.map_err(SpoolError::Directory)?;
        let lock = create_lock(directory.path()).map_err(SpoolError::at(directory.path()))?;
        Ok(PrivateDirectory { directory, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Returns TMPDIR, or the default.
pub(super) fn parent_directory() -> PathBuf {
    let directory = std::env::var_os("TMPDIR").filter(|directory| !directory.is_empty());
    directory.map_or_else(|| PARENT.into(), PathBuf::from)
}

/// Creates the lock of a directory. The file gets its name only once it is locked, so that no other
/// command finds it unlocked.
fn create_lock(directory: &Path) -> io::Result<File> {
    let lock = File::create_new(directory.join(UNLOCKED))?;
    lock.lock()?;
    std::fs::rename(directory.join(UNLOCKED), directory.join(LOCK))?;
    Ok(lock)
}

/// Removes this user's directories if their commands have exited. If that fails, the next command
/// tries again.
fn remove_abandoned(parent: &Path) {
    // If the parent cannot be read, creating the new directory fails and reports why.
    let Ok(entries) = parent.read_dir() else { return };
    for entry in entries.flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())
            && let Err(error) = remove_if_abandoned(&entry.path())
        {
            eprintln!("cool: cannot remove {} of a killed command: {error}", entry.path().display());
        }
    }
}

fn remove_if_abandoned(directory: &Path) -> io::Result<()> {
    let about = directory.symlink_metadata()?;
    if !about.is_dir() || about.uid() != geteuid().as_raw() {
        return Ok(());
    }
    let lock = match File::open(directory.join(LOCK)) {
        // Its command has not locked it yet, or is of a release without locks.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    match lock.try_lock() {
        Ok(()) => std::fs::remove_dir_all(directory),
        Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_removes_only_directories_of_killed_commands() {
        let parent = TempDir::new().unwrap();
        let [lives, killed] = [(); 2].map(|()| PrivateDirectory::within(parent.path()).unwrap());
        std::fs::write(killed.path().join("input"), b"secret").unwrap();
        let PrivateDirectory { directory, _lock } = killed;
        // As if it was killed: the system releases its lock, and nothing is removed.
        let killed = directory.keep();
        drop(_lock);
        let others: Vec<PathBuf> =
            ["cool-copy-of-another-release", "others"].map(|name| parent.path().join(name)).into();
        others.iter().for_each(|other| std::fs::create_dir(other).unwrap());
        let file = parent.path().join("cool-copy-file");
        std::fs::write(&file, b"").unwrap();
        let next = PrivateDirectory::within(parent.path()).unwrap();
        assert!(!killed.exists());
        assert!(lives.path().exists() && next.path().exists() && file.exists());
        assert!(others.iter().all(|other| other.exists()), "without a lock the owner is unknown");
        let path = next.path().to_owned();
        drop(next);
        assert!(!path.exists());
    }
}
