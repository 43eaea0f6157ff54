//! The destination of a copy on a node, while it is being written.
//!
//! It is written next to its destination, in a working directory, from blocks that are on the node
//! already and from blocks that arrive. When it is complete and verified, it is renamed into place.

use crate::errors::CopyFileError;
use crate::manifest_scan::{in_parallel, item_path, scan};
use cool_content::{
    Block, BlockSet, Digest, Digester, FileContent, Item, ItemContent, ItemPath, Manifest, ModificationTime,
    Occurrences, Piece,
};
use cool_store::{Put, remove_tree};
use rustix::fs::{
    Advice, AtFlags, CWD, FlockOperation, RenameFlags, Timespec, Timestamps, fadvise, flock, renameat_with,
    syncfs, utimensat,
};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum number of files that are open at once.
const OPEN_MAX: usize = 64;
/// Maximum number of files that are synced to the disk one by one. For more of them, the whole file
/// system is synced.
const SYNCED_ONE_BY_ONE_MAX: usize = 16;
/// Modes of files and directories until they are complete.
const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_DIRECTORY: u32 = 0o700;
/// Number of attempts to lock the working directory, because another copy may remove it meanwhile.
const LOCK_ATTEMPTS: usize = 8;

/// Options of a node's copy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DestinationOptions {
    /// Whether files that are not in the source are removed.
    pub(crate) delete: bool,
    /// Whether the copy is read back from the disk before it is renamed into place.
    pub(crate) verify: bool,
}

/// A node's copy, or why the node cannot have one.
pub(crate) type DestinationResult = Result<DestinationCopy, CopyFileError>;

/// A node's copy at its destination while it is being written.
#[derive(Debug)]
pub(crate) struct DestinationCopy {
    dest: PathBuf,
    /// The working directory next to the destination.
    work: PathBuf,
    manifest: Arc<Manifest>,
    occurrences: Occurrences,
    options: DestinationOptions,
    have: BlockSet,
    open: BTreeMap<u32, File>,
    /// Lock of the working directory, held until the copy is in place; `None` if the destination
    /// was up to date before.
    lock: Option<File>,
    /// For a copy into a store: the pending put, which adds the name at the end.
    put: Option<Put>,
}

impl DestinationCopy {
    /// Prepares the copy at `dest`, with all blocks that are there already.
    ///
    /// # Errors
    /// If the destination must not be replaced, cannot be written, or another copy is writing it.
    pub(crate) fn open(
        dest: &Path,
        manifest: Arc<Manifest>,
        options: DestinationOptions,
    ) -> Result<DestinationCopy, CopyFileError> {
        let before = existing(dest, &manifest, options)?;
        let (parent, name) = match (dest.parent(), dest.file_name()) {
            (Some(parent), Some(name)) => (parent, name),
            _ => {
                return Err(CopyFileError::Unusable {
                    path: dest.to_owned(),
                    problem: "is not a possible name of a copy",
                });
            }
        };
        std::fs::create_dir_all(parent).map_err(CopyFileError::at(parent))?;
        let work =
            parent.join([b".", name.as_bytes(), b".cool-copy"].map(OsStr::from_bytes).join(OsStr::new("")));
        let occurrences = Occurrences::new(&manifest);
        let have = BlockSet::none(manifest.blocks().len());
        let dest = dest.to_owned();
        let mut destination = DestinationCopy {
            dest,
            work,
            manifest,
            occurrences,
            options,
            have,
            open: BTreeMap::new(),
            lock: None,
            put: None,
        };
        if before.as_ref() == Some(&*destination.manifest) {
            destination.have = destination.have.complement();
            return Ok(destination);
        }
        destination.lock = Some(lock(&destination.work)?);
        match destination.fill_from_node(before.as_ref()) {
            Ok(()) => Ok(destination),
            Err(error) => {
                destination.discard()?;
                Err(error)
            }
        }
    }

    /// Creates all items in the working directory, and fills the files with the blocks that are on
    /// this node already: of an interrupted copy of the same source, of the present destination
    /// (`before`), and of an interrupted copy of another source, in this order.
    fn fill_from_node(&mut self, before: Option<&Manifest>) -> Result<(), CopyFileError> {
        let resumes = self.begin()?;
        self.make_tree()?;
        if resumes {
            self.find_in_place()?;
        }
        if let Some(before) = before {
            let dest = self.dest.clone();
            self.take_from(&dest, before)?;
        }
        let old = self.old();
        if !self.have.is_full() && old.symlink_metadata().is_ok() {
            // Files of an interrupted copy of another version. If they cannot be read, they are not
            // needed.
            if let Ok(left) = scan(&old) {
                self.take_from(&old, &left)?;
            }
        }
        Ok(())
    }

    /// Returns this copy as the files of the object that `put` adds to a store.
    pub(crate) fn into_store(self, put: Put) -> DestinationCopy {
        DestinationCopy { put: Some(put), ..self }
    }

    /// Returns the blocks that it has.
    pub(crate) fn have(&self) -> &BlockSet {
        &self.have
    }

    /// Returns the total size of the missing blocks, in bytes.
    pub(crate) fn missing_bytes(&self) -> u64 {
        let blocks = self.manifest.blocks();
        self.have.complement().iter().map(|block| u64::from(blocks[block as usize].bytes)).sum()
    }

    /// Returns the path at which its blocks can be read now.
    pub(crate) fn root(&self) -> PathBuf {
        if self.lock.is_some() { self.tree() } else { self.dest.clone() }
    }

    /// Returns the path of the finished copy.
    pub(crate) fn dest(&self) -> &Path {
        &self.dest
    }

    fn tree(&self) -> PathBuf {
        self.work.join("tree")
    }

    fn old(&self) -> PathBuf {
        self.work.join("old")
    }

    /// Returns whether the working directory contains an interrupted copy of the same source. Moves
    /// the files of any other interrupted copy to `old`.
    fn begin(&self) -> Result<bool, CopyFileError> {
        let (identity_file, tree, old) = (self.work.join("identity"), self.tree(), self.old());
        let identity = self.manifest.identity().to_string();
        let left = tree.symlink_metadata().is_ok();
        if left && std::fs::read_to_string(&identity_file).is_ok_and(|noted| noted == identity) {
            return Ok(true);
        }
        if left {
            remove(&old)?;
            std::fs::rename(&tree, &old).map_err(CopyFileError::at(&tree))?;
        }
        std::fs::write(&identity_file, identity).map_err(CopyFileError::at(&identity_file))?;
        Ok(false)
    }

    /// Creates all directories, links and files. New files are sparse until blocks are written.
    fn make_tree(&self) -> Result<(), CopyFileError> {
        let tree = self.tree();
        for item in self.manifest.items() {
            let path = item_path(&tree, &item.path);
            let made = match &item.content {
                ItemContent::Folder => match make_directory(&path) {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                        std::fs::set_permissions(&path, Permissions::from_mode(PRIVATE_DIRECTORY))
                    }
                    made => made,
                },
                ItemContent::Link(to) => match symlink(OsStr::from_bytes(to), &path) {
                    // The links are right, because only a copy of the same source is resumed.
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
                    made => made,
                },
                ItemContent::File(file) => make_file(&path, file.size),
            };
            made.map_err(CopyFileError::at(&path))?;
        }
        Ok(())
    }

    /// Reads the files in the working directory, which an interrupted copy of the same source has
    /// left, and records which blocks they contain already, at their right places.
    fn find_in_place(&mut self) -> Result<(), CopyFileError> {
        let (manifest, tree) = (Arc::clone(&self.manifest), self.tree());
        let mut wrong = BlockSet::none(manifest.blocks().len());
        let mut bytes = Vec::new();
        for (number, file) in manifest.files() {
            let path = item_path(&tree, &manifest.items()[number].path);
            let opened = File::open(&path).map_err(CopyFileError::at(&path))?;
            for (offset, block) in manifest.blocks_of(file) {
                let about = manifest.blocks()[block as usize];
                let right =
                    read_block(&opened, offset, about, &mut bytes).map_err(CopyFileError::at(&path))?;
                if right { self.have.insert(block) } else { wrong.insert(block) }
            }
        }
        // A block must be present at each of its places.
        self.have.intersect(&wrong.complement());
        Ok(())
    }

    /// Copies missing blocks from another file or directory on this node.
    pub(crate) fn take_from(&mut self, root: &Path, other: &Manifest) -> Result<(), CopyFileError> {
        let wanted = self.have.complement();
        let wanted: BTreeMap<Digest, u32> =
            wanted.iter().map(|block| (self.manifest.blocks()[block as usize].digest, block)).collect();
        let mut bytes = Vec::new();
        for (number, file) in other.files() {
            let mut opened = None;
            for (offset, block) in other.blocks_of(file) {
                let about = other.blocks()[block as usize];
                let Some(block) = wanted.get(&about.digest).filter(|block| !self.have.contains(**block))
                else {
                    continue;
                };
                let path = item_path(root, &other.items()[number].path);
                let opened = match &mut opened {
                    Some(opened) => opened,
                    none => none.insert(File::open(&path).map_err(CopyFileError::at(&path))?),
                };
                // A block that has changed since the scan is received from the source.
                if read_block(opened, offset, about, &mut bytes).map_err(CopyFileError::at(&path))? {
                    self.put(*block, &bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Writes the missing blocks of a piece, unless its bytes are wrong.
    pub(crate) fn put_piece(&mut self, piece: &Piece, bytes: &[u8]) -> Result<(), CopyFileError> {
        if !piece.is_right(&self.manifest, bytes) {
            return Err(CopyFileError::Corrupt(self.dest.clone()));
        }
        self.put_checked_piece(piece, bytes)
    }

    /// Writes the missing blocks of a piece. The caller must have compared the bytes with its
    /// hashes.
    pub(crate) fn put_checked_piece(&mut self, piece: &Piece, bytes: &[u8]) -> Result<(), CopyFileError> {
        let mut at = 0;
        for block in &piece.blocks {
            let end = at + self.manifest.blocks()[*block as usize].bytes as usize;
            if !self.have.contains(*block) {
                self.put(*block, &bytes[at..end])?;
            }
            at = end;
        }
        Ok(())
    }

    /// Writes a block at all its places.
    fn put(&mut self, block: u32, bytes: &[u8]) -> Result<(), CopyFileError> {
        let tree = self.tree();
        for occurrence in self.occurrences.of(block) {
            let path = || item_path(&tree, &self.manifest.items()[occurrence.item as usize].path);
            if self.open.len() >= OPEN_MAX && !self.open.contains_key(&occurrence.item) {
                self.open.clear();
            }
            let file = match self.open.entry(occurrence.item) {
                std::collections::btree_map::Entry::Occupied(open) => open.into_mut(),
                std::collections::btree_map::Entry::Vacant(none) => {
                    let opened = OpenOptions::new().write(true).open(path());
                    none.insert(opened.map_err(|reason| CopyFileError::Path { path: path(), reason })?)
                }
            };
            let written = file.write_all_at(bytes, occurrence.offset);
            written.map_err(|reason| CopyFileError::Path { path: path(), reason })?;
        }
        self.have.insert(block);
        Ok(())
    }

    /// Verifies every file and renames the copy into place.
    ///
    /// # Errors
    /// If a file is wrong or cannot be written. The unfinished copy is removed then.
    pub(crate) fn finish(mut self) -> Result<(), CopyFileError> {
        match self.complete() {
            Ok(()) => Ok(self.put.map_or(Ok(()), Put::commit)?),
            Err(error) => {
                self.discard()?;
                Err(error)
            }
        }
    }

    fn complete(&mut self) -> Result<(), CopyFileError> {
        self.open.clear();
        if !self.have.is_full() {
            return Err(CopyFileError::Corrupt(self.dest.clone()));
        }
        let Some(lock) = &self.lock else {
            return if self.options.verify { self.verify_unchanged() } else { Ok(()) };
        };
        let tree = self.tree();
        let files: Vec<(&Item, &FileContent)> =
            self.manifest.files().map(|(number, file)| (&self.manifest.items()[number], file)).collect();
        let one_by_one = self.options.verify || files.len() <= SYNCED_ONE_BY_ONE_MAX;
        in_parallel(&files, |(item, file)| {
            let path = item_path(&tree, &item.path);
            let finish = || finish_file(&path, item, file, &self.manifest, one_by_one, self.options.verify);
            match finish() {
                Ok(true) => Ok(()),
                Ok(false) => Err(CopyFileError::Corrupt(item_path(&self.dest, &item.path))),
                Err(reason) => Err(CopyFileError::Path { path, reason }),
            }
        })?;
        // In reverse order, because changing an item would change the time of its directory.
        for item in self.manifest.items().iter().rev() {
            let path = item_path(&tree, &item.path);
            let set = match item.content {
                ItemContent::File(_) => Ok(()),
                ItemContent::Link(_) => set_modified(&path, item.modified),
                // The root must stay writable until it is renamed.
                ItemContent::Folder if item.path.is_root() => Ok(()),
                ItemContent::Folder => {
                    set_mode(&path, item.mode).and_then(|()| set_modified(&path, item.modified))
                }
            };
            set.map_err(CopyFileError::at(&path))?;
        }
        if !one_by_one || self.manifest.items().len() > 1 {
            syncfs(lock).map_err(|e| CopyFileError::at(&self.work)(e.into()))?;
        }
        self.place_tree()?;
        remove(&self.work)?;
        let parent = self.dest.parent().unwrap_or(Path::new("/"));
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(CopyFileError::at(parent))
    }

    /// Renames the copy into place.
    fn place_tree(&self) -> Result<(), CopyFileError> {
        let (tree, dest, root) = (self.tree(), &self.dest, &self.manifest.items()[0]);
        if root.content != ItemContent::Folder {
            return std::fs::rename(&tree, dest).map_err(CopyFileError::at(dest));
        }
        if dest.symlink_metadata().is_ok() {
            set_mode(dest, PRIVATE_DIRECTORY).map_err(CopyFileError::at(dest))?;
            match renameat_with(CWD, &tree, CWD, dest, RenameFlags::EXCHANGE) {
                Ok(()) => {}
                // The file system cannot exchange names, so for a moment the destination does not
                // exist.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    let aside = self.work.join("before");
                    std::fs::rename(dest, &aside).map_err(CopyFileError::at(dest))?;
                    std::fs::rename(&tree, dest).map_err(CopyFileError::at(dest))?;
                }
                Err(error) => return Err(CopyFileError::at(dest)(error.into())),
            }
        } else {
            std::fs::rename(&tree, dest).map_err(CopyFileError::at(dest))?;
        }
        set_mode(dest, root.mode)
            .and_then(|()| set_modified(dest, root.modified))
            .map_err(CopyFileError::at(dest))
    }

    /// Reads a copy that was up to date before from the disk, and checks it.
    fn verify_unchanged(&self) -> Result<(), CopyFileError> {
        let files: Vec<_> = self.manifest.files().collect();
        in_parallel(&files, |(number, file)| {
            let path = item_path(&self.dest, &self.manifest.items()[*number].path);
            let checked = File::open(&path).and_then(|opened| {
                drop_cache(&opened)?;
                has_content(&opened, file, &self.manifest)
            });
            match checked {
                Ok(true) => Ok(()),
                Ok(false) => Err(CopyFileError::Changed(path)),
                Err(reason) => Err(CopyFileError::Path { path, reason }),
            }
        })
        .map(drop)
    }

    /// Removes the unfinished copy.
    pub(crate) fn discard(self) -> Result<(), CopyFileError> {
        if self.lock.is_some() {
            remove(&self.work)?;
        }
        Ok(self.put.map_or(Ok(()), Put::abandon)?)
    }
}

/// Returns the manifest of the existing destination; `None` if there is none.
///
/// # Errors
/// If it must not be replaced.
fn existing(
    dest: &Path,
    manifest: &Manifest,
    options: DestinationOptions,
) -> Result<Option<Manifest>, CopyFileError> {
    let about = match dest.symlink_metadata() {
        Ok(about) => about,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(CopyFileError::at(dest)(error)),
    };
    let source_is_directory = manifest.items()[0].content == ItemContent::Folder;
    let problem = match (source_is_directory, about.is_dir()) {
        _ if about.is_symlink() => Some("is a symbolic link"),
        (false, true) => Some("is a directory, but the source is a file; end DEST with / to copy into it"),
        (true, false) => Some("exists and is not a directory, but the source is one"),
        (false, false) if !about.is_file() => Some("exists and is not a regular file"),
        _ => None,
    };
    if let Some(problem) = problem {
        return Err(CopyFileError::Unusable { path: dest.to_owned(), problem });
    }
    let before = scan(dest)?;
    if !options.delete {
        let names: BTreeSet<&ItemPath> = manifest.items().iter().map(|item| &item.path).collect();
        if let Some(extra) = before.items().iter().find(|item| !names.contains(&item.path)) {
            return Err(CopyFileError::Extra { path: dest.to_owned(), extra: extra.path.to_string() });
        }
    }
    Ok(Some(before))
}

/// Creates the working directory and locks it against other copies.
fn lock(work: &Path) -> Result<File, CopyFileError> {
    for _ in 0..LOCK_ATTEMPTS {
        match make_directory(work) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(CopyFileError::at(work)(error));
            }
            _ => {}
        }
        let directory = match File::open(work) {
            // Another copy has just removed it.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            opened => opened.map_err(CopyFileError::at(work))?,
        };
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(CopyFileError::Locked(work.to_owned())),
            locked => locked.map_err(|e| CopyFileError::at(work)(e.into()))?,
        }
        let locked = directory.metadata().map_err(CopyFileError::at(work))?;
        if locked.uid() != rustix::process::geteuid().as_raw() {
            return Err(CopyFileError::Unusable {
                path: work.to_owned(),
                problem: "belongs to another user",
            });
        }
        if work
            .symlink_metadata()
            .is_ok_and(|current| (current.dev(), current.ino()) == (locked.dev(), locked.ino()))
        {
            return Ok(directory);
        }
    }
    Err(CopyFileError::Locked(work.to_owned()))
}

fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(PRIVATE_DIRECTORY).create(path)
}

/// Creates a file of this length, and keeps the bytes that it has already.
fn make_file(path: &Path, size: u64) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(PRIVATE_FILE);
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
fn finish_file(
    path: &Path,
    item: &Item,
    content: &FileContent,
    manifest: &Manifest,
    sync: bool,
    verify: bool,
) -> io::Result<bool> {
    let file = File::open(path)?;
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
fn read_block(file: &File, offset: u64, block: Block, bytes: &mut Vec<u8>) -> io::Result<bool> {
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

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

fn set_modified(path: &Path, modified: ModificationTime) -> io::Result<()> {
    let time = Timespec { tv_sec: modified.seconds, tv_nsec: modified.nanoseconds.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn remove(path: &Path) -> Result<(), CopyFileError> {
    remove_tree(path).map_err(CopyFileError::at(path))
}
