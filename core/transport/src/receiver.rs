//! A receiver of a stream: stores chunks, requests missing ones, retransmits to the nodes behind
//! it, and reports.

use crate::feedback::ack_tree::AckTreeNode;
use crate::feedback::multicast_rx::MulticastRx;
use crate::feedback::rounds::{FeedbackRounds, RoundFeedback};
use crate::inputs_outputs::{Input, Output, PacketTarget, StreamError, StreamOutbox};
use crate::intervals::IntervalSet;
use crate::packet::{Packet, PacketBody, Via};
use crate::repair::local_repair::LocalRepair;
use crate::repair::loss_recovery::LossRecovery;
use crate::repair::retransmit_queue::{Retransmission, RetransmitQueue};
use crate::spec::{PART_BYTES, SpecError, StreamSpec};
use crate::stats::StreamStats;
use crate::timeouts::{LINGER_RTOS, SILENT_CHUNKS};
use cool_machine::{Duration, Machine, Poll, Time, earliest};
use core::ops::Range;
use std::collections::BTreeMap;

/// A receiver of a stream: stores chunks, requests missing ones, and retransmits to the nodes
/// behind it.
#[derive(Debug)]
pub struct Receiver {
    spec: StreamSpec,
    me: u16,
    chunks: u32,
    held: IntervalSet,
    tree: MulticastRx,
    recovery: LossRecovery,
    retransmits: RetransmitQueue,
    rack: LocalRepair,
    reporter: AckTreeNode,
    out: StreamOutbox,
    phase: ReceiverPhase,
    /// When the phase began or last made progress.
    since: Time,
    /// The tree delivers nothing, so all chunks are requested.
    tree_silent: bool,
    /// Packets of the stream may have arrived before it was opened, and have been dropped.
    is_late: bool,
    /// One past the last chunk that has arrived over the tree.
    tree_end: u32,
    /// Number of later chunks that have arrived along the chain since a chunk arrived over the
    /// tree.
    chunks_past_tree: u32,
    /// Chunks beyond the tree's position arrive along the chain, so NAKs ask the upstream node to
    /// forward also chunks that it receives over the tree.
    forward_live: bool,
    released: bool,
    /// The parts of incomplete chunks that are stored.
    parts: BTreeMap<u32, IntervalSet>,
    /// Whether a packet that is longer than one with a part has arrived.
    has_long_packets: bool,
    stats: StreamStats,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiverPhase {
    /// No packet of the stream has arrived.
    Waiting,
    Receiving,
    /// All chunks are stored.
    Holding,
    /// All chunks are stored, and the source knows the state of this node and of those that report
    /// to it.
    Lingering,
    Closed,
}

impl Receiver {
    /// Opens the stream at a position of its chain. The buffer must be as long as the message.
    ///
    /// # Errors
    /// Returns an error if the specification contradicts itself, or the position is not a
    /// receiver's.
    pub fn new(now: Time, spec: StreamSpec, me: u16) -> Result<Receiver, SpecError> {
        let chunks = spec.check()?;
        let chain = &spec.chain;
        if me == 0 || me >= chain.len() {
            return Err(SpecError::NoReceiver { position: me, nodes: chain.len() });
        }
        let mut receiver = Receiver {
            me,
            chunks,
            held: IntervalSet::default(),
            tree: MulticastRx::new(FeedbackRounds::new(chain), chunks),
            recovery: LossRecovery::new(now, me, &spec.timers, spec.chunk_bytes),
            retransmits: RetransmitQueue::default(),
            rack: LocalRepair::new(chain, me, spec.rack_tree),
            reporter: AckTreeNode::new(chain.clone(), me, spec.ack_delay()),
            out: StreamOutbox::new(spec.id, chain.node(me), spec.digest),
            phase: ReceiverPhase::Waiting,
            since: now,
            tree_silent: !spec.multicast,
            is_late: false,
            tree_end: 0,
            chunks_past_tree: 0,
            forward_live: !spec.multicast,
            released: false,
            parts: BTreeMap::new(),
            has_long_packets: false,
            stats: StreamStats::default(),
            spec,
        };
        if receiver.spec.in_parts {
            receiver.recovery.request_parts();
        }
        if receiver.spec.len > receiver.spec.eager {
            receiver.answer_source(0);
        }
        Ok(receiver)
    }

    /// Returns the current retransmission timeout, for [`crate::StreamTimers::initial_rto`] of the
    /// next stream.
    pub fn retransmission_timeout(&self) -> Duration {
        self.recovery.rtt().rto()
    }

    /// Returns whether a packet has arrived that is longer than one with a part of a chunk.
    pub fn has_long_packets(&self) -> bool {
        self.has_long_packets
    }

    /// Returns whether only short packets have arrived although longer ones were sent. If this
    /// happens repeatedly, later streams should begin with [`StreamSpec::in_parts`].
    pub fn needs_parts(&self) -> bool {
        self.recovery.is_in_parts() && !self.has_long_packets && self.stats.by_chain > 0
    }

    /// Returns whether the latest multicasts have arrived.
    pub fn hears_tree(&self) -> bool {
        self.tree_end > 0 && self.chunks_past_tree < SILENT_CHUNKS
    }

    /// Returns whether chunks have arrived along the chain, but none over the tree although the
    /// stream has one.
    pub fn misses_tree(&self) -> bool {
        let by_chain = self.stats.by_chain > 0 && self.tree_end == 0;
        by_chain && self.spec.multicast && !self.is_late
    }

    /// Returns the counters.
    pub fn stats(&self) -> StreamStats {
        self.stats
    }

    /// Returns the number of entries in all lists of chunks, requests and packets. This measures
    /// the memory that grows with losses.
    pub fn entries(&self) -> usize {
        let lists = self.recovery.entries() + self.retransmits.entries() + self.rack.entries();
        self.held.range_count() + lists + self.parts.len() + self.out.len()
    }

    /// Returns whether all chunks are stored.
    pub fn is_complete(&self) -> bool {
        self.held.len() == self.chunks
    }

    fn on_packet(&mut self, now: Time, packet: &Packet, payload: usize) {
        if self.phase == ReceiverPhase::Closed || !self.out.is_same_call(packet) {
            return;
        }
        let Some(from) = self.spec.chain.position(packet.from).filter(|from| *from != self.me) else {
            self.stats.refused += 1;
            return;
        };
        self.reporter.on_contact(from);
        match &packet.body {
            PacketBody::Data { chunk, echo, via, part: 0 } => {
                self.on_data(now, from, (*chunk, payload), (*echo, *via))
            }
            PacketBody::Data { chunk, echo, via, part } => {
                self.on_part(now, from, (*chunk, *part, payload), (*echo, *via))
            }
            PacketBody::Announce { sent, serial, begun, answer } if from == 0 => {
                self.on_announce(now, (*sent, *begun), answer.then_some(*serial));
            }
            PacketBody::Nak { serial, forward_live, in_parts, chunks }
                if from > self.me && self.is_in_range(chunks) =>
            {
                self.begin(now);
                if from == self.me + 1 {
                    self.rack.on_nak(chunks);
                }
                self.retransmits.set_in_parts(packet.from, *in_parts);
                let missing =
                    self.retransmits.on_nak(packet.from, (*serial, *forward_live), chunks, &self.held);
                if !missing.is_empty() {
                    self.out.send(
                        PacketTarget::Node(packet.from),
                        PacketBody::NakConfirm { echo: *serial, chunks: missing },
                    );
                }
            }
            PacketBody::NakConfirm { echo, chunks } if from < self.me && self.is_in_range(chunks) => {
                self.begin(now);
                self.recovery.on_nak_confirm(now, from, *echo, chunks);
            }
            PacketBody::Report { rounds, loss, spacing, delay, alive, complete, .. }
                if self.tree.has_rounds(*rounds) =>
            {
                let feedback = RoundFeedback { loss: *loss, spacing: *spacing, delay: *delay };
                let rto = self.recovery.rtt().rto();
                if self.reporter.on_member(now, from, (*rounds, feedback), (alive, complete), rto) {
                    self.out.send(PacketTarget::Node(packet.from), self.reporter.settled_for(from));
                }
            }
            PacketBody::Settled { positions } => self.reporter.on_settled(positions),
            _ => self.stats.refused += 1,
        }
    }

    fn on_data(&mut self, now: Time, from: u16, (chunk, payload): (u32, usize), (echo, via): (u16, Via)) {
        let bytes = self.spec.chunk_range(chunk);
        let by_tree = via == Via::Tree;
        let by_rack = via == Via::Rack;
        let fits = chunk < self.chunks && bytes.end - bytes.start == payload as u64;
        if !fits || from > self.me || by_tree && from != 0 || by_rack && !self.rack.contains(from) {
            self.stats.refused += 1;
            return;
        }
        self.begin(now);
        if payload as u64 > PART_BYTES {
            self.has_long_packets = true;
            if via != Via::Tree {
                self.recovery.on_long_packet();
            }
        }
        self.on_chunk(now, from, chunk, (echo, via), Some(bytes));
    }

    /// Handles a part of a chunk that was requested in parts.
    fn on_part(&mut self, now: Time, from: u16, part: (u32, u8, usize), (echo, via): (u16, Via)) {
        let (chunk, part, payload) = part;
        let bytes = self.spec.part_range(chunk, part);
        let fits = chunk < self.chunks && payload > 0 && bytes.end - bytes.start == payload as u64;
        if !fits || from > self.me || matches!(via, Via::Tree | Via::Rack) {
            self.stats.refused += 1;
            return;
        }
        self.begin(now);
        self.recovery.on_part(now, from);
        if self.held.contains(chunk) {
            self.stats.duplicates += 1;
            return;
        }
        let stored = self.parts.entry(chunk).or_default();
        if stored.insert(u32::from(part)..u32::from(part) + 1) == 0 {
            self.stats.duplicates += 1;
            return;
        }
        let is_complete = stored.len() == u32::from(self.spec.parts(chunk));
        self.since = now;
        self.out.push(Output::Store(bytes));
        if is_complete {
            self.on_chunk(now, from, chunk, (echo, via), None);
        }
    }

    /// Handles a chunk of which the last bytes have arrived, and stores the given bytes.
    fn on_chunk(
        &mut self,
        now: Time,
        from: u16,
        chunk: u32,
        (echo, via): (u16, Via),
        bytes: Option<Range<u64>>,
    ) {
        let by_tree = via == Via::Tree;
        if by_tree {
            if self.tree_silent && chunk >= self.tree.horizon() {
                (self.tree_silent, self.forward_live) = (false, false);
                self.recovery.remove_missing(chunk..self.chunks);
            }
            (self.tree_end, self.chunks_past_tree) = (self.tree_end.max(chunk + 1), 0);
            let (gap, ended) = self.tree.on_chunk(now, chunk, echo);
            self.recovery.on_gap(now, gap);
            self.recovery.on_tree_chunk(chunk);
            if let Some((rounds, feedback)) = ended {
                self.reporter.on_round(now, rounds, feedback, self.recovery.rtt().rto());
            }
        } else {
            self.forward_live |= self.tree_silent && chunk >= self.tree.horizon();
            if self.spec.multicast && chunk >= self.tree_end {
                self.chunks_past_tree += 1;
                // A late node may have missed all multicasts for that reason.
                let shows_silence = !self.is_late || self.tree_end > 0;
                if shows_silence && self.chunks_past_tree.is_multiple_of(SILENT_CHUNKS) {
                    self.out.push(Output::TreeSilent);
                }
            }
            self.recovery.on_chain_chunk(now, from, chunk, echo, via);
        }
        if self.held.insert(chunk..chunk + 1) == 0 {
            self.stats.duplicates += 1;
            return;
        }
        *(if by_tree { &mut self.stats.by_tree } else { &mut self.stats.by_chain }) += 1;
        self.since = now;
        self.parts.remove(&chunk);
        if let Some(bytes) = bytes {
            self.out.push(Output::Store(bytes));
        }
        self.forward(chunk, via);
        if self.is_complete() {
            self.phase = ReceiverPhase::Holding;
            self.out.push(Output::Delivered);
            self.reporter.on_complete(now, self.recovery.rtt().rto());
        }
    }

    /// Forwards a chunk to the nodes that requested it, except those that receive it by the same
    /// multicast.
    fn forward(&mut self, chunk: u32, via: Via) {
        let (chain, rack) = (&self.spec.chain, &mut self.rack);
        let repairs = via != Via::Tree && !self.tree_silent && rack.repairs();
        let repairs =
            repairs && rack.on_repaired(chunk, self.retransmits.is_awaited(chain.node(self.me + 1), chunk));
        if repairs {
            self.retransmits.multicast(chunk);
        }
        let in_rack = |node| chain.position(node).is_some_and(|position| rack.contains(position));
        match via {
            Via::Tree => self.retransmits.on_chunk(chunk, |_| true),
            _ => self.retransmits.on_chunk(chunk, |node| (repairs || via == Via::Rack) && in_rack(node)),
        }
    }

    fn on_announce(&mut self, now: Time, (sent, begun): (u32, bool), answer: Option<u16>) {
        if begun {
            self.begin(now);
            self.recovery.on_contact(now, 0);
            let gap = self.tree.on_announce(now, sent);
            self.recovery.on_gap(now, gap);
        }
        match answer {
            Some(serial) => self.answer_source(serial),
            None => self.reporter.on_poll(now),
        }
    }

    /// Starts receiving, if the receiver was waiting.
    fn begin(&mut self, now: Time) {
        if self.phase != ReceiverPhase::Waiting {
            return;
        }
        self.phase = ReceiverPhase::Receiving;
        self.since = now;
        self.tree.on_begin(now);
        if !self.spec.multicast {
            self.recovery.add_missing(0..self.chunks, &self.held);
            if let Some(next) = self.me.checked_add(1).filter(|next| *next < self.spec.chain.len()) {
                // The next node may have sent NAKs before this node opened the stream, and then
                // turned to another node. This packet brings it back.
                let node = self.spec.chain.node(next);
                self.out
                    .send(PacketTarget::Node(node), PacketBody::NakConfirm { echo: 0, chunks: Vec::new() });
            }
        }
    }

    fn is_in_range(&self, chunks: &[Range<u32>]) -> bool {
        chunks.last().is_none_or(|last| last.end <= self.chunks)
    }

    fn answer_source(&mut self, serial: u16) {
        self.out.send(PacketTarget::Node(self.spec.id.source), self.reporter.answer(serial));
    }

    /// Returns when the tree counts as silent, unless it already does.
    fn silent_at(&self) -> Option<Time> {
        self.tree.silent_at(self.recovery.rtt().rto()).filter(|_| !self.tree_silent)
    }

    fn on_time(&mut self, now: Time) {
        match self.phase {
            ReceiverPhase::Waiting if now >= self.since + self.spec.timers.start => {
                let waited = now - self.since;
                self.fail(StreamError::NotStarted { source_node: self.spec.id.source, waited });
            }
            ReceiverPhase::Receiving if now >= self.since + self.spec.timers.stall => {
                self.fail(StreamError::Stalled {
                    source_node: self.spec.id.source,
                    missing: self.chunks - self.held.len(),
                    chunks: self.chunks,
                    last_upstream: self.spec.chain.node(self.recovery.upstream()),
                    waited: now - self.since,
                })
            }
            ReceiverPhase::Receiving => {
                if self.silent_at().is_some_and(|at| at <= now) {
                    self.tree_silent = true;
                    self.recovery.add_missing(self.tree.horizon()..self.chunks, &self.held);
                }
                self.recovery.on_time(now, &self.held);
            }
            ReceiverPhase::Holding => self.on_holding(now),
            ReceiverPhase::Lingering if now >= self.since + self.linger() => self.close(),
            ReceiverPhase::Waiting | ReceiverPhase::Lingering | ReceiverPhase::Closed => {}
        }
    }

    fn on_holding(&mut self, now: Time) {
        let next = self.me + 1;
        let stalled = now >= self.since + self.spec.timers.stall;
        let unneeded = next >= self.spec.chain.len() || self.reporter.is_settled(next);
        if (unneeded && self.reporter.is_settled(self.me) || stalled) && !self.released {
            self.released = true;
            self.out.push(Output::Released);
        }
        if stalled || self.released && self.reporter.rack_is_settled() {
            self.phase = ReceiverPhase::Lingering;
            self.since = now;
        }
    }

    fn linger(&self) -> Duration {
        ((self.recovery.rtt().rto() + self.spec.ack_delay()) * LINGER_RTOS).min(self.spec.timers.stall)
    }

    fn fail(&mut self, error: StreamError) {
        self.out.push(Output::Failed(error));
        self.close();
    }

    fn close(&mut self) {
        self.phase = ReceiverPhase::Closed;
        self.out.push(Output::Closed);
    }

    /// Returns the next packet to send.
    fn transmit(&mut self, now: Time) -> Option<Output> {
        let spec = &self.spec;
        if let Some(next) = self.retransmits.next(|chunk| spec.parts(chunk)).filter(|_| !self.released) {
            self.stats.served += 1;
            let Retransmission { chunk, echo, via, part, .. } = next;
            let packet = self.out.packet(PacketBody::Data { chunk, echo, via, part });
            let payload = self.spec.part_range(chunk, part);
            return Some(Output::Transmit { to: next.to, packet, payload });
        }
        let (position, body) = if let Some(report) = self.reporter.take(now, self.recovery.rtt().rto()) {
            report
        } else if self.phase == ReceiverPhase::Receiving {
            let request = self.recovery.next_nak(now)?;
            self.stats.naks += 1;
            let (serial, chunks) = (request.serial, request.chunks);
            let (forward_live, in_parts) = (self.forward_live, self.recovery.is_in_parts());
            (request.position, PacketBody::Nak { serial, forward_live, in_parts, chunks })
        } else {
            return None;
        };
        let to = PacketTarget::Node(self.spec.chain.node(position));
        Some(Output::Transmit { to, packet: self.out.packet(body), payload: 0..0 })
    }

    fn deadline(&mut self) -> Option<Time> {
        let timers = self.spec.timers;
        let own = match self.phase {
            ReceiverPhase::Waiting => Some(self.since + timers.start),
            ReceiverPhase::Receiving => {
                let stall = Some(self.since + timers.stall);
                earliest(earliest(stall, self.silent_at()), self.recovery.deadline())
            }
            ReceiverPhase::Holding => Some(self.since + timers.stall),
            ReceiverPhase::Lingering => Some(self.since + self.linger()),
            ReceiverPhase::Closed => return None,
        };
        earliest(own, self.reporter.deadline())
    }
}

impl Machine for Receiver {
    type Input<'a> = Input<'a>;
    type Output = Output;

    fn handle(&mut self, now: Time, input: Input<'_>) {
        match input {
            Input::Packet { packet, payload } => self.on_packet(now, packet, payload),
            Input::Proceed => {}
            Input::LateJoin => {
                self.begin(now);
                (self.tree_silent, self.is_late) = (true, true);
                self.recovery.add_missing(0..self.chunks, &self.held);
            }
            Input::Ceiling(_) => {}
        }
    }

    fn poll(&mut self, now: Time) -> Poll<Output> {
        if self.out.is_empty() {
            self.on_time(now);
        }
        if let Some(output) = self.out.pop() {
            return Poll::Output(output);
        }
        if self.phase == ReceiverPhase::Closed {
            return Poll::Idle(None);
        }
        match self.transmit(now) {
            Some(output) => Poll::Output(output),
            None => Poll::Idle(self.deadline()),
        }
    }
}
