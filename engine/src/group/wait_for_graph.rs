//! Who of those that are waited for waits as well. That only their agents know, so these are asked when a call or message
//! is to be given up: who waits itself is not to blame, but whom it waits for may be.

use super::Group;
use crate::shared::{Shared, TimerKey};
use cool_machine::{Duration, Time};
use cool_transport::unicast::Notice;
use std::collections::{BTreeMap, BTreeSet};

/// The most time for answers: enough for TCP to send what was lost once more.
const ANSWERS: Duration = Duration::from_millis(500);

/// Whom a rank waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Awaits {
    /// The ranks at the other ends of its messages.
    Some(BTreeSet<u32>),
    /// It waits in a call, or for a message from anybody.
    Any,
}

impl Awaits {
    fn add(&mut self, peer: u32) {
        if let Awaits::Some(peers) = self {
            peers.insert(peer);
        }
    }
}

/// Ranks that wait, and whom for.
#[derive(Debug, Default)]
struct Waits(BTreeMap<u32, Awaits>);

impl Waits {
    fn of(ranks: &[u32], messages: &[(u32, u32)]) -> Waits {
        let mut waits: BTreeMap<u32, Awaits> = ranks.iter().map(|rank| (*rank, Awaits::Any)).collect();
        for (rank, peer) in messages {
            waits.entry(*rank).or_insert_with(|| Awaits::Some(BTreeSet::new())).add(*peer);
        }
        Waits(waits)
    }

    /// Of these ranks of a group of so many those who do not wait; if all do, of those for whom they wait, and so on. None
    /// if all wait for each other.
    fn culprits(&self, ranks: &[u32], size: u32) -> Vec<u32> {
        let mut seen: BTreeSet<u32> = ranks.iter().copied().collect();
        let mut level = seen.clone();
        while !level.is_empty() {
            let awaited: Vec<&Awaits> = level.iter().filter_map(|rank| self.0.get(rank)).collect();
            if awaited.len() < level.len() {
                return level.into_iter().filter(|rank| !self.0.contains_key(rank)).collect();
            }
            let next = awaited.into_iter().flat_map(|awaits| match awaits {
                Awaits::Some(peers) => peers.iter().copied().collect(),
                Awaits::Any => (0..size).collect::<Vec<u32>>(),
            });
            level = next.filter(|rank| seen.insert(*rank)).collect();
        }
        Vec::new()
    }
}

/// What other agents were asked, and have answered.
#[derive(Debug)]
pub(super) struct Inquiry {
    /// What is to be given up, as its timer is called, and when that last moved.
    about: (TimerKey, Time),
    /// Nodes that have not answered.
    asked: BTreeSet<usize>,
    until: Time,
    /// Of the ranks of other nodes.
    waits: Waits,
}

impl Group {
    /// Something that has not moved since a time is to be given up. Whether it is known who else waits, as far as it will
    /// be; if not, its timer is set again.
    pub(super) fn inquired(&mut self, now: Time, shared: &mut Shared, key: TimerKey, moved: Time) -> bool {
        let about = (key, moved);
        let open = self.inquiry.as_ref().filter(|inquiry| !inquiry.asked.is_empty() && now < inquiry.until);
        let again = match (&self.inquiry, open) {
            // One after the other: who is first fails for all.
            (_, Some(open)) => open.until,
            (Some(over), None) if over.about == about => {
                let silent = over.asked.iter().map(|node| self.members.nodes[*node].name.as_str());
                let silent: Vec<&str> = silent.collect();
                if !silent.is_empty() {
                    tracing::info!(group = self.members.id, ?silent, "not told by all agents who waits");
                }
                return true;
            }
            _ => match self.inquire(now, shared, about) {
                Some(until) => until,
                None => return true,
            },
        };
        shared.timers.set(key, Some(again));
        false
    }

    /// Asks the other agents, if there are any. Answers with when to wait no more.
    fn inquire(&mut self, now: Time, shared: &mut Shared, about: (TimerKey, Time)) -> Option<Time> {
        let (group, epoch) = self.key();
        for node in self.members.others() {
            shared.peers.notify(now, &node.name, Notice::WhoWaits { group, epoch });
        }
        let asked: BTreeSet<usize> =
            (0..self.members.nodes.len()).filter(|node| *node != self.members.me).collect();
        let (any, until) = (!asked.is_empty(), now + ANSWERS);
        self.inquiry = Some(Inquiry { about, asked, until, waits: Waits::default() });
        any.then_some(until)
    }

    /// Another agent asks who waits here.
    pub(super) fn tell_who_waits(&self, now: Time, shared: &mut Shared, peer: &str) {
        let (group, epoch) = self.key();
        let (ranks, messages) = self.who_waits();
        shared.peers.notify(now, peer, Notice::Waits { group, epoch, ranks, messages });
    }

    /// Another agent has answered.
    pub(super) fn told_who_waits(
        &mut self,
        now: Time,
        shared: &mut Shared,
        peer: &str,
        (ranks, messages): (&[u32], &[(u32, u32)]),
    ) {
        let theirs = self.members.ranks_of(peer);
        let node = self.members.nodes.iter().position(|node| node.name == peer);
        let Some((inquiry, node)) = self.inquiry.as_mut().zip(node) else { return };
        if inquiry.asked.remove(&node) {
            let told = Waits::of(ranks, messages).0.into_iter().filter(|(rank, _)| theirs.contains(rank));
            inquiry.waits.0.extend(told);
            if inquiry.asked.is_empty() {
                shared.timers.set(inquiry.about.0, Some(now));
            }
        }
    }

    /// Of ranks that are waited for, and those for whom they wait, those that do not wait themselves; none if they all do.
    pub(super) fn suspects(&self, ranks: &[u32]) -> Vec<u32> {
        let (here, messages) = self.who_waits();
        let Waits(mut waits) = Waits::of(&here, &messages);
        if let Some(inquiry) = &self.inquiry {
            waits.extend(inquiry.waits.0.iter().map(|(rank, awaits)| (*rank, awaits.clone())));
        }
        Waits(waits).culprits(ranks, self.members.layout.size() as u32)
    }

    /// Ranks here that wait in calls or for a message from anybody, and those with messages under way to or from others.
    fn who_waits(&self) -> (Vec<u32>, Vec<(u32, u32)>) {
        let (mut ranks, mut messages) = (Vec::new(), Vec::new());
        for (rank, local) in self.ranks.iter().filter(|(_, local)| local.open > 0) {
            let peers = self.point_to_point.awaited_by(*rank);
            let in_calls = local.open > peers.len();
            match peers.into_iter().collect::<Option<BTreeSet<u32>>>() {
                Some(peers) if !in_calls => messages.extend(peers.into_iter().map(|peer| (*rank, peer))),
                _ => ranks.push(*rank),
            }
        }
        (ranks, messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_somebody_who_does_not_is_not_to_blame_however_long_the_line() {
        let waits = Waits::of(&[5], &[(0, 1), (1, 2), (3, 4), (4, 3)]);
        assert_eq!(waits.culprits(&[0], 6), [2]);
        assert_eq!(waits.culprits(&[0, 6], 7), [6]);
        assert!(waits.culprits(&[3], 6).is_empty(), "they wait for each other");
        // A call may wait for anybody.
        assert_eq!(waits.culprits(&[5], 8), [2, 6, 7]);
    }

    #[test]
    fn who_waits_in_a_call_and_for_a_message_may_wait_for_anybody() {
        assert_eq!(Waits::of(&[1], &[(1, 2)]).0[&1], Awaits::Any);
    }
}
