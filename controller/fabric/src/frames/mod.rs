//! The frames that the controller itself reads and writes: ARP, neighbor discovery, queries of
//! memberships, 802.1Q tags, and the MAC addresses by which packets are routed. LLDP belongs to
//! [`cool_topology`].

pub(crate) mod arp;
pub(crate) mod loop_probe;
pub(crate) mod membership;
pub(crate) mod ndp;
pub(crate) mod pmac;
pub(crate) mod resolution;
pub(crate) mod vlan;

use cool_topology::lldp;

/// Returns whether a frame, tagged or not, is LLDP.
pub(crate) fn is_lldp(frame: &[u8]) -> bool {
    ethertype(&vlan::untagged(frame).1) == Some(lldp::ETHERTYPE)
}

/// Returns the EtherType of an untagged frame.
pub(crate) fn ethertype(frame: &[u8]) -> Option<u16> {
    frame.get(12..14).map(|kind| u16::from_be_bytes([kind[0], kind[1]]))
}
