//! The contract of a [`PeerStream`](super::PeerStream): its inputs, its outputs, its errors, and
//! the constants that both halves of the stream share.

use super::message::{AgentId, MessageName, Notice};
use core::ops::Range;

/// The version of the frames.
pub(super) const VERSION: u32 = 5;

/// Bytes that may wait in the driver while further control frames are handed over.
pub(super) const DRIVER_WINDOW_BYTES: u64 = 256 * 1024;

/// A group with the epoch of its membership.
pub(super) type GroupEpoch = (u64, u32);

/// An event for a [`PeerStream`](super::PeerStream).
#[derive(Debug)]
pub enum Input<'a> {
    /// Bytes arrived from the stream. [`Output::Data`] points into them, so the driver must poll
    /// until idle before the next input.
    Bytes(&'a [u8]),
    /// This many bytes of the payload that [`PeerStream::payload`](super::PeerStream::payload)
    /// returned have been stored by the driver.
    Placed(u32),
    /// This many bytes of earlier [`Output::Write`]s have left the driver.
    Written(u64),
    /// Opens a group: its messages are accepted from now on.
    Open {
        /// The group.
        group: u64,
        /// The epoch of its membership.
        epoch: u32,
    },
    /// Closes a group and drops its messages.
    Close {
        /// The group.
        group: u64,
        /// The epoch of its membership.
        epoch: u32,
    },
    /// Send this message. Its name must be new.
    Send {
        /// The message.
        message: MessageName,
        /// The digest of its call.
        digest: u64,
        /// Its length in bytes.
        bytes: u64,
        /// Whether to announce the message however short it is. [`Output::Sent`] then implies that
        /// the other side accepted the message ([`Input::Accept`]).
        announce: bool,
    },
    /// The receive of this message is posted, or its data is no longer wanted.
    Accept(MessageName),
    /// Send a notice to the other side.
    Notify(Notice),
}

/// An action that a [`PeerStream`](super::PeerStream) requires of its driver, or an event for the
/// engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Write this to the stream: the header, then the payload if there is one.
    Write {
        /// Bytes of the frame before its payload.
        head: Vec<u8>,
        /// The part of a message that follows.
        payload: Option<Payload>,
    },
    /// All of this message was in earlier [`Output::Write`]s, which have left the driver, so its
    /// buffer may be reused.
    Sent(MessageName),
    /// The peer's identity. Returned once, before any other output about the peer.
    Hello(AgentId),
    /// A message begins: its data follows, or it was announced.
    Begin {
        /// The message.
        message: MessageName,
        /// The digest of its call.
        digest: u64,
        /// Its length in bytes.
        bytes: u64,
    },
    /// Bytes of a message that has begun.
    Data {
        /// The message.
        message: MessageName,
        /// Their offset in the message.
        offset: u64,
        /// Their range in the input; empty if the driver has stored them already.
        within: Range<usize>,
    },
    /// All of this message was in earlier [`Output::Data`]s.
    Received(MessageName),
    /// A notice from the peer.
    Notice(Notice),
    /// A message of a group that is not open was dropped.
    UnknownGroup(MessageName),
    /// The other side has a group open that is not open here.
    GroupOpen {
        /// The group.
        group: u64,
        /// The epoch of its membership.
        epoch: u32,
        /// Whether the other side waits to send something for the group.
        waits: bool,
    },
    /// The stream is unusable, and the driver must close it. No output follows.
    Failed(PeerError),
}

/// A part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The message.
    pub message: MessageName,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
}

/// The peer violates the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{peer} does not use this version of the agents' protocol: {violation}; run the same version of the agent on all nodes"
)]
pub struct PeerError {
    /// The name that the peer sent, or the one that the driver gave it.
    pub peer: String,
    /// The violation.
    pub violation: Violation,
}

/// A violation of the protocol by a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A frame ends within a field, or is shorter than its kind requires.
    #[error("a frame is cut short")]
    Truncated,
    /// A frame or text exceeds the maximum length.
    #[error("a frame or text of {len} bytes is too long")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// A frame has bytes after its last field.
    #[error("{len} bytes too many in a frame of kind {kind}")]
    Excess {
        /// The kind of frame.
        kind: u8,
        /// Number of bytes left over.
        len: usize,
    },
    /// The kind of frame is unknown.
    #[error("unknown kind of frame {0}")]
    UnknownKind(u8),
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    NotText,
    /// The other side uses another version.
    #[error("it uses version {0}, this agent version {VERSION}")]
    Version(u32),
    /// The first frame, and only the first, must be a greeting.
    #[error("its greeting is missing or repeated")]
    Greeting,
    /// The payload of a frame lies outside its message.
    #[error("a frame lies outside its message {0:?}")]
    OutOfMessage(MessageName),
    /// A frame does not continue its message.
    #[error("a frame does not continue its message {0:?}")]
    OutOfOrder(MessageName),
    /// A large message arrived without a grant, or a grant for a message that was not announced.
    #[error("message {0:?} was not requested")]
    Unrequested(MessageName),
    /// More arrived without a grant than the credit permits, or more credit was returned than was
    /// used.
    #[error("the credit of group {0} was exceeded, or more was returned than was used")]
    Credit(u64),
}

/// A message or notice to send, once the other side is known to have its group.
#[derive(Debug)]
pub(super) enum MessageOrNotice {
    Message { message: MessageName, digest: u64, bytes: u64, announce: bool },
    Notice(Notice),
}
