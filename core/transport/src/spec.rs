//! The specification of a stream: its name, its chain and its limits. It does not change while the
//! stream runs.

use cool_types::wire::{DATAGRAM_FRAMING, STREAM_DATA_HEADER};
use core::time::Duration;
use std::sync::Arc;

/// Bytes of a part of a chunk. A packet with a part, its headers and its tag fits every path that
/// carries IPv6 (MTU 1280).
pub const PART_BYTES: u64 = 1152;

/// The name of a stream on the wire: one message of one call, from one source node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// The group whose ranks made the call.
    pub group: u64,
    /// The epoch of the group's membership.
    pub epoch: u32,
    /// The number of the call in its group.
    pub call: u64,
    /// The transfer in the call's schedule.
    pub transfer: u32,
    /// The node that sends the message.
    pub source: u16,
}

/// One position of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The node, as packets name it.
    pub node: u16,
    /// Its rack. Only equality matters, and the nodes of a rack must be adjacent in the chain.
    pub rack: u16,
}

/// The nodes of a stream in repair order: the source, then the other nodes rack by rack. A
/// *position* is an index into this list. A node requests missing chunks from the positions before
/// its own, the nearest first.
#[derive(Debug, PartialEq, Eq)]
pub struct Chain {
    hops: Vec<Hop>,
    /// Node and position, sorted by node.
    by_node: Vec<(u16, u16)>,
    /// For each position the first position of its rack and one past the last.
    racks: Vec<(u16, u16)>,
    /// The most reports that arrive at one node.
    fan_in: u32,
}

impl Chain {
    /// Returns a chain of these nodes, the source first.
    ///
    /// # Errors
    /// Returns an error if the chain is empty or too long, contains a node twice, or enters a rack
    /// twice.
    pub fn new(hops: Vec<Hop>) -> Result<Arc<Chain>, SpecError> {
        if hops.is_empty() {
            return Err(SpecError::EmptyChain);
        }
        if hops.len() > usize::from(u16::MAX) {
            return Err(SpecError::LongChain { nodes: hops.len() });
        }
        let mut by_node: Vec<(u16, u16)> = (0u16..).zip(&hops).map(|(at, hop)| (hop.node, at)).collect();
        by_node.sort_unstable();
        if let Some(twice) = by_node.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(SpecError::NodeTwice { node: twice[0].0 });
        }
        let mut seen: Vec<u16> = Vec::new();
        let mut racks: Vec<(u16, u16)> = Vec::with_capacity(hops.len());
        let mut fan_in = 0;
        for members in hops.chunk_by(|a, b| a.rack == b.rack) {
            seen.push(members[0].rack);
            let first = racks.len() as u16;
            racks.extend(members.iter().map(|_| (first, first + members.len() as u16)));
            fan_in = fan_in.max(members.len() as u32);
        }
        fan_in = fan_in.max(seen.len() as u32);
        seen.sort_unstable();
        if let Some(twice) = seen.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(SpecError::RackTwice { rack: twice[0] });
        }
        Ok(Arc::new(Chain { hops, by_node, racks, fan_in }))
    }

    /// Returns the number of nodes, including the source. It is at least one.
    #[allow(clippy::len_without_is_empty, reason = "a chain is never empty")]
    pub fn len(&self) -> u16 {
        self.hops.len() as u16
    }

    /// Returns the node at a position. The position must be in the chain.
    pub fn node(&self, position: u16) -> u16 {
        self.hops[usize::from(position)].node
    }

    /// Returns the position of a node, or `None` if it is not in the chain.
    pub fn position(&self, node: u16) -> Option<u16> {
        let found = self.by_node.binary_search_by_key(&node, |(node, _)| *node).ok()?;
        Some(self.by_node[found].1)
    }

    /// Returns the first position of the rack of a position. This is the head, to which the rack
    /// reports.
    pub fn head(&self, position: u16) -> u16 {
        self.racks[usize::from(position)].0
    }

    /// Returns one past the last position of the rack of a position.
    pub fn rack_end(&self, position: u16) -> u16 {
        self.racks[usize::from(position)].1
    }

    /// Returns the most reports that arrive at one node: the size of the largest rack, or the
    /// number of racks.
    pub(crate) fn fan_in(&self) -> u32 {
        self.fan_in
    }
}

/// The rate at which a source may send. Rates count whole Ethernet frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateSpec {
    /// Bytes per second of Ethernet frames that this stream may put on the source's link, if known.
    /// Without it, the source starts slowly and measures the rate of the path.
    pub ceiling: Option<u64>,
    /// Whether the path is known to carry the ceiling, so that the source starts at it. Otherwise
    /// the source measures the rate below the ceiling, which may belong to a fast port before a
    /// slow path. Rates that were configured or measured are verified; rates of ports are not.
    pub verified: bool,
    /// Bytes per second that an earlier stream over the same path reached
    /// ([`crate::Sender::found_rate`]), with which the source starts if the path is not verified. A
    /// rate is shared between successive connections for the same reason as in TCP (RFC 9040).
    pub found: Option<u64>,
    /// Whether the stream yields to all other traffic on the path (a less-than-best-effort service,
    /// RFC 6297).
    pub background: bool,
}

/// The timeouts and delays of a stream. Retransmission timeouts start at `initial_rto` and follow
/// measured round trips. The other values bound waits, or delay acknowledgments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamTimers {
    /// The retransmission timeout before any round trip has been measured.
    /// [`crate::Sender::retransmission_timeout`] and [`crate::Receiver::retransmission_timeout`]
    /// return the value that an earlier stream measured.
    pub initial_rto: Duration,
    /// How long a receiver waits for the first packet of the stream. It must be longer than
    /// `ready`.
    pub start: Duration,
    /// How long the source of a long message waits for all receivers to be ready before it sends
    /// anyway.
    pub ready: Duration,
    /// Time without progress after which the stream fails.
    pub stall: Duration,
    /// The ACK delay for messages up to [`StreamSpec::eager`]: completion is reported at multiples
    /// of this time, so that reports of many streams share a datagram. Losses at the end are
    /// detected that much later. Nodes may use different values; zero reports at once.
    pub ack_delay: Duration,
}

impl Default for StreamTimers {
    fn default() -> StreamTimers {
        StreamTimers {
            initial_rto: Duration::from_millis(20),
            start: Duration::from_secs(60),
            ready: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            ack_delay: Duration::ZERO,
        }
    }
}

/// The parameters of a stream, which its nodes must have in common unless a field permits
/// otherwise.
#[derive(Clone, Debug)]
pub struct StreamSpec {
    /// The name of the stream.
    pub id: StreamId,
    /// Length of the message in bytes. It may be zero.
    pub len: u64,
    /// The digest of the call. A peer with another digest is reported as a mismatch and otherwise
    /// ignored.
    pub digest: u64,
    /// Payload bytes of a full packet. For example, at MTU 1500 over IPv4: 1500 - 28 -
    /// [`crate::packet::DATA_HEADER`].
    pub chunk_bytes: u32,
    /// Further bytes of each packet: the driver's tag at its end, and the difference between the
    /// IPv6 and IPv4 headers.
    pub further_bytes: u32,
    /// The nodes of the stream, in repair order.
    pub chain: Arc<Chain>,
    /// Whether the stream has a multicast tree from the source to the others. Otherwise the chain
    /// delivers all chunks.
    pub multicast: bool,
    /// Whether this node's rack has a tree of its own, over which chunks that the rack is missing
    /// are multicast there. Nodes may use different values.
    pub rack_tree: bool,
    /// The rate at which the source may send.
    pub rate: RateSpec,
    /// Messages up to this length are sent at once; longer ones wait until the receivers are ready.
    pub eager: u64,
    /// Whether the source waits for [`crate::Input::Proceed`] before it sends.
    pub on_hold: bool,
    /// Whether long packets are known not to arrive at this node, so that its NAKs request parts.
    /// Nodes may use different values.
    pub in_parts: bool,
    /// The timeouts.
    pub timers: StreamTimers,
}

/// The reason why a specification is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The chain has no node.
    #[error("the chain is empty; it starts with the source")]
    EmptyChain,
    /// The chain is longer than the largest position.
    #[error("a chain of {nodes} nodes; at most 65535 fit")]
    LongChain {
        /// Its length.
        nodes: usize,
    },
    /// A node is in the chain more than once.
    #[error("node {node} is in the chain twice; list each node once")]
    NodeTwice {
        /// The node.
        node: u16,
    },
    /// The nodes of a rack are not adjacent.
    #[error("the chain enters rack {rack} twice; order it by rack")]
    RackTwice {
        /// The rack.
        rack: u16,
    },
    /// The source in the stream's name is not the first node of the chain.
    #[error("the stream is named after source node {named}, but its chain starts with node {first}")]
    OtherSource {
        /// The node in the stream's name.
        named: u16,
        /// The first node of the chain.
        first: u16,
    },
    /// The position is that of the source, or not in the chain.
    #[error("position {position} in a chain of {nodes} nodes is not a receiver's")]
    NoReceiver {
        /// The position.
        position: u16,
        /// Length of the chain.
        nodes: u16,
    },
    /// Chunks have no bytes.
    #[error("chunks of zero bytes; at MTU 1500 they hold 1424")]
    NoChunk,
    /// The message has more chunks than can be numbered.
    #[error("{len} bytes in chunks of {chunk_bytes} are too many chunks; use larger chunks")]
    TooLong {
        /// Length of the message.
        len: u64,
        /// Bytes of a chunk.
        chunk_bytes: u32,
    },
}

impl StreamSpec {
    /// Returns the ACK delay of this message. Only short messages are delayed.
    pub(crate) fn ack_delay(&self) -> Duration {
        if self.len > self.eager { Duration::ZERO } else { self.timers.ack_delay }
    }

    /// Returns the number of chunks of the message. An empty message has one chunk without bytes.
    ///
    /// # Errors
    /// Returns an error if parts of the specification contradict each other.
    pub(crate) fn check(&self) -> Result<u32, SpecError> {
        let first = self.chain.node(0);
        if self.id.source != first {
            return Err(SpecError::OtherSource { named: self.id.source, first });
        }
        if self.chunk_bytes == 0 {
            return Err(SpecError::NoChunk);
        }
        let chunks = self.len.div_ceil(u64::from(self.chunk_bytes)).max(1);
        u32::try_from(chunks)
            .ok()
            .filter(|chunks| *chunks < u32::MAX)
            .ok_or(SpecError::TooLong { len: self.len, chunk_bytes: self.chunk_bytes })
    }

    /// Returns the bytes of the Ethernet frame of a full chunk.
    pub fn frame(&self) -> u64 {
        u64::from(self.chunk_bytes) + self.headers()
    }

    /// Returns the bytes of the Ethernet frame of a chunk in addition to its payload.
    pub(crate) fn headers(&self) -> u64 {
        u64::from(self.further_bytes) + STREAM_DATA_HEADER + DATAGRAM_FRAMING
    }

    /// Returns the bytes of the message that a chunk holds.
    pub(crate) fn chunk_range(&self, chunk: u32) -> core::ops::Range<u64> {
        let start = u64::from(chunk) * u64::from(self.chunk_bytes);
        start.min(self.len)..(start + u64::from(self.chunk_bytes)).min(self.len)
    }

    /// Returns the number of parts of a chunk.
    pub(crate) fn parts(&self, chunk: u32) -> u8 {
        let bytes = self.chunk_range(chunk);
        // Chunks that fit a datagram have at most 57 parts.
        u8::try_from((bytes.end - bytes.start).div_ceil(PART_BYTES)).unwrap_or(u8::MAX)
    }

    /// Returns the bytes of the message that a part of a chunk holds. Part 0 is the whole chunk.
    /// The result is empty if there is no such part.
    pub(crate) fn part_range(&self, chunk: u32, part: u8) -> core::ops::Range<u64> {
        let whole = self.chunk_range(chunk);
        let Some(before) = part.checked_sub(1) else { return whole };
        let start = (whole.start + u64::from(before) * PART_BYTES).min(whole.end);
        start..(start + PART_BYTES).min(whole.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hops(racks: &[(u16, u16)]) -> Vec<Hop> {
        racks.iter().map(|(node, rack)| Hop { node: *node, rack: *rack }).collect()
    }

    #[test]
    fn a_chain_returns_positions_and_rack_heads() {
        let chain = Chain::new(hops(&[(9, 1), (4, 1), (7, 0), (2, 0), (3, 0)])).unwrap();
        assert_eq!(chain.position(7), Some(2));
        assert_eq!(chain.position(8), None);
        assert_eq!((0..5).map(|p| chain.head(p)).collect::<Vec<_>>(), [0, 0, 2, 2, 2]);
        assert_eq!((chain.rack_end(1), chain.rack_end(2)), (2, 5));
        assert_eq!(chain.fan_in(), 3);
    }

    #[test]
    fn contradictions_in_a_chain_are_refused_by_name() {
        assert_eq!(Chain::new(vec![]).unwrap_err(), SpecError::EmptyChain);
        assert_eq!(Chain::new(hops(&[(1, 0), (1, 1)])).unwrap_err(), SpecError::NodeTwice { node: 1 });
        assert_eq!(
            Chain::new(hops(&[(1, 0), (2, 1), (3, 0)])).unwrap_err(),
            SpecError::RackTwice { rack: 0 }
        );
    }
}
