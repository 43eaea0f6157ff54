//! Content that is copied from one node to others, without I/O.
//!
//! A source (a file, or a directory with all its entries) is described by a [`Manifest`]. Its bytes
//! are divided into blocks at positions that their content determines ([`Cutter`]). A [`BlockSet`]
//! records the blocks that a node has, and [`pieces()`] groups the missing ones for sending.
//!
//! A block is identified by its BLAKE3 hash, so a block that a node already has, in any file, need
//! not be sent. Walking directories, reading files and using the network is left to the caller.

mod block_set;
mod cutter;
mod digest;
mod item;
mod manifest;
mod pieces;

pub use block_set::BlockSet;
pub use cutter::{Block, Cutter};
pub use digest::{Digest, DigestError, Digester};
pub use item::{Extent, FileContent, Item, ItemContent, ItemPath, MODE_BITS, ModificationTime, PathError};
pub use manifest::{Builder, Manifest, ManifestError};
pub use pieces::{Occurrence, Occurrences, Piece, pieces, pieces_from};

/// Length of the longest block.
pub const BLOCK_BYTES_MAX: usize = 256 << 10;
/// Average length of a block. A manifest has about 35 bytes for each block.
const BLOCK_BYTES: usize = 64 << 10;
/// Length of the shortest block, except for the last one of an extent, which may be shorter.
const BLOCK_BYTES_MIN: usize = 16 << 10;
