//! One end of a stream with the bytes that it sends or receives: does what the stream's machine asks, and
//! tells what that means for the call.

use super::memory::{HeapMemory, SharedSlice};
use cool_collective::{Layout, Stripe};
use cool_machine::{Duration, Machine, Poll, Time};
use cool_transport::packet::{Body, Via};
use cool_transport::{Input, Output, Packet, Receiver, Sender, StreamError, To};
use std::net::SocketAddrV4;

/// The source's or a receiver's machine.
#[derive(Debug)]
pub(super) enum End {
    Sender(Box<Sender>),
    Receiver(Box<Receiver>),
}

impl End {
    fn handle(&mut self, now: Time, input: Input<'_>) {
        match self {
            End::Sender(sender) => sender.handle(now, input),
            End::Receiver(receiver) => receiver.handle(now, input),
        }
    }

    fn poll(&mut self, now: Time) -> Poll<Output> {
        match self {
            End::Sender(sender) => sender.poll(now),
            End::Receiver(receiver) => receiver.poll(now),
        }
    }
}

/// Who waits for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// The action: its bytes are still to come, or still in use.
    Action,
    /// The rank: the action is done, but the rank's buffer is still in use.
    Rank,
    /// Nobody: the stream has a copy of its own, or is over.
    Nobody,
}

/// A source's claim on this node's link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// What it may send over its tree and what over its node's link, were it alone on that; as far as these are known.
    pub(super) tree: Option<u64>,
    pub(super) host: Option<u64>,
    /// Whether paths are known to carry as much.
    pub(super) verified: bool,
    /// Among how many ranks the schedule shares the receivers' links.
    pub(super) sharers: u32,
    /// Which part of a message it is.
    pub(super) stripe: Stripe,
}

/// The streams that a node is sending for the first time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sending {
    /// Of each stripe.
    streams: [u64; Layout::MOST_STRIPES as usize],
    /// In parts of [`WHOLE`].
    parts: u64,
}

/// Streams are counted in parts, of which a whole message's has so many: any number of stripes divides it.
const WHOLE: u64 = 840;

impl Share {
    /// What it may send beside what else this node sends.
    pub(super) fn ceiling(&self, sending: &Sending) -> Option<u64> {
        let streams = sending.streams[self.stripe.index as usize].max(1);
        let tree = self.tree.map(|rate| rate / streams);
        let sharing = (u64::from(self.sharers) * WHOLE).max(sending.parts).max(WHOLE);
        let of_host = |rate: u64| u128::from(rate) * u128::from(self.parts()) / u128::from(sharing);
        let host = self.host.map(|rate| of_host(rate) as u64);
        tree.into_iter().chain(host).min().map(|rate| rate.max(1))
    }

    fn parts(&self) -> u64 {
        WHOLE / u64::from(self.stripe.of)
    }
}

impl Sending {
    /// These and one more.
    pub(super) fn with(mut self, share: &Share) -> Sending {
        self.streams[share.stripe.index as usize] += 1;
        self.parts += share.parts();
        self
    }

    /// One of these has ended.
    pub(super) fn ends(&mut self, share: &Share) {
        self.streams[share.stripe.index as usize] -= 1;
        self.parts -= share.parts();
    }
}

/// An open stream.
#[derive(Debug)]
pub(super) struct Stream {
    end: End,
    /// The message.
    data: SharedSlice,
    /// Bytes of a copy of the message, for which room was taken.
    pub(super) copied: u64,
    /// The local rank and its action.
    pub(super) rank: u32,
    pub(super) action: u32,
    pub(super) waits: Waits,
    /// Of a source that has chunks to send for the first time.
    pub(super) sending: Option<Share>,
    /// Of a source with a tree.
    pub(super) tree: Option<SocketAddrV4>,
}

/// A packet to send.
pub(super) struct Outgoing {
    pub(super) to: To,
    pub(super) bytes: Vec<u8>,
    /// Whether it carries a part of the message.
    pub(super) data: bool,
}

/// What came of giving a stream's machine something to do.
#[derive(Default)]
pub(super) struct Turn {
    pub(super) packets: Vec<Outgoing>,
    pub(super) delivered: bool,
    pub(super) released: bool,
    pub(super) closed: bool,
    /// The source has sent its last chunk for the first time.
    pub(super) all_sent: bool,
    /// Peers that hold another call.
    pub(super) mismatches: Vec<u16>,
    pub(super) failed: Option<StreamError>,
    pub(super) multicast_bytes: u64,
    pub(super) resent: u64,
    pub(super) stored: u64,
    pub(super) repaired: u64,
    pub(super) deadline: Option<Time>,
}

impl Stream {
    pub(super) fn new(
        end: End,
        data: SharedSlice,
        (rank, action): (u32, u32),
        tree: Option<SocketAddrV4>,
    ) -> Stream {
        Stream { end, data, copied: 0, rank, action, waits: Waits::Action, sending: None, tree }
    }

    pub(super) fn is_receiver(&self) -> bool {
        matches!(self.end, End::Receiver(_))
    }

    /// Continues on a copy of the message, so that nobody waits for this stream.
    pub(super) fn copy(&mut self) {
        let mut copy = vec![0; self.data.bytes() as usize];
        self.data.read(0, &mut copy);
        self.copied = self.data.bytes();
        self.data = HeapMemory::slice(copy);
        self.waits = Waits::Nobody;
    }

    /// Nobody needs the message any more. Answers with the bytes of the copy, if there was one.
    pub(super) fn let_go(&mut self) -> u64 {
        self.data = HeapMemory::slice(Vec::new());
        std::mem::take(&mut self.copied)
    }

    /// Bytes of the message.
    pub(super) fn bytes(&self) -> u64 {
        self.data.bytes()
    }

    /// Whether this node has asked for anything again, or was asked.
    pub(super) fn needed_repair(&self) -> bool {
        match &self.end {
            End::Sender(sender) => sender.stats().served > 0,
            End::Receiver(receiver) => receiver.stats().naks > 0,
        }
    }

    /// The retry timer as measured by now.
    pub(super) fn retry_timer(&self) -> Duration {
        match &self.end {
            End::Sender(sender) => sender.retry_timer(),
            End::Receiver(receiver) => receiver.retry_timer(),
        }
    }

    /// Hands a packet to the machine and does what it asks.
    pub(super) fn packet(&mut self, now: Time, packet: &Packet, payload: &[u8]) -> Turn {
        self.end.handle(now, Input::Packet { packet, payload: payload.len() });
        let from_tree = matches!(packet.body, Body::Data { via: Via::Tree, .. });
        let mut turn = self.turn(now, payload);
        turn.repaired = if from_tree { 0 } else { turn.stored };
        turn
    }

    /// Hands something else to the machine and does what it asks.
    pub(super) fn input(&mut self, now: Time, input: Input<'_>) -> Turn {
        self.end.handle(now, input);
        self.turn(now, &[])
    }

    /// Does what the machine asks, until it is idle.
    pub(super) fn turn(&mut self, now: Time, payload: &[u8]) -> Turn {
        let mut turn = Turn::default();
        loop {
            match self.end.poll(now) {
                Poll::Idle(deadline) => {
                    turn.deadline = deadline;
                    return turn;
                }
                Poll::Output(Output::Transmit { to, packet, payload }) => {
                    self.transmit(to, &packet, payload, &mut turn);
                }
                Poll::Output(Output::Store(range)) => {
                    self.data.write(range.start, payload);
                    turn.stored += 1;
                }
                Poll::Output(Output::Delivered) => turn.delivered = true,
                Poll::Output(Output::Released) => turn.released = true,
                Poll::Output(Output::Closed) => turn.closed = true,
                Poll::Output(Output::Mismatch { node, .. }) => turn.mismatches.push(node),
                Poll::Output(Output::Failed(error)) => turn.failed = Some(error),
            }
        }
    }

    fn transmit(&mut self, to: To, packet: &Packet, payload: core::ops::Range<u64>, turn: &mut Turn) {
        if payload.end > self.data.bytes() {
            // Let go already: nobody needs it, whatever a late packet says.
            return;
        }
        let len = (payload.end - payload.start) as usize;
        let mut bytes = Vec::with_capacity(cool_transport::packet::MAX_CONTROL.max(64 + len));
        packet.encode(&mut bytes);
        self.data.append(payload.start, len, &mut bytes);
        let data = matches!(packet.body, Body::Data { .. });
        if data {
            match to {
                To::Tree => turn.multicast_bytes += len as u64,
                To::Rack | To::Node(_) => turn.resent += 1,
            }
            let first_time = to == To::Tree || self.tree.is_none();
            turn.all_sent |= first_time && payload.end == self.data.bytes();
        }
        turn.packets.push(Outgoing { to, bytes, data });
    }
}
