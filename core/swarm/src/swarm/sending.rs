//! Sending: when blocks are offered in each lane, which block is sent, and how its outcome is
//! handled.

use super::Swarm;
use crate::api::{BlockAnnouncement, Output, Signal};
use crate::generation::{CodedBlock, Generation};
use crate::holdings::{HoldingsReport, Knowledge};
use crate::lane::Lane;
use crate::order::Phase;
use crate::rings::Member;
use crate::transfers::Transfer;
use cool_machine::Time;

/// Maximum number of refusals before a pause. In a small rack a pause begins after each member
/// could have refused twice.
const REFUSALS_BEFORE_PAUSE: usize = 32;
/// Number of block times without a block beyond the rack after which blocks that have left the rack
/// are offered again.
const BLOCKS_BEFORE_AGAIN: u32 = 8;

impl Swarm {
    pub(super) fn is_far(&self, member: Member) -> bool {
        member.rack != self.spec.me.rack
    }

    pub(super) fn lane(&mut self, with: Member) -> &mut Lane {
        if self.is_far(with) { &mut self.far } else { &mut self.near }
    }

    pub(super) fn can_be_offered(&self, now: Time, member: Member) -> bool {
        self.peers.takes(now, member) && !self.outgoing.with(member) && self.outgoing.room(member)
    }

    /// Returns when a block may be offered in a lane, or none while the lane has no room, this node
    /// holds nothing, or no member there is missing blocks.
    pub(super) fn offers_at(&self, far: bool) -> Option<Time> {
        let lane = if far { &self.far } else { &self.near };
        let incomplete = || self.peers.any_incomplete_at(self.spec.me.rack, far);
        let offers = self.outgoing.room_in(far) && !self.holdings.is_empty() && incomplete();
        offers.then(|| lane.pause_ends())
    }

    /// Offers a block to the last member that requested one and, in each lane with room, to a
    /// member that may accept it.
    pub(super) fn offer(&mut self, now: Time) {
        if let Some(asked) = self.asked.filter(|asked| self.can_be_offered(now, *asked))
            && !self.holdings.is_empty()
        {
            self.asked = None;
            self.offer_to(now, asked);
        }
        for far in [true, false] {
            if self.offers_at(far).is_none_or(|at| now < at) {
                continue;
            }
            let next = match far {
                true if self.may_offer_beyond_rack(now) => self.far_receiver(now),
                true => None,
                false => self.receiver(now),
            };
            match next {
                Some(to) => self.offer_to(now, to),
                None => self.make_pause(now, far),
            }
        }
    }

    /// Returns whether a block should be offered beyond the rack. Blocks that have left it are
    /// passed on by members there. If nothing has left the rack for a while, they are offered
    /// again, because their receivers may have been lost.
    fn may_offer_beyond_rack(&self, now: Time) -> bool {
        let patience = self.spec.waits.block * BLOCKS_BEFORE_AGAIN;
        self.holdings.exceeds(&self.left) || now >= self.far.last_sent() + patience
    }

    fn offer_to(&mut self, now: Time, to: Member) {
        self.transfer = self.transfer.wrapping_add(1);
        let until = now + self.spec.waits.answer;
        self.outgoing.add(to, self.transfer, until);
        self.stats.offers += 1;
        self.send_signal(
            to,
            Signal::Offer {
                transfer: self.transfer,
                ring: self.ring,
                block_time: self.link_rates.block_time(),
            },
        );
    }

    pub(super) fn refused(&mut self, now: Time, by: Member, complete: bool) {
        self.stats.refused += 1;
        // A busy member calls back the last member that it refused as soon as it has room.
        self.peers.rest(by, now + self.spec.waits.block);
        if complete {
            self.peers.completes(by);
        }
        // The other members beyond the rack are likely to be as busy.
        let far = self.is_far(by);
        let in_rack = || self.peers.in_rack(self.spec.me.rack).take(REFUSALS_BEFORE_PAUSE / 2).count();
        let enough = if far { 1 } else { 2 * in_rack() };
        let lane = self.lane(by);
        lane.refused();
        if lane.refusals() as usize >= enough {
            self.make_pause(now, far);
        }
    }

    fn make_pause(&mut self, now: Time, far: bool) {
        if far {
            self.far.rest(now);
        } else {
            self.near.rest(now);
            self.follow(self.ring.saturating_add(1));
        }
    }

    pub(super) fn granted(&mut self, now: Time, by: Member, transfer: u32, have: &HoldingsReport) {
        self.peers.record_holdings(by, have);
        match self.outgoing.find(by, transfer) {
            // A duplicate.
            Some(Transfer { block: Some(_), .. }) => {}
            Some(offered) => {
                offered.have = have.clone();
                self.follow(self.ring.saturating_add(1));
                self.send_block(now, by, transfer);
            }
            // The offer was given up, so the receiver must not wait for a block.
            None => self.send_signal(by, Signal::Withdraw { transfer }),
        }
    }

    /// Chooses a block for a member that granted a transfer, announces it and sends it.
    fn send_block(&mut self, now: Time, to: Member, transfer: u32) {
        let far = self.is_far(to);
        let Some(offered) = self.outgoing.find(to, transfer) else { return };
        let not_new = self.peers.not_new_for(now, to, |generation| self.holdings.progress(generation));
        let at_source = u64::from(self.spec.source.is_some());
        let round = self.round.saturating_add(at_source).max(1);
        let phase = Phase { round, settled: self.settled, members: self.peers.len() as u32 + 1 };
        let left = far.then(|| self.left.have());
        let known = Knowledge {
            receiver: &offered.have,
            holders: self.peers.holders(),
            phase,
            not_new: &not_new,
            left,
        };
        let mut pick = self.holdings.pick(&known, &mut self.rng);
        if pick.is_none() && far {
            let anything = Knowledge { left: None, ..known };
            pick = self.holdings.pick(&anything, &mut self.rng);
        }
        let Some(pick) = pick else {
            let complete = self.holdings.suffices(&offered.have);
            self.outgoing.take(to, transfer);
            self.refused(now, to, complete);
            return self.send_signal(to, Signal::Withdraw { transfer });
        };
        offered.until = now + self.spec.waits.transfer;
        offered.block = Some((pick.generation, pick.row.clone()));
        self.round = self.round.saturating_add(at_source);
        self.stats.announced += 1;
        self.lane(to).record_sent(now);
        let (generation, terms, round) = (pick.generation, pick.terms, self.round);
        self.leaves(to, generation, &pick.row);
        let checked = self.holdings.generation(generation).is_some_and(Generation::is_whole);
        self.send_signal(
            to,
            Signal::Head(BlockAnnouncement { transfer, generation, row: pick.row, checked, round }),
        );
        self.outbox.push_back(Output::Transmit { to, transfer, generation, terms });
    }

    /// Chooses another block, if there is one, because the announced one was not new.
    pub(super) fn stopped(&mut self, now: Time, by: Member, transfer: u32) {
        let Some(stopped) = self.outgoing.find(by, transfer) else { return };
        let Some((generation, row)) = stopped.block.take() else { return };
        if let CodedBlock::Original(_) = row {
            stopped.have.add(self.holdings.division(), generation, &row);
        }
        self.transfer = self.transfer.wrapping_add(1);
        (stopped.number, stopped.nearly) = (self.transfer, false);
        self.stats.stopped += 1;
        self.peers.record_not_new(
            by,
            generation,
            self.holdings.progress(generation),
            now + self.spec.waits.transfer,
        );
        self.outbox.push_back(Output::Cancel { to: by, transfer });
        self.send_block(now, by, self.transfer);
    }

    pub(super) fn sent(&mut self, now: Time, to: Member, transfer: u32, arrived: bool) {
        self.lane(to).end_pause(now);
        let sent = self.outgoing.take(to, transfer).and_then(|transfer| transfer.block);
        match sent {
            Some(_) if arrived && !self.is_far(to) => self.last = Some(to),
            Some(_) if arrived => {}
            Some((generation, row)) => {
                self.holdings.lost(generation, &row);
                self.send_signal(to, Signal::Withdraw { transfer });
            }
            None => {}
        }
    }
}
