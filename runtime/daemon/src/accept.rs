//! Accepts a limited number of connections at a time.
//!
//! A permit is acquired before a connection is accepted. Excess connections therefore wait in the
//! kernel's queue and use no file descriptor of this process. The caller must authenticate and
//! serve the connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tracing::warn;

/// Delay after a failed accept. Most likely too many files are open, and no event reports when this
/// changes.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Permission to serve one connection. Dropping it permits another.
pub type Permit = OwnedSemaphorePermit;

/// A listening socket.
pub trait Listen {
    /// The type of its connections.
    type Connection;

    /// Returns the next connection. Cancel-safe: no connection is lost if the future is dropped.
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

/// Accepts connections from a listener, up to a limit.
#[derive(Debug)]
pub struct LimitedListener<L> {
    listener: L,
    client_kind: &'static str,
    permits: Arc<Semaphore>,
}

impl<L: Listen> LimitedListener<L> {
    /// Accepts connections of `listener`, at most `limit` at a time. `client_kind` names the
    /// expected clients in the log.
    pub fn new(listener: L, client_kind: &'static str, limit: usize) -> LimitedListener<L> {
        LimitedListener {
            listener,
            client_kind,
            permits: Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS))),
        }
    }

    /// Returns the next connection and its permit. Retries after errors. Cancel-safe: no connection
    /// is lost if the future is dropped.
    pub async fn next(&self) -> (L::Connection, Permit) {
        loop {
            let Ok(permit) = self.permits.clone().acquire_owned().await else {
                // The semaphore is never closed.
                std::future::pending().await
            };
            match self.listener.accept().await {
                Ok(connection) => return (connection, permit),
                Err(error) => {
                    warn!(%error, "{}: cannot accept a connection", self.client_kind);
                    sleep(RETRY_DELAY).await;
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

    /// Returns the given results in order, then never completes.
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

    fn incoming(script: impl IntoIterator<Item = io::Result<u32>>, limit: usize) -> LimitedListener<Script> {
        LimitedListener::new(Script(Mutex::new(script.into_iter().collect())), "a test", limit)
    }

    fn poll<T>(future: impl Future<Output = T>) -> Poll<T> {
        std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn no_connection_is_accepted_before_it_has_a_permit() {
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
    async fn accepting_is_retried_after_an_error() {
        let full = Err(io::Error::other("too many open files"));
        assert_eq!(incoming([full, Ok(1)], 1).next().await.0, 1);
    }
}
