//! Reads the pieces that the source broadcasts, ahead of the network.
//!
//! Every block is read again and compared with its hash, so that a change since the scan is
//! detected.

use crate::block_reader::BlockReader;
use crate::errors::CopyFileError;
use crate::missing_blocks::MissingBlocks;
use crate::pipeline::{PackedPiece, PieceForm};
use crate::protocol::CopyTask;
use cool_content::{Manifest, pieces_from};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Number of pieces that are read ahead of the network.
const READY: usize = 2;
/// The cheapest level of zstd.
const COMPRESSION_LEVEL: i32 = 1;

/// A piece that is ready to be sent.
#[derive(Debug)]
pub(crate) struct ReadPiece {
    pub(crate) packed: PackedPiece,
    /// Number of the block after the last one of the piece.
    pub(crate) next: u32,
}

/// Starts to read pieces, in a thread that ends after the last piece, at the first error, or when
/// the receiver is dropped.
pub(crate) fn start_reading(
    task: &CopyTask,
    (root, manifest): (&Path, &Arc<Manifest>),
    missing: MissingBlocks,
    piece_bytes: usize,
) -> std::io::Result<Receiver<Result<ReadPiece, CopyFileError>>> {
    let (sender, receiver) = sync_channel(READY);
    let (task, root, manifest) = (task.clone(), root.to_owned(), Arc::clone(manifest));
    thread::Builder::new().name("read".into()).spawn(move || {
        let mut reader = BlockReader::new(root.clone(), Arc::clone(&manifest));
        let mut limiter = RateLimiter { started: Instant::now(), bytes: 0, limit: task.limit };
        for piece in pieces_from(&manifest, &missing.blocks, missing.first, piece_bytes) {
            let read =
                reader.blocks(&piece.blocks, piece.bytes).map_err(|error| task.source_error(&root, error));
            let next = piece.blocks.last().map_or(0, |last| last + 1);
            let read = read.map(|plain| ReadPiece { packed: pack(plain, task.compress), next });
            limiter.wait(read.as_ref().map_or(0, |ReadPiece { packed: (_, bytes), .. }| bytes.len()));
            let failed = read.is_err();
            if sender.send(read).is_err() || failed {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// Compresses a piece if `compress` is set and the result is shorter.
fn pack(plain: Vec<u8>, compress: bool) -> PackedPiece {
    if compress {
        let compressed = zstd::bulk::compress(&plain, COMPRESSION_LEVEL).ok();
        if let Some(shorter) = compressed.filter(|compressed| compressed.len() < plain.len()) {
            return (PieceForm::Compressed, shorter);
        }
    }
    (PieceForm::Plain, plain)
}

/// Limits the bytes that are sent per second.
struct RateLimiter {
    started: Instant,
    bytes: u64,
    limit: Option<u64>,
}

impl RateLimiter {
    /// Waits until these bytes may be sent.
    fn wait(&mut self, bytes: usize) {
        let Some(limit) = self.limit else { return };
        let due = Duration::from_secs_f64(self.bytes as f64 / limit as f64);
        thread::sleep(due.saturating_sub(self.started.elapsed()));
        self.bytes += bytes as u64;
    }
}
