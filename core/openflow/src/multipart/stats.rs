//! Counters of flows, ports, queues, groups and meters, and the properties of groups and meters.

use std::fmt;

use crate::Error;
use crate::codec::{ListItem, Reader, WireFormat, Writer};
use crate::flow::{FlowFlags, FlowMod};
use crate::group::{Bucket, GroupType};
use crate::instruction::Instruction;
use crate::macros::{flags, layout};
use crate::meter::{Band, MeterFlags};
use crate::oxm::Match;
use crate::value::{Counter, GroupId, MeterId, PortNo, QueueId, TableId};

layout! {
    /// Selects flows; all by default.
    pub struct FlowStatsRequest = "flow statistics request" {
        /// Restricts the request to this table.
        table: TableId => pad 3,
        /// Restricts the request to flows that output to this port.
        out_port: PortNo,
        /// Restricts the request to flows that use this group.
        out_group: GroupId => pad 4,
        /// Restricts the request to flows whose cookie equals this one in the bits of
        /// `cookie_mask`.
        cookie: u64,
        /// Bits of the cookie that are compared; 0 for flows with any cookie.
        cookie_mask: u64,
        /// Restricts the request to flows with at least these match fields.
        matching: Match,
    }
}

/// Selects all flows.
impl Default for FlowStatsRequest {
    fn default() -> Self {
        Self {
            table: TableId::ALL,
            out_port: PortNo::ANY,
            out_group: GroupId::ANY,
            cookie: 0,
            cookie_mask: 0,
            matching: Match::new(),
        }
    }
}

layout! {
    /// A flow and its counters.
    pub struct FlowStats = "flow statistics" sized(0) {
        /// Table of the flow.
        table: TableId => pad 1,
        /// Lifetime in seconds.
        duration_s: u32,
        /// Nanoseconds of the lifetime beyond the seconds.
        duration_ns: u32,
        /// Priority.
        priority: u16,
        /// Seconds without packets after which the flow is removed; 0 for never.
        idle_timeout: u16,
        /// Seconds after which the flow is removed; 0 for never.
        hard_timeout: u16,
        /// Options.
        flags: FlowFlags => pad 4,
        /// Cookie.
        cookie: u64,
        /// Packets that matched.
        packets: Counter,
        /// Bytes in these packets.
        bytes: Counter,
        /// Match.
        matching: Match,
        /// Instructions.
        instructions: Vec<Instruction>,
    }
}

/// Returns the statistics that a switch reports right after it has added the flow.
impl From<FlowMod> for FlowStats {
    fn from(flow: FlowMod) -> Self {
        Self {
            table: flow.table,
            duration_s: 0,
            duration_ns: 0,
            priority: flow.priority,
            idle_timeout: flow.idle_timeout,
            hard_timeout: flow.hard_timeout,
            flags: flow.flags,
            cookie: flow.cookie,
            packets: Counter(0),
            bytes: Counter(0),
            matching: flow.matching,
            instructions: flow.instructions,
        }
    }
}

layout! {
    /// Sum of the counters of flows.
    pub struct AggregateStats = "aggregate statistics" {
        /// Packets that matched.
        packets: Counter,
        /// Bytes in these packets.
        bytes: Counter,
        /// Number of flows.
        flows: u32 => pad 4,
    }
}

layout! {
    /// Counters of a flow table.
    pub struct TableStats = "table statistics" {
        /// The table.
        table: TableId => pad 3,
        /// Number of flows.
        active: u32,
        /// Packets looked up.
        lookups: Counter,
        /// Packets that matched a flow.
        matched: Counter,
    }
}

layout! {
    /// Requests the counters of a port.
    pub struct PortStatsRequest = "port statistics request" {
        /// The port; [`PortNo::ANY`] for all.
        port: PortNo => pad 4,
    }
}

layout! {
    /// Counters of a port.
    pub struct PortStats = "port statistics" {
        /// The port.
        port: PortNo => pad 4,
        /// Packets received.
        rx_packets: Counter,
        /// Packets sent.
        tx_packets: Counter,
        /// Bytes received.
        rx_bytes: Counter,
        /// Bytes sent.
        tx_bytes: Counter,
        /// Received packets that were dropped.
        rx_dropped: Counter,
        /// Packets that were dropped before sending.
        tx_dropped: Counter,
        /// Receive errors.
        rx_errors: Counter,
        /// Transmit errors.
        tx_errors: Counter,
        /// Receive errors due to alignment.
        rx_frame_errors: Counter,
        /// Receive errors due to overruns.
        rx_over_errors: Counter,
        /// Receive errors due to checksums.
        rx_crc_errors: Counter,
        /// Collisions.
        collisions: Counter,
        /// Lifetime of the port in seconds.
        duration_s: u32,
        /// Nanoseconds of the lifetime beyond the seconds.
        duration_ns: u32,
    }
}

layout! {
    /// Requests the counters of queues.
    pub struct QueueStatsRequest = "queue statistics request" {
        /// Port of the queues; [`PortNo::ANY`] for all.
        port: PortNo,
        /// The queue; [`QueueId::ALL`] for all.
        queue: QueueId,
    }
}

layout! {
    /// Counters of a queue.
    pub struct QueueStats = "queue statistics" {
        /// Port of the queue.
        port: PortNo,
        /// The queue.
        queue: QueueId,
        /// Bytes sent.
        tx_bytes: Counter,
        /// Packets sent.
        tx_packets: Counter,
        /// Packets dropped.
        tx_errors: Counter,
        /// Lifetime in seconds.
        duration_s: u32,
        /// Nanoseconds of the lifetime beyond the seconds.
        duration_ns: u32,
    }
}

layout! {
    /// Requests the counters of a group.
    pub struct GroupStatsRequest = "group statistics request" {
        /// The group; [`GroupId::ALL`] for all.
        group: GroupId => pad 4,
    }
}

layout! {
    /// Counters of a bucket or a meter band.
    pub struct PartStats = "counters" {
        /// Packets.
        packets: Counter,
        /// Bytes in them.
        bytes: Counter,
    }
}

layout! {
    /// Counters of a group.
    pub struct GroupStats = "group statistics" sized(2) {
        /// The group.
        group: GroupId,
        /// Number of flows and groups that use it.
        references: u32 => pad 4,
        /// Packets that it processed.
        packets: Counter,
        /// Bytes in these packets.
        bytes: Counter,
        /// Lifetime in seconds.
        duration_s: u32,
        /// Nanoseconds of the lifetime beyond the seconds.
        duration_ns: u32,
        /// Counters of each bucket.
        buckets: Vec<PartStats>,
    }
}

layout! {
    /// A group and its buckets.
    pub struct GroupDesc = "group description" sized(0) {
        /// Type of the group.
        kind: GroupType => pad 1,
        /// The group.
        group: GroupId,
        /// The buckets.
        buckets: Vec<Bucket>,
    }
}

flags! {
    /// Optional features of groups.
    pub struct GroupCapabilities(u32) {
        SELECT_WEIGHT = 0x1 "select_weight",
        SELECT_LIVENESS = 0x2 "select_liveness",
        CHAINING = 0x4 "chaining",
        CHAINING_CHECKS = 0x8 "chaining_checks",
    }
}

layout! {
    /// A number for each group type: all, select, indirect and fast failover.
    pub struct PerGroupType = "numbers by group type" {
        /// For the type all.
        all: u32,
        /// For the type select.
        select: u32,
        /// For the type indirect.
        indirect: u32,
        /// For the type fast failover.
        ff: u32,
    }
}

layout! {
    /// Features of the group table.
    pub struct GroupFeatures = "group features" {
        /// Supported types: bit n for type n.
        types: u32,
        /// Optional features.
        capabilities: GroupCapabilities,
        /// Maximum number of groups of each type.
        max_groups: PerGroupType,
        /// Supported actions of each type: bit n for action n.
        actions: PerGroupType,
    }
}

layout! {
    /// Selects a meter.
    pub struct MeterRequest = "meter request" {
        /// The meter; [`MeterId::ALL`] for all.
        meter: MeterId => pad 4,
    }
}

/// Counters of a meter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeterStats {
    /// The meter.
    pub meter: MeterId,
    /// Counters.
    pub counters: MeterCounters,
}

layout! {
    /// Counters of a meter, without its number.
    pub struct MeterCounters = "meter counters" {
        /// Number of flows that use it.
        flows: u32,
        /// Packets that it processed.
        packets: Counter,
        /// Bytes in these packets.
        bytes: Counter,
        /// Lifetime in seconds.
        duration_s: u32,
        /// Nanoseconds of the lifetime beyond the seconds.
        duration_ns: u32,
        /// Counters of each band.
        bands: Vec<PartStats>,
    }
}

impl WireFormat for MeterStats {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let start = r.offset();
        let meter = r.named("meter statistics", |r| r.get())?;
        r.measured("meter statistics", start, |r| {
            r.pad(6)?;
            Ok(Self { meter, counters: r.get()? })
        })
    }

    fn write(&self, w: &mut Writer) {
        let start = w.position();
        w.put(&self.meter);
        w.measured("meter statistics", start, |w| {
            w.pad(6);
            w.put(&self.counters);
        });
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{meter={} {}}}", self.meter, self.counters)
    }
}

impl ListItem for MeterStats {}

layout! {
    /// A meter and its bands.
    pub struct MeterConfig = "meter configuration" sized(0) {
        /// Options of the meter.
        flags: MeterFlags,
        /// The meter.
        meter: MeterId,
        /// Bands of the meter.
        bands: Vec<Band>,
    }
}

layout! {
    /// Features of meters.
    pub struct MeterFeatures = "meter features" {
        /// Maximum number of meters.
        max_meters: u32,
        /// Supported types of bands: bit n for type n.
        band_types: u32,
        /// Supported options: the bits of [`MeterFlags`].
        capabilities: u32,
        /// Maximum number of bands of a meter.
        max_bands: u8,
        /// Maximum number of colors.
        max_color: u8 => pad 2,
    }
}
