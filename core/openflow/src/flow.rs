//! Flow entries: adding, changing, deleting, and notifications of removal.

use crate::instruction::Instruction;
use crate::macros::{flags, layout, number};
use crate::oxm::Match;
use crate::value::{BufferId, Counter, GroupId, PortNo, TableId};

number! {
    /// Command of a flow modification.
    pub struct FlowCommand(u8) as "{}" {
        ADD = 0 "add",
        MODIFY = 1 "modify",
        MODIFY_STRICT = 2 "modify_strict",
        DELETE = 3 "delete",
        DELETE_STRICT = 4 "delete_strict",
    }
}

flags! {
    /// Options of a flow.
    pub struct FlowFlags(u16) {
        SEND_FLOW_REM = 0x01 "send_flow_rem",
        CHECK_OVERLAP = 0x02 "check_overlap",
        RESET_COUNTS = 0x04 "reset_counts",
        NO_PKT_COUNTS = 0x08 "no_pkt_counts",
        NO_BYT_COUNTS = 0x10 "no_byt_counts",
    }
}

layout! {
    /// Changes a flow table.
    pub struct FlowMod = "flow modification" {
        /// Opaque identifier that the controller chooses.
        cookie: u64,
        /// For modifications and deletions: restricts them to flows whose cookie equals `cookie` in
        /// these bits.
        cookie_mask: u64,
        /// The table; [`TableId::ALL`] to delete from all.
        table: TableId,
        /// Command to execute.
        command: FlowCommand,
        /// Seconds without packets after which the flow is removed; 0 for never.
        idle_timeout: u16,
        /// Seconds after which the flow is removed; 0 for never.
        hard_timeout: u16,
        /// Priority: of several matching flows the highest applies.
        priority: u16,
        /// Buffered packet to which the flow is also applied, or [`BufferId::NONE`].
        buffer: BufferId,
        /// For deletions: restricts them to flows that output to this port.
        out_port: PortNo,
        /// For deletions: restricts them to flows that use this group.
        out_group: GroupId,
        /// Options.
        flags: FlowFlags => pad 2,
        /// Packets that the flow matches.
        matching: Match,
        /// Instructions for these packets, which are dropped if there are none.
        instructions: Vec<Instruction>,
    }
}

impl FlowMod {
    /// Priority that the standard's examples and Open vSwitch use by default.
    pub const DEFAULT_PRIORITY: u16 = 0x8000;
}

/// Adds a flow to table 0 that matches every packet, with default priority and without instructions
/// or restrictions. Callers should set the fields they need and take the rest from here.
impl Default for FlowMod {
    fn default() -> Self {
        Self {
            cookie: 0,
            cookie_mask: 0,
            table: TableId(0),
            command: FlowCommand::ADD,
            idle_timeout: 0,
            hard_timeout: 0,
            priority: Self::DEFAULT_PRIORITY,
            buffer: BufferId::NONE,
            out_port: PortNo::ANY,
            out_group: GroupId::ANY,
            flags: FlowFlags::NONE,
            matching: Match::new(),
            instructions: Vec::new(),
        }
    }
}

number! {
    /// Reason for the removal of a flow.
    pub struct FlowRemovedReason(u8) as "{}" {
        IDLE_TIMEOUT = 0 "idle_timeout",
        HARD_TIMEOUT = 1 "hard_timeout",
        DELETE = 2 "delete",
        GROUP_DELETE = 3 "group_delete",
    }
}

layout! {
    /// Notifies that a flow was removed.
    pub struct FlowRemoved = "flow removed" {
        /// Cookie of the flow.
        cookie: u64,
        /// Priority of the flow.
        priority: u16,
        /// Reason for the removal.
        reason: FlowRemovedReason,
        /// Table of the flow.
        table: TableId,
        /// Lifetime in seconds.
        duration_s: u32,
        /// Nanoseconds of the lifetime beyond the seconds.
        duration_ns: u32,
        /// Idle timeout of the flow.
        idle_timeout: u16,
        /// Hard timeout of the flow.
        hard_timeout: u16,
        /// Packets that matched.
        packets: Counter,
        /// Bytes in these packets.
        bytes: Counter,
        /// Match of the flow.
        matching: Match,
    }
}

flags! {
    /// Configuration of a flow table; all bits are deprecated.
    pub struct TableConfig(u32) {
        DEPRECATED = 0x3 "deprecated",
    }
}

layout! {
    /// Configures a flow table.
    pub struct TableMod = "table modification" {
        /// The table.
        table: TableId => pad 3,
        /// New configuration.
        config: TableConfig,
    }
}
