//! The vocabulary that COOL's crates share: the [operations](Operation), the [element
//! types](ElementType) of their data, the [reductions](ReduceOp) that combine elements,
//! [ranks](Rank), a [`Call`] with its validation, the rules for the names of
//! [nodes](check_node_name) and [users](check_user_name), the [scopes](TreeScope) of multicast
//! trees, the [limits] of the protocols, the sizes of [headers](wire), and [keys](Key) with their
//! tags.
//!
//! The only behavior here is how elements [combine] and how a call is [described](CallDescription).
//! Schedules belong to `cool-collective`, packets to `cool-transport`, and the frames between rank
//! and agent to `cool-proto`, which converts these types to its own and back.

mod call;
mod call_description;
mod call_error;
mod combine;
mod element;
mod key;
pub mod limits;
mod lists;
mod multicast;
mod names;
mod node_name;
mod operation;
mod rank;
mod tree_scope;
mod user_name;
pub mod wire;

pub use call::{Call, check_reduction};
pub use call_description::{CallDescription, fnv};
pub use call_error::CallError;
pub use combine::combine;
pub use element::{ElementType, ReduceOp};
pub use key::{Key, TAG_BYTES};
pub use lists::{name_list, rank_list};
pub use multicast::is_source_specific;
pub use names::UnknownName;
pub use node_name::{NODE_NAME_MAX, NODE_NAME_RULE, NodeNameError, check_node_name};
pub use operation::Operation;
pub use rank::Rank;
pub use tree_scope::TreeScope;
pub use user_name::{USER_NAME_MAX, USER_NAME_RULE, UserNameError, check_user_name};
