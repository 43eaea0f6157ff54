//! Renames a complete copy to its destination, and loses nothing that is there.

use crate::block_files::set_mode;
use crate::errors::CopyFileError;
use crate::previous_destination::ExpectedDestination;
use crate::work_directory::{PRIVATE_DIRECTORY, WorkDirectory, is_at};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Permissions that the owner of a directory needs to move it to another one.
const MOVABLE_DIRECTORY: u32 = 0o300;

/// Renames [`WorkDirectory::tree`], whose root is open as `root`, to the destination. The previous
/// content is in the working directory then.
///
/// # Errors
/// If the destination is not as expected or cannot be replaced. It is left as it was then, unless
/// the error is [`CopyFileError::KeptAside`].
pub(crate) fn place(
    work: &WorkDirectory,
    root: &File,
    expected: &ExpectedDestination,
) -> Result<(), CopyFileError> {
    let (tree, dest) = (work.tree(), work.dest());
    let kind = root.metadata().map_err(CopyFileError::at(&tree))?.file_type();
    expected.check(dest, dest)?;
    // Last, because on file systems without locks another copy may begin at any time.
    work.check_owner()?;
    check_place(root, &tree, work)?;
    work.forget_identity()?;
    match dest.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => place_new(&tree, dest, expected),
        Err(error) => Err(CopyFileError::at(dest)(error)),
        Ok(previous) if previous.is_dir() != kind.is_dir() => {
            Err(CopyFileError::ChangedDestination(dest.to_owned()))
        }
        Ok(previous) if previous.is_dir() => replace_directory(work, root, &previous, expected),
        Ok(_) if exchange(work, root, expected)? => Ok(()),
        Ok(_) => std::fs::rename(&tree, dest).map_err(CopyFileError::at(dest)),
    }
}

/// Checks that the root of the copy is at this path. It is not if another node writes there, too,
/// on a file system without locks between nodes.
fn check_place(root: &File, path: &Path, work: &WorkDirectory) -> Result<(), CopyFileError> {
    if is_at(root, path) { Ok(()) } else { Err(CopyFileError::Locked(work.path().to_owned())) }
}

/// Renames the copy to a path that does not exist.
fn place_new(tree: &Path, dest: &Path, expected: &ExpectedDestination) -> Result<(), CopyFileError> {
    match renameat_with(CWD, tree, CWD, dest, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) if !matches!(expected, ExpectedDestination::Any) => {
            Err(CopyFileError::ChangedDestination(dest.to_owned()))
        }
        // The file system does not support the flag.
        Err(Errno::INVAL | Errno::NOSYS | Errno::EXIST) => {
            std::fs::rename(tree, dest).map_err(CopyFileError::at(dest))
        }
        placed => placed.map_err(|error| CopyFileError::at(dest)(error.into())),
    }
}

fn replace_directory(
    work: &WorkDirectory,
    root: &File,
    previous: &Metadata,
    expected: &ExpectedDestination,
) -> Result<(), CopyFileError> {
    let dest = work.dest();
    let mode = previous.permissions().mode() & 0o7777;
    let locked = mode & MOVABLE_DIRECTORY != MOVABLE_DIRECTORY;
    if locked {
        set_mode(dest, mode | PRIVATE_DIRECTORY).map_err(CopyFileError::at(dest))?;
    }
    let replaced = match exchange(work, root, expected) {
        Ok(true) => Ok(()),
        // The file system cannot exchange names, so for a moment the destination does not exist.
        Ok(false) => replace_by_renames(work, expected),
        Err(error) => Err(error),
    };
    match replaced {
        Err(error) if locked && !matches!(error, CopyFileError::KeptAside { .. }) => {
            // The first error explains more than a second one.
            drop(set_mode(dest, mode));
            Err(error)
        }
        replaced => replaced,
    }
}

/// Exchanges the copy and the destination. Returns `false` if the file system cannot do that.
fn exchange(
    work: &WorkDirectory,
    root: &File,
    expected: &ExpectedDestination,
) -> Result<bool, CopyFileError> {
    let (tree, dest) = (work.tree(), work.dest());
    let exchange = || renameat_with(CWD, &tree, CWD, dest, RenameFlags::EXCHANGE);
    match exchange() {
        Ok(()) => {}
        Err(Errno::INVAL | Errno::NOSYS) => return Ok(false),
        Err(error) => return Err(CopyFileError::at(dest)(error.into())),
    }
    // The last check was before the exchange, and other programs may have written meanwhile.
    let checked = check_place(root, dest, work).and_then(|()| expected.check(dest, &tree));
    let Err(changed) = checked else { return Ok(true) };
    if exchange().is_ok() {
        return Err(changed);
    }
    let (before, reason) = (work.before(), changed.to_string());
    let aside = if std::fs::rename(&tree, &before).is_ok() { before } else { tree };
    Err(CopyFileError::KeptAside { reason, aside })
}

/// Moves the destination aside and the copy into its place. If the second step fails, moves the
/// destination back.
fn replace_by_renames(work: &WorkDirectory, expected: &ExpectedDestination) -> Result<(), CopyFileError> {
    let (tree, dest, aside) = (work.tree(), work.dest(), work.before());
    std::fs::rename(dest, &aside).map_err(CopyFileError::at(dest))?;
    let placed = expected
        .check(dest, &aside)
        .and_then(|()| std::fs::rename(&tree, dest).map_err(CopyFileError::at(dest)));
    match placed {
        // The next copy must not restore it.
        Ok(()) => std::fs::rename(&aside, work.replaced()).map_err(CopyFileError::at(&aside)),
        Err(error) if std::fs::rename(&aside, dest).is_ok() => Err(error),
        Err(error) => Err(CopyFileError::KeptAside { reason: error.to_string(), aside }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// Returns the working directory of a destination, which has a file `mine`.
    fn work(directory: &TempDir) -> WorkDirectory {
        let dest = directory.path().join("copy");
        std::fs::create_dir(&dest).unwrap();
        std::fs::write(dest.join("mine"), "mine").unwrap();
        WorkDirectory::lock(&dest).unwrap()
    }

    #[test]
    fn a_failed_second_rename_restores_the_destination() {
        let directory = TempDir::new().unwrap();
        let work = work(&directory);
        // There is no copy that could be moved into place.
        let error = replace_by_renames(&work, &ExpectedDestination::Any).unwrap_err();
        assert!(matches!(error, CopyFileError::Path { .. }), "{error}");
        assert_eq!(std::fs::read(work.dest().join("mine")).unwrap(), b"mine");
        std::fs::create_dir(work.tree()).unwrap();
        replace_by_renames(&work, &ExpectedDestination::Any).unwrap();
        assert!(!work.dest().join("mine").exists() && !work.restore_previous().unwrap());
    }

    #[test]
    fn a_destination_that_cannot_be_exchanged_keeps_its_mode() {
        let directory = TempDir::new().unwrap();
        let work = work(&directory);
        set_mode(work.dest(), 0o555).unwrap();
        let (previous, root) = (work.dest().metadata().unwrap(), File::open(work.path()).unwrap());
        replace_directory(&work, &root, &previous, &ExpectedDestination::Any).unwrap_err();
        assert_eq!(work.dest().metadata().unwrap().permissions().mode() & 0o7777, 0o555);
    }

    #[test]
    fn content_that_appears_at_the_last_moment_is_kept() {
        let directory = TempDir::new().unwrap();
        let work = work(&directory);
        let expected = ExpectedDestination::of(work.dest()).unwrap();
        std::fs::create_dir(work.tree()).unwrap();
        let root = File::open(work.tree()).unwrap();
        std::fs::write(work.dest().join("new"), "").unwrap();
        let attempts = [exchange(&work, &root, &expected).map(drop), replace_by_renames(&work, &expected)];
        for error in attempts.map(|attempt| attempt.unwrap_err().to_string()) {
            assert!(error.contains("copy/new: was created or changed during the copy"), "{error}");
            assert!(work.dest().join("new").exists() && is_at(&root, &work.tree()));
        }
    }

    #[test]
    fn a_tree_that_another_node_has_replaced_is_not_placed() {
        let directory = TempDir::new().unwrap();
        let work = work(&directory);
        std::fs::create_dir(work.tree()).unwrap();
        let root = File::open(work.tree()).unwrap();
        std::fs::rename(work.tree(), work.old()).unwrap();
        std::fs::create_dir(work.tree()).unwrap();
        let error = place(&work, &root, &ExpectedDestination::Any).unwrap_err();
        assert!(matches!(error, CopyFileError::Locked(_)), "{error}");
        assert!(work.dest().join("mine").exists());
    }
}
