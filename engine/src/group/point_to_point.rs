//! Messages from one rank to another outside of calls: send and receive. They are matched by sender and tag, in the
//! order in which the sender sent them; their numbers are above those of all calls.

use super::Group;
use super::actions::{Completes, LocalWork};
use super::messages::Unexpected;
use crate::api::TransferRequest;
use crate::failure::{Arrived, Failure, FailureKind, Stats, Traffic};
use crate::machine::Work;
use crate::memory::MemoryRange;
use crate::outbox::Received;
use crate::shared::{Shared, TimerKey};
use cool_machine::{Duration, Time};
use cool_transport::unicast::{Input, MessageName, Payload};
use cool_types::ElementType;
use cool_types::limits::EAGER_BYTES;
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

/// Where the numbers of such messages begin: no group makes so many calls.
const FIRST: u64 = 1 << 63;

/// Whether a message is none of a call.
pub(super) fn is_point_to_point(message: MessageName) -> bool {
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
    element: ElementType,
    data: MemoryRange,
    begun: Time,
    /// When anything last moved.
    progress: Time,
    /// Its bytes are being copied between ranks of this node.
    copying: bool,
    timeout: Duration,
}

/// A message that has begun to come, and whose receive has not been posted.
#[derive(Debug)]
struct Arrival {
    message: MessageName,
    /// The type of its elements, as its place in [`ElementType::ALL`].
    element: u64,
    bytes: u64,
    from: Source,
}

#[derive(Debug)]
enum Source {
    /// Another node: what of it came unasked is in [`PointToPoint::unexpected`].
    Node,
    /// A rank of this node that waits.
    Waiting(u64),
    /// A rank of this node that has gone on: a bounce buffer.
    Bounced(MemoryRange),
}

/// The messages from one rank to another of this node: they may begin in another order than they were sent.
#[derive(Debug, Default)]
struct Sequencer {
    next: u64,
    held: BTreeMap<u64, Arrival>,
}

#[derive(Debug, Default)]
pub(super) struct PointToPoint {
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
    sequencers: BTreeMap<(u32, u32), Sequencer>,
    /// In the order in which they may be received.
    arrived: Vec<Arrival>,
    /// Bounded by the sender's credit.
    unexpected: BTreeMap<MessageName, Unexpected>,
}

impl PointToPoint {
    pub(super) fn is_idle(&self) -> bool {
        self.transfers.is_empty()
    }

    /// When each of the transfers last moved.
    pub(super) fn progress(&self, now: Time) -> impl Iterator<Item = Time> {
        self.transfers.values().map(move |transfer| if transfer.copying { now } else { transfer.progress })
    }

    /// Gives back everything; whom to tell that it will not be, with their ranks.
    pub(super) fn clear(&mut self, group: u64, shared: &mut Shared) -> Vec<(u64, u32)> {
        let PointToPoint { transfers, arrived, unexpected, .. } = std::mem::take(self);
        for arrival in arrived {
            if let Source::Bounced(buffer) = arrival.from {
                shared.give_back(buffer);
            }
        }
        unexpected.into_values().for_each(|unexpected| shared.out.free(unexpected.data));
        let end = |(id, transfer): (u64, Transfer)| {
            shared.timers.set(TimerKey::PointToPoint(group, id), None);
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
    /// The failure of a message that does not fit, if it does not.
    fn refuses(&self, arrival: &Arrival) -> Option<Failure> {
        let Arrival { message, element, bytes, .. } = arrival;
        if *element == self.element as u64 && *bytes <= self.data.len {
            return None;
        }
        let sent = usize::try_from(*element).ok().and_then(|place| ElementType::ALL.get(place));
        let text = format!(
            "rank {} sent {bytes} bytes of {} with tag {}, but {} (group {}) takes at most {} bytes of {}",
            message.from,
            sent.map_or("an unknown type", |element| element.name()),
            message.transfer,
            self.text(),
            message.group,
            self.data.len,
            self.element,
        );
        Some(Failure::new(FailureKind::Mismatch, text, vec![message.from, message.to]))
    }

    fn takes(&self, arrival: &Arrival) -> bool {
        let MessageName { from, to, transfer: tag, .. } = arrival.message;
        to == self.rank && self.peer.is_none_or(|p| p == from) && self.tag.is_none_or(|t| t == tag)
    }

    fn text(&self) -> String {
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
        let TransferRequest { rank, sending, peer, tag, element, data, timeout, .. } = request;
        let (id, size) = (self.members.id, self.members.layout.size() as u32);
        let beyond = peer.filter(|peer| *peer >= size);
        let Some(local) = self.ranks.get_mut(&rank).filter(|_| beyond.is_none()) else {
            let message = format!(
                "rank {rank} of group {id} cannot send to or receive from rank {}",
                peer.unwrap_or_default()
            );
            shared.done(token, Err(Failure::new(FailureKind::Invalid, message, vec![rank])));
            return Ok(());
        };
        if let Some(failed) = &self.failed {
            shared.done(token, Err(local.tell(id, failed)));
            return Ok(());
        }
        local.open += 1;
        self.point_to_point.last += 1;
        let number = self.point_to_point.last;
        let transfer = Transfer {
            token,
            rank,
            sending,
            peer,
            tag,
            element,
            data,
            begun: now,
            progress: now,
            copying: false,
            timeout,
        };
        shared.timers.set(TimerKey::PointToPoint(id, number), Some(now + timeout));
        self.point_to_point.transfers.insert(number, transfer);
        self.detect_failures(now, shared);
        match peer.filter(|_| sending) {
            Some(to) => self.send_message(now, shared, number, to),
            None => self.receive_message(now, shared, number),
        }
    }

    fn send_message(&mut self, now: Time, shared: &mut Shared, number: u64, to: u32) -> Result<(), Failure> {
        let Some(transfer) = self.point_to_point.transfers.get(&number) else { return Ok(()) };
        let (from, tag, data) = (transfer.rank, transfer.tag.unwrap_or_default(), transfer.data);
        let (element, bytes) = (transfer.element as u64, data.len);
        if let Some(gone) = self.gone_rank(to) {
            return Err(gone);
        }
        let sent = self.point_to_point.sent.entry((from, to)).or_default();
        let call = FIRST + *sent;
        *sent += 1;
        let message = self.message(call, tag, from, to);
        if let Some(node) = self.members.node_of(to).filter(|node| *node != self.members.me) {
            self.point_to_point.sends.insert(message, number);
            let send = Input::Send { message, digest: element, bytes };
            shared.peers.handle(now, &self.members.nodes[node].name, send);
            return Ok(());
        }
        let from = match if bytes <= EAGER_BYTES { shared.bounce(data) } else { None } {
            Some(buffer) => {
                self.transferred(now, shared, number, None);
                Source::Bounced(buffer)
            }
            None => Source::Waiting(number),
        };
        self.arrive(now, shared, Arrival { message, element, bytes, from })
    }

    fn receive_message(&mut self, now: Time, shared: &mut Shared, number: u64) -> Result<(), Failure> {
        let Some(transfer) = self.point_to_point.transfers.get(&number) else { return Ok(()) };
        if let Some(place) = self.point_to_point.arrived.iter().position(|arrival| transfer.takes(arrival)) {
            let arrival = self.point_to_point.arrived.remove(place);
            return self.deliver(now, shared, arrival, number);
        }
        let gone = match transfer.peer {
            Some(peer) => self.gone_rank(peer),
            None => self.last_other_gone(),
        };
        self.point_to_point.posted.insert(number);
        gone.map_or(Ok(()), Err)
    }

    /// A message may be received.
    fn arrive(&mut self, now: Time, shared: &mut Shared, arrival: Arrival) -> Result<(), Failure> {
        let PointToPoint { transfers, posted, .. } = &self.point_to_point;
        let takes = |number: &&u64| transfers.get(number).is_some_and(|transfer| transfer.takes(&arrival));
        match posted.iter().find(takes).copied() {
            None => {
                self.point_to_point.arrived.push(arrival);
                Ok(())
            }
            Some(number) => {
                self.point_to_point.posted.remove(&number);
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
        let Some(transfer) = self.point_to_point.transfers.get_mut(&number) else { return Ok(()) };
        let refused = transfer.refuses(&arrival);
        let Arrival { message, bytes, from, .. } = arrival;
        if let Some(refused) = refused {
            if let Source::Bounced(buffer) = from {
                shared.give_back(buffer);
            }
            return Err(refused);
        }
        transfer.progress = now;
        let place = transfer.data.part(0, bytes);
        match from {
            Source::Node => {
                if let Some(came) = self.point_to_point.unexpected.remove(&message) {
                    came.deliver(shared, place);
                }
                self.point_to_point.receives.insert(message, (number, bytes));
                if let Some(node) = self.members.node_of(message.from) {
                    shared.peers.handle(now, &self.members.nodes[node].name, Input::Expect(message));
                }
            }
            Source::Bounced(buffer) => {
                shared.out.copy(buffer, place);
                shared.give_back(buffer);
                self.transferred(now, shared, number, Some((message, bytes)));
            }
            Source::Waiting(sender) => {
                self.point_to_point.receives.insert(message, (number, bytes));
                self.copy_message(now, shared, (sender, number, message), place);
            }
        }
        Ok(())
    }

    /// Has a message copied from its sender to its receiver, both of this node.
    fn copy_message(
        &mut self,
        now: Time,
        shared: &mut Shared,
        (sender, receiver, message): (u64, u64, MessageName),
        to: MemoryRange,
    ) {
        if to.len == 0 {
            return self.copied(now, shared, sender, message);
        }
        let transfers = &mut self.point_to_point.transfers;
        let tokens = [sender, receiver].map(|number| {
            let transfer = transfers.get_mut(&number)?;
            transfer.copying = true;
            Some(transfer.token)
        });
        let Some(from) = transfers.get(&sender).map(|sender| sender.data) else { return };
        let id = shared.work(self.members.id, tokens, Work::Copy { from, to });
        self.works.insert(id, LocalWork { completes: Completes::Message { sender, message }, bounce: None });
    }

    /// A message has been copied from its sender to its receiver, both of this node.
    pub(super) fn copied(&mut self, now: Time, shared: &mut Shared, sender: u64, message: MessageName) {
        self.transferred(now, shared, sender, None);
        self.point_to_point_received(now, shared, message);
    }

    /// A transfer is done; of a receive, with what came.
    fn transferred(&mut self, now: Time, shared: &mut Shared, number: u64, came: Option<(MessageName, u64)>) {
        let Some(transfer) = self.point_to_point.transfers.remove(&number) else { return };
        shared.timers.set(TimerKey::PointToPoint(self.members.id, number), None);
        if let Some(local) = self.ranks.get_mut(&transfer.rank) {
            local.open -= 1;
        }
        let nanoseconds = u64::try_from((now - transfer.begun).as_nanos()).unwrap_or(u64::MAX);
        let to_node = |peer| self.members.node_of(peer).is_some_and(|node| node != self.members.me);
        let on_wire = transfer.sending && transfer.peer.is_some_and(to_node);
        let stats = Stats {
            nanoseconds,
            traffic: Traffic {
                bytes_unicast: if on_wire { transfer.data.len } else { 0 },
                ..Traffic::default()
            },
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
    pub(super) fn point_to_point_begins(
        &mut self,
        now: Time,
        shared: &mut Shared,
        message: MessageName,
        (element, bytes): (u64, u64),
    ) -> Result<(), Failure> {
        let unexpected = Unexpected { digest: element, bytes, data: MemoryRange::EMPTY };
        self.point_to_point.unexpected.insert(message, unexpected);
        let sequencer = self.point_to_point.sequencers.entry((message.from, message.to)).or_default();
        sequencer.held.insert(message.call - FIRST, Arrival { message, element, bytes, from: Source::Node });
        let mut in_order = Vec::new();
        while let Some(arrival) = sequencer.held.remove(&sequencer.next) {
            sequencer.next += 1;
            in_order.push(arrival);
        }
        in_order.into_iter().try_for_each(|arrival| self.arrive(now, shared, arrival))
    }

    pub(super) fn point_to_point_data(
        &mut self,
        now: Time,
        shared: &mut Shared,
        message: MessageName,
        offset: u64,
        within: Range<usize>,
    ) {
        let PointToPoint { receives, transfers, unexpected, .. } = &mut self.point_to_point;
        if let Some((number, _)) = receives.get(&message) {
            if let Some(transfer) = transfers.get_mut(number) {
                let to = transfer.data.part(offset, within.len() as u64);
                shared.out.store(&Received::Input(within), to);
                transfer.progress = now;
            }
        } else if let Some(unexpected) = unexpected.get_mut(&message) {
            unexpected.keep(shared, offset, within);
        }
    }

    pub(super) fn point_to_point_received(&mut self, now: Time, shared: &mut Shared, message: MessageName) {
        if let Some((number, bytes)) = self.point_to_point.receives.remove(&message) {
            self.transferred(now, shared, number, Some((message, bytes)));
        }
    }

    pub(super) fn point_to_point_sent(&mut self, now: Time, shared: &mut Shared, message: MessageName) {
        if let Some(number) = self.point_to_point.sends.remove(&message) {
            self.transferred(now, shared, number, None);
        }
    }

    /// A part of a message that is being sent, if it is still known.
    pub(super) fn point_to_point_payload(&mut self, now: Time, part: &Payload) -> Option<MemoryRange> {
        let transfer =
            self.point_to_point.transfers.get_mut(self.point_to_point.sends.get(&part.message)?)?;
        transfer.progress = now;
        Some(transfer.data.part(part.offset, part.len.into()))
    }

    /// Where a message goes that a receive has taken.
    pub(super) fn point_to_point_place(&self, message: MessageName) -> Option<MemoryRange> {
        let (number, _) = self.point_to_point.receives.get(&message)?;
        Some(self.point_to_point.transfers.get(number)?.data)
    }

    /// It is time to look after a transfer.
    pub(crate) fn point_to_point_due(
        &mut self,
        now: Time,
        shared: &mut Shared,
        number: u64,
    ) -> Result<(), Failure> {
        let Some(transfer) = self.point_to_point.transfers.get_mut(&number) else { return Ok(()) };
        if transfer.copying {
            transfer.progress = now;
        }
        let (key, moved) = (TimerKey::PointToPoint(self.members.id, number), transfer.progress);
        let deadline = moved + transfer.timeout;
        if deadline > now {
            shared.timers.set(key, Some(deadline));
            return Ok(());
        }
        if self.inquired(now, shared, key, moved) { Err(self.late(number)) } else { Ok(()) }
    }

    /// The failure of a message that has waited for too long.
    fn late(&self, number: u64) -> Failure {
        let transfer = &self.point_to_point.transfers[&number];
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
            transfer.text(),
            self.members.id,
            transfer.timeout
        );
        Failure::new(FailureKind::Timeout, text, ranks)
    }
}
