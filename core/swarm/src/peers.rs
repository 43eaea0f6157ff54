//! The state that a member keeps about each of the other members.

use crate::holdings::HoldingsReport;
use crate::link_rates::BlockTime;
use crate::rings::Member;
use cool_machine::Time;
use std::collections::BTreeMap;
use std::ops::Bound;

/// The state of one other member.
#[derive(Clone, Debug, Default)]
struct Peer {
    /// Whether it has reported that it holds everything.
    complete: bool,
    /// The link rate that it reported last.
    block_time: BlockTime,
    /// No block is offered to it before this time.
    until: Time,
    /// Generations of which a block was not new to the member, each with this node's progress in it
    /// at that time and an expiry. No other block of them is sent until this node has made
    /// progress. The entry expires, because the member may have counted on a block that was lost.
    not_new: Vec<(u32, u16, Time)>,
    /// The holdings that it reported last. Kept only if holders are counted.
    have: HoldingsReport,
}

/// The state of all other members.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peers {
    peers: BTreeMap<Member, Peer>,
    /// Number of members that have not reported that they hold everything.
    incomplete: usize,
    /// The highest link rate that any member reported.
    fastest: BlockTime,
    /// Number of members known to hold each block, if holders are counted.
    holders: Option<Vec<u32>>,
}

impl Peers {
    pub(crate) fn new(members: impl Iterator<Item = Member>, counted: Option<u32>) -> Peers {
        let peers: BTreeMap<_, _> = members.map(|member| (member, Peer::default())).collect();
        let (incomplete, fastest) = (peers.len(), BlockTime::default());
        Peers { peers, incomplete, fastest, holders: counted.map(|blocks| vec![0; blocks as usize]) }
    }

    pub(crate) fn len(&self) -> usize {
        self.peers.len()
    }

    pub(crate) fn holders(&self) -> &[u32] {
        self.holders.as_deref().unwrap_or_default()
    }

    pub(crate) fn is_here(&self, member: Member) -> bool {
        self.peers.contains_key(&member)
    }

    /// Returns the members in a rack.
    pub(crate) fn in_rack(&self, rack: u32) -> impl Iterator<Item = Member> {
        let [first, last] = [0, u32::MAX].map(|slot| Member { rack, slot });
        self.peers.range(first..=last).map(|(member, _)| *member)
    }

    /// Adds a member, about which nothing is known yet.
    pub(crate) fn join(&mut self, member: Member) {
        self.leave(member);
        self.peers.insert(member, Peer::default());
        self.incomplete += 1;
    }

    pub(crate) fn leave(&mut self, member: Member) {
        if let Some(peer) = self.peers.remove(&member) {
            self.incomplete -= usize::from(!peer.complete);
            self.count(&peer.have, |holders| *holders -= 1);
        }
    }

    /// Returns whether a block may be offered to a member at `now`: it is incomplete, and its pause
    /// has ended.
    pub(crate) fn takes(&self, now: Time, member: Member) -> bool {
        self.peers.get(&member).is_some_and(|peer| !peer.complete && peer.until <= now)
    }

    /// Returns whether a member is present and may be missing blocks.
    pub(crate) fn may_need(&self, member: Member) -> bool {
        self.peers.get(&member).is_some_and(|peer| !peer.complete)
    }

    /// Returns whether any member may be missing blocks.
    pub(crate) fn any_incomplete(&self) -> bool {
        self.incomplete > 0
    }

    /// Returns whether any member in a rack, or any one beyond it, may be missing blocks.
    pub(crate) fn any_incomplete_at(&self, rack: u32, beyond: bool) -> bool {
        let [first, last] = [0, u32::MAX].map(|slot| Member { rack, slot });
        let incomplete = |(_, peer): (&Member, &Peer)| !peer.complete;
        if beyond {
            let after = (Bound::Excluded(last), Bound::Unbounded);
            self.incomplete > 0 && self.peers.range(..first).chain(self.peers.range(after)).any(incomplete)
        } else {
            self.peers.range(first..=last).any(incomplete)
        }
    }

    /// Returns the link rate that a member reported last.
    pub(crate) fn block_time(&self, member: Member) -> BlockTime {
        self.peers.get(&member).map_or(BlockTime::default(), |peer| peer.block_time)
    }

    /// Records the link rate that a member reported.
    pub(crate) fn record_block_time(&mut self, member: Member, block_time: BlockTime) {
        self.fastest = [self.fastest, block_time]
            .into_iter()
            .filter(|block_time| *block_time != BlockTime::default())
            .min()
            .unwrap_or_default();
        self.with(member, |peer| peer.block_time = block_time);
    }

    /// Returns whether a member's link rate is similar to `block_time`.
    pub(crate) fn is_like(&self, member: Member, block_time: BlockTime) -> bool {
        self.peers.get(&member).is_some_and(|peer| peer.block_time.is_like(block_time))
    }

    /// Returns whether any member that satisfies `such` has a link rate similar to `block_time`.
    pub(crate) fn any_like(&self, block_time: BlockTime, such: impl Fn(Member) -> bool) -> bool {
        self.peers.iter().any(|(member, peer)| peer.block_time.is_like(block_time) && such(*member))
    }

    /// Returns the highest link rate that any member reported.
    pub(crate) fn fastest(&self) -> BlockTime {
        self.fastest
    }

    pub(crate) fn rest(&mut self, member: Member, until: Time) {
        self.with(member, |peer| peer.until = until);
    }

    /// Records that a member requested a block, so that offers to it may begin at once.
    pub(crate) fn set_incomplete(&mut self, member: Member) {
        self.rest(member, Time::ZERO);
        self.set_complete(member, false);
    }

    pub(crate) fn completes(&mut self, member: Member) {
        self.set_complete(member, true);
    }

    fn set_complete(&mut self, member: Member, complete: bool) {
        let Some(peer) = self.peers.get_mut(&member) else { return };
        match (core::mem::replace(&mut peer.complete, complete), complete) {
            (false, true) => self.incomplete -= 1,
            (true, false) => self.incomplete += 1,
            _ => {}
        }
    }

    /// Records that a block of a generation was not new to a member, with this node's progress in
    /// the generation.
    pub(crate) fn record_not_new(&mut self, member: Member, generation: u32, progress: u16, until: Time) {
        self.with(member, |peer| {
            peer.not_new.retain(|(other, ..)| *other != generation);
            peer.not_new.push((generation, progress, until));
        });
    }

    /// Returns the generations of which this node holds nothing new for a member, given its
    /// progress.
    pub(crate) fn not_new_for(&self, now: Time, member: Member, progress: impl Fn(u32) -> u16) -> Vec<u32> {
        let not_new = self.peers.get(&member).map(|peer| peer.not_new.as_slice()).unwrap_or_default();
        let still =
            not_new.iter().filter(|(generation, then, until)| now < *until && progress(*generation) <= *then);
        still.map(|(generation, ..)| *generation).collect()
    }

    /// Records the holdings that a member reported.
    pub(crate) fn record_holdings(&mut self, member: Member, have: &HoldingsReport) {
        if self.holders.is_none() {
            return;
        }
        let Some(peer) = self.peers.get_mut(&member) else { return };
        let before = core::mem::replace(&mut peer.have, have.clone());
        self.count(&before, |holders| *holders -= 1);
        let Some(peer) = self.peers.get(&member) else { return };
        let after = peer.have.clone();
        self.count(&after, |holders| *holders += 1);
    }

    fn count(&mut self, have: &HoldingsReport, change: impl Fn(&mut u32)) {
        let Some(holders) = &mut self.holders else { return };
        for (block, holders) in (0..).zip(holders) {
            if have.holds(block) {
                change(holders);
            }
        }
    }

    fn with(&mut self, member: Member, change: impl FnOnce(&mut Peer)) {
        if let Some(peer) = self.peers.get_mut(&member) {
            change(peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_present_members_that_reported_the_block() {
        let [one, two] = [0, 1].map(|slot| Member { rack: 0, slot });
        let mut peers = Peers::new([one, two].into_iter(), Some(3));
        let have = |bits| HoldingsReport { blocks: vec![bits], ..HoldingsReport::default() };
        peers.record_holdings(one, &have(0b001));
        peers.record_holdings(one, &have(0b011));
        peers.record_holdings(two, &have(0b110));
        assert_eq!(peers.holders(), [1, 2, 1]);
        peers.join(two);
        assert_eq!(peers.holders(), [1, 1, 0]);
        peers.leave(one);
        assert_eq!(peers.holders(), [0, 0, 0]);
    }

    #[test]
    fn a_generation_that_was_not_new_is_retried_later() {
        let one = Member { rack: 0, slot: 1 };
        let mut peers = Peers::new([one].into_iter(), None);
        let [now, later] = [1, 2].map(Time::from_nanos);
        peers.record_not_new(one, 4, 7, later);
        assert_eq!(peers.not_new_for(now, one, |_| 7), [4]);
        assert!(peers.not_new_for(now, one, |_| 8).is_empty());
        assert!(peers.not_new_for(later, one, |_| 7).is_empty());
    }
}
