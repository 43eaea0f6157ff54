//! The content of a destination before a copy: which of it the copy may replace, and whether that
//! is still the same when the copy is complete.

use crate::block_files::{has_content, open_regular, set_modified};
use crate::destination::DestinationOptions;
use crate::errors::CopyFileError;
use crate::manifest_scan::{is_special, item_path, manifest_of, next_data, scan, walk};
use cool_content::{FileContent, Item, ItemContent, ItemPath, Manifest, ModificationTime};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::process::geteuid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Number of bytes that are compared with zeros at once.
const ZEROS_BYTES: usize = 64 << 10;
/// Units of file times in nanoseconds, on file systems that do not store nanoseconds.
const TIME_UNITS_NS: [u32; 5] = [100, 1_000, 1_000_000, 10_000_000, 1_000_000_000];

/// The content of a destination before a copy.
pub(crate) struct PreviousDestination {
    /// Its files, directories and links; `None` if it does not exist.
    pub(crate) manifest: Option<Manifest>,
    /// Whether it equals the source.
    pub(crate) is_up_to_date: bool,
    pub(crate) expected: ExpectedDestination,
}

/// The content that a destination must still have when a copy replaces it.
#[derive(Debug)]
pub(crate) enum ExpectedDestination {
    /// Any content, because the user has requested that it be removed.
    Any,
    /// None.
    Absent,
    /// These items or some of them.
    Items(BTreeMap<ItemPath, ItemVersion>),
}

/// Properties of an item that change if a program writes or replaces it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ItemVersion {
    is_directory: bool,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl ItemVersion {
    /// Returns the version of an item. Of directories only the kind is compared, because their
    /// entries are items, too.
    fn of(about: &Metadata) -> ItemVersion {
        if about.is_dir() {
            return ItemVersion { is_directory: true, inode: 0, bytes: 0, modified: (0, 0), changed: (0, 0) };
        }
        ItemVersion {
            is_directory: false,
            inode: about.ino(),
            bytes: about.size(),
            modified: (about.mtime(), about.mtime_nsec()),
            changed: (about.ctime(), about.ctime_nsec()),
        }
    }

    /// Returns whether this is the same version. Renaming an item changes its ctime, and on an
    /// overlay its inode, but not those of the items below it.
    fn is_same(&self, expected: &ItemVersion, renamed: bool) -> bool {
        if renamed {
            let ItemVersion { inode, changed, .. } = *expected;
            return ItemVersion { inode, changed, ..*self } == *expected;
        }
        self == expected
    }
}

impl ExpectedDestination {
    /// Returns the present content of a destination.
    pub(crate) fn of(dest: &Path) -> Result<ExpectedDestination, CopyFileError> {
        match dest.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(ExpectedDestination::Absent),
            Err(error) => Err(CopyFileError::at(dest)(error)),
            Ok(_) => Ok(ExpectedDestination::from_items(&walk(dest)?)),
        }
    }

    fn from_items(found: &[(ItemPath, Metadata)]) -> ExpectedDestination {
        let versions = found.iter().map(|(path, about)| (path.clone(), ItemVersion::of(about)));
        ExpectedDestination::Items(versions.collect())
    }

    /// Checks that the content at `current`, to which that of `dest` may have been moved, has no
    /// new and no changed items, and no mounted file system.
    ///
    /// # Errors
    /// If there is such an item, which the error names.
    pub(crate) fn check(&self, dest: &Path, current: &Path) -> Result<(), CopyFileError> {
        let about = match current.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            about => about.map_err(CopyFileError::at(current))?,
        };
        let versions = match self {
            ExpectedDestination::Any if about.is_symlink() => return Ok(()),
            _ if about.is_symlink() => return Err(CopyFileError::ChangedDestination(dest.to_owned())),
            ExpectedDestination::Any => return check_mounts(dest, current, &walk(current)?),
            ExpectedDestination::Absent => &BTreeMap::new(),
            ExpectedDestination::Items(versions) => versions,
        };
        let is_unchanged = |(path, about): &(ItemPath, Metadata)| {
            let renamed = path.is_root() && current != dest;
            versions.get(path).is_some_and(|expected| ItemVersion::of(about).is_same(expected, renamed))
        };
        let found = walk(current)?;
        check_mounts(dest, current, &found)?;
        match found.into_iter().find(|item| !is_unchanged(item)) {
            Some((path, _)) => Err(CopyFileError::ChangedDestination(item_path(dest, &path))),
            None => Ok(()),
        }
    }
}

impl PreviousDestination {
    /// Examines a destination before a copy of this source.
    ///
    /// # Errors
    /// If it must not be replaced.
    pub(crate) fn examine(
        dest: &Path,
        source: &Manifest,
        options: DestinationOptions,
    ) -> Result<PreviousDestination, CopyFileError> {
        let about = match dest.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let expected =
                    if options.delete { ExpectedDestination::Any } else { ExpectedDestination::Absent };
                return Ok(PreviousDestination { manifest: None, is_up_to_date: false, expected });
            }
            about => about.map_err(CopyFileError::at(dest))?,
        };
        // On a shared file system the source itself may be reached by a link.
        if about.is_symlink()
            && let Ok(target) = scan(dest)
            && target == *source
        {
            let expected = ExpectedDestination::Absent;
            return Ok(PreviousDestination { manifest: Some(target), is_up_to_date: true, expected });
        }
        check_kind(dest, &about, source)?;
        let found = walk(dest)?;
        check_source(dest, &found, options.source)?;
        let (special, regular): (Vec<_>, Vec<_>) = found.iter().partition(|(_, about)| is_special(about));
        if let Some((path, _)) = special.first().filter(|_| !options.delete) {
            return Err(CopyFileError::SpecialDestination(item_path(dest, path)));
        }
        let manifest = manifest_of(dest, &regular)?;
        if !options.delete {
            check_extra(dest, &manifest, source)?;
        }
        let is_up_to_date = special.is_empty() && is_equal(dest, &manifest, source);
        if !is_up_to_date {
            check_replaceable(dest, &found)?;
        }
        let expected =
            if options.delete { ExpectedDestination::Any } else { ExpectedDestination::from_items(&found) };
        Ok(PreviousDestination { manifest: Some(manifest), is_up_to_date, expected })
    }
}

fn check_kind(dest: &Path, about: &Metadata, source: &Manifest) -> Result<(), CopyFileError> {
    let source_is_directory = source.items()[0].content == ItemContent::Folder;
    let problem = match (source_is_directory, about.is_dir()) {
        _ if about.is_symlink() => "is a symbolic link",
        (false, true) => "is a directory, but the source is a file; end DEST with / to copy into it",
        (true, false) => "exists and is not a directory, but the source is one",
        (false, false) if !about.is_file() => "exists and is not a regular file",
        _ => return Ok(()),
    };
    Err(CopyFileError::Unusable { path: dest.to_owned(), problem })
}

/// Checks that the destination has no items that the source does not have.
fn check_extra(dest: &Path, found: &Manifest, source: &Manifest) -> Result<(), CopyFileError> {
    let names: BTreeSet<&ItemPath> = source.items().iter().map(|item| &item.path).collect();
    match found.items().iter().find(|item| !names.contains(&item.path)) {
        Some(extra) => Err(CopyFileError::Extra { path: dest.to_owned(), extra: extra.path.to_string() }),
        None => Ok(()),
    }
}

/// Checks that a destination can be moved away, before any byte is sent.
fn check_replaceable(dest: &Path, found: &[(ItemPath, Metadata)]) -> Result<(), CopyFileError> {
    check_mounts(dest, dest, found)?;
    let (user, root) = (geteuid(), found.first().map(|(_, about)| about));
    if root.is_some_and(|root| root.is_dir() && !user.is_root() && root.uid() != user.as_raw()) {
        let problem = "is a directory of another user";
        return Err(CopyFileError::Unusable { path: dest.to_owned(), problem });
    }
    Ok(())
}

/// Checks that no file system is mounted in the content of a destination, which is at `current`
/// now, because removing it would remove the files of that file system.
fn check_mounts(dest: &Path, current: &Path, found: &[(ItemPath, Metadata)]) -> Result<(), CopyFileError> {
    let is_mount = |(path, about): &&(ItemPath, Metadata)| {
        (about.is_dir() || path.is_root()) && is_mount_point(&item_path(current, path))
    };
    match found.iter().find(is_mount) {
        Some((path, _)) => Err(CopyFileError::Unusable {
            path: item_path(dest, path),
            problem: "is a mount point, which a copy cannot replace; copy into a directory of it",
        }),
        None => Ok(()),
    }
}

/// Checks that the destination does not contain the source.
fn check_source(
    dest: &Path,
    found: &[(ItemPath, Metadata)],
    source: Option<(u64, u64)>,
) -> Result<(), CopyFileError> {
    let is_source = |(path, about): &&(ItemPath, Metadata)| {
        !path.is_root() && about.is_dir() && source == Some((about.dev(), about.ino()))
    };
    match found.iter().find(is_source) {
        Some((path, _)) => {
            Err(CopyFileError::ContainsSource { dest: dest.to_owned(), source_path: item_path(dest, path) })
        }
        None => Ok(()),
    }
}

fn is_mount_point(path: &Path) -> bool {
    // Systems without this attribute refuse to rename a mount point, but only at the end.
    let about = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE);
    about.is_ok_and(|about| about.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Returns whether the destination has the content of the source. Holes are no content, because a
/// file system may be unable to store those of another one. Times are set to those of the source if
/// they were rounded.
fn is_equal(dest: &Path, found: &Manifest, source: &Manifest) -> bool {
    if found == source {
        return true;
    }
    let pairs = || found.items().iter().zip(source.items());
    if found.items().len() != source.items().len() || !pairs().all(|(found, item)| is_similar(found, item)) {
        return false;
    }
    let is_equal_file = |item: &Item, one: &FileContent, other: &FileContent| {
        let blocks = |manifest: &Manifest, content: &FileContent| -> Vec<_> {
            let blocks = manifest.blocks_of(content);
            blocks.map(|(offset, block)| (offset, manifest.blocks()[block as usize])).collect()
        };
        blocks(found, one) == blocks(source, other)
            || has_equal_bytes(&item_path(dest, &item.path), other, source).unwrap_or(false)
    };
    let has_equal_files = pairs().all(|(found, item)| match (&found.content, &item.content) {
        (ItemContent::File(one), ItemContent::File(other)) => is_equal_file(item, one, other),
        _ => true,
    });
    // In reverse order, as when a copy is made.
    let set_time =
        |(_, item): (&Item, &Item)| set_modified(&item_path(dest, &item.path), item.modified).is_ok();
    has_equal_files && pairs().rev().filter(|(found, item)| found.modified != item.modified).all(set_time)
}

/// Returns whether two items are equal, apart from the bytes of files and the fractions of times.
fn is_similar(found: &Item, source: &Item) -> bool {
    let has_equal_content = match (&found.content, &source.content) {
        (ItemContent::File(found), ItemContent::File(source)) => found.size == source.size,
        (found, source) => found == source,
    };
    has_equal_content
        && (&found.path, found.mode) == (&source.path, source.mode)
        && is_rounded(found.modified, source.modified)
}

/// Returns whether a time equals another one, or is that time as a file system stores it.
fn is_rounded(found: ModificationTime, time: ModificationTime) -> bool {
    let is_unit = |unit: &u32| found.nanoseconds == time.nanoseconds / unit * unit;
    let in_two_seconds = found.nanoseconds == 0 && found.seconds == time.seconds & !1;
    found == time || in_two_seconds || (found.seconds == time.seconds && TIME_UNITS_NS.iter().any(is_unit))
}

/// Returns whether a file has this content, and zeros at its holes.
fn has_equal_bytes(path: &Path, content: &FileContent, manifest: &Manifest) -> io::Result<bool> {
    let file = open_regular(path)?;
    let mut hole = 0;
    for (offset, block) in manifest.blocks_of(content) {
        if !is_zero(&file, hole, offset)? {
            return Ok(false);
        }
        hole = offset + u64::from(manifest.blocks()[block as usize].bytes);
    }
    Ok(is_zero(&file, hole, content.size)? && has_content(&file, content, manifest)?)
}

/// Returns whether a range of a file has only zeros.
fn is_zero(file: &File, mut from: u64, end: u64) -> io::Result<bool> {
    while let Some((start, stop)) = next_data(file, from, end)? {
        // The minimum is at most `ZEROS_BYTES`.
        let length = (stop - start).min(ZEROS_BYTES as u64) as usize;
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, start)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        from = start + length as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, SystemTime};
    use tempfile::TempDir;

    fn write_with_time(path: &Path, bytes: &[(u64, &[u8])], modified: SystemTime) {
        let file = File::create(path).unwrap();
        file.set_len(1 << 20).unwrap();
        bytes.iter().for_each(|(offset, bytes)| file.write_all_at(bytes, *offset).unwrap());
        file.set_modified(modified).unwrap();
    }

    #[test]
    fn holes_and_rounded_times_are_no_differences() {
        let directory = TempDir::new().unwrap();
        let (source, dest) = (directory.path().join("source"), directory.path().join("dest"));
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_001, 123_456_789);
        let options = DestinationOptions::default();
        write_with_time(&source, &[(0, &[1; 1000]), (512 << 10, &[2; 1000])], time);
        let source = scan(&source).unwrap();
        let is_up_to_date = || PreviousDestination::examine(&dest, &source, options).unwrap().is_up_to_date;
        let zeros = vec![0; 300 << 10];
        for rounded in [time, SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)] {
            let bytes: [(u64, &[u8]); 3] = [(0, &[1; 1000]), (200 << 10, &zeros), (512 << 10, &[2; 1000])];
            write_with_time(&dest, &bytes, rounded);
            assert!(scan(&dest).unwrap() != source && is_up_to_date());
            assert_eq!(dest.metadata().unwrap().modified().unwrap(), time);
        }
        write_with_time(&dest, &[(0, &[1; 1000]), (200 << 10, &[1]), (512 << 10, &[2; 1000])], time);
        assert!(!is_up_to_date(), "a byte is in a hole");
        write_with_time(&dest, &[(0, &[1; 1000])], time);
        assert!(!is_up_to_date(), "a block is missing");
    }

    #[test]
    fn a_source_inside_the_destination_is_found_by_its_inode() {
        let directory = TempDir::new().unwrap();
        let dest = directory.path().join("data");
        std::fs::create_dir_all(dest.join("a/b")).unwrap();
        let about = dest.join("a").metadata().unwrap();
        // A bind mount of the source has another path, but the same inode.
        let options = DestinationOptions {
            source: Some((about.dev(), about.ino())),
            delete: true,
            ..DestinationOptions::default()
        };
        let source = scan(&dest.join("a")).unwrap();
        let examine = |dest: &Path| PreviousDestination::examine(dest, &source, options).map(drop);
        let error = examine(&dest).unwrap_err();
        assert!(matches!(error, CopyFileError::ContainsSource { .. }), "{error}");
        examine(&dest.join("a")).unwrap();
        examine(&dest.join("a/b")).unwrap();
    }

    #[test]
    fn mounted_file_systems_are_not_removed() {
        let proc = Path::new("/proc");
        let found = [(ItemPath::root(), proc.metadata().unwrap())];
        let error = check_mounts(Path::new("/dest"), proc, &found).unwrap_err().to_string();
        assert!(error.starts_with("/dest: is a mount point"), "{error}");
        let directory = TempDir::new().unwrap();
        let found = walk(directory.path()).unwrap();
        check_mounts(directory.path(), directory.path(), &found).unwrap();
    }

    #[test]
    fn new_and_changed_items_are_found_and_removed_ones_ignored() {
        let directory = TempDir::new().unwrap();
        let dest = directory.path().join("dest");
        assert!(matches!(ExpectedDestination::of(&dest).unwrap(), ExpectedDestination::Absent));
        std::fs::create_dir_all(dest.join("d")).unwrap();
        for name in ["a", "d/b", "gone"] {
            std::fs::write(dest.join(name), name).unwrap();
        }
        let expected = ExpectedDestination::of(&dest).unwrap();
        std::fs::remove_file(dest.join("gone")).unwrap();
        expected.check(&dest, &dest).unwrap();
        let moved = directory.path().join("moved");
        std::fs::rename(&dest, &moved).unwrap();
        expected.check(&dest, &moved).unwrap();
        ExpectedDestination::Absent.check(&dest, &dest).unwrap();
        let named = |expected: &ExpectedDestination| expected.check(&dest, &moved).unwrap_err().to_string();
        std::fs::set_permissions(moved.join("d/b"), Permissions::from_mode(0o600)).unwrap();
        std::fs::write(moved.join("d/b"), "other").unwrap();
        assert!(named(&expected).starts_with(&format!("{}/d/b: was created", dest.display())));
        assert!(named(&ExpectedDestination::Absent).starts_with(&format!("{}: was", dest.display())));
        std::fs::remove_file(moved.join("d/b")).unwrap();
        std::fs::write(moved.join("d/new"), "").unwrap();
        assert!(named(&expected).starts_with(&format!("{}/d/new: was created", dest.display())));
    }
}
