//! One end of a stream with the bytes that it sends or receives: does what the stream's machine asks, and
//! tells what that means for the call.

use crate::failure::TrafficTotals;
use crate::machine::Output as EngineOutput;
use crate::members::Members;
use crate::memory::MemoryRange;
use crate::output_queue::{OutputQueue, ReceivedBytes};
use cool_machine::{Duration, Machine, Poll, Time};
use cool_transport::packet::{PacketBody, Via};
use cool_transport::{Input, Output, Packet, PacketTarget, Receiver, Sender, StreamError};
use cool_types::Operation;
use std::net::SocketAddr;

/// The source's or a receiver's machine.
#[derive(Debug)]
pub(crate) enum StreamEnd {
    Sender(Box<Sender>),
    Receiver(Box<Receiver>),
}

impl StreamEnd {
    fn handle(&mut self, now: Time, input: Input<'_>) {
        match self {
            StreamEnd::Sender(sender) => sender.handle(now, input),
            StreamEnd::Receiver(receiver) => receiver.handle(now, input),
        }
    }

    fn poll(&mut self, now: Time) -> Poll<Output> {
        match self {
            StreamEnd::Sender(sender) => sender.poll(now),
            StreamEnd::Receiver(receiver) => receiver.poll(now),
        }
    }
}

/// Who waits for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamHold {
    /// The action: its bytes are still to come, or still in use.
    Action,
    /// The rank: the action is done, but the rank's buffer is still in use.
    Rank,
    /// None: the stream has a copy of its own, or is over.
    None,
}

/// An open stream.
#[derive(Debug)]
pub(crate) struct MulticastStream {
    end: StreamEnd,
    /// The message.
    data: MemoryRange,
    /// Whether the message is a bounce buffer of the stream's own.
    bounced: bool,
    /// The operation of its call, under which what it sends is counted.
    pub(crate) operation: Operation,
    /// The local rank and its action.
    pub(crate) rank: u32,
    pub(crate) action: u32,
    pub(crate) hold: StreamHold,
    /// Of a source with a tree.
    tree: Option<SocketAddr>,
}

/// What came of giving a stream's machine something to do, besides what it sent and stored.
#[derive(Debug, Default)]
pub(crate) struct StreamEffects {
    pub(crate) delivered: bool,
    pub(crate) released: bool,
    pub(crate) closed: bool,
    /// The source has sent its last chunk for the first time.
    pub(crate) all_sent: bool,
    /// Peers that hold another call.
    pub(crate) mismatches: Vec<u16>,
    pub(crate) failed: Option<StreamError>,
    pub(crate) traffic: TrafficTotals,
    /// Chunks that came.
    pub(crate) stored: u64,
    pub(crate) deadline: Option<Time>,
}

impl MulticastStream {
    pub(crate) fn new(
        end: StreamEnd,
        data: MemoryRange,
        (operation, rank, action): (Operation, u32, u32),
        tree: Option<SocketAddr>,
    ) -> MulticastStream {
        let (bounced, hold) = (false, StreamHold::Action);
        MulticastStream { end, data, bounced, operation, rank, action, hold, tree }
    }

    pub(crate) fn is_receiver(&self) -> bool {
        matches!(self.end, StreamEnd::Receiver(_))
    }

    /// The message.
    pub(crate) fn data(&self) -> MemoryRange {
        self.data
    }

    /// Continues on a copy of the message, so that nobody waits for this stream.
    pub(crate) fn continue_on(&mut self, buffer: MemoryRange) {
        (self.data, self.bounced, self.hold) = (buffer, true, StreamHold::None);
    }

    /// None needs the message any more. Answers with the bounce buffer, if it was in one.
    pub(crate) fn release(&mut self) -> Option<MemoryRange> {
        let data = std::mem::replace(&mut self.data, MemoryRange::EMPTY);
        std::mem::take(&mut self.bounced).then_some(data)
    }

    /// Whether this node has asked for anything again, or was asked.
    pub(crate) fn needed_repair(&self) -> bool {
        match &self.end {
            StreamEnd::Sender(sender) => sender.stats().served > 0,
            StreamEnd::Receiver(receiver) => receiver.stats().naks > 0,
        }
    }

    /// The retry timer as measured by now.
    pub(crate) fn retransmission_timeout(&self) -> Duration {
        match &self.end {
            StreamEnd::Sender(sender) => sender.retransmission_timeout(),
            StreamEnd::Receiver(receiver) => receiver.retransmission_timeout(),
        }
    }

    /// Hands a packet to the machine and does what it asks.
    pub(crate) fn on_packet(
        &mut self,
        now: Time,
        packet: &Packet,
        payload: &ReceivedBytes,
        network: (&Members, &mut OutputQueue),
    ) -> StreamEffects {
        self.end.handle(now, Input::Packet { packet, payload: payload.len() });
        let mut effects = self.poll(now, payload, network);
        if !matches!(packet.body, PacketBody::Data { via: Via::Tree, .. }) {
            effects.traffic.chunks_repaired = effects.stored;
        }
        effects
    }

    /// Hands something else to the machine and does what it asks.
    pub(crate) fn input(
        &mut self,
        now: Time,
        input: Input<'_>,
        network: (&Members, &mut OutputQueue),
    ) -> StreamEffects {
        self.end.handle(now, input);
        self.poll(now, &ReceivedBytes::NONE, network)
    }

    /// Does what the machine asks, until it is idle; `payload` is that of the packet that it was handed last.
    pub(crate) fn poll(
        &mut self,
        now: Time,
        payload: &ReceivedBytes,
        (members, out): (&Members, &mut OutputQueue),
    ) -> StreamEffects {
        let mut effects = StreamEffects::default();
        loop {
            match self.end.poll(now) {
                Poll::Idle(deadline) => {
                    effects.deadline = deadline;
                    return effects;
                }
                Poll::Output(Output::Transmit { to, packet, payload }) => {
                    let address = match to {
                        PacketTarget::Tree => self.tree,
                        PacketTarget::Rack => members.rack_tree(),
                        PacketTarget::Node(node) => members.nodes.get(usize::from(node)).map(|n| n.udp),
                    };
                    if matches!(packet.body, PacketBody::Data { .. }) {
                        self.transmit((to, address), packet, payload, out, &mut effects);
                    } else if let Some(address) = address {
                        out.control(address, &packet);
                    }
                }
                Poll::Output(Output::Store(range)) => {
                    out.store(payload, self.data.part(range.start, range.end - range.start));
                    effects.stored += 1;
                }
                Poll::Output(Output::Delivered) => effects.delivered = true,
                Poll::Output(Output::Released) => effects.released = true,
                Poll::Output(Output::Closed) => effects.closed = true,
                Poll::Output(Output::Mismatch { node, .. }) => effects.mismatches.push(node),
                Poll::Output(Output::Failed(error)) => effects.failed = Some(error),
            }
        }
    }

    fn transmit(
        &self,
        (to, address): (PacketTarget, Option<SocketAddr>),
        packet: Packet,
        payload: core::ops::Range<u64>,
        out: &mut OutputQueue,
        effects: &mut StreamEffects,
    ) {
        if payload.end > self.data.len {
            // Released already: nobody needs it, whatever a late packet says.
            return;
        }
        let len = payload.end - payload.start;
        match to {
            PacketTarget::Tree => effects.traffic.bytes_multicast += len,
            PacketTarget::Rack | PacketTarget::Node(_) => effects.traffic.chunks_resent += 1,
        }
        let first_time = to == PacketTarget::Tree || self.tree.is_none();
        effects.all_sent |= first_time && payload.end == self.data.len;
        if let Some(to) = address {
            out.push(EngineOutput::Data { to, packet, payload: self.data.part(payload.start, len) });
        }
    }
}
