//! The commands that the handle sends to the engine's thread.
//!
//! The requests of ranks are listed in one place only, in [`cool_engine`] ([`RankRequest`] and
//! [`RankCommand`](cool_engine::RankCommand)). A command contains such a request and the channel
//! for its reply, or an input to which the engine does not reply.

use super::SharedSlice;
use super::reply::EngineReply;
use crate::shared_segment::SharedSegment;
use cool_engine::{CallRecord, GroupSpec, Input, MissingProbes, RankRequest};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

/// The channel for the probes that have not arrived at this node, and the number of those that
/// have.
pub(crate) type TreeProofReply = oneshot::Sender<(Vec<MissingProbes>, usize)>;

/// Permits a command of a user to wait for the engine, and counts it until the engine takes it.
pub(crate) type CommandPermit = OwnedSemaphorePermit;

/// A command in the queue of the engine's thread. The queue itself has no bound. It is bounded by
/// the permits of each user for the commands of ranks, and by the number of groups and connections
/// for all other commands.
pub(crate) struct QueuedCommand {
    pub(crate) command: EngineCommand,
    /// The permit of a rank's command. It is dropped when the engine takes the command.
    pub(crate) permit: Option<CommandPermit>,
}

/// A command for the engine's thread.
pub(crate) enum EngineCommand {
    /// Makes a group.
    MakeGroup(GroupSpec, oneshot::Sender<Result<(), MakeGroupError>>),
    /// Proves that the trees of a group work. The reply is dropped if the group is released.
    ProveTrees { group: u64, number: u64, time_max: Duration, reply: TreeProofReply },
    /// Reports the groups with trees from which this node receives nothing on this channel.
    ReportSilentTrees(mpsc::Sender<u64>),
    /// Passes a rank's request to the engine, which replies once.
    Request(RankRequest<SharedSlice>, EngineReply),
    /// Passes an input to the engine, which does not reply.
    Input(Input<'static>),
    /// Registers the segment in which the ranks of a group execute calls, so that they are woken if
    /// the group fails.
    Share { group: u64, segment: Arc<SharedSegment> },
    /// Asks for the lost ranks that made a group fail.
    LostRanks { group: u64, reply: oneshot::Sender<Vec<u32>> },
    /// Asks for the number of datagrams that the system has dropped because a socket's receive
    /// buffer was full.
    DroppedDatagrams(oneshot::Sender<u64>),
    /// Asks for the records of the latest calls.
    Trace { last: usize, group: Option<u64>, reply: oneshot::Sender<EngineTrace> },
}

/// The reasons why a group cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MakeGroupError {
    /// The engine refused it.
    #[error(transparent)]
    Refused(#[from] cool_engine::GroupError),
    /// The engine has stopped.
    #[error("the data engine of this agent has stopped; see the agent's log")]
    Stopped,
}

/// The records of the latest calls.
#[derive(Clone, Debug)]
pub struct EngineTrace {
    /// The engine's time zero, by this node's clock.
    pub origin: SystemTime,
    /// The calls, oldest first.
    pub records: Vec<Arc<CallRecord>>,
}
