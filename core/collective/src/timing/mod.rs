//! How long a schedule takes, in virtual time. What agents do and wait for is modelled here: which action may start is
//! [`ProgramProgress`](crate::ProgramProgress)'s to say, as for the agents, and from which length on messages wait for their receivers
//! the [limits](cool_types::limits)'. How messages share a network is told by a [`NetworkModel`]: the planner's, which is quick, or
//! the simulator's, which is exact.
//!
//! Left out are packets, losses and repair, and the bounce buffers' bound.

mod costs;
mod credit;
mod index;
mod trace;
mod world;

pub use costs::{AgentCosts, nanos, time_of};
pub use trace::MessageTiming;

use crate::layout::Layout;
use crate::schedule::{Rank, Schedule, Stripe};
use core::time::Duration;

/// How messages get from node to node (nodes as the layout numbers them). Times are in nanoseconds.
pub trait NetworkModel {
    /// How long the last byte of a message of `bytes` is under way if nothing holds it up.
    fn latency(&self, from: usize, to: usize, bytes: u64) -> u64;

    /// A message from one node to another is to be sent.
    fn unicast(
        &mut self,
        now: u64,
        message: u32,
        ends: (usize, usize),
        bytes: u64,
        events: &mut NetworkEvents,
    );

    /// A message from one node to several is to be multicast.
    fn multicast(
        &mut self,
        now: u64,
        message: u32,
        ends: (usize, &[usize]),
        what: MulticastMessage,
        events: &mut NetworkEvents,
    );

    /// The time of a [`NetworkEvent::Wake`] has come.
    fn wake(&mut self, now: u64, what: (u32, u32), events: &mut NetworkEvents);
}

/// A message that goes over a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastMessage {
    /// Bytes of the message.
    pub bytes: u64,
    /// How many share the tree, each with a message of its own.
    pub concurrent_senders: u32,
    /// Which tree.
    pub stripe: Stripe,
}

/// What happens on a network.
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
        /// At which of its receivers.
        receiver: u32,
    },
    /// The network wants to be called, with these numbers.
    Wake(u32, u32),
}

/// Events of a network with their times, none of them past.
#[derive(Debug, Default)]
pub struct NetworkEvents(Vec<(u64, NetworkEvent)>);

impl NetworkEvents {
    /// Something happens at a time.
    pub fn at(&mut self, time: u64, event: NetworkEvent) {
        self.0.push((time, event));
    }
}

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
    #[error(
        "the schedule is not for all ranks of the group, or has more actions than can be numbered; compile for all, in larger segments"
    )]
    Incomplete,
    /// It takes longer than was asked for.
    #[error("the schedule takes longer than {0:?}")]
    Late(Duration),
    /// Some action never becomes possible.
    #[error("the schedule comes to a stop: {rank} waits for ever in action {action}")]
    Stuck {
        /// A rank that waits.
        rank: Rank,
        /// In this action.
        action: u32,
    },
}

/// Times a schedule for `layout` on a network, unless it takes longer than `most`.
///
/// # Errors
/// If the schedule is not for this group, comes to a stop, or takes longer.
pub fn time(
    schedule: &Schedule,
    layout: &Layout,
    costs: &AgentCosts,
    network: impl NetworkModel,
    most: Duration,
) -> Result<Timing, TimingError> {
    world::World::new(schedule, layout, costs, network)?.run(most)
}

/// As [`time`], with every message on its way, in the order in which they come.
///
/// # Errors
/// As [`time`].
pub fn trace(
    schedule: &Schedule,
    layout: &Layout,
    costs: &AgentCosts,
    network: impl NetworkModel,
) -> Result<(Timing, Vec<MessageTiming>), TimingError> {
    let mut world = world::World::new(schedule, layout, costs, network)?;
    world.trace = Some(trace::MessageTrace::default());
    let timing = world.run(Duration::MAX)?;
    Ok((timing, world.trace.map(|trace| trace.messages).unwrap_or_default()))
}

#[cfg(test)]
mod tests;
