//! Chooses the member to which the next block is offered: the successor in the ring among members
//! with a similar link rate. A slow receiver would delay a fast sender, and a slow sender would
//! delay a fast receiver. Other members are offered blocks when no similar member accepts any, and
//! when they request them.

use super::Swarm;
use crate::link_rates::BlockTime;
use crate::peers::Peers;
use crate::rings::Member;
use cool_machine::Time;
use rand::RngExt;

/// After this many consecutive refusals the next offer goes to the last receiver, which is likely
/// to be free.
const REFUSALS_BEFORE_LAST: u32 = 4;
/// Maximum number of successors that need nothing and are skipped before a pause.
const PASSED_OVER: u32 = 64;

impl Swarm {
    /// Returns this member's link rate. A source, which receives nothing, counts as one of the
    /// fastest.
    fn own_block_time(&self) -> BlockTime {
        let own = self.link_rates.block_time();
        if own == BlockTime::default() { self.peers.fastest() } else { own }
    }

    /// Returns the link rate that receivers in a lane should have, or an unknown one (which is
    /// similar to all) if no receiver of a similar rate accepts a block.
    fn block_time_sought(&self, now: Time, far: bool) -> BlockTime {
        let own = self.own_block_time();
        let takes = |member| self.is_far(member) == far && self.peers.takes(now, member);
        if self.peers.any_like(own, takes) { own } else { BlockTime::default() }
    }

    /// Returns the successor in the current ring that satisfies `such`. Each further call for the
    /// same ring returns the successor in another ring, which only this node uses, because the
    /// first one was busy.
    pub(super) fn next_in_ring(&mut self, such: impl Fn(&Peers, Member) -> bool) -> Option<Member> {
        let ring = self.ring << 8 | u64::from(self.attempt);
        self.attempt = self.attempt.wrapping_add(1);
        let here = |member| self.peers.is_here(member) && such(&self.peers, member);
        self.rings.successor(ring, self.spec.me, here)
    }

    /// Returns the next receiver in this rack.
    fn next_receiver(&mut self, now: Time) -> Option<Member> {
        let (block_time, rack) = (self.block_time_sought(now, false), self.spec.me.rack);
        self.next_in_ring(|peers, member| member.rack == rack && peers.is_like(member, block_time))
    }

    /// Returns the next receiver beyond this rack: the successor there in a ring that only this
    /// node uses.
    pub(super) fn far_receiver(&mut self, now: Time) -> Option<Member> {
        let (block_time, ring) = (self.block_time_sought(now, true), self.rng.random());
        let here = |member| {
            self.is_far(member) && self.peers.is_like(member, block_time) && self.can_be_offered(now, member)
        };
        self.rings.successor(ring, self.spec.me, here)
    }

    /// Returns the receiver of the next offer: the successor in the next ring, as in the paper, but
    /// sometimes the last receiver.
    pub(super) fn receiver(&mut self, now: Time) -> Option<Member> {
        // The last receiver may receive several blocks at a time, but only after it has replied.
        let last = self.last.filter(|last| self.peers.takes(now, *last) && self.outgoing.is_answered(*last));
        // Checked first, because walking the rings is slow when no other member needs anything.
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

    /// Requests blocks once there is room: from the sender of a refused offer, and from a faster
    /// member while it is unknown whether this member is as fast.
    pub(super) fn call_back(&mut self) {
        if self.holdings.is_complete() {
            return;
        }
        let own = self.link_rates.block_time();
        if self.link_rates.should_try_faster()
            && self.peers.fastest().is_faster(own)
            && self.incoming.room(self.spec.me)
            && let Some(to) = self.next_in_ring(|peers, member| peers.block_time(member).is_faster(own))
        {
            self.ask_of(to);
        }
        let incoming = &self.incoming;
        let called =
            [&mut self.far, &mut self.near].map(|lane| lane.turned_away.take_if(|away| incoming.room(*away)));
        called.into_iter().flatten().for_each(|to| self.ask_of(to));
    }
}
