//! Feedback from receivers to the source: the rounds in which loss is measured, the tree along
//! which reports are merged, and the source's receiver set.
//!
//! The sending rate that results is in [`crate::congestion`]; the recovery of missing chunks is in
//! [`crate::repair`].

pub(crate) mod ack_tree;
pub(crate) mod multicast_rx;
pub(crate) mod receiver_set;
pub(crate) mod rounds;
