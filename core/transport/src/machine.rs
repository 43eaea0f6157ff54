//! What goes into a stream's machines and what comes out of them.

use crate::packet::{Packet, PacketBody};
use core::ops::Range;
use core::time::Duration;

/// What may happen to a [`crate::Sender`] or a [`crate::Receiver`].
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A packet of this stream came, and its payload.
    Packet {
        /// The packet.
        packet: &'a Packet,
        /// Length of its payload in bytes.
        payload: usize,
    },
    /// A receiver that joins late: packets of the stream came before it was open here and were not kept, so what they carried
    /// is to be asked for.
    LateJoin,
    /// The source may send, once its receivers are ready (see [`crate::StreamSpec::on_hold`]).
    Proceed,
    /// The source may send this many bytes per second from now on (see [`crate::RateSpec::ceiling`]).
    Ceiling(Option<u64>),
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketTarget {
    /// All receivers, over the stream's multicast tree.
    Tree,
    /// The other nodes of the sender's rack, over that rack's own tree (see [`crate::StreamSpec::rack_tree`]).
    Rack,
    /// One node.
    Node(u16),
}

/// What a machine asks its driver to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a packet, with these bytes of the message behind it. Sending may fail or the packet be lost.
    Transmit {
        /// Where to.
        to: PacketTarget,
        /// The packet.
        packet: Packet,
        /// Bytes of the message that are its payload; empty if none.
        payload: Range<u64>,
    },
    /// Copy the payload of the packet just handled to these bytes of the message.
    Store(Range<u64>),
    /// The message is here in full.
    Delivered,
    /// Nobody needs the message from here any more; it may be dropped. Comes after `Delivered`.
    Released,
    /// The stream is over; the machine may be dropped. For a source, [`crate::Sender::settled_reply`] goes on answering.
    Closed,
    /// A peer holds another call under this stream's name. Reported once for each peer.
    Mismatch {
        /// The peer.
        node: u16,
        /// Its digest.
        digest: u64,
    },
    /// The stream failed; the machine does nothing more but settle the others and close.
    Failed(StreamError),
}

/// Why a stream failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The source of this name never began.
    #[error("nothing came from source node {source_node} within {waited:?}; did its rank make the call?")]
    NotStarted {
        /// The source.
        source_node: u16,
        /// How long it was waited for.
        waited: Duration,
    },
    /// No chunk came any more.
    #[error(
        "{missing} of {chunks} chunks from source node {source_node} are missing and none came for {waited:?}; \
         the last NAK went to node {last_upstream}"
    )]
    Stalled {
        /// The source.
        source_node: u16,
        /// Chunks that are missing.
        missing: u32,
        /// Chunks of the message.
        chunks: u32,
        /// The node asked last.
        last_upstream: u16,
        /// How long nothing came.
        waited: Duration,
    },
    /// Some receivers fell silent before they had the message; all others have it.
    #[error("nodes {nodes:?} did not take the message and were silent for {waited:?}")]
    Incomplete {
        /// The receivers that did not complete, in chain order.
        nodes: Vec<u16>,
        /// How long they were silent.
        waited: Duration,
    },
}

/// The outputs that wait to be polled, and how to address them.
#[derive(Debug)]
pub(crate) struct StreamOutbox {
    template: Packet,
    queue: std::collections::VecDeque<Output>,
    /// Peers with another digest that have been reported.
    mismatched: Vec<u16>,
}

impl StreamOutbox {
    /// An empty box of the node `from`.
    pub(crate) fn new(id: crate::StreamId, from: u16, digest: u64) -> StreamOutbox {
        let template = Packet { id, from, digest, body: PacketBody::DigestMismatch };
        StreamOutbox { template, queue: std::collections::VecDeque::new(), mismatched: Vec::new() }
    }

    /// A packet from here that says `body`.
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

    /// Whether nothing is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many outputs wait.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// The next queued output.
    pub(crate) fn pop(&mut self) -> Option<Output> {
        self.queue.pop_front()
    }

    /// Whether a packet speaks of the same call. If not, says so once, to the driver and to the peer.
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
