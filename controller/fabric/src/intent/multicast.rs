//! Flows for multicast of other programs than COOL: each switch forwards packets to an address by
//! the same ports, except the one that has received them (OpenFlow 1.3.5, 7.2.5). They use no group
//! entries.

use super::Intent;
use super::cookies::FOR_MULTICAST;
use super::flows::{MULTICAST, MULTICAST_REFUSED, flow};
use super::tables::FlowKey;
use crate::frames::vlan::Vlan;
use cool_topology::{DatapathId, MacAddr, Port};
use core::net::IpAddr;
use rs_openflow::{Action, EtherType, Match, PortNo};
use std::collections::BTreeSet;

/// First octet of multicast Ethernet addresses, and the mask that excludes broadcasts.
const GROUP_ADDRESS: MacAddr = MacAddr(0x01, 0, 0, 0, 0, 0);
const GROUP_ADDRESS_MASK: MacAddr = MacAddr(0x81, 0, 0, 0, 0, 0);

/// The address of the Precision Time Protocol without IP (IEEE 1588-2019, annex F).
pub(crate) const PTP: MacAddr = MacAddr(0x01, 0x1b, 0x19, 0, 0, 0);

/// Destination of multicast packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MulticastAddress {
    /// Of IPv4 or IPv6.
    Ip(IpAddr),
    /// Of packets without IP.
    Ethernet(MacAddr),
}

impl core::fmt::Display for MulticastAddress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            MulticastAddress::Ip(address) => address.fmt(f),
            MulticastAddress::Ethernet(address) => address.fmt(f),
        }
    }
}

/// A multicast address in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MulticastKey {
    pub(crate) vlan: Vlan,
    pub(crate) address: MulticastAddress,
}

impl MulticastKey {
    fn flow_key(self) -> FlowKey {
        let vlan = Match::new().vlan_vid(self.vlan.field());
        let matching = match self.address {
            MulticastAddress::Ip(IpAddr::V4(ip)) => vlan.eth_type(EtherType::IPV4).ipv4_dst(ip),
            MulticastAddress::Ip(IpAddr::V6(ip)) => vlan.eth_type(EtherType::IPV6).ipv6_dst(ip),
            MulticastAddress::Ethernet(address) => vlan.eth_dst(address),
        };
        FlowKey::new(MULTICAST, matching)
    }
}

impl Intent {
    /// Makes a switch forward packets to this address by these ports, or with `None` no longer.
    pub(crate) fn carry(&mut self, switch: DatapathId, key: MulticastKey, ports: Option<&BTreeSet<u32>>) {
        let output = |ports: &BTreeSet<u32>| ports.iter().map(|port| Action::output(PortNo(*port))).collect();
        let flow = ports.map(|ports| flow(FOR_MULTICAST, output(ports)));
        self.flow(switch, key.flow_key(), flow);
    }

    /// Makes a switch drop the multicast packets that a port receives, or no longer.
    pub(crate) fn refuse_multicast(&mut self, port: Port, refused: bool) {
        let from = Match::new().in_port(PortNo(port.number));
        let key = FlowKey::new(MULTICAST_REFUSED, from.eth_dst_masked(GROUP_ADDRESS, GROUP_ADDRESS_MASK));
        self.flow(port.switch, key, refused.then(|| flow(FOR_MULTICAST, Vec::new())));
    }
}
