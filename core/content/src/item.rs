//! One file, folder or symbolic link of a source.

use crate::Digest;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;

/// The bits of a mode that are copied: those for reading, writing and executing, and the sticky bit. Under another owner
/// set-user-ID and set-group-ID bits would mean something else.
pub const MODE_BITS: u32 = 0o1777;

/// Where an item is in its source: names with `/` between; nothing for the source itself. Sorted, a folder comes before all that is in it.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ItemPath(Vec<u8>);

/// Why some bytes are no path within a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{:?} is no path within a folder: each name has a byte at least, no NUL, and is neither . nor ..", String::from_utf8_lossy(.0))]
pub struct PathError(Vec<u8>);

impl ItemPath {
    /// The source itself.
    #[must_use]
    pub fn root() -> ItemPath {
        ItemPath::default()
    }

    /// Where a name leads from here.
    ///
    /// # Errors
    /// If it is no name, or more than one.
    pub fn join(&self, name: &[u8]) -> Result<ItemPath, PathError> {
        let before: &[&[u8]] = if self.is_root() { &[] } else { &[&self.0, b"/"] };
        let path = [before, &[name]].concat().concat();
        if is_name(name) { Ok(ItemPath(path)) } else { Err(PathError(path)) }
    }

    /// As names with `/` between.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether it is the source itself.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The folder that it is in; nothing of the source itself.
    #[must_use]
    pub fn parent(&self) -> Option<ItemPath> {
        let end = self.0.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        (!self.is_root()).then(|| ItemPath(self.0[..end].to_vec()))
    }

    /// Whether it stays within its source; what was decoded may not.
    pub(crate) fn check(&self) -> Result<(), PathError> {
        let names = || self.0.split(|byte| *byte == b'/');
        if self.is_root() || names().all(is_name) { Ok(()) } else { Err(PathError(self.0.clone())) }
    }

    /// By which paths are sorted.
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

/// When something was changed last, since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Modified {
    /// Seconds, which may be negative.
    pub seconds: i64,
    /// And nanoseconds after them, less than a second.
    pub nanoseconds: u32,
}

/// A file, folder or symbolic link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Where it is.
    pub path: ItemPath,
    /// Those of [`MODE_BITS`] that are set; none for a symbolic link.
    pub mode: u32,
    /// When it was changed last.
    pub modified: Modified,
    /// What it is.
    pub content: ItemContent,
}

/// What an item is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ItemContent {
    /// A folder; what is in it are items of their own.
    Folder,
    /// A symbolic link, and where it leads.
    Link(Vec<u8>),
    /// A file.
    File(FileContent),
}

/// What is in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileContent {
    /// Its length, holes included.
    pub size: u64,
    /// Its data, ascending; what is between them are holes, which read as zeros.
    pub extents: Vec<Extent>,
    /// Of its data without the holes: of a file that has none, as `b3sum` prints it.
    pub digest: Digest,
}

/// Data of a file between two holes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Where it begins in the file.
    pub offset: u64,
    /// Its blocks, by their numbers in the manifest.
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
            assert_eq!(path(good).check(), Ok(()), "{good}");
        }
        for bad in ["/", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/.", "a\0b"] {
            assert!(path(bad).check().is_err(), "{bad}");
        }
        let error = path("a").join(b"..").unwrap_err().to_string();
        assert!(error.starts_with("\"a/..\" is no path within a folder"), "{error}");
        assert!(ItemPath::root().join(b"a/b").is_err());
    }

    #[test]
    fn a_folder_comes_before_what_is_in_it_and_that_before_its_neighbours() {
        let mut paths = ["a.b", "a/b/c", "", "a-", "a", "a/b"].map(path);
        paths.sort();
        assert_eq!(paths, ["", "a", "a/b", "a/b/c", "a-", "a.b"].map(path));
    }

    proptest! {
        #[test]
        fn joined_paths_have_their_parents(names in proptest::collection::vec("[a-z.]{3,5}", 1..4)) {
            let mut at = ItemPath::root();
            prop_assert_eq!(at.parent(), None);
            for name in names {
                let below = at.join(name.as_bytes()).unwrap();
                prop_assert_eq!(below.parent(), Some(at));
                prop_assert_eq!(below.check(), Ok(()));
                at = below;
            }
        }
    }
}
