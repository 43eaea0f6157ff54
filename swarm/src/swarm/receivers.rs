//! Whom a member offers its next block: who stands behind it in the ring among those that are about as fast. A slow receiver would
//! hold up a fast sender's link, and a slow sender a fast receiver's. Others get what is left: when nobody as fast takes anything,
//! and when they ask.

use super::Swarm;
use crate::paces::Pace;
use crate::peers::Peers;
use crate::rings::Member;
use cool_machine::Time;

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

    /// The pace that receivers are to have; any, if nobody as fast takes anything.
    fn pace_sought(&self, now: Time) -> Pace {
        let own = self.own_pace();
        if self.peers.any_like_takes(now, own) { own } else { Pace::default() }
    }

    /// The successor in the present ring; then, since that was busy, in others that only this node goes along. These stay in its
    /// rack, so that one block at a time enters and leaves it.
    pub(super) fn next_in_ring(&mut self, such: impl Fn(&Peers, Member) -> bool) -> Option<Member> {
        let (me, attempt) = (self.spec.me, self.attempt);
        self.attempt = attempt.wrapping_add(1);
        let (ring, first) = (self.ring << 8 | u64::from(attempt), attempt == 0);
        let here = |member: Member| {
            self.peers.is_here(member) && (first || member.rack == me.rack) && such(&self.peers, member)
        };
        self.rings.successor(ring, me, here)
    }

    /// The successor in the present ring, if that is in another rack, was not tried, and may be offered a block.
    pub(super) fn far_successor(&self, now: Time) -> Option<Member> {
        if self.attempt > 0 {
            return None;
        }
        let pace = self.pace_sought(now);
        let here = |member| self.peers.is_here(member) && self.peers.is_like(member, pace);
        let next = self.rings.successor(self.ring << 8, self.spec.me, here)?;
        (self.is_far(next) && self.can_be_offered(now, next)).then_some(next)
    }

    /// The next that may be offered a block from beyond its rack or this one.
    pub(super) fn next_receiver(&mut self, now: Time) -> Option<Member> {
        let pace = self.pace_sought(now);
        self.next_in_ring(|peers, member| peers.is_like(member, pace))
    }

    /// Who is offered to next: the successor in the next ring, as in the paper, but now and then the last receiver.
    pub(super) fn receiver(&mut self, now: Time) -> Option<Member> {
        let last = self.last.filter(|last| self.peers.takes(now, *last));
        if self.refusals > 0 && self.refusals.is_multiple_of(REFUSALS_BEFORE_LAST) && last.is_some() {
            self.refusals += 1;
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
        if let Some(to) = self.turned_away
            && self.incoming.room(to)
        {
            self.turned_away = None;
            self.ask_of(to);
        }
    }
}
