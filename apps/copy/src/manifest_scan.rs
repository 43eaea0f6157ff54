//! Turns a file or directory into a manifest: walks it, then cuts the files into blocks and hashes
//! them in several threads.

use crate::block_files::open_regular;
use crate::errors::CopyFileError;
use cool_content::{Block, Builder, Cutter, Digest, Digester, ItemPath, Manifest, ModificationTime};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{Read, Seek};
use std::num::NonZeroUsize;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Maximum number of threads that read at once, because more would only wait for the disk.
const THREADS: usize = 8;

/// Returns the path of an item below a root.
pub(super) fn item_path(root: &Path, path: &ItemPath) -> PathBuf {
    if path.is_root() { root.to_owned() } else { root.join(OsStr::from_bytes(path.as_bytes())) }
}

/// Returns the manifest of a file or directory. A symbolic link at the top is followed; links below
/// it are items of their own.
pub(super) fn scan(root: &Path) -> Result<Manifest, CopyFileError> {
    let found = walk(root)?;
    if let Some((path, _)) = found.iter().find(|(_, about)| is_special(about)) {
        return Err(CopyFileError::Special(item_path(root, path)));
    }
    manifest_of(root, &found.iter().collect::<Vec<_>>())
}

/// Returns whether an item is not a file, directory or symbolic link.
pub(super) fn is_special(about: &Metadata) -> bool {
    !(about.is_dir() || about.is_file() || about.is_symlink())
}

/// Returns the manifest of these items of a file or directory, which must be sorted.
pub(super) fn manifest_of(root: &Path, found: &[&(ItemPath, Metadata)]) -> Result<Manifest, CopyFileError> {
    let files: Vec<&(ItemPath, Metadata)> =
        found.iter().copied().filter(|(_, about)| about.is_file()).collect();
    let mut cut = in_parallel(&files, |(path, about)| cut_file(&item_path(root, path), about))?.into_iter();
    let mut manifest = Builder::default();
    for (path, about) in found {
        let modified = ModificationTime { seconds: about.mtime(), nanoseconds: about.mtime_nsec() as u32 };
        if about.is_dir() {
            manifest.folder(path.clone(), about.mode(), modified);
        } else if about.is_symlink() {
            let link = item_path(root, path);
            let to = std::fs::read_link(&link).map_err(CopyFileError::at(&link))?;
            manifest.link(path.clone(), modified, to.into_os_string().into_vec());
        } else if let Some(file) = cut.next() {
            let FileBlocks { size, extents, digest } = file;
            manifest.file((path.clone(), about.mode(), modified), size, extents, digest);
        }
    }
    manifest.finish().map_err(|reason| CopyFileError::Manifest { path: root.to_owned(), reason })
}

/// Returns the paths of all items below a root, sorted.
pub(super) fn items_at(root: &Path) -> Result<Vec<ItemPath>, CopyFileError> {
    Ok(walk(root)?.into_iter().map(|(path, _)| path).collect())
}

/// Returns all items below a root, sorted by path. A symbolic link at the top is followed.
pub(super) fn walk(root: &Path) -> Result<Vec<(ItemPath, Metadata)>, CopyFileError> {
    let about = std::fs::metadata(root).map_err(CopyFileError::at(root))?;
    let mut directories: Vec<ItemPath> = about.is_dir().then(ItemPath::root).into_iter().collect();
    let mut found = vec![(ItemPath::root(), about)];
    while let Some(directory) = directories.pop() {
        let at = item_path(root, &directory);
        for entry in std::fs::read_dir(&at).map_err(CopyFileError::at(&at))? {
            let entry = entry.map_err(CopyFileError::at(&at))?;
            let about = entry.metadata().map_err(CopyFileError::at(&entry.path()))?;
            let path = directory.join(entry.file_name().as_bytes());
            let path = path.map_err(|reason| CopyFileError::Name { path: entry.path(), reason })?;
            if about.is_dir() {
                directories.push(path.clone());
            }
            found.push((path, about));
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

/// Calls `work` with each item, in several threads, and returns the results in the order of the
/// items, or the first error.
pub(super) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R, CopyFileError> + Sync,
) -> Result<Vec<R>, CopyFileError> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        while let Some((number, item)) = {
            let number = next.fetch_add(1, Ordering::Relaxed);
            items.get(number).map(|item| (number, item))
        } {
            let outcome = work(item);
            if outcome.is_err() {
                // Stops the other threads, too.
                next.store(items.len(), Ordering::Relaxed);
            }
            done.push((number, outcome));
        }
        done
    };
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS).min(items.len());
    let mut all = if threads <= 1 {
        run()
    } else {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
            let done = threads.into_iter().map(|thread| thread.join());
            done.flat_map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        })
    };
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, outcome)| outcome).collect()
}

/// The content of a file.
struct FileBlocks {
    size: u64,
    extents: Vec<(u64, Vec<Block>)>,
    digest: Digest,
}

/// Cuts a file into blocks, and checks that it has not changed since `about` was read.
fn cut_file(path: &Path, about: &Metadata) -> Result<FileBlocks, CopyFileError> {
    let at = || CopyFileError::at(path);
    let mut file = open_regular(path).map_err(at())?;
    let (mut extents, mut digester, mut end) = (Vec::new(), Digester::default(), 0);
    let mut has_reported_size = true;
    while let Some((start, stop)) = next_data(&file, end, about.size()).map_err(at())? {
        file.seek(std::io::SeekFrom::Start(start)).map_err(at())?;
        let mut blocks = Vec::new();
        for block in Cutter::new((&mut file).take(stop - start)) {
            let (block, bytes) = block.map_err(at())?;
            digester.update(&bytes);
            blocks.push(block);
        }
        let cut: u64 = blocks.iter().map(|block| u64::from(block.bytes)).sum();
        if cut != stop - start {
            has_reported_size = false;
            break;
        }
        extents.push((start, blocks));
        end = stop;
    }
    // Files of /proc have content, although their size is reported as 0.
    has_reported_size &= file.read_at(&mut [0], about.size()).map_err(at())? == 0;
    let now = file.metadata().map_err(at())?;
    if version(&now) != version(about) {
        return Err(CopyFileError::Changed(path.to_owned()));
    }
    if !has_reported_size {
        return Err(CopyFileError::WrongSize(path.to_owned()));
    }
    Ok(FileBlocks { size: about.size(), extents, digest: digester.digest() })
}

/// Returns the properties that change when a program writes to a file.
fn version(about: &Metadata) -> (u64, u64, u64, i64, i64) {
    (about.dev(), about.ino(), about.size(), about.mtime(), about.mtime_nsec())
}

/// Returns the start and the end of the first data at or after offset `from` and before `size`, or
/// `None` if there is none.
pub(super) fn next_data(file: &File, from: u64, size: u64) -> Result<Option<(u64, u64)>, std::io::Error> {
    if from >= size {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(from)) {
        Ok(start) if start >= size => return Ok(None),
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // The file system does not report holes.
        Err(Errno::INVAL) => return Ok(Some((from, size))),
        Err(error) => return Err(error.into()),
    };
    let stop = seek(file, SeekFrom::Hole(start))?.min(size);
    Ok((start < stop).then_some((start, stop)))
}
