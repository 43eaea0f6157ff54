//! The wait-for graph of a group's ranks. A rank that waits for another one is not to blame for a
//! delay; the rank at the end of the path may be.

use std::collections::{BTreeMap, BTreeSet};

/// The ranks for which a rank waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    /// It waits for the ranks at the other ends of its messages.
    Ranks(BTreeSet<u32>),
    /// It waits in a call, or for a message from any rank.
    Any,
}

impl WaitsFor {
    fn add(&mut self, peer: u32) {
        if let WaitsFor::Ranks(peers) = self {
            peers.insert(peer);
        }
    }
}

/// The waiting ranks, with the ranks for which they wait.
#[derive(Debug, Default)]
pub(super) struct WaitForGraph(BTreeMap<u32, WaitsFor>);

impl WaitForGraph {
    /// Returns the graph of `ranks`, which wait in calls or for any rank, and of the pairs in
    /// `messages`, in which the first rank waits for the second.
    pub(super) fn new(ranks: &[u32], messages: &[(u32, u32)]) -> WaitForGraph {
        let mut waits: BTreeMap<u32, WaitsFor> = ranks.iter().map(|rank| (*rank, WaitsFor::Any)).collect();
        for (rank, peer) in messages {
            waits.entry(*rank).or_insert_with(|| WaitsFor::Ranks(BTreeSet::new())).add(*peer);
        }
        WaitForGraph(waits)
    }

    /// Adds the entries of another graph for some ranks.
    pub(super) fn add(&mut self, other: &WaitForGraph, of: impl Fn(u32) -> bool) {
        let known = other.0.iter().filter(|(rank, _)| of(**rank));
        self.0.extend(known.map(|(rank, awaits)| (*rank, awaits.clone())));
    }

    /// Returns those of `ranks`, in a group of `size` ranks, that do not wait. If all of them wait,
    /// returns those for which they wait and that do not wait themselves, and so on. The result is
    /// empty if all of them wait for each other.
    pub(super) fn culprits(&self, ranks: &[u32], size: u32) -> Vec<u32> {
        let mut seen: BTreeSet<u32> = ranks.iter().copied().collect();
        let mut level = seen.clone();
        while !level.is_empty() {
            let awaited: Vec<&WaitsFor> = level.iter().filter_map(|rank| self.0.get(rank)).collect();
            if awaited.len() < level.len() {
                return level.into_iter().filter(|rank| !self.0.contains_key(rank)).collect();
            }
            let next = awaited.into_iter().flat_map(|awaits| match awaits {
                WaitsFor::Ranks(peers) => peers.iter().copied().collect(),
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
    fn only_the_rank_at_the_end_of_a_path_is_to_blame() {
        let waits = WaitForGraph::new(&[5], &[(0, 1), (1, 2), (3, 4), (4, 3)]);
        assert_eq!(waits.culprits(&[0], 6), [2]);
        assert_eq!(waits.culprits(&[0, 6], 7), [6]);
        assert!(waits.culprits(&[3], 6).is_empty(), "they wait for each other");
        // A rank in a call may wait for any other rank.
        assert_eq!(waits.culprits(&[5], 8), [2, 6, 7]);
    }

    #[test]
    fn a_rank_in_a_call_may_wait_for_any_other_rank() {
        assert_eq!(WaitForGraph::new(&[1], &[(1, 2)]).0[&1], WaitsFor::Any);
    }
}
