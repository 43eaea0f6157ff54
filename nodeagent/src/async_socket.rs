//! A socket that wakes its task only when it is readable. Tokio's own sockets also wake it when
//! they become writable, which the system reports for UDP and Unix sockets whenever sent data has
//! been received. An agent would wake up twice for each small message.
#![allow(unsafe_code, reason = "tokio asks that a descriptor which it watches stays open")]

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A non-blocking socket that wakes its task when it is readable.
#[derive(Debug)]
pub(crate) struct AsyncSocket(AsyncFd<OwnedFd>);

impl AsyncSocket {
    /// Wraps a non-blocking socket. It must be called within the runtime.
    pub(crate) fn new(socket: impl Into<OwnedFd>) -> io::Result<AsyncSocket> {
        watch(socket.into(), Interest::READABLE).map(AsyncSocket)
    }

    /// Returns the descriptor.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }

    /// Returns whether there may be something to read. If not, wakes the task when there is.
    pub(crate) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        // An error is ignored here, because the following read returns it.
        self.0.poll_read_ready(context).map(drop)
    }

    /// Calls `read` if there may be something to read. Returns `WouldBlock` if there is nothing.
    pub(crate) fn try_read<R>(&self, read: impl FnOnce(BorrowedFd<'_>) -> io::Result<R>) -> io::Result<R> {
        self.0.try_io(Interest::READABLE, |socket| read(socket.as_fd()))
    }

    /// Calls `read` as soon as there is something to read, again if it returns `WouldBlock`.
    pub(crate) async fn read<R>(
        &self,
        mut read: impl FnMut(BorrowedFd<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        self.0.async_io(Interest::READABLE, |socket| read(socket.as_fd())).await
    }

    /// Calls `write` as soon as there is room, again if it returns `WouldBlock`.
    pub(crate) async fn write<R>(
        &self,
        mut write: impl FnMut(BorrowedFd<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            match self.try_write(&mut write) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable().await?,
                written => return written,
            }
        }
    }

    /// Calls `write` at once. Returns `WouldBlock` if there is no room.
    pub(crate) fn try_write<R>(&self, write: impl FnOnce(BorrowedFd<'_>) -> io::Result<R>) -> io::Result<R> {
        write(self.0.get_ref().as_fd())
    }

    /// Waits until there is room for data.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        // A duplicate is needed, because the original descriptor is registered already.
        let writable = watch(self.0.get_ref().try_clone()?, Interest::WRITABLE)?;
        writable.writable().await.map(drop)
    }
}

fn watch(socket: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the returned object owns the descriptor and only lends it out, so the descriptor
    // stays open and unchanged as long as it is registered.
    Ok(unsafe { AsyncFd::register_with_interest(socket, interest) }?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;
    use tokio::time::timeout;

    fn pair() -> (AsyncSocket, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (AsyncSocket::new(ours).unwrap(), theirs)
    }

    fn take(socket: BorrowedFd<'_>) -> io::Result<usize> {
        Ok(rustix::io::read(socket, &mut [0; 16])?)
    }

    #[tokio::test]
    async fn a_reader_wakes_for_data_and_not_for_room() {
        let (ours, mut theirs) = pair();
        assert_eq!(ours.write(|socket| Ok(rustix::io::write(socket, b"sent")?)).await.unwrap(), 4);
        theirs.read_exact(&mut [0; 4]).unwrap();
        let ready = std::future::poll_fn(|context| ours.poll_ready(context));
        assert!(timeout(Duration::from_millis(50), ready).await.is_err());
        assert_eq!(ours.try_read(take).unwrap_err().kind(), ErrorKind::WouldBlock);
        theirs.write_all(b"come").unwrap();
        assert_eq!(ours.read(take).await.unwrap(), 4);
    }

    #[tokio::test]
    async fn a_writer_waits_for_room() {
        let (ours, mut theirs) = pair();
        let total = 4 << 20;
        let reader = tokio::task::spawn_blocking(move || theirs.read_exact(&mut vec![0; total]));
        let mut sent = 0;
        while sent < total {
            let part = vec![0; (total - sent).min(1 << 20)];
            sent += ours.write(|socket| Ok(rustix::io::write(socket, &part)?)).await.unwrap();
        }
        timeout(Duration::from_secs(60), reader).await.expect("all is read").unwrap().unwrap();
    }
}
