//! The contract of a [`PeerStream`](super::PeerStream): its inputs, its outputs, its errors, and the constants
//! that both halves of the stream share.

use super::message::{AgentId, MessageName, Notice};
use core::ops::Range;

/// The version of the frames.
pub(super) const VERSION: u32 = 5;

/// How much may wait in the driver to be written for control frames to be handed over as well.
pub(super) const DRIVER_WINDOW_BYTES: u64 = 256 * 1024;

/// A version of a group's membership.
pub(super) type GroupEpoch = (u64, u32);

/// What happens to a [`PeerStream`].
#[derive(Debug)]
pub enum Input<'a> {
    /// Bytes came from the stream. [`Output::Data`] points into them: poll until idle before the next.
    Bytes(&'a [u8]),
    /// This many bytes came from the stream, of the payload that [`PeerStream::payload`] has named, and are in their place.
    Placed(u32),
    /// This many bytes of earlier [`Output::Write`]s have left the driver.
    Written(u64),
    /// Messages of this group are welcome from now on.
    Open {
        /// The group.
        group: u64,
        /// The version of its membership.
        epoch: u32,
    },
    /// Forget this group and its messages.
    Close {
        /// The group.
        group: u64,
        /// The version of its membership.
        epoch: u32,
    },
    /// Send this message; its name is new.
    Send {
        /// The message.
        message: MessageName,
        /// The digest of its call.
        digest: u64,
        /// Its length.
        bytes: u64,
        /// It is announced however short it is: [`Output::Sent`] then says that it was expected, too.
        announce: bool,
    },
    /// This message has a place to go to, or what came of it is no longer wanted.
    Expect(MessageName),
    /// Tell the other side.
    Notify(Notice),
}

/// What a [`PeerStream`] asks of its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Write this to the stream: the head, then the payload if there is one.
    Write {
        /// Frame bytes.
        head: Vec<u8>,
        /// The part of a message that follows them.
        payload: Option<Payload>,
    },
    /// All of this message was in earlier [`Output::Write`]s, which have left the driver: its bytes may change.
    Sent(MessageName),
    /// The peer said who it is. Once, before anything else from it.
    Hello(AgentId),
    /// A message is coming, or wants to.
    Begin {
        /// The message.
        message: MessageName,
        /// The digest of its call.
        digest: u64,
        /// Its length.
        bytes: u64,
    },
    /// Bytes of a message that has begun.
    Data {
        /// The message.
        message: MessageName,
        /// Where they belong.
        offset: u64,
        /// Where they lie in the input; empty if they are in their place.
        within: Range<usize>,
    },
    /// All of this message was in earlier [`Output::Data`]s.
    Received(MessageName),
    /// The peer tells something.
    Notice(Notice),
    /// A message of a group that is not open was dropped.
    UnknownGroup(MessageName),
    /// The other side has a group open that is not open here.
    GroupOpen {
        /// The group.
        group: u64,
        /// The version of its membership.
        epoch: u32,
        /// Whether it waits with something for the group.
        waits: bool,
    },
    /// The stream is useless: hang up. Nothing follows.
    Failed(PeerError),
}

/// A part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The message.
    pub message: MessageName,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
}

/// A peer that does not keep to the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{peer} does not speak this version of the agents' protocol: {violation}; run the same version of the agent on all nodes"
)]
pub struct PeerError {
    /// Who: the name it gave, else what the driver called it.
    pub peer: String,
    /// What it did.
    pub violation: Violation,
}

/// What is wrong with bytes from a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A frame ends within a field, or is shorter than its kind.
    #[error("a frame is cut short")]
    Truncated,
    /// A frame or text is longer than any may be.
    #[error("a frame or text of {len} bytes is too long")]
    TooLong {
        /// Its length.
        len: usize,
    },
    /// A frame has bytes after its last field.
    #[error("{len} bytes too many in a frame of kind {kind}")]
    Excess {
        /// The kind of frame.
        kind: u8,
        /// How many bytes are left over.
        len: usize,
    },
    /// There is no such kind of frame.
    #[error("unknown kind of frame {0}")]
    UnknownKind(u8),
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    NotText,
    /// The other side speaks another version.
    #[error("it speaks version {0}, this agent {VERSION}")]
    Version(u32),
    /// The first frame must say who the peer is, and only the first.
    #[error("its greeting is missing or comes twice")]
    Greeting,
    /// A frame lies outside its message.
    #[error("a frame lies outside its message {0:?}")]
    OutOfMessage(MessageName),
    /// A frame does not continue its message.
    #[error("a frame does not continue its message {0:?}")]
    OutOfOrder(MessageName),
    /// A large message came without a grant, or a grant for a message that was not announced.
    #[error("message {0:?} was not asked for")]
    Unrequested(MessageName),
    /// More came unasked than the credit allows, or more credit came back than was used.
    #[error("the credit of group {0} is overdrawn")]
    Credit(u64),
}

/// What waits until the other side is known to have its group.
#[derive(Debug)]
pub(super) enum Deferred {
    Message { message: MessageName, digest: u64, bytes: u64, announce: bool },
    Notice(Notice),
}
