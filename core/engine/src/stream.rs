//! One end of a multicast stream together with the bytes that it sends or receives. It executes the
//! outputs of the stream's machine and returns their effects on the call.

use crate::engine_outbox::{EngineOutbox, ReceivedBytes};
use crate::failure::TrafficTotals;
use crate::inputs_outputs::Output as EngineOutput;
use crate::members::Members;
use crate::memory::MemoryRange;
use cool_collective::MulticastScope;
use cool_machine::{Duration, Machine, Poll, Time};
use cool_transport::packet::{PacketBody, Via};
use cool_transport::{Input, Output, Packet, PacketTarget, Receiver, Sender, StreamError};
use cool_types::Operation;
use std::net::SocketAddr;

/// The machine of the source or of a receiver.
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

/// The part of a call that waits for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamHold {
    /// The action: its bytes are still missing, or still in use.
    Action,
    /// The rank: the action has completed, but the rank's buffer is still in use.
    Rank,
    /// Neither: the stream has its own copy of the message, or has ended.
    None,
}

/// An open stream.
#[derive(Debug)]
pub(crate) struct MulticastStream {
    end: StreamEnd,
    /// The message.
    data: MemoryRange,
    /// Whether the message is in a bounce buffer that belongs to the stream.
    bounced: bool,
    /// The nodes among which it is sent.
    pub(crate) scope: MulticastScope,
    /// The operation of its call, under which its traffic is counted.
    pub(crate) operation: Operation,
    /// The local rank and its action.
    pub(crate) rank: u32,
    pub(crate) action: u32,
    pub(crate) hold: StreamHold,
    /// The trees that the stream uses until it ends, even if they are withdrawn meanwhile.
    trees: StreamTrees,
}

/// The addresses of the trees of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamTrees {
    /// The tree over which a source sends, if there is one.
    pub(crate) source: Option<SocketAddr>,
    /// The tree of this node's rack.
    pub(crate) rack: Option<SocketAddr>,
}

/// The effects of an input to a stream's machine, in addition to the data that was sent and stored.
#[derive(Debug, Default)]
pub(crate) struct StreamEffects {
    pub(crate) delivered: bool,
    pub(crate) released: bool,
    pub(crate) closed: bool,
    /// Whether the source has sent its last chunk for the first time.
    pub(crate) all_sent: bool,
    /// Whether multicasts do not arrive here although others receive them.
    pub(crate) tree_silent: bool,
    /// The peers that have made a different call.
    pub(crate) mismatches: Vec<u16>,
    pub(crate) failed: Option<StreamError>,
    pub(crate) traffic: TrafficTotals,
    /// The number of chunks that arrived.
    pub(crate) stored: u64,
    pub(crate) deadline: Option<Time>,
}

impl MulticastStream {
    pub(crate) fn new(
        end: StreamEnd,
        data: MemoryRange,
        (scope, operation, rank, action): (MulticastScope, Operation, u32, u32),
        trees: StreamTrees,
    ) -> MulticastStream {
        let (bounced, hold) = (false, StreamHold::Action);
        MulticastStream { end, data, bounced, scope, operation, rank, action, hold, trees }
    }

    pub(crate) fn is_receiver(&self) -> bool {
        matches!(self.end, StreamEnd::Receiver(_))
    }

    /// Returns the memory of the message.
    pub(crate) fn data(&self) -> MemoryRange {
        self.data
    }

    /// Continues with a copy of the message, so that the stream holds up neither its action nor its
    /// rank.
    pub(crate) fn continue_on(&mut self, buffer: MemoryRange) {
        (self.data, self.bounced, self.hold) = (buffer, true, StreamHold::None);
    }

    /// Gives up the message, because no receiver needs it any more. Returns its bounce buffer, if
    /// it was in one.
    pub(crate) fn release(&mut self) -> Option<MemoryRange> {
        let data = std::mem::replace(&mut self.data, MemoryRange::EMPTY);
        std::mem::take(&mut self.bounced).then_some(data)
    }

    /// Returns whether chunks were lost: whether the source has retransmitted chunks, or the
    /// receiver has sent NAKs.
    pub(crate) fn needed_repair(&self) -> bool {
        match &self.end {
            StreamEnd::Sender(sender) => sender.stats().served > 0,
            StreamEnd::Receiver(receiver) => receiver.stats().naks > 0,
        }
    }

    /// Returns whether a packet of the stream has arrived at this node that is longer than one with
    /// a part of a chunk.
    pub(crate) fn has_long_packets(&self) -> bool {
        matches!(&self.end, StreamEnd::Receiver(receiver) if receiver.has_long_packets())
    }

    /// Returns whether only short packets of the stream have arrived at this node.
    pub(crate) fn needs_parts(&self) -> bool {
        matches!(&self.end, StreamEnd::Receiver(receiver) if receiver.needs_parts())
    }

    /// Returns whether the latest multicasts of another node have arrived.
    pub(crate) fn hears_tree(&self) -> bool {
        matches!(&self.end, StreamEnd::Receiver(receiver) if receiver.hears_tree())
    }

    /// Returns whether the message arrived without any multicast although its source has a tree.
    pub(crate) fn misses_tree(&self) -> bool {
        matches!(&self.end, StreamEnd::Receiver(receiver) if receiver.misses_tree())
    }

    /// Returns the current estimate of the retransmission timeout.
    pub(crate) fn retransmission_timeout(&self) -> Duration {
        match &self.end {
            StreamEnd::Sender(sender) => sender.retransmission_timeout(),
            StreamEnd::Receiver(receiver) => receiver.retransmission_timeout(),
        }
    }

    /// Returns the tree of a source's stream and the bytes per second that it has found the tree to
    /// carry, if any receiver has reported.
    pub(crate) fn found_rate(&self) -> Option<(SocketAddr, u64)> {
        match &self.end {
            StreamEnd::Sender(sender) => Some((self.trees.source?, sender.found_rate()?)),
            StreamEnd::Receiver(_) => None,
        }
    }

    /// Hands a packet to the machine and executes its outputs.
    pub(crate) fn on_packet(
        &mut self,
        now: Time,
        packet: &Packet,
        payload: &ReceivedBytes,
        network: (&Members, &mut EngineOutbox),
    ) -> StreamEffects {
        self.end.handle(now, Input::Packet { packet, payload: payload.len() });
        let mut effects = self.poll(now, payload, network);
        if !matches!(packet.body, PacketBody::Data { via: Via::Tree, .. }) {
            effects.traffic.chunks_repaired = effects.stored;
        }
        effects
    }

    /// Hands another input to the machine and executes its outputs.
    pub(crate) fn input(
        &mut self,
        now: Time,
        input: Input<'_>,
        network: (&Members, &mut EngineOutbox),
    ) -> StreamEffects {
        self.end.handle(now, input);
        self.poll(now, &ReceivedBytes::NONE, network)
    }

    /// Executes the outputs of the machine until it is idle. `payload` must be that of the packet
    /// that was handed in last.
    pub(crate) fn poll(
        &mut self,
        now: Time,
        payload: &ReceivedBytes,
        (members, out): (&Members, &mut EngineOutbox),
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
                        PacketTarget::Tree => self.trees.source,
                        PacketTarget::Rack => self.trees.rack,
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
                Poll::Output(Output::TreeSilent) => effects.tree_silent = true,
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
        out: &mut EngineOutbox,
        effects: &mut StreamEffects,
    ) {
        if payload.end > self.data.len {
            // The message was released, so no receiver needs it. Late packets can be ignored.
            return;
        }
        let len = payload.end - payload.start;
        match to {
            PacketTarget::Tree => effects.traffic.bytes_multicast += len,
            PacketTarget::Rack | PacketTarget::Node(_) => effects.traffic.chunks_resent += 1,
        }
        let first_time = to == PacketTarget::Tree || self.trees.source.is_none();
        effects.all_sent |= first_time && payload.end == self.data.len;
        if let Some(to) = address {
            out.push(EngineOutput::Data { to, packet, payload: self.data.part(payload.start, len) });
        }
    }
}
