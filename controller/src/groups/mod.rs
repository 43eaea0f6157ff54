//! Groups: their descriptions, their keys, which are in use, and how they are formed and released.

pub mod description;
pub mod group_keys;
pub mod member_place;
pub mod membership_driver;
pub mod registry;

pub use description::FIRST_EPOCH;
pub use member_place::{MemberPlace, by_node};
pub use registry::GroupRegistry;
