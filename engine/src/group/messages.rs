//! Unicast messages of a group's calls: to and from other nodes, and between ranks of this node.

use super::Group;
use super::actions::copy;
use super::direct::is_direct;
use crate::api::failure;
use crate::engine::Shared;
use crate::memory::{HeapMemory, SharedSlice};
use crate::reduce::combine;
use cool_machine::Time;
use cool_proto::local::{Dtype, Failure, ReduceOp, failure::Kind};
use cool_transport::unicast::{EAGER_BYTES, Input, MessageName, Payload};
use std::collections::BTreeMap;

/// Where a message comes from or goes to on this node, and the action that waits for it.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) rank: u32,
    pub(super) action: u32,
    pub(super) slice: SharedSlice,
    /// Of a receive: a message that belongs here, and fits, has begun.
    pub(super) begun: bool,
    /// Of a receive on this node: the message is not put here, but combined with what is here.
    pub(super) combine: Option<(Dtype, ReduceOp)>,
}

impl Place {
    pub(super) fn new(rank: u32, action: u32, slice: SharedSlice) -> Place {
        Place { rank, action, slice, begun: false, combine: None }
    }

    /// Takes a message of this node.
    fn take(&self, from: &SharedSlice) {
        match self.combine {
            Some((dtype, reduce)) => combine(dtype, reduce, &self.slice, from),
            None => copy(from, &self.slice),
        }
    }
}

/// A message that came before its receive; what the peer may send so is bounded by its credit.
#[derive(Debug)]
struct Unexpected {
    digest: u64,
    bytes: u64,
    data: Vec<u8>,
}

/// The sending end of a message between two ranks of this node, where it came first.
#[derive(Debug)]
enum Local {
    /// The sender waits.
    Waiting(Place),
    /// The sender has gone on; this is a copy, for which room was taken.
    Copied(SharedSlice),
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
        for local in std::mem::take(self).local.into_values() {
            if let Local::Copied(slice) = local {
                shared.copies.give(slice.bytes());
            }
        }
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
        if let Some(to) = self.messages.receives.remove(&message) {
            to.take(&from.slice);
            self.complete(now, shared, message.call, from.rank, from.action);
            self.complete(now, shared, message.call, to.rank, to.action);
        } else if from.slice.bytes() <= EAGER_BYTES && shared.copies.take(from.slice.bytes()) {
            let mut bytes = vec![0; from.slice.bytes() as usize];
            from.slice.read(0, &mut bytes);
            self.messages.local.insert(message, Local::Copied(HeapMemory::slice(bytes)));
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
            Some(Local::Copied(slice)) => {
                to.take(&slice);
                shared.copies.give(slice.bytes());
                self.complete(now, shared, message.call, to.rank, to.action);
            }
            Some(Local::Waiting(from)) => {
                to.take(&from.slice);
                self.complete(now, shared, message.call, from.rank, from.action);
                self.complete(now, shared, message.call, to.rank, to.action);
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
        let came = self.messages.unexpected.remove(&message);
        // What belongs to another call is not taken; its sender is being asked what it called.
        if let Some(unexpected) = came.filter(|came| !self.differs(message.call, came.digest)) {
            self.check_length(message, unexpected.bytes, to.slice.bytes())?;
            to.slice.write(0, &unexpected.data);
            to.begun = true;
        }
        self.messages.receives.insert(message, to);
        if let Some(node) = self.members.node_of(message.from) {
            shared.peers.handle(now, &self.members.nodes[node].name, Input::Expect(message));
        }
        Ok(())
    }

    /// A message from another node begins to arrive or is announced.
    pub(crate) fn message_begins(
        &mut self,
        now: Time,
        shared: &mut Shared,
        peer: &str,
        message: MessageName,
        (digest, bytes): (u64, u64),
    ) -> Result<(), Failure> {
        let from_peer = self.members.node_of(message.from).filter(|n| self.members.nodes[*n].name == peer);
        let to_us = self.members.node_of(message.to) == Some(self.members.me);
        let (Some(node), true) = (from_peer, to_us) else {
            let text = format!(
                "node {peer} sent a message from rank {} to rank {}, which it may not",
                message.from, message.to
            );
            return Err(failure(Kind::Lost, text, self.members.ranks_of(peer)));
        };
        if is_direct(message) {
            return self.direct_begins(now, shared, message, (digest, bytes));
        }
        self.heard_of(message.call, message.from, digest);
        if self.differs(message.call, digest) {
            self.ask_what(now, shared, message.call, node);
            return Ok(());
        }
        if let Some(place) = self.messages.receives.get_mut(&message) {
            place.begun = true;
            let wanted = place.slice.bytes();
            return self.check_length(message, bytes, wanted);
        }
        self.messages.unexpected.insert(message, Unexpected { digest, bytes, data: Vec::new() });
        Ok(())
    }

    /// Bytes of a message from another node.
    pub(crate) fn message_data(&mut self, now: Time, message: MessageName, offset: u64, data: &[u8]) {
        if is_direct(message) {
            self.direct_data(now, message, offset, data);
        } else if let Some(place) = self.messages.receives.get(&message).filter(|place| place.begun) {
            place.slice.write(offset, data);
            if let Some(call) = self.calls.get_mut(&message.call) {
                call.progress = now;
            }
        } else if let Some(unexpected) = self.messages.unexpected.get_mut(&message) {
            unexpected.data.extend_from_slice(data);
        }
    }

    /// All of a message that was expected is here.
    pub(crate) fn message_received(&mut self, now: Time, shared: &mut Shared, message: MessageName) {
        if is_direct(message) {
            self.direct_received(now, shared, message);
        } else if self.messages.receives.get(&message).is_some_and(|place| place.begun)
            && let Some(place) = self.messages.receives.remove(&message)
        {
            self.complete(now, shared, message.call, place.rank, place.action);
        }
    }

    /// All of a message is on its way.
    pub(crate) fn message_sent(&mut self, now: Time, shared: &mut Shared, message: MessageName) {
        if is_direct(message) {
            self.direct_sent(now, shared, message);
        } else if let Some(place) = self.messages.sends.remove(&message) {
            self.complete(now, shared, message.call, place.rank, place.action);
        }
    }

    /// A part of a message that is being sent, if it is still known.
    pub(crate) fn message_payload(&mut self, now: Time, part: &Payload) -> Option<SharedSlice> {
        if is_direct(part.message) {
            return self.direct_payload(now, part);
        }
        let place = self.messages.sends.get(&part.message)?;
        if let Some(call) = self.calls.get_mut(&part.message.call) {
            call.progress = now;
        }
        Some(place.slice.part(part.offset, part.len.into()))
    }

    /// Where a part of a long message belongs that is about to come, if that is known.
    pub(crate) fn message_place(&self, part: &Payload) -> Option<SharedSlice> {
        let slice = if is_direct(part.message) {
            self.direct_place(part.message)?
        } else {
            &self.messages.receives.get(&part.message).filter(|place| place.begun)?.slice
        };
        let fits = part.offset.checked_add(part.len.into()).is_some_and(|end| end <= slice.bytes());
        (fits && slice.is_long()).then(|| slice.part(part.offset, part.len.into()))
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
        Err(failure(Kind::Mismatch, text, vec![message.from, message.to]))
    }
}
