//! Drives the swarm: in rounds, as in its paper, and over links with rates.

mod distribution;
mod links;
mod memory;
mod rounds;
mod scenario;

use cool_swarm::Member;

pub use distribution::{DistributionError, DistributionOutcome, Liar, SwarmScenario};
pub use rounds::{Gossip, GossipOutcome, GossipStall};

/// Returns the members of racks with the given numbers of nodes, rack by rack.
fn members(racks: &[u32]) -> Vec<Member> {
    let of_rack = |(rack, nodes): (u32, &u32)| (0..*nodes).map(move |slot| Member { rack, slot });
    (0..).zip(racks).flat_map(of_rack).collect()
}

/// Returns the rack of each node.
fn racks_of_nodes(racks: &[u32]) -> Vec<usize> {
    members(racks).into_iter().map(|member| member.rack as usize).collect()
}
