//! The tree along which receivers acknowledge (compare RMTP, Paul et al., IEEE JSAC 1997, and the
//! tree-based ACKs of RFC 3048). Members of a rack report to its head, the first node of the rack
//! in the chain, which reports for all of them to the source. The source settles the reports that
//! it received. Unsettled reports are repeated, and bypass a head that does not answer.

use crate::feedback::rounds::RoundFeedback;
use crate::intervals::IntervalSet;
use crate::packet::{MAX_RANGES, PacketBody};
use crate::rtt::backoff;
use crate::spec::Chain;
use crate::timeouts::ACK_PARENT_TRIES;
use cool_machine::{Duration, Time};
use core::ops::Range;
use std::sync::Arc;

/// Returns ranges of positions as a packet holds them, cut to the number that fits.
pub(crate) fn positions(set: impl Iterator<Item = Range<u32>>) -> Vec<Range<u16>> {
    set.take(MAX_RANGES).map(|range| range.start as u16..range.end as u16).collect()
}

/// A receiver as a node of this tree: it reports for itself or, as a head, for its rack.
#[derive(Debug)]
pub(crate) struct AckTreeNode {
    chain: Arc<Chain>,
    me: u16,
    /// The position that receives the reports: the head of the rack, or the source.
    ack_parent: u16,
    alive: IntervalSet,
    complete: IntervalSet,
    settled: IntervalSet,
    /// Positions that have reported the latest round.
    reported: IntervalSet,
    rounds: u32,
    feedback: RoundFeedback,
    due: Option<Time>,
    /// Reports sent since the last packet from the ACK parent arrived.
    unanswered: u32,
    /// Reports of completion that were sent.
    repeats: u32,
    ack_delay: Duration,
}

impl AckTreeNode {
    /// Returns the node at the position `me`, which sends reports at multiples of `ack_delay`.
    pub(crate) fn new(chain: Arc<Chain>, me: u16, ack_delay: Duration) -> AckTreeNode {
        let head = chain.head(me);
        AckTreeNode {
            ack_parent: if head == me { 0 } else { head },
            chain,
            me,
            alive: IntervalSet::default(),
            complete: IntervalSet::default(),
            settled: IntervalSet::default(),
            reported: IntervalSet::default(),
            rounds: 0,
            feedback: RoundFeedback::NONE,
            due: None,
            unanswered: 0,
            repeats: 0,
            ack_delay,
        }
    }

    /// Records that `rounds` rounds have passed over the multicast tree at this node.
    pub(crate) fn on_round(&mut self, now: Time, rounds: u32, feedback: RoundFeedback, rto: Duration) {
        self.merge_round(rounds, feedback);
        self.schedule_report(now, self.me, false, rto);
    }

    /// Records that this node has completed.
    pub(crate) fn on_complete(&mut self, now: Time, rto: Duration) {
        self.complete.insert(one(self.me));
        self.schedule_report(now, self.me, true, rto);
    }

    /// Records a report from a member of the rack. Returns whether the report repeats an earlier
    /// one and must be answered.
    pub(crate) fn on_member(
        &mut self,
        now: Time,
        from: u16,
        (rounds, feedback): (u32, RoundFeedback),
        (alive, complete): (&[Range<u16>], &[Range<u16>]),
        rto: Duration,
    ) -> bool {
        let rack = self.rack();
        for range in alive {
            self.alive.insert(clip(range, &rack));
        }
        let mut new = 0;
        for range in complete {
            new += self.complete.insert(clip(range, &rack));
        }
        if new == 0 && !complete.is_empty() {
            return true;
        }
        self.merge_round(rounds, feedback);
        self.schedule_report(now, from, new > 0, rto);
        false
    }

    /// Records positions for which the source needs no further reports.
    pub(crate) fn on_settled(&mut self, positions: &[Range<u16>]) {
        for range in positions {
            self.settled.insert(u32::from(range.start)..u32::from(range.end));
        }
    }

    /// Records a packet from a position, which may be the ACK parent.
    pub(crate) fn on_contact(&mut self, position: u16) {
        if position == self.ack_parent {
            self.unanswered = 0;
        }
    }

    /// Handles a poll of the source for completion.
    pub(crate) fn on_poll(&mut self, now: Time) {
        if self.complete.contains(u32::from(self.me)) && !self.is_settled(self.me) {
            self.due = Some(now);
        }
    }

    /// Returns whether the source knows that a position has completed.
    pub(crate) fn is_settled(&self, position: u16) -> bool {
        self.settled.contains(u32::from(position))
    }

    /// Returns whether all reports of the rack have arrived and are settled.
    pub(crate) fn rack_is_settled(&self) -> bool {
        self.chain.head(self.me) != self.me || self.settled.gaps(self.rack()).next().is_none()
    }

    /// Returns whether everything is settled that this node must know before it may close: itself
    /// and the next node, or, for a head, its rack and the next node.
    fn knows_enough(&self) -> bool {
        let last = if self.chain.head(self.me) == self.me { self.rack().end } else { u32::from(self.me) + 1 };
        let last = last.min(u32::from(self.chain.len()) - 1);
        self.settled.gaps(u32::from(self.me)..last + 1).next().is_none()
    }

    /// Returns the answer to a member that repeated its report.
    pub(crate) fn settled_for(&self, member: u16) -> PacketBody {
        let near = u32::from(member)..u32::from(member) + 2;
        PacketBody::Settled { positions: positions(self.settled.overlaps(near)) }
    }

    /// Returns when the next report is due.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.due
    }

    /// Returns the report that is due, and the position to which it must be sent.
    pub(crate) fn take(&mut self, now: Time, rto: Duration) -> Option<(u16, PacketBody)> {
        if self.due? > now {
            return None;
        }
        let mut open: Vec<Range<u32>> = self.complete.ranges().flat_map(|r| self.settled.gaps(r)).collect();
        if open.is_empty() && self.complete.contains(u32::from(self.me)) && !self.knows_enough() {
            // A repeated report is answered with all that has been settled since.
            open.push(one(self.me));
        }
        if open.is_empty() {
            self.due = None;
            if self.alive.is_empty() && self.feedback == RoundFeedback::NONE {
                return None;
            }
        } else {
            if self.unanswered >= ACK_PARENT_TRIES && self.ack_parent != 0 {
                (self.ack_parent, self.unanswered) = (0, 0);
            }
            // The report may wait for an ACK delay on its way, and so may the answer.
            self.due = Some(now + 3 * self.ack_delay + backoff(2 * rto, self.repeats));
            self.unanswered += 1;
            self.repeats += 1;
        }
        self.alive.insert(one(self.me));
        let alive = core::mem::take(&mut self.alive);
        let body = PacketBody::Report {
            rounds: self.rounds,
            loss: self.feedback.loss,
            spacing: self.feedback.spacing,
            delay: self.feedback.delay,
            echo: 0,
            alive: positions(alive.ranges()),
            complete: positions(open.into_iter()),
        };
        self.feedback = RoundFeedback::NONE;
        Some((self.ack_parent, body))
    }

    /// Returns the answer to a poll that the source sent to this node alone.
    pub(crate) fn answer(&self, echo: u16) -> PacketBody {
        let me = one(self.me);
        let complete = positions(self.complete.overlaps(me.clone()));
        PacketBody::Report {
            rounds: 0,
            loss: RoundFeedback::NONE.loss,
            spacing: 0,
            delay: 0,
            echo,
            alive: positions([me].into_iter()),
            complete,
        }
    }

    fn rack(&self) -> Range<u32> {
        u32::from(self.me)..u32::from(self.chain.rack_end(self.me))
    }

    fn merge_round(&mut self, rounds: u32, feedback: RoundFeedback) {
        if rounds > self.rounds {
            self.reported = IntervalSet::default();
            self.rounds = rounds;
        }
        self.feedback = self.feedback.worst(feedback);
    }

    /// Schedules the next report. A head first waits until the other nodes of its rack have
    /// reported the same progress, for at most one retransmission timeout plus the ACK delay.
    fn schedule_report(&mut self, now: Time, from: u16, completed: bool, rto: Duration) {
        self.reported.insert(one(from));
        let has_reported = |p| self.complete.contains(p) || !completed && self.reported.contains(p);
        let all = self.chain.head(self.me) != self.me || self.rack().all(has_reported);
        let wait = now + rto + self.ack_delay;
        let due = if all { now } else { self.due.map_or(wait, |due| due.min(wait)) };
        self.due = Some(due.round_up(self.ack_delay));
    }
}

fn one(position: u16) -> Range<u32> {
    u32::from(position)..u32::from(position) + 1
}

fn clip(range: &Range<u16>, rack: &Range<u32>) -> Range<u32> {
    u32::from(range.start).max(rack.start)..u32::from(range.end).min(rack.end)
}
