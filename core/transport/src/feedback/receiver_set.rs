//! The source's receiver set: which receivers are alive, ready and complete.

use crate::feedback::ack_tree::positions;
use crate::feedback::rounds::RoundFeedback;
use crate::intervals::IntervalSet;
use crate::packet::PacketBody;
use crate::spec::Chain;
use crate::timeouts::REPORT_TIMEOUT;
use cool_machine::{Duration, Time};
use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Most rounds that wait for reports.
const OPEN_ROUNDS_MAX: usize = 64;

/// A round that not all receivers have reported.
#[derive(Debug)]
struct OpenRound {
    round: u32,
    /// The worst feedback on the round so far.
    feedback: RoundFeedback,
    /// When the round was first reported.
    since: Time,
}

/// The source's receiver set.
#[derive(Debug)]
pub(crate) struct ReceiverSet {
    chain: Arc<Chain>,
    last_contact: Vec<Option<Time>>,
    ready: IntervalSet,
    complete: IntervalSet,
    /// When the last packet from an incomplete receiver arrived.
    news: Time,
    /// The rounds that not all have reported, in order.
    open: VecDeque<OpenRound>,
    /// The positions that report to the source, which are its own rack and the heads of the others,
    /// with the number of rounds in their last report.
    reporters: BTreeMap<u16, u32>,
}

impl ReceiverSet {
    pub(crate) fn new(now: Time, chain: Arc<Chain>) -> ReceiverSet {
        ReceiverSet {
            last_contact: vec![None; usize::from(chain.len())],
            ready: IntervalSet::default(),
            complete: IntervalSet::default(),
            news: now,
            open: VecDeque::new(),
            reporters: (1..chain.len())
                .filter(|p| chain.head(*p) == 0 || chain.head(*p) == *p)
                .map(|position| (position, 0))
                .collect(),
            chain,
        }
    }

    /// Records a packet from a receiver.
    pub(crate) fn on_contact(&mut self, now: Time, position: u16) {
        self.last_contact[usize::from(position)] = Some(now);
        self.ready.insert(u32::from(position)..u32::from(position) + 1);
        if !self.complete.contains(u32::from(position)) {
            self.news = now;
        }
    }

    /// Records a report from one receiver about several. Returns whether any of them is newly
    /// complete.
    pub(crate) fn on_report(&mut self, now: Time, alive: &[Range<u16>], complete: &[Range<u16>]) -> bool {
        let last = self.chain.len();
        for position in alive.iter().flat_map(|range| range.start.max(1)..range.end.min(last)) {
            self.on_contact(now, position);
        }
        let mut new = 0;
        for range in complete {
            new += self.complete.insert(u32::from(range.start.max(1))..u32::from(range.end.min(last)));
        }
        if new > 0 {
            self.news = now;
        }
        new > 0
    }

    /// Records the feedback of one reporter on the last of the rounds that have passed. Returns the
    /// latest round on which all reporters have reported, or all for which the source still waits.
    /// The source waits until `timeout` for reporters that have never reported.
    pub(crate) fn on_round(
        &mut self,
        now: Time,
        from: u16,
        (rounds, feedback): (u32, RoundFeedback),
        timeout: Duration,
    ) -> Option<(u32, RoundFeedback)> {
        let round = rounds.checked_sub(1)?;
        // A member that bypasses its head reports here too, but is not one of the reporters.
        let reported = self.reporters.get_mut(&from)?;
        let before = std::mem::replace(reported, rounds.max(*reported));
        if before < rounds && self.open.back().is_none_or(|last| last.round < round) {
            self.open.push_back(OpenRound { round, feedback: RoundFeedback::NONE, since: now });
        }
        // A reporter may report in parts, and its feedback on earlier rounds may have been lost.
        for reported in self
            .open
            .iter_mut()
            .filter(|reported| (before.saturating_sub(1)..rounds).contains(&reported.round))
        {
            reported.feedback = reported.feedback.worst(feedback);
        }
        let mut passed: Option<(u32, RoundFeedback)> = None;
        while let Some(first) = self.open.front() {
            let waits = |rounds: u32| now - first.since < if rounds > 0 { REPORT_TIMEOUT } else { timeout };
            let missing = self.reporters.values().any(|rounds| *rounds <= first.round && waits(*rounds));
            if missing && self.open.len() <= OPEN_ROUNDS_MAX {
                break;
            }
            let feedback = passed.map_or(first.feedback, |(_, feedback)| feedback.worst(first.feedback));
            passed = Some((first.round, feedback));
            self.open.pop_front();
        }
        passed
    }

    /// Returns the largest number of rounds in any report.
    pub(crate) fn rounds(&self) -> u32 {
        self.reporters.values().max().copied().unwrap_or(0)
    }

    /// Returns when the last packet from an incomplete receiver arrived.
    pub(crate) fn news(&self) -> Time {
        self.news
    }

    /// Returns whether a packet from every receiver has arrived.
    pub(crate) fn all_ready(&self) -> bool {
        self.ready.len() == self.receivers()
    }

    /// Returns whether every receiver has completed.
    pub(crate) fn all_complete(&self) -> bool {
        self.complete.len() == self.receivers()
    }

    /// Returns the incomplete positions from which no packet has arrived for `timeout`.
    pub(crate) fn silent_for(&self, now: Time, timeout: Duration) -> Vec<u16> {
        let missing = self.complete.gaps(1..u32::from(self.chain.len())).flatten().map(|p| p as u16);
        missing.filter(|p| self.last_contact[usize::from(*p)].is_none_or(|at| now - at >= timeout)).collect()
    }

    /// Returns the positions from which no packet has ever arrived.
    pub(crate) fn not_ready(&self) -> Vec<u16> {
        self.ready.gaps(1..u32::from(self.chain.len())).flatten().map(|p| p as u16).collect()
    }

    /// Returns the nodes that have not completed.
    pub(crate) fn incomplete(&self) -> Vec<u16> {
        let missing = self.complete.gaps(1..u32::from(self.chain.len())).flatten();
        missing.map(|position| self.chain.node(position as u16)).collect()
    }

    /// Returns the settled packet for a receiver that reported: its own state and that of the next
    /// position, or that of its rack if it is the head.
    pub(crate) fn settled_for(&self, position: u16) -> PacketBody {
        let from = u32::from(position);
        let to =
            if self.chain.head(position) == position { self.chain.rack_end(position) } else { position + 1 };
        PacketBody::Settled { positions: positions(self.complete.overlaps(from..u32::from(to) + 1)) }
    }

    /// Returns the settled packet that ends the stream. It covers receivers that did not complete
    /// too.
    pub(crate) fn all_settled(&self) -> PacketBody {
        PacketBody::Settled { positions: vec![1..self.chain.len()] }
    }

    fn receivers(&self) -> u32 {
        u32::from(self.chain.len()) - 1
    }
}

/// The time at which the source next polls silent receivers.
#[derive(Debug)]
pub(crate) struct PollTimer {
    at: Time,
    times: u32,
}

impl PollTimer {
    /// Returns a timer for the first poll after `wait`.
    pub(crate) fn new(now: Time, wait: Duration) -> PollTimer {
        PollTimer { at: now + wait, times: 0 }
    }

    pub(crate) fn at(&self) -> Time {
        self.at
    }

    /// Records a poll now, and schedules the next after a growing multiple of `wait`.
    pub(crate) fn on_poll(&mut self, now: Time, wait: Duration) {
        self.at = now + crate::rtt::backoff(wait, self.times);
        self.times += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Hop;

    const MS: Duration = Duration::from_millis(1);

    /// The rack of the source contains position 1; position 2 is the head of the other rack.
    fn receivers() -> ReceiverSet {
        let hop = |(node, rack)| Hop { node, rack };
        let chain = Chain::new([(0, 0), (1, 0), (2, 1), (3, 1)].into_iter().map(hop).collect()).unwrap();
        ReceiverSet::new(Time::ZERO, chain)
    }

    fn at(ms: u32) -> Time {
        Time::ZERO + ms * MS
    }

    fn lost(loss: u16) -> RoundFeedback {
        RoundFeedback { loss, spacing: 1, delay: 0 }
    }

    #[test]
    fn a_round_waits_for_the_slower_rack() {
        let mut receivers = receivers();
        assert_eq!(receivers.on_round(at(1), 1, (1, lost(0)), MS), None);
        assert_eq!(receivers.on_round(at(1), 2, (1, lost(7)), MS), Some((0, lost(7))));
        assert_eq!(receivers.on_round(at(40), 1, (2, lost(1)), MS), None);
        assert_eq!(receivers.on_round(at(80), 1, (3, lost(0)), MS), None);
        assert_eq!(receivers.on_round(at(90), 2, (2, lost(9)), MS), Some((1, lost(9))));
        assert_eq!(receivers.on_round(at(99), 2, (3, lost(2)), MS), Some((2, lost(2))));
        assert_eq!(receivers.rounds(), 3);
    }

    #[test]
    fn the_next_report_makes_up_for_a_lost_one() {
        let mut receivers = receivers();
        receivers.on_round(at(1), 1, (1, lost(0)), MS);
        receivers.on_round(at(2), 1, (2, lost(0)), MS);
        assert_eq!(receivers.on_round(at(2), 2, (2, lost(5)), MS), Some((1, lost(5))));
    }

    #[test]
    fn a_round_waits_longer_for_receivers_that_reported_before() {
        let mut receivers = receivers();
        assert_eq!(receivers.on_round(at(1), 1, (1, lost(0)), 10 * MS), None);
        assert_eq!(receivers.on_round(at(12), 1, (2, lost(0)), 10 * MS), Some((0, lost(0))));
        assert_eq!(receivers.on_round(at(13), 2, (2, lost(0)), 10 * MS), Some((1, lost(0))));
        assert_eq!(receivers.on_round(at(40), 1, (3, lost(0)), 10 * MS), None);
        assert_eq!(receivers.on_round(at(300), 1, (4, lost(0)), 10 * MS), Some((2, lost(0))));
    }

    #[test]
    fn rounds_reported_by_one_receiver_do_not_pile_up() {
        let mut receivers = receivers();
        for rounds in 1..10_000 {
            receivers.on_round(at(0), 1, (rounds, lost(0)), MS);
        }
        assert!(receivers.open.len() <= OPEN_ROUNDS_MAX, "{}", receivers.open.len());
    }
}
