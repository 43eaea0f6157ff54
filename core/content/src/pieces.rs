//! Pieces, which are blocks that are sent together, and the places where each block occurs.

use crate::{BlockSet, Digest, Manifest};

/// Blocks that are broadcast together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Numbers of the blocks; not empty.
    pub blocks: Vec<u32>,
    /// Total length of the blocks in bytes.
    pub bytes: usize,
}

impl Piece {
    /// Returns whether `bytes` are the bytes of this piece, according to the hashes of its blocks.
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

/// Returns the blocks in the order of their numbers, which is that of the files, in pieces of at
/// most `bytes`. A longer block forms a piece of its own. All nodes with the same set make the same
/// pieces.
pub fn pieces<'m>(
    manifest: &'m Manifest,
    blocks: &'m BlockSet,
    bytes: usize,
) -> impl Iterator<Item = Piece> + 'm {
    cut(manifest, blocks.iter(), bytes)
}

/// Returns [`pieces()`] of the blocks from `first` on, then of those before it.
///
/// This is a data carousel (FLUTE, RFC 6726): when a node joins late, the source continues where it
/// is and sends the earlier blocks at the end.
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

/// One occurrence of a block in a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Occurrence {
    block: u32,
    /// Number of the item.
    pub item: u32,
    /// Position in the file.
    pub offset: u64,
}

/// All occurrences of all blocks.
#[derive(Clone, Debug)]
pub struct Occurrences(Vec<Occurrence>);

impl Occurrences {
    /// Returns the occurrences in all files of a manifest.
    #[must_use]
    pub fn new(manifest: &Manifest) -> Occurrences {
        let found = manifest.files().flat_map(|(item, file)| {
            // A manifest in memory has fewer than 2^32 items.
            let item = item as u32;
            manifest.blocks_of(file).map(move |(offset, block)| Occurrence { block, item, offset })
        });
        let mut found: Vec<Occurrence> = found.collect();
        found.sort_unstable();
        Occurrences(found)
    }

    /// Returns the occurrences of one block, in the order of files.
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
    fn each_block_is_found_at_all_its_places() {
        let occurrences = Occurrences::new(&folder());
        let found = |block| occurrences.of(block).iter().map(|o| (o.item, o.offset)).collect::<Vec<_>>();
        assert_eq!(found(0), [(2, 0), (3, 1000), (3, 1100)]);
        assert_eq!((found(1), found(2), found(3)), (vec![(2, 100)], vec![(3, 50)], vec![]));
    }

    proptest! {
        #[test]
        fn pieces_are_all_missing_blocks_within_the_given_length(bits in 0u64..8, bytes in 1usize..700) {
            let manifest = folder();
            let missing = BlockSet::from_words(3, &[bits]);
            let pieces: Vec<Piece> = pieces(&manifest, &missing, bytes).collect();
            prop_assert!(pieces.iter().flat_map(|piece| &piece.blocks).copied().eq(missing.iter()));
            for piece in pieces {
                let long: u32 = piece.blocks.iter().map(|b| manifest.blocks()[*b as usize].bytes).sum();
                prop_assert_eq!(piece.bytes, long as usize);
                prop_assert!(piece.bytes <= bytes || piece.blocks.len() == 1);
            }
        }

        #[test]
        fn a_carousel_sends_all_missing_blocks_once_from_any_start(bits in 0u64..8, first in 0u32..5, bytes in 1usize..700) {
            let manifest = folder();
            let missing = BlockSet::from_words(3, &[bits]);
            let sent: Vec<u32> = pieces_from(&manifest, &missing, first, bytes).flat_map(|piece| piece.blocks).collect();
            let (later, before): (Vec<u32>, Vec<u32>) = missing.iter().partition(|block| *block >= first);
            prop_assert_eq!(sent, [later, before].concat());
        }
    }
}
