//! One seeded clock and network that drives the protocols.
//!
//! A [`Network`] is racks of nodes under a core switch: every link has a rate, a finite queue, a delay and its
//! own chance to lose, double and hold back packets. Everything follows from one seed, so whatever went wrong
//! once goes wrong again. [`Broadcast`] runs one reliable multicast over it with real bytes and looks at every
//! receiver's; [`Scenario`] makes such broadcasts up from a seed.
//!
//! [`collectives`] drives whole collectives: every node has an engine and memory, over the same network and over
//! connections; ranks call, nodes die and start again, and every answer is judged.
//!
//! [`schedule`] times whole collectives on networks of any size, by flows instead of packets.

mod broadcast;
pub mod collectives;
mod flow;
mod network;
mod scenario;
pub mod schedule;
mod stream;
pub mod swarm;

pub use broadcast::{Broadcast, Outcome, Rival, Settings, Wrong, ideal};
pub use network::{Destination, Event, LinkSpec, Network, Shape};
pub use scenario::{Pattern, Scenario};
