//! Broadcasts that are started one after the other and awaited later, each with its own memory.

use cool::{Comm, Error};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

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
    runtime: tokio::runtime::Runtime,
    begun: VecDeque<Begun<'c>>,
}

impl<'c> Flight<'c> {
    pub(super) fn new(comm: &'c Comm, root: usize) -> std::io::Result<Flight<'c>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        Ok(Flight { comm, root, runtime, begun: VecDeque::new() })
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
            Begun::Open(broadcast) => self.runtime.block_on(broadcast),
            Begun::Done(done) => done,
        })
    }
}
