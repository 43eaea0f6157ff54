//! The engine of a node's agent: executes the schedules of its ranks' calls over multicast, repair
//! and unicast.
//!
//! [`Engine`] is a [`Machine`](cool_machine::Machine): its driver hands it one [`Input`] together
//! with the time, then polls it until it is idle, and executes each [`Output`] in order. The engine
//! holds no socket, thread or clock, and it never touches payload. It names [`MemoryRange`]s, and
//! the driver copies, combines and sends the bytes in them. The engine has no notion of processes,
//! of the controller, or of how memory is shared.
//!
//! # The driver
//!
//! ```text
//! a rank makes a request:  register its buffers as MemoryId::Registered(n);
//!                          handle(now, Input::Request{token, request})
//! a datagram arrives:      handle(now, Input::Datagram{from, bytes})
//! a connection is read:    into the range that the last Await named, if it named one, and the rest
//!                          into a buffer; handle(now, Input::Bytes{connection, placed, bytes})
//! after each input, poll(now) until idle:
//!   Done              reply to the rank and forget its buffers
//!   Data, Control     send a datagram: the encoded packet with its payload, or the packets
//!   Connect, Write, Hangup, Await    manage connections; each Write must be answered by Written
//!   Store             copy bytes of the last Datagram or Bytes input to their destination,
//!                     before the next such input
//!   Allocate, Free, Copy             manage the engine's own memory
//!   Work              if it is small, do it now, otherwise on another thread; then
//!                     handle(now, Input::WorkDone(id)) or, after Work::Prepare,
//!                     handle(now, Input::Prepared(id, preparation.run()))
//!   GroupMade         join the trees, or report the error to the caller
//!   GroupFailed       wake the ranks that execute calls of the group themselves
//!   GroupForgotten    leave the trees
//!   LongPacketsLost   report it to the operator
//! and poll again at the time that was returned with idle, if there is no earlier input.
//! ```
//!
//! The driver may hand in [`Input::WorkDone`] and [`Input::Written`] between two outputs of one
//! input. It must hold back all other inputs until the engine is idle.
//!
//! # The numbers of one call
//!
//! A call has four numbers, because each layer must be able to name it without asking another:
//!
//! | name | chosen by | unique within |
//! | --- | --- | --- |
//! | `id` | the rank | its connection to the agent (`Call.id` and `Done.id` of `local.proto`) |
//! | `token` | the driver | the engine's life ([`Input::Request`], [`Output::Done`]) |
//! | `call_number` | the group | one rank in the group ([`CallRequest::call_number`]) |
//! | `call` | the group | the group and its epoch (`MessageName`, `StreamId`, `CallAction`) |
//!
//! The `call_number` is the position of the call among the rank's calls. `call` has the same value;
//! it is the part of the name of a message, a stream or an action that names the call.
//! Because all ranks must make the same calls in the same order, the `call_number` of a call is the
//! same at every rank. Messages outside of calls use numbers from 2^63 on in the place of `call`.
//!
//! # Calls that ranks execute themselves
//!
//! Ranks may execute calls without the engine. They number all their calls, so that the engine can
//! distinguish the calls that it must execute from the others. A rank that has to wait for long in
//! such a call reports it (a *watched call*), and later reports how the call ended
//! ([`RankCommand::Watched`]). The engine moves no data for a watched call and keeps no trace of
//! it. It replies to the rank if the group fails, if a rank is lost that should take part, or if
//! other ranks request the same call from their engine; the rank must then request it too.
//!
//! # Guarantees
//!
//! - Every request has exactly one reply. After the reply, no output names the memory of the rank,
//!   and no work on it is in progress.
//! - Memory that an output names does not change before the output has been executed, except by
//!   later outputs.
//! - All agents of a group receive the same calls from their ranks, or the group fails with a
//!   message that names the calls of the ranks that differ. An invalid call is refused at all ranks
//!   that make it, and the group continues.
//! - Every wait is bounded: by the timeout of the call, or by the peer timeout if a node is silent.
//!   For a watched call, the rank must bound the wait, because only the ranks know which of them
//!   have joined the call.
//! - No turn (from one idle to the next) takes long: long operations are [`Work`], [`Output::Copy`]
//!   is bounded by the bounce buffers, and if many actions could start at once, the engine starts
//!   the rest of them in the next turn, which is due immediately.
//!
//! The feature `testing` provides collectives with their expected results, for the tests of
//! drivers.

mod api;
mod buffered_packets;
mod call_signature;
mod engine;
mod engine_outbox;
mod engine_resources;
mod failure;
mod group;
mod ids;
mod inputs_outputs;
mod link_share;
mod lost_peer;
mod members;
mod memory;
mod peers;
mod preparation;
mod program;
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
pub use inputs_outputs::{Input, MadeGroup, MissingProbes, Output, Work};
pub use memory::{MemoryId, MemoryRange};
pub use preparation::{Preparation, PreparedCall};
pub use trace::{CallRecord, DataArrival, RankTimes};
