//! Allocation of nodes to the ranks of a job: a pure function from nodes with free slots to a node
//! for each rank. The caller provides the nodes and their free slots.

use crate::natural_order::natural;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A node that can run ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateNode {
    /// The node's name.
    pub name: String,
    /// Its rack.
    pub rack: u32,
    /// Maximum number of ranks at a time.
    pub slots: u32,
    /// Slots that no other job uses.
    pub free: u32,
}

/// Order in which ranks are assigned to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankPlacement {
    /// Neighboring ranks share a rack. Uses as few racks as the number of ranks per node permits:
    /// those with the most room, and finally the smallest that suffices. If `per_node` is 0, ranks
    /// are first spread over as many nodes as possible. Ranks are assigned rack by rack, within a
    /// rack by node name. Racks are ordered by their first node, because their numbers depend on
    /// which node registered first.
    Racked,
    /// Ranks are assigned to racks in turn, so that neighboring ranks are in different racks where
    /// possible.
    Interleaved,
}

/// Requested number and placement of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationRequest {
    /// Number of ranks. 0 means `per_node` ranks on every node.
    pub ranks: u32,
    /// Ranks per node. 0 means to use as many nodes as possible (one rank per node if `ranks` is
    /// 0).
    pub per_node: u32,
    /// Order of the ranks.
    pub placement: RankPlacement,
}

/// Why a request cannot be satisfied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// There is no node.
    #[error(
        "no node is ready: a node must have an agent that has registered; with OpenFlow, a switch must have received its LLDP"
    )]
    NoNodes,
    /// There are too few free slots.
    #[error(
        "{requested} ranks requested, but {} {}on {}; {}",
        slots_note(*.free), busy_note(*.busy), nodes_note(*.nodes, *.per_node),
        remedy(*.free, *.busy, *.per_node)
    )]
    TooFewSlots {
        /// Number of ranks requested.
        requested: u64,
        /// Number of slots that are available to the job.
        free: u64,
        /// Number of slots that other jobs use.
        busy: u64,
        /// Number of nodes that are ready.
        nodes: usize,
        /// Requested maximum per node, or 0 if there is none.
        per_node: u32,
    },
}

fn slots_note(free: u64) -> String {
    let plural = if free == 1 { "" } else { "s" };
    format!("{free} slot{plural}")
}

fn busy_note(busy: u64) -> String {
    if busy == 0 { String::new() } else { format!("free ({busy} more in use by other jobs) ") }
}

fn nodes_note(nodes: usize, per_node: u32) -> String {
    let plural = if nodes == 1 { "" } else { "s" };
    match per_node {
        0 => format!("{nodes} node{plural}"),
        k => format!("{nodes} node{plural} at {k} per node"),
    }
}

/// Returns what the user can do about too few slots.
fn remedy(free: u64, busy: u64, per_node: u32) -> String {
    let wait = (busy > 0).then(|| "wait until other jobs end".to_owned());
    let fewer = (free > 0).then(|| format!("request at most {free}"));
    let more = if per_node == 0 { "start agents with more --slots" } else { "allow more ranks per node" };
    [wait, fewer, Some(more.to_owned())].into_iter().flatten().collect::<Vec<_>>().join(", or ")
}

/// Returns for each rank the index of its node in `nodes`.
///
/// # Errors
/// Returns an error if there are fewer free slots than ranks.
pub fn allocate(nodes: &[CandidateNode], request: AllocationRequest) -> Result<Vec<usize>, AllocateError> {
    if nodes.is_empty() {
        return Err(AllocateError::NoNodes);
    }
    let per_node = if request.ranks == 0 { request.per_node.max(1) } else { request.per_node };
    let room = |node: usize| if per_node == 0 { nodes[node].free } else { nodes[node].free.min(per_node) };
    let requested = match request.ranks {
        0 => u64::from(per_node) * nodes.len() as u64,
        n => u64::from(n),
    };
    let free: u64 = (0..nodes.len()).map(|h| u64::from(room(h))).sum();
    if free < requested {
        let busy = nodes.iter().map(|h| u64::from(h.slots.saturating_sub(h.free))).sum();
        return Err(AllocateError::TooFewSlots { requested, free, busy, nodes: nodes.len(), per_node });
    }
    let most = if per_node == 0 { level(nodes, requested) } else { per_node };
    let order = order(nodes, request.placement, |h| room(h).min(most), requested);
    let counts =
        if per_node == 0 { spread(&order, requested, most, room) } else { fill(&order, requested, room) };
    Ok(match request.placement {
        RankPlacement::Racked => counts.iter().flat_map(|(node, n)| (0..*n).map(|_| *node)).collect(),
        RankPlacement::Interleaved => deal(counts),
    })
}

/// Returns the nodes in the order in which they are filled with the `requested` ranks. `room` must
/// return the maximum number of ranks of a node.
fn order(
    nodes: &[CandidateNode],
    placement: RankPlacement,
    room: impl Fn(usize) -> u32,
    requested: u64,
) -> Vec<usize> {
    let mut by_name: Vec<usize> = (0..nodes.len()).collect();
    by_name.sort_by(|a, b| natural(&nodes[*a].name, &nodes[*b].name));
    let mut by_number: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for node in &by_name {
        by_number.entry(nodes[*node].rack).or_default().push(*node);
    }
    let mut racks: Vec<Vec<usize>> = by_number.into_values().collect();
    racks.sort_by(|a, b| natural(&nodes[a[0]].name, &nodes[b[0]].name));
    match placement {
        RankPlacement::Racked => {
            let all = |rack: &[usize]| rack.iter().map(|h| u64::from(room(*h))).sum();
            let chosen = fewest(racks.iter().map(|rack| all(rack)).enumerate().collect(), requested);
            chosen.into_iter().flat_map(|rack| std::mem::take(&mut racks[rack])).collect()
        }
        RankPlacement::Interleaved => {
            let longest = racks.iter().map(Vec::len).max().unwrap_or(0);
            (0..longest).flat_map(|i| racks.iter().filter_map(move |rack| rack.get(i).copied())).collect()
        }
    }
}

/// Returns the smallest set of racks with room for `requested` ranks: the racks with the most room,
/// and finally the smallest one that suffices for the rest. `racks` gives each rack with its room.
/// Returns all racks if none can be left out.
fn fewest(mut racks: Vec<(usize, u64)>, requested: u64) -> BTreeSet<usize> {
    let (mut chosen, mut left) = (BTreeSet::new(), requested);
    racks.sort_by_key(|(rack, room)| (Reverse(*room), *rack));
    while left > 0 && !racks.is_empty() {
        // Of all racks that suffice, the last one is the smallest. Among equal ones, take the
        // first.
        let enough = racks.partition_point(|(_, room)| *room >= left);
        let smallest = enough.checked_sub(1).map(|last| racks[last].1);
        let take = smallest.map_or(0, |room| racks.partition_point(|(_, other)| *other > room));
        let (rack, room) = racks.remove(take);
        chosen.insert(rack);
        left = left.saturating_sub(room);
    }
    chosen
}

/// Returns the smallest maximum per node with which all ranks fit.
fn level(nodes: &[CandidateNode], requested: u64) -> u32 {
    let within = |level: u32| nodes.iter().map(|h| u64::from(h.free.min(level))).sum::<u64>();
    let (mut low, mut high) = (0, u32::MAX);
    while low < high {
        let middle = low + (high - low) / 2;
        if within(middle) < requested { low = middle + 1 } else { high = middle }
    }
    low
}

/// Fills node after node.
fn fill(order: &[usize], requested: u64, room: impl Fn(usize) -> u32) -> Vec<(usize, u32)> {
    let mut left = requested;
    let take = |node: &usize| {
        let n = u64::from(room(*node)).min(left);
        left -= n;
        (*node, n as u32)
    };
    order.iter().map(take).collect()
}

/// Distributes ranks as evenly as the free slots permit, at most `most` per node. The first nodes
/// get one more than the others.
fn spread(order: &[usize], requested: u64, most: u32, room: impl Fn(usize) -> u32) -> Vec<(usize, u32)> {
    let below = most.saturating_sub(1);
    let within = |level: u32| order.iter().map(|h| u64::from(room(*h).min(level))).sum::<u64>();
    let mut extra = requested - within(below);
    let take = |node: &usize| {
        let n = room(*node).min(below);
        let more = u32::from(extra > 0 && room(*node) > below);
        extra -= u64::from(more);
        (*node, n + more)
    };
    order.iter().map(take).collect()
}

/// Assigns one rank to each node in turn, until each has its number.
fn deal(mut counts: Vec<(usize, u32)>) -> Vec<usize> {
    let mut ranks = Vec::new();
    while !counts.is_empty() {
        counts.retain_mut(|(node, left)| {
            if *left > 0 {
                ranks.push(*node);
                *left -= 1;
            }
            *left > 0
        });
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns `racks` racks of `k` nodes named h1, h2, ..., in reverse order, with `slots` free
    /// slots each.
    fn cluster(racks: u32, k: u32, slots: u32) -> Vec<CandidateNode> {
        let node = |i: u32| CandidateNode { name: format!("h{}", i + 1), rack: i / k, slots, free: slots };
        (0..racks * k).rev().map(node).collect()
    }

    fn names(nodes: &[CandidateNode], request: AllocationRequest) -> String {
        let ranks = allocate(nodes, request).unwrap();
        ranks.iter().map(|h| nodes[*h].name.as_str()).collect::<Vec<_>>().join(" ")
    }

    fn racked(ranks: u32, per_node: u32) -> AllocationRequest {
        AllocationRequest { ranks, per_node, placement: RankPlacement::Racked }
    }

    fn interleaved(ranks: u32, per_node: u32) -> AllocationRequest {
        AllocationRequest { ranks, per_node, placement: RankPlacement::Interleaved }
    }

    #[test]
    fn racked_fills_racks_in_natural_order() {
        assert_eq!(names(&cluster(3, 4, 1), racked(10, 0)), "h1 h2 h3 h4 h5 h6 h7 h8 h9 h10");
        assert_eq!(names(&cluster(2, 2, 2), racked(6, 0)), "h1 h1 h2 h2 h3 h4");
        assert_eq!(names(&cluster(2, 2, 2), racked(3, 2)), "h1 h1 h2");
    }

    #[test]
    fn the_order_does_not_depend_on_the_numbers_of_racks() {
        let mut nodes = cluster(2, 2, 1);
        nodes.iter_mut().for_each(|node| node.rack = 1 - node.rack);
        assert_eq!(names(&nodes, racked(3, 0)), "h1 h2 h3");
        assert_eq!(names(&nodes, interleaved(3, 0)), "h1 h3 h2");
    }

    #[test]
    fn racked_uses_as_few_racks_as_possible() {
        let mut nodes = cluster(3, 2, 2);
        // h1 is busy. Two ranks on separate nodes fit into rack 1, and so do four.
        nodes[5].free = 0;
        assert_eq!(names(&nodes, racked(2, 0)), "h3 h4");
        assert_eq!(names(&nodes, racked(4, 2)), "h3 h3 h4 h4");
        // Ranks that fit into the fuller rack leave the emptier ones untouched.
        assert_eq!(names(&nodes, racked(2, 2)), "h2 h2");
        assert_eq!(names(&nodes, racked(6, 2)), "h2 h2 h3 h3 h4 h4");
    }

    #[test]
    fn interleaved_deals_round_robin_over_racks() {
        assert_eq!(names(&cluster(2, 2, 2), interleaved(4, 0)), "h1 h3 h2 h4");
        assert_eq!(names(&cluster(2, 2, 2), interleaved(6, 0)), "h1 h3 h2 h4 h1 h3");
        assert_eq!(names(&cluster(2, 2, 2), interleaved(4, 2)), "h1 h3 h1 h3");
    }

    #[test]
    fn zero_ranks_means_every_node() {
        assert_eq!(names(&cluster(2, 2, 3), racked(0, 0)), "h1 h2 h3 h4");
        assert_eq!(names(&cluster(2, 1, 3), racked(0, 2)), "h1 h1 h2 h2");
    }

    #[test]
    fn a_refusal_states_requested_and_available_slots() {
        let refusal = |nodes: &[CandidateNode], request| allocate(nodes, request).unwrap_err().to_string();
        let mut nodes = cluster(3, 4, 1);
        assert_eq!(
            refusal(&nodes, racked(16, 0)),
            "16 ranks requested, but 12 slots on 12 nodes; request at most 12, or start agents with more --slots"
        );
        nodes[3].free = 0;
        let text = "12 ranks requested, but 11 slots free (1 more in use by other jobs) on 12 nodes; ";
        let remedy = "wait until other jobs end, or request at most 11, or start agents with more --slots";
        assert_eq!(refusal(&nodes, racked(12, 0)), format!("{text}{remedy}"));
        assert_eq!(
            refusal(&cluster(1, 1, 8), racked(3, 2)),
            "3 ranks requested, but 2 slots on 1 node at 2 per node; request at most 2, or allow more ranks per node"
        );
        assert!(refusal(&[], racked(1, 0)).contains("no node is ready"));
    }

    proptest! {
        #[test]
        fn every_rank_gets_a_free_slot_unless_too_few_are_free(
            slots in prop::collection::vec((0u32..4, 0u32..5), 1..12),
            ranks in 1u32..30,
            per_node in 0u32..4,
            racked in any::<bool>(),
        ) {
            let nodes: Vec<CandidateNode> = (0..).zip(&slots).map(|(i, (rack, free))| {
                CandidateNode { name: format!("n{i}"), rack: *rack, slots: 5, free: *free }
            }).collect();
            let placement = if racked { RankPlacement::Racked } else { RankPlacement::Interleaved };
            let bound = |free: u32| if per_node == 0 { free } else { free.min(per_node) };
            let room: u32 = nodes.iter().map(|h| bound(h.free)).sum();
            match allocate(&nodes, AllocationRequest { ranks, per_node, placement }) {
                Ok(places) => {
                    prop_assert_eq!(places.len(), ranks as usize);
                    for (i, node) in nodes.iter().enumerate() {
                        let here = places.iter().filter(|p| **p == i).count();
                        prop_assert!(here <= bound(node.free) as usize);
                    }
                }
                Err(_) => prop_assert!(room < ranks),
            }
        }

    }
}
