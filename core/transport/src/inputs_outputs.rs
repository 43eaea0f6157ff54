//! The inputs and outputs of a stream's machines.

use crate::packet::{Packet, PacketBody};
use core::ops::Range;
use core::time::Duration;

/// An event for a [`crate::Sender`] or a [`crate::Receiver`].
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A packet of this stream arrived.
    Packet {
        /// The packet.
        packet: &'a Packet,
        /// Length of its payload in bytes.
        payload: usize,
    },
    /// The receiver joins late. Packets that arrived before the stream was open here were dropped,
    /// so their chunks must be requested.
    LateJoin,
    /// The source may send once its receivers are ready (see [`crate::StreamSpec::on_hold`]).
    Proceed,
    /// The source may send this many bytes per second from now on (see
    /// [`crate::RateSpec::ceiling`]).
    Ceiling(Option<u64>),
}

/// The destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketTarget {
    /// All receivers, over the stream's multicast tree.
    Tree,
    /// The other nodes of the sender's rack, over the rack's own tree (see
    /// [`crate::StreamSpec::rack_tree`]).
    Rack,
    /// One node.
    Node(u16),
}

/// An action that the driver must perform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a packet, followed by these bytes of the message. Sending may fail, and the packet may
    /// be lost.
    Transmit {
        /// The destination.
        to: PacketTarget,
        /// The packet.
        packet: Packet,
        /// The bytes of the message that are the payload; empty if the packet has none.
        payload: Range<u64>,
    },
    /// Copy the payload of the packet that was just handled to these bytes of the message.
    Store(Range<u64>),
    /// All bytes of the message are stored.
    Delivered,
    /// No other node needs the message from this node any longer, so its buffer may be reused.
    /// Follows `Delivered`.
    Released,
    /// The stream is over, and the driver may drop the machine. For a source, the driver must
    /// answer late reports with [`crate::Sender::settled_reply`].
    Closed,
    /// A peer has another call under the name of this stream. Reported once for each peer.
    Mismatch {
        /// The peer.
        node: u16,
        /// The peer's digest.
        digest: u64,
    },
    /// Chunks that were multicast arrive only along the chain, so a switch may have forgotten that
    /// this node is a member of the tree. The driver should renew the membership. Repeated while
    /// this goes on.
    TreeSilent,
    /// The stream failed. The machine only settles the other nodes and closes.
    Failed(StreamError),
}

/// The reason why a stream failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// No packet arrived from the source.
    #[error(
        "no packet arrived from source node {source_node} within {waited:?}; did its rank make the call?"
    )]
    NotStarted {
        /// The source.
        source_node: u16,
        /// How long the receiver waited.
        waited: Duration,
    },
    /// No further chunk arrived.
    #[error(
        "{missing} of {chunks} chunks from source node {source_node} are missing and none arrived for {waited:?}; \
         the last NAK went to node {last_upstream}"
    )]
    Stalled {
        /// The source.
        source_node: u16,
        /// Chunks that are missing.
        missing: u32,
        /// Chunks of the message.
        chunks: u32,
        /// The node to which the last NAK was sent.
        last_upstream: u16,
        /// Time since the last chunk arrived.
        waited: Duration,
    },
    /// Some receivers became silent before they had completed. All others have the message.
    #[error("nodes {nodes:?} did not complete the message and sent nothing for {waited:?}")]
    Incomplete {
        /// The incomplete receivers, in chain order.
        nodes: Vec<u16>,
        /// Time without a packet from them.
        waited: Duration,
    },
}

/// Outputs that are ready to be polled, and the fields that all packets of the node have in common.
#[derive(Debug)]
pub(crate) struct StreamOutbox {
    template: Packet,
    queue: std::collections::VecDeque<Output>,
    /// Peers with another digest that have been reported.
    mismatched: Vec<u16>,
}

impl StreamOutbox {
    /// Returns an empty outbox for the node `from`.
    pub(crate) fn new(id: crate::StreamId, from: u16, digest: u64) -> StreamOutbox {
        let template = Packet { id, from, digest, body: PacketBody::DigestMismatch };
        StreamOutbox { template, queue: std::collections::VecDeque::new(), mismatched: Vec::new() }
    }

    /// Returns a packet from this node with this body.
    pub(crate) fn packet(&self, body: PacketBody) -> Packet {
        Packet { body, ..self.template.clone() }
    }

    /// Queues a packet without payload.
    pub(crate) fn send(&mut self, to: PacketTarget, body: PacketBody) {
        let packet = self.packet(body);
        self.queue.push_back(Output::Transmit { to, packet, payload: 0..0 });
    }

    /// Queues any output.
    pub(crate) fn push(&mut self, output: Output) {
        self.queue.push_back(output);
    }

    /// Returns whether nothing is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the number of queued outputs.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Removes and returns the next output.
    pub(crate) fn pop(&mut self) -> Option<Output> {
        self.queue.pop_front()
    }

    /// Returns whether a packet belongs to the same call as this node's stream. If not, reports the
    /// mismatch to the driver and to the peer, once for each peer.
    pub(crate) fn is_same_call(&mut self, packet: &Packet) -> bool {
        if packet.digest == self.template.digest && packet.body != PacketBody::DigestMismatch {
            return true;
        }
        if packet.digest != self.template.digest && !self.mismatched.contains(&packet.from) {
            self.mismatched.push(packet.from);
            self.push(Output::Mismatch { node: packet.from, digest: packet.digest });
            self.send(PacketTarget::Node(packet.from), PacketBody::DigestMismatch);
        }
        false
    }
}
