//! Features of flow tables. Their properties are distinguished by type, but the content is kept as
//! bytes.

use std::fmt;

use crate::Error;
use crate::codec::{ListItem, Reader, WireFormat, Writer};
use crate::flow::TableConfig;
use crate::macros::{layout, number};
use crate::value::{FixedText, TableId};

number! {
    /// Type of a property of a flow table. Types with `_miss` describe the table-miss flow.
    pub struct TablePropertyType(u16) as "{}" {
        INSTRUCTIONS = 0 "instructions",
        INSTRUCTIONS_MISS = 1 "instructions_miss",
        NEXT_TABLES = 2 "next_tables",
        NEXT_TABLES_MISS = 3 "next_tables_miss",
        WRITE_ACTIONS = 4 "write_actions",
        WRITE_ACTIONS_MISS = 5 "write_actions_miss",
        APPLY_ACTIONS = 6 "apply_actions",
        APPLY_ACTIONS_MISS = 7 "apply_actions_miss",
        MATCH = 8 "match",
        WILDCARDS = 10 "wildcards",
        WRITE_SETFIELD = 12 "write_setfield",
        WRITE_SETFIELD_MISS = 13 "write_setfield_miss",
        APPLY_SETFIELD = 14 "apply_setfield",
        APPLY_SETFIELD_MISS = 15 "apply_setfield_miss",
        EXPERIMENTER = 0xfffe "experimenter",
        EXPERIMENTER_MISS = 0xffff "experimenter_miss",
    }
}

/// A property of a flow table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableProperty {
    /// Type of the property.
    pub kind: TablePropertyType,
    /// Content, without the padding behind it.
    pub data: Vec<u8>,
}

impl WireFormat for TableProperty {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let start = r.offset();
        let kind = r.named("table property", |r| r.get())?;
        let data = r.measured("table property", start, |r| r.get())?;
        r.named("table property", |r| r.pad_after(r.offset() - start))?;
        Ok(Self { kind, data })
    }

    fn write(&self, w: &mut Writer) {
        let start = w.position();
        w.put(&self.kind);
        w.measured("table property", start, |w| w.put(&self.data));
        w.pad_since(start);
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind)?;
        self.data.display(f)
    }
}

impl ListItem for TableProperty {}

layout! {
    /// Features of a flow table.
    pub struct TableFeatures = "table features" sized(0) {
        /// The table.
        table: TableId => pad 5,
        /// Name of the table.
        name: FixedText<32>,
        /// Bits of the metadata that it can match.
        metadata_match: u64,
        /// Bits of the metadata that it can write.
        metadata_write: u64,
        /// Configuration.
        config: TableConfig,
        /// Maximum number of flows.
        max_entries: u32,
        /// Further properties.
        properties: Vec<TableProperty>,
    }
}
