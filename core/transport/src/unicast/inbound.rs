//! The receiving half: tracks the bytes that have arrived of each message, and grants messages and
//! credit.

use super::api::{GroupEpoch, Output, Violation};
use super::frame::{ControlFrame, DataFrame};
use super::message::MessageName;
use cool_types::limits::{CREDIT_BYTES, EAGER_BYTES, MESSAGE_CREDIT_BYTES};
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum number of announced messages, of all groups, that are stored without a posted receive.
/// Further announcements are dropped. They are requested again once there is room or their receives
/// are posted. Messages within the credit need no such limit.
pub(super) const ANNOUNCED_MAX: usize = 64 * 1024;

#[derive(Clone, Copy, Debug)]
struct InboundMessage {
    digest: u64,
    bytes: u64,
    received: u64,
    /// Whether the message was sent within the credit; otherwise it needs a grant.
    eager: bool,
    accepted: bool,
}

/// A group's credit as its receiver counts it.
#[derive(Clone, Copy, Debug, Default)]
struct ReceiverCredit {
    used: u64,
    /// Credit that is free again and has not been returned to the sender.
    freed: u64,
}

#[derive(Debug, Default)]
pub(super) struct Inbound {
    messages: BTreeMap<MessageName, InboundMessage>,
    /// Messages that were accepted before they began.
    accepted: BTreeSet<MessageName>,
    credit: BTreeMap<GroupEpoch, ReceiverCredit>,
    /// Messages that are announced and not accepted.
    waiting: usize,
    /// Groups of which announcements were dropped because too many were stored.
    overflowed: BTreeSet<GroupEpoch>,
    /// Control frames for the sender.
    pub(super) answers: VecDeque<ControlFrame>,
}

impl Inbound {
    pub(super) fn announce(
        &mut self,
        name: MessageName,
        digest: u64,
        bytes: u64,
        events: &mut VecDeque<Output>,
    ) -> Result<(), Violation> {
        if let Some(known) = self.messages.get(&name) {
            // After a request to announce it again, the other side may announce the message twice.
            let same = !known.eager && (known.digest, known.bytes) == (digest, bytes);
            return if same { Ok(()) } else { Err(Violation::OutOfOrder(name)) };
        }
        let accepted = self.accepted.contains(&name);
        if !accepted && self.waiting >= ANNOUNCED_MAX {
            self.overflowed.insert((name.group, name.epoch));
            return Ok(());
        }
        self.begin(name, digest, bytes, false, events)?;
        if accepted {
            self.answers.push_back(ControlFrame::Grant { message: name });
        } else {
            self.waiting += 1;
        }
        Ok(())
    }

    /// Handles the header of a data frame.
    pub(super) fn data(&mut self, data: &DataFrame, events: &mut VecDeque<Output>) -> Result<(), Violation> {
        let name = data.message;
        if !self.messages.contains_key(&name) {
            if data.bytes > EAGER_BYTES {
                return Err(Violation::Unrequested(name));
            }
            let credit = self.credit.entry((name.group, name.epoch)).or_default();
            credit.used += data.bytes + MESSAGE_CREDIT_BYTES;
            if credit.used > CREDIT_BYTES {
                return Err(Violation::Credit(name.group));
            }
            self.begin(name, data.digest, data.bytes, true, events)?;
        }
        let message = self.messages[&name];
        if (message.digest, message.bytes, message.received) != (data.digest, data.bytes, data.offset) {
            return Err(Violation::OutOfOrder(name));
        }
        if !message.eager && !message.accepted {
            return Err(Violation::Unrequested(name));
        }
        if data.len == 0 {
            // Only an empty message has a frame without payload, because such frames would never
            // complete another message.
            if data.bytes > 0 {
                return Err(Violation::OutOfOrder(name));
            }
            self.complete(name, events);
        }
        Ok(())
    }

    /// Handles `len` bytes of payload of the current data frame, which belong at an offset of its
    /// message.
    pub(super) fn payload(
        &mut self,
        (name, offset): (MessageName, u64),
        len: u64,
        within: Range<usize>,
        events: &mut VecDeque<Output>,
    ) {
        // If the group was closed and opened again while a frame arrived, the message may be
        // missing, or may be a new one of this name.
        let Some(message) = self.messages.get_mut(&name).filter(|m| m.received == offset) else { return };
        let received = offset + len;
        if received > message.bytes {
            return;
        }
        message.received = received;
        let whole = message.received == message.bytes;
        events.push_back(Output::Data { message: name, offset, within });
        if whole {
            self.complete(name, events);
        }
    }

    pub(super) fn accept(&mut self, name: MessageName, events: &mut VecDeque<Output>) {
        let Some(message) = self.messages.get_mut(&name) else {
            self.accepted.insert(name);
            if self.overflowed.contains(&(name.group, name.epoch)) {
                self.answers.push_back(ControlFrame::AnnounceAgain { message: name });
            }
            return;
        };
        if message.accepted {
            return;
        }
        message.accepted = true;
        if !message.eager {
            self.answers.push_back(ControlFrame::Grant { message: name });
            self.waiting -= 1;
            self.request_dropped();
        } else if message.received == message.bytes {
            self.finish(name, events);
        }
    }

    /// Takes over the accepted messages of a group from a stream on which nothing of it arrived.
    pub(super) fn resume_from(&mut self, group: GroupEpoch, from: &Inbound) {
        self.accepted.extend(from.accepted.iter().filter(|name| (name.group, name.epoch) == group));
    }

    /// Requests dropped announcements once half of the room is free.
    fn request_dropped(&mut self) {
        if self.waiting <= ANNOUNCED_MAX / 2 {
            let groups = core::mem::take(&mut self.overflowed).into_iter();
            self.answers.extend(groups.map(|(group, epoch)| ControlFrame::AnnounceAll { group, epoch }));
        }
    }

    pub(super) fn close(&mut self, group: GroupEpoch) {
        self.messages.retain(|name, _| (name.group, name.epoch) != group);
        self.waiting = self.messages.values().filter(|message| !message.eager && !message.accepted).count();
        self.overflowed.remove(&group);
        self.request_dropped();
        self.accepted.retain(|name| (name.group, name.epoch) != group);
        self.credit.remove(&group);
    }

    fn begin(
        &mut self,
        name: MessageName,
        digest: u64,
        bytes: u64,
        eager: bool,
        events: &mut VecDeque<Output>,
    ) -> Result<(), Violation> {
        let accepted = self.accepted.remove(&name);
        let message = InboundMessage { digest, bytes, received: 0, eager, accepted };
        if self.messages.insert(name, message).is_some() {
            return Err(Violation::OutOfOrder(name));
        }
        events.push_back(Output::Begin { message: name, digest, bytes });
        Ok(())
    }

    /// Handles the last byte of a message. It is finished if it is accepted; otherwise the driver
    /// must keep its data.
    fn complete(&mut self, name: MessageName, events: &mut VecDeque<Output>) {
        if self.messages[&name].accepted {
            self.finish(name, events);
        }
    }

    fn finish(&mut self, name: MessageName, events: &mut VecDeque<Output>) {
        let Some(message) = self.messages.remove(&name) else { return };
        if message.eager {
            let (group, epoch) = (name.group, name.epoch);
            let credit = self.credit.entry((group, epoch)).or_default();
            let cost = message.bytes + MESSAGE_CREDIT_BYTES;
            credit.used -= cost;
            credit.freed += cost;
            // Credit is returned in quarters, so that the sender never runs out and small messages
            // do not need an answer each.
            if credit.freed >= CREDIT_BYTES / 4 {
                self.answers.push_back(ControlFrame::Credit { group, epoch, bytes: credit.freed });
                credit.freed = 0;
            }
        }
        events.push_back(Output::Received(name));
    }
}
