//! Times a schedule on a network, in virtual time: what `cool simulate` prints, and what the planner's choices are
//! measured by.
//!
//! What agents do and wait for is [`timing`]'s business; here is what the network does. Messages are flows that
//! share links in a max-min fair way, those between two nodes taking turns on one connection; multicasts are
//! paced and cross every link of their tree once. Packets, losses and repair are left out: they are what
//! the crate's other half tries in detail.

mod carrier;
mod fabric;
pub(crate) mod flows;
mod grid;
mod limit;

pub use cool_collective::timing::{AgentCosts, MessageTiming, Timing, TimingError};
pub use fabric::{FabricModel, FabricModelError, FileError, Placement};
pub use grid::{GridError, Verdict, call_of, judge};
pub use limit::limit;

use cool_collective::{Layout, Schedule, timing};
use cool_machine::Duration;

/// Why a schedule cannot be timed on a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulateError {
    /// The network is too small for the group.
    #[error(transparent)]
    Fabric(#[from] FabricModelError),
    /// The schedule is none that can be timed.
    #[error(transparent)]
    Timing(#[from] TimingError),
}

/// Times a schedule for `layout`, whose racks are the fabric's in their order.
///
/// # Errors
/// If the schedule is not for this group or cannot be carried out, or the network is too small.
pub fn simulate(
    schedule: &Schedule,
    layout: &Layout,
    fabric: &FabricModel,
    costs: &AgentCosts,
) -> Result<Timing, SimulateError> {
    let carrier = carrier::Carrier::new(fabric, layout, costs)?;
    Ok(timing::time(schedule, layout, costs, carrier, Duration::MAX)?)
}

/// As [`simulate`], with every message on its way.
///
/// # Errors
/// As [`simulate`].
pub fn trace(
    schedule: &Schedule,
    layout: &Layout,
    fabric: &FabricModel,
    costs: &AgentCosts,
) -> Result<(Timing, Vec<MessageTiming>), SimulateError> {
    let carrier = carrier::Carrier::new(fabric, layout, costs)?;
    Ok(timing::trace(schedule, layout, costs, carrier)?)
}
