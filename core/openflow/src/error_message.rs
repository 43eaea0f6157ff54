//! Error messages, by which a peer refuses a message.

use std::fmt;

use crate::Error;
use crate::codec::{Reader, WireFormat, Writer};
use crate::hello::VERSION;
use crate::macros::number;

number! {
    /// Class of an error.
    pub struct ErrorType(u16) as "{}" {
        HELLO_FAILED = 0 "hello_failed",
        BAD_REQUEST = 1 "bad_request",
        BAD_ACTION = 2 "bad_action",
        BAD_INSTRUCTION = 3 "bad_instruction",
        BAD_MATCH = 4 "bad_match",
        FLOW_MOD_FAILED = 5 "flow_mod_failed",
        GROUP_MOD_FAILED = 6 "group_mod_failed",
        PORT_MOD_FAILED = 7 "port_mod_failed",
        TABLE_MOD_FAILED = 8 "table_mod_failed",
        QUEUE_OP_FAILED = 9 "queue_op_failed",
        SWITCH_CONFIG_FAILED = 10 "switch_config_failed",
        ROLE_REQUEST_FAILED = 11 "role_request_failed",
        METER_MOD_FAILED = 12 "meter_mod_failed",
        TABLE_FEATURES_FAILED = 13 "table_features_failed",
        EXPERIMENTER = 0xffff "experimenter",
    }
}

/// Names that the standard gives to the codes of each type, starting at 0.
const CODES: &[(ErrorType, &[&str])] = &[
    (ErrorType::HELLO_FAILED, &["incompatible", "eperm"]),
    (
        ErrorType::BAD_REQUEST,
        &[
            "bad_version",
            "bad_type",
            "bad_multipart",
            "bad_experimenter",
            "bad_exp_type",
            "eperm",
            "bad_len",
            "buffer_empty",
            "buffer_unknown",
            "bad_table_id",
            "is_slave",
            "bad_port",
            "bad_packet",
            "multipart_buffer_overflow",
        ],
    ),
    (
        ErrorType::BAD_ACTION,
        &[
            "bad_type",
            "bad_len",
            "bad_experimenter",
            "bad_exp_type",
            "bad_out_port",
            "bad_argument",
            "eperm",
            "too_many",
            "bad_queue",
            "bad_out_group",
            "match_inconsistent",
            "unsupported_order",
            "bad_tag",
            "bad_set_type",
            "bad_set_len",
            "bad_set_argument",
        ],
    ),
    (
        ErrorType::BAD_INSTRUCTION,
        &[
            "unknown_inst",
            "unsup_inst",
            "bad_table_id",
            "unsup_metadata",
            "unsup_metadata_mask",
            "bad_experimenter",
            "bad_exp_type",
            "bad_len",
            "eperm",
        ],
    ),
    (
        ErrorType::BAD_MATCH,
        &[
            "bad_type",
            "bad_len",
            "bad_tag",
            "bad_dl_addr_mask",
            "bad_nw_addr_mask",
            "bad_wildcards",
            "bad_field",
            "bad_value",
            "bad_mask",
            "bad_prereq",
            "dup_field",
            "eperm",
        ],
    ),
    (
        ErrorType::FLOW_MOD_FAILED,
        &[
            "unknown",
            "table_full",
            "bad_table_id",
            "overlap",
            "eperm",
            "bad_timeout",
            "bad_command",
            "bad_flags",
        ],
    ),
    (
        ErrorType::GROUP_MOD_FAILED,
        &[
            "group_exists",
            "invalid_group",
            "weight_unsupported",
            "out_of_groups",
            "out_of_buckets",
            "chaining_unsupported",
            "watch_unsupported",
            "loop",
            "unknown_group",
            "chained_group",
            "bad_type",
            "bad_command",
            "bad_bucket",
            "bad_watch",
            "eperm",
        ],
    ),
    (ErrorType::PORT_MOD_FAILED, &["bad_port", "bad_hw_addr", "bad_config", "bad_advertise", "eperm"]),
    (ErrorType::TABLE_MOD_FAILED, &["bad_table", "bad_config", "eperm"]),
    (ErrorType::QUEUE_OP_FAILED, &["bad_port", "bad_queue", "eperm"]),
    (ErrorType::SWITCH_CONFIG_FAILED, &["bad_flags", "bad_len", "eperm"]),
    (ErrorType::ROLE_REQUEST_FAILED, &["stale", "unsup", "bad_role"]),
    (
        ErrorType::METER_MOD_FAILED,
        &[
            "unknown",
            "meter_exists",
            "invalid_meter",
            "unknown_meter",
            "bad_command",
            "bad_flags",
            "bad_rate",
            "bad_burst",
            "bad_band",
            "bad_band_value",
            "out_of_meters",
            "out_of_bands",
        ],
    ),
    (
        ErrorType::TABLE_FEATURES_FAILED,
        &["bad_table", "bad_metadata", "bad_type", "bad_len", "bad_argument", "eperm"],
    ),
];

/// A peer refused a message.
///
/// Error messages of other OpenFlow versions can be read as well, because they report that there is
/// no common version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorMessage {
    /// Version in the header.
    pub version: u8,
    /// Class of the error.
    pub kind: ErrorType,
    /// Code of the error. Its meaning depends on `kind`.
    pub code: u16,
    /// The first 64 bytes or more of the refused message; text if the hello failed.
    pub data: Vec<u8>,
}

impl ErrorMessage {
    /// Returns an error message of OpenFlow 1.3.
    #[must_use]
    pub fn new(kind: ErrorType, code: u16, data: Vec<u8>) -> Self {
        Self { version: VERSION, kind, code, data }
    }

    /// Returns the standard's name of the code, if it has one.
    #[must_use]
    pub fn code_name(&self) -> Option<&'static str> {
        let (_, names) = CODES.iter().find(|(kind, _)| *kind == self.kind)?;
        names.get(usize::from(self.code)).copied()
    }
}

impl WireFormat for ErrorMessage {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self { version: r.version(), kind: r.get()?, code: r.get()?, data: r.get()? })
    }

    fn write(&self, w: &mut Writer) {
        w.put(&self.kind);
        w.put(&self.code);
        w.put(&self.data);
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl fmt::Display for ErrorMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version={:#04x} kind={} code=", self.version, self.kind)?;
        match self.code_name() {
            Some(name) => f.write_str(name)?,
            None => write!(f, "{}", self.code)?,
        }
        f.write_str(" data=")?;
        self.data.display(f)
    }
}
