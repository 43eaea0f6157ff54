//! Queues of ports.

use std::fmt;

use crate::Error;
use crate::codec::{ListItem, Reader, WireFormat, Writer};
use crate::macros::{layout, number};
use crate::value::{PortNo, QueueId};

number! {
    /// Type of a queue property.
    pub struct QueuePropertyType(u16) as "{}" {
        MIN_RATE = 1 "min_rate",
        MAX_RATE = 2 "max_rate",
        EXPERIMENTER = 0xffff "experimenter",
    }
}

/// A property of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueProperty {
    /// Guaranteed rate in tenths of a percent; above 1000 if there is none.
    MinRate(u16),
    /// Maximum rate in tenths of a percent; above 1000 if there is none.
    MaxRate(u16),
    /// Property of an experimenter.
    Experimenter {
        /// Number of the experimenter.
        experimenter: u32,
        /// Content.
        data: Vec<u8>,
    },
    /// Property that OpenFlow 1.3 does not define.
    Unknown {
        /// Type of the property.
        kind: QueuePropertyType,
        /// Content after the header.
        data: Vec<u8>,
    },
}

impl QueueProperty {
    /// Returns the type of the property.
    #[must_use]
    pub fn kind(&self) -> QueuePropertyType {
        match self {
            Self::MinRate(_) => QueuePropertyType::MIN_RATE,
            Self::MaxRate(_) => QueuePropertyType::MAX_RATE,
            Self::Experimenter { .. } => QueuePropertyType::EXPERIMENTER,
            Self::Unknown { kind, .. } => *kind,
        }
    }
}

fn read_rate(r: &mut Reader<'_>) -> Result<u16, Error> {
    let rate = r.get()?;
    r.pad(6)?;
    Ok(rate)
}

impl WireFormat for QueueProperty {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let start = r.offset();
        let kind = r.named("queue property", |r| r.get())?;
        r.measured("queue property", start, |r| {
            r.pad(4)?;
            Ok(match kind {
                QueuePropertyType::MIN_RATE => Self::MinRate(read_rate(r)?),
                QueuePropertyType::MAX_RATE => Self::MaxRate(read_rate(r)?),
                QueuePropertyType::EXPERIMENTER => {
                    let experimenter = r.get()?;
                    r.pad(4)?;
                    Self::Experimenter { experimenter, data: r.get()? }
                }
                _ => Self::Unknown { kind, data: r.get()? },
            })
        })
    }

    fn write(&self, w: &mut Writer) {
        let start = w.position();
        w.put(&self.kind());
        w.measured("queue property", start, |w| {
            w.pad(4);
            match self {
                Self::MinRate(rate) | Self::MaxRate(rate) => {
                    w.put(rate);
                    w.pad(6);
                }
                Self::Experimenter { experimenter, data } => {
                    w.put(experimenter);
                    w.pad(4);
                    w.bytes(data);
                }
                Self::Unknown { data, .. } => w.bytes(data),
            }
        });
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind())?;
        match self {
            Self::MinRate(rate) | Self::MaxRate(rate) => write!(f, ":{rate}"),
            Self::Experimenter { experimenter, data } => {
                write!(f, ":{experimenter:#x} ")?;
                data.display(f)
            }
            Self::Unknown { data, .. } => {
                f.write_str(" ")?;
                data.display(f)
            }
        }
    }
}

impl ListItem for QueueProperty {}

/// A queue of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Number of the queue.
    pub queue: QueueId,
    /// Port of the queue.
    pub port: PortNo,
    /// Configuration of the queue.
    pub properties: Vec<QueueProperty>,
}

impl WireFormat for Queue {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let start = r.offset();
        let (queue, port) = r.named("queue", |r| Ok((r.get()?, r.get()?)))?;
        r.measured("queue", start, |r| {
            r.pad(6)?;
            Ok(Self { queue, port, properties: r.get()? })
        })
    }

    fn write(&self, w: &mut Writer) {
        let start = w.position();
        w.put(&self.queue);
        w.put(&self.port);
        w.measured("queue", start, |w| {
            w.pad(6);
            w.put(&self.properties);
        });
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{queue={} port={} properties=", self.queue, self.port)?;
        self.properties.display(f)?;
        f.write_str("}")
    }
}

impl ListItem for Queue {}

layout! {
    /// Requests the queues of a port.
    pub struct QueueConfigRequest = "queue configuration request" {
        /// The port; [`PortNo::ANY`] for all.
        port: PortNo => pad 4,
    }
}

layout! {
    /// The queues of a port.
    pub struct QueueConfig = "queue configuration" {
        /// The requested port.
        port: PortNo => pad 4,
        /// Queues of the port.
        queues: Vec<Queue>,
    }
}
