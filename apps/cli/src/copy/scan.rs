//! A file or folder as a manifest: walked, then cut into blocks and hashed by several threads.

use super::fault::Fault;
use cool_content::{Block, Builder, Cutter, Digest, Digester, ItemPath, Manifest, Modified};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{Read, Seek};
use std::num::NonZeroUsize;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Threads that read at once: more of them only wait for the disk.
const THREADS: usize = 8;

/// Where an item is.
pub(super) fn place(root: &Path, path: &ItemPath) -> PathBuf {
    if path.is_root() { root.to_owned() } else { root.join(OsStr::from_bytes(path.as_bytes())) }
}

/// What is there, with all that is in it. A symbolic link at its top is followed, those in it are items of their own.
pub(super) fn scan(root: &Path) -> Result<Manifest, Fault> {
    let found = walk(root)?;
    let files: Vec<&(ItemPath, Metadata)> = found.iter().filter(|(_, about)| about.is_file()).collect();
    let mut cut = in_parallel(&files, |(path, about)| cut_file(&place(root, path), about))?.into_iter();
    let mut manifest = Builder::default();
    for (path, about) in &found {
        let modified = Modified { seconds: about.mtime(), nanoseconds: about.mtime_nsec() as u32 };
        if about.is_dir() {
            manifest.folder(path.clone(), about.mode(), modified);
        } else if about.is_symlink() {
            let place = place(root, path);
            let to = std::fs::read_link(&place).map_err(Fault::at(&place))?;
            manifest.link(path.clone(), modified, to.into_os_string().into_vec());
        } else if let Some(file) = cut.next() {
            let FileBlocks { size, extents, digest } = file;
            manifest.file((path.clone(), about.mode(), modified), size, extents, digest);
        }
    }
    manifest.finish().map_err(|reason| Fault::Manifest { path: root.to_owned(), reason })
}

/// The paths of all that is there, in their order.
pub(super) fn items_at(root: &Path) -> Result<Vec<ItemPath>, Fault> {
    Ok(walk(root)?.into_iter().map(|(path, _)| path).collect())
}

/// All items in the order of their paths.
fn walk(root: &Path) -> Result<Vec<(ItemPath, Metadata)>, Fault> {
    let about = std::fs::metadata(root).map_err(Fault::at(root))?;
    let mut folders: Vec<ItemPath> = about.is_dir().then(ItemPath::root).into_iter().collect();
    let mut found = vec![(ItemPath::root(), about)];
    while let Some(folder) = folders.pop() {
        let at = place(root, &folder);
        for entry in std::fs::read_dir(&at).map_err(Fault::at(&at))? {
            let entry = entry.map_err(Fault::at(&at))?;
            let about = entry.metadata().map_err(Fault::at(&entry.path()))?;
            let path = folder.join(entry.file_name().as_bytes());
            let path = path.map_err(|reason| Fault::Name { path: entry.path(), reason })?;
            if about.is_dir() {
                folders.push(path.clone());
            }
            found.push((path, about));
        }
    }
    let special = found.iter().find(|(_, about)| !(about.is_dir() || about.is_file() || about.is_symlink()));
    if let Some((path, _)) = special {
        return Err(Fault::Special(place(root, path)));
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

/// Does the same with each of some things, in several threads; what came of them, in their order, or the first failure.
pub(super) fn in_parallel<T: Sync, R: Send>(
    things: &[T],
    work: impl Fn(&T) -> Result<R, Fault> + Sync,
) -> Result<Vec<R>, Fault> {
    let next = AtomicUsize::new(0);
    let take_turns = || {
        let mut done = Vec::new();
        while let Some((number, thing)) = {
            let number = next.fetch_add(1, Ordering::Relaxed);
            things.get(number).map(|thing| (number, thing))
        } {
            let outcome = work(thing);
            if outcome.is_err() {
                // The others need not begin with more.
                next.store(things.len(), Ordering::Relaxed);
            }
            done.push((number, outcome));
        }
        done
    };
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS).min(things.len());
    let mut all = if threads <= 1 {
        take_turns()
    } else {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(take_turns)).collect();
            let done = threads.into_iter().map(|thread| thread.join());
            done.flat_map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        })
    };
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, outcome)| outcome).collect()
}

/// What is in a file.
struct FileBlocks {
    size: u64,
    extents: Vec<(u64, Vec<Block>)>,
    digest: Digest,
}

/// Cuts a file, of which `about` was known before.
fn cut_file(path: &Path, about: &Metadata) -> Result<FileBlocks, Fault> {
    let at = || Fault::at(path);
    let mut file = File::open(path).map_err(at())?;
    let (mut extents, mut digester, mut end) = (Vec::new(), Digester::default(), 0);
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
            return Err(Fault::Changed(path.to_owned()));
        }
        extents.push((start, blocks));
        end = stop;
    }
    let now = file.metadata().map_err(at())?;
    if version(&now) != version(about) {
        return Err(Fault::Changed(path.to_owned()));
    }
    Ok(FileBlocks { size: about.size(), extents, digest: digester.digest() })
}

/// By which a file that was written is known from what it was.
fn version(about: &Metadata) -> (u64, u64, u64, i64, i64) {
    (about.dev(), about.ino(), about.size(), about.mtime(), about.mtime_nsec())
}

/// The next data behind `from` in a file of `size` bytes, up to the next hole.
fn next_data(file: &File, from: u64, size: u64) -> Result<Option<(u64, u64)>, std::io::Error> {
    if from >= size {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A file system that does not tell of holes.
        Err(Errno::INVAL) => return Ok(Some((from, size))),
        Err(error) => return Err(error.into()),
    };
    let stop = seek(file, SeekFrom::Hole(start))?.min(size);
    Ok((start < stop).then_some((start, stop)))
}
