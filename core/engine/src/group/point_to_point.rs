//! Messages from one rank to another outside of calls: send and receive. They are matched by sender and tag, in the
//! order in which the sender sent them; their numbers are above those of all calls.

use super::departures::Departures;
use super::messages::UnexpectedMessage;
use crate::api::{TransferKind, TransferRequest};
use crate::failure::{CallFailure, CallFailureKind, CallStats, ReceivedMessage, TrafficTotals};
use crate::ids::WorkId;
use crate::machine::Work;
use crate::members::Members;
use crate::memory::MemoryRange;
use crate::output_queue::ReceivedBytes;
use crate::shared::{GroupContext, SharedState, TimerKey};
use cool_machine::{Duration, Time};
use cool_transport::unicast::{Input, MessageName, Payload};
use cool_types::ElementType;
use cool_types::limits::EAGER_BYTES;
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

/// Where the numbers of such messages begin: no group makes as many calls.
const FIRST: u64 = 1 << 63;

/// Whether a message is none of a call.
pub(super) fn is_point_to_point(message: MessageName) -> bool {
    message.call >= FIRST
}

/// A send, receive or probe under way.
#[derive(Debug)]
struct OpenTransfer {
    token: u64,
    rank: u32,
    kind: TransferKind,
    /// What its rank knows it by.
    id: u64,
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
struct ArrivedMessage {
    message: MessageName,
    /// The type of its elements, as its place in [`ElementType::ALL`].
    element: u64,
    bytes: u64,
    from: MessageSource,
}

#[derive(Debug)]
enum MessageSource {
    /// Another node: its messages that came before their receive are in [`PointToPointMessages::unexpected`].
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
    held: BTreeMap<u64, ArrivedMessage>,
}

#[derive(Debug, Default)]
pub(super) struct PointToPointMessages {
    last: u64,
    transfers: BTreeMap<u64, OpenTransfer>,
    /// Messages sent so far, by sender and receiver.
    sent: BTreeMap<(u32, u32), u64>,
    /// To other nodes, under way.
    sends: BTreeMap<MessageName, u64>,
    /// Receives that wait for their messages, in the order in which they were posted.
    posted: BTreeSet<u64>,
    /// Probes that wait for a message.
    probes: BTreeSet<u64>,
    /// Receives whose messages are coming, with their lengths.
    receives: BTreeMap<MessageName, (u64, u64)>,
    /// From other nodes, by sender and receiver.
    sequencers: BTreeMap<(u32, u32), Sequencer>,
    /// In the order in which they may be received.
    arrived: Vec<ArrivedMessage>,
    /// Bounded by the sender's credit.
    unexpected: BTreeMap<MessageName, UnexpectedMessage>,
    /// Messages that are being copied between ranks of this node, with their senders.
    copies: BTreeMap<WorkId, (u64, MessageName)>,
}

impl PointToPointMessages {
    /// How many sends and receives a rank has open.
    pub(super) fn open_count(&self, rank: u32) -> usize {
        self.transfers.values().filter(|transfer| transfer.rank == rank).count()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.transfers.is_empty()
    }

    /// When each of the transfers last moved.
    pub(super) fn progress(&self, now: Time) -> impl Iterator<Item = Time> {
        self.transfers.values().map(move |transfer| if transfer.copying { now } else { transfer.progress })
    }

    /// Gives back everything; whom to tell that it will not be, with their ranks.
    pub(super) fn clear(&mut self, group: u64, shared: &mut SharedState) -> Vec<(u64, u32)> {
        let PointToPointMessages { transfers, arrived, unexpected, .. } = std::mem::take(self);
        for arrival in arrived {
            if let MessageSource::Bounced(buffer) = arrival.from {
                shared.give_back(buffer);
            }
        }
        unexpected.into_values().for_each(|unexpected| shared.out.free(unexpected.data));
        let end = |(id, transfer): (u64, OpenTransfer)| {
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
        let awaits = |id: &u64| self.posted.contains(id) || self.probes.contains(id);
        let waits = |id: &u64, transfer: &OpenTransfer| match transfer.peer {
            Some(peer) => peer == rank && (transfer.kind.sends() || awaits(id)),
            None => alone && awaits(id),
        };
        self.transfers.iter().any(|(id, transfer)| waits(id, transfer))
    }
}

impl OpenTransfer {
    /// The failure of a message that does not fit, if it does not. One that is too long fails its receive, one of another type
    /// the group.
    fn mismatch(&self, arrival: &ArrivedMessage) -> Option<CallFailure> {
        let ArrivedMessage { message, element, bytes, .. } = arrival;
        let kind = match *element == self.element as u64 {
            true if *bytes <= self.data.len => return None,
            true => CallFailureKind::Truncated,
            false => CallFailureKind::Mismatch,
        };
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
        Some(CallFailure::new(kind, text, vec![message.from, message.to]))
    }

    fn matches(&self, arrival: &ArrivedMessage) -> bool {
        let MessageName { from, to, transfer: tag, .. } = arrival.message;
        to == self.rank && self.peer.is_none_or(|p| p == from) && self.tag.is_none_or(|t| t == tag)
    }

    fn text(&self) -> String {
        let peer = self.peer.map_or("any rank".to_owned(), |peer| format!("rank {peer}"));
        let tag = self.tag.map_or("any tag".to_owned(), |tag| format!("tag {tag}"));
        match self.kind {
            kind if kind.sends() => format!("the send of rank {} to {peer} with {tag}", self.rank),
            TransferKind::Receive => format!("the receive of rank {} from {peer} with {tag}", self.rank),
            _ => format!("the probe of rank {} for {peer} with {tag}", self.rank),
        }
    }
}

impl PointToPointMessages {
    /// A local rank sends or receives, with a rank that exists.
    ///
    /// # Errors
    /// If the group fails by it.
    pub(super) fn start(
        &mut self,
        context: &mut GroupContext<'_>,
        token: u64,
        request: TransferRequest,
        departures: &Departures,
    ) -> Result<(), CallFailure> {
        let TransferRequest { rank, kind, id, peer, tag, element, data, timeout, .. } = request;
        let (now, data) = (context.now, data.unwrap_or(MemoryRange::EMPTY));
        self.last += 1;
        let number = self.last;
        let (begun, progress, copying) = (now, now, false);
        let transfer = OpenTransfer {
            token,
            rank,
            kind,
            id,
            peer,
            tag,
            element,
            data,
            begun,
            progress,
            copying,
            timeout,
        };
        context.set_timer(self.timer(context, number), Some(now + timeout));
        self.transfers.insert(number, transfer);
        match (kind, peer) {
            (TransferKind::Send | TransferKind::SynchronousSend, Some(to)) => {
                departures.check(context.members, to)?;
                self.send(context, number, to)
            }
            (TransferKind::Probe | TransferKind::ProbeNow, _) => self.probe(context, number, departures),
            _ => self.receive(context, number, departures),
        }
    }

    /// A message that a receive would take is there; else the rank is told so, or waits.
    fn probe(
        &mut self,
        context: &mut GroupContext<'_>,
        number: u64,
        departures: &Departures,
    ) -> Result<(), CallFailure> {
        let Some(transfer) = self.transfers.get(&number) else { return Ok(()) };
        let peer = transfer.peer;
        match self.arrived.iter().find(|arrival| transfer.matches(arrival)) {
            Some(ArrivedMessage { message, bytes, .. }) => {
                let came = Some((*message, *bytes));
                self.done(context, number, came);
                Ok(())
            }
            None if transfer.kind == TransferKind::ProbeNow => {
                self.done(context, number, None);
                Ok(())
            }
            None => {
                self.probes.insert(number);
                departures.check_sources(context.members, peer)
            }
        }
    }

    /// A local rank cancels a receive or probe. What has its message, or is done, goes on.
    pub(super) fn cancel(&mut self, context: &mut GroupContext<'_>, rank: u32, id: u64) {
        let of = |(_, transfer): &(&u64, &OpenTransfer)| (transfer.rank, transfer.id) == (rank, id);
        let waits = |number: &u64| self.posted.contains(number) || self.probes.contains(number);
        let found = self.transfers.iter().filter(of).map(|(number, _)| *number).find(waits);
        let Some(number) = found else { return };
        self.posted.remove(&number);
        self.probes.remove(&number);
        if let Some(transfer) = self.transfers.get(&number) {
            let text = format!("{} (group {}) was cancelled", transfer.text(), context.members.id);
            self.fail(context, number, CallFailure::new(CallFailureKind::Cancelled, text, vec![rank]));
        }
    }

    /// A transfer fails by itself: the group goes on.
    fn fail(&mut self, context: &mut GroupContext<'_>, number: u64, failure: CallFailure) {
        if let Some(transfer) = self.transfers.remove(&number) {
            context.set_timer(self.timer(context, number), None);
            context.shared.done(transfer.token, Err(failure));
        }
    }

    fn timer(&self, context: &GroupContext<'_>, number: u64) -> TimerKey {
        TimerKey::PointToPoint(context.members.id, number)
    }

    fn send(&mut self, context: &mut GroupContext<'_>, number: u64, to: u32) -> Result<(), CallFailure> {
        let Some(transfer) = self.transfers.get(&number) else { return Ok(()) };
        let (from, tag, data) = (transfer.rank, transfer.tag.unwrap_or_default(), transfer.data);
        let (element, bytes) = (transfer.element as u64, data.len);
        let sent = self.sent.entry((from, to)).or_default();
        let call = FIRST + *sent;
        *sent += 1;
        let message = context.members.message(call, tag, from, to);
        if let Some(node) = context.members.other_node_of(to) {
            self.sends.insert(message, number);
            let announce = transfer.kind == TransferKind::SynchronousSend;
            context.send_to_peer(node, Input::Send { message, digest: element, bytes, announce });
            return Ok(());
        }
        let returns_early = transfer.kind == TransferKind::Send && bytes <= EAGER_BYTES;
        let from = match if returns_early { context.shared.bounce(data) } else { None } {
            Some(buffer) => {
                self.done(context, number, None);
                MessageSource::Bounced(buffer)
            }
            None => MessageSource::Waiting(number),
        };
        self.on_arrival(context, ArrivedMessage { message, element, bytes, from })
    }

    fn receive(
        &mut self,
        context: &mut GroupContext<'_>,
        number: u64,
        departures: &Departures,
    ) -> Result<(), CallFailure> {
        let Some(transfer) = self.transfers.get(&number) else { return Ok(()) };
        if let Some(place) = self.arrived.iter().position(|arrival| transfer.matches(arrival)) {
            let arrival = self.arrived.remove(place);
            return self.deliver(context, arrival, number);
        }
        let peer = transfer.peer;
        self.posted.insert(number);
        departures.check_sources(context.members, peer)
    }

    /// A message may be received.
    fn on_arrival(
        &mut self,
        context: &mut GroupContext<'_>,
        arrival: ArrivedMessage,
    ) -> Result<(), CallFailure> {
        let PointToPointMessages { transfers, posted, .. } = &self;
        let matches =
            |number: &&u64| transfers.get(number).is_some_and(|transfer| transfer.matches(&arrival));
        match posted.iter().find(matches).copied() {
            None => {
                let found = self.probes.iter().filter(matches).copied().collect::<Vec<_>>();
                let came = (arrival.message, arrival.bytes);
                self.arrived.push(arrival);
                for number in found {
                    self.probes.remove(&number);
                    self.done(context, number, Some(came));
                }
                Ok(())
            }
            Some(number) => {
                self.posted.remove(&number);
                self.deliver(context, arrival, number)
            }
        }
    }

    /// A message and the receive that takes it have met.
    fn deliver(
        &mut self,
        context: &mut GroupContext<'_>,
        arrival: ArrivedMessage,
        number: u64,
    ) -> Result<(), CallFailure> {
        let Some(transfer) = self.transfers.get_mut(&number) else { return Ok(()) };
        let refused = transfer.mismatch(&arrival);
        let ArrivedMessage { message, bytes, from, .. } = arrival;
        if let Some(refused) = refused {
            let truncated = refused.kind == CallFailureKind::Truncated;
            self.discard(context, message, from);
            if truncated {
                self.fail(context, number, refused);
                return Ok(());
            }
            return Err(refused);
        }
        transfer.progress = context.now;
        let place = transfer.data.part(0, bytes);
        match from {
            MessageSource::Node => {
                if let Some(came) = self.unexpected.remove(&message) {
                    came.deliver(context.shared, place);
                }
                self.receives.insert(message, (number, bytes));
                if let Some(node) = context.members.other_node_of(message.from) {
                    context.send_to_peer(node, Input::Expect(message));
                }
            }
            MessageSource::Bounced(buffer) => {
                context.shared.out.copy(buffer, place);
                context.shared.give_back(buffer);
                self.done(context, number, Some((message, bytes)));
            }
            MessageSource::Waiting(sender) => {
                self.receives.insert(message, (number, bytes));
                self.copy(context, (sender, number, message), place);
            }
        }
        Ok(())
    }

    /// A message has been taken by a receive that it does not fit: what comes of it yet is dropped.
    fn discard(&mut self, context: &mut GroupContext<'_>, message: MessageName, from: MessageSource) {
        match from {
            MessageSource::Bounced(buffer) => context.shared.give_back(buffer),
            MessageSource::Waiting(sender) => self.done(context, sender, None),
            MessageSource::Node => {
                if let Some(came) = self.unexpected.remove(&message) {
                    context.shared.out.free(came.data);
                }
                if let Some(node) = context.members.other_node_of(message.from) {
                    context.send_to_peer(node, Input::Expect(message));
                }
            }
        }
    }

    /// Has a message copied from its sender to its receiver, both of this node.
    fn copy(
        &mut self,
        context: &mut GroupContext<'_>,
        (sender, receiver, message): (u64, u64, MessageName),
        to: MemoryRange,
    ) {
        if to.len == 0 {
            return self.on_copied(context, sender, message);
        }
        let transfers = &mut self.transfers;
        let tokens = [sender, receiver].map(|number| {
            let transfer = transfers.get_mut(&number)?;
            transfer.copying = true;
            Some(transfer.token)
        });
        let Some(from) = transfers.get(&sender).map(|sender| sender.data) else { return };
        let id = context.shared.work(context.members.id, tokens, Work::Copy { from, to });
        self.copies.insert(id, (sender, message));
    }

    /// Work that was given out is done; whether it was of a message.
    pub(super) fn on_work_done(&mut self, context: &mut GroupContext<'_>, id: WorkId) -> bool {
        let copied = self.copies.remove(&id);
        if let Some((sender, message)) = copied {
            self.on_copied(context, sender, message);
        }
        copied.is_some()
    }

    fn on_copied(&mut self, context: &mut GroupContext<'_>, sender: u64, message: MessageName) {
        self.done(context, sender, None);
        self.on_received(context, message);
    }

    /// A transfer is done; of a receive, with what came.
    fn done(&mut self, context: &mut GroupContext<'_>, number: u64, came: Option<(MessageName, u64)>) {
        let Some(transfer) = self.transfers.remove(&number) else { return };
        context.set_timer(self.timer(context, number), None);
        let nanoseconds = u64::try_from((context.now - transfer.begun).as_nanos()).unwrap_or(u64::MAX);
        let on_wire = transfer.kind.sends()
            && transfer.peer.is_some_and(|p| context.members.other_node_of(p).is_some());
        let bytes_unicast = if on_wire { transfer.data.len } else { 0 };
        let arrived = came.map(|(message, bytes)| {
            let MessageName { from: source, transfer: tag, .. } = message;
            ReceivedMessage { source, tag, bytes }
        });
        let traffic = TrafficTotals { bytes_unicast, ..TrafficTotals::default() };
        let stats = CallStats { nanoseconds, traffic, arrived, ..CallStats::default() };
        context.shared.done(transfer.token, Ok(stats));
    }

    /// A message from another node begins to arrive or is announced.
    pub(super) fn on_begin(
        &mut self,
        context: &mut GroupContext<'_>,
        message: MessageName,
        (element, bytes): (u64, u64),
    ) -> Result<(), CallFailure> {
        let unexpected = UnexpectedMessage { digest: element, bytes, data: MemoryRange::EMPTY };
        self.unexpected.insert(message, unexpected);
        let sequencer = self.sequencers.entry((message.from, message.to)).or_default();
        sequencer.held.insert(
            message.call - FIRST,
            ArrivedMessage { message, element, bytes, from: MessageSource::Node },
        );
        let mut in_order = Vec::new();
        while let Some(arrival) = sequencer.held.remove(&sequencer.next) {
            sequencer.next += 1;
            in_order.push(arrival);
        }
        in_order.into_iter().try_for_each(|arrival| self.on_arrival(context, arrival))
    }

    /// Bytes of a message from another node: these of the input, or none if they are in their place.
    pub(super) fn on_data(
        &mut self,
        context: &mut GroupContext<'_>,
        message: MessageName,
        offset: u64,
        within: Range<usize>,
    ) {
        if let Some((number, _)) = self.receives.get(&message) {
            if let Some(transfer) = self.transfers.get_mut(number) {
                let to = transfer.data.part(offset, within.len() as u64);
                context.shared.out.store(&ReceivedBytes::Input(within), to);
                transfer.progress = context.now;
            }
        } else if let Some(unexpected) = self.unexpected.get_mut(&message) {
            unexpected.buffer(context.shared, offset, within);
        }
    }

    /// All of a message that was expected is here.
    pub(super) fn on_received(&mut self, context: &mut GroupContext<'_>, message: MessageName) {
        if let Some((number, bytes)) = self.receives.remove(&message) {
            self.done(context, number, Some((message, bytes)));
        }
    }

    /// All of a message is on its way.
    pub(super) fn on_sent(&mut self, context: &mut GroupContext<'_>, message: MessageName) {
        if let Some(number) = self.sends.remove(&message) {
            self.done(context, number, None);
        }
    }

    /// A part of a message that is being sent, if it is still known.
    pub(super) fn payload(&mut self, now: Time, part: &Payload) -> Option<MemoryRange> {
        let transfer = self.transfers.get_mut(self.sends.get(&part.message)?)?;
        transfer.progress = now;
        Some(transfer.data.part(part.offset, part.len.into()))
    }

    /// Where a message goes that a receive has taken.
    pub(super) fn place(&self, message: MessageName) -> Option<MemoryRange> {
        let (number, _) = self.receives.get(&message)?;
        Some(self.transfers.get(number)?.data)
    }

    /// It is time to look after a transfer: when that last moved, if it has waited for too long; else its timer is set again.
    pub(super) fn check_overdue(&mut self, context: &mut GroupContext<'_>, number: u64) -> Option<Time> {
        let transfer = self.transfers.get_mut(&number)?;
        if transfer.copying {
            transfer.progress = context.now;
        }
        let (moved, timeout) = (transfer.progress, transfer.timeout);
        if moved + timeout <= context.now {
            return Some(moved);
        }
        context.set_timer(self.timer(context, number), Some(moved + timeout));
        None
    }

    /// A transfer that has waited for too long: as text, for how long, and for whom, if for a certain rank.
    pub(super) fn overdue_transfer(&self, number: u64) -> Option<OverdueTransfer> {
        let transfer = self.transfers.get(&number)?;
        let OpenTransfer { rank, peer, timeout, .. } = *transfer;
        Some(OverdueTransfer { text: transfer.text(), rank, peer, timeout })
    }
}

/// A send or receive that has waited for too long.
pub(super) struct OverdueTransfer {
    text: String,
    pub(super) rank: u32,
    /// Absent: any.
    pub(super) peer: Option<u32>,
    timeout: Duration,
}

impl OverdueTransfer {
    /// The failure, with the ranks that are to blame: all others of the group, if none can be told apart.
    pub(super) fn failure(&self, members: &Members, blamed: Vec<u32>, others: &[u32]) -> CallFailure {
        let ranks = if self.peer.is_none() && blamed == others { Vec::new() } else { blamed };
        let look = if ranks.is_empty() { "the other side".to_owned() } else { members.name(&ranks) };
        let text = format!(
            "{} (group {}) made no progress for {:?}; look after {look}, or give it more time",
            self.text, members.id, self.timeout
        );
        CallFailure::new(CallFailureKind::Timeout, text, ranks)
    }
}
