//! Unicast messages of a group's calls: to and from other nodes, and between ranks of this node.

use super::Group;
use super::point_to_point::is_point_to_point;
use crate::failure::{Failure, FailureKind};
use crate::memory::MemoryRange;
use crate::outbox::Received;
use crate::peers::NodeId;
use crate::shared::{Context, Shared};
use cool_machine::Time;
use cool_transport::unicast::{Input, MessageName, Payload};
use cool_types::limits::EAGER_BYTES;
use cool_types::{ElementType, ReduceOp};
use core::ops::Range;
use std::collections::BTreeMap;

/// Messages from this length on go straight from the socket to their place. Several shorter ones are read at once, which is
/// worth more than to do without a copy.
const STRAIGHT_BYTES: u64 = 32 * 1024;

/// How elements are combined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reduction {
    pub(super) element: ElementType,
    pub(super) op: ReduceOp,
}

/// Where a message comes from or goes to on this node, and the action that waits for it.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) rank: u32,
    pub(super) action: u32,
    pub(super) range: MemoryRange,
    /// Of a receive: a message that belongs here, and fits, has begun.
    pub(super) begun: bool,
    /// Of a receive on this node: the message is not put here, but combined with what is here.
    pub(super) reduction: Option<Reduction>,
}

impl Place {
    pub(super) fn new(rank: u32, action: u32, range: MemoryRange) -> Place {
        Place { rank, action, range, begun: false, reduction: None }
    }
}

/// A message that came before its receive; what the peer may send so is bounded by its credit.
#[derive(Debug)]
pub(super) struct Unexpected {
    pub(super) digest: u64,
    pub(super) bytes: u64,
    /// What came of it; empty before anything has.
    pub(super) data: MemoryRange,
}

impl Unexpected {
    /// Keeps bytes of it. They come in order, of messages that are short enough to come unasked.
    pub(super) fn keep(&mut self, shared: &mut Shared, offset: u64, within: Range<usize>) {
        if self.data.len == 0 {
            self.data = shared.out.allocate(self.bytes);
        }
        let to = self.data.part(offset, within.len() as u64);
        shared.out.store(&Received::Input(within), to);
    }

    /// Puts what has come to its place, and forgets it.
    pub(super) fn deliver(self, shared: &mut Shared, to: MemoryRange) {
        shared.out.copy(self.data, to.part(0, self.data.len));
        shared.out.free(self.data);
    }
}

/// The sending end of a message between two ranks of this node, where it came first.
#[derive(Debug)]
enum Local {
    /// The sender waits.
    Waiting(Place),
    /// The sender has gone on; this is a bounce buffer.
    Bounced(MemoryRange),
}

#[derive(Debug, Default)]
pub(super) struct Messages {
    pub(super) sends: BTreeMap<MessageName, Place>,
    pub(super) receives: BTreeMap<MessageName, Place>,
    unexpected: BTreeMap<MessageName, Unexpected>,
    local: BTreeMap<MessageName, Local>,
}

impl Messages {
    pub(super) fn clear(&mut self, shared: &mut Shared) {
        let Messages { local, unexpected, .. } = std::mem::take(self);
        for local in local.into_values() {
            if let Local::Bounced(buffer) = local {
                shared.give_back(buffer);
            }
        }
        unexpected.into_values().for_each(|unexpected| shared.out.free(unexpected.data));
    }

    /// Sending ranks and digests of the messages that came before a call began here.
    pub(super) fn came(&self, call: u64) -> Vec<(u32, u64)> {
        let of_call = self.unexpected.iter().filter(|(name, _)| name.call == call);
        of_call.map(|(name, unexpected)| (name.from, unexpected.digest)).collect()
    }
}

impl Group {
    /// One rank of this node sends to another.
    pub(super) fn send_here(&mut self, now: Time, shared: &mut Shared, message: MessageName, from: Place) {
        let sender = (from.rank, from.action);
        if let Some(to) = self.messages.receives.remove(&message) {
            self.work(now, shared, message.call, (from.range, Some(sender)), &to, None);
        } else if from.range.len <= EAGER_BYTES
            && let Some(buffer) = shared.bounce(from.range)
        {
            self.messages.local.insert(message, Local::Bounced(buffer));
            self.complete(now, shared, message.call, from.rank, from.action);
        } else {
            self.messages.local.insert(message, Local::Waiting(from));
        }
    }

    /// One rank of this node receives from another.
    pub(super) fn receive_here(&mut self, now: Time, shared: &mut Shared, message: MessageName, to: Place) {
        match self.messages.local.remove(&message) {
            None => {
                self.messages.receives.insert(message, to);
            }
            Some(Local::Bounced(buffer)) => {
                self.work(now, shared, message.call, (buffer, None), &to, Some(buffer));
            }
            Some(Local::Waiting(from)) => {
                let sender = Some((from.rank, from.action));
                self.work(now, shared, message.call, (from.range, sender), &to, None);
            }
        }
    }

    /// A rank of this node receives from another node.
    pub(super) fn expect(
        &mut self,
        now: Time,
        shared: &mut Shared,
        message: MessageName,
        mut to: Place,
    ) -> Result<(), Failure> {
        match self.messages.unexpected.remove(&message) {
            // What belongs to another call is not taken; its sender is being asked what it called.
            Some(came) if self.differs(message.call, came.digest) => shared.out.free(came.data),
            Some(came) => {
                self.check_length(message, came.bytes, to.range.len)?;
                came.deliver(shared, to.range);
                to.begun = true;
            }
            None => {}
        }
        self.messages.receives.insert(message, to);
        if let Some(node) = self.members.other_node_of(message.from) {
            Context { now, members: &self.members, shared }.tell_peer(node, Input::Expect(message));
        }
        Ok(())
    }

    /// A message from another node begins to arrive or is announced.
    pub(crate) fn message_begins(
        &mut self,
        now: Time,
        shared: &mut Shared,
        peer: NodeId,
        message: MessageName,
        (digest, bytes): (u64, u64),
    ) -> Result<(), Failure> {
        let Some(node) = self.members.place_of(peer) else { return Ok(()) };
        let from_peer = self.members.node_of(message.from) == Some(node);
        let to_us = self.members.node_of(message.to) == Some(self.members.me);
        if !(from_peer && to_us) {
            let name = &self.members.nodes[node].name;
            let text = format!(
                "node {name} sent a message from rank {} to rank {}, which it may not",
                message.from, message.to
            );
            return Err(Failure::new(FailureKind::Lost, text, self.members.ranks_of(node).collect()));
        }
        if is_point_to_point(message) {
            let mut context = Context { now, members: &self.members, shared };
            return self.point_to_point.begins(&mut context, message, (digest, bytes));
        }
        self.heard_of(message.call, message.from, digest);
        if self.differs(message.call, digest) {
            self.tell_call(now, shared, message.call, node);
            return Ok(());
        }
        if let Some(place) = self.messages.receives.get_mut(&message) {
            place.begun = true;
            let wanted = place.range.len;
            return self.check_length(message, bytes, wanted);
        }
        self.messages.unexpected.insert(message, Unexpected { digest, bytes, data: MemoryRange::EMPTY });
        Ok(())
    }

    /// Bytes of a message from another node: these of the input, or none if they are in their place.
    pub(crate) fn message_data(
        &mut self,
        now: Time,
        shared: &mut Shared,
        message: MessageName,
        offset: u64,
        within: Range<usize>,
    ) {
        if is_point_to_point(message) {
            let mut context = Context { now, members: &self.members, shared };
            self.point_to_point.data(&mut context, message, offset, within);
        } else if let Some(place) = self.messages.receives.get(&message).filter(|place| place.begun) {
            let to = place.range.part(offset, within.len() as u64);
            shared.out.store(&Received::Input(within), to);
            if let Some(call) = self.calls.get_mut(&message.call) {
                call.progress = now;
            }
        } else if let Some(unexpected) = self.messages.unexpected.get_mut(&message) {
            unexpected.keep(shared, offset, within);
        }
    }

    /// All of a message that was expected is here.
    pub(crate) fn message_received(&mut self, now: Time, shared: &mut Shared, message: MessageName) {
        if is_point_to_point(message) {
            self.point_to_point.received(&mut Context { now, members: &self.members, shared }, message);
        } else if self.messages.receives.get(&message).is_some_and(|place| place.begun)
            && let Some(place) = self.messages.receives.remove(&message)
        {
            self.complete(now, shared, message.call, place.rank, place.action);
        }
    }

    /// All of a message is on its way.
    pub(crate) fn message_sent(&mut self, now: Time, shared: &mut Shared, message: MessageName) {
        if is_point_to_point(message) {
            self.point_to_point.sent(&mut Context { now, members: &self.members, shared }, message);
        } else if let Some(place) = self.messages.sends.remove(&message) {
            self.complete(now, shared, message.call, place.rank, place.action);
        }
    }

    /// A part of a message that is being sent, if it is still known.
    pub(crate) fn message_payload(&mut self, now: Time, part: &Payload) -> Option<MemoryRange> {
        if is_point_to_point(part.message) {
            return self.point_to_point.payload(now, part);
        }
        let place = self.messages.sends.get(&part.message)?;
        if let Some(call) = self.calls.get_mut(&part.message.call) {
            call.progress = now;
        }
        Some(place.range.part(part.offset, part.len.into()))
    }

    /// Where a part of a long message belongs that is about to come, if that is known.
    pub(crate) fn message_place(&self, part: &Payload) -> Option<MemoryRange> {
        let whole = if is_point_to_point(part.message) {
            self.point_to_point.place(part.message)?
        } else {
            self.messages.receives.get(&part.message).filter(|place| place.begun)?.range
        };
        let fits = part.offset.checked_add(part.len.into()).is_some_and(|end| end <= whole.len);
        (fits && whole.len >= STRAIGHT_BYTES).then(|| whole.part(part.offset, part.len.into()))
    }

    fn check_length(&self, message: MessageName, bytes: u64, wanted: u64) -> Result<(), Failure> {
        if bytes == wanted {
            return Ok(());
        }
        let text = format!(
            "rank {} sent {bytes} bytes to rank {} where {wanted} belong (call {} of group {}); \
             run the same version of the agent on all nodes",
            message.from, message.to, message.call, message.group
        );
        Err(Failure::new(FailureKind::Mismatch, text, vec![message.from, message.to]))
    }
}
