//! Ports: their properties, notifications of changes, and modifications.

use crate::macros::{flags, layout, number};
use crate::value::{FixedText, MacAddr, PortNo};

flags! {
    /// Administrative settings of a port.
    pub struct PortConfig(u32) {
        PORT_DOWN = 0x01 "port_down",
        NO_RECV = 0x04 "no_recv",
        NO_FWD = 0x20 "no_fwd",
        NO_PACKET_IN = 0x40 "no_packet_in",
    }
}

flags! {
    /// Observed state of a port.
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
        /// Number of the port.
        port: PortNo => pad 4,
        /// Ethernet address.
        hw_addr: MacAddr => pad 2,
        /// Name, such as that of the interface.
        name: FixedText<16>,
        /// Administrative settings.
        config: PortConfig,
        /// Observed state.
        state: PortState,
        /// Features in use.
        current: PortFeatures,
        /// Features that the port advertises.
        advertised: PortFeatures,
        /// Features that the port supports.
        supported: PortFeatures,
        /// Features that the peer advertises.
        peer: PortFeatures,
        /// Current rate in kbit/s.
        current_kbps: u32,
        /// Maximum rate in kbit/s.
        max_kbps: u32,
    }
}

number! {
    /// Reason for a port status message.
    pub struct PortReason(u8) as "{}" {
        ADD = 0 "add",
        DELETE = 1 "delete",
        MODIFY = 2 "modify",
    }
}

layout! {
    /// Notifies that a port was added, removed or changed.
    pub struct PortStatus = "port status" {
        /// Reason for the message.
        reason: PortReason => pad 7,
        /// The port after the change.
        port: Port,
    }
}

layout! {
    /// Changes a port.
    pub struct PortMod = "port modification" {
        /// The port.
        port: PortNo => pad 4,
        /// Ethernet address of the port. As a safeguard, the switch refuses the change if it
        /// differs.
        hw_addr: MacAddr => pad 2,
        /// The new values of the bits in `mask`.
        config: PortConfig,
        /// The bits to change.
        mask: PortConfig,
        /// Features to advertise; none to leave them unchanged.
        advertise: PortFeatures => pad 4,
    }
}
