//! Executes the quick calls of one rank, in order.

use crate::call_limits::CallLimits;
use crate::datagram::{Datagram, DatagramHeader, DatagramKind, OVERHEAD_BYTES};
use crate::divided_call::DividedCall;
use crate::message_parts::{MessagePart, Reassembly};
use crate::quick_schedule::{CallTraffic, PIECES_MAX, QuickSchedule, RETRANSMIT_WINDOW, locate};
use crate::redundant_sending::RedundantSending;
use cool_collective::{ActionKind, Layout, ProgramProgress, Rank, Span};
use cool_machine::{Duration, Machine, Poll, Time};
use cool_types::{ElementType, Key, ReduceOp, combine};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A rank sends a NAK when it has waited this long for a message. It repeats the NAK after the same
/// time, [`PROMPT_NAKS`] times in all because NAKs and retransmissions are lost too, and then
/// doubles the interval up to [`NAK_INTERVAL_MAX`]. The delay is longer than the time for which a
/// busy CPU keeps a rank from running, because most often the sender has not sent the message yet,
/// and a NAK would only wake its agent.
const NAK_DELAY: Duration = Duration::from_millis(20);

/// The delay of the NAK if a later message of the same sender has arrived. It must be longer than
/// the time by which the network delays reordered packets.
const NAK_DELAY_AFTER_GAP: Duration = Duration::from_millis(2);

/// Number of NAKs that are sent at the first interval, before the interval doubles.
const PROMPT_NAKS: u32 = 3;

/// The longest interval between NAKs.
const NAK_INTERVAL_MAX: Duration = Duration::from_millis(320);

/// Marks the transfers of the barrier that precedes a call or a piece of one.
const BARRIER_BIT: u32 = 1 << 31;
/// The first of the bits, below [`BARRIER_BIT`], that contain the number of the piece to which a
/// transfer belongs.
const PIECE_SHIFT: u32 = 24;
const _: () = assert!(PIECES_MAX == 1 << (BARRIER_BIT.trailing_zeros() - PIECE_SHIFT));

/// Maximum number of messages that are kept before an action expects them. Further ones are dropped
/// and requested by a NAK later.
const EARLY_MESSAGES_MAX: usize = 4 * RETRANSMIT_WINDOW as usize;

/// Maximum number of arrivals per call that [`CallArrivals::latest`] reports.
pub const RECENT_ARRIVALS_MAX: usize = 8;

/// A call that the rank begins.
#[derive(Clone, Debug)]
pub struct BeginCall<'a> {
    /// The number of the call in the group.
    pub number: u64,
    /// The digest by which ranks detect that they have made different calls.
    pub digest: u64,
    /// The schedule.
    pub schedule: &'a Arc<QuickSchedule>,
    /// The element type and reduce operation, for operations that combine.
    pub combining: Option<(ElementType, ReduceOp)>,
    /// The rank's contribution, as long as the call requires. For a bcast, the message at the root.
    pub input: &'a [u8],
}

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

    fn record(&mut self, now: Time, from: Rank, part: u32) {
        self.messages += 1;
        if part & BARRIER_BIT != 0 {
            return;
        }
        if self.latest.len() == RECENT_ARRIVALS_MAX {
            self.latest.pop_front();
        }
        self.latest.push_back((from, now));
    }
}

/// An event for the calls of a rank.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// The rank begins a call. The previous call must be complete, unless the rank has left it
    /// because of an error; no result of that call follows.
    Begin(BeginCall<'a>),
    /// The agents execute the call with this number instead, because other ranks have requested it
    /// from them. Ignored if the rank is not in that call.
    Abandon(u64),
    /// One or several datagrams arrived, one right after the other. Those that do not belong to the
    /// group are ignored.
    Datagram(&'a [u8]),
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
    /// The call is complete. The driver must fetch the result with [`QuickCalls::take_output`].
    Done,
}

/// The quick calls of one rank.
#[derive(Debug)]
pub struct QuickCalls {
    key: Key,
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
    /// Messages that no action expects yet, of the current or of a later call. By name: sender,
    /// digest and payload.
    early: BTreeMap<(u64, u32), (u32, u64, Vec<u8>)>,
    /// Messages of which parts have arrived, of the current or of a later call.
    reassembly: Reassembly,
    /// The latest calls of this rank, with their digests.
    recent: VecDeque<(u64, u64)>,
    current: Option<ActiveCall>,
    /// The call to which the current piece belongs, if it is executed in several.
    divided: Option<DividedCall>,
    /// The output of the last call.
    output: Vec<u8>,
    /// The arrivals of the last call.
    arrivals: CallArrivals,
    out: VecDeque<Output>,
}

/// The call in progress.
#[derive(Debug)]
struct ActiveCall {
    number: u64,
    digest: u64,
    /// The bits of the piece in all transfers, with [`BARRIER_BIT`] in the barrier before it.
    part: u32,
    schedule: Arc<QuickSchedule>,
    combining: Option<(ElementType, ReduceOp)>,
    progress: ProgramProgress,
    /// Input, output and working memory.
    buffers: [Vec<u8>; 3],
    /// The expected messages, by transfer: the receiving action, the sender, and the destination.
    awaited: BTreeMap<u32, (u32, Rank, Span)>,
    nak_at: Time,
    /// Number of intervals that have begun since a message last arrived, without the short one
    /// after a gap. Each ends with a NAK.
    naks_sent: u32,
    /// The call that follows the barrier.
    then: Option<Box<ActiveCall>>,
}

impl ActiveCall {
    /// Returns a call, or a piece of one, with these bits in all transfers.
    fn new(begin: &BeginCall<'_>, part: u32, rank: Rank, size: usize) -> ActiveCall {
        let BeginCall { number, digest, schedule, combining, input } = begin.clone();
        let mut buffers = schedule.bytes(rank, size).map(|bytes| vec![0; bytes as usize]);
        let to = &mut buffers[usize::from(schedule.is_root_of_bcast(rank))];
        let len = to.len().min(input.len());
        to[..len].copy_from_slice(&input[..len]);
        ActiveCall {
            number,
            digest,
            part,
            progress: ProgramProgress::new(&schedule.program),
            schedule: Arc::clone(schedule),
            combining,
            buffers,
            awaited: BTreeMap::new(),
            nak_at: Time::ZERO,
            naks_sent: 0,
            then: None,
        }
    }

    /// Returns the barrier that must complete before this call.
    fn preceded_by(self, barrier: &Arc<QuickSchedule>, rank: Rank, size: usize) -> ActiveCall {
        let begin = BeginCall {
            number: self.number,
            digest: self.digest,
            schedule: barrier,
            combining: None,
            input: &[],
        };
        let part = self.part | BARRIER_BIT;
        ActiveCall { then: Some(Box::new(self)), ..ActiveCall::new(&begin, part, rank, size) }
    }

    fn span(&self, span: Span) -> &[u8] {
        let (buffer, range) = locate(span);
        &self.buffers[buffer][range]
    }

    fn put(&mut self, span: Span, bytes: &[u8]) {
        let (buffer, range) = locate(span);
        self.buffers[buffer][range].copy_from_slice(bytes);
    }

    fn combine(&mut self, src: Span, dst: Span) {
        if let Some((element, op)) = self.combining {
            self.apply(src, dst, |to, from| combine(element, op, to, from));
        }
    }

    /// Applies a function to the bytes of `dst` and of `src`.
    fn apply(&mut self, src: Span, dst: Span, work: impl FnOnce(&mut [u8], &[u8])) {
        let ((from, source), (to, range)) = (locate(src), locate(dst));
        if from == to {
            // The spans may overlap.
            let bytes = self.buffers[from][source].to_vec();
            work(&mut self.buffers[to][range], &bytes);
        } else if let Ok([from, to]) = self.buffers.get_disjoint_mut([from, to]) {
            work(&mut to[range], &from[source]);
        }
    }

    /// Sets the time of the next NAK, after an interval that grows with the number of NAKs.
    fn schedule_nak(&mut self, now: Time) {
        // Further doublings would exceed the longest interval.
        let doublings = (self.naks_sent + 1).saturating_sub(PROMPT_NAKS).min(8);
        self.nak_at = now + (NAK_DELAY * (1 << doublings)).min(NAK_INTERVAL_MAX);
        self.naks_sent += 1;
    }
}

impl QuickCalls {
    /// Returns the state of a rank's calls in a group, before the first call. Datagrams are tagged
    /// under `key`. Returns `None` if the group cannot execute a quick barrier.
    pub fn new(
        key: Key,
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
            divided: None,
            output: Vec::new(),
            arrivals: CallArrivals::default(),
            out: VecDeque::new(),
        })
    }

    /// Returns the output of the last completed call, once. It is empty if the rank receives
    /// nothing.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Returns the arrivals of the call that was begun last.
    pub fn arrivals(&self) -> &CallArrivals {
        &self.arrivals
    }

    /// Returns the ranks from which the rank expects messages.
    pub fn awaited(&self) -> impl Iterator<Item = Rank> {
        self.current.iter().flat_map(|current| current.awaited.values().map(|(_, from, _)| *from))
    }

    fn begin(&mut self, now: Time, begin: &BeginCall<'_>) {
        self.recent.push_back((begin.number, begin.digest));
        if self.recent.len() > 2 * RETRANSMIT_WINDOW as usize {
            self.recent.pop_front();
        }
        self.early.retain(|(number, _), _| *number >= begin.number);
        self.reassembly.forget_before(begin.number);
        // If the rank has left the call before because of an error, it has not received the result
        // of that call, which must not pass for the result of this one.
        self.out.retain(|output| *output != Output::Done);
        self.output.clear();
        self.arrivals = CallArrivals::default();
        self.unacknowledged_before = self.unacknowledged;
        self.divided = DividedCall::new(begin);
        if !self.begin_next_piece(now) {
            self.begin_piece(now, begin, 0);
        }
    }

    /// Begins the next piece of a divided call. Returns false if there is none.
    fn begin_next_piece(&mut self, now: Time) -> bool {
        let Some(piece) = self.divided.as_ref().and_then(DividedCall::piece) else { return false };
        self.begin_piece(now, &piece.as_call(), piece.index << PIECE_SHIFT);
        true
    }

    /// Begins a call or a piece of one, after a barrier if the ranks need one.
    fn begin_piece(&mut self, now: Time, begin: &BeginCall<'_>, part: u32) {
        let size = self.layout.size();
        let call = ActiveCall::new(begin, part, self.rank, size);
        let needs_barrier = self.unacknowledged != CallTraffic::default()
            && !self.unacknowledged.and(begin.schedule.traffic).fits(self.limits);
        self.start(now, if needs_barrier { call.preceded_by(&self.barrier, self.rank, size) } else { call });
    }

    /// Ends the current call without a result. Ranks that have requested it from their agents do
    /// not count its traffic, so this rank must not, either: all ranks would otherwise not agree
    /// before which calls they need a barrier.
    fn abandon(&mut self, number: u64) {
        if self.current.take_if(|current| current.number == number).is_some() {
            self.divided = None;
            self.unacknowledged = self.unacknowledged_before;
            self.out.clear();
        }
    }

    /// Starts a call or the barrier before it.
    fn start(&mut self, now: Time, mut current: ActiveCall) {
        self.unacknowledged = self.unacknowledged.and(current.schedule.traffic);
        current.schedule_nak(now);
        let first: Vec<u32> = current.progress.first().collect();
        self.current = Some(current);
        self.run(now, first);
    }

    /// Executes the ready actions and those that become ready.
    fn run(&mut self, now: Time, mut ready: Vec<u32>) {
        let Some(mut current) = self.current.take() else { return };
        let schedule = Arc::clone(&current.schedule);
        while let Some(action) = ready.pop() {
            if self.act(now, &mut current, action, schedule.program.actions[action as usize].kind) {
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
        match current.then {
            Some(call) => self.start(now, *call),
            None => {
                let [_, output, _] = current.buffers;
                self.end_piece(now, output);
            }
        }
    }

    /// Takes the output of a call, or of a piece, after which the next one begins.
    fn end_piece(&mut self, now: Time, output: Vec<u8>) {
        if let Some(divided) = &mut self.divided {
            divided.complete_piece(&output, &mut self.output);
            if self.begin_next_piece(now) {
                return;
            }
            self.divided = None;
        } else {
            self.output = output;
        }
        self.out.push_back(Output::Done);
    }

    /// Starts an action. Returns whether it is complete.
    fn act(&mut self, now: Time, current: &mut ActiveCall, action: u32, kind: ActionKind) -> bool {
        match kind {
            ActionKind::Send { to, transfer, src } => self.send(current, SendTo::Rank(to), transfer.0, src),
            ActionKind::Multicast { transfer, src, .. } => self.send(current, SendTo::All, transfer.0, src),
            ActionKind::Reduce { src, dst } => current.combine(src, dst),
            ActionKind::Copy { src, dst } => current.apply(src, dst, <[u8]>::copy_from_slice),
            ActionKind::Receive { from, transfer, dst }
            | ActionKind::ReceiveMulticast { from, transfer, dst, .. } => {
                let transfer = transfer.0 | current.part;
                return match self.early.remove(&(current.number, transfer)) {
                    Some((sender, digest, bytes))
                        if (sender, digest) == (from.0, current.digest) && bytes.len() as u64 == dst.len =>
                    {
                        current.put(dst, &bytes);
                        self.arrivals.record(now, from, current.part);
                        true
                    }
                    unusable => {
                        if let Some((sender, ..)) = unusable {
                            self.send_nak(Rank(sender), (current.number, transfer), current.digest);
                        }
                        current.awaited.insert(transfer, (action, from, dst));
                        false
                    }
                };
            }
        }
        true
    }

    fn send(&mut self, current: &ActiveCall, to: SendTo, transfer: u32, src: Span) {
        let transfer = transfer | current.part;
        let header = self.header(DatagramKind::Message, (current.number, transfer), current.digest);
        let bytes = Datagram { header, payload: current.span(src) }.encode(&self.key);
        let name = (current.number, transfer);
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

    /// Handles one or several datagrams.
    fn datagrams(&mut self, now: Time, bytes: &[u8]) {
        let (group, own, size) = (self.group, self.rank.0, self.layout.size());
        let begun = self.recent.back().map_or(0, |(number, _)| *number);
        let is_needed = |part: &MessagePart<'_>| {
            let is_of_other = part.from() != own && (part.from() as usize) < size;
            part.group() == group && is_of_other && part.call() >= begun
        };
        let mut left = bytes;
        while let Some(message) = self.reassembly.next_message(&mut left, is_needed) {
            self.datagram(now, &message);
        }
    }

    fn datagram(&mut self, now: Time, bytes: &[u8]) {
        let Ok(Datagram { header, payload }) = Datagram::verify(&self.key, self.group, bytes) else { return };
        if header.from == self.rank.0 || header.from as usize >= self.layout.size() {
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
            (DatagramKind::Message, ours) => self.message(now, &header, payload, ours.is_some()),
        }
    }

    fn message(&mut self, now: Time, header: &DatagramHeader, payload: &[u8], has_begun: bool) {
        let current = self.current.as_mut().filter(|current| current.number == header.call);
        if let Some(current) = current
            && let Some((action, from, dst)) = current.awaited.get(&header.transfer).copied()
        {
            if from.0 == header.from && dst.len == payload.len() as u64 {
                current.awaited.remove(&header.transfer);
                current.put(dst, payload);
                self.arrivals.record(now, from, current.part);
                let passed = |(transfer, (_, sender, _)): (&u32, &(u32, Rank, Span))| {
                    *transfer < header.transfer && *sender == from
                };
                let has_gap = current.awaited.iter().any(passed);
                let (nak_delay, naks_sent) = if has_gap { (NAK_DELAY_AFTER_GAP, 0) } else { (NAK_DELAY, 1) };
                (current.nak_at, current.naks_sent) = (now + nak_delay, naks_sent);
                self.complete(now, action);
            }
        } else if self.is_early(header.call, has_begun) && self.early.len() < EARLY_MESSAGES_MAX {
            let early = || (header.from, header.digest, payload.to_vec());
            self.early.entry((header.call, header.transfer)).or_insert_with(early);
        }
    }

    /// Returns whether a message that no action expects may be needed later.
    fn is_early(&self, call: u64, has_begun: bool) -> bool {
        let is_current = self.current.as_ref().is_some_and(|current| current.number == call);
        let begun = self.recent.back().map_or(0, |(number, _)| number + 1);
        is_current || (!has_begun && call >= begun)
    }

    fn complete(&mut self, now: Time, action: u32) {
        let Some(current) = &mut self.current else { return };
        let (schedule, mut ready) = (Arc::clone(&current.schedule), Vec::new());
        current.progress.complete(action, &schedule.dependents, |next| ready.push(next));
        self.run(now, ready);
    }

    /// Sends NAKs for all messages that have been missing for too long.
    fn send_due_naks(&mut self, now: Time) {
        let Some(current) = self.current.as_mut().filter(|current| current.nak_at <= now) else { return };
        current.schedule_nak(now);
        let (number, digest) = (current.number, current.digest);
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
            Input::Begin(begin) => self.begin(now, &begin),
            Input::Abandon(number) => self.abandon(number),
            Input::Datagram(bytes) => self.datagrams(now, bytes),
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
