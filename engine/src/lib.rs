//! The engine: runs the schedules of the local ranks' calls over multicast, repair and unicast.
//!
//! It takes inputs with the time and answers with what to send, so it runs in tests without a
//! socket; sockets, threads and timers are its driver's (`cool_nodeagent::net`). It knows nothing of processes, of the controller or of how
//! memory is shared: groups, calls and [`Memory`] are handed to it.

mod api;
mod early;
mod engine;
mod fused;
mod group;
mod members;
mod memory;
mod peers;
mod program;
mod reduce;
mod stream;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod timers;
mod trace;
mod what;

pub use api::{
    CallRequest, DEFAULT_PEER_TIMEOUT, DEFAULT_TIMEOUT, GroupError, GroupSpec, MemberSpec, TransferRequest,
    TreeScope, TreeSpec, failure,
};
pub use engine::{COPIES_BYTES, ConnectionId, Engine, Input, Output};
pub use memory::{HeapMemory, Memory, OutsideRegion, SharedSlice};
pub use trace::{Arrival, CallRecord, RankTimes};
pub use what::wrong_plan;
