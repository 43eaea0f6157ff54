//! Manifests: the description of a source without its bytes; construction, checks and encoding.

use crate::{
    BLOCK_BYTES_MAX, Block, Digest, Extent, FileContent, Item, ItemContent, ItemPath, MODE_BITS,
    ModificationTime, PathError,
};
use postcard::Error as Codec;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Description of a source. Items are sorted by path, and the first is the source itself. Blocks
/// are those of all files in this order, each once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    items: Vec<Item>,
    blocks: Vec<Block>,
}

/// The reason why a manifest is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The bytes are not a manifest, or some are missing.
    #[error("not a manifest: {0}")]
    Decode(Codec),
    /// Bytes follow the manifest.
    #[error("{0} bytes follow the manifest")]
    Rest(usize),
    /// A path leaves the source.
    #[error(transparent)]
    Path(#[from] PathError),
    /// An item is invalid, for the given reason.
    #[error("item {0:?} {1}")]
    Item(ItemPath, &'static str),
    /// There are no items, or the first one is not the source itself.
    #[error("it does not begin with the source itself")]
    Root,
    /// A block is invalid, for the given reason: its length is impossible, it occurs twice, or it
    /// is unused.
    #[error("block {0} {1}")]
    Block(usize, &'static str),
}

impl Manifest {
    /// Returns files, directories and links, the source itself first.
    #[must_use]
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Returns the blocks of all files, each once, in the order of their first use.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Returns the files with the numbers of their items.
    pub fn files(&self) -> impl Iterator<Item = (usize, &FileContent)> {
        self.items.iter().enumerate().filter_map(|(number, item)| match &item.content {
            ItemContent::File(file) => Some((number, file)),
            _ => None,
        })
    }

    /// Returns the total length of all files' data in bytes, without holes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files().map(|(_, file)| self.data_bytes(file)).sum()
    }

    /// Returns the length of a file's data in bytes, without holes.
    fn data_bytes(&self, file: &FileContent) -> u64 {
        let blocks = file.extents.iter().flat_map(|extent| &extent.blocks);
        blocks.map(|block| u64::from(self.blocks[*block as usize].bytes)).sum()
    }

    /// Returns the blocks of a file, each with its position in the file, ascending.
    pub fn blocks_of<'m>(&'m self, file: &'m FileContent) -> impl Iterator<Item = (u64, u32)> + 'm {
        file.extents.iter().flat_map(|extent| {
            extent.blocks.iter().scan(extent.offset, |at, block| {
                let here = *at;
                *at += u64::from(self.blocks[*block as usize].bytes);
                Some((here, *block))
            })
        })
    }

    /// Returns a hash that identifies the source: paths, modes, times and bytes.
    #[must_use]
    pub fn identity(&self) -> Digest {
        Digest::of(&self.encode())
    }

    /// Returns the encoded manifest.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // Encoding into growing memory cannot fail for types of known length.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Decodes and checks a manifest. The bytes may be from an untrusted sender.
    ///
    /// # Errors
    /// Fails if the bytes are not a manifest, or are one that no source can have, for example
    /// because a path leaves the source.
    pub fn decode(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        let (manifest, rest) = postcard::take_from_bytes::<Manifest>(bytes).map_err(ManifestError::Decode)?;
        if !rest.is_empty() {
            return Err(ManifestError::Rest(rest.len()));
        }
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), ManifestError> {
        let root = self.items.first().ok_or(ManifestError::Root)?;
        if !root.path.is_root() || matches!(root.content, ItemContent::Link(_)) {
            return Err(ManifestError::Root);
        }
        self.check_blocks()?;
        // The lowest number of a block that has not been used yet; blocks are numbered by first
        // use.
        let mut next = 0;
        for (number, item) in self.items.iter().enumerate() {
            item.path.check_stays_inside()?;
            let wrong = |why| Err(ManifestError::Item(item.path.clone(), why));
            if number > 0 && self.items[number - 1].path >= item.path {
                return wrong("does not follow the previous one in order");
            }
            if item.path.parent().is_some_and(|parent| !self.is_folder(&parent)) {
                return wrong("is in no directory");
            }
            if item.mode & !MODE_BITS != 0 || item.modified.nanoseconds >= 1_000_000_000 {
                return wrong("has an impossible mode or time");
            }
            match &item.content {
                ItemContent::Folder => {}
                ItemContent::Link(to) if to.is_empty() || to.contains(&0) || item.mode != 0 => {
                    return wrong("is no symbolic link");
                }
                ItemContent::Link(_) => {}
                ItemContent::File(file) => match self.check_file(file, &mut next) {
                    Ok(()) => {}
                    Err(why) => return wrong(why),
                },
            }
        }
        if next == self.blocks.len() { Ok(()) } else { Err(ManifestError::Block(next, "is not used")) }
    }

    fn check_blocks(&self) -> Result<(), ManifestError> {
        let mut known = BTreeMap::new();
        for (number, block) in self.blocks.iter().enumerate() {
            if block.bytes == 0 || block.bytes as usize > BLOCK_BYTES_MAX {
                return Err(ManifestError::Block(number, "has an impossible length"));
            }
            if known.insert(block.digest, number).is_some() {
                return Err(ManifestError::Block(number, "is there twice"));
            }
        }
        Ok(())
    }

    /// Returns whether the source has this directory.
    fn is_folder(&self, path: &ItemPath) -> bool {
        let found = self.items.binary_search_by(|item| item.path.cmp(path));
        found.is_ok_and(|number| self.items[number].content == ItemContent::Folder)
    }

    /// Checks that a file's blocks exist, and that its extents are ascending and within the file.
    /// Updates the number of the next unused block.
    fn check_file(&self, file: &FileContent, next: &mut usize) -> Result<(), &'static str> {
        let mut end = 0;
        for extent in &file.extents {
            if extent.offset < end || extent.blocks.is_empty() {
                return Err("has extents that overlap, or an empty one");
            }
            end = extent.offset;
            for block in &extent.blocks {
                let number = *block as usize;
                if number > *next {
                    return Err("has a block out of turn");
                }
                let block = self.blocks.get(number).ok_or("has a block that does not exist")?;
                *next += usize::from(number == *next);
                end = end.checked_add(block.bytes.into()).ok_or("is longer than any file")?;
            }
        }
        if end > file.size || i64::try_from(file.size).is_err() {
            return Err("is shorter than its data, or longer than any file");
        }
        Ok(())
    }
}

/// Builds a manifest.
#[derive(Debug, Default)]
pub struct Builder {
    items: Vec<Item>,
    blocks: Vec<Block>,
    numbers: BTreeMap<Digest, u32>,
}

impl Builder {
    /// Adds a directory.
    pub fn folder(&mut self, path: ItemPath, mode: u32, modified: ModificationTime) {
        self.add(path, mode, modified, ItemContent::Folder);
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: ItemPath, modified: ModificationTime, to: Vec<u8>) {
        self.add(path, 0, modified, ItemContent::Link(to));
    }

    /// Adds a file: its size, its extents (position and blocks of each), and the hash of its data.
    pub fn file(
        &mut self,
        (path, mode, modified): (ItemPath, u32, ModificationTime),
        size: u64,
        data: impl IntoIterator<Item = (u64, Vec<Block>)>,
        digest: Digest,
    ) {
        let extents = data.into_iter().map(|(offset, blocks)| Extent {
            offset,
            blocks: blocks.into_iter().map(|block| self.number(block)).collect(),
        });
        let extents = extents.collect();
        self.add(path, mode, modified, ItemContent::File(FileContent { size, extents, digest }));
    }

    fn number(&mut self, block: Block) -> u32 {
        // 2^32 blocks would be 280 TB.
        let next = self.blocks.len() as u32;
        *self.numbers.entry(block.digest).or_insert_with(|| {
            self.blocks.push(block);
            next
        })
    }

    fn add(&mut self, path: ItemPath, mode: u32, modified: ModificationTime, content: ItemContent) {
        self.items.push(Item { path, mode: mode & MODE_BITS, modified, content });
    }

    /// Returns the manifest. Items must have been added in the order of their paths.
    ///
    /// # Errors
    /// Fails if the items do not form a valid source.
    pub fn finish(self) -> Result<Manifest, ManifestError> {
        let manifest = Manifest { items: self.items, blocks: self.blocks };
        manifest.check()?;
        Ok(manifest)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn block(n: u8) -> Block {
        Block { digest: Digest::of(&[n]), bytes: 100 * (u32::from(n) + 1) }
    }

    fn path(text: &str) -> ItemPath {
        let names = text.split('/').filter(|name| !name.is_empty());
        names.fold(ItemPath::root(), |at, name| at.join(name.as_bytes()).unwrap())
    }

    /// Returns the manifest of a directory. It contains two files that share a block, one of them
    /// with a hole, an empty file and a link.
    pub(crate) fn folder() -> Manifest {
        let mut made = Builder::default();
        let when = ModificationTime { seconds: -5, nanoseconds: 7 };
        made.folder(path(""), 0o755, when);
        made.folder(path("d"), 0o4500, when);
        made.file((path("d/a"), 0o644, when), 300, [(0, vec![block(0), block(1)])], Digest::of(b"a"));
        let sparse = [(50, vec![block(2)]), (1000, vec![block(0), block(0)])];
        made.file((path("d/b"), 0, when), 5000, sparse, Digest::of(b"b"));
        made.file((path("empty"), 0o600, when), 0, [], Digest::of(b""));
        made.link(path("link"), when, b"../elsewhere".to_vec());
        made.finish().unwrap()
    }

    #[test]
    fn a_manifest_has_all_added_items_and_each_block_once() {
        let manifest = folder();
        assert_eq!(manifest.blocks(), [block(0), block(1), block(2)]);
        assert_eq!(manifest.bytes(), 300 + 300 + 200);
        assert_eq!(manifest.items()[1].mode, 0o500);
        let (_, sparse) = manifest.files().nth(1).unwrap();
        assert_eq!(manifest.blocks_of(sparse).collect::<Vec<_>>(), [(50, 2), (1000, 0), (1100, 0)]);
        assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
    }

    #[test]
    fn the_identity_depends_on_modes_and_times() {
        let (one, mut other) = (folder(), folder());
        assert_eq!(one.identity(), other.identity());
        other.items[2].modified.nanoseconds += 1;
        assert_ne!(one.identity(), other.identity());
    }

    /// Returns the error for a manifest after a change.
    fn refused(change: impl FnOnce(&mut Manifest)) -> String {
        let mut manifest = folder();
        change(&mut manifest);
        Manifest::decode(&manifest.encode()).unwrap_err().to_string()
    }

    fn decoded(text: &str) -> ItemPath {
        postcard::from_bytes(&postcard::to_allocvec(text.as_bytes()).unwrap()).unwrap()
    }

    fn file(manifest: &mut Manifest, number: usize) -> &mut FileContent {
        match &mut manifest.items[number].content {
            ItemContent::File(file) => file,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn paths_that_lead_out_of_the_source_are_refused() {
        for out in ["/etc/passwd", "d/../../x", "..", "d//x"] {
            let text = refused(|m| m.items[5].path = decoded(out));
            assert!(text.contains("no path within a directory"), "{out}: {text}");
        }
        // An item below a link would be written through it.
        let text = refused(|m| {
            m.items[1].content = ItemContent::Link(b"/etc".to_vec());
            m.items[1].mode = 0;
        });
        assert_eq!(text, "item \"d/a\" is in no directory");
    }

    #[test]
    fn impossible_sources_are_refused() {
        assert!(refused(|m| m.items.clear()).contains("begin with the source"));
        assert!(refused(|m| m.items[0].content = ItemContent::Link(b"x".to_vec())).contains("begin with"));
        assert!(refused(|m| m.items.swap(4, 5)).contains("does not follow"));
        assert!(refused(|m| m.items[4].path = m.items[3].path.clone()).contains("does not follow"));
        assert!(refused(|m| m.items[2].mode = 0o4755).contains("impossible mode"));
        assert!(refused(|m| m.items[2].modified.nanoseconds = 1_000_000_000).contains("impossible"));
        assert!(refused(|m| m.items[5].content = ItemContent::Link(vec![])).contains("no symbolic link"));
        assert!(refused(|m| m.blocks[1].bytes = 0).contains("impossible length"));
        assert!(refused(|m| m.blocks[1].bytes = BLOCK_BYTES_MAX as u32 + 1).contains("impossible length"));
        assert!(refused(|m| m.blocks[1] = m.blocks[0]).contains("twice"));
        assert!(refused(|m| m.blocks.push(block(9))).contains("block 3 is not used"));
        assert!(refused(|m| file(m, 2).extents[0].blocks.swap(0, 1)).contains("out of turn"));
        assert!(refused(|m| file(m, 3).extents.swap(0, 1)).contains("overlap"));
        assert!(refused(|m| file(m, 3).size = 1199).contains("shorter than its data"));
        assert!(refused(|m| file(m, 3).extents[1].offset = u64::MAX).contains("longer than any file"));
    }

    #[test]
    fn truncated_or_longer_bytes_are_refused() {
        let bytes = folder().encode();
        for n in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..n]).is_err(), "{n}");
        }
        assert_eq!(Manifest::decode(&[&bytes[..], &[0]].concat()), Err(ManifestError::Rest(1)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_manifest_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(manifest) = Manifest::decode(&bytes) {
                prop_assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
            }
        }
    }
}
