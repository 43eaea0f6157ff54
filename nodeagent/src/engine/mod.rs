//! The engine as the rest of the agent sees it: a handle to the thread on which [`crate::net`] drives `cool_engine`.

mod handle;

pub(crate) use cool_engine::wrong_plan;
pub use cool_engine::{
    Arrival, CallRecord, CallRequest, DEFAULT_PEER_TIMEOUT, DEFAULT_TIMEOUT, GroupError, GroupSpec,
    HeapMemory, MemberSpec, Memory, OutsideRegion, RankTimes, SharedSlice, TransferRequest, TreeScope,
    TreeSpec,
};
pub(crate) use handle::Command;
pub use handle::{EngineConfig, EngineHandle, StartError, Trace};
