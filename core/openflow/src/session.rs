//! What a switch and a controller settle about each other: features, configuration, roles, and which
//! messages are sent unasked.

use crate::macros::{flags, layout, number};

flags! {
    /// What a switch can do.
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
    /// What a switch is.
    pub struct SwitchFeatures = "features" {
        /// Its identity: 48 bits, mostly an Ethernet address, below 16 bits of its maker's choice.
        datapath_id: u64,
        /// How many packets it can keep.
        buffers: u32,
        /// How many flow tables it has.
        tables: u8,
        /// Which of its connections this is; 0 is the main one.
        auxiliary_id: u8 => pad 2,
        /// What it can do.
        capabilities: Capabilities,
        /// Nothing, by the standard.
        reserved: u32,
    }
}

number! {
    /// What a switch does with fragments of IP packets.
    pub struct FragmentHandling(u16) as "{:#x}" {
        NORMAL = 0 "normal",
        DROP = 1 "drop",
        REASSEMBLE = 2 "reassemble",
    }
}

layout! {
    /// How a switch is configured.
    pub struct SwitchConfig = "switch configuration" {
        /// What it does with fragments.
        fragments: FragmentHandling,
        /// How many bytes of a packet it sends to the controller when no flow matches.
        miss_send_len: u16,
    }
}

number! {
    /// What a controller may do.
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
        /// Which election it comes from, so that a late one does not count.
        generation: u64,
    }
}

layout! {
    /// The messages that a controller gets unasked: bit n of a mask is for reason n.
    pub struct AsyncConfig = "asynchronous configuration" {
        /// Packets in, for a master or an equal.
        packet_in: u32,
        /// Packets in, for a slave.
        packet_in_slave: u32,
        /// Port status, for a master or an equal.
        port_status: u32,
        /// Port status, for a slave.
        port_status_slave: u32,
        /// Flows removed, for a master or an equal.
        flow_removed: u32,
        /// Flows removed, for a slave.
        flow_removed_slave: u32,
    }
}

layout! {
    /// A message that an experimenter defines.
    pub struct Experimenter = "experimenter message" {
        /// Whose.
        experimenter: u32,
        /// Which.
        kind: u32,
        /// What it says.
        data: Vec<u8>,
    }
}
