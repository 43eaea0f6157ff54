//! Unicast messages between two agents over one reliable ordered byte stream (TCP).
//!
//! A small message goes at once, within a credit for each group that bounds what the receiver has to
//! keep; a larger one, or one beyond the credit, is announced and waits until its receive is posted. Nothing of a group
//! goes before the other side has said on this stream that it has the group: if the stream ends before that, another
//! one takes over all of it ([`PeerStream::resume_from`]). Groups take turns frame by frame, so that a small collective never
//! waits for a large one of another group.
//! The machine names ranges of messages; its driver moves the bytes between them and the stream. Who
//! connects, who may send what, and what [`Notice`]s mean is the engine's matter.

mod api;
mod frame;
pub mod handshake;
mod inbound;
mod message;
mod outbound;
pub mod records;

pub use api::{Input, Output, Payload, PeerError, Violation};
pub use message::{AgentId, MessageName, Notice};

use api::{Deferred, GroupEpoch};
use cool_machine::{Machine, Poll, Time};
pub use cool_types::limits::{CREDIT_BYTES, EAGER_BYTES};
use core::ops::Range;
use frame::{ControlFrame, DecodedFrame, FrameDecoder};
use inbound::Inbound;
use outbound::Outbound;
use std::collections::{BTreeMap, VecDeque};

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
