//! Mending what multicast lost: a receiver finds out what it lacks and asks for it (NAK) upstream in its chain, who is
//! asked sends it again, and what a whole rack lacks is multicast there once.

pub(crate) mod local_repair;
pub(crate) mod loss_recovery;
pub(crate) mod retransmit_queue;
mod upstream;
