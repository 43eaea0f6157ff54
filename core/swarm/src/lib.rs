//! The swarm distributes a content to many nodes by coded gossip over random rings, without a
//! controller on the data path.
//!
//! It follows Cooper (Liu, Niu, Khabbazian: Expedite Batch Data Dissemination in Computer Clusters
//! with Coded Gossips). In each round all members form a random ring ([`Rings`]), and each member
//! sends its successor a random combination of the blocks that it holds of a *generation*
//! ([`Generation`]). As many independent combinations as the generation has blocks are enough to
//! decode it. [`Holdings`] records the blocks of a node and chooses which to send. [`Swarm`] is one
//! member, a [`Machine`](cool_machine::Machine). docs/design/swarm.md describes the differences
//! from the paper, and the measurements.
//!
//! The machine never touches payload and stores no bytes, only coefficients over GF(2^8)
//! ([`field`]). It names [`Slot`]s; the driver adds up, sends and stores their bytes.
//!
//! # Transfer of a block
//!
//! ```text
//! sender                                            receiver
//!   has room, chooses its successor in its ring
//!   Offer ----------------------------------------->  has room, is missing blocks
//!   <------------------- Grant: ranks, null vectors   (or Refuse: the sender tries the next ring)
//!   picks a generation, draws coefficients
//!   Head (coefficients) --------------------------->  not new: Stop, and the sender picks another
//!   Transmit: bytes =============================>    Received: Store, perhaps Decode, to which
//!   <- Sent                                           the driver replies Decoded or Polluted
//! ```
//!
//! # Duties of a driver
//!
//! ```text
//! a signal arrives          handle(now, Input::Signal{from, signal})
//! few bytes remain          handle(now, Input::Nearly{..}), at both ends, when the rest takes
//!                           about as long as an offer and some refusals
//! all bytes have arrived    handle(now, Input::Received{from, transfer})
//! all bytes are confirmed   handle(now, Input::Sent{to, transfer, arrived: true});
//!                           arrived: false if they cannot be
//! a member joins, is lost   handle(now, Input::Joined(member)), Input::Gone(member)
//! ```
//!
//! After each of these the driver must call `poll(now)` until it returns `Poll::Idle`, and again at
//! the time that `Poll::Idle` contains.
//!
//! # Guarantees
//!
//! - Every wait is bounded. A member that receives nothing new for the time in its spec reports
//!   which blocks it is missing ([`Output::Starved`]), and continues.
//! - Data from other members is checked. Coded blocks that do not belong to the content are
//!   refused, and nothing is kept of a generation with a wrong hash
//!   ([`Input::Polluted`]). A member that lies is detected and expelled; one that only passes a lie
//!   on is not.
//! - A source sends each original once before it codes. Once a little more than one copy has left
//!   the source, it may therefore leave.

mod api;
mod division;
pub mod field;
mod generation;
mod holdings;
mod lane;
mod link_rates;
mod order;
mod peers;
mod pollution;
mod rings;
mod swarm;
mod transfers;

pub use api::{BlockAnnouncement, Input, Output, Signal, SwarmSpec, SwarmStats, Waits};
pub use division::{Division, GENERATION_MAX};
pub use generation::{CodedBlock, Generation, Recovery, Slot, Term};
pub use holdings::{Code, Holdings, HoldingsReport, Knowledge, Pick, SourceIndex};
pub use lane::blocks_at_a_time;
pub use link_rates::BlockTime;
pub use order::{Order, Phase};
pub use pollution::Origin;
pub use rings::{Member, Rings};
pub use swarm::Swarm;
