//! Many calls under way, of any communicators, and which of them is done first.

use crate::Pending;
use crate::comm::Received;
use crate::error::Error;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

/// OpenCalls under way (MPI: `MPI_Waitany`; a completion queue of verbs), each with a token by which the program knows it.
/// They may be of several communicators. Any number of threads may add calls and wait for the next that is done; one that
/// does nothing else suffices for all calls of a process.
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
/// Dropping it leaves its calls alone, as dropping them does.
pub struct CompletionQueue<'a, T> {
    calls: Mutex<OpenCalls<'a, T>>,
    finished: Arc<FinishedCalls>,
}

struct OpenCalls<'a, T> {
    next: u64,
    /// By the number that their wakers have.
    open: BTreeMap<u64, (Pending<'a>, T)>,
}

/// A call that is done.
#[derive(Debug)]
pub struct Completed<T> {
    /// By which the program knows it.
    pub token: T,
    /// What came, if it is a receive (else a message of nothing from rank 0), or why it failed.
    pub result: Result<Received, Error>,
}

/// The numbers of calls that are done and were not asked for.
#[derive(Debug, Default)]
struct FinishedCalls {
    queue: Mutex<FinishedQueue>,
    added: Condvar,
}

#[derive(Debug, Default)]
struct FinishedQueue {
    numbers: VecDeque<u64>,
    /// Nobody is to wait for more.
    closed: bool,
}

/// Tells that a call is done.
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

    // Every change to it is whole.
    fn queue(&self) -> MutexGuard<'_, FinishedQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first, if one comes in time.
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
    /// One without calls.
    pub fn new() -> CompletionQueue<'a, T> {
        CompletionQueue::default()
    }

    /// Adds a call, which may be done already.
    ///
    /// # Errors
    /// If the system gives no thread that could notice its end: the call goes on without its result.
    pub fn add(&self, pending: Pending<'a>, token: T) -> Result<(), Error> {
        // Held until the call is in: who hears of its end sooner waits for that.
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

    /// Waits for a call that is done, also for one that another thread adds meanwhile; `None` if there is none within
    /// `timeout`. What it received is in its array. Each call is given once, in the order in which they end.
    pub fn next(&self, timeout: Duration) -> Option<Completed<T>> {
        let begun = Instant::now();
        loop {
            let number = self.finished.next(timeout.saturating_sub(begun.elapsed()))?;
            let call = self.calls().open.remove(&number);
            // It is there, since its number is queue once.
            if let Some((pending, token)) = call {
                return Some(Completed { token, result: pending.received() });
            }
        }
    }

    /// Lets [`CompletionQueue::next`] wait no more, in whatever thread: it gives the calls that are done, and then `None` at
    /// once. So a thread ends that does nothing but ask for the next.
    pub fn close(&self) {
        self.finished.close();
    }

    /// Whether nobody waits any more, by [`CompletionQueue::close`].
    pub fn is_closed(&self) -> bool {
        self.finished.queue().closed
    }

    /// OpenCalls that [`CompletionQueue::next`] has not given.
    pub fn len(&self) -> usize {
        self.calls().open.len()
    }

    /// Whether [`CompletionQueue::next`] has given all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The calls, even after a panic: every change to them is whole.
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
