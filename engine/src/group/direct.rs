//! Messages from one rank to another outside of calls: send and receive. They are matched by sender and tag, in the
//! order in which the sender sent them; their numbers are above those of all calls.

use super::Group;
use crate::api::{TransferRequest, failure};
use crate::engine::{Shared, TimerKey};
use crate::group::actions::copy;
use crate::memory::{HeapMemory, SharedSlice};
use cool_machine::{Duration, Time};
use cool_proto::local::{Arrived, Dtype, Failure, Stats, failure::Kind};
use cool_transport::unicast::{EAGER_BYTES, Input, MessageName, Payload};
use std::collections::{BTreeMap, BTreeSet};

/// Where the numbers of such messages begin: no group makes so many calls.
const FIRST: u64 = 1 << 63;

/// Whether a message is none of a call.
pub(super) fn is_direct(message: MessageName) -> bool {
    message.call >= FIRST
}

/// A send or receive under way.
#[derive(Debug)]
struct Transfer {
    token: u64,
    rank: u32,
    sending: bool,
    /// Absent: any.
    peer: Option<u32>,
    /// Absent: any.
    tag: Option<u32>,
    dtype: Dtype,
    data: SharedSlice,
    begun: Time,
    /// When anything last moved.
    progress: Time,
    timeout: Duration,
}

/// A message that has begun to come, and whose receive has not been posted.
#[derive(Debug)]
struct Arrival {
    message: MessageName,
    /// The type of its elements, as a number.
    dtype: u64,
    bytes: u64,
    from: Source,
}

#[derive(Debug)]
enum Source {
    /// Another node: what of it came unasked is kept in [`Direct::early`].
    Node,
    /// A rank of this node that waits.
    Waiting(u64),
    /// A rank of this node that has gone on: a copy, for which room was taken.
    Copied(SharedSlice),
}

/// The messages from one rank to another of this node: they may begin in another order than they were sent.
#[derive(Debug, Default)]
struct Line {
    next: u64,
    held: BTreeMap<u64, Arrival>,
}

#[derive(Debug, Default)]
pub(super) struct Direct {
    last: u64,
    transfers: BTreeMap<u64, Transfer>,
    /// Messages sent so far, by sender and receiver.
    sent: BTreeMap<(u32, u32), u64>,
    /// To other nodes, under way.
    sends: BTreeMap<MessageName, u64>,
    /// Receives that wait for their messages, in the order in which they were posted.
    posted: BTreeSet<u64>,
    /// Receives whose messages are coming, with their lengths.
    receives: BTreeMap<MessageName, (u64, u64)>,
    /// From other nodes, by sender and receiver.
    lines: BTreeMap<(u32, u32), Line>,
    /// In the order in which they may be received.
    arrived: Vec<Arrival>,
    /// Bounded by the sender's credit.
    early: BTreeMap<MessageName, Vec<u8>>,
}

impl Direct {
    pub(super) fn is_idle(&self) -> bool {
        self.transfers.is_empty()
    }

    /// When each of the transfers last moved.
    pub(super) fn progress(&self) -> impl Iterator<Item = Time> {
        self.transfers.values().map(|transfer| transfer.progress)
    }

    /// Gives back everything; whom to tell that it will not be, with their ranks.
    pub(super) fn clear(&mut self, group: u64, shared: &mut Shared) -> Vec<(u64, u32)> {
        let Direct { transfers, arrived, .. } = std::mem::take(self);
        for arrival in arrived {
            if let Source::Copied(slice) = arrival.from {
                shared.copies.give(slice.bytes());
            }
        }
        let end = |(id, transfer): (u64, Transfer)| {
            shared.timers.set(TimerKey::Direct(group, id), None);
            (transfer.token, transfer.rank)
        };
        transfers.into_iter().map(end).collect()
    }

    /// For each transfer of a rank, the rank at its other end; `None` for any.
    pub(super) fn awaited_by(&self, rank: u32) -> Vec<Option<u32>> {
        self.transfers
            .values()
            .filter(|transfer| transfer.rank == rank)
            .map(|transfer| transfer.peer)
            .collect()
    }

    /// Whether a transfer needs a rank that is gone; `alone` says that all but the local rank are.
    pub(super) fn needs(&self, rank: u32, alone: bool) -> bool {
        let waits = |id: &u64, transfer: &Transfer| match transfer.peer {
            Some(peer) => peer == rank && (transfer.sending || self.posted.contains(id)),
            None => alone && self.posted.contains(id),
        };
        self.transfers.iter().any(|(id, transfer)| waits(id, transfer))
    }
}

impl Transfer {
    fn takes(&self, arrival: &Arrival) -> bool {
        let MessageName { from, to, transfer: tag, .. } = arrival.message;
        to == self.rank && self.peer.is_none_or(|p| p == from) && self.tag.is_none_or(|t| t == tag)
    }

    fn words(&self) -> String {
        let peer = self.peer.map_or("any rank".to_owned(), |peer| format!("rank {peer}"));
        let tag = self.tag.map_or("any tag".to_owned(), |tag| format!("tag {tag}"));
        match self.sending {
            true => format!("the send of rank {} to {peer} with {tag}", self.rank),
            false => format!("the receive of rank {} from {peer} with {tag}", self.rank),
        }
    }
}

impl Group {
    /// A local rank sends or receives. Its answer goes out through `shared`.
    ///
    /// # Errors
    /// If the group fails by it.
    pub(crate) fn transfer(
        &mut self,
        now: Time,
        shared: &mut Shared,
        token: u64,
        request: TransferRequest,
    ) -> Result<(), Failure> {
        let TransferRequest { rank, sending, peer, tag, dtype, data, timeout, .. } = request;
        let (id, size) = (self.members.id, self.members.layout.size() as u32);
        let beyond = peer.filter(|peer| *peer >= size);
        let Some(local) = self.ranks.get_mut(&rank).filter(|_| beyond.is_none()) else {
            let message = format!(
                "rank {rank} of group {id} cannot send to or receive from rank {}",
                peer.unwrap_or_default()
            );
            shared.done(token, Err(failure(Kind::Invalid, message, vec![rank])));
            return Ok(());
        };
        if let Some(failed) = &self.failed {
            shared.done(token, Err(local.tell(id, failed)));
            return Ok(());
        }
        local.open += 1;
        self.direct.last += 1;
        let number = self.direct.last;
        let transfer =
            Transfer { token, rank, sending, peer, tag, dtype, data, begun: now, progress: now, timeout };
        shared.timers.set(TimerKey::Direct(id, number), Some(now + timeout));
        self.direct.transfers.insert(number, transfer);
        self.keep_vigil(now, shared);
        match peer.filter(|_| sending) {
            Some(to) => self.send(now, shared, number, to),
            None => self.receive(now, shared, number),
        }
    }

    fn send(&mut self, now: Time, shared: &mut Shared, number: u64, to: u32) -> Result<(), Failure> {
        let Some(Transfer { rank, tag, dtype, data, .. }) = self.direct.transfers.get(&number) else {
            return Ok(());
        };
        let (from, tag, dtype, data) = (*rank, tag.unwrap_or_default(), *dtype as u64, data.clone());
        if let Some(gone) = self.gone_rank(to) {
            return Err(gone);
        }
        let sent = self.direct.sent.entry((from, to)).or_default();
        let call = FIRST + *sent;
        *sent += 1;
        let message = self.message(call, tag, from, to);
        let bytes = data.bytes();
        let node = self.members.node_of(to);
        if let Some(node) = node.filter(|node| *node != self.members.me) {
            self.direct.sends.insert(message, number);
            let send = Input::Send { message, digest: dtype, bytes };
            shared.peers.handle(now, &self.members.nodes[node].name, send);
            return Ok(());
        }
        let from = if bytes <= EAGER_BYTES && shared.copies.take(bytes) {
            let mut copied = vec![0; bytes as usize];
            data.read(0, &mut copied);
            self.transferred(now, shared, number, None);
            Source::Copied(HeapMemory::slice(copied))
        } else {
            Source::Waiting(number)
        };
        self.arrive(now, shared, Arrival { message, dtype, bytes, from })
    }

    fn receive(&mut self, now: Time, shared: &mut Shared, number: u64) -> Result<(), Failure> {
        let Some(transfer) = self.direct.transfers.get(&number) else { return Ok(()) };
        if let Some(place) = self.direct.arrived.iter().position(|arrival| transfer.takes(arrival)) {
            let arrival = self.direct.arrived.remove(place);
            return self.deliver(now, shared, arrival, number);
        }
        let gone = match transfer.peer {
            Some(peer) => self.gone_rank(peer),
            None => self.last_other_gone(),
        };
        self.direct.posted.insert(number);
        gone.map_or(Ok(()), Err)
    }

    /// A message may be received.
    fn arrive(&mut self, now: Time, shared: &mut Shared, arrival: Arrival) -> Result<(), Failure> {
        let Direct { transfers, posted, .. } = &self.direct;
        let takes = |number: &&u64| transfers.get(number).is_some_and(|transfer| transfer.takes(&arrival));
        match posted.iter().find(takes).copied() {
            None => {
                self.direct.arrived.push(arrival);
                Ok(())
            }
            Some(number) => {
                self.direct.posted.remove(&number);
                self.deliver(now, shared, arrival, number)
            }
        }
    }

    /// A message and the receive that takes it have met.
    fn deliver(
        &mut self,
        now: Time,
        shared: &mut Shared,
        arrival: Arrival,
        number: u64,
    ) -> Result<(), Failure> {
        let Arrival { message, dtype, bytes, from } = arrival;
        let Some(transfer) = self.direct.transfers.get_mut(&number) else { return Ok(()) };
        if let Source::Copied(slice) = &from {
            shared.copies.give(slice.bytes());
        }
        if dtype != transfer.dtype as u64 || bytes > transfer.data.bytes() {
            let sent = i32::try_from(dtype).ok().and_then(|code| Dtype::try_from(code).ok());
            let text = format!(
                "rank {} sent {bytes} bytes of {} with tag {}, but {} (group {}) takes at most {} bytes of {}",
                message.from,
                sent.map_or("an unknown type", |dtype| dtype.as_str_name()),
                message.transfer,
                transfer.words(),
                message.group,
                transfer.data.bytes(),
                transfer.dtype.as_str_name(),
            );
            return Err(failure(Kind::Mismatch, text, vec![message.from, message.to]));
        }
        transfer.progress = now;
        let place = transfer.data.part(0, bytes);
        match from {
            Source::Node => {
                place.write(0, &self.direct.early.remove(&message).unwrap_or_default());
                self.direct.receives.insert(message, (number, bytes));
                if let Some(node) = self.members.node_of(message.from) {
                    shared.peers.handle(now, &self.members.nodes[node].name, Input::Expect(message));
                }
            }
            Source::Copied(slice) => {
                copy(&slice, &place);
                self.transferred(now, shared, number, Some((message, bytes)));
            }
            Source::Waiting(sender) => {
                if let Some(sender) = self.direct.transfers.get(&sender) {
                    copy(&sender.data, &place);
                }
                self.transferred(now, shared, sender, None);
                self.transferred(now, shared, number, Some((message, bytes)));
            }
        }
        Ok(())
    }

    /// A transfer is done; of a receive, with what came.
    fn transferred(&mut self, now: Time, shared: &mut Shared, number: u64, came: Option<(MessageName, u64)>) {
        let Some(transfer) = self.direct.transfers.remove(&number) else { return };
        shared.timers.set(TimerKey::Direct(self.members.id, number), None);
        if let Some(local) = self.ranks.get_mut(&transfer.rank) {
            local.open -= 1;
        }
        let nanoseconds = u64::try_from((now - transfer.begun).as_nanos()).unwrap_or(u64::MAX);
        let to_node = |peer| self.members.node_of(peer).is_some_and(|node| node != self.members.me);
        let on_wire = transfer.sending && transfer.peer.is_some_and(to_node);
        let stats = Stats {
            nanoseconds,
            bytes_unicast: if on_wire { transfer.data.bytes() } else { 0 },
            arrived: came.map(|(message, bytes)| Arrived {
                source: message.from,
                tag: message.transfer,
                bytes,
            }),
            ..Stats::default()
        };
        shared.done(transfer.token, Ok(stats));
    }

    /// A message from another node begins to arrive or is announced.
    pub(super) fn direct_begins(
        &mut self,
        now: Time,
        shared: &mut Shared,
        message: MessageName,
        (dtype, bytes): (u64, u64),
    ) -> Result<(), Failure> {
        self.direct.early.insert(message, Vec::new());
        let line = self.direct.lines.entry((message.from, message.to)).or_default();
        line.held.insert(message.call - FIRST, Arrival { message, dtype, bytes, from: Source::Node });
        let mut in_order = Vec::new();
        while let Some(arrival) = line.held.remove(&line.next) {
            line.next += 1;
            in_order.push(arrival);
        }
        in_order.into_iter().try_for_each(|arrival| self.arrive(now, shared, arrival))
    }

    pub(super) fn direct_data(&mut self, now: Time, message: MessageName, offset: u64, data: &[u8]) {
        if let Some((number, _)) = self.direct.receives.get(&message) {
            if let Some(transfer) = self.direct.transfers.get_mut(number) {
                transfer.data.write(offset, data);
                transfer.progress = now;
            }
        } else if let Some(early) = self.direct.early.get_mut(&message) {
            early.extend_from_slice(data);
        }
    }

    pub(super) fn direct_received(&mut self, now: Time, shared: &mut Shared, message: MessageName) {
        if let Some((number, bytes)) = self.direct.receives.remove(&message) {
            self.transferred(now, shared, number, Some((message, bytes)));
        }
    }

    pub(super) fn direct_sent(&mut self, now: Time, shared: &mut Shared, message: MessageName) {
        if let Some(number) = self.direct.sends.remove(&message) {
            self.transferred(now, shared, number, None);
        }
    }

    /// A part of a message that is being sent, if it is still known.
    pub(super) fn direct_payload(&mut self, now: Time, part: &Payload) -> Option<SharedSlice> {
        let transfer = self.direct.transfers.get_mut(self.direct.sends.get(&part.message)?)?;
        transfer.progress = now;
        Some(transfer.data.part(part.offset, part.len.into()))
    }

    /// Where a message goes that a receive has taken.
    pub(super) fn direct_place(&self, message: MessageName) -> Option<&SharedSlice> {
        let (number, _) = self.direct.receives.get(&message)?;
        Some(&self.direct.transfers.get(number)?.data)
    }

    /// It is time to look after a transfer.
    pub(crate) fn direct_due(&mut self, now: Time, shared: &mut Shared, number: u64) -> Result<(), Failure> {
        let Some(Transfer { progress, timeout, .. }) = self.direct.transfers.get(&number) else {
            return Ok(());
        };
        let (key, moved, deadline) =
            (TimerKey::Direct(self.members.id, number), *progress, *progress + *timeout);
        if deadline > now {
            shared.timers.set(key, Some(deadline));
            return Ok(());
        }
        if self.inquired(now, shared, key, moved) { Err(self.late(number)) } else { Ok(()) }
    }

    /// The failure of a message that has waited for too long.
    fn late(&self, number: u64) -> Failure {
        let transfer = &self.direct.transfers[&number];
        let others: Vec<u32> =
            self.members.layout.ranks().map(|rank| rank.0).filter(|rank| *rank != transfer.rank).collect();
        let awaited = transfer.peer.map_or_else(|| others.clone(), |peer| vec![peer]);
        let ranks = match self.suspects(&awaited) {
            none if none.is_empty() => awaited,
            suspects => suspects,
        };
        // Of all others none can be told apart.
        let ranks = if ranks == others && transfer.peer.is_none() { Vec::new() } else { ranks };
        let look = if ranks.is_empty() { "the other side".to_owned() } else { self.name(&ranks) };
        let text = format!(
            "{} (group {}) made no progress for {:?}; look after {look}, or give it more time",
            transfer.words(),
            self.members.id,
            transfer.timeout
        );
        failure(Kind::Timeout, text, ranks)
    }
}
