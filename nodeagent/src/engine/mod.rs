//! The engine for the rest of the agent: a handle to the thread on which `net` drives
//! `cool_engine`.

mod command;
mod config;
mod handle;
mod memory;
mod reply;
mod traffic;

pub(crate) use command::{CommandPermit, EngineCommand, QueuedCommand, TreeProofReply};
pub use command::{EngineTrace, MakeGroupError};
pub use config::{EngineConfig, StartError};
pub use cool_engine::{
    CallRecord, DEFAULT_PEER_TIMEOUT, DEFAULT_TIMEOUT, DataArrival, GroupKey, GroupSpec, MemberSpec,
    RankTimes, TreeScope, TreeSpec, WatchReport,
};
pub(crate) use cool_engine::{RankCommand, RankRequest, wrong_plan};
pub(crate) use handle::DroppedDatagrams;
pub use handle::EngineHandle;
#[cfg(test)]
pub(crate) use handle::tests::stuck_engine;
pub(crate) use memory::{Mapping, zeros};
pub use memory::{OutsideRegion, RankMemory, SharedSlice};
pub(crate) use reply::EngineReply;
pub(crate) use traffic::{RefusalCounters, RefusalReason, TrafficCounters};

/// A collective call of a local rank, with its buffers.
pub type MappedCallRequest = cool_engine::CallRequest<SharedSlice>;

/// A message that a local rank sends or receives, with its buffer.
pub type MappedTransferRequest = cool_engine::TransferRequest<SharedSlice>;
