//! Unicast messages between two agents over one reliable ordered byte stream (TCP).
//!
//! A small message is sent at once, within a credit per group that bounds the memory of the
//! receiver. A larger message, or one beyond the credit, is announced and waits until its receive
//! is posted. Messages and notices of an open group are sent only after a frame of the group has
//! arrived on this stream. If the stream ends before that, another stream takes over the whole
//! group ([`PeerStream::resume_from`]). Notices of a closed group are sent at once. Groups take
//! turns frame by frame, so a small collective never waits for a large one of another group.
//!
//! The machine names ranges of messages, and its driver moves the bytes between them and the
//! stream. Connecting, permissions, and the meaning of [`Notice`]s belong to the engine.

mod api;
mod frame;
pub mod handshake;
mod inbound;
mod message;
pub mod records;
mod unicast_scheduler;

pub use api::{Input, Output, Payload, PeerError, Violation};
pub use message::{AgentId, MessageName, Notice};

use api::{GroupEpoch, MessageOrNotice};
use cool_machine::{Machine, Poll, Time};
pub use cool_types::limits::{CREDIT_BYTES, EAGER_BYTES};
use core::ops::Range;
use frame::{ControlFrame, DecodedFrame, FrameDecoder};
use inbound::Inbound;
use std::collections::{BTreeMap, VecDeque};
use unicast_scheduler::UnicastScheduler;

/// A group that is open on this side.
#[derive(Debug, Default)]
struct OpenGroup {
    /// Whether a frame of the group has arrived. Such a frame shows that the other side has opened
    /// the group and will not replace this stream by another.
    confirmed: bool,
    /// Whether the other side was notified that something waits until it has the group open.
    waits: bool,
    deferred: Vec<MessageOrNotice>,
}

/// One side of a stream to another agent.
#[derive(Debug)]
pub struct PeerStream {
    name: String,
    received_hello: bool,
    failed: bool,
    decoder: FrameDecoder,
    open: BTreeMap<GroupEpoch, OpenGroup>,
    /// Whether a frame of any open group has arrived.
    has_group_traffic: bool,
    inbound: Inbound,
    scheduler: UnicastScheduler,
    events: VecDeque<Output>,
}

impl PeerStream {
    /// Returns a new stream. `me` is this side. `peer` names the other side in errors until it has
    /// sent its name.
    pub fn new(me: &AgentId, peer: &str) -> PeerStream {
        let mut scheduler = UnicastScheduler::default();
        scheduler.control(ControlFrame::Hello(me.clone()));
        PeerStream {
            name: peer.to_owned(),
            received_hello: false,
            failed: false,
            decoder: FrameDecoder::default(),
            open: BTreeMap::new(),
            has_group_traffic: false,
            inbound: Inbound::default(),
            scheduler,
            events: VecDeque::new(),
        }
    }

    /// Returns the open groups of which no frame has arrived over this stream. Nothing of them has
    /// been sent either.
    pub fn unconfirmed(&self) -> impl Iterator<Item = (u64, u32)> {
        self.open.iter().filter(|(_, open)| !open.confirmed).map(|(group, _)| *group)
    }

    /// Returns whether a frame of any group that was open has arrived over this stream.
    pub fn has_group_traffic(&self) -> bool {
        self.has_group_traffic
    }

    /// Takes over the unconfirmed groups of a stream that has ended, with all messages that are to
    /// be sent or were accepted.
    pub fn resume_from(&mut self, mut ended: PeerStream) {
        for (group, open) in std::mem::take(&mut ended.open) {
            if !open.confirmed {
                self.inbound.resume_from(group, &ended.inbound);
                self.scheduler.control(ControlFrame::GroupOpen {
                    group: group.0,
                    epoch: group.1,
                    waits: open.waits,
                });
                self.open.insert(group, open);
            }
        }
    }

    /// Records a frame of a group, and sends everything that was deferred for it. Returns whether
    /// the group is open.
    fn confirm(&mut self, group: GroupEpoch) -> bool {
        let Some(open) = self.open.get_mut(&group) else { return false };
        self.has_group_traffic = true;
        if !std::mem::replace(&mut open.confirmed, true) {
            // The other side may have received the first `GroupOpen` before it opened the group.
            self.scheduler.control(ControlFrame::GroupOpen { group: group.0, epoch: group.1, waits: false });
            for deferred in std::mem::take(&mut open.deferred) {
                self.scheduler.deferred(deferred);
            }
        }
        true
    }

    /// Sends a message or notice, or defers it until the other side is known to have the group.
    fn send(&mut self, group: GroupEpoch, deferred: MessageOrNotice) {
        match self.open.get_mut(&group) {
            Some(open) if !open.confirmed => open.deferred.push(deferred),
            _ => self.scheduler.deferred(deferred),
        }
        self.notify_waiting(group);
    }

    /// Notifies the other side, once, that something waits for it, if it is not known to have the
    /// group.
    fn notify_waiting(&mut self, group: GroupEpoch) {
        if let Some(open) = self.open.get_mut(&group)
            && !open.confirmed
            && !std::mem::replace(&mut open.waits, true)
        {
            self.scheduler.control(ControlFrame::GroupOpen { group: group.0, epoch: group.1, waits: true });
        }
    }

    fn on_bytes(&mut self, input: &[u8]) -> Result<(), Violation> {
        let mut at = 0;
        while let Some(decoded) = self.decoder.next(input, &mut at)? {
            match decoded {
                DecodedFrame::Control(control) => self.on_control(control)?,
                DecodedFrame::Data(_) if !self.received_hello => return Err(Violation::Greeting),
                DecodedFrame::Data(data) if !self.confirm((data.message.group, data.message.epoch)) => {
                    self.events.push_back(Output::UnknownGroup(data.message));
                }
                DecodedFrame::Data(data) => self.inbound.data(&data, &mut self.events)?,
                DecodedFrame::Payload { message, offset, within } => {
                    self.on_payload(message, offset, within.len(), within);
                }
            }
            self.send_answers();
        }
        Ok(())
    }

    fn on_payload(&mut self, message: MessageName, offset: u64, len: usize, within: Range<usize>) {
        if self.open.contains_key(&(message.group, message.epoch)) {
            self.inbound.payload((message, offset), len as u64, within, &mut self.events);
        }
    }

    /// Returns the rest of the current frame's payload, or `None` if the next bytes of the stream
    /// are not payload. A driver that knows the place of the message may store these bytes there
    /// itself (see [`Input::Placed`]).
    pub fn payload(&self) -> Option<Payload> {
        self.decoder.payload().filter(|_| !self.failed)
    }

    fn on_control(&mut self, control: ControlFrame) -> Result<(), Violation> {
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
                    self.scheduler.granted(message)?;
                }
            }
            ControlFrame::AnnounceAgain { message } => self.scheduler.announce_again(message),
            ControlFrame::AnnounceAll { group, epoch } => self.scheduler.announce_all((group, epoch)),
            ControlFrame::Credit { group, epoch, bytes } => {
                if self.open.contains_key(&(group, epoch)) {
                    self.scheduler.credit((group, epoch), bytes)?;
                }
            }
            ControlFrame::Notice(notice) => {
                self.confirm(notice.group());
                self.events.push_back(Output::Notice(notice));
            }
        }
        Ok(())
    }

    /// Passes the grants and credits of the receiving half to the sending half.
    fn send_answers(&mut self) {
        while let Some(control) = self.inbound.answers.pop_front() {
            self.scheduler.control(control);
        }
    }
}

/// Returns the agent that the first bytes of a stream announce, once enough bytes have arrived. The
/// caller must pass the bytes to a [`PeerStream`] to that agent.
///
/// # Errors
/// Returns an error if the bytes are not a greeting of this version.
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
                if let Err(violation) = self.on_bytes(bytes) {
                    self.failed = true;
                    self.events.push_back(Output::Failed(PeerError { peer: self.name.clone(), violation }));
                }
            }
            Input::Placed(bytes) => {
                if let Some(Payload { message, offset, len }) = self.decoder.on_placed(bytes) {
                    self.on_payload(message, offset, len as usize, 0..0);
                    self.send_answers();
                }
            }
            Input::Written(bytes) => self.scheduler.written(bytes),
            Input::Open { group, epoch } => {
                self.open.insert((group, epoch), OpenGroup::default());
                self.scheduler.control(ControlFrame::GroupOpen { group, epoch, waits: false });
            }
            Input::Close { group, epoch } => {
                let open = self.open.remove(&(group, epoch)).unwrap_or_default();
                self.inbound.close((group, epoch));
                self.scheduler.close((group, epoch));
                for deferred in open.deferred {
                    // The notice most likely reports that the group failed, and this is the last
                    // chance to send it.
                    if let MessageOrNotice::Notice(_) = deferred {
                        self.scheduler.deferred(deferred);
                    }
                }
            }
            Input::Send { message, digest, bytes, announce } => {
                let deferred = MessageOrNotice::Message { message, digest, bytes, announce };
                self.send((message.group, message.epoch), deferred);
            }
            Input::Accept(message) => {
                self.notify_waiting((message.group, message.epoch));
                self.inbound.accept(message, &mut self.events);
                self.send_answers();
            }
            Input::Notify(notice) => self.send(notice.group(), MessageOrNotice::Notice(notice)),
        }
    }

    fn poll(&mut self, _now: Time) -> Poll<Output> {
        if let Some(event) = self.events.pop_front() {
            return Poll::Output(event);
        }
        if self.failed {
            return Poll::Idle(None);
        }
        match self.scheduler.next() {
            Some(output) => Poll::Output(output),
            None => Poll::Idle(None),
        }
    }
}

#[cfg(test)]
mod tests;
