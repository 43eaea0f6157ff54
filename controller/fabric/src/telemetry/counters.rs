//! Counters of a switch and of its ports, as plain data.

use std::collections::BTreeMap;

/// What a port has counted since its switch began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets that came in.
    pub rx_packets: u64,
    /// Bytes that came in.
    pub rx_bytes: u64,
    /// Packets that went out.
    pub tx_packets: u64,
    /// Bytes that went out.
    pub tx_bytes: u64,
    /// Packets lost at the port, both ways: dropped or broken.
    pub lost: u64,
}

/// What a switch has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SwitchCounters {
    pub(crate) ports: BTreeMap<u32, PortCounters>,
    /// MulticastGroups packets of COOL's range that came from nobody who may send them.
    pub(crate) nonmember_packets: u64,
    /// Packets that it has handed to the controller during this session.
    pub(crate) packet_ins: u64,
    /// Of those, dropped since their ports handed in too many.
    pub(crate) packet_ins_dropped: u64,
    /// Whether it has meters.
    pub(crate) meters: bool,
    /// Whether it has group tables of type ALL, if it says.
    pub(crate) group_tables: Option<bool>,
}
