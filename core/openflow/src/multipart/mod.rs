//! Multipart messages, by which a controller requests state of a switch. The structures in the
//! replies are in the modules below.

mod stats;
mod table;

pub use stats::*;
pub use table::*;

use std::fmt;

use crate::Error;
use crate::codec::{Reader, TaggedUnion, WireFormat, Writer};
use crate::macros::{choice, flags, layout, number};
use crate::port::Port;
use crate::session::Experimenter;
use crate::value::FixedText;

number! {
    /// Type of a multipart message.
    pub struct MultipartType(u16) as "{}" {
        DESC = 0 "desc",
        FLOW = 1 "flow",
        AGGREGATE = 2 "aggregate",
        TABLE = 3 "table",
        PORT_STATS = 4 "port_stats",
        QUEUE = 5 "queue",
        GROUP = 6 "group",
        GROUP_DESC = 7 "group_desc",
        GROUP_FEATURES = 8 "group_features",
        METER = 9 "meter",
        METER_CONFIG = 10 "meter_config",
        METER_FEATURES = 11 "meter_features",
        TABLE_FEATURES = 12 "table_features",
        PORT_DESC = 13 "port_desc",
        EXPERIMENTER = 0xffff "experimenter",
    }
}

flags! {
    /// Flags of a multipart message.
    pub struct MultipartFlags(u16) {
        MORE = 0x1 "more",
    }
}

layout! {
    /// Description of a switch by its vendor and operator.
    pub struct Description = "description" {
        /// Manufacturer.
        manufacturer: FixedText<256>,
        /// Hardware.
        hardware: FixedText<256>,
        /// Software.
        software: FixedText<256>,
        /// Serial number.
        serial_number: FixedText<32>,
        /// Name given by the operator.
        datapath: FixedText<256>,
    }
}

choice! {
    /// A request for state of a switch.
    pub enum MultipartRequest of MultipartType {
        /// Description of the switch.
        DESC => Desc,
        /// Flows and their counters.
        FLOW => Flow(FlowStatsRequest),
        /// Sum of the counters of flows.
        AGGREGATE => Aggregate(FlowStatsRequest),
        /// Counters of the flow tables.
        TABLE => Table,
        /// Counters of ports.
        PORT_STATS => PortStats(PortStatsRequest),
        /// Counters of queues.
        QUEUE => Queue(QueueStatsRequest),
        /// Counters of groups.
        GROUP => Group(GroupStatsRequest),
        /// Groups and their buckets.
        GROUP_DESC => GroupDesc,
        /// Features of the group table.
        GROUP_FEATURES => GroupFeatures,
        /// Counters of meters.
        METER => Meter(MeterRequest),
        /// Meters and their bands.
        METER_CONFIG => MeterConfig(MeterRequest),
        /// Features of meters.
        METER_FEATURES => MeterFeatures,
        /// Features of the flow tables. A list that is not empty first changes the tables to these
        /// features.
        TABLE_FEATURES => TableFeatures(Vec<TableFeatures>),
        /// Ports.
        PORT_DESC => PortDesc,
        /// Request of an experimenter.
        EXPERIMENTER => Experimenter(Experimenter),
    }
}

choice! {
    /// A reply with state of a switch.
    pub enum MultipartReply of MultipartType {
        /// Description of the switch.
        DESC => Desc(Box<Description>),
        /// Flows and their counters.
        FLOW => Flow(Vec<FlowStats>),
        /// Sum of the counters of flows.
        AGGREGATE => Aggregate(AggregateStats),
        /// Counters of the flow tables.
        TABLE => Table(Vec<TableStats>),
        /// Counters of ports.
        PORT_STATS => PortStats(Vec<PortStats>),
        /// Counters of queues.
        QUEUE => Queue(Vec<QueueStats>),
        /// Counters of groups.
        GROUP => Group(Vec<GroupStats>),
        /// Groups and their buckets.
        GROUP_DESC => GroupDesc(Vec<GroupDesc>),
        /// Features of the group table.
        GROUP_FEATURES => GroupFeatures(GroupFeatures),
        /// Counters of meters.
        METER => Meter(Vec<MeterStats>),
        /// Meters and their bands.
        METER_CONFIG => MeterConfig(Vec<MeterConfig>),
        /// Features of meters.
        METER_FEATURES => MeterFeatures(MeterFeatures),
        /// Features of the flow tables.
        TABLE_FEATURES => TableFeatures(Vec<TableFeatures>),
        /// Ports.
        PORT_DESC => PortDesc(Vec<Port>),
        /// Reply of an experimenter.
        EXPERIMENTER => Experimenter(Experimenter),
    }
}

/// A request or reply, which may consist of several messages of the same transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Multipart<T> {
    /// Flags, for example whether more messages follow.
    pub flags: MultipartFlags,
    /// Content of this message.
    pub body: T,
}

impl<T> Multipart<T> {
    /// Returns whether more messages of the same transaction follow.
    pub fn more(&self) -> bool {
        self.flags.contains(MultipartFlags::MORE)
    }
}

/// Returns a message that no other message of its transaction follows: the only one, or the last of
/// several.
impl<T> From<T> for Multipart<T> {
    fn from(body: T) -> Self {
        Self { flags: MultipartFlags::NONE, body }
    }
}

impl<T: TaggedUnion> WireFormat for Multipart<T> {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let (kind, flags) = (r.get()?, r.get()?);
        r.pad(4)?;
        Ok(Self { flags, body: T::read_as(kind, r)? })
    }

    fn write(&self, w: &mut Writer) {
        w.put(&self.body.kind());
        w.put(&self.flags);
        w.pad(4);
        self.body.write_content(w);
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.body.kind().display(f)?;
        write!(f, " flags={}", self.flags)?;
        self.body.display_content(f)
    }
}
