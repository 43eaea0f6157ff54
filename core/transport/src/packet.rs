//! The packets of a stream and their wire format. Decoding is strict: bytes that are not exactly a
//! packet are an error.
//!
//! Numbers are big-endian. Every packet starts with the same 40 bytes:
//!
//! | bytes | field |
//! | --- | --- |
//! | 0..2 | magic `C0 01` |
//! | 2 | version, 3 |
//! | 3 | type |
//! | 4..12 | group |
//! | 12..16 | epoch |
//! | 16..24 | call |
//! | 24..28 | transfer |
//! | 28..30 | source node |
//! | 30..32 | node that sent this packet |
//! | 32..40 | digest of the call |
//!
//! The remaining bytes depend on the type:
//!
//! | type | name | bytes after the first 40 |
//! | --- | --- | --- |
//! | 1 | data | chunk u32, echo or stamp u16, via u8 (0 tree, 1 answer, 2 forwarded, 3 rack), part u8, payload |
//! | 2 | announce | sent u32, serial u16, flags u8 (1 begun, 2 answer to the source), zero u8 |
//! | 3 | NAK | serial u16, flags u8 (1 forward_live, 2 in_parts), count u8, count x (first chunk u32, one past the last u32) |
//! | 4 | NAK confirm | echo u16, zero u8, count u8, count x (first chunk u32, one past the last u32) |
//! | 5 | report | rounds u32, loss u16, spacing u32, delay u16, echo u16, alive count u8, complete count u8, counts x (position u16, one past the last u16) |
//! | 6 | settled | zero u8, count u8, count x (position u16, one past the last u16) |
//! | 7 | digest mismatch | nothing |
//! | 8 | ping | nothing |
//! | 9 | ping answer | incarnation u64 |
//! | 10 | tree probe | payload |
//! | 11 | source active | flags u8 (1 ends) |
//! | 12 | source reply | u8: 0 received, 1 refused, 2 silent |
//!
//! Ranges must not be empty, must ascend, and must not touch.

mod codec;

pub(crate) use codec::{is_data, prefix};

use crate::spec::StreamId;
use cool_types::wire;
use core::ops::Range;

/// Bytes before the payload of a data packet.
pub const DATA_HEADER: usize = wire::STREAM_DATA_HEADER as usize;
/// Bytes of Ethernet, IPv4 and UDP headers around a packet.
pub const FRAMING: usize = wire::DATAGRAM_FRAMING as usize;
/// Length of the longest packet that is not data.
pub const MAX_CONTROL: usize = COMMON + 16 + 2 * MAX_RANGES * 4;
/// Most ranges in a list of a packet.
pub const MAX_RANGES: usize = 64;

pub(crate) const COMMON: usize = 40;
const MAGIC: [u8; 2] = [0xC0, 0x01];
const VERSION: u8 = 3;

/// A packet without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The stream.
    pub id: StreamId,
    /// The node that sent it.
    pub from: u16,
    /// The digest that the sender of this packet holds.
    pub digest: u64,
    /// The body, which depends on the type.
    pub body: PacketBody,
}

/// The type of a packet, with its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PacketBody {
    /// A chunk; the payload follows.
    Data {
        /// The chunk.
        chunk: u32,
        /// The serial of the NAK that it answers, or zero. Over the tree, the source's clock in
        /// units of 2^14 nanoseconds.
        echo: u16,
        /// How the chunk was sent.
        via: Via,
        /// Zero if the payload is the whole chunk. Otherwise it is a part of
        /// [`PART_BYTES`](crate::PART_BYTES) bytes, and the parts are numbered from 1.
        part: u8,
    },
    /// Sent by the source to receivers: the progress of the stream.
    Announce {
        /// Chunks that have been multicast.
        sent: u32,
        /// The serial that a report must echo.
        serial: u16,
        /// Whether sending has begun. Before that, the source waits for receivers to be ready.
        begun: bool,
        /// Whether to answer the source at once, bypassing the head of the rack.
        answer: bool,
    },
    /// Sent to a node nearer the source: chunks that are missing at the sender of this packet.
    Nak {
        /// The serial that answers must echo.
        serial: u16,
        /// Whether to forward chunks that arrive over the tree too, because the requester does not
        /// receive them.
        forward_live: bool,
        /// Whether to send the chunks in parts, because long packets do not arrive at the
        /// requester.
        in_parts: bool,
        /// The chunks.
        chunks: Vec<Range<u32>>,
    },
    /// Confirms a NAK: these chunks are not held yet and will be forwarded when they arrive.
    NakConfirm {
        /// The serial of the NAK, or zero if the node only shows that it is alive.
        echo: u16,
        /// The chunks.
        chunks: Vec<Range<u32>>,
    },
    /// Sent towards the source: the state of nodes, by position.
    Report {
        /// Rounds of multicast chunks that have passed, or zero if none is reported.
        rounds: u32,
        /// Worst loss over the tree among nodes that receive at least half, in 65534ths; 65535 if
        /// no loss is reported.
        loss: u16,
        /// Longest mean time between the chunks of that round, in their order, in nanoseconds,
        /// among the same nodes.
        spacing: u32,
        /// Longest queueing delay of the quickest chunk of that round, in units of 2^14
        /// nanoseconds, among the same nodes.
        delay: u16,
        /// The serial of the announcement that it answers, or zero.
        echo: u16,
        /// Positions from which packets have arrived since the last report.
        alive: Vec<Range<u16>>,
        /// Positions that hold the whole message.
        complete: Vec<Range<u16>>,
    },
    /// Sent from the source outwards: positions that need not report any more.
    Settled {
        /// The positions.
        positions: Vec<Range<u16>>,
    },
    /// The stream of this name belongs to another call at the sender; see the digest.
    DigestMismatch,
    /// Asks whether a node of the group is alive. Belongs to no stream.
    Ping,
    /// Answers a ping. All other fields are those of the ping.
    PingAnswer {
        /// The incarnation of the node's agent, see [`crate::unicast::AgentId`]. An agent with a
        /// later incarnation than the group's does not know the group.
        incarnation: u64,
    },
    /// Multicast to prove that a tree carries packets of this length; the payload is padding. It
    /// belongs to no stream: `call` is the number of the proof, or zero over a source-specific
    /// tree, and `transfer` the index of the tree.
    TreeProbe,
    /// Requests a node to join a source-specific tree with the sender of this packet as the source,
    /// or to leave it. Belongs to no stream: `transfer` is the index of the tree.
    SourceActive {
        /// Whether to leave the tree, because the sender does not multicast over it.
        ends: bool,
    },
    /// Tells the source of a source-specific tree whether its multicasts arrive. Belongs to no
    /// stream: `transfer` is the index of the tree.
    SourceReply(SourceReply),
}

/// Whether multicasts of a source over a source-specific tree arrive at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceReply {
    /// A probe has arrived.
    Received = 0,
    /// The node does not join, because it has joined as many sources as it may.
    Refused = 1,
    /// Multicasts no longer arrive.
    Silent = 2,
}

/// How a chunk was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// Multicast by the source.
    Tree,
    /// Sent at once in answer to a NAK.
    Answer,
    /// Forwarded when the node that confirmed the NAK received it.
    Forwarded,
    /// Multicast in the rack by its first receiver, when that node received it.
    Rack,
}

/// The reason why bytes are not a packet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The magic is wrong.
    #[error("not a stream packet (first bytes {0:02x?})")]
    Foreign(Vec<u8>),
    /// The packet has another version of the protocol.
    #[error("stream packet of version {0}; this is version {VERSION}: run the same release on all nodes")]
    Version(u8),
    /// The type is unknown.
    #[error("stream packet of unknown type {0}")]
    Type(u8),
    /// The packet is truncated.
    #[error("stream packet of {len} bytes is cut short; {needed} are needed")]
    Short {
        /// Its length.
        len: usize,
        /// Length that its fields need.
        needed: usize,
    },
    /// Bytes follow the last field.
    #[error("stream packet has {0} bytes too many")]
    Trailing(usize),
    /// A field has an invalid value.
    #[error("stream packet with a bad {0}")]
    Field(&'static str),
}
