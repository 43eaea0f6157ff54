//! Times a schedule on a network, in virtual time: what `cool simulate` prints, and what the planner's choices are
//! measured by.
//!
//! It follows the agents' engine and transport: what they wait for and in which order they send. Messages are
//! flows that share links in a max-min fair way, those between two nodes taking turns on one connection; multicasts
//! are paced and cross every link of their tree once. Packets, losses and repair are left out: they are
//! what the crate's other half tries in detail.

mod costs;
mod fabric;
mod flows;
mod index;
mod limit;
mod world;

pub use costs::Costs;
pub use fabric::{Fabric, FabricError, Placement};
pub use limit::limit;

use cool_collective::{Layout, Rank, Schedule};
use cool_machine::Duration;

/// What timing a schedule found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From the call to the answer to the slowest rank.
    pub time: Duration,
    /// The slowest rank.
    pub slowest: Rank,
    /// Events that were computed.
    pub events: u64,
}

/// Why a schedule cannot be timed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// It was not compiled for all ranks, or is too long to be numbered.
    #[error("the schedule is not for all ranks of the group, or has more than 4294967295 actions; compile for all, in larger segments")]
    Incomplete,
    /// The network is too small for the group.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Some action never becomes possible.
    #[error("the schedule comes to a stop: {rank} waits for ever in action {action}")]
    Stuck {
        /// A rank that waits.
        rank: Rank,
        /// In this action.
        action: u32,
    },
}

/// Times a schedule for `layout`, whose racks are the fabric's in their order.
///
/// # Errors
/// If the schedule is not for this group or cannot be carried out, or the network is too small.
pub fn time(
    schedule: &Schedule,
    layout: &Layout,
    fabric: &Fabric,
    costs: &Costs,
) -> Result<Timing, TimingError> {
    world::World::new(schedule, layout, fabric, costs)?.run()
}
