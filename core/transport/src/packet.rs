//! The packets of a stream and their bytes. Decoding is strict: what is not exactly a packet is an error.
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
//! and goes on by type:
//!
//! | type | name | bytes after the first 40 |
//! | --- | --- | --- |
//! | 1 | data | chunk u32, echo or stamp u16, via u8 (0 tree, 1 answer, 2 forwarded, 3 rack), zero u8, payload |
//! | 2 | announce | sent u32, serial u16, flags u8 (1 begun, 2 answer to the source), zero u8 |
//! | 3 | NAK | serial u16, flags u8 (1 forward_live), count u8, count x (first chunk u32, one past the last u32) |
//! | 4 | NAK confirm | echo u16, zero u8, count u8, count x (first chunk u32, one past the last u32) |
//! | 5 | report | rounds u32, loss u16, spacing u32, delay u16, echo u16, alive count u8, complete count u8, counts x (position u16, one past the last u16) |
//! | 6 | settled | zero u8, count u8, count x (position u16, one past the last u16) |
//! | 7 | digest mismatch | nothing |
//! | 8 | ping | nothing |
//! | 9 | ping answer | incarnation u64 |
//!
//! Ranges are not empty, ascend and do not touch.

mod codec;

pub(crate) use codec::{is_data, prefix};

use crate::spec::StreamId;
use cool_types::wire;
use core::ops::Range;

/// Bytes before the payload of a data packet.
pub const DATA_HEADER: usize = wire::STREAM_DATA_HEADER as usize;
/// Bytes of Ethernet, IPv4 and UDP headers around a packet.
pub const FRAMING: usize = wire::DATAGRAM_FRAMING as usize;
/// Longest packet that is not data.
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
    /// What it says.
    pub body: PacketBody,
}

/// What a packet says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PacketBody {
    /// A chunk; the payload follows.
    Data {
        /// Which chunk.
        chunk: u32,
        /// Serial of the request that it answers, zero if none; over the tree, the source's clock in units of
        /// 2^14 nanoseconds.
        echo: u16,
        /// The way it came.
        via: Via,
    },
    /// Source to receivers: how far the stream is.
    Announce {
        /// Chunks that have been multicast.
        sent: u32,
        /// To be echoed in a report.
        serial: u16,
        /// Whether sending has begun; before, the source waits for receivers to be ready.
        begun: bool,
        /// Whether to answer the source at once, past the head of the rack.
        answer: bool,
    },
    /// To a node nearer the source: chunks that the sender of this packet lacks.
    Nak {
        /// To be echoed in the answers.
        serial: u16,
        /// Forward also what comes over the tree: the requester does not hear it.
        forward_live: bool,
        /// The chunks.
        chunks: Vec<Range<u32>>,
    },
    /// Answer to a request: these chunks are not here yet and will be forwarded when they come.
    NakConfirm {
        /// Serial of the request; zero from a node that only says that it is there.
        echo: u16,
        /// The chunks.
        chunks: Vec<Range<u32>>,
    },
    /// Towards the source: how nodes are doing, by position.
    Report {
        /// Rounds of multicast chunks that have passed; zero if none is told of.
        rounds: u32,
        /// Worst loss seen over the tree among those that hear at least half, in 65535ths.
        loss: u16,
        /// Longest mean time between the chunks of that round in their order, in nanoseconds, among the same.
        spacing: u32,
        /// Longest time that all chunks of that round waited in queues, in units of 2^14 nanoseconds, among the
        /// same.
        delay: u16,
        /// Serial of the announcement that it answers; zero if none.
        echo: u16,
        /// Positions that have been heard of since the last report.
        alive: Vec<Range<u16>>,
        /// Positions that hold the whole message.
        complete: Vec<Range<u16>>,
    },
    /// From the source outwards: positions of which it needs to hear no more.
    Settled {
        /// The positions.
        positions: Vec<Range<u16>>,
    },
    /// The stream of this name is another call here; see the digest.
    DigestMismatch,
    /// Of no stream: is a node of the group there?
    Ping,
    /// It is; otherwise the same as the ping that it answers.
    PingAnswer {
        /// Which of the node's agents, see [`crate::unicast::AgentId`]: a later one than that of the group knows nothing of
        /// it.
        incarnation: u64,
    },
}

/// The way a chunk came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// Multicast by the source.
    Tree,
    /// Sent at once in answer to a request.
    Answer,
    /// Sent when the asked node had got it itself.
    Forwarded,
    /// Multicast in the rack by its first receiver, when that had got it itself.
    Rack,
}

/// Why bytes are no packet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// Not ours.
    #[error("not a stream packet (first bytes {0:02x?})")]
    Foreign(Vec<u8>),
    /// Another version of the protocol.
    #[error("stream packet of version {0}; this is version {VERSION}: run the same release on all nodes")]
    Version(u8),
    /// A type that this version does not have.
    #[error("stream packet of unknown type {0}")]
    Type(u8),
    /// Cut short.
    #[error("stream packet of {len} bytes is cut short; {needed} are needed")]
    Short {
        /// Its length.
        len: usize,
        /// What its fields need.
        needed: usize,
    },
    /// Bytes after the last field.
    #[error("stream packet has {0} bytes too many")]
    Trailing(usize),
    /// A field with a value that it cannot have.
    #[error("stream packet with a bad {0}")]
    Field(&'static str),
}
