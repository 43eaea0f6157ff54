//! Recovery of chunks that the multicast lost. A receiver detects missing chunks and sends a NAK
//! upstream in its chain, the upstream node retransmits them, and chunks that a whole rack is
//! missing are multicast there once.

pub(crate) mod local_repair;
pub(crate) mod loss_recovery;
pub(crate) mod retransmit_queue;
mod upstream;
