//! The costs of a node and its transport that the timing of schedules assumes.

use cool_types::{limits, wire};
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// The costs of agents, without the network. The default is the emulated testbed (see
/// `docs/design/architecture.md`): agents on one shared machine, and Ethernet frames of 1514 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentCosts {
    /// Time of a rank's call to its agent and of the agent's answer.
    pub call: Duration,
    /// Work of the agent to send a message, whatever its length.
    pub send: Duration,
    /// Work of the agent to receive a message, whatever its length.
    pub receive: Duration,
    /// Work of the agent to begin a copy, a reduction, or a message within a node.
    pub local: Duration,
    /// Bytes per second that an agent copies.
    pub copy: u64,
    /// Bytes per second that an agent combines.
    pub reduce: u64,
    /// Bytes per second of an agent's sockets: in each direction, if its link is faster, or in both
    /// directions together if `packet` has been measured.
    pub socket: u64,
    /// Work of the agent to send or receive one packet of a multicast. Zero unless it has been
    /// measured.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub packet: Duration,
    /// Maximum bytes of an IP packet.
    pub mtu: u64,
    /// Bytes of the longest message that is sent before its receivers are ready.
    pub eager: u64,
    /// Bytes of the longest multicast that the agent copies, so that the sender continues at once.
    pub copied: u64,
    /// Bytes of a message that are sent before another message between the same nodes has its turn.
    pub turn: u64,
    /// Bytes of a multicast that are sent at once, before pacing starts.
    pub burst: u64,
    /// Bytes of the tag of each multicast packet, for a group with a key.
    #[serde(default, skip_serializing_if = "is_none")]
    pub tag: u64,
    /// Bytes by which each IP header is longer than that of IPv4.
    #[serde(default, skip_serializing_if = "is_none")]
    pub beyond_ipv4: u64,
}

fn is_none(bytes: &u64) -> bool {
    *bytes == 0
}

impl Default for AgentCosts {
    fn default() -> AgentCosts {
        AgentCosts {
            call: Duration::from_micros(200),
            send: Duration::from_micros(60),
            receive: Duration::from_micros(60),
            local: Duration::from_micros(2),
            copy: 4_000_000_000,
            reduce: 2_000_000_000,
            socket: 1_000_000_000,
            packet: Duration::ZERO,
            mtu: 1500,
            eager: limits::EAGER_BYTES,
            copied: limits::COPIED_BYTES,
            turn: limits::MESSAGE_QUANTUM_BYTES,
            burst: 16 * 1024,
            tag: 0,
            beyond_ipv4: 0,
        }
    }
}

/// Bytes of the headers within an IP packet of a stream's data packet.
const STREAM: u64 = wire::IPV4 + wire::UDP + wire::STREAM_DATA_HEADER;

impl AgentCosts {
    /// Returns the bytes of a unicast message on the wire.
    pub fn unicast(&self, bytes: u64) -> u64 {
        packed(bytes.saturating_add(wire::MESSAGE_DATA_HEADER), self.mtu, wire::TCP_IP + self.beyond_ipv4)
    }

    /// Returns the bytes of a multicast message on the wire.
    pub fn multicast(&self, bytes: u64) -> u64 {
        packed(bytes, self.mtu, STREAM + self.tag + self.beyond_ipv4)
    }

    /// Returns the bytes per second, on the wire, at which an agent sends or receives a multicast.
    pub fn packet_rate(&self) -> u64 {
        let bytes = u128::from(self.mtu + wire::ETHERNET) * 1_000_000_000;
        u64::try_from(bytes / self.packet.as_nanos().max(1)).unwrap_or(u64::MAX)
    }

    /// Returns the bytes of a message's turn on the wire.
    pub fn turn(&self) -> u64 {
        self.unicast(self.turn)
    }

    /// Returns the bytes of a multicast message on the wire that are paced.
    pub fn paced(&self, bytes: u64) -> u64 {
        self.multicast(bytes).saturating_sub(self.burst)
    }

    /// Returns the time to copy bytes, in nanoseconds.
    pub(super) fn copying(&self, bytes: u64) -> u64 {
        nanos(self.local) + time_of(bytes, self.copy)
    }

    /// Returns the time to combine bytes, in nanoseconds.
    pub(super) fn reducing(&self, bytes: u64) -> u64 {
        nanos(self.local) + time_of(bytes, self.reduce)
    }
}

fn packed(bytes: u64, mtu: u64, headers: u64) -> u64 {
    let packets = bytes.div_ceil(mtu.saturating_sub(headers).max(1)).max(1);
    bytes.saturating_add(packets.saturating_mul(headers + wire::ETHERNET))
}

/// Returns the nanoseconds that `bytes` take at a rate in bytes per second.
pub fn time_of(bytes: u64, rate: u64) -> u64 {
    u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))).unwrap_or(u64::MAX)
}

/// Returns a duration in nanoseconds.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_packet_is_1514_bytes_either_way() {
        let costs = AgentCosts::default();
        assert_eq!(costs.multicast(1424), 1514);
        assert_eq!(costs.multicast(0), 90);
        assert_eq!(costs.unicast(1448 - wire::MESSAGE_DATA_HEADER), 1514);
        let costs = AgentCosts { beyond_ipv4: wire::IPV6 - wire::IPV4, ..costs };
        assert_eq!([costs.multicast(1404), costs.multicast(1405)], [1514, 1514 + 1 + 110]);
        assert_eq!(costs.unicast(1428 - wire::MESSAGE_DATA_HEADER), 1514);
    }
}
