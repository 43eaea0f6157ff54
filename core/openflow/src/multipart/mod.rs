//! Multipart messages: what a controller asks of a switch's state, and what it is told. The
//! structures told of are in the modules below this one.

mod stats;
mod table;

pub use stats::*;
pub use table::*;

use std::fmt;

use crate::Error;
use crate::codec::{Reader, Tagged, Wire, Writer};
use crate::macros::{choice, flags, layout, number};
use crate::port::Port;
use crate::session::Experimenter;
use crate::value::FixedText;

number! {
    /// What is asked for.
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
    /// Whether this is all.
    pub struct MultipartFlags(u16) {
        MORE = 0x1 "more",
    }
}

layout! {
    /// Which switch it is, in its maker's words.
    pub struct Description = "description" {
        /// Its maker.
        manufacturer: FixedText<256>,
        /// Its hardware.
        hardware: FixedText<256>,
        /// Its software.
        software: FixedText<256>,
        /// Its serial number.
        serial_number: FixedText<32>,
        /// What its operator calls it.
        datapath: FixedText<256>,
    }
}

choice! {
    /// A question about a switch's state.
    pub enum MultipartRequest of MultipartType {
        /// Which switch it is.
        DESC => Desc,
        /// Flows and their counters.
        FLOW => Flow(FlowStatsRequest),
        /// The sum of flows' counters.
        AGGREGATE => Aggregate(FlowStatsRequest),
        /// The counters of the flow tables.
        TABLE => Table,
        /// The counters of ports.
        PORT_STATS => PortStats(PortStatsRequest),
        /// The counters of queues.
        QUEUE => Queue(QueueStatsRequest),
        /// The counters of groups.
        GROUP => Group(GroupStatsRequest),
        /// Groups and their buckets.
        GROUP_DESC => GroupDesc,
        /// What groups there can be.
        GROUP_FEATURES => GroupFeatures,
        /// The counters of meters.
        METER => Meter(MeterRequest),
        /// Meters and their bands.
        METER_CONFIG => MeterConfig(MeterRequest),
        /// What meters there can be.
        METER_FEATURES => MeterFeatures,
        /// What the flow tables can do; with content: what they shall do.
        TABLE_FEATURES => TableFeatures(Vec<TableFeatures>),
        /// The ports.
        PORT_DESC => PortDesc,
        /// An experimenter's question.
        EXPERIMENTER => Experimenter(Experimenter),
    }
}

choice! {
    /// What a switch tells of its state.
    pub enum MultipartReply of MultipartType {
        /// Which switch it is.
        DESC => Desc(Box<Description>),
        /// Flows and their counters.
        FLOW => Flow(Vec<FlowStats>),
        /// The sum of flows' counters.
        AGGREGATE => Aggregate(AggregateStats),
        /// The counters of the flow tables.
        TABLE => Table(Vec<TableStats>),
        /// The counters of ports.
        PORT_STATS => PortStats(Vec<PortStats>),
        /// The counters of queues.
        QUEUE => Queue(Vec<QueueStats>),
        /// The counters of groups.
        GROUP => Group(Vec<GroupStats>),
        /// Groups and their buckets.
        GROUP_DESC => GroupDesc(Vec<GroupDesc>),
        /// What groups there can be.
        GROUP_FEATURES => GroupFeatures(GroupFeatures),
        /// The counters of meters.
        METER => Meter(Vec<MeterStats>),
        /// Meters and their bands.
        METER_CONFIG => MeterConfig(Vec<MeterConfig>),
        /// What meters there can be.
        METER_FEATURES => MeterFeatures(MeterFeatures),
        /// What the flow tables can do.
        TABLE_FEATURES => TableFeatures(Vec<TableFeatures>),
        /// The ports.
        PORT_DESC => PortDesc(Vec<Port>),
        /// An experimenter's answer.
        EXPERIMENTER => Experimenter(Experimenter),
    }
}

/// A question or an answer that may take several messages of the same transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Multipart<T> {
    /// Whether more follows.
    pub flags: MultipartFlags,
    /// What this message has of it.
    pub body: T,
}

impl<T> Multipart<T> {
    /// Whether more messages of the same transaction follow.
    pub fn more(&self) -> bool {
        self.flags.contains(MultipartFlags::MORE)
    }
}

/// All in one message, or the last of several.
impl<T> From<T> for Multipart<T> {
    fn from(body: T) -> Self {
        Self { flags: MultipartFlags::NONE, body }
    }
}

impl<T: Tagged> Wire for Multipart<T> {
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
