//! TCP connections between nodes, where links may lose packets: what agents and members of a swarm have in common.
//!
//! TCP's own waiting times are made for the Internet. Here what is lost is sent again after some round trips ([`bound_retries`]), a
//! connection is made soon though packets are lost that make it ([`connect`]), and a link that loses packets at random is not taken
//! for a full one ([`Congestion`]).

mod congestion;
mod connect;
mod sockopt;

pub use congestion::{Congestion, LinkEstimate, UNBOUNDED};
pub use connect::connect;
pub use sockopt::set_low_water;

use std::os::fd::AsFd;
use std::time::Duration;

/// So long after a round trip, at least, what was lost is sent again. TCP alone waits 200 ms: as long as half a megabyte takes at
/// 20 Mbit/s, and all who wait for the message wait with it.
const SHORTEST_RETRY: Duration = Duration::from_millis(30);

/// At most so long after the last try it is. TCP alone doubles the time with each loss, up to two minutes, so that at a
/// loss of 20 % a connection fails now and then though both sides live.
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// Bounds the time between retries: from the first packet on, since of those that connect and prove who connects a few are lost, too.
pub fn bound_retries(socket: impl AsFd) {
    if let Err(error) = sockopt::set_retries(socket, SHORTEST_RETRY, LONGEST_RETRY) {
        tracing::debug!(%error, "the system does not bound the time between retries");
    }
}
