//! Drives the swarm: in rounds, as its paper counts, and over links with rates.

mod links;
mod memory;
mod rounds;
mod scenario;

pub use links::{Distribution, DistributionError, DistributionOutcome};
pub use rounds::{Gossip, GossipOutcome, GossipStall};
