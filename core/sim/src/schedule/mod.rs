//! Times a schedule on a network, in virtual time. `cool simulate` prints the result, and [`judge`]
//! evaluates the planner's choices by it.
//!
//! [`timing`] models the work and the waits of agents; this module models the network. Messages are
//! flows that share links in a max-min fair way. Those between two nodes take turns on one
//! connection. Multicasts are paced and cross every link of their tree once. Packets, losses and
//! retransmissions are not modeled here; the rest of the crate simulates them in detail.

mod fabric;
mod flow_network;
pub(crate) mod flows;
mod limit;
mod planner_grid;

pub use cool_collective::timing::{AgentCosts, MessageTiming, Timing, TimingError};
pub use fabric::{FabricModel, FabricModelError, FileError, Placement};
pub use limit::limit;
pub use planner_grid::{GridError, Verdict, call_of, judge};

use cool_collective::{Layout, Schedule, timing};
use cool_machine::Duration;

/// Why a schedule cannot be timed on a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulateError {
    /// The network is too small for the group.
    #[error(transparent)]
    Fabric(#[from] FabricModelError),
    /// The schedule cannot be timed.
    #[error(transparent)]
    Timing(#[from] TimingError),
}

/// Returns the timing of a schedule for `layout`. Its racks must be those of the fabric, in the
/// same order.
///
/// # Errors
/// Fails if the schedule is not for this group or cannot be executed, or if the network is too
/// small.
pub fn simulate(
    schedule: &Schedule,
    layout: &Layout,
    fabric: &FabricModel,
    costs: &AgentCosts,
) -> Result<Timing, SimulateError> {
    let network = flow_network::FlowNetwork::new(fabric, layout, costs)?;
    Ok(timing::time(schedule, layout, costs, network, Duration::MAX)?)
}

/// Returns the timing as [`simulate`] does, together with that of every message.
///
/// # Errors
/// Fails as [`simulate`] does.
pub fn trace(
    schedule: &Schedule,
    layout: &Layout,
    fabric: &FabricModel,
    costs: &AgentCosts,
) -> Result<(Timing, Vec<MessageTiming>), SimulateError> {
    let network = flow_network::FlowNetwork::new(fabric, layout, costs)?;
    Ok(timing::trace(schedule, layout, costs, network)?)
}
