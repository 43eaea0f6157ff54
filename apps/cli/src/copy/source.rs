//! The source's side: its blocks are read again as they are sent, so that what changed meanwhile is noticed.

use super::fault::Fault;
use super::pipeline::{Form, Packed};
use super::rank::Lacking;
use super::reader::Reader;
use super::said::Task;
use cool_content::{Manifest, pieces_from};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Pieces that are ready before they can be sent.
const READY: usize = 2;
/// Of zstd: what costs least.
const LEVEL: i32 = 1;

/// A piece that was read.
#[derive(Debug)]
pub(super) struct ReadPiece {
    pub(super) packed: Packed,
    /// The block behind its last.
    pub(super) next: u32,
}

/// Begins to read pieces, in a thread that ends with them or when nobody takes them any more.
pub(super) fn read(
    task: &Task,
    (root, manifest): (&Path, &Arc<Manifest>),
    lacking: Lacking,
    piece_bytes: usize,
) -> std::io::Result<Receiver<Result<ReadPiece, Fault>>> {
    let (give, taken) = sync_channel(READY);
    let (task, root, manifest) = (task.clone(), root.to_owned(), Arc::clone(manifest));
    thread::Builder::new().name("read".into()).spawn(move || {
        let mut reader = Reader::new(root.clone(), Arc::clone(&manifest));
        let mut pace = Pace { began: Instant::now(), bytes: 0, limit: task.limit };
        for piece in pieces_from(&manifest, &lacking.blocks, lacking.first, piece_bytes) {
            let read = reader.blocks(&piece.blocks, piece.bytes).map_err(|fault| task.blame(&root, fault));
            let next = piece.blocks.last().map_or(0, |last| last + 1);
            let read = read.map(|plain| ReadPiece { packed: packed(plain, task.compress), next });
            pace.wait(read.as_ref().map_or(0, |ReadPiece { packed: (_, bytes), .. }| bytes.len()));
            let failed = read.is_err();
            if give.send(read).is_err() || failed {
                return;
            }
        }
    })?;
    Ok(taken)
}

/// A piece as it goes over the network.
fn packed(plain: Vec<u8>, compress: bool) -> Packed {
    if compress {
        // What cannot be compressed goes as it is.
        let smaller = zstd::bulk::compress(&plain, LEVEL).ok().filter(|small| small.len() < plain.len());
        if let Some(small) = smaller {
            return (Form::Compressed, small);
        }
    }
    (Form::Plain, plain)
}

/// Lets no more bytes go in a second than are allowed.
struct Pace {
    began: Instant,
    bytes: u64,
    limit: Option<u64>,
}

impl Pace {
    /// Waits until these bytes may go.
    fn wait(&mut self, bytes: usize) {
        let Some(limit) = self.limit else { return };
        let due = Duration::from_secs_f64(self.bytes as f64 / limit as f64);
        thread::sleep(due.saturating_sub(self.began.elapsed()));
        self.bytes += bytes as u64;
    }
}
