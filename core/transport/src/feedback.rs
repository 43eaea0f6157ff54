//! What receivers tell the source, and what it makes of it: the rounds in which loss is measured, the tree along which
//! reports are merged on their way, and the source's set of receivers.
//!
//! How fast the source then sends is [`crate::congestion`]'s matter; what is missing is [`crate::repair`]'s.

pub(crate) mod ack_tree;
pub(crate) mod multicast_rx;
pub(crate) mod receiver_set;
pub(crate) mod rounds;
