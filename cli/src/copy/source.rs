//! The source's side: its blocks are read again as they are sent, so that what changed meanwhile is noticed.

use super::fault::Fault;
use super::pipeline::{Form, Packed};
use super::said::Task;
use super::scan::place;
use cool_content::{BlockSet, Digest, Manifest, Occurrences, pieces};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Pieces that are ready before they can be sent.
const READY: usize = 2;
/// Of zstd: what costs least.
const LEVEL: i32 = 1;

/// Begins to read pieces, in a thread that ends with them or when nobody takes them any more.
pub(super) fn read(
    task: &Task,
    manifest: &Arc<Manifest>,
    lacking: BlockSet,
    piece_bytes: usize,
) -> std::io::Result<Receiver<Result<Packed, Fault>>> {
    let (give, taken) = sync_channel(READY);
    let (task, manifest) = (task.clone(), Arc::clone(manifest));
    thread::Builder::new().name("read".into()).spawn(move || {
        let mut reader =
            Reader { occurrences: Occurrences::new(&manifest), manifest: &manifest, task: &task, open: None };
        let mut pace = Pace { began: Instant::now(), bytes: 0, limit: task.limit };
        for piece in pieces(&manifest, &lacking, piece_bytes) {
            let packed = reader.piece(&piece.blocks, piece.bytes);
            pace.wait(packed.as_ref().map_or(0, |(_, bytes)| bytes.len()));
            let failed = packed.is_err();
            if give.send(packed).is_err() || failed {
                return;
            }
        }
    })?;
    Ok(taken)
}

struct Reader<'a> {
    manifest: &'a Manifest,
    occurrences: Occurrences,
    task: &'a Task,
    /// The file that was read last.
    open: Option<(u32, File)>,
}

impl Reader<'_> {
    fn piece(&mut self, blocks: &[u32], bytes: usize) -> Result<Packed, Fault> {
        let mut plain = Vec::with_capacity(bytes);
        for block in blocks {
            self.block(*block, &mut plain)?;
        }
        if self.task.compress {
            // What cannot be compressed goes as it is.
            let smaller = zstd::bulk::compress(&plain, LEVEL).ok().filter(|small| small.len() < plain.len());
            if let Some(small) = smaller {
                return Ok((Form::Compressed, small));
            }
        }
        Ok((Form::Plain, plain))
    }

    /// Reads a block behind what was read before.
    fn block(&mut self, block: u32, bytes: &mut Vec<u8>) -> Result<(), Fault> {
        let about = self.manifest.blocks()[block as usize];
        // Every block of a manifest is in a file.
        let Some(at) = self.occurrences.of(block).first() else { return Ok(()) };
        let path = place(&self.task.source, &self.manifest.items()[at.item as usize].path);
        if self.open.as_ref().is_none_or(|(item, _)| *item != at.item) {
            self.open = Some((at.item, File::open(&path).map_err(Fault::at(&path))?));
        }
        let start = bytes.len();
        bytes.resize(start + about.bytes as usize, 0);
        let block = &mut bytes[start..];
        let read = self.open.as_ref().map_or(Ok(()), |(_, file)| file.read_exact_at(block, at.offset));
        match read {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(Fault::Changed(path)),
            Err(reason) => Err(Fault::Path { path, reason }),
            Ok(()) if Digest::of(block) != about.digest => Err(Fault::Changed(path)),
            Ok(()) => Ok(()),
        }
    }
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
