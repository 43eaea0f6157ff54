//! What takes long is done by a small pool of threads: copies and reductions between ranks' memories, and the preparation of
//! calls. So the thread that answers pings, paces multicast and serves ranks has short turns, and other cpus work too.
//!
//! Bytes are moved in pieces, so that one long vector keeps all threads of the pool busy and never more than one piece
//! each. A piece holds its memories, so that they stay mapped whatever becomes of their call; that it does not write to
//! what a rank has been answered is the engine's rule (`cool_engine`: a call is answered when no work is on its memory).

use super::memory_table::MemoryTable;
use super::{DriverEvent, DriverEvents};
use crate::engine::SharedSlice;
use cool_engine::{Work, WorkId, combine};
use cool_types::{ElementType, ReduceOp};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// Bytes that the driver itself moves at once for one work: no more than what takes as long as to wake another thread.
pub(super) const INLINE_BYTES: u64 = 64 * 1024;

/// Bytes that the driver itself moves in a turn, before it looks at its sockets again: some 100 microseconds.
pub(super) const TURN_BYTES: u64 = 1024 * 1024;

/// Bytes of a piece: long against a hand-over, short against a turn of the scheduler. A multiple of all elements' sizes.
const PIECE_BYTES: u64 = 1024 * 1024;

/// Bytes copied out of a memory at a time, to be combined or put elsewhere: two such blocks fit a first-level cache.
const BLOCK_BYTES: usize = 8 * 1024;

/// Most threads of a pool: memory is as fast for a few threads as for many.
const THREADS_MAX: usize = 4;

/// Moving bytes, of memories that are held.
#[derive(Clone, Debug)]
pub(super) struct MoveWork {
    from: SharedSlice,
    to: SharedSlice,
    /// Absent: they are copied.
    combine: Option<(ElementType, ReduceOp)>,
}

impl MoveWork {
    /// What a work moves; nothing if it moves none, or memory is missing.
    pub(super) fn from_work(work: &Work, memories: &MemoryTable) -> Option<MoveWork> {
        let (from, to, combine) = match work {
            Work::Copy { from, to } => (from, to, None),
            Work::Reduce { element, op, from, to } => (from, to, Some((*element, *op))),
            Work::Prepare(_) => return None,
        };
        Some(MoveWork { from: memories.get(*from)?, to: memories.get(*to)?, combine })
    }

    /// How many bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.to.bytes()
    }

    /// Does it.
    pub(super) fn run(&self) {
        match self.combine {
            None => copy(&self.from, &self.to),
            Some((element, op)) => combine_slices(element, op, &self.to, &self.from),
        }
    }

    fn pieces(&self) -> impl Iterator<Item = MoveWork> + '_ {
        let bytes = self.to.bytes();
        (0..bytes.div_ceil(PIECE_BYTES)).map(move |piece| {
            let at = piece * PIECE_BYTES;
            let len = PIECE_BYTES.min(bytes - at);
            MoveWork { from: self.from.part(at, len), to: self.to.part(at, len), combine: self.combine }
        })
    }
}

/// Copies all bytes of `to` from `from`, which has as many.
pub(super) fn copy(from: &SharedSlice, to: &SharedSlice) {
    if to.copy_from(from) {
        return;
    }
    let mut block = [0; BLOCK_BYTES];
    let mut at = 0;
    while at < to.bytes() {
        let len = (to.bytes() - at).min(BLOCK_BYTES as u64) as usize;
        from.read(at, &mut block[..len]);
        to.write(at, &block[..len]);
        at += len as u64;
    }
}

fn combine_slices(element: ElementType, op: ReduceOp, to: &SharedSlice, from: &SharedSlice) {
    let (mut left, mut right) = ([0; BLOCK_BYTES], [0; BLOCK_BYTES]);
    let mut at = 0;
    while at < to.bytes() {
        let len = (to.bytes() - at).min(BLOCK_BYTES as u64) as usize;
        let (left, right) = (&mut left[..len], &mut right[..len]);
        to.read(at, left);
        from.read(at, right);
        combine(element, op, left, right);
        to.write(at, left);
        at += len as u64;
    }
}

type PoolTask = Box<dyn FnOnce() + Send>;

/// Threads that do tasks in the order in which they come. They end with the pool, after the tasks that it has.
pub(super) struct WorkPool {
    tasks: mpsc::Sender<PoolTask>,
    events: DriverEvents,
}

impl WorkPool {
    /// A pool that tells `events` when work is done.
    pub(super) fn start(events: DriverEvents) -> io::Result<WorkPool> {
        let (tasks, queue) = mpsc::channel::<PoolTask>();
        let queue = Arc::new(Mutex::new(queue));
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..cpus.min(THREADS_MAX) {
            let (queue, events) = (Arc::clone(&queue), events.clone());
            std::thread::Builder::new().name("cool-work".to_owned()).spawn(move || work(&queue, &events))?;
        }
        Ok(WorkPool { tasks, events })
    }

    /// Has bytes moved.
    pub(super) fn start_move(&self, id: WorkId, all: &MoveWork) {
        let pieces: Vec<MoveWork> = all.pieces().collect();
        let left = Arc::new(AtomicUsize::new(pieces.len()));
        for piece in pieces {
            let (left, events) = (Arc::clone(&left), self.events.clone());
            self.submit(move || {
                piece.run();
                // Each piece's bytes are written before it counts down, and whoever counts the last sees them all.
                if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    drop(piece);
                    send_event(&events, DriverEvent::WorkDone(id));
                }
            });
        }
    }

    /// Has a call prepared.
    pub(super) fn start_preparation(&self, id: WorkId, preparation: cool_engine::Preparation) {
        let events = self.events.clone();
        self.submit(move || send_event(&events, DriverEvent::Prepared(id, Box::new(preparation.run()))));
    }

    fn submit(&self, job: impl FnOnce() + Send + 'static) {
        // Threads end only with the pool, or by a panic, which ends the driver.
        let _ = self.tasks.send(Box::new(job));
    }
}

/// Does tasks until there will be none. One that panics cannot be done, and those who wait for it must not wait for ever: the
/// driver ends.
fn work(queue: &Mutex<mpsc::Receiver<PoolTask>>, events: &DriverEvents) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            return send_event(events, DriverEvent::WorkPanicked);
        }
    }
}

/// Tells the driver, waiting while it has much to hear; without a driver nobody wants to know.
fn send_event(events: &DriverEvents, event: DriverEvent) {
    let _ = events.blocking_send(event);
}
