//! Settings between a switch and a controller: features, configuration, roles and notifications.

use crate::macros::{flags, layout, number};

flags! {
    /// Optional features of a switch.
    pub struct Capabilities(u32) {
        FLOW_STATS = 0x001 "flow_stats",
        TABLE_STATS = 0x002 "table_stats",
        PORT_STATS = 0x004 "port_stats",
        GROUP_STATS = 0x008 "group_stats",
        IP_REASM = 0x020 "ip_reasm",
        QUEUE_STATS = 0x040 "queue_stats",
        PORT_BLOCKED = 0x100 "port_blocked",
    }
}

layout! {
    /// Properties of a switch.
    pub struct SwitchFeatures = "features" {
        /// Datapath id. The low 48 bits are mostly an Ethernet address; the vendor chooses the high
        /// 16 bits.
        datapath_id: u64,
        /// Number of packets that the switch can buffer.
        buffers: u32,
        /// Number of flow tables.
        tables: u8,
        /// Number of this connection; 0 for the main one.
        auxiliary_id: u8 => pad 2,
        /// Optional features.
        capabilities: Capabilities,
        /// Reserved by the standard.
        reserved: u32,
    }
}

number! {
    /// Treatment of fragments of IP packets.
    pub struct FragmentHandling(u16) as "{:#x}" {
        NORMAL = 0 "normal",
        DROP = 1 "drop",
        REASSEMBLE = 2 "reassemble",
    }
}

layout! {
    /// Configuration of a switch.
    pub struct SwitchConfig = "switch configuration" {
        /// Treatment of fragments.
        fragments: FragmentHandling,
        /// Number of bytes of a packet that are sent to the controller if no flow matches.
        miss_send_len: u16,
    }
}

number! {
    /// Role of a controller.
    pub struct ControllerRole(u32) as "{}" {
        NOCHANGE = 0 "nochange",
        EQUAL = 1 "equal",
        MASTER = 2 "master",
        SLAVE = 3 "slave",
    }
}

layout! {
    /// A controller's role.
    pub struct RoleConfig = "role" {
        /// The role.
        role: ControllerRole => pad 4,
        /// Generation of the master election. A switch must refuse a request with an older one.
        generation: u64,
    }
}

layout! {
    /// Notifications that a controller receives. Bit n of a mask stands for reason n.
    pub struct AsyncConfig = "asynchronous configuration" {
        /// Packet-ins, for a master or an equal.
        packet_in: u32,
        /// Packet-ins, for a slave.
        packet_in_slave: u32,
        /// Port status, for a master or an equal.
        port_status: u32,
        /// Port status, for a slave.
        port_status_slave: u32,
        /// Removed flows, for a master or an equal.
        flow_removed: u32,
        /// Removed flows, for a slave.
        flow_removed_slave: u32,
    }
}

layout! {
    /// Message of an experimenter.
    pub struct Experimenter = "experimenter message" {
        /// Number of the experimenter.
        experimenter: u32,
        /// Type of the message.
        kind: u32,
        /// Content.
        data: Vec<u8>,
    }
}
