//! Reliable multicast with chain repair, and unicast messages, as state machines.
//!
//! A *stream* is one message from a source node to the other nodes of a tree. The source
//! ([`Sender`]) multicasts it once, at a controlled rate. Each receiver ([`Receiver`]) detects
//! which chunks are missing and requests them by a NAK from its predecessor in a rack-ordered
//! chain, while the stream is still running. Chunks that a whole rack is missing are multicast
//! there by its first receiver, if the rack has a tree of its own. A receiver that the multicast
//! does not reach completes through the chain alone, pipelined. Receivers report completion rack by
//! rack to the source, which then settles the stream.
//!
//! The module `feedback` contains the reports of receivers and the source's view of them,
//! `congestion` the sending rate, `repair` the recovery of losses, and `timeouts` all timeouts. The
//! membership of groups is in `cool-membership`.
//!
//! The machines hold no payload: they name byte ranges, and the driver moves the bytes. They never
//! wait, because pacing is a deadline like any other. The driver owns the sockets, the clock, the
//! buffers, and packets of streams that are not open yet.
//!
//! ```text
//! driver:  datagram -> Packet::decode_all -> machine of packet.id: handle(now, Input::Packet{..})
//!          poll(now) until idle:  Transmit -> Packet::encode, payload from the buffer, send
//!                                 Store    -> payload of the packet just handled into the buffer
//! ```
//!
//! [`Packet::encode`] appends to a buffer of the driver, and the driver must append the payload. A
//! driver that sends datagrams in batches can thus encode packets in place, without an allocation
//! or a copy for each.
//!
//! [`tagged`] is the wire format of the datagrams of a group with a key, and the detection of
//! replays.
//!
//! [`unicast`] carries messages between two agents over a byte stream.

#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what packets hold")]

mod congestion;
mod feedback;
mod fields;
mod inputs_outputs;
mod intervals;
pub mod packet;
mod receiver;
mod repair;
mod rtt;
mod sender;
mod spec;
mod stats;
pub mod tagged;
mod timeouts;
pub mod unicast;

pub use inputs_outputs::{Input, Output, PacketTarget, StreamError};
pub use packet::{Packet, PacketError};
pub use receiver::Receiver;
pub use sender::Sender;
pub use spec::{Chain, Hop, PART_BYTES, RateSpec, SpecError, StreamId, StreamSpec, StreamTimers};
pub use stats::{RatePhase, StreamStats};
