//! Estimates the time of a schedule in virtual time. This module models the work and the waiting of
//! agents. It uses [`ProgramProgress`](crate::ProgramProgress) to decide which action may start,
//! like the agents, and the [limits](cool_types::limits) to decide which messages wait for their
//! receivers. A [`NetworkModel`] decides how messages share the network: the planner's is fast, the
//! simulator's is exact.
//!
//! Packets, losses, repair, and the limit of the bounce buffers are not modeled.

mod agent_model;
mod costs;
mod credit;
mod index;
mod trace;

pub use costs::{AgentCosts, nanos, time_of};
pub use trace::MessageTiming;

use crate::layout::Layout;
use crate::schedule::{Rank, Schedule, Stripe};
use core::time::Duration;

/// A model of how messages move between nodes, which are numbered as in the layout. Times are in
/// nanoseconds.
pub trait NetworkModel {
    /// Returns the time that the last byte of a message of `bytes` is in transit if nothing delays
    /// it.
    fn latency(&self, from: usize, to: usize, bytes: u64) -> u64;

    /// Sends a message from one node to another.
    fn unicast(
        &mut self,
        now: u64,
        message: u32,
        ends: (usize, usize),
        bytes: u64,
        events: &mut NetworkEvents,
    );

    /// Multicasts a message from one node to several.
    fn multicast(
        &mut self,
        now: u64,
        message: u32,
        ends: (usize, &[usize]),
        what: MulticastMessage,
        events: &mut NetworkEvents,
    );

    /// Handles a [`NetworkEvent::Wake`] that the model has scheduled.
    fn wake(&mut self, now: u64, what: (u32, u32), events: &mut NetworkEvents);
}

/// A message that is sent over a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastMessage {
    /// Bytes of the message.
    pub bytes: u64,
    /// The number of ranks that share the tree, each with a message of its own.
    pub concurrent_senders: u32,
    /// The stripe, which selects the tree.
    pub stripe: Stripe,
}

/// An event on a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetworkEvent {
    /// The last byte of a message has left its sender.
    Departed {
        /// The message.
        message: u32,
    },
    /// The last byte of a message has arrived.
    Arrived {
        /// The message.
        message: u32,
        /// The index of the receiver.
        receiver: u32,
    },
    /// [`NetworkModel::wake`] must be called with these numbers.
    Wake(u32, u32),
}

/// Events of a network with their times. They must not be in the past.
#[derive(Debug, Default)]
pub struct NetworkEvents(Vec<(u64, NetworkEvent)>);

impl NetworkEvents {
    /// Schedules an event at a time.
    pub fn at(&mut self, time: u64, event: NetworkEvent) {
        self.0.push((time, event));
    }
}

/// The result of timing a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The time from the call until the slowest rank returns.
    pub time: Duration,
    /// The slowest rank.
    pub slowest: Rank,
    /// The number of events that were computed.
    pub events: u64,
}

/// The reason why a schedule cannot be timed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// The schedule was not compiled for all ranks, or has too many actions to be numbered.
    #[error(
        "the schedule is not for all ranks of the group, or has more actions than can be numbered; compile for all ranks, with larger segments"
    )]
    Incomplete,
    /// The schedule takes longer than the limit.
    #[error("the schedule takes longer than {0:?}")]
    Late(Duration),
    /// An action can never run.
    #[error("the schedule deadlocks: {rank} waits forever in action {action}")]
    Stuck {
        /// A rank that waits.
        rank: Rank,
        /// The action.
        action: u32,
    },
}

/// Returns the time of a schedule for `layout` on a network, unless it exceeds `most`.
///
/// # Errors
/// Returns an error if the schedule is not for this group, deadlocks, or takes longer than
/// `most`.
pub fn time(
    schedule: &Schedule,
    layout: &Layout,
    costs: &AgentCosts,
    network: impl NetworkModel,
    most: Duration,
) -> Result<Timing, TimingError> {
    agent_model::AgentModel::new(schedule, layout, costs, network)?.run(most)
}

/// Returns the same as [`time`], and every message with its timing, in the order of arrival.
///
/// # Errors
/// Returns the errors of [`time`].
pub fn trace(
    schedule: &Schedule,
    layout: &Layout,
    costs: &AgentCosts,
    network: impl NetworkModel,
) -> Result<(Timing, Vec<MessageTiming>), TimingError> {
    let mut agent_model = agent_model::AgentModel::new(schedule, layout, costs, network)?;
    agent_model.trace = Some(trace::MessageTrace::default());
    let timing = agent_model.run(Duration::MAX)?;
    Ok((timing, agent_model.trace.map(|trace| trace.messages).unwrap_or_default()))
}

#[cfg(test)]
mod tests;
