//! Messages from one rank to another: sends, receives and probes.

use super::{Comm, Message, Pending, Probed, Received, SharedComm, Start};
use crate::Type;
use crate::call::{CallBlocking, PointToPointCall};
use crate::element::{Array, Element};
use crate::error::Error;
use cool_proto::local::Probe;
use std::sync::Arc;
use std::time::Duration;

impl Comm {
    /// Sends `data` to one rank, which must receive it with the same type and tag.
    ///
    /// When this returns, a small message has been sent, and a large one has been matched by a
    /// receive. Among the messages that match a receive, those from one rank are received in the
    /// order in which they were sent.
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
    /// If there is no such rank. Also if the rank is lost or does not receive the message in time;
    /// the group has failed then.
    pub fn send<T: Element>(&self, data: &[T], dest: usize, tag: u32) -> Result<(), Error> {
        self.waiting().send(data, dest, tag)?.wait()
    }

    /// As [`Comm::send`], but returns only when a receive has matched the message, even if it is
    /// short (MPI's `Ssend`).
    ///
    /// # Errors
    /// As [`Comm::send`]. Also if the agent is of an earlier release.
    pub fn ssend<T: Element>(&self, data: &[T], dest: usize, tag: u32) -> Result<(), Error> {
        self.waiting().ssend(data, dest, tag)?.wait()
    }

    /// Waits for a message that a receive would match, and returns its sender, tag and length, for
    /// example to allocate memory for it.
    ///
    /// `None` as `source` or `tag` matches any. The message stays queued, so another thread may
    /// receive it first.
    ///
    /// ```
    /// # fn main() -> Result<(), cool::Error> {
    /// # cool::launch(|comm| -> Result<(), cool::Error> {
    /// let sent = comm.start().send(&vec![1u8; comm.rank()], (comm.rank() + 1) % comm.size(), 7)?;
    /// let coming = comm.probe(None, 7)?;
    /// let mut data = vec![0u8; coming.bytes];
    /// comm.recv(&mut data, coming.source, coming.tag)?;
    /// assert_eq!(data.len(), coming.source);
    /// sent.wait()
    /// # })?.into_iter().collect()
    /// # }
    /// ```
    ///
    /// # Errors
    /// If there is no such rank, or the agent is of an earlier release. Also if the rank is lost or
    /// sends no message in time; the group has failed then.
    pub fn probe(
        &self,
        source: impl Into<Option<usize>>,
        tag: impl Into<Option<u32>>,
    ) -> Result<Probed, Error> {
        let probed = self.inner.probe("probe", (source.into(), tag.into()), Probe::Waits)?;
        probed.ok_or_else(|| {
            self.inner.argument_error("probe", "the agent replied without a message".to_owned())
        })
    }

    /// As [`Comm::probe`], but does not wait: returns `None` if there is no such message yet.
    ///
    /// # Errors
    /// If there is no such rank, the group has failed, or the agent is of an earlier release.
    pub fn iprobe(
        &self,
        source: impl Into<Option<usize>>,
        tag: impl Into<Option<u32>>,
    ) -> Result<Option<Probed>, Error> {
        self.inner.probe("iprobe", (source.into(), tag.into()), Probe::AtOnce)
    }

    /// Receives a message of at most `data.len()` elements. `None` as `source` or `tag` matches
    /// any.
    ///
    /// # Errors
    /// If there is no such rank. Also if the rank is lost, sends no message in time, or sends
    /// another type; the group has failed then. If the message is longer than `data`, the message
    /// is lost but the group stays usable
    /// ([`FailureKind::Truncated`](crate::FailureKind::Truncated)).
    pub fn recv<T: Element>(
        &self,
        data: &mut [T],
        source: impl Into<Option<usize>>,
        tag: impl Into<Option<u32>>,
    ) -> Result<Received, Error> {
        self.waiting().recv(data, source, tag)?.received()
    }

    /// Sends or receives any message, with an array of a type that is known only at run time.
    /// Returns the received message; for a send, a message of 0 elements from rank 0.
    ///
    /// # Errors
    /// As [`Comm::send`] and [`Comm::recv`].
    pub fn message(&self, message: Message<'_, '_>) -> Result<Received, Error> {
        self.waiting().message(message)?.received()
    }
}

impl Start<'_> {
    /// Starts [`Comm::send`].
    ///
    /// # Errors
    /// If there is no such rank, or the agent is unreachable.
    pub fn send<T: Element>(self, data: &[T], dest: usize, tag: u32) -> Result<Pending<'static>, Error> {
        self.message(Message::Send { data: data.into(), dest, tag })
    }

    /// Starts [`Comm::ssend`].
    ///
    /// # Errors
    /// If there is no such rank, or the agent is unreachable or of an earlier release.
    pub fn ssend<T: Element>(self, data: &[T], dest: usize, tag: u32) -> Result<Pending<'static>, Error> {
        self.message(Message::SynchronousSend { data: data.into(), dest, tag })
    }

    /// Starts [`Comm::recv`]. [`Pending::received`] returns the message, and [`Pending::cancel`]
    /// cancels the receive.
    ///
    /// # Errors
    /// If there is no such rank, or the agent is unreachable.
    pub fn recv<T: Element>(
        self,
        data: &mut [T],
        source: impl Into<Option<usize>>,
        tag: impl Into<Option<u32>>,
    ) -> Result<Pending<'_>, Error> {
        self.message(Message::Receive { data: data.into(), source: source.into(), tag: tag.into() })
    }

    /// Starts any message, with an array of a type that is known only at run time.
    ///
    /// # Errors
    /// If there is no such rank, or the agent is unreachable.
    pub fn message<'a>(self, message: Message<'_, 'a>) -> Result<Pending<'a>, Error> {
        let (comm, timeout, blocking) = self.parts();
        comm.inner.start_message(message, timeout, blocking)
    }
}

impl SharedComm {
    fn start_message<'a>(
        self: &Arc<SharedComm>,
        message: Message<'_, 'a>,
        timeout: Option<Duration>,
        blocking: CallBlocking,
    ) -> Result<Pending<'a>, Error> {
        let timeout = timeout.unwrap_or_else(|| self.state().timeout);
        let start = |message: &PointToPointCall<'_>| self.session.start_message(message, timeout, blocking);
        let send = |name, data: Array<'_>, (dest, tag), synchronous| {
            let (peer, dtype) = (Some(self.peer(name, dest)?), data.elements.carried_as());
            let (sends, probe, data, tag) = (true, Probe::Unspecified, data.bytes, Some(tag));
            start(&PointToPointCall { name, sends, synchronous, probe, data, peer, tag, dtype })
                .map(|request| (request, dtype, None))
        };
        let (request, dtype, output) = match message {
            Message::Send { data, dest, tag } => send("send", data, (dest, tag), false)?,
            Message::SynchronousSend { data, dest, tag } => {
                self.check_probes("ssend")?;
                send("ssend", data, (dest, tag), true)?
            }
            Message::Receive { data, source, tag } => {
                let name = "recv";
                let peer = source.map(|source| self.peer(name, source)).transpose()?;
                let dtype = data.elements.carried_as();
                let (sends, synchronous, probe) = (false, false, Probe::Unspecified);
                let bytes = &*data.bytes;
                let message =
                    PointToPointCall { name, sends, synchronous, probe, data: bytes, peer, tag, dtype };
                (start(&message)?, dtype, Some(data.bytes))
            }
        };
        Ok(Pending::for_message(Arc::clone(self), request, dtype, output))
    }

    /// Returns the message that a receive would match.
    fn probe(
        &self,
        name: &'static str,
        (source, tag): (Option<usize>, Option<u32>),
        probe: Probe,
    ) -> Result<Option<Probed>, Error> {
        self.check_probes(name)?;
        let peer = source.map(|source| self.peer(name, source)).transpose()?;
        let (sends, synchronous, dtype) = (false, false, Type::U8);
        let message = PointToPointCall { name, sends, synchronous, probe, data: &[], peer, tag, dtype };
        let timeout = self.state().timeout;
        let cost = self.session.start_message(&message, timeout, CallBlocking::Yes)?.finish(None)?;
        Ok(cost.arrived.map(|arrived| Probed {
            source: arrived.source as usize,
            tag: arrived.tag,
            bytes: arrived.bytes as usize,
        }))
    }

    pub(crate) fn check_probes(&self, name: &'static str) -> Result<(), Error> {
        if self.session.can_probe() {
            return Ok(());
        }
        let reason = "the agent of this node is of an earlier release, which does not support this; upgrade the agent first";
        Err(self.argument_error(name, reason.to_owned()))
    }

    fn peer(&self, name: &'static str, rank: usize) -> Result<u32, Error> {
        u32::try_from(rank).ok().filter(|_| rank < self.size()).ok_or_else(|| {
            self.argument_error(
                name,
                format!("there is no rank {rank}; the ranks are 0 to {}", self.size() - 1),
            )
        })
    }
}
