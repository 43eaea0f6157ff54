//! Quick calls: short collectives over several nodes that the ranks execute themselves. Each
//! message is one datagram, or several if it is long, sent through a socket that the agent opened.
//! An agent is not woken by a call unless a message is lost, because waking one more process at
//! each node would take longer than the call itself.
//!
//! ```text
//! call_limits        how long calls and their messages may be
//! quick_schedule     when a call is quick, and the program of each rank
//! call_key           the key of a group, with which datagrams are tagged
//! datagram           the wire format of messages, with a tag under the group's key
//! message_parts      long messages, which are sent in parts
//! datagram_probe     whether datagrams of full length arrive, before the first call
//! calls              the calls of one rank, in order: a machine without I/O
//! active_call        the call in progress, or a piece of it, and its data
//! redundant_sending  when messages are sent twice
//! wait_policy        how a rank waits: first alone, then watched by its agent
//! nak_responder      how an agent answers the NAKs of other ranks
//! leaders            for nodes with several ranks: the node leaders and their calls
//! ```
//!
//! A rank keeps each message that it sent in a **retransmission buffer** until all receivers are
//! known to have it. The buffer is in memory that the rank's agent can read. A receiver that is
//! missing a message sends a **NAK** to the agent of the sender, and the agent retransmits the
//! datagram from the buffer, whatever the rank does meanwhile. (Compare RFC 5740 and the term
//! buffers of Aeron.)

mod active_call;
mod busy_polling;
mod call_key;
mod call_limits;
mod calls;
mod datagram;
mod datagram_probe;
mod leaders;
mod message_parts;
mod nak_responder;
mod quick_schedule;
mod redundant_sending;
mod wait_policy;

pub use active_call::{BeginCall, CallData};
pub use busy_polling::BusyPolling;
pub use call_key::{CallKey, PayloadHash};
pub use call_limits::{CallLimits, LONG_MESSAGES_BYTES_MAX, MESSAGE_BYTES_MAX};
pub use calls::{CallArrivals, Input, Output, QuickCalls, QuickMessage, RECENT_ARRIVALS_MAX, SendTo};
pub use datagram::{
    DATAGRAM_BYTES_MAX, Datagram, DatagramError, DatagramHeader, DatagramKind, LONG_DATAGRAM_BYTES_MAX,
};
pub use datagram_probe::{DatagramProbe, ProbePath};
pub use leaders::NodeLeaders;
pub use message_parts::{DividedMessage, LEADER_BUFFER_BYTES, PART_DATAGRAM_BYTES_MIN, in_parts};
pub use nak_responder::{NakAnswer, NakResponder, RetransmitBuffer};
pub use quick_schedule::{QuickSchedule, RETRANSMIT_WINDOW, quick_plans};
pub use wait_policy::{RECHECK_INTERVAL, ReportTimer, WaitAction, WaitPolicy, WaitState};
