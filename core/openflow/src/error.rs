//! Errors of reading and writing.

/// An error with its place in the message and, where possible, a remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The part is truncated. Every message that was cut short yields this error.
    #[error("{what} is truncated: {needed} more bytes are needed at offset {offset}, but {left} are left")]
    Truncated {
        /// Part that was being read.
        what: &'static str,
        /// Offset of the missing bytes in the message.
        offset: usize,
        /// Number of bytes needed.
        needed: usize,
        /// Number of bytes left.
        left: usize,
    },
    /// The part is longer than its content.
    #[error("{what} has {left} bytes left over at offset {offset}")]
    LeftOver {
        /// Part that was being read.
        what: &'static str,
        /// Offset of the surplus in the message.
        offset: usize,
        /// Length of the surplus.
        left: usize,
    },
    /// The standard forbids this length here.
    #[error("{what} at offset {offset} has the length {length}, which must be {rule}")]
    Length {
        /// Part with the wrong length.
        what: &'static str,
        /// Offset of the part in the message.
        offset: usize,
        /// The length found.
        length: usize,
        /// Rule for the length.
        rule: &'static str,
    },
    /// A padding byte is not zero. It could not be written back, because the writer pads with
    /// zeros.
    #[error("{what} has padding that is not zero at offset {offset}; `Padding::Ignore` reads it as zero")]
    Padding {
        /// Part that was being read.
        what: &'static str,
        /// Offset of the byte in the message.
        offset: usize,
    },
    /// The message has another OpenFlow version. Only hello and error messages of other versions
    /// can be read.
    #[error(
        "message of type {kind} has OpenFlow version 0x{version:02x}; only version 0x04 (1.3) is supported"
    )]
    Version {
        /// Version in the header.
        version: u8,
        /// Type in the header.
        kind: u8,
    },
    /// A match is not a list of OXM fields.
    #[error("match at offset {offset} has type {kind}; OpenFlow 1.3 knows only type 1 (OXM)")]
    MatchType {
        /// Offset of the match in the message.
        offset: usize,
        /// The type found.
        kind: u16,
    },
    /// A value is too long for its length field.
    #[error("{what} is {length} bytes long, more than the {limit} that fit; split it")]
    TooLong {
        /// Part that was being written.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
        /// Maximum length.
        limit: usize,
    },
    /// A number is too large for its field.
    #[error("{what} is {value}; it must be at most {limit}")]
    TooLarge {
        /// Name of the number.
        what: &'static str,
        /// The number.
        value: u32,
        /// Maximum value.
        limit: u32,
    },
    /// Raw data makes a part have a length that is not a multiple of 8, which the standard forbids.
    #[error("{what} would be {length} bytes long; pad its data so that it is a multiple of 8")]
    Unaligned {
        /// Part that was being written.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
    },
}
