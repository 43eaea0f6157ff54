//! Executes the quick calls of one rank, in order.

use crate::active_call::{ActiveCall, BeginCall, CallData};
use crate::call_key::CallKey;
use crate::call_limits::CallLimits;
use crate::datagram::{self, Datagram, DatagramHeader, DatagramKind, OVERHEAD_BYTES, verify_long};
use crate::message_parts::{ArrivedDatagram, CompleteMessage, MessagePart, Reassembly, arrived_datagrams};
use crate::quick_schedule::{CallTraffic, QuickSchedule, RETRANSMIT_WINDOW};
use crate::redundant_sending::RedundantSending;
use cool_collective::{ActionKind, Layout, Rank, Span};
use cool_machine::{Machine, Poll, Time};
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Maximum number of messages that are kept before an action expects them. Further ones are dropped
/// and requested by a NAK later.
const EARLY_MESSAGES_MAX: usize = 4 * RETRANSMIT_WINDOW as usize;

/// Maximum number of arrivals per call that [`CallArrivals::latest`] reports.
pub const RECENT_ARRIVALS_MAX: usize = 8;

/// The messages that arrived for a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallArrivals {
    latest: VecDeque<(Rank, Time)>,
    messages: u64,
}

impl CallArrivals {
    /// Returns the senders and times of the latest arrivals, oldest first. A message that arrived
    /// before the rank began the call counts as arrived when it began.
    pub fn latest(&self) -> impl Iterator<Item = (Rank, Time)> {
        self.latest.iter().copied()
    }

    /// Returns the number of messages that the call consumed, including those of the barrier before
    /// it.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    fn record(&mut self, now: Time, from: Rank, transfer: u32) {
        self.messages += 1;
        if ActiveCall::is_barrier(transfer) {
            return;
        }
        if self.latest.len() == RECENT_ARRIVALS_MAX {
            self.latest.pop_front();
        }
        self.latest.push_back((from, now));
    }
}

/// An event for the calls of a rank. The data must be that of the call that the rank began last; it
/// may be empty before the first call, and once a call is complete.
#[derive(Debug)]
pub enum Input<'a> {
    /// The rank begins a call. The previous call must be complete, unless the rank has left it
    /// because of an error; no result of that call follows.
    Begin(BeginCall, CallData<'a>),
    /// The agents execute the call with this number instead, because other ranks have requested it
    /// from them. Ignored if the rank is not in that call.
    Abandon(u64),
    /// One or several datagrams arrived, one right after the other. Those that do not belong to the
    /// group are ignored.
    Datagram(&'a [u8], CallData<'a>),
    /// The number of this rank's messages that its agent has retransmitted so far.
    Retransmitted(u64),
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SendTo {
    /// All ranks, over the multicast tree.
    All,
    /// One rank.
    Rank(Rank),
    /// The agent of a rank.
    AgentOf(Rank),
}

/// A message to be stored in the retransmission buffer and then sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuickMessage {
    /// The number of its call and its transfer, which identify the message.
    pub name: (u64, u32),
    /// The destination.
    pub to: SendTo,
    /// How many copies are sent, one right after the other.
    pub copies: u8,
    /// The datagram.
    pub bytes: Vec<u8>,
}

impl QuickMessage {
    /// Returns the length of the payload in bytes.
    pub fn payload_len(&self) -> usize {
        self.bytes.len().saturating_sub(OVERHEAD_BYTES)
    }
}

/// An action that the calls of a rank require of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Store a message in the retransmission buffer, then send it. It may be lost.
    Send(QuickMessage),
    /// Send a NAK, which is not stored. It may be lost.
    Nak {
        /// The rank that sent the missing message. The NAK goes to its agent.
        to: Rank,
        /// The datagram.
        bytes: Vec<u8>,
    },
    /// Another rank made a different call under the same number.
    Mismatch {
        /// The other rank.
        rank: u32,
        /// The number of the call.
        number: u64,
        /// The other rank's call, as text.
        text: String,
    },
    /// The call is complete; its result is in the output.
    Done,
}

/// The quick calls of one rank.
#[derive(Debug)]
pub struct QuickCalls {
    key: CallKey,
    group: (u64, u32),
    rank: Rank,
    layout: Layout,
    limits: CallLimits,
    barrier: Arc<QuickSchedule>,
    /// An upper bound for the traffic that was sent since all ranks last heard from each other. All
    /// ranks compute the same value.
    unacknowledged: CallTraffic,
    /// `unacknowledged` as it was before the call that the rank began last.
    unacknowledged_before: CallTraffic,
    redundant_sending: RedundantSending,
    /// Messages that no action expects yet, of the current or of a later call, by name.
    early: BTreeMap<(u64, u32), EarlyMessage>,
    /// Messages of which parts have arrived, of the current or of a later call.
    reassembly: Reassembly,
    /// The latest calls of this rank, with their digests.
    recent: VecDeque<(u64, u64)>,
    current: Option<ActiveCall>,
    /// Working memory for the next call.
    scratch: Vec<u8>,
    /// The arrivals of the last call.
    arrivals: CallArrivals,
    out: VecDeque<Output>,
}

/// A message that no action expects yet.
#[derive(Debug)]
struct EarlyMessage {
    from: Rank,
    digest: u64,
    /// The message with its header and tag.
    bytes: Vec<u8>,
}

impl QuickCalls {
    /// Returns the state of a rank's calls in a group, before the first call. Datagrams are tagged
    /// under `key`. Returns `None` if the group cannot execute a quick barrier.
    pub fn new(
        key: CallKey,
        group: (u64, u32),
        rank: Rank,
        layout: Layout,
        limits: CallLimits,
    ) -> Option<QuickCalls> {
        let barrier = Arc::new(QuickSchedule::barrier(&layout, rank)?);
        Some(QuickCalls {
            key,
            group,
            rank,
            layout,
            limits,
            barrier,
            unacknowledged: CallTraffic::default(),
            unacknowledged_before: CallTraffic::default(),
            redundant_sending: RedundantSending::default(),
            early: BTreeMap::new(),
            reassembly: Reassembly::default(),
            recent: VecDeque::new(),
            current: None,
            scratch: Vec::new(),
            arrivals: CallArrivals::default(),
            out: VecDeque::new(),
        })
    }

    /// Returns the arrivals of the call that was begun last.
    pub fn arrivals(&self) -> &CallArrivals {
        &self.arrivals
    }

    /// Returns the ranks from which the rank expects messages.
    pub fn awaited(&self) -> impl Iterator<Item = Rank> {
        self.current.iter().flat_map(|current| current.awaited.values().map(|(_, from, _)| *from))
    }

    fn begin(&mut self, now: Time, begin: BeginCall, data: &mut CallData<'_>) {
        self.recent.push_back((begin.number, begin.digest));
        if self.recent.len() > 2 * RETRANSMIT_WINDOW as usize {
            self.recent.pop_front();
        }
        self.early.retain(|(number, _), _| *number >= begin.number);
        self.reassembly.forget_before(begin.number);
        // If the rank has left the call before because of an error, it has not received the result
        // of that call, which must not pass for the result of this one.
        self.out.retain(|output| *output != Output::Done);
        self.arrivals = CallArrivals::default();
        self.unacknowledged_before = self.unacknowledged;
        self.begin_piece(now, ActiveCall::new(begin, self.rank), data);
    }

    /// Begins a call or a piece of one, after a barrier if the ranks need one, or together with one
    /// if they would need it after this piece.
    fn begin_piece(&mut self, now: Time, call: ActiveCall, data: &mut CallData<'_>) {
        let traffic = self.unacknowledged.and(call.schedule.traffic);
        let next = call.schedule.traffic.and(self.barrier.traffic);
        let first = if self.unacknowledged != CallTraffic::default() && !traffic.fits(self.limits) {
            call.preceded_by(&self.barrier, self.rank)
        } else if !call.schedule.synchronizes() && !traffic.and(next).fits(self.limits) {
            call.with_barrier()
        } else {
            call
        };
        self.start(now, first, data);
    }

    /// Ends the current call without a result. Ranks that have requested it from their agents do
    /// not count its traffic, so this rank must not, either: all ranks would otherwise not agree
    /// before which calls they need a barrier.
    fn abandon(&mut self, number: u64) {
        if self.current.take_if(|current| current.call.number == number).is_some() {
            self.unacknowledged = self.unacknowledged_before;
            self.out.clear();
        }
    }

    /// Starts a call or the barrier before it.
    fn start(&mut self, now: Time, mut current: ActiveCall, data: &mut CallData<'_>) {
        self.unacknowledged = self.unacknowledged.and(current.schedule.traffic);
        current.schedule_nak(now);
        current.set_scratch(std::mem::take(&mut self.scratch));
        let first: Vec<u32> = current.progress.first().collect();
        self.current = Some(current);
        self.run(now, first, data);
    }

    /// Executes the ready actions and those that become ready.
    fn run(&mut self, now: Time, mut ready: Vec<u32>, data: &mut CallData<'_>) {
        let Some(mut current) = self.current.take() else { return };
        let schedule = Arc::clone(&current.schedule);
        while let Some(action) = ready.pop() {
            let kind = schedule.program.actions[action as usize].kind;
            if self.act(now, &mut current, (action, kind), data) {
                current.progress.complete(action, &schedule.dependents, |next| ready.push(next));
            }
        }
        if !current.progress.is_done() {
            self.current = Some(current);
            return;
        }
        if schedule.synchronizes() {
            // All ranks have heard from each other up to this call. Only the messages sent in it
            // may still be missing somewhere.
            self.unacknowledged = schedule.traffic;
        }
        self.scratch = current.take_scratch();
        if let Some(call) = current.then {
            self.start(now, *call, data);
        } else if let Some(next) = current.next_piece(self.rank) {
            self.begin_piece(now, next, data);
        } else {
            self.out.push_back(Output::Done);
        }
    }

    /// Starts an action. Returns whether it is complete.
    fn act(
        &mut self,
        now: Time,
        current: &mut ActiveCall,
        (action, kind): (u32, ActionKind),
        data: &mut CallData<'_>,
    ) -> bool {
        match kind {
            ActionKind::Send { to, transfer, src } => {
                self.send(current, (SendTo::Rank(to), transfer.0), current.bytes(data, src));
            }
            ActionKind::Multicast { transfer, src, .. } => {
                self.send(current, (SendTo::All, transfer.0), current.bytes(data, src));
            }
            ActionKind::Reduce { src, dst } => current.combine(data, src, dst),
            ActionKind::Copy { src, dst } => current.copy(data, src, dst),
            ActionKind::Receive { from, transfer, dst }
            | ActionKind::ReceiveMulticast { from, transfer, dst, .. } => {
                return self.expect(now, current, (action, from, transfer.0, dst), data);
            }
        }
        true
    }

    /// Starts to wait for a message. Returns whether it has arrived already.
    fn expect(
        &mut self,
        now: Time,
        current: &mut ActiveCall,
        (action, from, transfer, dst): (u32, Rank, u32, Span),
        data: &mut CallData<'_>,
    ) -> bool {
        let (number, digest) = (current.call.number, current.call.digest);
        let transfer = transfer | current.part;
        if let Some(early) = self.early.remove(&(number, transfer)) {
            let payload = datagram::payload(&early.bytes);
            if (early.from, early.digest, payload.len() as u64) == (from, digest, dst.len) {
                current.bytes_mut(data, dst).copy_from_slice(payload);
                self.arrivals.record(now, from, transfer);
                return true;
            }
            self.send_nak(early.from, (number, transfer), digest);
        }
        current.awaited.insert(transfer, (action, from, dst));
        false
    }

    fn send(&mut self, current: &ActiveCall, (to, transfer): (SendTo, u32), payload: &[u8]) {
        let name = (current.call.number, transfer | current.part);
        let header = self.header(DatagramKind::Message, name, current.call.digest);
        let bytes = Datagram { header, payload }.encode(&self.key);
        // A long call is not sent twice, because it would take twice as long.
        let copies = if current.schedule.is_long { 1 } else { self.redundant_sending.copies() };
        self.out.push_back(Output::Send(QuickMessage { name, to, copies, bytes }));
    }

    /// Sends a NAK for a message. If its sender made another call, the answer describes that call.
    fn send_nak(&mut self, to: Rank, name: (u64, u32), digest: u64) {
        let header = DatagramHeader { requested: to.0, ..self.header(DatagramKind::Nak, name, digest) };
        let arrived = self.reassembly.arrived_parts(to.0, name).to_payload();
        let bytes = Datagram { header, payload: &arrived }.encode(&self.key);
        self.out.push_back(Output::Nak { to, bytes });
    }

    fn header(&self, kind: DatagramKind, (call, transfer): (u64, u32), digest: u64) -> DatagramHeader {
        let (group, epoch) = self.group;
        DatagramHeader { kind, group, epoch, call, transfer, from: self.rank.0, requested: 0, digest }
    }

    /// Returns whether a sender is another rank of the group.
    fn is_other_rank(&self, from: u32) -> bool {
        from != self.rank.0 && (from as usize) < self.layout.size()
    }

    /// Handles one or several datagrams.
    fn datagrams(&mut self, now: Time, bytes: &[u8], data: &mut CallData<'_>) {
        for datagram in arrived_datagrams(bytes) {
            match datagram {
                ArrivedDatagram::Part(part) => self.part(now, &part, data),
                ArrivedDatagram::Other(message) => self.datagram(now, Cow::Borrowed(message), data),
            }
        }
    }

    /// Handles a part of a message. A long message that the rank waits for is received in place.
    fn part(&mut self, now: Time, part: &MessagePart<'_>, data: &mut CallData<'_>) {
        let begun = self.recent.back().map_or(0, |(number, _)| *number);
        let (call, transfer) = part.message_name();
        if part.group() != self.group || !self.is_other_rank(part.from()) || call < begun {
            return;
        }
        let dst = self.current.as_ref().and_then(|current| current.destination(part));
        let place = self.current.as_mut().zip(dst).map(|(current, dst)| current.bytes_mut(data, dst));
        match (self.reassembly.add(part, place), &self.current, dst) {
            (Some(CompleteMessage::Whole(message)), ..) => self.datagram(now, Cow::Owned(message), data),
            (Some(CompleteMessage::InPlace(header, tag)), Some(current), Some(dst)) => {
                let payload = current.bytes(data, dst);
                let Ok(header) = verify_long(&self.key, self.group, (&header, payload, &tag)) else { return };
                let name = (header.kind, header.call, header.transfer, header.from);
                if name != (DatagramKind::Message, call, transfer, part.from()) {
                    return;
                }
                if header.digest == current.call.digest {
                    self.arrived(now, transfer, data);
                } else {
                    self.send_nak(Rank(header.from), (call, transfer), current.call.digest);
                }
            }
            _ => {}
        }
    }

    fn datagram(&mut self, now: Time, bytes: Cow<'_, [u8]>, data: &mut CallData<'_>) {
        let Ok(Datagram { header, payload }) = Datagram::verify(&self.key, self.group, &bytes) else {
            return;
        };
        if !self.is_other_rank(header.from) {
            return;
        }
        let ours = self.recent.iter().find(|(number, _)| *number == header.call).map(|(_, digest)| *digest);
        match (header.kind, ours) {
            (DatagramKind::Nak | DatagramKind::Probe, _) => {}
            (DatagramKind::Mismatch, Some(ours)) if ours != header.digest => {
                let text = String::from_utf8_lossy(payload).into_owned();
                self.out.push_back(Output::Mismatch { rank: header.from, number: header.call, text });
            }
            (DatagramKind::Mismatch, _) => {}
            (DatagramKind::Message, Some(ours)) if ours != header.digest => {
                self.send_nak(Rank(header.from), (header.call, header.transfer), ours);
            }
            (DatagramKind::Message, ours) => self.message(now, &header, (bytes, ours.is_some()), data),
        }
    }

    /// Handles a message. `has_begun` states whether the rank has begun its call.
    fn message(
        &mut self,
        now: Time,
        header: &DatagramHeader,
        (bytes, has_begun): (Cow<'_, [u8]>, bool),
        data: &mut CallData<'_>,
    ) {
        let current = self.current.as_mut().filter(|current| current.call.number == header.call);
        if let Some(current) = current
            && let Some((_, from, dst)) = current.awaited.get(&header.transfer).copied()
        {
            let payload = datagram::payload(&bytes);
            if from.0 == header.from && dst.len == payload.len() as u64 {
                current.bytes_mut(data, dst).copy_from_slice(payload);
                self.arrived(now, header.transfer, data);
            }
        } else if self.is_early(header.call, has_begun) && self.early.len() < EARLY_MESSAGES_MAX {
            let (from, digest) = (Rank(header.from), header.digest);
            let early = || EarlyMessage { from, digest, bytes: bytes.into_owned() };
            self.early.entry((header.call, header.transfer)).or_insert_with(early);
        }
    }

    /// Records that an awaited message of the current call is at its destination, and executes the
    /// actions that depend on it.
    fn arrived(&mut self, now: Time, transfer: u32, data: &mut CallData<'_>) {
        let Some(current) = &mut self.current else { return };
        let Some((action, from, _)) = current.awaited.remove(&transfer) else { return };
        self.arrivals.record(now, from, transfer);
        current.reset_naks(now, from, transfer);
        let (schedule, mut ready) = (Arc::clone(&current.schedule), Vec::new());
        current.progress.complete(action, &schedule.dependents, |next| ready.push(next));
        self.run(now, ready, data);
    }

    /// Returns whether a message that no action expects may be needed later.
    fn is_early(&self, call: u64, has_begun: bool) -> bool {
        let is_current = self.current.as_ref().is_some_and(|current| current.call.number == call);
        let begun = self.recent.back().map_or(0, |(number, _)| number + 1);
        is_current || (!has_begun && call >= begun)
    }

    /// Sends NAKs for all messages that have been missing for too long.
    fn send_due_naks(&mut self, now: Time) {
        let Some(current) = self.current.as_mut().filter(|current| current.nak_at <= now) else { return };
        current.schedule_nak(now);
        let (number, digest) = (current.call.number, current.call.digest);
        let missing: Vec<(u32, Rank)> =
            current.awaited.iter().map(|(transfer, (_, from, _))| (*transfer, *from)).collect();
        for (transfer, from) in missing {
            self.send_nak(from, (number, transfer), digest);
        }
    }
}

impl Machine for QuickCalls {
    type Input<'a> = Input<'a>;
    type Output = Output;

    fn handle(&mut self, now: Time, input: Input<'_>) {
        match input {
            Input::Begin(call, mut data) => self.begin(now, call, &mut data),
            Input::Abandon(number) => self.abandon(number),
            Input::Datagram(bytes, mut data) => self.datagrams(now, bytes, &mut data),
            Input::Retransmitted(total) => self.redundant_sending.on_retransmitted(total),
        }
    }

    fn poll(&mut self, now: Time) -> Poll<Output> {
        self.send_due_naks(now);
        match self.out.pop_front() {
            Some(output) => Poll::Output(output),
            None => Poll::Idle(self.current.as_ref().map(|current| current.nak_at)),
        }
    }
}

#[cfg(test)]
mod tests;
