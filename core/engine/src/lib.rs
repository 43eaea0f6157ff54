//! The engine of a node's agent: runs the schedules of its ranks' calls over multicast, repair and unicast.
//!
//! [`Engine`] is a [`Machine`](cool_machine::Machine): its driver hands it one [`Input`] with the time, then polls it until it
//! is idle, and does each [`Output`] in the order in which it comes. It holds no socket, thread or clock, and never touches
//! payload: it names [`MemoryRange`]s, and the driver copies, combines and sends what stands there. It knows nothing of
//! processes, of the controller or of how memory is shared.
//!
//! # A driver
//!
//! ```text
//! a rank calls:       register its buffers as MemoryId::Registered(n); handle(now, Input::Call{token, request})
//! a datagram came:    handle(now, Input::Datagram{from, bytes})
//! a connection read:  to the place that the last Await named if it named one, and what follows into a buffer;
//!                     handle(now, Input::Bytes{connection, placed, bytes})
//! then, each time, poll(now) until idle:
//!   Done              answer the rank, forget its buffers
//!   Data, Control     send a datagram: the packet encoded with its payload, or the packets
//!   Connect, Write, Hangup, Await      connections; every Write is answered by Written, at once or later
//!   Store             bytes of the Datagram or Bytes handled last go to their place, before the next such input
//!   Allocate, Free, Copy               the engine's own memory
//!   Work              small: do it now; large: on another thread. Then handle(now, Input::WorkDone(id)), or, of
//!                     Work::Prepare, handle(now, Input::Prepared(id, preparation.run()))
//!   GroupMade         listen to the trees, or tell who asked why not
//!   GroupFailed       wake the ranks that carry out calls of it themselves
//!   GroupForgotten    listen to them no more
//! and poll again at the time that came with idle, if no input comes before.
//! ```
//!
//! [`Input::WorkDone`] and [`Input::Written`] may be handed in between two outputs of one input; others not before it is idle.
//!
//! Ranks of one node may carry out calls themselves, without a word to the engine: they number their calls, so that it can tell
//! those that it is to carry out from these. A rank that has to wait in such a call for long says so (a watched call), and how it
//! ends ([`Input::Watched`]). Nothing is moved for it, and no trace is kept; it is answered if the group fails, if a rank is gone
//! that is to take part, or if others have this call carried out here, which its rank then asks for, too.
//!
//! # What holds
//!
//! - Each call and message is answered once. The memory of its rank is named in no output after the answer, and no work on it
//!   is under way then.
//! - Memory that is named in an output does not change before that is done, except that what is stored later comes later.
//! - All agents of a group get the same calls from their ranks, or the group fails with who called what; a call that makes
//!   no sense is refused to all who make it, and the group goes on.
//! - Every wait is bounded: by the call's timeout, or by the peer timeout where a node is silent. That of a watched call its rank
//!   bounds, since only the ranks know who has come to it.
//! - No turn, from one idle to the next, takes long: what takes long is [`Work`], [`Output::Copy`]s are bounded by the bounce
//!   buffers, and of many actions that may start some start in the next turn, which is due at once.
//!
//! `testing` (feature) has collectives with their oracle, for the tests of drivers.

mod api;
mod buffered_packets;
mod call_signature;
mod engine;
mod failure;
mod group;
mod ids;
mod link_share;
mod machine;
mod members;
mod memory;
mod output_queue;
mod peers;
mod preparation;
mod program;
mod shared;
mod stream;
#[cfg(feature = "testing")]
pub mod testing;
mod timers;
mod trace;
mod work_tracker;

pub use api::{
    CallRequest, DEFAULT_PEER_TIMEOUT, DEFAULT_TIMEOUT, GroupError, GroupKey, GroupSpec, MemberSpec,
    RankCommand, RankRequest, TransferKind, TransferRequest, TreeScope, TreeSpec, WatchReport,
};
pub use call_signature::wrong_plan;
pub use cool_transport::unicast::AgentId;
pub use cool_transport::unicast::handshake::PeerKey;
pub use cool_types::{ElementType, Operation, ReduceOp, combine};
pub use engine::Engine;
pub use failure::{CallFailure, CallFailureKind, CallStats, ReceivedMessage, TrafficTotals};
pub use ids::{AgentConnectionId, NodeId, WorkId};
pub use machine::{Input, MadeGroup, Output, Work};
pub use memory::{MemoryId, MemoryRange};
pub use preparation::{Preparation, PreparedCall};
pub use trace::{CallRecord, DataArrival, RankTimes};
