//! Items of a source: files, directories and symbolic links.

use crate::Digest;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;

/// The bits of a mode that are copied: read, write, execute, and the sticky bit. Set-user-ID and
/// set-group-ID bits are not copied, because the copy may have another owner.
pub const MODE_BITS: u32 = 0o1777;

/// Path of an item in its source: names separated by `/`, or empty for the source itself. In sorted
/// order a directory precedes all its entries.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ItemPath(Vec<u8>);

/// The bytes are not a path within a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{:?} is no path within a directory: names must not be empty, `.` or `..`, or contain NUL", String::from_utf8_lossy(.0))]
pub struct PathError(Vec<u8>);

impl ItemPath {
    /// Returns the path of the source itself.
    #[must_use]
    pub fn root() -> ItemPath {
        ItemPath::default()
    }

    /// Returns the path of an entry of this directory.
    ///
    /// # Errors
    /// Fails if `name` is not a single valid name.
    pub fn join(&self, name: &[u8]) -> Result<ItemPath, PathError> {
        let before: &[&[u8]] = if self.is_root() { &[] } else { &[&self.0, b"/"] };
        let path = [before, &[name]].concat().concat();
        if is_name(name) { Ok(ItemPath(path)) } else { Err(PathError(path)) }
    }

    /// Returns the names, separated by `/`.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns whether this is the path of the source itself.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the directory of the item, or `None` for the source itself.
    #[must_use]
    pub fn parent(&self) -> Option<ItemPath> {
        let end = self.0.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        (!self.is_root()).then(|| ItemPath(self.0[..end].to_vec()))
    }

    /// Checks that the path stays within its source. A decoded path may lead out of it.
    pub(crate) fn check_stays_inside(&self) -> Result<(), PathError> {
        let names = || self.0.split(|byte| *byte == b'/');
        if self.is_root() || names().all(is_name) { Ok(()) } else { Err(PathError(self.0.clone())) }
    }

    /// Returns the sort key: `/` precedes all other bytes, so that entries follow their directory.
    fn key(&self) -> impl Iterator<Item = u8> {
        self.0.iter().map(|byte| if *byte == b'/' { 0 } else { *byte })
    }
}

fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&0) && !name.contains(&b'/')
}

impl Ord for ItemPath {
    fn cmp(&self, other: &ItemPath) -> Ordering {
        self.key().cmp(other.key())
    }
}

impl PartialOrd for ItemPath {
    fn partial_cmp(&self, other: &ItemPath) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for ItemPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for ItemPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

/// Time of the last modification, since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModificationTime {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds after the second, less than 1,000,000,000.
    pub nanoseconds: u32,
}

/// A file, directory or symbolic link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Path in the source.
    pub path: ItemPath,
    /// Mode, restricted to [`MODE_BITS`]; 0 for a symbolic link.
    pub mode: u32,
    /// Time of its last modification.
    pub modified: ModificationTime,
    /// Kind and content.
    pub content: ItemContent,
}

/// Kind and content of an item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ItemContent {
    /// A directory. Its entries are separate items.
    Folder,
    /// A symbolic link and its target.
    Link(Vec<u8>),
    /// A file.
    File(FileContent),
}

/// Content of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileContent {
    /// Length in bytes, holes included.
    pub size: u64,
    /// Data of the file, ascending. The ranges between extents are holes, which read as zeros.
    pub extents: Vec<Extent>,
    /// Hash of the data without holes. For a file without holes it equals the output of `b3sum`.
    pub digest: Digest,
}

/// A range of a file without holes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Position in the file.
    pub offset: u64,
    /// Numbers of its blocks in the manifest.
    pub blocks: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> ItemPath {
        ItemPath(text.as_bytes().to_vec())
    }

    #[test]
    fn a_path_stays_within_its_source() {
        for good in ["", "a", "a/b.c", "a/..b", "a b/\u{e9}"] {
            assert_eq!(path(good).check_stays_inside(), Ok(()), "{good}");
        }
        for bad in ["/", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/.", "a\0b"] {
            assert!(path(bad).check_stays_inside().is_err(), "{bad}");
        }
        let error = path("a").join(b"..").unwrap_err().to_string();
        assert!(error.starts_with("\"a/..\" is no path within a directory"), "{error}");
        assert!(ItemPath::root().join(b"a/b").is_err());
    }

    #[test]
    fn a_directory_precedes_its_entries_and_they_its_neighbors() {
        let mut paths = ["a.b", "a/b/c", "", "a-", "a", "a/b"].map(path);
        paths.sort();
        assert_eq!(paths, ["", "a", "a/b", "a/b/c", "a-", "a.b"].map(path));
    }

    proptest! {
        #[test]
        fn a_joined_path_has_the_directory_as_its_parent(names in proptest::collection::vec("[a-z.]{3,5}", 1..4)) {
            let mut at = ItemPath::root();
            prop_assert_eq!(at.parent(), None);
            for name in names {
                let below = at.join(name.as_bytes()).unwrap();
                prop_assert_eq!(below.parent(), Some(at));
                prop_assert_eq!(below.check_stays_inside(), Ok(()));
                at = below;
            }
        }
    }
}
