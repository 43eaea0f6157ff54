//! The wait-for graph of a group's ranks: who of those that are waited for waits as well. Who waits itself is not to blame,
//! but whom it waits for may be.

use std::collections::{BTreeMap, BTreeSet};

/// Whom a rank waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    /// The ranks at the other ends of its messages.
    Some(BTreeSet<u32>),
    /// It waits in a call, or for a message from anybody.
    Any,
}

impl WaitsFor {
    fn add(&mut self, peer: u32) {
        if let WaitsFor::Some(peers) = self {
            peers.insert(peer);
        }
    }
}

/// Ranks that wait, and whom for.
#[derive(Debug, Default)]
pub(super) struct WaitForGraph(BTreeMap<u32, WaitsFor>);

impl WaitForGraph {
    /// Ranks that wait in calls or for anybody, and who waits for whom with messages.
    pub(super) fn new(ranks: &[u32], messages: &[(u32, u32)]) -> WaitForGraph {
        let mut waits: BTreeMap<u32, WaitsFor> = ranks.iter().map(|rank| (*rank, WaitsFor::Any)).collect();
        for (rank, peer) in messages {
            waits.entry(*rank).or_insert_with(|| WaitsFor::Some(BTreeSet::new())).add(*peer);
        }
        WaitForGraph(waits)
    }

    /// Adds what is known of some ranks.
    pub(super) fn add(&mut self, other: &WaitForGraph, of: impl Fn(u32) -> bool) {
        let known = other.0.iter().filter(|(rank, _)| of(**rank));
        self.0.extend(known.map(|(rank, awaits)| (*rank, awaits.clone())));
    }

    /// Of these ranks of a group of `size` those who do not wait; if all do, of those for whom they wait, and so on. None
    /// if all wait for each other.
    pub(super) fn culprits(&self, ranks: &[u32], size: u32) -> Vec<u32> {
        let mut seen: BTreeSet<u32> = ranks.iter().copied().collect();
        let mut level = seen.clone();
        while !level.is_empty() {
            let awaited: Vec<&WaitsFor> = level.iter().filter_map(|rank| self.0.get(rank)).collect();
            if awaited.len() < level.len() {
                return level.into_iter().filter(|rank| !self.0.contains_key(rank)).collect();
            }
            let next = awaited.into_iter().flat_map(|awaits| match awaits {
                WaitsFor::Some(peers) => peers.iter().copied().collect(),
                WaitsFor::Any => (0..size).collect::<Vec<u32>>(),
            });
            level = next.filter(|rank| seen.insert(*rank)).collect();
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_somebody_who_does_not_is_not_to_blame_however_long_the_line() {
        let waits = WaitForGraph::new(&[5], &[(0, 1), (1, 2), (3, 4), (4, 3)]);
        assert_eq!(waits.culprits(&[0], 6), [2]);
        assert_eq!(waits.culprits(&[0, 6], 7), [6]);
        assert!(waits.culprits(&[3], 6).is_empty(), "they wait for each other");
        // A call may wait for anybody.
        assert_eq!(waits.culprits(&[5], 8), [2, 6, 7]);
    }

    #[test]
    fn who_waits_in_a_call_and_for_a_message_may_wait_for_anybody() {
        assert_eq!(WaitForGraph::new(&[1], &[(1, 2)]).0[&1], WaitsFor::Any);
    }
}
