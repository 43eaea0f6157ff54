//! Messages from one rank to another outside of calls. A receive matches messages by sender and
//! tag, in the order in which the sender sent them. The numbers of these messages are larger than
//! those of all calls.

use super::lost_ranks::LostRankTable;
use super::messages::UnexpectedMessage;
use crate::api::{TransferKind, TransferRequest};
use crate::engine_outbox::ReceivedBytes;
use crate::engine_resources::{EngineResources, GroupContext, TimerKey};
use crate::failure::{CallFailure, CallFailureKind, CallStats, ReceivedMessage, TrafficTotals};
use crate::ids::WorkId;
use crate::inputs_outputs::Work;
use crate::members::Members;
use crate::memory::MemoryRange;
use cool_machine::{Duration, Time};
use cool_transport::unicast::{Input, MessageName, Payload};
use cool_types::ElementType;
use cool_types::limits::EAGER_BYTES;
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

/// Number of the first message outside of calls. The numbers of calls stay below it, because no
/// group makes that many calls.
const FIRST: u64 = 1 << 63;

/// Returns whether a message is outside of calls.
pub(super) fn is_point_to_point(message: MessageName) -> bool {
    message.call >= FIRST
}

/// A send, receive or probe in progress.
#[derive(Debug)]
struct OpenTransfer {
    token: u64,
    rank: u32,
    kind: TransferKind,
    /// The number that the rank gave it.
    id: u64,
    /// `None`: any rank.
    peer: Option<u32>,
    /// `None`: any tag.
    tag: Option<u32>,
    element: ElementType,
    data: MemoryRange,
    begun: Time,
    /// The time of the last progress.
    progress: Time,
    /// Whether its bytes are being copied between local ranks.
    copying: bool,
    timeout: Duration,
}

/// A message that has begun to arrive and that no receive has matched yet.
#[derive(Debug)]
struct ArrivedMessage {
    message: MessageName,
    /// The type of its elements, as an index into [`ElementType::ALL`].
    element: u64,
    bytes: u64,
    from: MessageSource,
}

#[derive(Debug)]
enum MessageSource {
    /// From another node. Bytes that arrived before the receive are in
    /// [`PointToPointMessages::unexpected`].
    Node,
    /// From a local rank that waits.
    Waiting(u64),
    /// From a local rank that has continued; the message is in a bounce buffer.
    Bounced(MemoryRange),
}

/// Restores the order of the messages from one rank to another, because they may begin to arrive in
/// another order than they were sent.
#[derive(Debug, Default)]
struct Sequencer {
    next: u64,
    held: BTreeMap<u64, ArrivedMessage>,
}

#[derive(Debug, Default)]
pub(super) struct PointToPointMessages {
    last: u64,
    transfers: BTreeMap<u64, OpenTransfer>,
    /// Number of messages sent so far, by sender and receiver.
    sent: BTreeMap<(u32, u32), u64>,
    /// Sends to other nodes in progress.
    sends: BTreeMap<MessageName, u64>,
    /// Receives that wait for a message, in the order in which they were posted.
    posted: BTreeSet<u64>,
    /// Probes that wait for a message.
    probes: BTreeSet<u64>,
    /// Messages that are arriving for a receive: the number of the receive's transfer, and the
    /// message's length in bytes.
    receives: BTreeMap<MessageName, (u64, u64)>,
    /// The sequencers of messages from other nodes, by sender and receiver.
    sequencers: BTreeMap<(u32, u32), Sequencer>,
    /// Messages that can be received, in order.
    arrived: Vec<ArrivedMessage>,
    /// Messages from other nodes that no receive has matched yet. The sender's credit bounds their
    /// size.
    unexpected: BTreeMap<MessageName, UnexpectedMessage>,
    /// Messages that are being copied between local ranks, each with the number of the sender's
    /// transfer.
    copies: BTreeMap<WorkId, (u64, MessageName)>,
}

impl PointToPointMessages {
    /// Returns the number of open transfers of a rank.
    pub(super) fn open_count(&self, rank: u32) -> usize {
        self.transfers.values().filter(|transfer| transfer.rank == rank).count()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.transfers.is_empty()
    }

    /// Returns the time of the last progress of each transfer.
    pub(super) fn progress(&self, now: Time) -> impl Iterator<Item = Time> {
        self.transfers.values().map(move |transfer| if transfer.copying { now } else { transfer.progress })
    }

    /// Frees all resources. Returns the tokens and ranks of the open transfers.
    pub(super) fn clear(&mut self, group: u64, resources: &mut EngineResources) -> Vec<(u64, u32)> {
        let PointToPointMessages { transfers, arrived, unexpected, .. } = std::mem::take(self);
        for arrival in arrived {
            if let MessageSource::Bounced(buffer) = arrival.from {
                resources.give_back(buffer);
            }
        }
        unexpected.into_values().for_each(|unexpected| resources.out.free(unexpected.data));
        let end = |(id, transfer): (u64, OpenTransfer)| {
            resources.timers.set(TimerKey::PointToPoint(group, id), None);
            (transfer.token, transfer.rank)
        };
        transfers.into_iter().map(end).collect()
    }

    /// Returns the rank at the other end of each transfer of a rank; `None` for any rank.
    pub(super) fn awaited_by(&self, rank: u32) -> Vec<Option<u32>> {
        self.transfers
            .values()
            .filter(|transfer| transfer.rank == rank)
            .map(|transfer| transfer.peer)
            .collect()
    }

    /// Returns whether an open transfer needs a rank that has left. `alone` must be true if no
    /// other rank of the group is left.
    pub(super) fn needs(&self, rank: u32, alone: bool) -> bool {
        let is_waiting = |id: &u64| self.posted.contains(id) || self.probes.contains(id);
        let waits = |id: &u64, transfer: &OpenTransfer| match transfer.peer {
            Some(peer) => peer == rank && (transfer.kind.sends() || is_waiting(id)),
            None => alone && is_waiting(id),
        };
        self.transfers.iter().any(|(id, transfer)| waits(id, transfer))
    }
}

impl OpenTransfer {
    /// Returns the failure of a message that does not fit its receive. A message that is too long
    /// fails only its receive; a message of another type fails the group.
    fn mismatch(&self, arrival: &ArrivedMessage) -> Option<CallFailure> {
        let ArrivedMessage { message, element, bytes, .. } = arrival;
        let kind = match *element == self.element as u64 {
            true if *bytes <= self.data.len => return None,
            true => CallFailureKind::Truncated,
            false => CallFailureKind::Mismatch,
        };
        let sent = usize::try_from(*element).ok().and_then(|place| ElementType::ALL.get(place));
        let text = format!(
            "rank {} sent {bytes} bytes of {} with tag {}, but {} (group {}) accepts at most {} bytes of {}",
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
    /// Starts a transfer of a local rank with a rank that exists.
    ///
    /// # Errors
    /// Returns an error if the transfer makes the group fail.
    pub(super) fn start(
        &mut self,
        context: &mut GroupContext<'_>,
        token: u64,
        request: TransferRequest,
        lost_rank_table: &LostRankTable,
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
                lost_rank_table.check(context.members, to)?;
                self.send(context, number, to)
            }
            (TransferKind::Probe | TransferKind::ProbeNow, _) => self.probe(context, number, lost_rank_table),
            _ => self.receive(context, number, lost_rank_table),
        }
    }

    /// Completes a probe if there is a matching message or if it must not wait; otherwise lets it
    /// wait.
    fn probe(
        &mut self,
        context: &mut GroupContext<'_>,
        number: u64,
        lost_rank_table: &LostRankTable,
    ) -> Result<(), CallFailure> {
        let Some(transfer) = self.transfers.get(&number) else { return Ok(()) };
        let peer = transfer.peer;
        match self.arrived.iter().find(|arrival| transfer.matches(arrival)) {
            Some(ArrivedMessage { message, bytes, .. }) => {
                let found = Some((*message, *bytes));
                self.done(context, number, found);
                Ok(())
            }
            None if transfer.kind == TransferKind::ProbeNow => {
                self.done(context, number, None);
                Ok(())
            }
            None => {
                self.probes.insert(number);
                lost_rank_table.check_sources(context.members, peer)
            }
        }
    }

    /// Cancels a local rank's receive or probe, unless it has been matched or has completed.
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

    /// Makes a transfer fail without making the group fail.
    fn fail(&mut self, context: &mut GroupContext<'_>, number: u64, failure: CallFailure) {
        if let Some(transfer) = self.transfers.remove(&number) {
            context.set_timer(self.timer(context, number), None);
            context.resources.done(transfer.token, Err(failure));
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
        let group = context.members.id;
        let from = match if returns_early { context.resources.bounce(group, data) } else { None } {
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
        lost_rank_table: &LostRankTable,
    ) -> Result<(), CallFailure> {
        let Some(transfer) = self.transfers.get(&number) else { return Ok(()) };
        if let Some(place) = self.arrived.iter().position(|arrival| transfer.matches(arrival)) {
            let arrival = self.arrived.remove(place);
            return self.deliver(context, arrival, number);
        }
        let peer = transfer.peer;
        self.posted.insert(number);
        lost_rank_table.check_sources(context.members, peer)
    }

    /// Handles a message that can be received now.
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
                let found_message = (arrival.message, arrival.bytes);
                self.arrived.push(arrival);
                for number in found {
                    self.probes.remove(&number);
                    self.done(context, number, Some(found_message));
                }
                Ok(())
            }
            Some(number) => {
                self.posted.remove(&number);
                self.deliver(context, arrival, number)
            }
        }
    }

    /// Delivers a message to the receive that matches it.
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
                if let Some(early) = self.unexpected.remove(&message) {
                    early.deliver(context.resources, place);
                }
                self.receives.insert(message, (number, bytes));
                if let Some(node) = context.members.other_node_of(message.from) {
                    context.send_to_peer(node, Input::Accept(message));
                }
            }
            MessageSource::Bounced(buffer) => {
                context.resources.out.copy(buffer, place);
                context.resources.give_back(buffer);
                self.done(context, number, Some((message, bytes)));
            }
            MessageSource::Waiting(sender) => {
                self.receives.insert(message, (number, bytes));
                self.copy(context, (sender, number, message), place);
            }
        }
        Ok(())
    }

    /// Drops a message that does not fit its receive, including the bytes that have yet to arrive.
    fn discard(&mut self, context: &mut GroupContext<'_>, message: MessageName, from: MessageSource) {
        match from {
            MessageSource::Bounced(buffer) => context.resources.give_back(buffer),
            MessageSource::Waiting(sender) => self.done(context, sender, None),
            MessageSource::Node => {
                if let Some(early) = self.unexpected.remove(&message) {
                    context.resources.out.free(early.data);
                }
                if let Some(node) = context.members.other_node_of(message.from) {
                    context.send_to_peer(node, Input::Accept(message));
                }
            }
        }
    }

    /// Starts to copy a message between two local ranks.
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
        let id = context.resources.work(context.members.id, tokens, Work::Copy { from, to });
        self.copies.insert(id, (sender, message));
    }

    /// Handles the completion of work. Returns whether it belonged to a transfer.
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

    /// Completes a transfer; for a receive or probe, with the message that was found.
    fn done(&mut self, context: &mut GroupContext<'_>, number: u64, message: Option<(MessageName, u64)>) {
        let Some(transfer) = self.transfers.remove(&number) else { return };
        context.set_timer(self.timer(context, number), None);
        let nanoseconds = u64::try_from((context.now - transfer.begun).as_nanos()).unwrap_or(u64::MAX);
        let on_wire = transfer.kind.sends()
            && transfer.peer.is_some_and(|p| context.members.other_node_of(p).is_some());
        let bytes_unicast = if on_wire { transfer.data.len } else { 0 };
        let arrived = message.map(|(message, bytes)| {
            let MessageName { from: source, transfer: tag, .. } = message;
            ReceivedMessage { source, tag, bytes }
        });
        let traffic = TrafficTotals { bytes_unicast, ..TrafficTotals::default() };
        let stats = CallStats { nanoseconds, traffic, arrived, ..CallStats::default() };
        context.resources.done(transfer.token, Ok(stats));
    }

    /// Handles the beginning or the announcement of a message from another node.
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

    /// Handles bytes of a message from another node: a range of the input, or an empty range if
    /// they are in place already.
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
                context.resources.out.store(&ReceivedBytes::Input(within), to);
                transfer.progress = context.now;
            }
        } else if let Some(unexpected) = self.unexpected.get_mut(&message) {
            unexpected.buffer(context.resources, message.group, (offset, within));
        }
    }

    /// Handles the end of an expected message.
    pub(super) fn on_received(&mut self, context: &mut GroupContext<'_>, message: MessageName) {
        if let Some((number, bytes)) = self.receives.remove(&message) {
            self.done(context, number, Some((message, bytes)));
        }
    }

    /// Handles the completion of a send.
    pub(super) fn on_sent(&mut self, context: &mut GroupContext<'_>, message: MessageName) {
        if let Some(number) = self.sends.remove(&message) {
            self.done(context, number, None);
        }
    }

    /// Returns the memory of a part of a message that is being sent, if the message is still known.
    pub(super) fn payload(&mut self, now: Time, part: &Payload) -> Option<MemoryRange> {
        let transfer = self.transfers.get_mut(self.sends.get(&part.message)?)?;
        transfer.progress = now;
        Some(transfer.data.part(part.offset, part.len.into()))
    }

    /// Returns the destination of a message that a receive has matched.
    pub(super) fn place(&self, message: MessageName) -> Option<MemoryRange> {
        let (number, _) = self.receives.get(&message)?;
        Some(self.transfers.get(number)?.data)
    }

    /// Handles the timer of a transfer. Returns the time of its last progress if it has taken too
    /// long; otherwise sets the timer again.
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

    /// Returns a description of a transfer that has taken too long.
    pub(super) fn overdue_transfer(&self, number: u64) -> Option<OverdueTransfer> {
        let transfer = self.transfers.get(&number)?;
        let OpenTransfer { rank, peer, timeout, .. } = *transfer;
        Some(OverdueTransfer { text: transfer.text(), rank, peer, timeout })
    }
}

/// A transfer that has taken too long.
pub(super) struct OverdueTransfer {
    text: String,
    pub(super) rank: u32,
    /// `None`: any rank.
    pub(super) peer: Option<u32>,
    timeout: Duration,
}

impl OverdueTransfer {
    /// Returns the failure with the ranks that are to blame. If they are all other ranks of the
    /// group, the failure names none.
    pub(super) fn failure(&self, members: &Members, blamed: Vec<u32>, others: &[u32]) -> CallFailure {
        let ranks = if self.peer.is_none() && blamed == others { Vec::new() } else { blamed };
        let look =
            if ranks.is_empty() { "the other side".to_owned() } else { members.describe_ranks(&ranks) };
        let text = format!(
            "{} (group {}) made no progress for {:?}; check {look}, or give it more time",
            self.text, members.id, self.timeout
        );
        CallFailure::new(CallFailureKind::Timeout, text, ranks)
    }
}
