//! Writes received pieces in a thread, while the next ones are being received.

use crate::destination::DestinationResult;
use crate::install::Install;
use crate::pipeline::PieceForm;
use crate::progress_reporter::ProgressReporter;
use crate::protocol::CopyTask;
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
    pub(crate) destination: Option<DestinationResult>,
    /// The copy, if it is complete.
    pub(crate) install: Option<Install>,
}

impl PieceWriter {
    /// Starts the thread, for a rank that started at `began`.
    pub(crate) fn start(
        destination: Option<DestinationResult>,
        (task, began): (&CopyTask, Instant),
    ) -> std::io::Result<PieceWriter> {
        let usable = destination.as_ref().and_then(|destination| destination.as_ref().ok());
        let mut reporter = usable.map(|destination| ProgressReporter::new(task, destination));
        let (sender, receiver) = sync_channel::<ReceivedPiece>(WAITING);
        let thread = thread::Builder::new().name("write".into()).spawn(move || {
            let (mut destination, mut install) = (destination, None);
            for (piece, form, bytes) in receiver {
                destination = destination.map(|destination| write(destination, &piece, form, bytes));
                if let (Some(Ok(destination)), Some(reporter)) = (&destination, &mut reporter) {
                    reporter.update(destination);
                }
                // A complete copy does not wait for nodes that are still missing blocks.
                if let Some(Ok(complete)) = destination.take_if(|destination| is_complete(destination)) {
                    match Install::of_destination(complete, began) {
                        Ok(started) => install = Some(started),
                        Err(error) => destination = Some(Err(error)),
                    }
                }
            }
            WriteResult { destination, install }
        })?;
        Ok(PieceWriter { sender: Some(sender), thread })
    }

    /// Queues a received piece; blocks while the queue is full.
    pub(crate) fn enqueue(&mut self, piece: Piece, form: PieceForm, bytes: Vec<u8>) {
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

fn is_complete(destination: &DestinationResult) -> bool {
    destination.as_ref().is_ok_and(|destination| destination.have().is_full())
}

/// Writes a piece. If that fails, the unfinished copy is removed, because the disk may be full.
fn write(
    destination: DestinationResult,
    piece: &Piece,
    form: PieceForm,
    bytes: Vec<u8>,
) -> DestinationResult {
    let mut destination = destination?;
    let plain = match form {
        PieceForm::Compressed => zstd::bulk::decompress(&bytes, piece.bytes).unwrap_or_default(),
        PieceForm::Plain | PieceForm::SourceFailed | PieceForm::Admission | PieceForm::End => bytes,
    };
    match destination.put_piece(piece, &plain) {
        Ok(()) => Ok(destination),
        Err(error) => Err(destination.discard(error)),
    }
}
