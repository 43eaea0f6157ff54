//! A queue of many pending calls, possibly of several communicators, that returns the first one to
//! complete.

use crate::Pending;
use crate::comm::Received;
use crate::error::Error;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

/// A set of pending calls, each with a token that identifies it (compare `MPI_Waitany` and the
/// completion queues of InfiniBand verbs).
///
/// The calls may belong to several communicators. Any number of threads may add calls and wait for
/// completions; a single dedicated thread suffices for all calls of a process.
///
/// ```
/// # fn main() -> Result<(), cool::Error> {
/// # cool::launch(|comm| -> Result<(), cool::Error> {
/// use std::time::Duration;
/// let (mut sum, mut largest) = ([0], [0]);
/// let queue = cool::CompletionQueue::new();
/// queue.add(comm.start().allreduce(&[comm.rank() as u64], &mut sum, cool::Op::Sum)?, "sum")?;
/// queue.add(comm.start().allreduce(&[comm.rank() as u64], &mut largest, cool::Op::Max)?, "max")?;
/// while !queue.is_empty() {
///     if let Some(done) = queue.next(Duration::from_secs(60)) {
///         done.result?;
///     }
/// }
/// drop(queue);
/// assert_eq!((sum[0], largest[0]), (6, 3));
/// # Ok(())
/// # })?.into_iter().collect()
/// # }
/// ```
///
/// Dropping the queue drops its calls.
pub struct CompletionQueue<'a, T> {
    calls: Mutex<OpenCalls<'a, T>>,
    finished: Arc<FinishedCalls>,
}

struct OpenCalls<'a, T> {
    next: u64,
    /// Pending calls, by the number of their waker.
    open: BTreeMap<u64, (Pending<'a>, T)>,
}

/// A completed call.
#[derive(Debug)]
pub struct Completed<T> {
    /// Token of the call.
    pub token: T,
    /// The received message if the call is a receive (otherwise a message of 0 elements from rank
    /// 0), or the error.
    pub result: Result<Received, Error>,
}

/// Numbers of completed calls that were not returned yet.
#[derive(Debug, Default)]
struct FinishedCalls {
    queue: Mutex<FinishedQueue>,
    added: Condvar,
}

#[derive(Debug, Default)]
struct FinishedQueue {
    numbers: VecDeque<u64>,
    /// Whether waiting threads should return.
    closed: bool,
}

/// Adds the number of a call to the queue when the call completes.
struct CompletionWaker {
    number: u64,
    finished: Arc<FinishedCalls>,
}

impl Wake for CompletionWaker {
    fn wake(self: Arc<Self>) {
        self.finished.add(self.number);
    }
}

impl FinishedCalls {
    fn add(&self, number: u64) {
        self.queue().numbers.push_back(number);
        self.added.notify_one();
    }

    fn close(&self) {
        self.queue().closed = true;
        self.added.notify_all();
    }

    // Every change to the queue is complete when the lock is released, so a panic elsewhere is
    // harmless.
    fn queue(&self) -> MutexGuard<'_, FinishedQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next number, or `None` after `timeout`.
    fn next(&self, timeout: Duration) -> Option<u64> {
        let begun = Instant::now();
        let mut queue = self.queue();
        loop {
            if let Some(number) = queue.numbers.pop_front() {
                return Some(number);
            }
            let open = !queue.closed;
            let left = timeout.checked_sub(begun.elapsed()).filter(|left| open && !left.is_zero())?;
            queue = self.added.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<'a, T> CompletionQueue<'a, T> {
    /// Returns a queue without calls.
    pub fn new() -> CompletionQueue<'a, T> {
        CompletionQueue::default()
    }

    /// Adds a call, which may already be complete.
    ///
    /// # Errors
    /// If the system cannot create the thread that detects completions. The call then continues,
    /// but its result is lost.
    pub fn add(&self, pending: Pending<'a>, token: T) -> Result<(), Error> {
        // The lock is held until the call is inserted, because a thread that receives the number of
        // the call before that must wait.
        let mut calls = self.calls();
        let number = calls.next;
        calls.next += 1;
        let waker = Waker::from(Arc::new(CompletionWaker { number, finished: Arc::clone(&self.finished) }));
        if pending.wake_when_done(&waker)? {
            self.finished.add(number);
        }
        calls.open.insert(number, (pending, token));
        Ok(())
    }

    /// Waits for a completed call, including calls that other threads add meanwhile. Returns `None`
    /// after `timeout`.
    ///
    /// Received data is in the call's array. Each call is returned once, in the order of
    /// completion.
    pub fn next(&self, timeout: Duration) -> Option<Completed<T>> {
        let begun = Instant::now();
        loop {
            let number = self.finished.next(timeout.saturating_sub(begun.elapsed()))?;
            let call = self.calls().open.remove(&number);
            // The call exists, because its number is queued exactly once.
            if let Some((pending, token)) = call {
                return Some(Completed { token, result: pending.received() });
            }
        }
    }

    /// Makes [`CompletionQueue::next`] return without waiting, in all threads: it returns the calls
    /// that have completed, and then `None`. This lets a thread that only waits for completions
    /// end.
    pub fn close(&self) {
        self.finished.close();
    }

    /// Returns whether the queue was closed by [`CompletionQueue::close`].
    pub fn is_closed(&self) -> bool {
        self.finished.queue().closed
    }

    /// Returns the number of calls that [`CompletionQueue::next`] has not returned.
    pub fn len(&self) -> usize {
        self.calls().open.len()
    }

    /// Returns whether [`CompletionQueue::next`] has returned all calls.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the calls, even after a panic, because every change to them is complete when the
    /// lock is released.
    fn calls(&self) -> MutexGuard<'_, OpenCalls<'a, T>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Default for CompletionQueue<'_, T> {
    fn default() -> Self {
        CompletionQueue {
            calls: Mutex::new(OpenCalls { next: 0, open: BTreeMap::new() }),
            finished: Arc::default(),
        }
    }
}

impl<T> fmt::Debug for CompletionQueue<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionQueue of {} calls", self.len())
    }
}
