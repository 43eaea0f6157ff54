//! Files of a store: written whole or not at all, locked, and removed.

use crate::error::StoreError;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Of all files and folders: their owner's.
const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_FOLDER: u32 = 0o700;

/// Makes a folder, unless it is there.
pub(crate) fn make_folder(path: &Path) -> Result<(), StoreError> {
    match DirBuilder::new().mode(PRIVATE_FOLDER).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(StoreError::at(path)),
    }
}

/// What a file has in it; nothing if it is not there.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    found(std::fs::read(path)).map_err(StoreError::at(path))
}

/// Nothing where there is nothing.
pub(crate) fn found<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a file of a folder so that it is there with all these bytes, or as it was before.
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

/// Removes a file; whether it was there.
pub(crate) fn unlink(folder: &Path, name: &str) -> Result<bool, StoreError> {
    let path = folder.join(name);
    let was_there = found(std::fs::remove_file(&path)).map_err(StoreError::at(&path))?.is_some();
    sync(folder)?;
    Ok(was_there)
}

/// Brings a folder's names to the disk.
pub(crate) fn sync(folder: &Path) -> Result<(), StoreError> {
    File::open(folder).and_then(|opened| opened.sync_all()).map_err(StoreError::at(folder))
}

/// The names of a folder, without those of files that are being written.
pub(crate) fn names(folder: &Path) -> Result<Vec<String>, StoreError> {
    let entries = std::fs::read_dir(folder).map_err(StoreError::at(folder))?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: io::Result<Vec<String>> = names.collect();
    let mut names = names.map_err(StoreError::at(folder))?;
    names.retain(|name| !name.starts_with('.'));
    names.sort_unstable();
    Ok(names)
}

/// A file that is there to be locked.
pub(crate) fn open_lock(path: &Path) -> Result<File, StoreError> {
    let mut options = OpenOptions::new();
    let opened = options.write(true).create(true).truncate(false).mode(PRIVATE_FILE).open(path);
    opened.map_err(StoreError::at(path))
}

/// Locks a file until it is closed; whether nobody else has it locked otherwise.
pub(crate) fn try_lock(path: &Path, file: &File, how: FlockOperation) -> Result<bool, StoreError> {
    match flock(file, how) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(StoreError::at(path)(error.into())),
    }
}

/// Removes a file or folder, also folders that their owner may not write; fine if there is none.
///
/// # Errors
/// What the system says.
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

/// Lets all folders be written, so that what is in them can be removed.
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
