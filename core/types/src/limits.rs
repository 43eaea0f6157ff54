//! Limits that several crates share. Planner and agents must read them here, because the planner
//! would otherwise estimate another protocol than the one that the agents run.

/// Maximum number of calls and messages that a rank may have pending on a group at once.
pub const OPEN_CALLS: usize = 1024;

/// Number of calls that an agent accepts from a rank in addition to [`OPEN_CALLS`], for calls in
/// which the program waits: it may be able to complete the others only afterwards.
pub const WAITING_CALLS: usize = 64;

/// Maximum length in bytes of an array, and of the arrays of all ranks of a call together. A
/// process cannot address more on x86-64.
pub const ARRAY_BYTES: u64 = 1 << 47;

/// Length in bytes of the longest message that is sent before its receivers are ready (the eager
/// protocol of MPI libraries). Longer messages are announced and wait for a grant (rendezvous).
pub const EAGER_BYTES: u64 = 64 * 1024;

/// Length in bytes of the longest multicast message that an agent copies, so that its rank can
/// return before all receivers have the message.
pub const COPIED_BYTES: u64 = 1024 * 1024;

/// Maximum bytes of all such copies (bounce buffers) that an agent holds at once. Ranks wait until
/// there is room for theirs.
pub const BOUNCE_BYTES: u64 = 16 * 1024 * 1024;

/// Bytes of one message between two agents that are sent before another message between them gets
/// its turn.
pub const MESSAGE_QUANTUM_BYTES: u64 = 64 * 1024;

/// Credit of a group between two agents: bytes of eager messages that may be on their way although
/// no posted receive expects them yet. Messages beyond the credit are announced, however short.
pub const CREDIT_BYTES: u64 = 1024 * 1024;

/// Credit that each message uses in addition to its payload, in bytes, so that the number of short
/// messages is bounded too.
pub const MESSAGE_CREDIT_BYTES: u64 = 64;

/// Maximum number of segments of one array. Segments of very large arrays are longer, because more
/// segments would only lengthen the schedule.
pub const SEGMENTS: u64 = 1024;

/// Maximum number of ranks of an alltoall, because its schedule has one block for each pair of
/// ranks.
pub const ALLTOALL_RANKS: usize = 4096;

/// Maximum number of actions of a schedule, counted over all programs that are kept. Each action
/// needs a few hundred bytes of memory.
pub const ACTIONS: usize = 1 << 24;
