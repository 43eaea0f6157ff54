//! Entries of the flow tables: putting them there, and hearing that one is gone.

use crate::instruction::Instruction;
use crate::macros::{flags, layout, number};
use crate::matching::Match;
use crate::value::{BufferId, Counter, GroupId, PortNo, TableId};

number! {
    /// What to do to a flow table.
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
        /// The controller's own mark on the flow.
        cookie: u64,
        /// When modifying or deleting: only flows whose cookie agrees in these bits.
        cookie_mask: u64,
        /// The table; [`TableId::ALL`] to delete from all.
        table: TableId,
        /// What to do.
        command: FlowCommand,
        /// Seconds without a packet after which the flow goes; 0: never.
        idle_timeout: u16,
        /// Seconds after which the flow goes; 0: never.
        hard_timeout: u16,
        /// Of several flows that match, the highest counts.
        priority: u16,
        /// A kept packet to which the flow is applied.
        buffer: BufferId,
        /// When deleting: only flows that output to this port.
        out_port: PortNo,
        /// When deleting: only flows that use this group.
        out_group: GroupId,
        /// Options.
        flags: FlowFlags => pad 2,
        /// Which packets.
        matching: Match,
        /// What is done with them; none: they are dropped.
        instructions: Vec<Instruction>,
    }
}

impl FlowMod {
    /// The priority that flows have by default in the standard's examples and in Open vSwitch.
    pub const DEFAULT_PRIORITY: u16 = 0x8000;
}

/// Adds a flow to table 0, at the default priority, for every packet, without instructions; restricts
/// nothing. Name the rest and take what is left from here.
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
    /// Why a flow is gone.
    pub struct FlowRemovedReason(u8) as "{}" {
        IDLE_TIMEOUT = 0 "idle_timeout",
        HARD_TIMEOUT = 1 "hard_timeout",
        DELETE = 2 "delete",
        GROUP_DELETE = 3 "group_delete",
    }
}

layout! {
    /// A flow is gone.
    pub struct FlowRemoved = "flow removed" {
        /// The controller's own mark on it.
        cookie: u64,
        /// Its priority.
        priority: u16,
        /// Why it is gone.
        reason: FlowRemovedReason,
        /// The table it was in.
        table: TableId,
        /// How long it was there, in seconds.
        duration_s: u32,
        /// And in nanoseconds beyond those.
        duration_ns: u32,
        /// The idle timeout that it was given.
        idle_timeout: u16,
        /// The hard timeout that it was given.
        hard_timeout: u16,
        /// Packets it matched.
        packets: Counter,
        /// Bytes in them.
        bytes: Counter,
        /// Which packets it was for.
        matching: Match,
    }
}

flags! {
    /// How a flow table is configured; all bits are deprecated.
    pub struct TableConfig(u32) {
        DEPRECATED = 0x3 "deprecated",
    }
}

layout! {
    /// Configures a flow table.
    pub struct TableMod = "table modification" {
        /// The table.
        table: TableId => pad 3,
        /// How.
        config: TableConfig,
    }
}
