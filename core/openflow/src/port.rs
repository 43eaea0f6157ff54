//! Ports: what a switch tells of them, and how they are changed.

use crate::macros::{flags, layout, number};
use crate::value::{FixedText, MacAddr, PortNo};

flags! {
    /// What an operator decided about a port.
    pub struct PortConfig(u32) {
        PORT_DOWN = 0x01 "port_down",
        NO_RECV = 0x04 "no_recv",
        NO_FWD = 0x20 "no_fwd",
        NO_PACKET_IN = 0x40 "no_packet_in",
    }
}

flags! {
    /// What is the case with a port.
    pub struct PortState(u32) {
        LINK_DOWN = 0x1 "link_down",
        BLOCKED = 0x2 "blocked",
        LIVE = 0x4 "live",
    }
}

flags! {
    /// Rates, media and modes of a port.
    pub struct PortFeatures(u32) {
        HD_10M = 0x0001 "10m_hd",
        FD_10M = 0x0002 "10m_fd",
        HD_100M = 0x0004 "100m_hd",
        FD_100M = 0x0008 "100m_fd",
        HD_1G = 0x0010 "1g_hd",
        FD_1G = 0x0020 "1g_fd",
        FD_10G = 0x0040 "10g_fd",
        FD_40G = 0x0080 "40g_fd",
        FD_100G = 0x0100 "100g_fd",
        FD_1T = 0x0200 "1t_fd",
        OTHER = 0x0400 "other",
        COPPER = 0x0800 "copper",
        FIBER = 0x1000 "fiber",
        AUTONEG = 0x2000 "autoneg",
        PAUSE = 0x4000 "pause",
        PAUSE_ASYM = 0x8000 "pause_asym",
    }
}

layout! {
    /// A port of a switch.
    pub struct Port = "port" {
        /// Its number.
        port: PortNo => pad 4,
        /// Its Ethernet address.
        hw_addr: MacAddr => pad 2,
        /// Its name, such as that of the interface.
        name: FixedText<16>,
        /// What an operator decided about it.
        config: PortConfig,
        /// What is the case with it.
        state: PortState,
        /// What it does now.
        current: PortFeatures,
        /// What it offers to its peer.
        advertised: PortFeatures,
        /// What it can do.
        supported: PortFeatures,
        /// What its peer offers.
        peer: PortFeatures,
        /// Its present rate in kbit/s.
        current_kbps: u32,
        /// Its highest rate in kbit/s.
        max_kbps: u32,
    }
}

number! {
    /// What happened to a port.
    pub struct PortReason(u8) as "{}" {
        ADD = 0 "add",
        DELETE = 1 "delete",
        MODIFY = 2 "modify",
    }
}

layout! {
    /// A port came, went or changed.
    pub struct PortStatus = "port status" {
        /// What happened.
        reason: PortReason => pad 7,
        /// The port as it is now.
        port: Port,
    }
}

layout! {
    /// Changes a port.
    pub struct PortMod = "port modification" {
        /// The port.
        port: PortNo => pad 4,
        /// Its Ethernet address, against mistakes.
        hw_addr: MacAddr => pad 2,
        /// The new values of the bits in `mask`.
        config: PortConfig,
        /// The bits to change.
        mask: PortConfig,
        /// What it shall offer to its peer; none: as before.
        advertise: PortFeatures => pad 4,
    }
}
