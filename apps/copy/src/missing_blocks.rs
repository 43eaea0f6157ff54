//! The blocks that at least one node is missing.

use cool_content::{BlockSet, Manifest};

/// Blocks to send, because at least one node is missing each of them.
#[derive(Clone)]
pub(crate) struct MissingBlocks {
    pub(crate) blocks: BlockSet,
    /// The block at which the source resumes; if it is not missing, the next one that is.
    pub(crate) first: u32,
}

/// Returns the length of some blocks.
pub(crate) fn bytes_of(manifest: &Manifest, blocks: &BlockSet) -> u64 {
    blocks.iter().map(|block| u64::from(manifest.blocks()[block as usize].bytes)).sum()
}
