//! Numbers by which the engine and its driver name nodes, connections and work.

/// A node, numbered by the engine when it first learns of it; 0 is the engine's own node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// A connection to another agent, numbered by the driver in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AgentConnectionId(pub u64);

/// An item of work that the engine has handed to its driver, numbered by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkId(pub u64);
