//! TCP connections between nodes over links that may lose packets, for agents and swarm members.
//!
//! TCP's default timers suit the Internet. In a cluster, a lost segment should be retransmitted
//! after a few round trips ([`bound_retransmission_timeout`]), a connection should be established
//! soon even if packets of its handshake are lost ([`connect`]), and random loss should not be
//! taken for a full link ([`Congestion`]).

mod congestion;
mod connect;
mod sockopt;

pub use congestion::{Congestion, LinkEstimate, UNBOUNDED};
pub use connect::connect;
pub use sockopt::set_low_water;

use std::os::fd::AsFd;
use std::time::Duration;

/// Shortest time after a round trip before a lost segment is retransmitted. TCP's default is 200
/// ms, in which a link of 20 Mbit/s carries half a megabyte; all receivers of the message would
/// wait that long.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(30);

/// Longest time between two retransmissions. TCP's default doubles the time with each loss, up to
/// two minutes, so that at a loss of 20 % some connections fail although both ends are alive.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Bounds the retransmission timeout of a connection.
///
/// Call it before the socket connects, because packets of the handshake may be lost too. On systems
/// without the options (before Linux 6.15) it has no effect and logs that at debug level.
pub fn bound_retransmission_timeout(socket: impl AsFd) {
    if let Err(error) = sockopt::set_retransmission_timeout(socket, SHORTEST_TIMEOUT, LONGEST_TIMEOUT) {
        tracing::debug!(%error, "the system does not bound the retransmission timeout");
    }
}
