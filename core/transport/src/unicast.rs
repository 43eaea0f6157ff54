//! Unicast messages between two agents over one reliable ordered byte stream (TCP).
//!
//! A small message goes at once, within a credit for each group that bounds what the receiver has to
//! keep; a larger one, or one beyond the credit, is announced and waits until its receive is posted. Nothing of a group
//! goes before the other side has said on this stream that it has the group: if the stream ends before that, another
//! one takes over all of it ([`PeerStream::resume_from`]). Groups take turns frame by frame, so that a small collective never
//! waits for a large one of another group.
//! The machine names ranges of messages; its driver moves the bytes between them and the stream. Who
//! connects, who may send what, and what [`Notice`]s mean is the engine's matter.

mod frame;
pub mod handshake;
mod inbound;
mod message;
mod outbound;
pub mod records;

pub use message::{AgentId, MessageName, Notice};

use cool_machine::{Machine, Poll, Time};
use cool_types::limits::MESSAGE_CREDIT_BYTES;
pub use cool_types::limits::{CREDIT_BYTES, EAGER_BYTES};
use core::ops::Range;
use frame::{ControlFrame, DecodedFrame, FrameDecoder};
use inbound::Inbound;
use outbound::Outbound;
use std::collections::{BTreeMap, VecDeque};

/// The version of the frames.
const VERSION: u32 = 5;

/// How much may wait in the driver to be written for control frames to be handed over as well.
const DRIVER_WINDOW_BYTES: u64 = 256 * 1024;

/// A version of a group's membership.
type GroupEpoch = (u64, u32);

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
enum Deferred {
    Message { message: MessageName, digest: u64, bytes: u64, announce: bool },
    Notice(Notice),
}

/// A group that is open on this side.
#[derive(Debug, Default)]
struct OpenGroup {
    /// Anything of it has come: the other side has it open, and will not give up the stream while it has.
    confirmed: bool,
    /// The other side has been told that something waits for it.
    waits: bool,
    deferred: Vec<Deferred>,
}

/// One side of a stream to another agent.
#[derive(Debug)]
pub struct PeerStream {
    name: String,
    received_hello: bool,
    failed: bool,
    decoder: FrameDecoder,
    open: BTreeMap<GroupEpoch, OpenGroup>,
    /// Whether nothing of any open group has come.
    no_group_traffic: bool,
    inbound: Inbound,
    outbound: Outbound,
    events: VecDeque<Output>,
}

impl PeerStream {
    /// A new stream. `me` is this side, `peer` what to call the other until it says its name.
    pub fn new(me: &AgentId, peer: &str) -> PeerStream {
        let mut outbound = Outbound::default();
        outbound.control(ControlFrame::Hello(me.clone()));
        PeerStream {
            name: peer.to_owned(),
            received_hello: false,
            failed: false,
            decoder: FrameDecoder::default(),
            open: BTreeMap::new(),
            no_group_traffic: true,
            inbound: Inbound::default(),
            outbound,
            events: VecDeque::new(),
        }
    }

    /// The groups that are open of which nothing has come over this stream; nor has anything of them been sent.
    pub fn unconfirmed(&self) -> impl Iterator<Item = (u64, u32)> {
        self.open.iter().filter(|(_, open)| !open.confirmed).map(|(group, _)| *group)
    }

    /// Whether nothing of any group that was open has come over this stream.
    pub fn no_group_traffic(&self) -> bool {
        self.no_group_traffic
    }

    /// Takes over the groups of which nothing has come over a stream that has ended, with all that was to be sent and
    /// is expected.
    pub fn resume_from(&mut self, mut ended: PeerStream) {
        for (group, open) in std::mem::take(&mut ended.open) {
            if !open.confirmed {
                self.inbound.resume_from(group, &ended.inbound);
                self.outbound.control(ControlFrame::GroupOpen {
                    group: group.0,
                    epoch: group.1,
                    waits: open.waits,
                });
                self.open.insert(group, open);
            }
        }
    }

    /// Something of a group came: whether the group is open. What was held back for it goes.
    fn confirm(&mut self, group: GroupEpoch) -> bool {
        let Some(open) = self.open.get_mut(&group) else { return false };
        self.no_group_traffic = false;
        if !std::mem::replace(&mut open.confirmed, true) {
            // The other side may have opened it only after it was told so first.
            self.outbound.control(ControlFrame::GroupOpen { group: group.0, epoch: group.1, waits: false });
            for deferred in std::mem::take(&mut open.deferred) {
                self.outbound.deferred(deferred);
            }
        }
        true
    }

    /// Sends this, or holds it back until the other side is known to have the group.
    fn send(&mut self, group: GroupEpoch, deferred: Deferred) {
        match self.open.get_mut(&group) {
            Some(open) if !open.confirmed => open.deferred.push(deferred),
            _ => self.outbound.deferred(deferred),
        }
        self.wait(group);
    }

    /// Tells the other side, once, that something waits for it, if it is not known to have the group.
    fn wait(&mut self, group: GroupEpoch) {
        if let Some(open) = self.open.get_mut(&group)
            && !open.confirmed
            && !std::mem::replace(&mut open.waits, true)
        {
            self.outbound.control(ControlFrame::GroupOpen { group: group.0, epoch: group.1, waits: true });
        }
    }

    fn bytes(&mut self, input: &[u8]) -> Result<(), Violation> {
        let mut at = 0;
        while let Some(decoded) = self.decoder.next(input, &mut at)? {
            match decoded {
                DecodedFrame::Control(control) => self.control(control)?,
                DecodedFrame::Data(_) if !self.received_hello => return Err(Violation::Greeting),
                DecodedFrame::Data(data) if !self.confirm((data.message.group, data.message.epoch)) => {
                    self.events.push_back(Output::UnknownGroup(data.message));
                }
                DecodedFrame::Data(data) => self.inbound.data(&data, &mut self.events)?,
                DecodedFrame::Payload { message, offset, within } => {
                    self.on_payload(message, offset, within.len(), within);
                }
            }
            self.grant();
        }
        Ok(())
    }

    fn on_payload(&mut self, message: MessageName, offset: u64, len: usize, within: Range<usize>) {
        if self.open.contains_key(&(message.group, message.epoch)) {
            self.inbound.payload((message, offset), len as u64, within, &mut self.events);
        }
    }

    /// The payload that the next bytes of the stream are, if they are payload: the rest of a frame. Of which message it
    /// is, the driver may know, and put it in its place by itself.
    pub fn payload(&self) -> Option<Payload> {
        self.decoder.payload().filter(|_| !self.failed)
    }

    fn control(&mut self, control: ControlFrame) -> Result<(), Violation> {
        match control {
            ControlFrame::Hello(_) if self.received_hello => return Err(Violation::Greeting),
            ControlFrame::Hello(who) => {
                self.received_hello = true;
                self.name.clone_from(&who.node);
                self.events.push_back(Output::Hello(who));
            }
            _ if !self.received_hello => return Err(Violation::Greeting),
            ControlFrame::GroupOpen { group, epoch, waits } => {
                if !self.confirm((group, epoch)) {
                    self.events.push_back(Output::GroupOpen { group, epoch, waits });
                }
            }
            ControlFrame::Announce { message, digest, bytes } => {
                if self.confirm((message.group, message.epoch)) {
                    self.inbound.announce(message, digest, bytes, &mut self.events)?;
                } else {
                    self.events.push_back(Output::UnknownGroup(message));
                }
            }
            ControlFrame::Grant { message } => {
                if self.open.contains_key(&(message.group, message.epoch)) {
                    self.outbound.granted(message)?;
                }
            }
            ControlFrame::AnnounceAgain { message } => self.outbound.announce_again(message),
            ControlFrame::AnnounceAll { group, epoch } => self.outbound.announce_all((group, epoch)),
            ControlFrame::Credit { group, epoch, bytes } => {
                if self.open.contains_key(&(group, epoch)) {
                    self.outbound.credit((group, epoch), bytes)?;
                }
            }
            ControlFrame::Notice(notice) => {
                self.confirm(notice.group());
                self.events.push_back(Output::Notice(notice));
            }
        }
        Ok(())
    }

    /// Passes the grants and credits that the receiving half has decided on to the sending half.
    fn grant(&mut self) {
        while let Some(control) = self.inbound.answers.pop_front() {
            self.outbound.control(control);
        }
    }
}

/// Whom a stream's first bytes announce, once enough of them are there: whose [`PeerStream`] to give them to.
///
/// # Errors
/// If they are no greeting of this version.
pub fn greeting(bytes: &[u8]) -> Result<Option<AgentId>, Violation> {
    match FrameDecoder::default().next(bytes, &mut 0)? {
        None => Ok(None),
        Some(DecodedFrame::Control(ControlFrame::Hello(who))) => Ok(Some(who)),
        Some(_) => Err(Violation::Greeting),
    }
}

impl Machine for PeerStream {
    type Input<'a> = Input<'a>;
    type Output = Output;

    fn handle(&mut self, _now: Time, input: Input<'_>) {
        if self.failed {
            return;
        }
        match input {
            Input::Bytes(bytes) => {
                if let Err(violation) = self.bytes(bytes) {
                    self.failed = true;
                    self.events.push_back(Output::Failed(PeerError { peer: self.name.clone(), violation }));
                }
            }
            Input::Placed(bytes) => {
                if let Some(Payload { message, offset, len }) = self.decoder.on_placed(bytes) {
                    self.on_payload(message, offset, len as usize, 0..0);
                    self.grant();
                }
            }
            Input::Written(bytes) => self.outbound.written(bytes),
            Input::Open { group, epoch } => {
                self.open.insert((group, epoch), OpenGroup::default());
                self.outbound.control(ControlFrame::GroupOpen { group, epoch, waits: false });
            }
            Input::Close { group, epoch } => {
                let open = self.open.remove(&(group, epoch)).unwrap_or_default();
                self.inbound.close((group, epoch));
                self.outbound.close((group, epoch));
                for deferred in open.deferred {
                    // That it failed, most likely: the last chance to say so.
                    if let Deferred::Notice(_) = deferred {
                        self.outbound.deferred(deferred);
                    }
                }
            }
            Input::Send { message, digest, bytes, announce } => {
                let deferred = Deferred::Message { message, digest, bytes, announce };
                self.send((message.group, message.epoch), deferred);
            }
            Input::Expect(message) => {
                self.wait((message.group, message.epoch));
                self.inbound.expect(message, &mut self.events);
                self.grant();
            }
            Input::Notify(notice) => self.send(notice.group(), Deferred::Notice(notice)),
        }
    }

    fn poll(&mut self, _now: Time) -> Poll<Output> {
        if let Some(event) = self.events.pop_front() {
            return Poll::Output(event);
        }
        if self.failed {
            return Poll::Idle(None);
        }
        match self.outbound.next() {
            Some(output) => Poll::Output(output),
            None => Poll::Idle(None),
        }
    }
}

#[cfg(test)]
mod tests;
