//! A member of a swarm on sockets: the driver of [`cool_swarm::Swarm`], with channels to the other
//! members and access to the content.
//!
//! All members have the same [`SwarmConfig`]: a key, the members and the division of the content.
//! Each member has a [`GenerationStore`], which reads the generations that it holds and stores
//! those that arrive. Members connect to each other by TCP. Their messages are encrypted by Noise
//! under the shared key, so only nodes with the key can take part and read the content. Each member
//! also has a key pair of its own, so none can speak for another one.
//!
//! | file | task |
//! | --- | --- |
//! | `config.rs`, `generation_store.rs` | configuration and role of a member, access to the content |
//! | `peer.rs`, `progress.rs` | control of a member by its user, and its progress |
//! | `wire.rs` | encodes messages |
//! | `keys.rs` | the shared key, and the key pair of each member |
//! | `channel.rs` | a channel in one direction: handshake, encryption |
//! | `links.rs` | channels to and from all members, reopened when they fail |
//! | `late_join.rs` | the common state, which late members request |
//! | `gf256_simd.rs` | sums of blocks by vector instructions |
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
mod config;
mod decoding;
mod driver;
mod generation_store;
mod gf256_simd;
mod keys;
mod late_join;
mod links;
mod memory;
mod pacer;
mod peer;
mod progress;
mod receiving;
mod sending;
mod wire;

pub use config::{MemberRole, SwarmConfig};
pub use cool_swarm::{Code, Member, SourceIndex};
pub use generation_store::GenerationStore;
pub use keys::{Contact, KeyPair, PublicKey, SwarmKey};
pub use late_join::{InquiryError, InquiryHold, LateJoinReply, inquire};
pub use peer::SwarmPeer;
pub use progress::PeerProgress;
pub use wire::{Frame, WireError};
