//! Why bytes could not be read, or a value not be written.

/// What went wrong, where in the message, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Fewer bytes than the part needs; also every message cut short.
    #[error("{what} ends too early: {needed} more bytes are needed at offset {offset}, {left} are left")]
    Truncated {
        /// The part that was being read.
        what: &'static str,
        /// Where in the message the bytes are missing.
        offset: usize,
        /// How many bytes were wanted there.
        needed: usize,
        /// How many there are.
        left: usize,
    },
    /// More bytes than the part can hold.
    #[error("{what} has {left} bytes left over at offset {offset}")]
    LeftOver {
        /// The part that was being read.
        what: &'static str,
        /// Where in the message the surplus begins.
        offset: usize,
        /// How long it is.
        left: usize,
    },
    /// A length that the standard forbids at this place.
    #[error("{what} at offset {offset} gives its length as {length}; it must be {rule}")]
    Length {
        /// The part whose length it is.
        what: &'static str,
        /// Where in the message the part begins.
        offset: usize,
        /// The length found.
        length: usize,
        /// What lengths are allowed.
        rule: &'static str,
    },
    /// A padding byte that is not zero, which the value could not give back.
    #[error("{what} has padding that is not zero at offset {offset}; `Padding::Ignore` reads it as zero")]
    Padding {
        /// The part that was being read.
        what: &'static str,
        /// Where in the message the byte is.
        offset: usize,
    },
    /// A message of another OpenFlow version; only its hello and error messages can be read.
    #[error(
        "message of type {kind} has OpenFlow version 0x{version:02x}; only version 0x04 (1.3) is spoken here"
    )]
    Version {
        /// The version byte of the header.
        version: u8,
        /// The type byte of the header.
        kind: u8,
    },
    /// A match that is not a list of OXM fields.
    #[error("match at offset {offset} has type {kind}; OpenFlow 1.3 knows only type 1 (OXM)")]
    MatchType {
        /// Where in the message the match begins.
        offset: usize,
        /// The type found.
        kind: u16,
    },
    /// A value longer than its length field can say.
    #[error("{what} is {length} bytes long, more than the {limit} that fit; split it")]
    TooLong {
        /// The part that was being written.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
        /// The longest that can be written.
        limit: usize,
    },
    /// A number that its place on the wire cannot hold.
    #[error("{what} is {value}; it must be at most {limit}")]
    TooLarge {
        /// What the number is.
        what: &'static str,
        /// The number.
        value: u32,
        /// The largest that can be written.
        limit: u32,
    },
    /// Raw data that would not end where the standard wants the part to end.
    #[error("{what} would be {length} bytes long; pad its data so that it is a multiple of 8")]
    Unaligned {
        /// The part that was being written.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
    },
}
