//! Optional features of the contracts: bits that agent and controller exchange when the agent
//! registers.
//!
//! A feature is used only if both sides support it. Features exist so that a cluster can be
//! upgraded without raising [`VERSION`](crate::VERSION).

/// Datagrams of a group carry a tag under the group's key, and connecting agents authenticate.
pub const TAGS: u64 = 1;

/// The agent is configured to encrypt its traffic, and to communicate only with agents that do.
pub const ENCRYPTION: u64 = 1 << 1;

/// The ranks of a job run as the job's user, or the job is rejected.
pub const USERS: u64 = 1 << 2;

/// Groups are sent as descriptions. Those on many nodes contain no keys of their agents, which
/// connect on demand.
pub const DESCRIPTIONS: u64 = 1 << 3;

/// The agent opens sockets for quick calls and reports to the other agents of a group whether it
/// succeeded. Bit 4 must not be reused, because an earlier release used it for incompatible plans.
pub const QUICK: u64 = 1 << 5;

/// The groups that an agent still holds may be reported in several messages.
pub const HELD_GROUPS: u64 = 1 << 6;

/// The agents of a group test whether datagrams arrive before the ranks execute quick calls.
pub const QUICK_PROBES: u64 = 1 << 7;

/// The agent proves that the trees of a group work, so that groups can use multicast on networks
/// whose switches do not acknowledge trees.
pub const TREE_PROOFS: u64 = 1 << 8;

/// The agent reports the switch from which its node receives LLDP whenever it changes.
pub const NEIGHBORS: u64 = 1 << 9;

/// The agent reports the querier of multicast groups that its node hears, and queries itself if the
/// controller requests that.
pub const QUERIERS: u64 = 1 << 10;

/// The agent plans for networks without multicast, and knows the double-tree pattern.
pub const UNICAST_PLANS: u64 = 1 << 11;

/// The agent proves the trees of a group also while the group is in use, and reports trees from
/// which it receives nothing.
pub const REPEATED_PROOFS: u64 = 1 << 12;

/// Connections between agents may consist of several parallel TCP connections.
pub const PARALLEL_CONNECTIONS: u64 = 1 << 13;

/// The agent has room in its sockets for long quick calls, of which messages are sent in parts.
pub const LONG_QUICK_CALLS: u64 = 1 << 14;

/// The agent joins the sources of source-specific trees (RFC 4607) that other agents name, and
/// proves that its own multicasts over them arrive.
pub const TREE_SOURCES: u64 = 1 << 15;

/// The agent takes part in examinations of whether the network floods multicasts to nodes that have
/// not joined their address.
pub const FLOODING_CHECKS: u64 = 1 << 16;

/// The agent measures the costs of its work when it starts, and plans with measured costs.
pub const CPU_COSTS: u64 = 1 << 17;

/// All features that this release supports.
pub const ALL: u64 = TAGS
    | USERS
    | DESCRIPTIONS
    | QUICK
    | HELD_GROUPS
    | QUICK_PROBES
    | TREE_PROOFS
    | NEIGHBORS
    | QUERIERS
    | UNICAST_PLANS
    | REPEATED_PROOFS
    | PARALLEL_CONNECTIONS
    | LONG_QUICK_CALLS
    | TREE_SOURCES
    | FLOODING_CHECKS
    | CPU_COSTS;
