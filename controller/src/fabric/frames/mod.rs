//! The frames that the controller reads and writes itself, as bytes: ARP, 802.1Q tags, and the MAC addresses by
//! which packets are routed. LLDP is [`cool_topology`]'s.

pub(crate) mod arp;
pub(crate) mod pmac;
pub(crate) mod vlan;
