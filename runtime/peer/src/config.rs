//! The input of a member: the configuration, which all members of a swarm share, and the member's
//! own role.

use crate::keys::{Contact, KeyPair, SwarmKey};
use cool_swarm::{Code, Member, SourceIndex};
use std::net::TcpListener;

/// The configuration of a swarm. It must be the same at all members.
#[derive(Clone, Debug)]
pub struct SwarmConfig {
    /// The key of the swarm. Every node that has it may take part.
    pub key: SwarmKey,
    /// Seed of the random rings, along which members offer blocks to each other.
    pub seed: u64,
    /// All members, with their addresses and public keys.
    pub members: Vec<(Member, Contact)>,
    /// Number of bytes of each generation.
    pub generations: Vec<u64>,
    /// Number of blocks of a generation, 1 to [`cool_swarm::GENERATION_MAX`].
    pub blocks: u16,
    /// Whether coded blocks are sent, or originals only.
    pub code: Code,
    /// Rate of the slowest member's link in bytes per second, if known. Timeouts follow from it.
    pub rate: Option<u64>,
    /// Maximum rate at which a member sends blocks, in bytes per second.
    pub limit: Option<u64>,
}

/// The role of one member.
#[derive(Debug)]
pub struct MemberRole {
    /// The rack and the slot of this member.
    pub me: Member,
    /// The socket on which it listens.
    pub socket: TcpListener,
    /// Its own key pair. The other members must have the public key.
    pub key_pair: KeyPair,
    /// Generations that it holds from the beginning. It need not be set at a source.
    pub here: Vec<u32>,
    /// Set at a source, which holds all generations.
    pub source: Option<SourceIndex>,
    /// Rate of its own link in bytes per second, if known. It sends no faster.
    pub rate: Option<u64>,
    /// Whether the other members do not know about it yet. A late member greets each of them.
    pub late: bool,
}
