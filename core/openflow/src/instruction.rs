//! Instructions of a flow for the packets that it matches.

use std::fmt;

use crate::Error;
use crate::action::Action;
use crate::codec::{ListItem, Reader, WireFormat, Writer};
use crate::macros::number;
use crate::value::{MeterId, TableId};

number! {
    /// Type of an instruction.
    pub struct InstructionType(u16) as "{}" {
        GOTO_TABLE = 1 "goto_table",
        WRITE_METADATA = 2 "write_metadata",
        WRITE_ACTIONS = 3 "write_actions",
        APPLY_ACTIONS = 4 "apply_actions",
        CLEAR_ACTIONS = 5 "clear_actions",
        METER = 6 "meter",
        EXPERIMENTER = 0xffff "experimenter",
    }
}

/// An instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Instruction {
    /// Continue in a later table.
    GotoTable(TableId),
    /// Write metadata for later tables.
    WriteMetadata {
        /// Metadata.
        metadata: u64,
        /// Bits to write.
        mask: u64,
    },
    /// Add to the action set, which is executed at the end of the pipeline.
    WriteActions(Vec<Action>),
    /// Execute these actions immediately and in this order.
    ApplyActions(Vec<Action>),
    /// Clear the action set.
    ClearActions,
    /// Apply a meter, which may drop the packet.
    Meter(MeterId),
    /// Instruction of an experimenter.
    Experimenter {
        /// Number of the experimenter.
        experimenter: u32,
        /// Content, which must be a multiple of 8 bytes long.
        data: Vec<u8>,
    },
    /// Instruction that OpenFlow 1.3 does not define.
    Unknown {
        /// Type of the instruction.
        kind: InstructionType,
        /// Content after the header, which must be 4 bytes longer than a multiple of 8.
        data: Vec<u8>,
    },
}

impl Instruction {
    /// Returns the type of the instruction.
    #[must_use]
    pub fn kind(&self) -> InstructionType {
        match self {
            Self::GotoTable(_) => InstructionType::GOTO_TABLE,
            Self::WriteMetadata { .. } => InstructionType::WRITE_METADATA,
            Self::WriteActions(_) => InstructionType::WRITE_ACTIONS,
            Self::ApplyActions(_) => InstructionType::APPLY_ACTIONS,
            Self::ClearActions => InstructionType::CLEAR_ACTIONS,
            Self::Meter(_) => InstructionType::METER,
            Self::Experimenter { .. } => InstructionType::EXPERIMENTER,
            Self::Unknown { kind, .. } => *kind,
        }
    }
}

fn read_body(kind: InstructionType, r: &mut Reader<'_>) -> Result<Instruction, Error> {
    match kind {
        InstructionType::GOTO_TABLE => {
            let table = r.get()?;
            r.pad(3)?;
            Ok(Instruction::GotoTable(table))
        }
        InstructionType::WRITE_METADATA => {
            r.pad(4)?;
            Ok(Instruction::WriteMetadata { metadata: r.get()?, mask: r.get()? })
        }
        InstructionType::WRITE_ACTIONS => {
            r.pad(4)?;
            r.get().map(Instruction::WriteActions)
        }
        InstructionType::APPLY_ACTIONS => {
            r.pad(4)?;
            r.get().map(Instruction::ApplyActions)
        }
        InstructionType::CLEAR_ACTIONS => r.pad(4).map(|()| Instruction::ClearActions),
        InstructionType::METER => r.get().map(Instruction::Meter),
        InstructionType::EXPERIMENTER => {
            Ok(Instruction::Experimenter { experimenter: r.get()?, data: r.get()? })
        }
        _ => Ok(Instruction::Unknown { kind, data: r.get()? }),
    }
}

impl WireFormat for Instruction {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let start = r.offset();
        let kind = r.named("instruction", |r| r.get())?;
        r.measured_by_8("instruction", start, |r| read_body(kind, r))
    }

    fn write(&self, w: &mut Writer) {
        let start = w.position();
        w.put(&self.kind());
        w.measured_by_8("instruction", start, |w| match self {
            Self::GotoTable(table) => {
                w.put(table);
                w.pad(3);
            }
            Self::WriteMetadata { metadata, mask } => {
                w.pad(4);
                w.put(metadata);
                w.put(mask);
            }
            Self::WriteActions(actions) | Self::ApplyActions(actions) => {
                w.pad(4);
                w.put(actions);
            }
            Self::ClearActions => w.pad(4),
            Self::Meter(meter) => w.put(meter),
            Self::Experimenter { experimenter, data } => {
                w.put(experimenter);
                w.bytes(data);
            }
            Self::Unknown { data, .. } => w.bytes(data),
        });
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl ListItem for Instruction {}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind())?;
        match self {
            Self::GotoTable(table) => write!(f, ":{table}"),
            Self::WriteMetadata { metadata, mask } => write!(f, ":{metadata:#x}/{mask:#x}"),
            Self::WriteActions(actions) | Self::ApplyActions(actions) => actions.display(f),
            Self::ClearActions => Ok(()),
            Self::Meter(meter) => write!(f, ":{meter}"),
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
