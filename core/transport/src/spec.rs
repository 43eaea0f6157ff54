//! What a stream is before it runs: its name, its chain, its limits. Nothing here changes while it runs.

use cool_types::wire::{DATAGRAM_FRAMING, STREAM_DATA_HEADER};
use core::time::Duration;
use std::sync::Arc;

/// The name of a stream on the wire: one message of one call, from one source node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// The group whose ranks made the call.
    pub group: u64,
    /// The version of the group's membership.
    pub epoch: u32,
    /// The number of the call in its group.
    pub call: u64,
    /// The transfer in the call's schedule.
    pub transfer: u32,
    /// The node that the message comes from.
    pub source: u16,
}

/// One place in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The node, as packets name it.
    pub node: u16,
    /// Its rack. Only equality matters; the nodes of a rack stand together.
    pub rack: u16,
}

/// The nodes of a stream in repair order: the source, then the others rack after rack. A *position* is an
/// index into it; a node is fed by the positions before its own, the nearest first.
#[derive(Debug, PartialEq, Eq)]
pub struct Chain {
    hops: Vec<Hop>,
    /// Node and position, by node.
    by_node: Vec<(u16, u16)>,
    /// For each position the first and one past the last position of its rack.
    racks: Vec<(u16, u16)>,
    /// The most reports that meet at one node.
    fan_in: u32,
}

impl Chain {
    /// A chain of these nodes, the source first.
    ///
    /// # Errors
    /// If it is empty or too long, a node stands in it twice, or a rack is entered twice.
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

    /// How many nodes stand in it, the source among them. At least one.
    #[allow(clippy::len_without_is_empty, reason = "a chain is never empty")]
    pub fn len(&self) -> u16 {
        self.hops.len() as u16
    }

    /// The node at a position of this chain.
    pub fn node(&self, position: u16) -> u16 {
        self.hops[usize::from(position)].node
    }

    /// Where a node stands, if it does.
    pub fn position(&self, node: u16) -> Option<u16> {
        let found = self.by_node.binary_search_by_key(&node, |(node, _)| *node).ok()?;
        Some(self.by_node[found].1)
    }

    /// The first position of the rack that a position is in: the head, to which the rack reports.
    pub fn head(&self, position: u16) -> u16 {
        self.racks[usize::from(position)].0
    }

    /// One past the last position of the rack that a position is in.
    pub fn rack_end(&self, position: u16) -> u16 {
        self.racks[usize::from(position)].1
    }

    /// The most reports that meet at one node: the size of the largest rack, or the number of racks.
    pub(crate) fn fan_in(&self) -> u32 {
        self.fan_in
    }
}

/// How fast a source may send. Rates count whole Ethernet frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateSpec {
    /// Bytes per second of Ethernet frames that this stream may put on the source's link, if it is known.
    /// Without it the source starts modestly and finds out.
    pub ceiling: Option<u64>,
    /// Whether the path is known to carry as much, so that the source starts there. Else it finds out what is carried
    /// below the ceiling, which may be that of a fast port before a slow path. Rates that were given or measured are verified;
    /// those of ports are not.
    pub verified: bool,
    /// Whether it gives way to whoever else uses the path (a less-than-best-effort service, RFC 6297).
    pub background: bool,
}

/// How long a stream waits for what. Retries are timed by measured round trips; these are where it begins
/// and where it gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamTimers {
    /// The retry timer before any round trip has been measured; [`crate::Sender::retransmission_timeout`] and
    /// [`crate::Receiver::retransmission_timeout`] tell what an earlier stream learned.
    pub initial_rto: Duration,
    /// How long a receiver waits for the first sign of the stream. Longer than `ready`.
    pub start: Duration,
    /// How long the source of a long message waits for all receivers to be ready before it goes anyway.
    pub ready: Duration,
    /// How long without progress before the stream fails.
    pub stall: Duration,
    /// ACK delay for messages up to [`StreamSpec::eager`]: their completion is reported on this grid of the clock, so that
    /// reports of many streams share a datagram. What is lost at the end is noticed that much later. Each node's own affair;
    /// zero: at once.
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

/// All that the nodes of a stream agree on before it runs.
#[derive(Clone, Debug)]
pub struct StreamSpec {
    /// Its name.
    pub id: StreamId,
    /// Length of the message in bytes; zero is a message too.
    pub len: u64,
    /// Digest of the call that the stream belongs to. A peer with another digest is reported, not believed.
    pub digest: u64,
    /// Payload bytes of a full packet. At MTU 1500 over IPv4: 1500 - 28 - [`crate::packet::DATA_HEADER`].
    pub chunk_bytes: u32,
    /// Bytes that each packet has beside: the driver's tag behind it, and what IPv6's header is longer than IPv4's.
    pub further_bytes: u32,
    /// Who takes part, in repair order.
    pub chain: Arc<Chain>,
    /// Whether there is a multicast tree from the source to the others. Without one the chain does it all.
    pub multicast: bool,
    /// Whether this node's rack has a tree of its own, over which what the rack has lost is mended there for all
    /// at once. Each node's own affair.
    pub rack_tree: bool,
    /// How fast the source may send.
    pub rate: RateSpec,
    /// Messages up to this length are sent at once; longer ones wait until the receivers are ready.
    pub eager: u64,
    /// Whether the source only gathers receivers until [`crate::Input::Proceed`].
    pub on_hold: bool,
    /// How long to wait for what.
    pub timers: StreamTimers,
}

/// Why a stream cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// There is no node in the chain.
    #[error("the chain is empty; it starts with the source")]
    EmptyChain,
    /// The chain is longer than positions can say.
    #[error("a chain of {nodes} nodes; at most 65535 fit")]
    LongChain {
        /// Its length.
        nodes: usize,
    },
    /// A node stands in the chain more than once.
    #[error("node {node} stands in the chain twice")]
    NodeTwice {
        /// The node.
        node: u16,
    },
    /// The nodes of a rack do not stand together.
    #[error("the chain enters rack {rack} twice; order it by rack")]
    RackTwice {
        /// The rack.
        rack: u16,
    },
    /// The stream names another source than its chain.
    #[error("the stream is named after source node {named}, but its chain starts with node {first}")]
    OtherSource {
        /// The node in the stream's name.
        named: u16,
        /// The first node of the chain.
        first: u16,
    },
    /// The receiver's position is the source's or not in the chain.
    #[error("position {position} in a chain of {nodes} is no receiver's")]
    NoReceiver {
        /// The position.
        position: u16,
        /// Length of the chain.
        nodes: u16,
    },
    /// Chunks of no bytes.
    #[error("chunks of zero bytes; at MTU 1500 they hold 1424")]
    NoChunk,
    /// More chunks than can be numbered.
    #[error("{len} bytes in chunks of {chunk_bytes} are too many chunks; use larger chunks")]
    TooLong {
        /// Length of the message.
        len: u64,
        /// Bytes of a chunk.
        chunk_bytes: u32,
    },
}

impl StreamSpec {
    /// The ACK delay of this message: only short ones wait for others.
    pub(crate) fn ack_delay(&self) -> Duration {
        if self.len > self.eager { Duration::ZERO } else { self.timers.ack_delay }
    }

    /// How many chunks the message has; one, without bytes, if it is empty.
    ///
    /// # Errors
    /// If the parts of the specification contradict each other.
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

    /// Bytes of the Ethernet frame of a full chunk.
    pub fn frame(&self) -> u64 {
        u64::from(self.chunk_bytes) + self.headers()
    }

    /// Bytes of the Ethernet frame of a chunk beside its payload.
    pub(crate) fn headers(&self) -> u64 {
        u64::from(self.further_bytes) + STREAM_DATA_HEADER + DATAGRAM_FRAMING
    }

    /// The bytes of a chunk.
    pub(crate) fn chunk_range(&self, chunk: u32) -> core::ops::Range<u64> {
        let start = u64::from(chunk) * u64::from(self.chunk_bytes);
        start.min(self.len)..(start + u64::from(self.chunk_bytes)).min(self.len)
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
