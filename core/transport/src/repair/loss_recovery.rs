//! Loss recovery at a receiver: which missing chunks to request by NAKs, from which node, how many
//! at a time, and when to repeat a request.
//!
//! A missing chunk is first *due*, then *requested*. The node that receives the NAK (the
//! *upstream*) sends the chunk at once, or *confirms* the NAK and forwards the chunk when it
//! arrives. Requested and confirmed chunks become due again by timeouts, or when packets that the
//! upstream sent later have arrived, as in RACK (RFC 8985).

use super::upstream::Upstream;
use crate::congestion::window::CongestionWindow;
use crate::intervals::IntervalSet;
use crate::packet::{MAX_RANGES, Via};
use crate::rtt::Rtt;
use crate::spec::StreamTimers;
use crate::timeouts::{CONFIRMED_RTOS, REORDER_WINDOW_MIN, REORDER_WINDOW_MULT_MAX};
use cool_machine::{Duration, Time, earliest};
use core::ops::Range;
use std::collections::VecDeque;

/// Number of NAKs in a row without any chunk, at a node that is alive, after which long packets
/// count as lost because of their length. At a loss of 20 % in each direction, this happens to one
/// chunk in 500 by chance, and costs only some headers.
const FRUITLESS_MAX: u32 = 6;
/// The same number once a long packet has arrived along the chain. It is larger because bursts of
/// losses are then more likely than a path that has changed.
const FRUITLESS_LATER_MAX: u32 = 60;

/// A NAK in flight.
#[derive(Debug)]
struct InflightNak {
    at: Time,
    serial: u16,
    chunks: Range<u32>,
}

/// A NAK to be sent.
#[derive(Debug)]
pub(crate) struct NakRequest {
    pub(crate) position: u16,
    pub(crate) serial: u16,
    pub(crate) chunks: Vec<Range<u32>>,
}

/// The loss recovery of a receiver.
#[derive(Debug)]
pub(crate) struct LossRecovery {
    upstream: Upstream,
    due: IntervalSet,
    requested: IntervalSet,
    confirmed: IntervalSet,
    /// The NAKs in flight, oldest first. Chunks that have arrived since are still listed.
    inflight: VecDeque<InflightNak>,
    confirmed_log: VecDeque<(Time, Range<u32>)>,
    /// Gaps that become due when they are older than the reordering window.
    gaps: VecDeque<(Time, Range<u32>)>,
    /// The latest NAK that was answered, and when. Earlier NAKs must have been answered before that
    /// answer was sent.
    newest_answered: Option<(u16, Time)>,
    /// When the upstream last sent a chunk. While it sends, the requested chunks may be queued
    /// behind others.
    last_chunk: Time,
    /// One past the last chunk that was forwarded here.
    forwarded: u32,
    reorder_window_mult: u32,
    last_nak: Option<Time>,
    /// When the first of the NAKs expired after which no chunk has arrived, and their number.
    fruitless: Option<(Time, u32)>,
    in_parts: bool,
    /// Whether a long packet has arrived along the chain.
    has_long_packets: bool,
    rtt: Rtt,
    window: CongestionWindow,
}

impl LossRecovery {
    pub(crate) fn new(now: Time, me: u16, timers: &StreamTimers, chunk_bytes: u32) -> LossRecovery {
        LossRecovery {
            upstream: Upstream::new(me),
            due: IntervalSet::default(),
            requested: IntervalSet::default(),
            confirmed: IntervalSet::default(),
            inflight: VecDeque::new(),
            confirmed_log: VecDeque::new(),
            gaps: VecDeque::new(),
            newest_answered: None,
            last_chunk: now,
            forwarded: 0,
            reorder_window_mult: 1,
            last_nak: None,
            fruitless: None,
            in_parts: false,
            has_long_packets: false,
            rtt: Rtt::new(timers.initial_rto),
            window: CongestionWindow::new(now, chunk_bytes),
        }
    }

    pub(crate) fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// Returns the number of entries in its lists.
    pub(crate) fn entries(&self) -> usize {
        let sets = [&self.due, &self.requested, &self.confirmed].into_iter().map(IntervalSet::range_count);
        let logs = self.inflight.len() + self.confirmed_log.len() + self.gaps.len();
        sets.sum::<usize>() + logs + self.rtt.entries()
    }

    /// Lets NAKs request parts of chunks from now on.
    pub(crate) fn request_parts(&mut self) {
        self.in_parts = true;
    }

    /// Returns whether NAKs request parts of chunks.
    pub(crate) fn is_in_parts(&self) -> bool {
        self.in_parts
    }

    /// Records that a long packet has arrived along the chain, so that parts are not needed.
    pub(crate) fn on_long_packet(&mut self) {
        self.has_long_packets = true;
        self.in_parts = false;
    }

    /// Records a part of a chunk of which others are missing.
    pub(crate) fn on_part(&mut self, now: Time, position: u16) {
        self.fruitless = None;
        self.upstream.on_contact(now, position);
        if position == self.upstream.position() {
            self.last_chunk = now;
        }
    }

    /// Records that a NAK has expired. If parts do not arrive either, NAKs request whole chunks
    /// again, because agents of earlier releases ignore NAKs that request parts.
    fn on_expired(&mut self, now: Time) {
        let (since, number) = self.fruitless.map_or((now, 1), |(since, number)| (since, number + 1));
        self.fruitless = Some((since, number));
        let most = if self.has_long_packets { FRUITLESS_LATER_MAX } else { FRUITLESS_MAX };
        if number.is_multiple_of(most) && self.upstream.answered_since(since) {
            self.in_parts = (number / most) % 2 == 1;
        }
    }

    /// Returns the position that received the latest NAK.
    pub(crate) fn upstream(&self) -> u16 {
        self.upstream.position()
    }

    /// Records that these chunks were skipped. They may still arrive.
    pub(crate) fn on_gap(&mut self, now: Time, chunks: Range<u32>) {
        if !chunks.is_empty() {
            self.gaps.push_back((now, chunks));
        }
    }

    /// Records that those of `chunks` that are not in `held` will not arrive unless they are
    /// requested by a NAK.
    pub(crate) fn add_missing(&mut self, chunks: Range<u32>, held: &IntervalSet) {
        for gap in held.gaps(chunks) {
            let parts: Vec<Range<u32>> = self.requested.gaps(gap).collect();
            for part in parts {
                for part in self.confirmed.gaps(part) {
                    self.due.insert(part);
                }
            }
        }
    }

    /// Records that `chunks` may arrive over the tree after all, so that they need not be
    /// requested. Chunks that were already requested stay requested.
    pub(crate) fn remove_missing(&mut self, chunks: Range<u32>) {
        self.due.remove(chunks);
    }

    /// Records a chunk that arrived over the tree. If it had been requested, that NAK was too
    /// early.
    pub(crate) fn on_tree_chunk(&mut self, chunk: u32) {
        if self.requested.contains(chunk) {
            self.reorder_window_mult = (self.reorder_window_mult * 2).min(REORDER_WINDOW_MULT_MAX);
        }
        self.settle(chunk);
    }

    /// Records a chunk that arrived from a node nearer the source.
    pub(crate) fn on_chain_chunk(&mut self, now: Time, position: u16, chunk: u32, echo: u16, via: Via) {
        self.on_echo(now, position, echo);
        self.fruitless = None;
        if position == self.upstream.position() {
            self.last_chunk = now;
        }
        let full = self.outstanding() + self.window.size() / 4 >= self.window.size();
        if self.settle(chunk) {
            self.window.on_delivered(now, &self.rtt, full);
        }
        match via {
            Via::Answer if position == self.upstream.position() => self.record_answer(now, echo),
            Via::Forwarded | Via::Rack => {
                if let Some(first) = self.confirmed.first().filter(|_| chunk > self.forwarded) {
                    self.on_gap(now, first.max(self.forwarded)..chunk);
                }
                self.forwarded = self.forwarded.max(chunk + 1);
            }
            Via::Answer | Via::Tree => {}
        }
    }

    /// Records that a node nearer the source is alive. This answers no NAK.
    pub(crate) fn on_contact(&mut self, now: Time, position: u16) {
        self.upstream.on_contact(now, position);
    }

    /// Records that a node nearer the source confirmed the NAK of these chunks.
    pub(crate) fn on_nak_confirm(&mut self, now: Time, position: u16, echo: u16, chunks: &[Range<u32>]) {
        self.on_echo(now, position, echo);
        if position != self.upstream.position() || echo == 0 {
            return;
        }
        for range in chunks {
            let parts: Vec<Range<u32>> = self.requested.overlaps(range.clone()).collect();
            for part in parts {
                self.requested.remove(part.clone());
                self.confirmed.insert(part.clone());
                self.confirmed_log.push_back((now, part));
            }
        }
        self.record_answer(now, echo);
    }

    /// Handles all timeouts that have expired.
    pub(crate) fn on_time(&mut self, now: Time, held: &IntervalSet) {
        self.age_gaps(now, held);
        let mut has_expired = false;
        while let Some(at) = self.nak_deadline().filter(|at| *at <= now) {
            let Some(requested) = self.inflight.pop_front() else { break };
            let lost: Vec<Range<u32>> = self.requested.overlaps(requested.chunks).collect();
            for range in lost {
                self.requested.remove(range.clone());
                self.due.insert(range);
            }
            let timed_out = at >= self.times_out(requested.at);
            // The ranges of a NAK expire together.
            if timed_out && !std::mem::replace(&mut has_expired, true) {
                self.on_expired(now);
            }
            if !timed_out || self.upstream.answered_since(requested.at) {
                self.window.on_loss(now, &self.rtt);
            } else if self.upstream.on_silence(now, requested.at) {
                self.change_upstream();
                // If not even the source answers, long packets may be lost because of their length.
                if self.upstream.sweeps() > 0 && !self.has_long_packets {
                    self.in_parts = self.upstream.sweeps() % 2 == 1;
                }
            } else {
                self.window.on_silence();
            }
        }
        while let Some(_at) = self.confirmed_deadline().filter(|at| *at <= now) {
            let Some((_, chunks)) = self.confirmed_log.pop_front() else { break };
            let overdue: Vec<Range<u32>> = self.confirmed.overlaps(chunks).collect();
            for range in overdue {
                self.confirmed.remove(range.clone());
                self.due.insert(range);
            }
        }
    }

    /// Returns the NAK to send now, if any.
    pub(crate) fn next_nak(&mut self, now: Time) -> Option<NakRequest> {
        if self.next_nak_at()? > now {
            return None;
        }
        let (position, mut room) = match self.upstream.retries(now, self.rtt.rto()) {
            true => (self.upstream.predecessor(), 1),
            false => (self.upstream.position(), self.window.size() - self.outstanding()),
        };
        let mut chunks = Vec::new();
        for range in self.due.ranges().take(MAX_RANGES) {
            let end = range.end.min(range.start.saturating_add(room));
            room -= end - range.start;
            chunks.push(range.start..end);
            if room == 0 {
                break;
            }
        }
        let serial = self.rtt.next_serial(now);
        for range in &chunks {
            self.due.remove(range.clone());
            self.requested.insert(range.clone());
            self.inflight.push_back(InflightNak { at: now, serial, chunks: range.clone() });
        }
        self.last_nak = Some(now);
        Some(NakRequest { position, serial, chunks })
    }

    /// Returns when [`LossRecovery::on_time`] or [`LossRecovery::next_nak`] must be called next.
    pub(crate) fn deadline(&mut self) -> Option<Time> {
        let gap = self.gaps.front().map(|(at, _)| *at + self.reorder_window());
        let timers = earliest(self.nak_deadline(), self.confirmed_deadline());
        earliest(earliest(gap, timers), self.next_nak_at())
    }

    fn outstanding(&self) -> u32 {
        self.requested.len() + self.confirmed.len()
    }

    /// Returns when the next NAK may be sent. A NAK waits until the window has room for a quarter
    /// of its chunks, or for all due ones. A NAK for fewer chunks than that follows the previous
    /// NAK after a quarter of a round trip, so that several gaps share a NAK.
    fn next_nak_at(&self) -> Option<Time> {
        let room = self.window.size().checked_sub(self.outstanding())?;
        let worth = (self.window.size() / 4).max(1);
        if self.due.is_empty() || room < worth.min(self.due.len()) {
            return None;
        }
        let spacing = if self.due.len() < worth { self.rtt.smoothed() / 4 } else { Duration::ZERO };
        Some(self.last_nak.map_or(Time::ZERO, |last| last + spacing))
    }

    fn reorder_window(&self) -> Duration {
        ((self.rtt.shortest() / 4).max(REORDER_WINDOW_MIN) * self.reorder_window_mult).min(self.rtt.rto())
    }

    fn rto(&self) -> Duration {
        self.upstream.retry_after(self.rtt.rto())
    }

    /// Returns when a NAK sent at this time counts as unanswered.
    fn times_out(&self, requested: Time) -> Time {
        requested.max(self.last_chunk) + self.rto()
    }

    /// Drops completed NAKs from the front of the list. Returns when the oldest other NAK expires.
    fn nak_deadline(&mut self) -> Option<Time> {
        while let Some(front) = self.inflight.front() {
            if self.requested.overlaps(front.chunks.clone()).next().is_some() {
                let newest_answered =
                    self.newest_answered.filter(|(serial, _)| is_before(front.serial, *serial));
                let early = newest_answered.map(|(_, at)| at + self.reorder_window());
                return earliest(early, Some(self.times_out(front.at)));
            }
            self.inflight.pop_front();
        }
        None
    }

    fn confirmed_deadline(&mut self) -> Option<Time> {
        while let Some((at, chunks)) = self.confirmed_log.front() {
            if self.confirmed.overlaps(chunks.clone()).next().is_some() {
                return Some(*at + CONFIRMED_RTOS * self.rto());
            }
            self.confirmed_log.pop_front();
        }
        None
    }

    fn age_gaps(&mut self, now: Time, held: &IntervalSet) {
        while let Some((at, _)) = self.gaps.front() {
            if *at + self.reorder_window() > now {
                break;
            }
            let Some((_, chunks)) = self.gaps.pop_front() else { break };
            // A confirmed chunk in the gap must have been forwarded and lost, because it would be
            // here otherwise.
            self.confirmed.remove(chunks.clone());
            self.add_missing(chunks, held);
        }
    }

    /// Removes a chunk that arrived from all lists. Returns whether it had been requested.
    fn settle(&mut self, chunk: u32) -> bool {
        let it = chunk..chunk + 1;
        self.due.remove(it.clone());
        self.requested.remove(it.clone()) + self.confirmed.remove(it) > 0
    }

    fn record_answer(&mut self, now: Time, echo: u16) {
        if self.newest_answered.is_none_or(|(serial, _)| is_before(serial, echo)) {
            self.newest_answered = Some((echo, now));
        }
    }

    fn on_echo(&mut self, now: Time, position: u16, echo: u16) {
        self.rtt.on_echo(now, echo);
        self.upstream.on_contact(now, position);
    }

    fn change_upstream(&mut self) {
        for range in self.requested.ranges().chain(self.confirmed.ranges()) {
            self.due.insert(range);
        }
        self.requested = IntervalSet::default();
        self.confirmed = IntervalSet::default();
        self.inflight.clear();
        self.confirmed_log.clear();
        self.newest_answered = None;
    }
}

/// Returns whether serial `a` was assigned before `b`, across wrapping.
fn is_before(a: u16, b: u16) -> bool {
    (b.wrapping_sub(a) as i16) > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn no_nak_is_repeated_while_the_upstream_sends_older_chunks() {
        let at = |ms: u32| Time::ZERO + ms * MS;
        let timers = StreamTimers { initial_rto: 4 * MS, ..StreamTimers::default() };
        let mut recovery = LossRecovery::new(at(0), 1, &timers, 1424);
        let held = IntervalSet::default();
        recovery.add_missing(0..8, &held);
        assert_eq!(recovery.next_nak(at(0)).unwrap().chunks, [0..8]);
        for ms in 1..20 {
            recovery.on_chain_chunk(at(ms), 0, 100 + ms, 0, Via::Forwarded);
            recovery.on_time(at(ms), &held);
            assert!(recovery.next_nak(at(ms)).is_none(), "at {ms} ms");
        }
        let due = recovery.deadline().unwrap();
        assert_eq!(due, at(19) + recovery.rtt().rto());
        recovery.on_time(due, &held);
        assert_eq!(recovery.next_nak(due).unwrap().chunks, [0..8]);
    }
}
