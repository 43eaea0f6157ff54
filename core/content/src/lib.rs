//! What is copied from one node to others, without I/O: a source (a file, or a folder with all that is in it) as a [`Manifest`],
//! its bytes in blocks that are cut where their content says ([`Cutter`]), which blocks a node has ([`BlockSet`]), and in which
//! pieces those that are lacking are sent ([`pieces`]).
//!
//! A block is known by its BLAKE3 hash, so that what a node has already need not be sent, wherever it has it. The walk over
//! folders, the files and the network are left to whoever copies.

mod cutter;
mod have;
mod item;
mod manifest;
mod order;

pub use cutter::{Block, Cutter, Digest, DigestError, Digester};
pub use have::BlockSet;
pub use item::{Extent, FileContent, Item, ItemContent, ItemPath, MODE_BITS, Modified, PathError};
pub use manifest::{Builder, Manifest, ManifestError};
pub use order::{Occurrence, Occurrences, Piece, pieces, pieces_from};

/// No block is longer.
pub const BLOCK_BYTES_MAX: usize = 256 << 10;
/// What blocks are about as long as: a manifest has some 35 bytes for each.
const BLOCK_BYTES: usize = 64 << 10;
/// Only the last block of an extent is shorter.
const BLOCK_BYTES_MIN: usize = 16 << 10;
