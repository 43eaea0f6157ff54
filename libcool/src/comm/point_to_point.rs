//! Messages from one rank to another.

use super::Pending;
use super::{Comm, SharedComm, Start};
use crate::Type;
use crate::call::{Blocking, PointToPointCall};
use crate::element::{Array, ArrayMut, Element};
use crate::error::Error;
use cool_proto::local::Probe;
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

/// A message that a receive would take; it stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The rank that sent it.
    pub source: usize,
    /// With this tag.
    pub tag: u32,
    /// Its length, whatever its elements are.
    pub bytes: usize,
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
    /// The same; done when a receive has taken it.
    SynchronousSend {
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

    /// [`Comm::send`], done when a receive has taken the message, however short it is (MPI's `Ssend`).
    ///
    /// # Errors
    /// As [`Comm::send`]; or if the agent is of an earlier release.
    pub fn ssend<T: Element>(&self, data: &[T], dest: usize, tag: u32) -> Result<(), Error> {
        self.waiting().ssend(data, dest, tag)?.wait()
    }

    /// Waits until there is a message that a receive would take, and tells which, for instance how much room it needs; either
    /// may be `None`: any. It stays there, but another thread may receive it first.
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
    /// If there is no such rank, it is gone, or sends nothing in time. The group has failed then. Or if the agent is of an earlier
    /// release.
    pub fn probe(
        &self,
        source: impl Into<Option<usize>>,
        tag: impl Into<Option<u32>>,
    ) -> Result<Probed, Error> {
        let probed = self.inner.probe("probe", (source.into(), tag.into()), Probe::Waits)?;
        probed.ok_or_else(|| {
            self.inner.argument_error("probe", "the agent answered without a message".to_owned())
        })
    }

    /// [`Comm::probe`] without waiting: `None` if there is no such message yet.
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

    /// Receives what a rank sends with a tag, at most as many elements as `data` has; either may be `None`: any.
    ///
    /// # Errors
    /// If there is no such rank, it is gone, sends nothing in time, or another type: the group has failed then. If it sends more
    /// than there is room for, that message is gone, and the group goes on
    /// ([`FailureKind::Truncated`](crate::FailureKind::Truncated)).
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

    /// [`Comm::ssend`].
    ///
    /// # Errors
    /// If there is no such rank, or the agent is gone or of an earlier release.
    pub fn ssend<T: Element>(self, data: &[T], dest: usize, tag: u32) -> Result<Pending<'static>, Error> {
        self.message(Message::SynchronousSend { data: data.into(), dest, tag })
    }

    /// [`Comm::recv`]; [`Pending::received`] tells what came, [`Pending::cancel`] takes it back.
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

impl SharedComm {
    fn start_message<'a>(
        self: &Arc<SharedComm>,
        message: Message<'_, 'a>,
        timeout: Option<Duration>,
        blocking: Blocking,
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

    /// What a receive would take.
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
        let cost = self.session.start_message(&message, timeout, Blocking::Yes)?.finish(None)?;
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
        let reason =
            "the agent of this node is of an earlier release, which does not know it; upgrade it first";
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
