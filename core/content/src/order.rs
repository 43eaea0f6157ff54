//! In which order blocks are sent, and where each of them goes.

use crate::{BlockSet, Digest, Manifest};

/// Blocks that are sent together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Their numbers, ascending; never none.
    pub blocks: Vec<u32>,
    /// Their bytes in all.
    pub bytes: usize,
}

impl Piece {
    /// Whether these are its bytes, by the hashes of its blocks.
    pub fn is_right(&self, manifest: &Manifest, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        let right = self.blocks.iter().all(|block| {
            let about = manifest.blocks()[*block as usize];
            let split = rest.split_at_checked(about.bytes as usize);
            split.is_some_and(|(block, behind)| {
                rest = behind;
                Digest::of(block) == about.digest
            })
        });
        right && rest.is_empty()
    }
}

/// Blocks in the order of their numbers, which is that of the files, in pieces of at most `bytes`, or of one block that is longer.
/// All nodes that know the same blocks make the same pieces.
pub fn pieces<'m>(
    manifest: &'m Manifest,
    blocks: &'m BlockSet,
    bytes: usize,
) -> impl Iterator<Item = Piece> + 'm {
    cut(manifest, blocks.iter(), bytes)
}

/// [`pieces`] of the blocks from `first` on, then of those before it: a data carousel, which goes on where it was when somebody comes
/// who lacks what has gone by.
pub fn pieces_from<'m>(
    manifest: &'m Manifest,
    blocks: &'m BlockSet,
    first: u32,
    bytes: usize,
) -> impl Iterator<Item = Piece> + 'm {
    let later = cut(manifest, blocks.iter().filter(move |block| *block >= first), bytes);
    later.chain(cut(manifest, blocks.iter().filter(move |block| *block < first), bytes))
}

fn cut<'m>(
    manifest: &'m Manifest,
    blocks: impl Iterator<Item = u32> + 'm,
    bytes: usize,
) -> impl Iterator<Item = Piece> + 'm {
    let mut left = blocks.map(|block| (block, manifest.blocks()[block as usize].bytes as usize)).peekable();
    std::iter::from_fn(move || {
        let mut piece = Piece::default();
        while let Some((block, long)) =
            left.next_if(|(_, long)| piece.blocks.is_empty() || piece.bytes + long <= bytes)
        {
            piece.blocks.push(block);
            piece.bytes += long;
        }
        (!piece.blocks.is_empty()).then_some(piece)
    })
}

/// Where a block is in a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Occurrence {
    block: u32,
    /// The item's number.
    pub item: u32,
    /// Where in the file.
    pub offset: u64,
}

/// Where all blocks are.
#[derive(Clone, Debug)]
pub struct Occurrences(Vec<Occurrence>);

impl Occurrences {
    /// In all files of a manifest.
    #[must_use]
    pub fn new(manifest: &Manifest) -> Occurrences {
        let found = manifest.files().flat_map(|(item, file)| {
            // As many items as fit in memory.
            let item = item as u32;
            manifest.blocks_of(file).map(move |(offset, block)| Occurrence { block, item, offset })
        });
        let mut found: Vec<Occurrence> = found.collect();
        found.sort_unstable();
        Occurrences(found)
    }

    /// Of one block, in the order of files.
    #[must_use]
    pub fn of(&self, block: u32) -> &[Occurrence] {
        let first = self.0.partition_point(|occurrence| occurrence.block < block);
        let rest = &self.0[first..];
        &rest[..rest.partition_point(|occurrence| occurrence.block == block)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::tests::folder;
    use proptest::prelude::*;

    #[test]
    fn each_block_is_found_wherever_it_is() {
        let occurrences = Occurrences::new(&folder());
        let found = |block| occurrences.of(block).iter().map(|o| (o.item, o.offset)).collect::<Vec<_>>();
        assert_eq!(found(0), [(2, 0), (3, 1000), (3, 1100)]);
        assert_eq!((found(1), found(2), found(3)), (vec![(2, 100)], vec![(3, 50)], vec![]));
    }

    proptest! {
        #[test]
        fn pieces_are_all_that_is_lacking_and_no_longer_than_asked(bits in 0u64..8, bytes in 1usize..700) {
            let manifest = folder();
            let lacking = BlockSet::from_words(3, &[bits]);
            let pieces: Vec<Piece> = pieces(&manifest, &lacking, bytes).collect();
            prop_assert!(pieces.iter().flat_map(|piece| &piece.blocks).copied().eq(lacking.iter()));
            for piece in pieces {
                let long: u32 = piece.blocks.iter().map(|b| manifest.blocks()[*b as usize].bytes).sum();
                prop_assert_eq!(piece.bytes, long as usize);
                prop_assert!(piece.bytes <= bytes || piece.blocks.len() == 1);
            }
        }

        #[test]
        fn a_carousel_begins_anywhere_and_brings_all_that_is_lacking_once(bits in 0u64..8, first in 0u32..5, bytes in 1usize..700) {
            let manifest = folder();
            let lacking = BlockSet::from_words(3, &[bits]);
            let came: Vec<u32> = pieces_from(&manifest, &lacking, first, bytes).flat_map(|piece| piece.blocks).collect();
            let (later, before): (Vec<u32>, Vec<u32>) = lacking.iter().partition(|block| *block >= first);
            prop_assert_eq!(came, [later, before].concat());
        }
    }
}
