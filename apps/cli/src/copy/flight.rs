//! Broadcasts that are started one after the other and awaited later, each with its own memory.

use cool::{Comm, Error};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

type Broadcast<'c> = Pin<Box<dyn Future<Output = Result<Vec<u8>, Error>> + 'c>>;

/// A broadcast that was begun, or has failed at once.
enum Begun<'c> {
    Open(Broadcast<'c>),
    Done(Result<Vec<u8>, Error>),
}

/// Broadcasts under way, in the order of their beginnings.
pub(super) struct Flight<'c> {
    comm: &'c Comm,
    root: usize,
    begun: VecDeque<Begun<'c>>,
}

impl<'c> Flight<'c> {
    pub(super) fn new(comm: &'c Comm, root: usize) -> Flight<'c> {
        Flight { comm, root, begun: VecDeque::new() }
    }

    /// Begins to broadcast the root's bytes; the others give as many.
    pub(super) fn start(&mut self, mut bytes: Vec<u8>) {
        let (comm, root) = (self.comm, self.root);
        let mut broadcast: Broadcast<'c> = Box::pin(async move {
            comm.start().bcast(&mut bytes, root)?.await?;
            Ok(bytes)
        });
        // Begins it: calls are to start in one order everywhere.
        self.begun.push_back(match broadcast.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => Begun::Open(broadcast),
            Poll::Ready(done) => Begun::Done(done),
        });
    }

    /// How many are under way.
    pub(super) fn len(&self) -> usize {
        self.begun.len()
    }

    /// Awaits the oldest; nothing if there is none.
    pub(super) fn next(&mut self) -> Option<Result<Vec<u8>, Error>> {
        Some(match self.begun.pop_front()? {
            Begun::Open(broadcast) => block_on(broadcast),
            Begun::Done(done) => done,
        })
    }
}

/// Wakes a thread that awaits a broadcast.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Awaits a broadcast in this thread.
fn block_on(mut broadcast: Broadcast) -> Result<Vec<u8>, Error> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(done) = broadcast.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        thread::park();
    }
}
