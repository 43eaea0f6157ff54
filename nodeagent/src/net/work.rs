//! A small pool of threads for long operations: copies and reductions between ranks' memory, and
//! the preparation of calls. So the turns of the engine's thread, which answers pings, paces
//! multicast and serves ranks, remain short, and other CPUs share the work.
//!
//! Bytes are moved in pieces, so that one long vector uses all threads of the pool, and each thread
//! handles one piece at a time. A piece keeps its memory mapped, even if the call ends. It is the
//! engine's responsibility that no piece writes to the memory of a call that has its reply
//! (`cool_engine` replies only when no work uses the memory).

use super::memory_table::MemoryTable;
use super::{DriverEvent, DriverEvents};
use crate::engine::SharedSlice;
use cool_engine::{Work, WorkId, combine};
use cool_types::{ElementType, ReduceOp};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// The maximum number of bytes that the driver moves itself for one work item. Moving more takes
/// longer than waking another thread.
pub(super) const INLINE_BYTES: u64 = 64 * 1024;

/// The maximum number of bytes that the driver moves itself in a turn, before it checks its sockets
/// again. This takes about 100 microseconds.
pub(super) const INLINE_COPY_BYTES_PER_TURN: u64 = 1024 * 1024;

/// The size of a piece. Handing over a piece takes much less time than moving it, and moving it
/// takes less than a time slice of the scheduler. It must be a multiple of all element sizes.
const PIECE_BYTES: u64 = 1024 * 1024;

/// The number of bytes that are copied at a time, to be combined or written elsewhere. Two such
/// blocks fit a first-level cache.
const BLOCK_BYTES: usize = 8 * 1024;

/// Maximum number of threads, because more threads do not move memory faster.
const THREADS_MAX: usize = 4;

/// A copy or a reduction, with the memory that it uses.
#[derive(Clone, Debug)]
pub(super) struct MoveWork {
    from: SharedSlice,
    to: SharedSlice,
    /// The element type and operation of a reduction; `None` for a copy.
    combine: Option<(ElementType, ReduceOp)>,
}

impl MoveWork {
    /// Returns the move of a work item, or `None` if it moves no bytes or its memory does not
    /// exist.
    pub(super) fn from_work(work: &Work, memories: &MemoryTable) -> Option<MoveWork> {
        let (from, to, combine) = match work {
            Work::Copy { from, to } => (from, to, None),
            Work::Reduce { element, op, from, to } => (from, to, Some((*element, *op))),
            Work::Prepare(_) => return None,
        };
        Some(MoveWork { from: memories.get(*from)?, to: memories.get(*to)?, combine })
    }

    /// Returns the number of bytes to move.
    pub(super) fn bytes(&self) -> u64 {
        self.to.bytes()
    }

    /// Executes the move.
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

/// Copies all bytes of `from` to `to`, which must have the same length.
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

/// Threads that execute tasks in order. They end with the pool, after its remaining tasks.
pub(super) struct WorkPool {
    tasks: mpsc::Sender<PoolTask>,
    events: DriverEvents,
}

impl WorkPool {
    /// Starts a pool that reports completed work to `events`.
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

    /// Starts to move bytes. [`DriverEvent::WorkDone`] reports the end.
    pub(super) fn start_move(&self, id: WorkId, all: &MoveWork) {
        let pieces: Vec<MoveWork> = all.pieces().collect();
        let left = Arc::new(AtomicUsize::new(pieces.len()));
        for piece in pieces {
            let (left, events) = (Arc::clone(&left), self.events.clone());
            self.submit(move || {
                piece.run();
                // Each piece is written before its thread counts down, and the thread that counts
                // to zero sees all of them.
                if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    drop(piece);
                    send_event(&events, DriverEvent::WorkDone(id));
                }
            });
        }
    }

    /// Starts to prepare a call. [`DriverEvent::Prepared`] reports the result.
    pub(super) fn start_preparation(&self, id: WorkId, preparation: cool_engine::Preparation) {
        let events = self.events.clone();
        self.submit(move || send_event(&events, DriverEvent::Prepared(id, Box::new(preparation.run()))));
    }

    fn submit(&self, job: impl FnOnce() + Send + 'static) {
        // Threads end only with the pool, or by a panic, which ends the driver.
        let _ = self.tasks.send(Box::new(job));
    }
}

/// Executes tasks until there are no more. If a task panics, it can never complete, so the driver
/// must end, because otherwise calls would wait forever.
fn work(queue: &Mutex<mpsc::Receiver<PoolTask>>, events: &DriverEvents) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            return send_event(events, DriverEvent::WorkPanicked);
        }
    }
}

/// Sends an event to the driver, waiting if its queue is full. If the driver has ended, the event
/// is not needed.
fn send_event(events: &DriverEvents, event: DriverEvent) {
    let _ = events.blocking_send(event);
}
