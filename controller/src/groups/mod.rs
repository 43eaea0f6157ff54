//! How groups are formed and released, their parameters and keys, and the registry of those in use.

pub mod group_keys;
pub mod group_parameters;
pub mod member_place;
pub mod membership_driver;
pub mod registry;

pub use group_parameters::FIRST_EPOCH;
pub use member_place::{MemberPlace, by_node};
pub use registry::GroupRegistry;
