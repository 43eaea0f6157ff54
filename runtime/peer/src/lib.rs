//! A member of a swarm on sockets: [`cool_swarm::Swarm`] with channels to the others, bytes, and a place where they are kept.
//!
//! All members get the same [`SwarmPlan`]: a key, who takes part, and how the content is divided. Each has a [`Contents`], which reads
//! generations that are here and keeps those that have come. Members connect to each other by TCP; what they say is sealed by
//! Noise under the key, so only who has it takes part, and only members read the content.
//!
//! | file | what it does |
//! | --- | --- |
//! | `wire.rs` | messages as bytes |
//! | `channel.rs` | a channel in one direction: the handshake, messages sealed and opened |
//! | `links.rs` | channels to and from all members, opened again when they fail |
//! | `welcome.rs` | what one that comes late is told |
//! | `kernel.rs` | sums of blocks by vector instructions |
//! | `memory.rs` | rows of generations that come, generations at hand |
//! | `pollution.rs` | generations that are decoded, and who sent rows that are wrong |
//! | `receiving.rs`, `sending.rs`, `pacer.rs` | blocks that come and that go, and how fast |
//! | `driver.rs` | events to the machine, its outputs to all of these |
//!
//! A member that cannot be reached is gone for the machine until it can be reached again. Who has really left is the user's to say
//! ([`SwarmPeer::leave`]). Who comes late asks any member what all of them know ([`inquire`]), and greets each; or it is the user who says it ([`SwarmPeer::join`]).

mod channel;
mod driver;
mod kernel;
mod links;
mod memory;
mod pacer;
mod peer;
mod pollution;
mod receiving;
mod sending;
mod welcome;
mod wire;

pub use channel::SwarmKey;
pub use cool_swarm::{Code, Member, Share};
pub use peer::{Contents, MemberRole, PeerProgress, SwarmPeer, SwarmPlan};
pub use welcome::{InquiryError, InquiryHold, Welcome, inquire};
pub use wire::{Frame, WireError};
