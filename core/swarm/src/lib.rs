//! The swarm: a content to many nodes by coded gossip over random rings, without a controller on the data path.
//!
//! After Cooper (Liu, Niu, Khabbazian: Expedite Batch Data Dissemination in Computer Clusters with Coded Gossips). In each round all
//! members stand in a random ring ([`Rings`]), and each sends its successor a random combination of what it holds of a
//! *generation* ([`Generation`]); as many independent ones as the generation has blocks are the generation. What a node holds and
//! sends are [`Holdings`]; [`Swarm`] is a member that talks with others, a [`Machine`](cool_machine::Machine). docs/design/swarm.md says
//! how it differs from the paper, and what was measured.
//!
//! The machine never touches payload, and keeps no bytes: only coefficients over GF(2^8) ([`field`]). It names [`Slot`]s, and the
//! driver adds up, sends and keeps what stands there.
//!
//! # How a block goes
//!
//! ```text
//! sender                                            receiver
//!   has room, takes its successor in its ring
//!   Offer ----------------------------------------->  has room, lacks something
//!   <------------------- Grant: ranks, null vectors   (else Refuse: the sender tries the next ring)
//!   picks a generation, draws coefficients
//!   Head (coefficients) --------------------------->  not new: Stop, and the sender picks another
//!   Transmit: bytes =============================>    Received: Store, and perhaps Decode, answered by Decoded or Polluted
//!   <- Sent
//! ```
//!
//! # A driver
//!
//! ```text
//! a signal came            handle(now, Input::Signal{from, signal})
//! bytes are nearly through handle(now, Input::Nearly{..}), at both ends, when about as much time is left as an offer and some refusals take
//! all bytes have come      handle(now, Input::Received{from, transfer})
//! all bytes are confirmed  handle(now, Input::Sent{to, transfer, arrived: true}); arrived: false if they cannot be
//! a member comes or goes   handle(now, Input::Joined(member)), Input::Gone(member)
//! then, each time, poll(now) until idle, and again at the time that came with idle.
//! ```
//!
//! # What holds
//!
//! - Every wait is bounded; whoever gets nothing new for as long as its spec says reports what it lacks ([`Output::Starved`]), and goes on.
//! - What comes from others is checked: rows that are none of the content are refused, and of a generation whose hash is wrong once it
//!   is decoded ([`Input::Polluted`]) nothing is kept. Whoever lies is found out and expelled, whoever passes a lie on is not.
//! - A source sends each original once before it codes, so once a little more than one copy has left it, it may go.

mod api;
pub mod field;
mod generation;
mod holdings;
mod lane;
mod order;
mod paces;
mod peers;
mod pollution;
mod rings;
mod swarm;
mod transfers;

pub use api::{BlockHead, Input, Output, Signal, Stats, SwarmSpec, Waits};
pub use generation::{Generation, Recovery, Row, Slot, Term};
pub use holdings::{Code, Division, GENERATION_MAX, Have, Holdings, Knowledge, Pick, Share};
pub use lane::blocks_at_a_time;
pub use order::{Order, Phase};
pub use paces::Pace;
pub use pollution::Origin;
pub use rings::{Member, Rings};
pub use swarm::Swarm;
