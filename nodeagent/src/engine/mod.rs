//! The engine: runs the schedules of the local ranks' calls over multicast, repair and unicast.
//!
//! Its core takes inputs with the time and answers with what to send, so it runs in tests without a
//! socket; `crate::net` is its driver. It knows nothing of processes, of the controller or of how memory is shared:
//! groups, calls and [`Memory`] are handed to it.

mod api;
mod core;
mod early;
mod fused;
mod group;
mod handle;
mod members;
mod memory;
mod peers;
mod program;
mod reduce;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
mod timers;
mod trace;
mod what;

pub use api::{
    CallRequest, DEFAULT_PEER_TIMEOUT, DEFAULT_TIMEOUT, EngineConfig, GroupError, GroupSpec, MemberSpec,
    TransferRequest, TreeScope, TreeSpec,
};
pub(crate) use core::{COPIES_BYTES, ConnectionId, Engine, Input, Output};
pub(crate) use handle::Command;
pub use handle::{EngineHandle, StartError, Trace};
pub use memory::{HeapMemory, Memory, OutsideRegion, SharedSlice};
pub use trace::{Arrival, CallRecord, RankTimes};
pub(crate) use what::wrong_plan;
