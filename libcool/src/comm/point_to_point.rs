//! Messages from one rank to another.

use super::{Comm, Inner, Start};
use crate::element::{Array, ArrayMut, Element};
use crate::error::Error;
use crate::pending::Pending;
use crate::session::Blocking;
use std::sync::Arc;
use std::time::Duration;

/// What a receive got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The rank that sent it.
    pub source: usize,
    /// With this tag.
    pub tag: u32,
    /// Elements; those of the array behind them are as they were.
    pub count: usize,
}

/// A message to or from another rank, with arrays whose type is known only when the program runs.
#[derive(Debug)]
pub enum Message<'s, 'r> {
    /// Sends an array to a rank.
    Send {
        /// What.
        data: Array<'s>,
        /// To whom.
        dest: usize,
        /// Known by what.
        tag: u32,
    },
    /// Receives into an array.
    Receive {
        /// Room for what comes.
        data: ArrayMut<'r>,
        /// From whom; `None`: from any rank.
        source: Option<usize>,
        /// Known by what; `None`: by anything.
        tag: Option<u32>,
    },
}

/// A message whose ranks make sense.
#[derive(Debug)]
pub(crate) struct PointToPoint<'s> {
    pub(crate) name: &'static str,
    /// Whether `data` goes out; else what comes overwrites it.
    pub(crate) sends: bool,
    pub(crate) data: &'s [u8],
    pub(crate) peer: Option<u32>,
    pub(crate) tag: Option<u32>,
    pub(crate) dtype: crate::Type,
}

impl Comm {
    /// Sends `data` to one rank, which receives it with the same type and tag. Small messages are on their way when
    /// this returns; large ones have been taken. Messages from one rank to another are received in the order in
    /// which they were sent, among those that a receive takes.
    ///
    /// ```
    /// # fn main() -> Result<(), cool::Error> {
    /// # cool::launch(|comm| -> Result<(), cool::Error> {
    /// let mut left = [0];
    /// let sent = comm.start().send(&[comm.rank() as u64], (comm.rank() + 1) % comm.size(), 7)?;
    /// let got = comm.recv(&mut left, None, 7)?;
    /// sent.wait()?;
    /// assert_eq!((left[0], got.count), (got.source as u64, 1));
    /// # Ok(())
    /// # })?.into_iter().collect()
    /// # }
    /// ```
    ///
    /// # Errors
    /// If there is no such rank, it is gone, or does not receive the message in time. The group has failed then.
    pub fn send<T: Element>(&self, data: &[T], dest: usize, tag: u32) -> Result<(), Error> {
        self.waiting().send(data, dest, tag)?.wait()
    }

    /// Receives what a rank sends with a tag, at most as many elements as `data` has; either may be `None`: any.
    ///
    /// # Errors
    /// If there is no such rank, it is gone, sends nothing in time, another type, or more than there is room for. The
    /// group has failed then.
    pub fn recv<T: Element>(
        &self,
        data: &mut [T],
        source: impl Into<Option<usize>>,
        tag: impl Into<Option<u32>>,
    ) -> Result<Received, Error> {
        self.waiting().recv(data, source, tag)?.received()
    }

    /// Any message, with arrays whose types are known only when the program runs; what came, if it is a receive.
    ///
    /// # Errors
    /// As those of [`Comm::send`] and [`Comm::recv`].
    pub fn message(&self, message: Message<'_, '_>) -> Result<Received, Error> {
        self.waiting().message(message)?.received()
    }
}

impl Start<'_> {
    /// [`Comm::send`].
    ///
    /// # Errors
    /// If there is no such rank, or the agent is gone.
    pub fn send<T: Element>(self, data: &[T], dest: usize, tag: u32) -> Result<Pending<'static>, Error> {
        self.message(Message::Send { data: data.into(), dest, tag })
    }

    /// [`Comm::recv`]; [`Pending::received`] tells what came.
    ///
    /// # Errors
    /// If there is no such rank, or the agent is gone.
    pub fn recv<T: Element>(
        self,
        data: &mut [T],
        source: impl Into<Option<usize>>,
        tag: impl Into<Option<u32>>,
    ) -> Result<Pending<'_>, Error> {
        self.message(Message::Receive { data: data.into(), source: source.into(), tag: tag.into() })
    }

    /// Any message, with arrays whose types are known only when the program runs.
    ///
    /// # Errors
    /// If there is no such rank, or the agent is gone.
    pub fn message<'a>(self, message: Message<'_, 'a>) -> Result<Pending<'a>, Error> {
        let (comm, timeout, blocking) = self.parts();
        comm.inner.start_message(message, timeout, blocking)
    }
}

impl Inner {
    fn start_message<'a>(
        self: &Arc<Inner>,
        message: Message<'_, 'a>,
        timeout: Option<Duration>,
        blocking: Blocking,
    ) -> Result<Pending<'a>, Error> {
        let timeout = timeout.unwrap_or_else(|| self.state().timeout);
        let start = |message: &PointToPoint<'_>| self.session.start_message(message, timeout, blocking);
        let (request, dtype, output) = match message {
            Message::Send { data, dest, tag } => {
                let (peer, tag, dtype) = (Some(self.peer("send", dest)?), Some(tag), data.dtype);
                let message = PointToPoint { name: "send", sends: true, data: data.bytes, peer, tag, dtype };
                (start(&message)?, dtype, None)
            }
            Message::Receive { data, source, tag } => {
                let peer = source.map(|source| self.peer("recv", source)).transpose()?;
                let dtype = data.dtype;
                let message = PointToPoint { name: "recv", sends: false, data: data.bytes, peer, tag, dtype };
                (start(&message)?, dtype, Some(data.bytes))
            }
        };
        Ok(Pending::of_message(Arc::clone(self), request, dtype, output))
    }

    fn peer(&self, name: &'static str, rank: usize) -> Result<u32, Error> {
        u32::try_from(rank).ok().filter(|_| rank < self.size()).ok_or_else(|| {
            self.wrong(name, format!("there is no rank {rank}; the ranks are 0 to {}", self.size() - 1))
        })
    }
}
