//! How groups are formed and released, their parameters and keys, and the registry of those in use.

mod failed_paths;
pub mod group_keys;
pub mod group_parameters;
pub mod member_place;
pub mod membership_driver;
mod outsiders;
mod proof_schedule;
pub mod queriers;
pub mod registry;
pub mod tree_proofs;

pub use group_parameters::FIRST_EPOCH;
pub use member_place::{MemberPlace, by_node};
pub use outsiders::outsiders;
pub use registry::GroupRegistry;
