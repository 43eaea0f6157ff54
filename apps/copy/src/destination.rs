//! The destination of a copy on a node, while it is being written.
//!
//! It is written next to its destination, in a working directory, from blocks that are on the node
//! already and from blocks that arrive. When it is complete and verified, it is renamed into place.

use crate::block_files::{
    drop_cache, finish_file, has_content, make_file, open_regular, read_block, set_mode, set_modified,
};
use crate::errors::CopyFileError;
use crate::manifest_scan::{in_parallel, item_path, scan};
use crate::placement::place;
use crate::previous_destination::{ExpectedDestination, PreviousDestination};
use crate::work_directory::{PRIVATE_DIRECTORY, WorkDirectory, make_directory, open};
use cool_content::{BlockSet, Digest, FileContent, Item, ItemContent, Manifest, Occurrences, Piece};
use cool_store::Put;
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum number of files that are open at once.
const OPEN_MAX: usize = 64;
/// Maximum number of files that are synced to the disk one by one. For more of them, the whole file
/// system is synced.
const SYNCED_ONE_BY_ONE_MAX: usize = 16;

/// Options of a node's copy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DestinationOptions {
    /// If the source is a directory on this node: its device and inode, by which it is found inside
    /// the destination even through bind mounts.
    pub(crate) source: Option<(u64, u64)>,
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
    manifest: Arc<Manifest>,
    occurrences: Occurrences,
    options: DestinationOptions,
    have: BlockSet,
    open: BTreeMap<u32, File>,
    /// The working directory, which is locked until the copy is in place; `None` if the destination
    /// was up to date before.
    work: Option<WorkDirectory>,
    /// The content that the copy may replace.
    expected: ExpectedDestination,
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
        let previous = PreviousDestination::examine(dest, &manifest, options)?;
        let work = if previous.is_up_to_date {
            WorkDirectory::remove_remains(dest);
            None
        } else {
            Some(WorkDirectory::lock(dest)?)
        };
        let mut destination = DestinationCopy {
            dest: dest.to_owned(),
            occurrences: Occurrences::new(&manifest),
            options,
            have: BlockSet::none(manifest.blocks().len()),
            open: BTreeMap::new(),
            work,
            expected: previous.expected,
            put: None,
            manifest,
        };
        match destination.fill_from_node(previous.manifest) {
            Ok(()) => Ok(destination),
            Err(error) => Err(destination.discard(error)),
        }
    }

    /// Examines the destination again if another copy has replaced it before it was locked, or was
    /// interrupted while it replaced it. `before` is its manifest so far.
    fn examine_again(&mut self, before: Option<Manifest>) -> Result<Option<Manifest>, CopyFileError> {
        let Some(work) = &self.work else { return Ok(before) };
        if !work.restore_previous()? && self.expected.check(&self.dest, &self.dest).is_ok() {
            return Ok(before);
        }
        let previous = PreviousDestination::examine(&self.dest, &self.manifest, self.options)?;
        self.expected = previous.expected;
        if let Some(work) = self.work.take_if(|_| previous.is_up_to_date) {
            work.remove()?;
        }
        Ok(previous.manifest)
    }

    /// Creates all items in the working directory, and fills the files with the blocks that are on
    /// this node already: of an interrupted copy of the same source, of the present destination
    /// (`before`), and of an interrupted copy of another source, in this order.
    fn fill_from_node(&mut self, before: Option<Manifest>) -> Result<(), CopyFileError> {
        let before = self.examine_again(before)?;
        let Some(work) = &self.work else {
            self.have = self.have.complement();
            return Ok(());
        };
        let old = work.old();
        let resumes = work.begin(&self.manifest.identity().to_string())?;
        self.make_tree()?;
        if resumes {
            self.find_in_place()?;
        }
        if let Some(before) = before {
            let dest = self.dest.clone();
            self.take_from(&dest, &before)?;
        }
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
        self.work.as_ref().map_or_else(|| self.dest.clone(), WorkDirectory::tree)
    }

    /// Returns the path of the finished copy.
    pub(crate) fn dest(&self) -> &Path {
        &self.dest
    }

    /// Creates all directories, links and files. New files are sparse until blocks are written.
    fn make_tree(&self) -> Result<(), CopyFileError> {
        let tree = self.root();
        for item in self.manifest.items() {
            let path = item_path(&tree, &item.path);
            let made = match &item.content {
                ItemContent::Folder => match make_directory(&path) {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => reopen_directory(&path),
                    made => made,
                },
                ItemContent::Link(to) => make_link(OsStr::from_bytes(to), &path),
                ItemContent::File(file) => make_file(&path, file.size),
            };
            made.map_err(CopyFileError::at(&path))?;
        }
        Ok(())
    }

    /// Reads the files in the working directory, which an interrupted copy of the same source has
    /// left, and records which blocks they contain already, at their right places.
    fn find_in_place(&mut self) -> Result<(), CopyFileError> {
        let (manifest, tree) = (Arc::clone(&self.manifest), self.root());
        let mut wrong = BlockSet::none(manifest.blocks().len());
        let mut bytes = Vec::new();
        for (number, file) in manifest.files() {
            let path = item_path(&tree, &manifest.items()[number].path);
            let opened = open_regular(&path).map_err(CopyFileError::at(&path))?;
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

    /// Copies missing blocks from another file or directory on this node. Files that cannot be read
    /// or have changed since they were scanned are skipped, and their blocks stay missing; returns
    /// the first error of reading.
    ///
    /// # Errors
    /// If the copy cannot be written.
    pub(crate) fn take_from(
        &mut self,
        root: &Path,
        other: &Manifest,
    ) -> Result<Option<CopyFileError>, CopyFileError> {
        let wanted = self.have.complement();
        let wanted: BTreeMap<Digest, u32> =
            wanted.iter().map(|block| (self.manifest.blocks()[block as usize].digest, block)).collect();
        let (mut bytes, mut unreadable) = (Vec::new(), None);
        for (number, file) in other.files() {
            let mut opened = None;
            for (offset, block) in other.blocks_of(file) {
                let about = other.blocks()[block as usize];
                let Some(block) = wanted.get(&about.digest).filter(|block| !self.have.contains(**block))
                else {
                    continue;
                };
                let path = item_path(root, &other.items()[number].path);
                let read = match &mut opened {
                    Some(opened) => Ok(opened),
                    none => open_regular(&path).map(|opened| none.insert(opened)),
                };
                match read.and_then(|opened| read_block(opened, offset, about, &mut bytes)) {
                    Ok(true) => self.put(*block, &bytes)?,
                    Ok(false) => {}
                    Err(error) => {
                        unreadable.get_or_insert(CopyFileError::at(&path)(error));
                        break;
                    }
                }
            }
        }
        Ok(unreadable)
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
        let tree = self.root();
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
    /// If a file is wrong or cannot be written, or another program has written to the destination
    /// since the start. The unfinished copy is removed then.
    pub(crate) fn finish(mut self) -> Result<(), CopyFileError> {
        match self.complete() {
            Ok(()) => {
                if let Some(Err(error)) = self.work.take().map(WorkDirectory::remove) {
                    // The copy is in place.
                    eprintln!("{error}");
                }
                Ok(self.put.map_or(Ok(()), Put::commit)?)
            }
            Err(error) => Err(self.discard(error)),
        }
    }

    fn complete(&mut self) -> Result<(), CopyFileError> {
        self.open.clear();
        if !self.have.is_full() {
            return Err(CopyFileError::Corrupt(self.dest.clone()));
        }
        let Some(work) = &self.work else {
            return if self.options.verify { self.verify_unchanged() } else { Ok(()) };
        };
        let tree = work.tree();
        let root = File::open(&tree).map_err(CopyFileError::at(&tree))?;
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
                ItemContent::Folder => {
                    // The root must stay writable until it is renamed.
                    let extra = if item.path.is_root() { PRIVATE_DIRECTORY } else { 0 };
                    set_mode(&path, item.mode | extra).and_then(|()| set_modified(&path, item.modified))
                }
            };
            set.map_err(CopyFileError::at(&path))?;
        }
        if !one_by_one || self.manifest.items().len() > 1 {
            work.sync_file_system()?;
        }
        place(work, &root, &self.expected)?;
        let item = &self.manifest.items()[0];
        let completed = match item.content {
            ItemContent::Folder => {
                set_mode(&self.dest, item.mode).and_then(|()| set_modified(&self.dest, item.modified))
            }
            _ => Ok(()),
        };
        completed.and_then(|()| root.sync_all()).map_err(CopyFileError::at(&self.dest))?;
        let parent = self.dest.parent().unwrap_or(Path::new("/"));
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(CopyFileError::at(parent))
    }

    /// Reads a copy that was up to date before from the disk, and checks it.
    fn verify_unchanged(&self) -> Result<(), CopyFileError> {
        let files: Vec<_> = self.manifest.files().collect();
        in_parallel(&files, |(number, file)| {
            let path = item_path(&self.dest, &self.manifest.items()[*number].path);
            let checked = open_regular(&path).and_then(|opened| {
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

    /// Removes the unfinished copy because of an error, and returns that error. Content of the
    /// destination that could not be moved back is kept.
    pub(crate) fn discard(self, error: CopyFileError) -> CopyFileError {
        let work = self.work.filter(|_| !matches!(error, CopyFileError::KeptAside { .. }));
        let removed =
            [work.map_or(Ok(()), WorkDirectory::remove), self.put.map_or(Ok(()), |put| Ok(put.abandon()?))];
        // The first error explains more.
        removed.into_iter().filter_map(Result::err).for_each(|later| eprintln!("{later}"));
        error
    }
}

/// Makes a directory writable that an interrupted copy has left. Does not follow a symbolic link.
fn reopen_directory(path: &Path) -> io::Result<()> {
    let directory = open(path, OpenOptions::new().read(true), OFlags::DIRECTORY);
    match directory {
        // Its mode may be final already, but it belongs to this user.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && path.symlink_metadata()?.is_dir() => {
            set_mode(path, PRIVATE_DIRECTORY)
        }
        opened => opened?.set_permissions(Permissions::from_mode(PRIVATE_DIRECTORY)),
    }
}

/// Creates a symbolic link, or replaces another one that an interrupted copy has left.
fn make_link(to: &OsStr, path: &Path) -> io::Result<()> {
    match symlink(to, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            if std::fs::read_link(path)? == to {
                return Ok(());
            }
            std::fs::remove_file(path)?;
            symlink(to, path)
        }
        made => made,
    }
}
