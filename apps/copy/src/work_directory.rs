//! The working directory next to a destination, in which a copy is written before it is renamed
//! into place.

use crate::errors::CopyFileError;
use cool_content::Digest;
use cool_store::remove_tree;
use rustix::fs::{FlockOperation, OFlags, flock, syncfs};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Modes of files and directories until they are complete.
pub(crate) const PRIVATE_FILE: u32 = 0o600;
pub(crate) const PRIVATE_DIRECTORY: u32 = 0o700;
/// Name of the lock file in a working directory.
const LOCK_NAME: &str = "lock";
/// Name of the file with the token of the copy that uses a working directory.
const OWNER_NAME: &str = "owner";
const TOKEN_BYTES: usize = 16;
/// Number of attempts to lock a working directory, because another copy may remove it meanwhile.
const LOCK_ATTEMPTS: usize = 8;
/// Maximum length of a file name in bytes, on Linux.
const NAME_MAX_BYTES: usize = 255;

/// A working directory, which is locked against other copies to the same destination.
#[derive(Debug)]
pub(crate) struct WorkDirectory {
    path: PathBuf,
    dest: PathBuf,
    directory: File,
    /// Lock file. File systems that nodes share pass locks of files that are open for writing on to
    /// the other nodes, but not those of directories. `None` if the file system has no such locks.
    lock: Option<File>,
    /// Random token of this copy, by which it detects copies on other nodes that ignore its lock.
    token: [u8; TOKEN_BYTES],
}

impl WorkDirectory {
    /// Creates the working directory of a destination and locks it.
    ///
    /// # Errors
    /// If the destination has no name, or its directory cannot be written, or another copy is
    /// writing it.
    pub(crate) fn lock(dest: &Path) -> Result<WorkDirectory, CopyFileError> {
        let (Some(parent), Some(name)) = (dest.parent(), dest.file_name()) else {
            let problem = "is not a possible name of a copy";
            return Err(CopyFileError::Unusable { path: dest.to_owned(), problem });
        };
        std::fs::create_dir_all(parent).map_err(CopyFileError::at(parent))?;
        let path = parent.join(work_name(name));
        for _ in 0..LOCK_ATTEMPTS {
            if let Some((directory, lock)) = try_lock(&path)? {
                let token = own(&path).map_err(|error| {
                    // For example, the disk is full. Remains of another copy stay.
                    for name in [OWNER_NAME, LOCK_NAME] {
                        drop(std::fs::remove_file(path.join(name)));
                    }
                    drop(std::fs::remove_dir(&path));
                    CopyFileError::at(&path)(error)
                })?;
                return Ok(WorkDirectory { path, dest: dest.to_owned(), directory, lock, token });
            }
        }
        Err(CopyFileError::Locked(path))
    }

    /// Removes the working directory of a copy that was killed after it had replaced the
    /// destination. Does nothing if another copy uses the directory, or if it has content that is
    /// nowhere else.
    pub(crate) fn remove_remains(dest: &Path) {
        let exists = dest.parent().zip(dest.file_name()).is_some_and(|(parent, name)| {
            parent.join(work_name(name)).symlink_metadata().is_ok_and(|about| about.is_dir())
        });
        if exists
            && let Ok(work) = WorkDirectory::lock(dest)
            && work.before().symlink_metadata().is_err()
            && let Err(error) = work.remove()
        {
            // The destination is right.
            eprintln!("{error}");
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn dest(&self) -> &Path {
        &self.dest
    }

    /// Checks that no other copy uses the directory. On file systems without locks between nodes,
    /// the copy that begins last owns it, and the others end before they touch the destination.
    pub(crate) fn check_owner(&self) -> Result<(), CopyFileError> {
        let owner = read_file(&self.path.join(OWNER_NAME));
        let is_own = owner.is_ok_and(|token| token == self.token);
        if is_own { Ok(()) } else { Err(CopyFileError::Locked(self.path.clone())) }
    }

    /// Returns the path of the copy until it is complete.
    pub(crate) fn tree(&self) -> PathBuf {
        self.path.join("tree")
    }

    /// Returns the path of an interrupted copy of another source.
    pub(crate) fn old(&self) -> PathBuf {
        self.path.join("old")
    }

    /// Returns the path of the destination's previous content while the copy is renamed into place
    /// by two renames.
    pub(crate) fn before(&self) -> PathBuf {
        self.path.join("before")
    }

    /// Returns the path of previous content that has been replaced.
    pub(crate) fn replaced(&self) -> PathBuf {
        self.path.join("replaced")
    }

    fn identity(&self) -> PathBuf {
        self.path.join("identity")
    }

    /// Restores the destination if a copy was interrupted between two renames, and returns whether
    /// it did.
    ///
    /// # Errors
    /// If there is a new destination by now, because only the user can choose between them.
    pub(crate) fn restore_previous(&self) -> Result<bool, CopyFileError> {
        let before = self.before();
        if before.symlink_metadata().is_err() {
            return Ok(false);
        }
        if self.dest.symlink_metadata().is_ok() {
            let problem = "has the previous content of the destination; move it away or remove it";
            return Err(CopyFileError::Unusable { path: before, problem });
        }
        std::fs::rename(&before, &self.dest).map_err(CopyFileError::at(&before))?;
        Ok(true)
    }

    /// Returns whether the directory contains an interrupted copy of the source with this identity.
    /// Moves the files of any other interrupted copy to [`WorkDirectory::old`].
    pub(crate) fn begin(&self, identity: &str) -> Result<bool, CopyFileError> {
        let (identity_file, tree, old) = (self.identity(), self.tree(), self.old());
        let left = tree.symlink_metadata().is_ok();
        if left && read_file(&identity_file).is_ok_and(|noted| noted == identity.as_bytes()) {
            return Ok(true);
        }
        if left {
            remove(&old)?;
            std::fs::rename(&tree, &old).map_err(CopyFileError::at(&tree))?;
            // After a power failure, the identity must not be that of another tree.
            self.directory.sync_all().map_err(CopyFileError::at(&self.path))?;
        }
        write_file(&identity_file, identity.as_bytes()).map_err(CopyFileError::at(&identity_file))?;
        Ok(false)
    }

    /// Removes the identity, so that no other copy resumes the content of [`WorkDirectory::tree`].
    pub(crate) fn forget_identity(&self) -> Result<(), CopyFileError> {
        remove(&self.identity())
    }

    /// Flushes the whole file system to disk.
    pub(crate) fn sync_file_system(&self) -> Result<(), CopyFileError> {
        syncfs(&self.directory).map_err(|error| CopyFileError::at(&self.path)(error.into()))
    }

    /// Removes the directory with its content.
    ///
    /// # Errors
    /// If another copy uses it.
    pub(crate) fn remove(self) -> Result<(), CopyFileError> {
        self.check_owner()?;
        let at = || CopyFileError::at(&self.path);
        for entry in std::fs::read_dir(&self.path).map_err(at())? {
            let entry = entry.map_err(at())?;
            if entry.file_name() != LOCK_NAME {
                remove(&entry.path())?;
            }
        }
        // The lock is removed last, so that a copy on another node cannot begin before that. It is
        // closed before the directory is removed, because NFS keeps open files in it.
        remove(&self.path.join(LOCK_NAME))?;
        drop(self.lock);
        match std::fs::remove_dir(&self.path) {
            // Another copy has locked it meanwhile, or has removed it.
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => {
                Ok(())
            }
            removed => removed.map_err(CopyFileError::at(&self.path)),
        }
    }
}

/// Returns the name of the working directory for a destination with this name. A name that would be
/// too long is truncated, and its hash is added.
fn work_name(name: &OsStr) -> OsString {
    let extended = |name: &[u8]| [&b"."[..], name, b".cool-copy"].concat();
    let full = extended(name.as_bytes());
    if full.len() <= NAME_MAX_BYTES {
        return OsStr::from_bytes(&full).to_owned();
    }
    let hash = format!("-{}", &Digest::of(name.as_bytes()).to_string()[..16]);
    let longest = NAME_MAX_BYTES - extended(hash.as_bytes()).len();
    // Some file systems accept only names that are UTF-8.
    let is_boundary = |end: &usize| name.as_bytes()[*end] & 0xc0 != 0x80;
    let end = (0..=longest).rev().find(is_boundary).unwrap_or(longest);
    OsStr::from_bytes(&extended(&[&name.as_bytes()[..end], hash.as_bytes()].concat())).to_owned()
}

/// Makes one attempt to create and lock a working directory. Returns `None` if another copy has
/// removed it meanwhile.
fn try_lock(path: &Path) -> Result<Option<(File, Option<File>)>, CopyFileError> {
    let unusable = |problem| CopyFileError::Unusable { path: path.to_owned(), problem };
    match make_directory(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(CopyFileError::at(path)(error)),
        _ => {}
    }
    // With these flags, opening does not wait for a pipe or follow a link of another user.
    let directory = match open(path, OpenOptions::new().read(true), OFlags::DIRECTORY) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(unusable(
                "is not a directory, but copies are written in one of this name; remove it",
            ));
        }
        opened => opened.map_err(CopyFileError::at(path))?,
    };
    if directory.metadata().map_err(CopyFileError::at(path))?.uid() != geteuid().as_raw() {
        return Err(unusable("belongs to another user"));
    }
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Err(CopyFileError::Locked(path.to_owned())),
        locked => locked.map_err(|error| CopyFileError::at(path)(error.into()))?,
    }
    if !is_at(&directory, path) {
        return Ok(None);
    }
    let lock_path = path.join(LOCK_NAME);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(PRIVATE_FILE);
    let lock = match open(&lock_path, &options, OFlags::empty()) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(CopyFileError::at(&lock_path))?,
    };
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(is_at(&lock, &lock_path).then_some((directory, Some(lock)))),
        Err(Errno::WOULDBLOCK) => Err(CopyFileError::Locked(path.to_owned())),
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => Ok(Some((directory, None))),
        Err(error) => Err(CopyFileError::at(&lock_path)(error.into())),
    }
}

/// Writes a new token into a working directory, and returns it.
fn own(work: &Path) -> io::Result<[u8; TOKEN_BYTES]> {
    let mut token = [0; TOKEN_BYTES];
    getrandom::fill(&mut token).map_err(io::Error::from)?;
    write_file(&work.join(OWNER_NAME), &token)?;
    Ok(token)
}

/// Returns the content of a regular file. Fails at once if it is a pipe or link.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open(path, OpenOptions::new().read(true), OFlags::empty())?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Replaces the content of a file. Fails at once if it is a pipe or link.
fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(PRIVATE_FILE);
    open(path, &options, OFlags::empty())?.write_all(bytes)
}

/// Opens a file with these flags. Does not wait for the other end of a pipe, and does not follow a
/// symbolic link.
pub(crate) fn open(path: &Path, options: &OpenOptions, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.clone().custom_flags(flags.bits().cast_signed()).open(path)
}

/// Returns whether a path leads to this open file or directory.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.symlink_metadata()) {
        (Ok(opened), Ok(current)) => (opened.dev(), opened.ino()) == (current.dev(), current.ino()),
        _ => false,
    }
}

pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(PRIVATE_DIRECTORY).create(path)
}

fn remove(path: &Path) -> Result<(), CopyFileError> {
    remove_tree(path).map_err(CopyFileError::at(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use tempfile::TempDir;

    #[test]
    fn a_pipe_or_link_of_its_name_is_refused_at_once() {
        let directory = TempDir::new().unwrap();
        let work = directory.path().join(".f.cool-copy");
        let refusal = || WorkDirectory::lock(&directory.path().join("f")).unwrap_err().to_string();
        let expected = format!("{}: is not a directory", work.display());
        mknodat(CWD, &work, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert!(refusal().starts_with(&expected), "{}", refusal());
        std::fs::remove_file(&work).unwrap();
        std::os::unix::fs::symlink(directory.path(), &work).unwrap();
        assert!(refusal().starts_with(&expected), "{}", refusal());
    }

    #[test]
    fn a_pipe_in_the_directory_is_refused_at_once() {
        let directory = TempDir::new().unwrap();
        let dest = directory.path().join("f");
        let work = WorkDirectory::lock(&dest).unwrap();
        std::fs::create_dir(work.tree()).unwrap();
        for name in [OWNER_NAME, "identity"] {
            let path = work.path().join(name);
            remove(&path).unwrap();
            mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        }
        work.begin("a").unwrap_err();
        work.check_owner().unwrap_err();
        drop(work);
        WorkDirectory::lock(&dest).unwrap_err();
        assert!(directory.path().join(".f.cool-copy/old").exists(), "remains stay");
    }

    #[test]
    fn a_lock_taken_by_another_node_is_respected() {
        let directory = TempDir::new().unwrap();
        let dest = directory.path().join("f");
        let first = WorkDirectory::lock(&dest).unwrap();
        // Other nodes see only the lock of the file.
        flock(&first.directory, FlockOperation::Unlock).unwrap();
        assert!(matches!(WorkDirectory::lock(&dest), Err(CopyFileError::Locked(_))));
        first.remove().unwrap();
        WorkDirectory::lock(&dest).unwrap().remove().unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn of_copies_that_ignore_locks_only_the_last_goes_on() {
        let directory = TempDir::new().unwrap();
        let dest = directory.path().join("f");
        let first = WorkDirectory::lock(&dest).unwrap();
        flock(&first.directory, FlockOperation::Unlock).unwrap();
        flock(first.lock.as_ref().unwrap(), FlockOperation::Unlock).unwrap();
        let second = WorkDirectory::lock(&dest).unwrap();
        assert!(matches!(first.check_owner(), Err(CopyFileError::Locked(_))));
        assert!(matches!(first.remove(), Err(CopyFileError::Locked(_))));
        second.check_owner().unwrap();
        second.remove().unwrap();
    }

    #[test]
    fn names_up_to_the_limit_have_distinct_directories() {
        assert_eq!(work_name(OsStr::new("a")), ".a.cool-copy");
        let names = ["x".repeat(244), "x".repeat(245), "x".repeat(254) + "y", "\u{436}".repeat(127)];
        let mut works: Vec<OsString> = names.iter().map(|name| work_name(OsStr::new(name))).collect();
        assert!(
            works.iter().all(|work| work.len() <= NAME_MAX_BYTES && work.to_str().is_some()),
            "{works:?}"
        );
        works.dedup();
        assert_eq!(works.len(), names.len());
    }

    #[test]
    fn content_moved_aside_by_an_interrupted_copy_returns() {
        let directory = TempDir::new().unwrap();
        let dest = directory.path().join("f");
        let work = WorkDirectory::lock(&dest).unwrap();
        std::fs::write(work.before(), "mine").unwrap();
        assert!(work.restore_previous().unwrap() && !work.restore_previous().unwrap());
        assert_eq!(std::fs::read(&dest).unwrap(), b"mine");
        std::fs::write(work.before(), "older").unwrap();
        assert!(work.restore_previous().is_err(), "there are two, and neither is lost");
    }
}
