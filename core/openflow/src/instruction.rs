//! What a flow does with the packets that it matches.

use std::fmt;

use crate::Error;
use crate::action::Action;
use crate::codec::{Item, Reader, Wire, Writer};
use crate::macros::number;
use crate::value::{MeterId, TableId};

number! {
    /// Which instruction it is.
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

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Instruction {
    /// Go on in a later table.
    GotoTable(TableId),
    /// Note something for later tables.
    WriteMetadata {
        /// The note.
        metadata: u64,
        /// The bits of it that are written.
        mask: u64,
    },
    /// Add to the actions done at the end of the pipeline.
    WriteActions(Vec<Action>),
    /// Do at once, in this order.
    ApplyActions(Vec<Action>),
    /// Forget the actions to be done at the end of the pipeline.
    ClearActions,
    /// Go through a meter, or be dropped by it.
    Meter(MeterId),
    /// An experimenter's instruction.
    Experimenter {
        /// Whose.
        experimenter: u32,
        /// What; a multiple of 8 bytes long.
        data: Vec<u8>,
    },
    /// An instruction that OpenFlow 1.3 does not define.
    Unknown {
        /// Its number.
        kind: InstructionType,
        /// What follows the header; 4 bytes more than a multiple of 8 long.
        data: Vec<u8>,
    },
}

impl Instruction {
    /// Which instruction it is.
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

impl Wire for Instruction {
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

impl Item for Instruction {}

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
