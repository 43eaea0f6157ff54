//! The engine as the rest of the agent sees it: a handle to the thread on which `net` drives `cool_engine`.

mod handle;
mod memory;
mod traffic;

pub(crate) use cool_engine::wrong_plan;
pub use cool_engine::{
    Arrival, CallRecord, DEFAULT_PEER_TIMEOUT, DEFAULT_TIMEOUT, GroupKey, GroupSpec, MemberSpec, RankTimes,
    TreeScope, TreeSpec, WatchReport,
};
pub(crate) use handle::Command;
pub use handle::{EngineConfig, EngineHandle, GroupError, StartError, Trace};
pub(crate) use memory::{Mapping, zeros};
pub use memory::{Memory, OutsideRegion, SharedSlice};
pub(crate) use traffic::{Refusals, Refused, TrafficCounters};

/// One collective as one local rank calls it, with its buffers.
pub type CallRequest = cool_engine::CallRequest<SharedSlice>;

/// One message as one local rank sends or receives it, with its buffer.
pub type TransferRequest = cool_engine::TransferRequest<SharedSlice>;
