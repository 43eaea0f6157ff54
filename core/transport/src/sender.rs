//! The source of a stream: multicasts the message, retransmits chunks on NAKs, and keeps the
//! message until all receivers have it.

use crate::congestion::queueing_delay;
use crate::congestion::rate_control::{RateControl, RateSample};
use crate::congestion::token_bucket::{TokenBucket, time_of};
use crate::feedback::receiver_set::{PollTimer, ReceiverSet};
use crate::feedback::rounds::{FeedbackRounds, RoundFeedback};
use crate::inputs_outputs::{Input, Output, PacketTarget, StreamError, StreamOutbox};
use crate::intervals::IntervalSet;
use crate::packet::{Packet, PacketBody, Via};
use crate::repair::retransmit_queue::{Retransmission, RetransmitQueue};
use crate::rtt::Rtt;
use crate::spec::{SpecError, StreamSpec};
use crate::stats::StreamStats;
use crate::timeouts::{DEAD_ROUNDS, DEAD_RTOS};
use cool_machine::{Duration, Machine, Poll, Time, earliest};

/// The source of a stream: multicasts the message, retransmits chunks on NAKs, and keeps the
/// message until all receivers have it.
#[derive(Debug)]
pub struct Sender {
    spec: StreamSpec,
    chunks: u32,
    /// The chunks that may be retransmitted: those that have been multicast, or all if the stream
    /// has no tree.
    held: IntervalSet,
    next: u32,
    tree: bool,
    rounds: FeedbackRounds,
    rate: RateControl,
    bucket: TokenBucket,
    retransmits: RetransmitQueue,
    receivers: ReceiverSet,
    polls: PollTimer,
    rtt: Rtt,
    /// When a receiver last reported a new round.
    last_report: Time,
    /// Whether the node that sent the latest NAK does not receive the multicast.
    requester_off_tree: bool,
    /// When the last chunk was multicast; `None` again once a receiver has reported completion.
    sent_all: Option<Time>,
    /// Whether the end of the stream was announced over the tree.
    end_announced: bool,
    out: StreamOutbox,
    phase: SenderPhase,
    /// When the phase began. For `Gathering`, when [`Input::Proceed`] arrived, if that was later.
    since: Time,
    stats: StreamStats,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SenderPhase {
    /// Waits until the receivers are ready.
    Gathering,
    Sending,
    /// All receivers have completed, or the stream has stalled. The receivers are about to be
    /// notified.
    Settling,
    Closed,
}

impl Sender {
    /// Opens the stream. The message must be in its buffer.
    ///
    /// # Errors
    /// Returns an error if the specification contradicts itself.
    pub fn new(now: Time, spec: StreamSpec) -> Result<Sender, SpecError> {
        let chunks = spec.check()?;
        let rounds = FeedbackRounds::new(&spec.chain);
        let rate = RateControl::new(spec.rate, spec.frame(), rounds.full_chunks());
        let rtt = Rtt::new(spec.timers.initial_rto);
        let mut sender = Sender {
            chunks,
            held: IntervalSet::default(),
            next: 0,
            tree: spec.multicast,
            rounds,
            bucket: TokenBucket::new(now, spec.rate.ceiling.or(spec.multicast.then(|| rate.rate_for(0)))),
            rate,
            retransmits: RetransmitQueue::default(),
            receivers: ReceiverSet::new(now, spec.chain.clone()),
            polls: PollTimer::new(now, 2 * (rtt.rto() + spec.ack_delay())),
            rtt,
            last_report: now,
            requester_off_tree: false,
            sent_all: None,
            end_announced: false,
            out: StreamOutbox::new(spec.id, spec.id.source, spec.digest),
            phase: SenderPhase::Gathering,
            since: now,
            stats: StreamStats::default(),
            spec,
        };
        if !sender.waits_for_receivers() && !sender.spec.on_hold {
            sender.begin(now);
        } else if sender.waits_for_receivers() {
            let everyone = sender.receivers.not_ready();
            sender.announce(now, &everyone, true);
        }
        sender.conclude(now);
        Ok(sender)
    }

    /// Returns the current retransmission timeout, for [`crate::StreamTimers::initial_rto`] of the
    /// next stream.
    pub fn retransmission_timeout(&self) -> Duration {
        self.rtt.rto()
    }

    /// Returns the answer of a closed stream's source to a late packet of it, or `None` if the
    /// packet needs none. A receiver that missed the settled packet repeats its report. A closed
    /// source is gone, so the caller, which keeps the list of closed streams, must send this
    /// answer.
    pub fn settled_reply(packet: &Packet) -> Option<Packet> {
        let PacketBody::Report { complete, .. } = &packet.body else { return None };
        let positions = vec![1..u16::MAX];
        let settled =
            Packet { from: packet.id.source, body: PacketBody::Settled { positions }, ..packet.clone() };
        (!complete.is_empty()).then_some(settled)
    }

    /// Returns the number of entries in all lists of chunks, requests and packets. This measures
    /// the memory that grows with losses.
    pub fn entries(&self) -> usize {
        self.held.range_count() + self.retransmits.entries() + self.rtt.entries() + self.out.len()
    }

    /// Returns the bytes per second that the source has found the path to carry, for
    /// [`crate::RateSpec::found`] of the next stream, or `None` without a report of any receiver.
    pub fn found_rate(&self) -> Option<u64> {
        self.rate.found()
    }

    /// Returns the counters and the current state of rate control.
    pub fn stats(&self) -> StreamStats {
        if !self.tree {
            return self.stats;
        }
        let (rate, queueing_delay, phase) = self.rate.state();
        StreamStats { rate, queueing_delay, phase, ..self.stats }
    }

    fn on_packet(&mut self, now: Time, packet: &Packet) {
        if self.phase == SenderPhase::Closed || !self.out.is_same_call(packet) {
            return;
        }
        let Some(from) = self.spec.chain.position(packet.from).filter(|from| *from != 0) else {
            self.stats.refused += 1;
            return;
        };
        match &packet.body {
            PacketBody::Nak { serial, forward_live, in_parts, chunks } => {
                self.receivers.on_contact(now, from);
                self.requester_off_tree = *forward_live;
                let known = chunks.iter().all(|range| range.end <= self.chunks);
                if !known {
                    self.stats.refused += 1;
                    return;
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
            PacketBody::Report { rounds, loss, spacing, delay, echo, alive, complete } => {
                let feedback = RoundFeedback { loss: *loss, spacing: *spacing, delay: *delay };
                self.rtt.on_echo(now, *echo);
                let new = self.receivers.on_report(now, alive, complete);
                // A report may have waited for others on its way, so it is a sample only if it took
                // less than a quarter of the RTO.
                if let Some(at) = self.sent_all.take_if(|_| new).filter(|at| now - *at < self.rtt.rto() / 4) {
                    self.rtt.sample(now - at);
                    self.polls = PollTimer::new(now, 2 * self.answer_timeout());
                }
                if !new && !complete.is_empty() {
                    self.out.send(PacketTarget::Node(packet.from), self.receivers.settled_for(from));
                }
                self.on_round(now, from, *rounds, feedback);
                self.conclude(now);
            }
            // A chunk that was retransmitted in the rack of the source needs no action here.
            PacketBody::Data { via: Via::Rack, .. } => {}
            _ => self.stats.refused += 1,
        }
    }

    fn on_round(&mut self, now: Time, from: u16, rounds: u32, feedback: RoundFeedback) {
        if rounds > self.rounds.round_of(self.next) {
            self.stats.refused += 1;
            return;
        }
        if rounds > self.receivers.rounds() {
            self.last_report = now;
        }
        let reported = self
            .receivers
            .on_round(now, from, (rounds, feedback), 4 * self.answer_timeout())
            .filter(|(_, feedback)| *feedback != RoundFeedback::NONE);
        if let Some((round, feedback)) = reported {
            let reported = RateSample {
                loss: feedback.loss,
                carried: self
                    .spec
                    .frame()
                    .saturating_mul(1_000_000_000)
                    .checked_div(u64::from(feedback.spacing)),
                queue: queueing_delay::units(feedback.delay),
            };
            self.rate.on_round(now, self.rounds.chunks(round), self.next, reported, self.rtt.smoothed());
            self.meter(now);
        }
    }

    /// Applies the current rate to the token bucket. Without a tree only the ceiling applies,
    /// because NAKs arrive no faster than they are answered.
    fn meter(&mut self, now: Time) {
        let rate = if self.tree { Some(self.rate.rate_for(self.next)) } else { self.spec.rate.ceiling };
        self.bucket.set_rate(now, rate);
    }

    fn begin(&mut self, now: Time) {
        self.phase = SenderPhase::Sending;
        (self.since, self.last_report) = (now, now);
        self.polls = PollTimer::new(now, self.quiet_timeout());
        if !self.tree {
            self.held.insert(0..self.chunks);
            let everyone: Vec<u16> = (1..self.spec.chain.len()).collect();
            self.announce(now, &everyone, false);
        }
    }

    /// Sends an announcement of the stream's progress to these receivers.
    fn announce(&mut self, now: Time, positions: &[u16], answer: bool) {
        let serial = if answer { self.rtt.next_serial(now) } else { 0 };
        let begun = self.phase != SenderPhase::Gathering;
        let body = PacketBody::Announce { sent: self.next, serial, begun, answer };
        if self.tree && positions.len() + 1 == usize::from(self.spec.chain.len()) && positions.len() > 1 {
            self.out.send(PacketTarget::Tree, body);
            return;
        }
        for position in positions {
            self.out.send(PacketTarget::Node(self.spec.chain.node(*position)), body.clone());
        }
    }

    /// Returns how long a node may take to answer: the retransmission timeout plus the ACK delay.
    fn answer_timeout(&self) -> Duration {
        self.rtt.rto() + self.spec.ack_delay()
    }

    /// Returns how long a receiver may send nothing before it is polled. Receivers report at the
    /// end of each round.
    fn quiet_timeout(&self) -> Duration {
        let round = self.rounds.chunks(self.rounds.round_of(self.next)).len() as u64;
        let rounds = if self.next < self.chunks { 3 } else { 0 };
        (4 * self.answer_timeout())
            .max(time_of(rounds * round * self.spec.frame(), self.rate.rate_for(self.next)))
    }

    fn on_time(&mut self, now: Time) {
        let timers = self.spec.timers;
        match self.phase {
            SenderPhase::Gathering if !self.spec.on_hold && self.is_gathered(now) => self.begin(now),
            SenderPhase::Gathering if now >= self.polls.at() => {
                let missing = self.receivers.not_ready();
                self.announce(now, &missing, true);
                self.polls.on_poll(now, 2 * self.answer_timeout());
            }
            SenderPhase::Sending if now >= self.receivers.news().max(self.since) + timers.stall => {
                let nodes = self.receivers.incomplete();
                self.out.push(Output::Failed(StreamError::Incomplete { nodes, waited: timers.stall }));
                self.finish(now);
            }
            SenderPhase::Sending => {
                self.give_up_dead_tree(now);
                if now >= self.polls.at() {
                    self.look_for_silent(now);
                }
            }
            SenderPhase::Settling if now >= self.since.round_up(self.spec.ack_delay()) => self.settle(),
            SenderPhase::Gathering | SenderPhase::Settling | SenderPhase::Closed => {}
        }
    }

    /// Returns whether the source must wait for receivers to be ready before it sends.
    fn waits_for_receivers(&self) -> bool {
        self.spec.len > self.spec.eager && self.spec.chain.len() > 1
    }

    /// Returns whether the source may begin to send: all receivers are ready, or it has waited long
    /// enough.
    fn is_gathered(&self, now: Time) -> bool {
        !self.waits_for_receivers()
            || self.receivers.all_ready()
            || now >= self.since + self.spec.timers.ready
    }

    fn look_for_silent(&mut self, now: Time) {
        let quiet_timeout = self.quiet_timeout();
        if self.tree && self.next == self.chunks && !self.end_announced {
            // Announce the end over the tree first, because a receiver that missed only the last
            // chunks needs nothing else to request them.
            self.end_announced = true;
            self.out.send(
                PacketTarget::Tree,
                PacketBody::Announce { sent: self.next, serial: 0, begun: true, answer: false },
            );
        } else {
            let silent = self.receivers.silent_for(now, quiet_timeout);
            for position in &silent {
                self.announce(now, &[*position], true);
            }
        }
        self.polls.on_poll(now, quiet_timeout);
    }

    /// Stops using the tree if receivers are alive but the tree reaches none of them, or delivers
    /// too few chunks. The chain then delivers all chunks.
    fn give_up_dead_tree(&mut self, now: Time) {
        let sent = self.rounds.round_of(self.next);
        let reports_missing = sent >= self.receivers.rounds() + DEAD_ROUNDS
            && now - self.last_report > DEAD_RTOS * self.answer_timeout();
        if self.tree && (reports_missing && self.requester_off_tree || self.rate.is_useless()) {
            self.tree = false;
            self.held.insert(0..self.chunks);
            self.retransmits.on_all_chunks();
            self.meter(now);
        }
    }

    /// Ends the stream if all receivers have completed.
    fn conclude(&mut self, now: Time) {
        if self.receivers.all_complete()
            && matches!(self.phase, SenderPhase::Gathering | SenderPhase::Sending)
        {
            self.finish(now);
        }
    }

    fn finish(&mut self, now: Time) {
        (self.phase, self.since) = (SenderPhase::Settling, now);
        self.out.push(Output::Released);
    }

    fn settle(&mut self) {
        self.phase = SenderPhase::Closed;
        let settled = self.receivers.all_settled();
        match self.spec.chain.len() {
            1 => {}
            _ if self.tree => self.out.send(PacketTarget::Tree, settled),
            nodes => {
                for position in 1..nodes {
                    self.out.send(PacketTarget::Node(self.spec.chain.node(position)), settled.clone());
                }
            }
        }
        self.out.push(Output::Closed);
    }

    /// Returns the next data packet if the rate permits one now.
    fn transmit(&mut self, now: Time) -> Option<Output> {
        if self.send_at(now)? > now {
            return None;
        }
        let spec = &self.spec;
        let next = match self.retransmits.next(|chunk| spec.parts(chunk)) {
            Some(next) => {
                self.stats.served += 1;
                next
            }
            None => {
                let chunk = self.next;
                self.rate.on_sent(chunk);
                self.next += 1;
                self.stats.by_tree += 1;
                self.held.insert(chunk..chunk + 1);
                self.retransmits.on_chunk(chunk, |_| true);
                if self.next == self.chunks {
                    self.sent_all = Some(now);
                    self.polls = PollTimer::new(now, 2 * self.answer_timeout());
                }
                self.meter(now);
                let (to, echo, via) = (PacketTarget::Tree, queueing_delay::stamp(now), Via::Tree);
                Retransmission { to, chunk, echo, via, part: 0 }
            }
        };
        let Retransmission { to, chunk, echo, via, part } = next;
        let payload = self.spec.part_range(chunk, part);
        self.bucket.spend(payload.end - payload.start + self.spec.headers());
        let packet = self.out.packet(PacketBody::Data { chunk, echo, via, part });
        Some(Output::Transmit { to, packet, payload })
    }

    /// Returns when the next data packet may be sent, if there is one.
    fn send_at(&mut self, now: Time) -> Option<Time> {
        let more = self.retransmits.is_busy() || self.tree && self.next < self.chunks;
        (self.phase == SenderPhase::Sending && more).then(|| self.bucket.ready_at(now))
    }

    fn deadline(&mut self, now: Time) -> Option<Time> {
        let timers = self.spec.timers;
        let own = match self.phase {
            SenderPhase::Gathering => {
                earliest(Some(self.polls.at()), (!self.spec.on_hold).then(|| self.since + timers.ready))
            }
            SenderPhase::Sending => {
                let stall = self.receivers.news().max(self.since) + timers.stall;
                earliest(Some(self.polls.at()), Some(stall))
            }
            SenderPhase::Settling => Some(self.since.round_up(self.spec.ack_delay())),
            SenderPhase::Closed => None,
        };
        earliest(own, self.send_at(now))
    }
}

impl Machine for Sender {
    type Input<'a> = Input<'a>;
    type Output = Output;

    fn handle(&mut self, now: Time, input: Input<'_>) {
        match input {
            Input::Packet { packet, .. } => self.on_packet(now, packet),
            Input::Ceiling(ceiling) => {
                self.spec.rate.ceiling = ceiling;
                self.rate.set_ceiling(ceiling);
                self.meter(now);
            }
            Input::Proceed => {
                (self.spec.on_hold, self.since) = (false, now);
                // The packets that the rate permitted on hold must not leave as one burst, because
                // the stream before this one has used the link.
                self.bucket = TokenBucket::new(now, None);
                self.meter(now);
            }
            Input::LateJoin => {}
        }
    }

    fn poll(&mut self, now: Time) -> Poll<Output> {
        if self.out.is_empty() {
            self.on_time(now);
        }
        if let Some(output) = self.out.pop() {
            return Poll::Output(output);
        }
        match self.transmit(now) {
            Some(output) => Poll::Output(output),
            None => Poll::Idle(self.deadline(now)),
        }
    }
}
