//! The blocks that at least one node is missing.

use cool_content::{BlockSet, Manifest};

/// Blocks to send, because at least one node is missing each of them.
#[derive(Clone)]
pub(crate) struct MissingBlocks {
    pub(crate) blocks: BlockSet,
    /// Number of the block at which the source resumes. If no node is missing it, the source
    /// resumes at the next missing block.
    pub(crate) first: u32,
}

/// Returns the total size of these blocks, in bytes.
pub(crate) fn bytes_of(manifest: &Manifest, blocks: &BlockSet) -> u64 {
    blocks.iter().map(|block| u64::from(manifest.blocks()[block as usize].bytes)).sum()
}
