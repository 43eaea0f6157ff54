//! Counters of a switch and of its ports, as plain data.

use std::collections::BTreeMap;

/// Counters of a port since its switch started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets lost at the port in both directions: dropped or damaged.
    pub lost: u64,
}

/// Counters of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SwitchCounters {
    pub(crate) ports: BTreeMap<u32, PortCounters>,
    /// Multicast packets to COOL's addresses that the switch dropped because their senders are not
    /// members.
    pub(crate) nonmember_packets: u64,
    /// Packets that the switch has handed to the controller on this connection.
    pub(crate) packet_ins: u64,
    /// Packet-ins that were dropped because their ports caused too many.
    pub(crate) packet_ins_dropped: u64,
    /// Whether the switch has meters.
    pub(crate) meters: bool,
    /// Whether the switch has group tables of type ALL, if it reports that.
    pub(crate) group_tables: Option<bool>,
    /// Whether it is an Open vSwitch that forwards packets in user space.
    pub(crate) is_in_user_space: bool,
}
