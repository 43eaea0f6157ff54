//! A simulator that drives the protocols with one seeded clock and network.
//!
//! In a [`PacketNetwork`], racks of nodes are connected by a core switch. Every link has a rate, a
//! finite queue, a delay, and probabilities of losing, duplicating and delaying packets.
//! Everything follows from one seed, so that any failure can be reproduced. [`Broadcast`] runs one
//! reliable multicast over the network with real bytes and checks those of every receiver.
//! [`Scenario`] draws such broadcasts from a seed.
//!
//! [`collectives`] runs complete collectives: every node has an engine and memory, over the same
//! network and over connections. Ranks make calls, nodes crash and restart, and every result is
//! checked.
//!
//! [`schedule`] computes the times of collectives on networks of any size, by flows instead of
//! packets.
//!
//! [`swarm`] runs distributions by coded gossip, in rounds and over links with rates.

mod broadcast;
mod broadcast_error;
pub mod collectives;
mod flow;
mod network;
mod scenario;
pub mod schedule;
mod stream;
pub mod swarm;

pub use broadcast::{Broadcast, BroadcastOutcome, BroadcastSettings, CrossTraffic, ideal};
pub use broadcast_error::BroadcastError;
pub use network::{Destination, Event, LinkSpec, PacketNetwork, Shape};
pub use scenario::{FaultPattern, Scenario};
