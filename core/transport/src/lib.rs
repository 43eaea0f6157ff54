//! Reliable multicast with chain repair, and unicast messages, as state machines.
//!
//! A *stream* is one message from a source node to the other nodes of a tree. The source ([`Sender`])
//! multicasts it once, paced. Each receiver ([`Receiver`]) knows which chunks it lacks and pulls them from
//! its predecessor in a rack-ordered chain while the stream still runs; what a whole rack has lost is multicast
//! there by its first receiver, if the rack has a tree of its own; one that never hears the multicast
//! completes by the chain alone, pipelined. Completion is reported rack by rack to the source, which then
//! settles the stream.
//!
//! What receivers tell the source and what it makes of it is in `feedback`, how fast it sends in `congestion`, what mends
//! losses in `repair`, and how long who waits for what before trying again in `retry`. Who belongs to a group is
//! `cool-membership`'s matter.
//!
//! The machines hold no payload: they name byte ranges and the driver moves the bytes. They never wait:
//! pacing is a deadline like any other. Left to the driver: sockets, the clock, buffers, and packets that
//! come for a stream which is not open yet.
//!
//! ```text
//! driver:  datagram -> Packet::decode_all -> machine of packet.id: handle(now, Input::Packet{..})
//!          poll(now) until idle:  Transmit -> Packet::encode, payload from the buffer, send
//!                                 Store    -> payload of the packet just handled into the buffer
//! ```
//!
//! [`Packet::encode`] appends to a buffer that the driver gives, and the payload is to follow there: a driver that sends
//! datagrams in batches has the packets encoded where they are sent from, without an allocation or a copy for each.
//!
//! [`tagged`] is what datagrams of a group with a key look like, and which of them have come before.
//!
//! [`unicast`] carries messages between two agents over a byte stream of their own, by the same rules.

#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what packets hold")]

mod congestion;
mod feedback;
mod fields;
mod intervals;
mod machine;
pub mod packet;
mod receiver;
mod repair;
mod retry;
mod rtt;
mod sender;
mod spec;
mod stats;
pub mod tagged;
pub mod unicast;

pub use machine::{Input, Output, PacketTarget, StreamError};
pub use packet::{Packet, PacketError};
pub use receiver::Receiver;
pub use sender::Sender;
pub use spec::{Chain, Hop, RateSpec, SpecError, StreamId, StreamSpec, StreamTimers};
pub use stats::{RatePhase, StreamStats};
