//! Calls as values, below the communicator that checks them and the session that sends them:
//! collectives, messages between two ranks, and whether the program waits.

mod blocking;
mod collective;
mod point_to_point;

pub(crate) use blocking::CallBlocking;
pub use collective::{Arrays, Collective};
pub(crate) use collective::{CallBuffers, CallingRank, CheckedCollective};
pub(crate) use point_to_point::PointToPointCall;
