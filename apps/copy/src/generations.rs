//! How a content is divided for a swarm: into generations, and these into blocks.

use crate::missing_blocks::bytes_of;
use cool_content::{BlockSet, Manifest, Piece, pieces};

/// Number of blocks of a generation. Decoding takes as many multiplications for each byte, so the
/// number should be small; 32 blocks are enough to keep a link busy.
pub const GENERATION_BLOCKS: u16 = 32;
/// Minimum length of a block, in bytes.
pub const BLOCK_MIN_BYTES: u64 = 64 << 10;
/// Maximum length of a block, in bytes. Longer blocks would need more memory, because members keep
/// whole generations in it.
const BLOCK_MAX_BYTES: u64 = 128 << 10;
/// Number of blocks above which blocks become longer than the minimum. With short blocks, all nodes
/// soon have blocks to pass on; with long ones, less control data is sent for each byte.
const BLOCKS_BEFORE_LONGER: u64 = 512;

/// Returns the generations of a content: first the blocks that at least one node was missing at the
/// start, then those that only a late node can be missing.
pub(crate) fn divide(manifest: &Manifest, missing: &BlockSet) -> Vec<Piece> {
    let generations =
        |blocks: &BlockSet| pieces(manifest, blocks, generation_bytes(manifest, blocks)).collect();
    let all: [Vec<Piece>; 2] = [generations(missing), generations(&missing.complement())];
    all.concat()
}

/// Returns the block length, in bytes, for a content of `bytes` bytes.
#[must_use]
pub fn block_bytes(bytes: u64) -> u64 {
    (bytes / BLOCKS_BEFORE_LONGER).clamp(BLOCK_MIN_BYTES, BLOCK_MAX_BYTES)
}

fn generation_bytes(manifest: &Manifest, missing: &BlockSet) -> usize {
    let block = block_bytes(bytes_of(manifest, missing));
    usize::try_from(block.saturating_mul(GENERATION_BLOCKS.into())).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_contents_have_longer_blocks() {
        let kib = |kib: u64| kib << 10;
        let of_mib = |mib: u64| block_bytes(mib << 20);
        assert_eq!((of_mib(0), of_mib(16), of_mib(32)), (kib(64), kib(64), kib(64)));
        assert_eq!((of_mib(48), of_mib(64), of_mib(1024)), (kib(96), kib(128), kib(128)));
        assert_eq!(of_mib(1 << 24), kib(128), "16 TiB");
    }
}
