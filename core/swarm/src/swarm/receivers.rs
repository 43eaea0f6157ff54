//! Whom a member offers its next block: who stands behind it in the ring among those that are about as fast. A slow receiver would
//! hold up a fast sender's link, and a slow sender a fast receiver's. Others get what is left: when nobody as fast takes anything,
//! and when they ask.

use super::Swarm;
use crate::paces::Pace;
use crate::peers::Peers;
use crate::rings::Member;
use cool_machine::Time;
use rand::RngExt;

/// After this many refusals in a row the next offer goes to the last receiver, which is likely to be free.
const REFUSALS_BEFORE_LAST: u32 = 4;
/// Successors that are passed over, because they want nothing, before a pause is made.
const PASSED_OVER: u32 = 64;

impl Swarm {
    /// This member's pace; a source, to which nothing comes, counts as one of the fastest.
    fn own_pace(&self) -> Pace {
        let own = self.paces.pace();
        if own == Pace::default() { self.peers.fastest() } else { own }
    }

    /// The pace that receivers in a lane are to have; any, if nobody there that is as fast takes anything.
    fn pace_sought(&self, now: Time, far: bool) -> Pace {
        let own = self.own_pace();
        let takes = |member| self.is_far(member) == far && self.peers.takes(now, member);
        if self.peers.any_like(own, takes) { own } else { Pace::default() }
    }

    /// The successor in the present ring; then, since that was busy, in others that only this node goes along.
    pub(super) fn next_in_ring(&mut self, such: impl Fn(&Peers, Member) -> bool) -> Option<Member> {
        let ring = self.ring << 8 | u64::from(self.attempt);
        self.attempt = self.attempt.wrapping_add(1);
        let here = |member| self.peers.is_here(member) && such(&self.peers, member);
        self.rings.successor(ring, self.spec.me, here)
    }

    /// The next of its rack.
    fn next_receiver(&mut self, now: Time) -> Option<Member> {
        let (pace, rack) = (self.pace_sought(now, false), self.spec.me.rack);
        self.next_in_ring(|peers, member| member.rack == rack && peers.is_like(member, pace))
    }

    /// The next beyond its rack: the successor there in a ring that only this node goes along.
    pub(super) fn far_receiver(&mut self, now: Time) -> Option<Member> {
        let (pace, ring) = (self.pace_sought(now, true), self.chance.random());
        let here = |member| {
            self.is_far(member) && self.peers.is_like(member, pace) && self.can_be_offered(now, member)
        };
        self.rings.successor(ring, self.spec.me, here)
    }

    /// Who is offered to next: the successor in the next ring, as in the paper, but now and then the last receiver.
    pub(super) fn receiver(&mut self, now: Time) -> Option<Member> {
        // Which may get several at a time, but not before it has answered.
        let last = self.last.filter(|last| self.peers.takes(now, *last) && self.outgoing.is_answered(*last));
        // Looked at first, since going along rings takes long where nobody else wants anything.
        if !self.peers.in_rack(self.spec.me.rack).any(|member| self.can_be_offered(now, member)) {
            return last;
        }
        let refusals = self.near.refusals();
        if refusals > 0 && refusals.is_multiple_of(REFUSALS_BEFORE_LAST) && last.is_some() {
            self.near.refused();
            return last;
        }
        for _ in 0..PASSED_OVER {
            let Some(next) = self.next_receiver(now) else { break };
            if self.can_be_offered(now, next) {
                return Some(next);
            }
        }
        last
    }

    /// There is room: who was turned away for want of it may come; and who is faster, as long as it is not known whether this
    /// member is.
    pub(super) fn call_back(&mut self) {
        if self.holdings.is_complete() {
            return;
        }
        let own = self.paces.pace();
        if self.paces.tries_faster()
            && self.peers.fastest().is_faster(own)
            && self.incoming.room(self.spec.me)
            && let Some(to) = self.next_in_ring(|peers, member| peers.pace(member).is_faster(own))
        {
            self.ask_of(to);
        }
        let incoming = &self.incoming;
        let called =
            [&mut self.far, &mut self.near].map(|lane| lane.turned_away.take_if(|away| incoming.room(*away)));
        called.into_iter().flatten().for_each(|to| self.ask_of(to));
    }
}
