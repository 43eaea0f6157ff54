//! A member of a swarm on sockets: the driver of [`cool_swarm::Swarm`], with channels to the other
//! members and access to the content.
//!
//! All members have the same [`SwarmPlan`]: a key, the members and the division of the content.
//! Each member has a [`Contents`], which reads the generations that it holds and stores those that
//! arrive. Members connect to each other by TCP. Their messages are encrypted by Noise under the
//! shared key, so only nodes with the key can take part and read the content.
//!
//! | file | task |
//! | --- | --- |
//! | `plan.rs`, `contents.rs` | input of a member: plan, role, and access to the content |
//! | `peer.rs`, `progress.rs` | control of a member by its user, and its progress |
//! | `wire.rs` | encodes messages |
//! | `channel.rs` | a channel in one direction: handshake, encryption |
//! | `links.rs` | channels to and from all members, reopened when they fail |
//! | `late_join.rs` | the common state, which late members request |
//! | `kernel.rs` | sums of blocks by vector instructions |
//! | `memory.rs` | coded blocks of incomplete generations, a cache of complete ones |
//! | `decoding.rs` | decodes generations and finds wrong coded blocks |
//! | `receiving.rs`, `sending.rs`, `pacer.rs` | incoming and outgoing blocks, and their rate |
//! | `driver.rs` | connects the machine to all of these |
//!
//! The machine treats an unreachable member as lost until it is reachable again. The user must
//! report that a member has left for good ([`SwarmPeer::leave`]). A late member requests the common
//! state from any member ([`inquire`]) and greets all of them; alternatively the user reports it
//! ([`SwarmPeer::join`]).

mod channel;
mod contents;
mod decoding;
mod driver;
mod kernel;
mod late_join;
mod links;
mod memory;
mod pacer;
mod peer;
mod plan;
mod progress;
mod receiving;
mod sending;
mod wire;

pub use channel::SwarmKey;
pub use contents::Contents;
pub use cool_swarm::{Code, Member, Share};
pub use late_join::{InquiryError, InquiryHold, LateJoinReply, inquire};
pub use peer::SwarmPeer;
pub use plan::{MemberRole, SwarmPlan};
pub use progress::PeerProgress;
pub use wire::{Frame, WireError};
