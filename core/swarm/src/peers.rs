//! What a node knows of the others.

use crate::holdings::Have;
use crate::paces::Pace;
use crate::rings::Member;
use cool_machine::Time;
use std::collections::BTreeMap;
use std::ops::Bound;

/// What is known of one.
#[derive(Clone, Debug, Default)]
struct Peer {
    /// It has said that it has all.
    complete: bool,
    /// Of its link, as it has said last.
    pace: Pace,
    /// Nothing is offered to it before.
    until: Time,
    /// Generations of which a block was not new to it, with how far we were with them: no others are until we are further, but
    /// that it may have counted on a block that did not come, so it is tried again after a while.
    vain: Vec<(u32, u16, Time)>,
    /// What it last said that it holds; kept if holders are counted.
    have: Have,
}

/// What is known of all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peers {
    peers: BTreeMap<Member, Peer>,
    /// How many have not said that they have all.
    lacking: usize,
    /// The pace of the fastest that was heard of.
    fastest: Pace,
    /// How many of them are known to hold each block, if that is counted.
    holders: Option<Vec<u32>>,
}

impl Peers {
    pub(crate) fn new(members: impl Iterator<Item = Member>, counted: Option<u32>) -> Peers {
        let peers: BTreeMap<_, _> = members.map(|member| (member, Peer::default())).collect();
        let (lacking, fastest) = (peers.len(), Pace::default());
        Peers { peers, lacking, fastest, holders: counted.map(|blocks| vec![0; blocks as usize]) }
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

    /// Those in a rack.
    pub(crate) fn in_rack(&self, rack: u32) -> impl Iterator<Item = Member> {
        let [first, last] = [0, u32::MAX].map(|slot| Member { rack, slot });
        self.peers.range(first..=last).map(|(member, _)| *member)
    }

    /// A member, of which nothing is known yet.
    pub(crate) fn join(&mut self, member: Member) {
        self.leave(member);
        self.peers.insert(member, Peer::default());
        self.lacking += 1;
    }

    pub(crate) fn leave(&mut self, member: Member) {
        if let Some(peer) = self.peers.remove(&member) {
            self.lacking -= usize::from(!peer.complete);
            self.count(&peer.have, |holders| *holders -= 1);
        }
    }

    /// Whether a block may be offered to a member.
    pub(crate) fn takes(&self, now: Time, member: Member) -> bool {
        self.peers.get(&member).is_some_and(|peer| !peer.complete && peer.until <= now)
    }

    /// Whether a member is here and may lack something.
    pub(crate) fn may_lack(&self, member: Member) -> bool {
        self.peers.get(&member).is_some_and(|peer| !peer.complete)
    }

    /// Whether anybody may lack anything.
    pub(crate) fn any_lacks(&self) -> bool {
        self.lacking > 0
    }

    /// Whether anybody in a rack, or anybody beyond it, may lack anything.
    pub(crate) fn any_lacks_at(&self, rack: u32, beyond: bool) -> bool {
        let [first, last] = [0, u32::MAX].map(|slot| Member { rack, slot });
        let lacks = |(_, peer): (&Member, &Peer)| !peer.complete;
        if beyond {
            let after = (Bound::Excluded(last), Bound::Unbounded);
            self.lacking > 0 && self.peers.range(..first).chain(self.peers.range(after)).any(lacks)
        } else {
            self.peers.range(first..=last).any(lacks)
        }
    }

    /// The pace of a member, as it has said last.
    pub(crate) fn pace(&self, member: Member) -> Pace {
        self.peers.get(&member).map_or(Pace::default(), |peer| peer.pace)
    }

    /// A member says its pace.
    pub(crate) fn goes(&mut self, member: Member, pace: Pace) {
        self.fastest = [self.fastest, pace]
            .into_iter()
            .filter(|pace| *pace != Pace::default())
            .min()
            .unwrap_or_default();
        self.with(member, |peer| peer.pace = pace);
    }

    /// Whether a member goes about as fast.
    pub(crate) fn is_like(&self, member: Member, pace: Pace) -> bool {
        self.peers.get(&member).is_some_and(|peer| peer.pace.is_like(pace))
    }

    /// Whether any such member goes about as fast.
    pub(crate) fn any_like(&self, pace: Pace, such: impl Fn(Member) -> bool) -> bool {
        self.peers.iter().any(|(member, peer)| peer.pace.is_like(pace) && such(*member))
    }

    /// The pace of the fastest that was heard of.
    pub(crate) fn fastest(&self) -> Pace {
        self.fastest
    }

    pub(crate) fn rest(&mut self, member: Member, until: Time) {
        self.with(member, |peer| peer.until = until);
    }

    /// A member lacks something.
    pub(crate) fn lacks(&mut self, member: Member) {
        self.rest(member, Time::ZERO);
        self.says_complete(member, false);
    }

    pub(crate) fn completes(&mut self, member: Member) {
        self.says_complete(member, true);
    }

    fn says_complete(&mut self, member: Member, complete: bool) {
        let Some(peer) = self.peers.get_mut(&member) else { return };
        match (core::mem::replace(&mut peer.complete, complete), complete) {
            (false, true) => self.lacking -= 1,
            (true, false) => self.lacking += 1,
            _ => {}
        }
    }

    /// A block of a generation was not new to a member, when we were that far with it.
    pub(crate) fn vain(&mut self, member: Member, generation: u32, progress: u16, until: Time) {
        self.with(member, |peer| {
            peer.vain.retain(|(other, ..)| *other != generation);
            peer.vain.push((generation, progress, until));
        });
    }

    /// The generations of which nothing is new to a member, given how far we are.
    pub(crate) fn vain_for(&self, now: Time, member: Member, progress: impl Fn(u32) -> u16) -> Vec<u32> {
        let vain = self.peers.get(&member).map(|peer| peer.vain.as_slice()).unwrap_or_default();
        let still =
            vain.iter().filter(|(generation, then, until)| now < *until && progress(*generation) <= *then);
        still.map(|(generation, ..)| *generation).collect()
    }

    /// A member has said what it holds.
    pub(crate) fn said(&mut self, member: Member, have: &Have) {
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

    fn count(&mut self, have: &Have, change: impl Fn(&mut u32)) {
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
    fn holders_are_those_that_said_so_and_are_here() {
        let [one, two] = [0, 1].map(|slot| Member { rack: 0, slot });
        let mut peers = Peers::new([one, two].into_iter(), Some(3));
        let have = |bits| Have { blocks: vec![bits], ..Have::default() };
        peers.said(one, &have(0b001));
        peers.said(one, &have(0b011));
        peers.said(two, &have(0b110));
        assert_eq!(peers.holders(), [1, 2, 1]);
        peers.join(two);
        assert_eq!(peers.holders(), [1, 1, 0]);
        peers.leave(one);
        assert_eq!(peers.holders(), [0, 0, 0]);
    }

    #[test]
    fn what_was_vain_is_tried_again_at_a_higher_rank_or_later() {
        let one = Member { rack: 0, slot: 1 };
        let mut peers = Peers::new([one].into_iter(), None);
        let [now, later] = [1, 2].map(Time::from_nanos);
        peers.vain(one, 4, 7, later);
        assert_eq!(peers.vain_for(now, one, |_| 7), [4]);
        assert!(peers.vain_for(now, one, |_| 8).is_empty());
        assert!(peers.vain_for(later, one, |_| 7).is_empty());
    }
}
