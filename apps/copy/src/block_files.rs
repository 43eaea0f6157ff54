//! Files of a copy: creating, reading, verifying and completing them.

use crate::work_directory::PRIVATE_FILE;
use cool_content::{Block, Digest, Digester, FileContent, Item, Manifest, ModificationTime};
use rustix::fs::{Advice, AtFlags, CWD, OFlags, Timespec, Timestamps, fadvise, utimensat};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Opens a regular file for reading. Returns at once even if another program has put a pipe there.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("is not a regular file")) }
}

/// Creates a file of this length, and keeps the bytes that it has already.
///
/// # Errors
/// Returns an error if the path is a symbolic link, because its target must not be written, or if
/// it is another item.
pub(crate) fn make_file(path: &Path, size: u64) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(PRIVATE_FILE);
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    let file = match options.open(path) {
        // An interrupted copy has set its final mode already.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            set_mode(path, PRIVATE_FILE)?;
            options.open(path)?
        }
        opened => opened?,
    };
    file.set_len(size)
}

/// Verifies a file and sets its mode and time. Returns whether its content is right.
pub(crate) fn finish_file(
    path: &Path,
    item: &Item,
    content: &FileContent,
    manifest: &Manifest,
    sync: bool,
    verify: bool,
) -> io::Result<bool> {
    let file = open_regular(path)?;
    if sync {
        file.sync_all()?;
    }
    if verify {
        drop_cache(&file)?;
    }
    if !has_content(&file, content, manifest)? {
        return Ok(false);
    }
    set_mode(path, item.mode)?;
    set_modified(path, item.modified)?;
    if sync { file.sync_all().map(|()| true) } else { Ok(true) }
}

/// Drops the cached pages of a file, so that it is read from the disk again.
pub(crate) fn drop_cache(file: &File) -> io::Result<()> {
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Reads a block, and returns whether its hash is right.
pub(crate) fn read_block(file: &File, offset: u64, block: Block, bytes: &mut Vec<u8>) -> io::Result<bool> {
    bytes.resize(block.bytes as usize, 0);
    Ok(read_exactly(file, offset, bytes)? && Digest::of(bytes) == block.digest)
}

/// Reads `bytes` at an offset of a file. Returns whether the file is long enough.
fn read_exactly(file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact_at(bytes, offset) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

/// Returns whether a file has the right content.
pub(crate) fn has_content(file: &File, content: &FileContent, manifest: &Manifest) -> io::Result<bool> {
    let (mut digester, mut bytes) = (Digester::default(), Vec::new());
    for (offset, block) in manifest.blocks_of(content) {
        bytes.resize(manifest.blocks()[block as usize].bytes as usize, 0);
        if !read_exactly(file, offset, &mut bytes)? {
            return Ok(false);
        }
        digester.update(&bytes);
    }
    Ok(file.metadata()?.size() == content.size && digester.digest() == content.digest)
}

pub(crate) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

pub(crate) fn set_modified(path: &Path, modified: ModificationTime) -> io::Result<()> {
    let time = Timespec { tv_sec: modified.seconds, tv_nsec: modified.nanoseconds.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}
