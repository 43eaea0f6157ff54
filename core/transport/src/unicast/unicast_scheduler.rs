//! The scheduler of a connection: selects the message and the frame that are sent next.

use super::api::{DRIVER_WINDOW_BYTES, GroupEpoch, MessageOrNotice, Output, Payload, Violation};
use super::frame::{ControlFrame, DataFrame, FRAME_PAYLOAD};
use super::message::MessageName;
use cool_types::limits::{CREDIT_BYTES, EAGER_BYTES, MESSAGE_CREDIT_BYTES};
use core::ops::Bound;
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, Debug)]
struct OutboundMessage {
    name: MessageName,
    digest: u64,
    bytes: u64,
    sent: u64,
}

/// Selects the next frame among control frames and the messages of all groups.
#[derive(Debug, Default)]
pub(super) struct UnicastScheduler {
    control: VecDeque<ControlFrame>,
    /// The messages in progress of each group. Groups take turns frame by frame. Within a group the
    /// earliest message of the earliest call is sent first, because the segments of a pipeline
    /// would all arrive late if they were sent side by side.
    ready: BTreeMap<GroupEpoch, BTreeMap<MessageName, OutboundMessage>>,
    /// The group that had the last turn.
    last: GroupEpoch,
    /// Announced messages that wait for a grant.
    announced: BTreeMap<MessageName, OutboundMessage>,
    /// The credit that each group has used.
    used: BTreeMap<GroupEpoch, u64>,
    /// Messages of which the last frame was handed to the driver.
    sent: VecDeque<MessageName>,
    in_driver: u64,
}

impl UnicastScheduler {
    pub(super) fn control(&mut self, control: ControlFrame) {
        self.control.push_back(control);
    }

    pub(super) fn deferred(&mut self, deferred: MessageOrNotice) {
        match deferred {
            MessageOrNotice::Message { message, digest, bytes, announce } => {
                self.send(message, digest, bytes, announce);
            }
            MessageOrNotice::Notice(notice) => self.control(ControlFrame::Notice(notice)),
        }
    }

    fn send(&mut self, name: MessageName, digest: u64, bytes: u64, announce: bool) {
        let message = OutboundMessage { name, digest, bytes, sent: 0 };
        let used = self.used.entry((name.group, name.epoch)).or_default();
        let cost = bytes.saturating_add(MESSAGE_CREDIT_BYTES);
        if !announce && bytes <= EAGER_BYTES && *used + cost <= CREDIT_BYTES {
            *used += cost;
            self.start(message);
        } else {
            // A message beyond the credit is announced too. It must not be held back silently,
            // because it could be the very message that the receiver needs before it can free the
            // credit of the others.
            self.announced.insert(name, message);
            self.control.push_back(ControlFrame::Announce { message: name, digest, bytes });
        }
    }

    pub(super) fn granted(&mut self, name: MessageName) -> Result<(), Violation> {
        let message = self.announced.remove(&name).ok_or(Violation::Unrequested(name))?;
        self.start(message);
        Ok(())
    }

    /// Announces a message again because the receiver has dropped the announcement. Does nothing if
    /// the message has been granted since.
    pub(super) fn announce_again(&mut self, name: MessageName) {
        if let Some(OutboundMessage { digest, bytes, .. }) = self.announced.get(&name).copied() {
            self.control.push_back(ControlFrame::Announce { message: name, digest, bytes });
        }
    }

    /// Announces all messages of a group again.
    pub(super) fn announce_all(&mut self, group: GroupEpoch) {
        let of_group = |name: &&MessageName| (name.group, name.epoch) == group;
        let names: Vec<MessageName> = self.announced.keys().filter(of_group).copied().collect();
        names.into_iter().for_each(|name| self.announce_again(name));
    }

    fn start(&mut self, message: OutboundMessage) {
        let name = message.name;
        self.ready.entry((name.group, name.epoch)).or_default().insert(name, message);
    }

    pub(super) fn credit(&mut self, group: GroupEpoch, bytes: u64) -> Result<(), Violation> {
        let used = self.used.entry(group).or_default();
        *used = used.checked_sub(bytes).ok_or(Violation::Credit(group.0))?;
        Ok(())
    }

    pub(super) fn close(&mut self, group: GroupEpoch) {
        let of_group = |name: &MessageName| (name.group, name.epoch) == group;
        self.ready.remove(&group);
        self.announced.retain(|name, _| !of_group(name));
        self.sent.retain(|name| !of_group(name));
        self.used.remove(&group);
    }

    pub(super) fn written(&mut self, bytes: u64) {
        self.in_driver = self.in_driver.saturating_sub(bytes);
    }

    pub(super) fn next(&mut self) -> Option<Output> {
        let idle = self.in_driver == 0;
        if idle && let Some(name) = self.sent.pop_front() {
            return Some(Output::Sent(name));
        }
        let (head, payload) = match self.control.pop_front_if(|_| self.in_driver < DRIVER_WINDOW_BYTES) {
            Some(control) => (control.encode(), None),
            // Data frames are handed over one at a time, so that the next is chosen when the
            // previous one has left.
            None if idle => self.frame()?,
            None => return None,
        };
        self.in_driver += head.len() as u64 + payload.map_or(0, |p| u64::from(p.len));
        Some(Output::Write { head, payload })
    }

    /// Returns the next frame of the message that has the turn.
    fn frame(&mut self) -> Option<(Vec<u8>, Option<Payload>)> {
        let after = (Bound::Excluded(self.last), Bound::Unbounded);
        let group = *self.ready.range(after).next().or(self.ready.iter().next())?.0;
        self.last = group;
        let messages = self.ready.get_mut(&group)?;
        let mut message = messages.first_entry()?;
        let OutboundMessage { name, digest, bytes, sent: offset } = *message.get();
        // The length is at most FRAME_PAYLOAD, which is a u32.
        let len = (bytes - offset).min(u64::from(FRAME_PAYLOAD)) as u32;
        message.get_mut().sent += u64::from(len);
        if message.get().sent == bytes {
            message.remove();
            self.sent.push_back(name);
            if messages.is_empty() {
                self.ready.remove(&group);
            }
        }
        let head = DataFrame { message: name, digest, bytes, offset, len }.encode();
        Some((head, (len > 0).then_some(Payload { message: name, offset, len })))
    }
}
