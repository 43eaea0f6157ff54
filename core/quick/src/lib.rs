//! Quick calls: short collectives over several nodes whose messages the ranks send themselves, each in one datagram, by sockets that
//! their agents open. Agents know nothing of a call that goes well: none is woken for it.
//!
//! ```text
//! schedule    which calls are quick, and the program of a rank
//! datagram    messages as bytes, with a tag under the group's key
//! calls       a rank's part in the calls of its group, one after the other: a machine without I/O
//! redundancy  when messages are sent twice
//! patience    how a rank waits: alone, then watched by its agent
//! answer      what an agent answers to those that lack a message
//! leaders     where several ranks are on a node: who goes out for them, and what leaders call among themselves
//! ```
//!
//! What a rank has sent it keeps, until all have it for sure, in memory that its agent reads: who lacks a message **asks** the sender's
//! agent, which answers with the datagram as it was sent, whatever the rank does meanwhile (a NAK, answered from a sender's log).

mod calls;
mod datagram;
mod duplication;
mod leaders;
mod nak_responder;
mod quick_schedule;
mod wait_policy;

pub use calls::{
    BeginCall, CallArrivals, Input, Output, QuickCalls, QuickMessage, RECENT_ARRIVALS_MAX, SendTo,
};
pub use datagram::{DATAGRAM_BYTES_MAX, Datagram, DatagramError, DatagramHeader, DatagramKind};
pub use leaders::NodeLeaders;
pub use nak_responder::{NakResponder, RetransmitBuffer};
pub use quick_schedule::{MESSAGE_BYTES_MAX, QuickSchedule, RETRANSMIT_WINDOW, quick_plans};
pub use wait_policy::{RECHECK_INTERVAL, WaitAction, WaitPolicy, WaitState};
