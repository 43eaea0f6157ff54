//! What a program can beyond its version of the contract: bits that agent and controller say when the agent registers. What both have to know
//! is done if both have said it.

/// Datagrams of a group carry a tag under its key, and agents that connect prove who they are.
pub const TAGS: u64 = 1;

/// The agent encrypts what it sends to others, and speaks with no other: it was told to.
pub const ENCRYPTION: u64 = 1 << 1;

/// The ranks of a job run as the job's user, or not at all.
pub const USERS: u64 = 1 << 2;

/// Groups are told as descriptions; those on many nodes without the keys of their agents, which connect on demand.
pub const DESCRIPTIONS: u64 = 1 << 3;

/// The agent opens sockets for quick calls, and tells the others of a group whether it has. Bit 4 was that of an earlier release, whose
/// ranks carried them out by other plans.
pub const QUICK: u64 = 1 << 5;

/// What an agent still holds may come in several messages.
pub const HELD_GROUPS: u64 = 1 << 6;

/// What programs of this release can.
pub const ALL: u64 = TAGS | USERS | DESCRIPTIONS | QUICK | HELD_GROUPS;
