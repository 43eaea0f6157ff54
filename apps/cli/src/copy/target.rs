//! A copy that comes into being on a node: beside its destination in a folder of its own, out of blocks that are there already or
//! that come, until it is whole and checked; then it takes its place at once.

use super::fault::Fault;
use super::scan::{in_parallel, place, scan};
use cool_content::{
    Block, BlockSet, Digest, Digester, FileContent, Item, ItemContent, ItemPath, Manifest, Modified,
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

/// Files that are open at once.
const OPEN: usize = 64;
/// Up to how many files are brought to the disk one by one; of more, the file system brings all that it has.
const SYNCED_ONE_BY_ONE: usize = 16;
/// Of files and folders until they are whole: their owner's.
const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_FOLDER: u32 = 0o700;
/// How often a folder is locked that another copy has just removed.
const TRIES: usize = 8;

/// What a node does with what is there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habits {
    /// Files that the source has not are removed.
    pub(super) delete: bool,
    /// What was written is read from the disk again.
    pub(super) verify: bool,
}

/// A copy that comes into being.
#[derive(Debug)]
pub(super) struct Target {
    dest: PathBuf,
    /// Beside it, this node's until the end.
    work: PathBuf,
    manifest: Arc<Manifest>,
    occurrences: Occurrences,
    habits: Habits,
    have: BlockSet,
    open: BTreeMap<u32, File>,
    /// Held until the copy is in its place; none if it was there before.
    lock: Option<File>,
    /// If it is a store's, which gives it its name at the end.
    put: Option<Put>,
}

impl Target {
    /// Prepares the copy at `dest`, out of all that is there already.
    pub(super) fn open(dest: &Path, manifest: Arc<Manifest>, habits: Habits) -> Result<Target, Fault> {
        let before = existing(dest, &manifest, habits)?;
        let (folder, name) = match (dest.parent(), dest.file_name()) {
            (Some(folder), Some(name)) => (folder, name),
            _ => return Err(Fault::Taken { path: dest.to_owned(), what: "is no name for a copy" }),
        };
        std::fs::create_dir_all(folder).map_err(Fault::at(folder))?;
        let work =
            folder.join([b".", name.as_bytes(), b".cool-copy"].map(OsStr::from_bytes).join(OsStr::new("")));
        let occurrences = Occurrences::new(&manifest);
        let have = BlockSet::none(manifest.blocks().len());
        let dest = dest.to_owned();
        let mut target = Target {
            dest,
            work,
            manifest,
            occurrences,
            habits,
            have,
            open: BTreeMap::new(),
            lock: None,
            put: None,
        };
        if before.as_ref() == Some(&*target.manifest) {
            target.have = target.have.complement();
            return Ok(target);
        }
        target.lock = Some(lock(&target.work)?);
        match target.fill(before.as_ref()) {
            Ok(()) => Ok(target),
            Err(fault) => {
                target.give_up()?;
                Err(fault)
            }
        }
    }

    /// Makes all items, and writes what is on this node already.
    fn fill(&mut self, before: Option<&Manifest>) -> Result<(), Fault> {
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
            // What an interrupted copy of another version has left; if it cannot be read, it is of no use.
            if let Ok(left) = scan(&old) {
                self.take_from(&old, &left)?;
            }
        }
        Ok(())
    }

    /// It is what a store is to have.
    pub(super) fn into_store(self, put: Put) -> Target {
        Target { put: Some(put), ..self }
    }

    /// The blocks that it has.
    pub(super) fn have(&self) -> &BlockSet {
        &self.have
    }

    /// Bytes that it lacks.
    pub(super) fn lacking(&self) -> u64 {
        let blocks = self.manifest.blocks();
        self.have.complement().iter().map(|block| u64::from(blocks[block as usize].bytes)).sum()
    }

    /// Where its blocks can be read.
    pub(super) fn root(&self) -> PathBuf {
        if self.lock.is_some() { self.tree() } else { self.dest.clone() }
    }

    /// Where it is to be.
    pub(super) fn dest(&self) -> &Path {
        &self.dest
    }

    fn tree(&self) -> PathBuf {
        self.work.join("tree")
    }

    fn old(&self) -> PathBuf {
        self.work.join("old")
    }

    /// Looks at what an earlier copy has left; whether that was of the same source.
    fn begin(&self) -> Result<bool, Fault> {
        let (note, tree, old) = (self.work.join("identity"), self.tree(), self.old());
        let identity = self.manifest.identity().to_string();
        let left = tree.symlink_metadata().is_ok();
        if left && std::fs::read_to_string(&note).is_ok_and(|noted| noted == identity) {
            return Ok(true);
        }
        if left {
            remove(&old)?;
            std::fs::rename(&tree, &old).map_err(Fault::at(&tree))?;
        }
        std::fs::write(&note, identity).map_err(Fault::at(&note))?;
        Ok(false)
    }

    /// Makes all folders and links, and files that are holes so far.
    fn make_tree(&self) -> Result<(), Fault> {
        let tree = self.tree();
        for item in self.manifest.items() {
            let path = place(&tree, &item.path);
            let made = match &item.content {
                ItemContent::Folder => match make_folder(&path) {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                        std::fs::set_permissions(&path, Permissions::from_mode(PRIVATE_FOLDER))
                    }
                    made => made,
                },
                ItemContent::Link(to) => match symlink(OsStr::from_bytes(to), &path) {
                    // Only the same source is gone on with.
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
                    made => made,
                },
                ItemContent::File(file) => make_file(&path, file.size),
            };
            made.map_err(Fault::at(&path))?;
        }
        Ok(())
    }

    /// Finds blocks that an interrupted copy of the same source has written.
    fn find_in_place(&mut self) -> Result<(), Fault> {
        let (manifest, tree) = (Arc::clone(&self.manifest), self.tree());
        let mut wrong = BlockSet::none(manifest.blocks().len());
        let mut bytes = Vec::new();
        for (number, file) in manifest.files() {
            let path = place(&tree, &manifest.items()[number].path);
            let opened = File::open(&path).map_err(Fault::at(&path))?;
            for (offset, block) in manifest.blocks_of(file) {
                let about = manifest.blocks()[block as usize];
                let right = read_block(&opened, offset, about, &mut bytes).map_err(Fault::at(&path))?;
                if right { self.have.insert(block) } else { wrong.insert(block) }
            }
        }
        // A block has to be in all its places.
        self.have.intersect(&wrong.complement());
        Ok(())
    }

    /// Takes what it lacks from a file or folder on this node.
    pub(super) fn take_from(&mut self, root: &Path, other: &Manifest) -> Result<(), Fault> {
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
                let path = place(root, &other.items()[number].path);
                let opened = match &mut opened {
                    Some(opened) => opened,
                    none => none.insert(File::open(&path).map_err(Fault::at(&path))?),
                };
                // One that has changed since it was cut comes from the source.
                if read_block(opened, offset, about, &mut bytes).map_err(Fault::at(&path))? {
                    self.put(*block, &bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Writes what is lacking of a piece, which is not written if any of it is wrong.
    pub(super) fn put_piece(&mut self, piece: &Piece, bytes: &[u8]) -> Result<(), Fault> {
        if !piece.is_right(&self.manifest, bytes) {
            return Err(Fault::Wrong(self.dest.clone()));
        }
        self.put_right_piece(piece, bytes)
    }

    /// Writes what is lacking of a piece whose bytes were compared with its hashes.
    pub(super) fn put_right_piece(&mut self, piece: &Piece, bytes: &[u8]) -> Result<(), Fault> {
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

    /// Writes a block wherever it is to be.
    fn put(&mut self, block: u32, bytes: &[u8]) -> Result<(), Fault> {
        let tree = self.tree();
        for occurrence in self.occurrences.of(block) {
            let path = || place(&tree, &self.manifest.items()[occurrence.item as usize].path);
            if self.open.len() >= OPEN && !self.open.contains_key(&occurrence.item) {
                self.open.clear();
            }
            let file = match self.open.entry(occurrence.item) {
                std::collections::btree_map::Entry::Occupied(open) => open.into_mut(),
                std::collections::btree_map::Entry::Vacant(none) => {
                    let opened = OpenOptions::new().write(true).open(path());
                    none.insert(opened.map_err(|reason| Fault::Path { path: path(), reason })?)
                }
            };
            let written = file.write_all_at(bytes, occurrence.offset);
            written.map_err(|reason| Fault::Path { path: path(), reason })?;
        }
        self.have.insert(block);
        Ok(())
    }

    /// Checks every file, and puts all of it in its place; else nothing is left of it.
    pub(super) fn finish(mut self) -> Result<(), Fault> {
        match self.complete() {
            Ok(()) => Ok(self.put.map_or(Ok(()), Put::commit)?),
            Err(fault) => {
                self.give_up()?;
                Err(fault)
            }
        }
    }

    fn complete(&mut self) -> Result<(), Fault> {
        self.open.clear();
        if !self.have.is_full() {
            return Err(Fault::Wrong(self.dest.clone()));
        }
        let Some(lock) = &self.lock else {
            return if self.habits.verify { self.verify_unchanged() } else { Ok(()) };
        };
        let tree = self.tree();
        let files: Vec<(&Item, &FileContent)> =
            self.manifest.files().map(|(number, file)| (&self.manifest.items()[number], file)).collect();
        let one_by_one = self.habits.verify || files.len() <= SYNCED_ONE_BY_ONE;
        in_parallel(&files, |(item, file)| {
            let path = place(&tree, &item.path);
            let finish = || finish_file(&path, item, file, &self.manifest, one_by_one, self.habits.verify);
            match finish() {
                Ok(true) => Ok(()),
                Ok(false) => Err(Fault::Wrong(place(&self.dest, &item.path))),
                Err(reason) => Err(Fault::Path { path, reason }),
            }
        })?;
        // What is in a folder comes behind it, and would change its time.
        for item in self.manifest.items().iter().rev() {
            let path = place(&tree, &item.path);
            let set = match item.content {
                ItemContent::File(_) => Ok(()),
                ItemContent::Link(_) => set_modified(&path, item.modified),
                // Moved to another folder it has to be writable.
                ItemContent::Folder if item.path.is_root() => Ok(()),
                ItemContent::Folder => {
                    set_mode(&path, item.mode).and_then(|()| set_modified(&path, item.modified))
                }
            };
            set.map_err(Fault::at(&path))?;
        }
        if !one_by_one || self.manifest.items().len() > 1 {
            syncfs(lock).map_err(|e| Fault::at(&self.work)(e.into()))?;
        }
        self.place_tree()?;
        remove(&self.work)?;
        let folder = self.dest.parent().unwrap_or(Path::new("/"));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(Fault::at(folder))
    }

    /// The copy takes the place of what was there.
    fn place_tree(&self) -> Result<(), Fault> {
        let (tree, dest, root) = (self.tree(), &self.dest, &self.manifest.items()[0]);
        if root.content != ItemContent::Folder {
            return std::fs::rename(&tree, dest).map_err(Fault::at(dest));
        }
        if dest.symlink_metadata().is_ok() {
            set_mode(dest, PRIVATE_FOLDER).map_err(Fault::at(dest))?;
            match renameat_with(CWD, &tree, CWD, dest, RenameFlags::EXCHANGE) {
                Ok(()) => {}
                // A file system that cannot exchange names: there is none for a moment.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    let aside = self.work.join("before");
                    std::fs::rename(dest, &aside).map_err(Fault::at(dest))?;
                    std::fs::rename(&tree, dest).map_err(Fault::at(dest))?;
                }
                Err(error) => return Err(Fault::at(dest)(error.into())),
            }
        } else {
            std::fs::rename(&tree, dest).map_err(Fault::at(dest))?;
        }
        set_mode(dest, root.mode).and_then(|()| set_modified(dest, root.modified)).map_err(Fault::at(dest))
    }

    /// Reads a copy again that was there before.
    fn verify_unchanged(&self) -> Result<(), Fault> {
        let files: Vec<_> = self.manifest.files().collect();
        in_parallel(&files, |(number, file)| {
            let path = place(&self.dest, &self.manifest.items()[*number].path);
            let checked = File::open(&path).and_then(|opened| {
                read_from_disk(&opened)?;
                is_right(&opened, file, &self.manifest)
            });
            match checked {
                Ok(true) => Ok(()),
                Ok(false) => Err(Fault::Changed(path)),
                Err(reason) => Err(Fault::Path { path, reason }),
            }
        })
        .map(drop)
    }

    /// Leaves nothing behind.
    pub(super) fn give_up(self) -> Result<(), Fault> {
        if self.lock.is_some() {
            remove(&self.work)?;
        }
        Ok(self.put.map_or(Ok(()), Put::abandon)?)
    }
}

/// What is at the destination, if that may be replaced.
fn existing(dest: &Path, manifest: &Manifest, habits: Habits) -> Result<Option<Manifest>, Fault> {
    let about = match dest.symlink_metadata() {
        Ok(about) => about,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Fault::at(dest)(error)),
    };
    let folder = manifest.items()[0].content == ItemContent::Folder;
    let what = match (folder, about.is_dir()) {
        _ if about.is_symlink() => Some("is a symbolic link"),
        (false, true) => Some("is a folder, and the source is a file; end DEST with / for a copy in it"),
        (true, false) => Some("is there and no folder, and the source is one"),
        (false, false) if !about.is_file() => Some("is there and no file"),
        _ => None,
    };
    if let Some(what) = what {
        return Err(Fault::Taken { path: dest.to_owned(), what });
    }
    let before = scan(dest)?;
    if !habits.delete {
        let names: BTreeSet<&ItemPath> = manifest.items().iter().map(|item| &item.path).collect();
        if let Some(extra) = before.items().iter().find(|item| !names.contains(&item.path)) {
            return Err(Fault::Extra { path: dest.to_owned(), extra: extra.path.to_string() });
        }
    }
    Ok(Some(before))
}

/// Makes the folder in which a copy comes into being, and keeps others from it.
fn lock(work: &Path) -> Result<File, Fault> {
    for _ in 0..TRIES {
        match make_folder(work) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(Fault::at(work)(error)),
            _ => {}
        }
        let folder = match File::open(work) {
            // Whoever had it has just removed it.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            opened => opened.map_err(Fault::at(work))?,
        };
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(Fault::Locked(work.to_owned())),
            locked => locked.map_err(|e| Fault::at(work)(e.into()))?,
        }
        let locked = folder.metadata().map_err(Fault::at(work))?;
        if locked.uid() != rustix::process::geteuid().as_raw() {
            return Err(Fault::Taken { path: work.to_owned(), what: "is another user's" });
        }
        if work
            .symlink_metadata()
            .is_ok_and(|there| (there.dev(), there.ino()) == (locked.dev(), locked.ino()))
        {
            return Ok(folder);
        }
    }
    Err(Fault::Locked(work.to_owned()))
}

fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(PRIVATE_FOLDER).create(path)
}

/// A file of a length, with what it may have already.
fn make_file(path: &Path, size: u64) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(PRIVATE_FILE);
    let file = match options.open(path) {
        // An interrupted copy has given it its mode.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            set_mode(path, PRIVATE_FILE)?;
            options.open(path)?
        }
        opened => opened?,
    };
    file.set_len(size)
}

/// Gives a file its mode and time; whether it is as it should be.
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
        read_from_disk(&file)?;
    }
    if !is_right(&file, content, manifest)? {
        return Ok(false);
    }
    set_mode(path, item.mode)?;
    set_modified(path, item.modified)?;
    if sync { file.sync_all().map(|()| true) } else { Ok(true) }
}

/// Lets what is in memory of a file be read from the disk again.
pub(super) fn read_from_disk(file: &File) -> io::Result<()> {
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Reads a block; whether it is that one.
fn read_block(file: &File, offset: u64, block: Block, bytes: &mut Vec<u8>) -> io::Result<bool> {
    bytes.resize(block.bytes as usize, 0);
    Ok(fill(file, offset, bytes)? && Digest::of(bytes) == block.digest)
}

/// Whether a file goes on for as long as that.
fn fill(file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact_at(bytes, offset) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

/// Whether a file has the bytes that it is to have.
pub(super) fn is_right(file: &File, content: &FileContent, manifest: &Manifest) -> io::Result<bool> {
    let (mut digester, mut bytes) = (Digester::default(), Vec::new());
    for (offset, block) in manifest.blocks_of(content) {
        bytes.resize(manifest.blocks()[block as usize].bytes as usize, 0);
        if !fill(file, offset, &mut bytes)? {
            return Ok(false);
        }
        digester.update(&bytes);
    }
    Ok(file.metadata()?.size() == content.size && digester.digest() == content.digest)
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

fn set_modified(path: &Path, modified: Modified) -> io::Result<()> {
    let time = Timespec { tv_sec: modified.seconds, tv_nsec: modified.nanoseconds.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn remove(path: &Path) -> Result<(), Fault> {
    remove_tree(path).map_err(Fault::at(path))
}
