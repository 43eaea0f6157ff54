//! The vocabulary that COOL's crates share, each thing said once: the [operations](Operation), the
//! [elements](ElementType) that they carry and the [reductions](ReduceOp) that combine them, [ranks](Rank), a [`Call`]
//! with its one check, the rule for [names of nodes](check_node_name), the [scopes](TreeScope) of trees, the [limits] of the protocols, and the bytes of
//! [headers](wire) on the wire.
//!
//! It holds no behaviour beyond that: schedules are `cool-collective`'s, packets `cool-transport`'s, frames between rank
//! and agent `cool-proto`'s, which converts these types to its own and back.

mod call;
mod element;
pub mod limits;
mod names;
mod node_name;
mod operation;
mod rank;
mod tree_scope;
pub mod wire;

pub use call::{Call, CallError};
pub use element::{ElementType, ReduceOp, check_reduction};
pub use names::UnknownName;
pub use node_name::{NODE_NAME_MAX, NODE_NAME_RULE, NodeNameError, check_node_name};
pub use operation::Operation;
pub use rank::Rank;
pub use tree_scope::TreeScope;
