//! Writes received pieces in a thread, while the next ones are being received.

use crate::install::Install;
use crate::pipeline::PieceForm;
use crate::progress_reporter::ProgressReporter;
use crate::protocol::CopyTask;
use crate::target::TargetResult;
use cool_content::Piece;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Maximum number of received pieces that wait for the disk. If the queue is full, the rank stops
/// receiving.
const WAITING: usize = 2;

type ReceivedPiece = (Piece, PieceForm, Vec<u8>);

/// Writes a node's copy. The rank of a node that cannot have a copy receives the pieces, too,
/// because the broadcasts need all ranks.
pub(crate) struct PieceWriter {
    sender: Option<SyncSender<ReceivedPiece>>,
    thread: JoinHandle<WriteResult>,
}

/// The state of the copy after all pieces.
pub(crate) struct WriteResult {
    /// The unfinished copy, or why there is none; `None` if the copy is complete or this node gets
    /// none.
    pub(crate) target: Option<TargetResult>,
    /// The copy, if it is complete.
    pub(crate) install: Option<Install>,
}

impl PieceWriter {
    /// Starts the thread, for a rank that started at `began`.
    pub(crate) fn start(
        target: Option<TargetResult>,
        (task, began): (&CopyTask, Instant),
    ) -> std::io::Result<PieceWriter> {
        let usable = target.as_ref().and_then(|target| target.as_ref().ok());
        let mut reporter = usable.map(|target| ProgressReporter::new(task, target));
        let (sender, receiver) = sync_channel::<ReceivedPiece>(WAITING);
        let thread = thread::Builder::new().name("write".into()).spawn(move || {
            let (mut target, mut install) = (target, None);
            for (piece, form, bytes) in receiver {
                target = target.map(|target| write(target, &piece, form, bytes));
                if let (Some(Ok(target)), Some(reporter)) = (&target, &mut reporter) {
                    reporter.update(target);
                }
                // A complete copy does not wait for nodes that are still missing blocks.
                if let Some(Ok(complete)) = target.take_if(|target| is_complete(target)) {
                    match Install::of_target(complete, began) {
                        Ok(started) => install = Some(started),
                        Err(error) => target = Some(Err(error)),
                    }
                }
            }
            WriteResult { target, install }
        })?;
        Ok(PieceWriter { sender: Some(sender), thread })
    }

    /// Queues a received piece; blocks while the queue is full.
    pub(crate) fn write(&mut self, piece: Piece, form: PieceForm, bytes: Vec<u8>) {
        if let Some(sender) = &self.sender {
            // Sending fails only if the thread has panicked, which `finish` passes on.
            drop(sender.send((piece, form, bytes)));
        }
    }

    /// Waits until all pieces are written, and returns the copy.
    pub(crate) fn finish(mut self) -> WriteResult {
        self.sender = None;
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn is_complete(target: &TargetResult) -> bool {
    target.as_ref().is_ok_and(|target| target.have().is_full())
}

/// Writes a piece. If that fails, the unfinished copy is removed, because the disk may be full.
fn write(target: TargetResult, piece: &Piece, form: PieceForm, bytes: Vec<u8>) -> TargetResult {
    let mut target = target?;
    let plain = match form {
        PieceForm::Compressed => zstd::bulk::decompress(&bytes, piece.bytes).unwrap_or_default(),
        PieceForm::Plain | PieceForm::SourceFailed | PieceForm::Admission | PieceForm::End => bytes,
    };
    match target.put_piece(piece, &plain) {
        Ok(()) => Ok(target),
        Err(error) => {
            target.discard()?;
            Err(error)
        }
    }
}
