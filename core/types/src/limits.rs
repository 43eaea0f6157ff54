//! Bounds that several crates hold to. What a planner prices is what agents do, since both read them here.

/// Calls and messages that a rank may have open on a group at once.
pub const OPEN_CALLS: usize = 1024;

/// Bytes of the longest array, and of all ranks' arrays of a call together: what one process can address on x86-64.
pub const ARRAY_BYTES: u64 = 1 << 47;

/// Bytes of the longest message that goes without waiting until its receivers are ready: the eager protocol of MPI
/// libraries. Longer ones are announced and granted (rendezvous).
pub const EAGER_BYTES: u64 = 64 * 1024;

/// Bytes of the longest multicast message that an agent copies, so that its rank need not wait until all have it.
pub const COPIED_BYTES: u64 = 1024 * 1024;

/// Bytes of all such copies that an agent holds at once (its bounce buffers); beyond, ranks wait.
pub const BOUNCE_BYTES: u64 = 16 * 1024 * 1024;

/// Bytes of one message between two agents that are sent before another message between them has its turn.
pub const TURN_BYTES: u64 = 64 * 1024;

/// Bytes of eager messages of a group between two agents that its receiver has not asked for yet: beyond this credit
/// they are announced, however short.
pub const CREDIT_BYTES: u64 = 1024 * 1024;

/// Bytes of credit that a message takes beside its payload, so that short ones are bounded too.
pub const MESSAGE_CREDIT_BYTES: u64 = 64;

/// Segments of one array; more would only lengthen the schedule, so segments of very large arrays are longer.
pub const SEGMENTS: u64 = 1024;

/// Ranks of an alltoall: its schedule has a block, with its places, for each two of them.
pub const ALLTOALL_RANKS: usize = 4096;

/// Actions of all kept programs of a schedule together: each takes a few hundred bytes.
pub const ACTIONS: usize = 1 << 24;
