//! The tree along which receivers acknowledge (as in RMTP, Paul et al., IEEE JSAC 1997, and the tree-based ACKs of RFC 3048):
//! members of a rack report to its head, the first of the rack in the chain, which reports for all of them to the source.
//! What the source has heard it settles; what is not settled is reported again, and past a head that does not answer.

use crate::feedback::rounds::RoundFeedback;
use crate::intervals::IntervalSet;
use crate::packet::{MAX_RANGES, PacketBody};
use crate::retry::ACK_PARENT_TRIES;
use crate::rtt::backoff;
use crate::spec::Chain;
use cool_machine::{Duration, Time};
use core::ops::Range;
use std::sync::Arc;

/// Ranges of positions as a packet holds them.
pub(crate) fn positions(set: impl Iterator<Item = Range<u32>>) -> Vec<Range<u16>> {
    set.take(MAX_RANGES).map(|range| range.start as u16..range.end as u16).collect()
}

/// The reporting side of a receiver.
#[derive(Debug)]
pub(crate) struct Reporter {
    chain: Arc<Chain>,
    me: u16,
    /// The position that is reported to: the head of the rack, or the source.
    ack_parent: u16,
    alive: IntervalSet,
    complete: IntervalSet,
    settled: IntervalSet,
    /// Positions of which news of the latest round is in.
    reported: IntervalSet,
    rounds: u32,
    feedback: RoundFeedback,
    due: Option<Time>,
    /// Reports since the parent was last heard.
    unanswered: u32,
    /// Reports of what is complete.
    repeats: u32,
    ack_delay: Duration,
}

impl Reporter {
    /// Reports at multiples of `ack_delay`.
    pub(crate) fn new(chain: Arc<Chain>, me: u16, ack_delay: Duration) -> Reporter {
        let head = chain.head(me);
        Reporter {
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

    /// `rounds` rounds have passed over the multicast tree here.
    pub(crate) fn on_round(&mut self, now: Time, rounds: u32, feedback: RoundFeedback, rto: Duration) {
        self.merge_round(rounds, feedback);
        self.schedule_report(now, self.me, false, rto);
    }

    /// The message is here in full.
    pub(crate) fn on_complete(&mut self, now: Time, rto: Duration) {
        self.complete.insert(one(self.me));
        self.schedule_report(now, self.me, true, rto);
    }

    /// A member of the rack reported here. Tells whether it needs an answer, having reported before.
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

    /// The source, or a head for it, needs to hear no more of these.
    pub(crate) fn on_settled(&mut self, positions: &[Range<u16>]) {
        for range in positions {
            self.settled.insert(u32::from(range.start)..u32::from(range.end));
        }
    }

    /// The parent was heard.
    pub(crate) fn on_contact(&mut self, position: u16) {
        if position == self.ack_parent {
            self.unanswered = 0;
        }
    }

    /// The source asks who is complete.
    pub(crate) fn on_poll(&mut self, now: Time) {
        if self.complete.contains(u32::from(self.me)) && !self.is_settled(self.me) {
            self.due = Some(now);
        }
    }

    /// Whether the source knows that a position is done.
    pub(crate) fn is_settled(&self, position: u16) -> bool {
        self.settled.contains(u32::from(position))
    }

    /// Whether nobody's report is missing or unsettled here.
    pub(crate) fn rack_is_settled(&self) -> bool {
        self.chain.head(self.me) != self.me || self.settled.gaps(self.rack()).next().is_none()
    }

    /// Whether all is settled that this node has to know of before it may go: that it and the next have
    /// everything, or its rack and the next if it is the head.
    fn knows_enough(&self) -> bool {
        let last = if self.chain.head(self.me) == self.me { self.rack().end } else { u32::from(self.me) + 1 };
        let last = last.min(u32::from(self.chain.len()) - 1);
        self.settled.gaps(u32::from(self.me)..last + 1).next().is_none()
    }

    /// What a member whose report came twice is to be told.
    pub(crate) fn settled_for(&self, member: u16) -> PacketBody {
        let near = u32::from(member)..u32::from(member) + 2;
        PacketBody::Settled { positions: positions(self.settled.overlaps(near)) }
    }

    /// When the next report is due.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.due
    }

    /// The report that is due, and the position that it goes to.
    pub(crate) fn take(&mut self, now: Time, rto: Duration) -> Option<(u16, PacketBody)> {
        if self.due? > now {
            return None;
        }
        let mut open: Vec<Range<u32>> = self.complete.ranges().flat_map(|r| self.settled.gaps(r)).collect();
        if open.is_empty() && self.complete.contains(u32::from(self.me)) && !self.knows_enough() {
            // What is told again is answered with what has been settled since.
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

    /// The answer to the source when it asks this node alone.
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

    /// A head waits for the others' news of the same, for one retry timer and until they may speak.
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
