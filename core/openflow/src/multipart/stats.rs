//! Counters of flows, ports, queues, groups and meters, and what groups and meters there are.

use std::fmt;

use crate::Error;
use crate::codec::{Item, Reader, Wire, Writer};
use crate::flow::{FlowFlags, FlowMod};
use crate::group::{Bucket, GroupType};
use crate::instruction::Instruction;
use crate::macros::{flags, layout};
use crate::matching::Match;
use crate::meter::{Band, MeterFlags};
use crate::value::{Counter, GroupId, MeterId, PortNo, QueueId, TableId};

layout! {
    /// Which flows are asked for; by default all.
    pub struct FlowStatsRequest = "flow statistics request" {
        /// Those in this table.
        table: TableId => pad 3,
        /// Those that output to this port.
        out_port: PortNo,
        /// Those that use this group.
        out_group: GroupId => pad 4,
        /// Those with this cookie
        cookie: u64,
        /// in these bits.
        cookie_mask: u64,
        /// Those that match nothing beside this.
        matching: Match,
    }
}

/// All flows.
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
        /// Its table.
        table: TableId => pad 1,
        /// How long it is there, in seconds.
        duration_s: u32,
        /// And in nanoseconds beyond those.
        duration_ns: u32,
        /// Its priority.
        priority: u16,
        /// Seconds without a packet after which it goes; 0: never.
        idle_timeout: u16,
        /// Seconds after which it goes; 0: never.
        hard_timeout: u16,
        /// Its options.
        flags: FlowFlags => pad 4,
        /// The controller's own mark on it.
        cookie: u64,
        /// Packets it matched.
        packets: Counter,
        /// Bytes in them.
        bytes: Counter,
        /// Which packets it is for.
        matching: Match,
        /// What it does with them.
        instructions: Vec<Instruction>,
    }
}

/// The flow as a switch tells of it that has just put it there: nothing has been counted.
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
    /// The sum of flows' counters.
    pub struct AggregateStats = "aggregate statistics" {
        /// Packets they matched.
        packets: Counter,
        /// Bytes in them.
        bytes: Counter,
        /// How many flows.
        flows: u32 => pad 4,
    }
}

layout! {
    /// The counters of a flow table.
    pub struct TableStats = "table statistics" {
        /// The table.
        table: TableId => pad 3,
        /// Flows in it.
        active: u32,
        /// Packets looked up.
        lookups: Counter,
        /// Packets that matched a flow.
        matched: Counter,
    }
}

layout! {
    /// The port whose counters are asked for.
    pub struct PortStatsRequest = "port statistics request" {
        /// The port; [`PortNo::ANY`] for all.
        port: PortNo => pad 4,
    }
}

layout! {
    /// The counters of a port.
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
        /// Packets dropped on receiving.
        rx_dropped: Counter,
        /// Packets dropped on sending.
        tx_dropped: Counter,
        /// Errors on receiving.
        rx_errors: Counter,
        /// Errors on sending.
        tx_errors: Counter,
        /// Of those, frames badly aligned.
        rx_frame_errors: Counter,
        /// Of those, overruns.
        rx_over_errors: Counter,
        /// Of those, wrong checksums.
        rx_crc_errors: Counter,
        /// Collisions.
        collisions: Counter,
        /// How long the port is there, in seconds.
        duration_s: u32,
        /// And in nanoseconds beyond those.
        duration_ns: u32,
    }
}

layout! {
    /// The queues whose counters are asked for.
    pub struct QueueStatsRequest = "queue statistics request" {
        /// Their port; [`PortNo::ANY`] for all.
        port: PortNo,
        /// The queue; [`QueueId::ALL`] for all.
        queue: QueueId,
    }
}

layout! {
    /// The counters of a queue.
    pub struct QueueStats = "queue statistics" {
        /// Its port.
        port: PortNo,
        /// The queue.
        queue: QueueId,
        /// Bytes sent.
        tx_bytes: Counter,
        /// Packets sent.
        tx_packets: Counter,
        /// Packets dropped.
        tx_errors: Counter,
        /// How long it is there, in seconds.
        duration_s: u32,
        /// And in nanoseconds beyond those.
        duration_ns: u32,
    }
}

layout! {
    /// The group whose counters are asked for.
    pub struct GroupStatsRequest = "group statistics request" {
        /// The group; [`GroupId::ALL`] for all.
        group: GroupId => pad 4,
    }
}

layout! {
    /// The counters of a bucket or a meter band.
    pub struct PartStats = "counters" {
        /// Packets.
        packets: Counter,
        /// Bytes in them.
        bytes: Counter,
    }
}

layout! {
    /// The counters of a group.
    pub struct GroupStats = "group statistics" sized(2) {
        /// The group.
        group: GroupId,
        /// How many flows and groups hand packets to it.
        references: u32 => pad 4,
        /// Packets that came to it.
        packets: Counter,
        /// Bytes in them.
        bytes: Counter,
        /// How long it is there, in seconds.
        duration_s: u32,
        /// And in nanoseconds beyond those.
        duration_ns: u32,
        /// What went through each of its buckets.
        buckets: Vec<PartStats>,
    }
}

layout! {
    /// A group and its buckets.
    pub struct GroupDesc = "group description" sized(0) {
        /// What it does with its buckets.
        kind: GroupType => pad 1,
        /// The group.
        group: GroupId,
        /// The buckets.
        buckets: Vec<Bucket>,
    }
}

flags! {
    /// What groups can do.
    pub struct GroupCapabilities(u32) {
        SELECT_WEIGHT = 0x1 "select_weight",
        SELECT_LIVENESS = 0x2 "select_liveness",
        CHAINING = 0x4 "chaining",
        CHAINING_CHECKS = 0x8 "chaining_checks",
    }
}

layout! {
    /// Numbers for the group types all, select, indirect and fast failover.
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
    /// What groups there can be.
    pub struct GroupFeatures = "group features" {
        /// The types there are: bit n for the type of number n.
        types: u32,
        /// What they can do.
        capabilities: GroupCapabilities,
        /// How many there can be of each.
        max_groups: PerGroupType,
        /// What actions each can do: bit n for the action of number n.
        actions: PerGroupType,
    }
}

layout! {
    /// The meter that is asked for.
    pub struct MeterRequest = "meter request" {
        /// The meter; [`MeterId::ALL`] for all.
        meter: MeterId => pad 4,
    }
}

/// The counters of a meter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeterStats {
    /// The meter.
    pub meter: MeterId,
    /// What it counts.
    pub counters: MeterCounters,
}

layout! {
    /// What a meter counts.
    pub struct MeterCounters = "meter counters" {
        /// How many flows use it.
        flows: u32,
        /// Packets that came to it.
        packets: Counter,
        /// Bytes in them.
        bytes: Counter,
        /// How long it is there, in seconds.
        duration_s: u32,
        /// And in nanoseconds beyond those.
        duration_ns: u32,
        /// What each of its bands had to deal with.
        bands: Vec<PartStats>,
    }
}

impl Wire for MeterStats {
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

impl Item for MeterStats {}

layout! {
    /// A meter and its bands.
    pub struct MeterConfig = "meter configuration" sized(0) {
        /// How it counts.
        flags: MeterFlags,
        /// The meter.
        meter: MeterId,
        /// What it does above which rates.
        bands: Vec<Band>,
    }
}

layout! {
    /// What meters there can be.
    pub struct MeterFeatures = "meter features" {
        /// How many.
        max_meters: u32,
        /// The kinds of band there are: bit n for the kind of number n.
        band_types: u32,
        /// How they can count: the bits of [`MeterFlags`].
        capabilities: u32,
        /// How many bands each may have.
        max_bands: u8,
        /// How many colors there are.
        max_color: u8 => pad 2,
    }
}
