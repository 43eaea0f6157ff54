//! Takes connections in, at most a given number at a time: a permit is taken before a connection is, so that who waits does so
//! in the system's queue and holds no descriptor here. Who may connect, and what is served, is left to the caller.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tracing::warn;

/// Before the next try when the system gives no connection, most likely since too many files are open: nothing tells when
/// that is over.
const PAUSE: Duration = Duration::from_millis(100);

/// One of the connections that may be served at a time; given back when dropped.
pub type Permit = OwnedSemaphorePermit;

/// A socket that listens.
pub trait Listen {
    /// What it gives.
    type Connection;

    /// The next connection. May be dropped and called again without losing any.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Connection>> + Send;
}

impl<L: Listen + Sync> Listen for &L {
    type Connection = L::Connection;

    async fn accept(&self) -> io::Result<L::Connection> {
        L::accept(self).await
    }
}

impl Listen for TcpListener {
    type Connection = (TcpStream, SocketAddr);

    async fn accept(&self) -> io::Result<Self::Connection> {
        TcpListener::accept(self).await
    }
}

impl Listen for UnixListener {
    type Connection = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        UnixListener::accept(self).await.map(|(stream, _)| stream)
    }
}

/// Connections as they come in.
#[derive(Debug)]
pub struct Incoming<L> {
    listener: L,
    whom: &'static str,
    permits: Arc<Semaphore>,
}

impl<L: Listen> Incoming<L> {
    /// Those of a listener, at most `limit` at a time; `whom` says in the log who is awaited.
    pub fn new(listener: L, whom: &'static str, limit: usize) -> Incoming<L> {
        Incoming { listener, whom, permits: Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS))) }
    }

    /// The next connection, with its permit, as soon as there is one. May be dropped and called again without losing any
    /// connection. A system that gives none is asked again.
    pub async fn next(&self) -> (L::Connection, Permit) {
        loop {
            let Ok(permit) = self.permits.clone().acquire_owned().await else {
                // Closed by nobody.
                std::future::pending().await
            };
            match self.listener.accept().await {
                Ok(connection) => return (connection, permit),
                Err(error) => {
                    warn!(%error, "{}: cannot accept a connection", self.whom);
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::{Mutex, PoisonError};
    use std::task::{Context, Poll, Waker};

    /// Gives what it was told to, then nothing.
    struct Script(Mutex<VecDeque<io::Result<u32>>>);

    impl Listen for Script {
        type Connection = u32;

        async fn accept(&self) -> io::Result<u32> {
            let next = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            match next {
                Some(next) => next,
                None => std::future::pending().await,
            }
        }
    }

    fn incoming(script: impl IntoIterator<Item = io::Result<u32>>, limit: usize) -> Incoming<Script> {
        Incoming::new(Script(Mutex::new(script.into_iter().collect())), "a test", limit)
    }

    fn poll<T>(future: impl Future<Output = T>) -> Poll<T> {
        std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn no_connection_is_taken_before_there_is_a_permit_for_it() {
        let incoming = incoming([Ok(1), Ok(2), Ok(3)], 2);
        let (first, second) = (incoming.next().await, incoming.next().await);
        assert_eq!((first.0, second.0), (1, 2));
        assert!(poll(incoming.next()).is_pending());
        let left = incoming.listener.0.lock().unwrap().len();
        assert_eq!(left, 1, "the third waits in the system's queue");
        drop(first.1);
        assert_eq!(incoming.next().await.0, 3);
    }

    #[tokio::test]
    async fn a_system_that_gives_no_connection_is_asked_again() {
        let full = Err(io::Error::other("too many open files"));
        assert_eq!(incoming([full, Ok(1)], 1).next().await.0, 1);
    }
}
