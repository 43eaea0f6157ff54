//! Broadcasts that are started one after the other and awaited later, each with its own buffer.

use cool::{Comm, Error};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

type BroadcastFuture<'c> = Pin<Box<dyn Future<Output = Result<Vec<u8>, Error>> + 'c>>;

/// A broadcast that was started.
enum StartedBroadcast<'c> {
    Pending(BroadcastFuture<'c>),
    Done(Result<Vec<u8>, Error>),
}

/// The broadcasts in flight, in the order in which they were started.
pub(crate) struct InFlight<'c> {
    comm: &'c Comm,
    root: usize,
    started: VecDeque<StartedBroadcast<'c>>,
}

impl<'c> InFlight<'c> {
    pub(crate) fn new(comm: &'c Comm, root: usize) -> InFlight<'c> {
        InFlight { comm, root, started: VecDeque::new() }
    }

    /// Starts to broadcast the root's bytes. All other ranks must pass a buffer of the same length.
    pub(crate) fn start(&mut self, mut bytes: Vec<u8>) {
        let (comm, root) = (self.comm, self.root);
        let mut broadcast: BroadcastFuture<'c> = Box::pin(async move {
            comm.start().bcast(&mut bytes, root)?.await?;
            Ok(bytes)
        });
        // The future is polled at once, because polling starts the call, and all ranks must start
        // their calls in the same order.
        self.started.push_back(match broadcast.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => StartedBroadcast::Pending(broadcast),
            Poll::Ready(done) => StartedBroadcast::Done(done),
        });
    }

    /// Returns the number of broadcasts in flight.
    pub(crate) fn len(&self) -> usize {
        self.started.len()
    }

    /// Waits for the oldest broadcast, and returns its bytes; `None` if none is in flight.
    pub(crate) fn next(&mut self) -> Option<Result<Vec<u8>, Error>> {
        Some(match self.started.pop_front()? {
            StartedBroadcast::Pending(broadcast) => block_on(broadcast),
            StartedBroadcast::Done(done) => done,
        })
    }
}

/// Wakes the thread that waits for a broadcast.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a broadcast in this thread.
fn block_on(mut broadcast: BroadcastFuture) -> Result<Vec<u8>, Error> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(done) = broadcast.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        thread::park();
    }
}
