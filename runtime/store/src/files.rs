//! Files of a store: atomic writes, locks, and removal.

use crate::error::StoreError;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Modes of all files and directories: only their owner may use them.
const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_FOLDER: u32 = 0o700;

/// Makes a directory unless it exists.
pub(crate) fn make_folder(path: &Path) -> Result<(), StoreError> {
    match DirBuilder::new().mode(PRIVATE_FOLDER).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(StoreError::at(path)),
    }
}

/// Returns the content of a file, or `None` if it does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    found(std::fs::read(path)).map_err(StoreError::at(path))
}

/// Returns `None` for the error that a path does not exist, and other results unchanged.
pub(crate) fn found<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces a file of a directory atomically: even after an error or the end of the program, the
/// file contains either these bytes or its previous ones.
pub(crate) fn write(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let (path, new) = (folder.join(name), folder.join(format!(".{name}.new")));
    let written = || {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(PRIVATE_FILE).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&new, &path)
    };
    written().map_err(StoreError::at(&path))?;
    sync(folder)
}

/// Removes a file and returns whether it existed.
pub(crate) fn unlink(folder: &Path, name: &str) -> Result<bool, StoreError> {
    let path = folder.join(name);
    let was_there = found(std::fs::remove_file(&path)).map_err(StoreError::at(&path))?.is_some();
    sync(folder)?;
    Ok(was_there)
}

/// Flushes the entries of a directory to disk.
pub(crate) fn sync(folder: &Path) -> Result<(), StoreError> {
    File::open(folder).and_then(|opened| opened.sync_all()).map_err(StoreError::at(folder))
}

/// Returns the names of a directory, sorted, without those of files that are being written.
pub(crate) fn names(folder: &Path) -> Result<Vec<String>, StoreError> {
    let entries = std::fs::read_dir(folder).map_err(StoreError::at(folder))?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: io::Result<Vec<String>> = names.collect();
    let mut names = names.map_err(StoreError::at(folder))?;
    names.retain(|name| !name.starts_with('.'));
    names.sort_unstable();
    Ok(names)
}

/// Opens a lock file, and makes it if it does not exist.
pub(crate) fn open_lock(path: &Path) -> Result<File, StoreError> {
    let mut options = OpenOptions::new();
    let opened = options.write(true).create(true).truncate(false).mode(PRIVATE_FILE).open(path);
    opened.map_err(StoreError::at(path))
}

/// Locks a file until it is closed. Returns `false` if a non-blocking request conflicts with
/// another lock.
pub(crate) fn try_lock(path: &Path, file: &File, how: FlockOperation) -> Result<bool, StoreError> {
    match flock(file, how) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(StoreError::at(path)(error.into())),
    }
}

/// Removes a file or directory, including directories that their owner may not write. Succeeds if
/// the path does not exist.
///
/// # Errors
/// Returns the system's error.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let Some(about) = found(path.symlink_metadata())? else { return Ok(()) };
    if !about.is_dir() {
        return std::fs::remove_file(path);
    }
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            unlock_folders(path).and_then(|()| std::fs::remove_dir_all(path))
        }
        removed => removed,
    }
}

/// Makes all directories writable, so that their entries can be removed.
fn unlock_folders(folder: &Path) -> io::Result<()> {
    std::fs::set_permissions(folder, Permissions::from_mode(PRIVATE_FOLDER))?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            unlock_folders(&entry.path())?;
        }
    }
    Ok(())
}
