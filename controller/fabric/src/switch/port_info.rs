//! Properties of a port, as its switch reports them.

use cool_topology::MacAddr;
use rs_openflow::{Port, PortConfig, PortFeatures, PortNo, PortState};

/// A port as its switch reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortInfo {
    pub(crate) number: u32,
    pub(crate) mac: MacAddr,
    pub(crate) up: bool,
    /// Whether a protocol of the switch itself, such as STP, blocks the port.
    pub(crate) blocked: bool,
    /// Whether the switch is configured to send packets out of the port.
    pub(crate) forwards: bool,
    /// Rate; 0 if unknown.
    pub(crate) bytes_per_second: u64,
}

impl PortInfo {
    /// Returns the properties that a port description or status message contains.
    pub(crate) fn from_port(port: &Port) -> PortInfo {
        let down = port.state.contains(PortState::LINK_DOWN) || port.config.contains(PortConfig::PORT_DOWN);
        PortInfo {
            number: port.port.0,
            mac: port.hw_addr,
            up: !down,
            forwards: !port.config.contains(PortConfig::NO_FWD),
            blocked: port.state.contains(PortState::BLOCKED),
            bytes_per_second: kbps(port) * 1000 / 8,
        }
    }
}

/// Returns whether a port may lead to a host or another switch. The local port leads to the
/// switch's own host. Other reserved numbers are no ports.
pub(crate) fn may_lead_to_host(port: PortNo) -> bool {
    port == PortNo::LOCAL || (port <= PortNo::MAX && port.0 != 0)
}

/// Returns the current rate of a port in kbit/s: the highest of the standard rates whose bits are
/// set. If none is set, the port's own number counts (OpenFlow 1.3.5, 7.2.1), as for rates that
/// have no bit.
pub(crate) fn kbps(port: &Port) -> u64 {
    const MBIT: u64 = 1000;
    let bits = [
        (PortFeatures::FD_1T, 1_000_000 * MBIT),
        (PortFeatures::FD_100G, 100_000 * MBIT),
        (PortFeatures::FD_40G, 40_000 * MBIT),
        (PortFeatures::FD_10G, 10_000 * MBIT),
        (PortFeatures::FD_1G | PortFeatures::HD_1G, 1000 * MBIT),
        (PortFeatures::FD_100M | PortFeatures::HD_100M, 100 * MBIT),
        (PortFeatures::FD_10M | PortFeatures::HD_10M, 10 * MBIT),
    ];
    let found = bits.into_iter().find(|(bits, _)| port.current.0 & bits.0 != 0);
    found.map_or(u64::from(port.current_kbps), |(_, rate)| rate)
}
