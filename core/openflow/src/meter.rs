//! Meters, which limit the rate of flows.

use std::fmt;

use crate::Error;
use crate::codec::{ListItem, Reader, WireFormat, Writer};
use crate::macros::{flags, layout, number};
use crate::value::MeterId;

number! {
    /// Command of a meter modification.
    pub struct MeterCommand(u16) as "{}" {
        ADD = 0 "add",
        MODIFY = 1 "modify",
        DELETE = 2 "delete",
    }
}

flags! {
    /// Options of a meter.
    pub struct MeterFlags(u16) {
        KBPS = 0x1 "kbps",
        PKTPS = 0x2 "pktps",
        BURST = 0x4 "burst",
        STATS = 0x8 "stats",
    }
}

number! {
    /// Type of a band.
    pub struct BandType(u16) as "{}" {
        DROP = 1 "drop",
        DSCP_REMARK = 2 "dscp_remark",
        EXPERIMENTER = 0xffff "experimenter",
    }
}

/// A band: the effect of a meter above a rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Band {
    /// Rate above which the band applies, in kbit/s or packets/s.
    pub rate: u32,
    /// Burst size, in kbit or packets.
    pub burst: u32,
    /// Effect on packets.
    pub effect: BandEffect,
}

/// Effect of a band on packets above its rate.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BandEffect {
    /// Drops them.
    Drop,
    /// Increases their drop precedence by this number of steps (RFC 2597), so that they are dropped
    /// earlier.
    DscpRemark(u8),
    /// Effect of an experimenter.
    Experimenter {
        /// Number of the experimenter.
        experimenter: u32,
        /// Content.
        data: Vec<u8>,
    },
    /// Effect that OpenFlow 1.3 does not define.
    Unknown {
        /// Type of the band.
        kind: BandType,
        /// Content after rate and burst.
        data: Vec<u8>,
    },
}

impl BandEffect {
    /// Returns the type of the band that has this effect.
    #[must_use]
    pub fn kind(&self) -> BandType {
        match self {
            Self::Drop => BandType::DROP,
            Self::DscpRemark(_) => BandType::DSCP_REMARK,
            Self::Experimenter { .. } => BandType::EXPERIMENTER,
            Self::Unknown { kind, .. } => *kind,
        }
    }
}

impl WireFormat for Band {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let start = r.offset();
        let kind = r.named("meter band", |r| r.get())?;
        r.measured("meter band", start, |r| {
            let (rate, burst) = (r.get()?, r.get()?);
            let effect = match kind {
                BandType::DROP => r.pad(4).map(|()| BandEffect::Drop)?,
                BandType::DSCP_REMARK => {
                    let steps = r.get()?;
                    r.pad(3)?;
                    BandEffect::DscpRemark(steps)
                }
                BandType::EXPERIMENTER => BandEffect::Experimenter { experimenter: r.get()?, data: r.get()? },
                _ => BandEffect::Unknown { kind, data: r.get()? },
            };
            Ok(Self { rate, burst, effect })
        })
    }

    fn write(&self, w: &mut Writer) {
        let start = w.position();
        w.put(&self.effect.kind());
        w.measured("meter band", start, |w| {
            w.put(&self.rate);
            w.put(&self.burst);
            match &self.effect {
                BandEffect::Drop => w.pad(4),
                BandEffect::DscpRemark(steps) => {
                    w.put(steps);
                    w.pad(3);
                }
                BandEffect::Experimenter { experimenter, data } => {
                    w.put(experimenter);
                    w.bytes(data);
                }
                BandEffect::Unknown { data, .. } => w.bytes(data),
            }
        });
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl ListItem for Band {}

impl fmt::Display for Band {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rate={} burst={}", self.effect.kind(), self.rate, self.burst)?;
        match &self.effect {
            BandEffect::Drop => Ok(()),
            BandEffect::DscpRemark(steps) => write!(f, " precedence={steps}"),
            BandEffect::Experimenter { experimenter, data } => {
                write!(f, " of {experimenter:#x} ")?;
                data.display(f)
            }
            BandEffect::Unknown { data, .. } => {
                f.write_str(" ")?;
                data.display(f)
            }
        }
    }
}

layout! {
    /// Changes a meter.
    pub struct MeterMod = "meter modification" {
        /// Command to execute.
        command: MeterCommand,
        /// Options of the meter.
        flags: MeterFlags,
        /// The meter.
        meter: MeterId,
        /// Bands of the meter.
        bands: Vec<Band>,
    }
}
