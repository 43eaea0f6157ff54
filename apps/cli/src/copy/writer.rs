//! Writes what comes, in a thread of its own, while more comes.

use super::fault::Fault;
use super::pipeline::Form;
use super::said::Task;
use super::target::Target;
use super::work::Placing;
use cool_content::Piece;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Pieces that have come and are not written yet; with more the network waits for the disk.
const WAITING: usize = 2;

type Arrived = (Piece, Form, Vec<u8>);

/// A node's copy while pieces come; a node that has none takes part all the same, so that the others go on.
pub(super) struct Writer {
    give: Option<SyncSender<Arrived>>,
    thread: JoinHandle<Written>,
}

/// The copy with all that came, or why there is none.
pub(super) struct Written {
    pub(super) kept: Option<Result<Target, Fault>>,
    /// The copy in place of that, if it is whole.
    pub(super) placing: Option<Placing>,
}

impl Writer {
    /// Of a rank that began then.
    pub(super) fn start(
        kept: Option<Result<Target, Fault>>,
        (task, began): (&Task, Instant),
    ) -> std::io::Result<Writer> {
        let mut teller = kept.as_ref().and_then(|kept| kept.as_ref().ok()).map(|target| task.teller(target));
        let (give, taken) = sync_channel::<Arrived>(WAITING);
        let thread = thread::Builder::new().name("write".into()).spawn(move || {
            let (mut kept, mut placing) = (kept, None);
            for (piece, form, bytes) in taken {
                kept = kept.map(|kept| write(kept, &piece, form, bytes));
                if let (Some(Ok(target)), Some(teller)) = (&kept, &mut teller) {
                    teller.tell(target);
                }
                // It waits for nobody who lacks something still.
                if let Some(Ok(target)) = kept.take_if(|kept| is_whole(kept)) {
                    match Placing::of(target, began) {
                        Ok(begun) => placing = Some(begun),
                        Err(fault) => kept = Some(Err(fault)),
                    }
                }
            }
            Written { kept, placing }
        })?;
        Ok(Writer { give: Some(give), thread })
    }

    /// Takes a piece that has come, once there is room for it.
    pub(super) fn write(&mut self, piece: Piece, form: Form, bytes: Vec<u8>) {
        if let Some(give) = &self.give {
            // A thread that has panicked is noticed at the end.
            drop(give.send((piece, form, bytes)));
        }
    }

    /// What has become of it.
    pub(super) fn finish(mut self) -> Written {
        self.give = None;
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn is_whole(kept: &Result<Target, Fault>) -> bool {
    kept.as_ref().is_ok_and(|target| target.have().is_full())
}

/// Writes a piece; a copy that cannot be written leaves nothing behind, above all on a full disk.
fn write(kept: Result<Target, Fault>, piece: &Piece, form: Form, bytes: Vec<u8>) -> Result<Target, Fault> {
    let mut target = kept?;
    let plain = match form {
        Form::Compressed => zstd::bulk::decompress(&bytes, piece.bytes).unwrap_or_default(),
        Form::Plain | Form::GivesUp | Form::Admits | Form::End => bytes,
    };
    match target.put_piece(piece, &plain) {
        Ok(()) => Ok(target),
        Err(fault) => {
            target.give_up()?;
            Err(fault)
        }
    }
}
