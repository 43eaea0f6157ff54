//! Where the ranks of a job run: a pure function from the nodes with free slots to a node for each rank.
//!
//! Which nodes exist and what else runs on them is the caller's knowledge.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

/// A node that can take ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The node's name.
    pub name: String,
    /// Its rack.
    pub rack: u32,
    /// Ranks it takes at once.
    pub slots: u32,
    /// Slots that no other job uses.
    pub free: u32,
}

/// In which order ranks are given to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Neighbouring ranks share a rack: in as few racks as there is room in, and of those that fit in the fullest;
    /// rack by rack, in a rack by node name.
    Racked,
    /// Neighbouring ranks are in different racks: dealt round robin over the racks.
    Interleaved,
}

/// What a job asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationRequest {
    /// Number of ranks; 0: as many as `per_node` gives on every node.
    pub ranks: u32,
    /// Ranks on each node used; 0: spread over as many nodes as possible (one a node if `ranks` is 0).
    pub per_node: u32,
    /// The order.
    pub placement: Placement,
}

/// Why there is no room for a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// No node can take a rank.
    #[error("no node is ready: none has both registered and been found on the network by LLDP")]
    NoNodes,
    /// Too few slots.
    #[error("{asked} ranks asked, {free} slots {}on {}", busy_note(*.busy), nodes_note(*.nodes, *.per_node))]
    Lacking {
        /// Ranks asked for.
        asked: u64,
        /// Slots that the job could have.
        free: u64,
        /// Slots that other jobs use.
        busy: u64,
        /// Nodes that are ready.
        nodes: usize,
        /// The request's bound for a node; 0: none.
        per_node: u32,
    },
}

fn busy_note(busy: u64) -> String {
    if busy == 0 { String::new() } else { format!("free ({busy} more in use by other jobs) ") }
}

fn nodes_note(nodes: usize, per_node: u32) -> String {
    let plural = if nodes == 1 { "" } else { "s" };
    match per_node {
        0 => format!("{nodes} node{plural}"),
        k => format!("{nodes} node{plural} at {k} a node"),
    }
}

/// For each rank the index of its node in `hosts`.
///
/// # Errors
/// If there are fewer free slots than ranks.
pub fn allocate(hosts: &[Host], request: AllocationRequest) -> Result<Vec<usize>, AllocateError> {
    if hosts.is_empty() {
        return Err(AllocateError::NoNodes);
    }
    let per_node = if request.ranks == 0 { request.per_node.max(1) } else { request.per_node };
    let room = |host: usize| if per_node == 0 { hosts[host].free } else { hosts[host].free.min(per_node) };
    let asked = match request.ranks {
        0 => u64::from(per_node) * hosts.len() as u64,
        n => u64::from(n),
    };
    let free: u64 = (0..hosts.len()).map(|h| u64::from(room(h))).sum();
    if free < asked {
        let busy = hosts.iter().map(|h| u64::from(h.slots.saturating_sub(h.free))).sum();
        return Err(AllocateError::Lacking { asked, free, busy, nodes: hosts.len(), per_node });
    }
    let most = if per_node == 0 { level(hosts, asked) } else { per_node };
    let order = order(hosts, request.placement, |h| room(h).min(most), asked);
    let counts = if per_node == 0 { spread(&order, asked, most, room) } else { fill(&order, asked, room) };
    Ok(match request.placement {
        Placement::Racked => counts.iter().flat_map(|(host, n)| (0..*n).map(|_| *host)).collect(),
        Placement::Interleaved => deal(counts),
    })
}

/// The nodes in the order in which they are taken for `asked` ranks, if each takes up to its `room`.
fn order(hosts: &[Host], placement: Placement, room: impl Fn(usize) -> u32, asked: u64) -> Vec<usize> {
    let mut racks: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (index, host) in hosts.iter().enumerate() {
        racks.entry(host.rack).or_default().push(index);
    }
    for rack in racks.values_mut() {
        rack.sort_by(|a, b| natural(&hosts[*a].name, &hosts[*b].name));
    }
    match placement {
        Placement::Racked => {
            let all = |rack: &[usize]| rack.iter().map(|h| u64::from(room(*h))).sum();
            let chosen = fewest(racks.iter().map(|(rack, hosts)| (*rack, all(hosts))).collect(), asked);
            chosen.iter().filter_map(|rack| racks.remove(rack)).flatten().collect()
        }
        Placement::Interleaved => {
            let longest = racks.values().map(Vec::len).max().unwrap_or(0);
            (0..longest).flat_map(|i| racks.values().filter_map(move |rack| rack.get(i).copied())).collect()
        }
    }
}

/// The fewest racks, given with their room, in which `asked` ranks have room: the roomiest, and last the one that is
/// just large enough. All of them if the room of all does not exceed what is asked.
fn fewest(mut racks: Vec<(u32, u64)>, asked: u64) -> BTreeSet<u32> {
    let (mut chosen, mut left) = (BTreeSet::new(), asked);
    racks.sort_by_key(|(rack, room)| (Reverse(*room), *rack));
    while left > 0 && !racks.is_empty() {
        // The last that is large enough is the smallest; of equal ones the first.
        let enough = racks.partition_point(|(_, room)| *room >= left);
        let smallest = enough.checked_sub(1).map(|last| racks[last].1);
        let take = smallest.map_or(0, |room| racks.partition_point(|(_, other)| *other > room));
        let (rack, room) = racks.remove(take);
        chosen.insert(rack);
        left = left.saturating_sub(room);
    }
    chosen
}

/// The least number a node under which all ranks have room.
fn level(hosts: &[Host], asked: u64) -> u32 {
    let within = |level: u32| hosts.iter().map(|h| u64::from(h.free.min(level))).sum::<u64>();
    let (mut low, mut high) = (0, u32::MAX);
    while low < high {
        let middle = low + (high - low) / 2;
        if within(middle) < asked { low = middle + 1 } else { high = middle }
    }
    low
}

/// Node after node to its bound.
fn fill(order: &[usize], asked: u64, room: impl Fn(usize) -> u32) -> Vec<(usize, u32)> {
    let mut left = asked;
    let take = |host: &usize| {
        let n = u64::from(room(*host)).min(left);
        left -= n;
        (*host, n as u32)
    };
    order.iter().map(take).collect()
}

/// As evenly as free slots allow, at most `most` a node; the first nodes hold one more than the others.
fn spread(order: &[usize], asked: u64, most: u32, room: impl Fn(usize) -> u32) -> Vec<(usize, u32)> {
    let below = most.saturating_sub(1);
    let within = |level: u32| order.iter().map(|h| u64::from(room(*h).min(level))).sum::<u64>();
    let mut extra = asked - within(below);
    let take = |host: &usize| {
        let n = room(*host).min(below);
        let more = u32::from(extra > 0 && room(*host) > below);
        extra -= u64::from(more);
        (*host, n + more)
    };
    order.iter().map(take).collect()
}

/// One rank to each node in turn, until all have their number.
fn deal(mut counts: Vec<(usize, u32)>) -> Vec<usize> {
    let mut ranks = Vec::new();
    while !counts.is_empty() {
        counts.retain_mut(|(host, left)| {
            if *left > 0 {
                ranks.push(*host);
                *left -= 1;
            }
            *left > 0
        });
    }
    ranks
}

/// Compares names as people count: h2 before h10.
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut x, mut y) = (a, b);
    while let (Some(p), Some(q)) = (x.chars().next(), y.chars().next()) {
        if p.is_ascii_digit() && q.is_ascii_digit() {
            let (m, n) = (digits(x), digits(y));
            let (s, t) = (m.trim_start_matches('0'), n.trim_start_matches('0'));
            let by_value = s.len().cmp(&t.len()).then_with(|| s.cmp(t));
            if by_value != Ordering::Equal {
                return by_value;
            }
            (x, y) = (&x[m.len()..], &y[n.len()..]);
        } else if p != q {
            return p.cmp(&q);
        } else {
            (x, y) = (&x[p.len_utf8()..], &y[q.len_utf8()..]);
        }
    }
    // Equal but for leading zeros or a rest: the plain order keeps this a total order.
    x.len().cmp(&y.len()).then_with(|| a.cmp(b))
}

fn digits(s: &str) -> &str {
    &s[..s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `racks` racks of `k` nodes h1, h2, ... given in reverse, with `slots` free slots each.
    fn cluster(racks: u32, k: u32, slots: u32) -> Vec<Host> {
        let host = |i: u32| Host { name: format!("h{}", i + 1), rack: i / k, slots, free: slots };
        (0..racks * k).rev().map(host).collect()
    }

    fn names(hosts: &[Host], request: AllocationRequest) -> String {
        let ranks = allocate(hosts, request).unwrap();
        ranks.iter().map(|h| hosts[*h].name.as_str()).collect::<Vec<_>>().join(" ")
    }

    fn racked(ranks: u32, per_node: u32) -> AllocationRequest {
        AllocationRequest { ranks, per_node, placement: Placement::Racked }
    }

    fn interleaved(ranks: u32, per_node: u32) -> AllocationRequest {
        AllocationRequest { ranks, per_node, placement: Placement::Interleaved }
    }

    #[test]
    fn racked_fills_rack_by_rack_in_natural_order() {
        assert_eq!(names(&cluster(3, 4, 1), racked(10, 0)), "h1 h2 h3 h4 h5 h6 h7 h8 h9 h10");
        assert_eq!(names(&cluster(2, 2, 2), racked(6, 0)), "h1 h1 h2 h2 h3 h4");
        assert_eq!(names(&cluster(2, 2, 2), racked(3, 2)), "h1 h1 h2");
    }

    #[test]
    fn racked_uses_as_few_racks_as_have_room() {
        let mut hosts = cluster(3, 2, 2);
        // h1 is busy: two ranks on nodes of their own fit into rack 1, four too.
        hosts[5].free = 0;
        assert_eq!(names(&hosts, racked(2, 0)), "h3 h4");
        assert_eq!(names(&hosts, racked(4, 2)), "h3 h3 h4 h4");
        // What fits into the fuller rack leaves the emptier ones whole.
        assert_eq!(names(&hosts, racked(2, 2)), "h2 h2");
        assert_eq!(names(&hosts, racked(6, 2)), "h2 h2 h3 h3 h4 h4");
    }

    #[test]
    fn interleaved_deals_round_robin_over_racks() {
        assert_eq!(names(&cluster(2, 2, 2), interleaved(4, 0)), "h1 h3 h2 h4");
        assert_eq!(names(&cluster(2, 2, 2), interleaved(6, 0)), "h1 h3 h2 h4 h1 h3");
        assert_eq!(names(&cluster(2, 2, 2), interleaved(4, 2)), "h1 h3 h1 h3");
    }

    #[test]
    fn no_number_means_every_node() {
        assert_eq!(names(&cluster(2, 2, 3), racked(0, 0)), "h1 h2 h3 h4");
        assert_eq!(names(&cluster(2, 1, 3), racked(0, 2)), "h1 h1 h2 h2");
    }

    #[test]
    fn a_refusal_names_what_is_lacking() {
        let refusal = |hosts: &[Host], request| allocate(hosts, request).unwrap_err().to_string();
        let mut hosts = cluster(3, 4, 1);
        assert_eq!(refusal(&hosts, racked(16, 0)), "16 ranks asked, 12 slots on 12 nodes");
        hosts[3].free = 0;
        let text = "12 ranks asked, 11 slots free (1 more in use by other jobs) on 12 nodes";
        assert_eq!(refusal(&hosts, racked(12, 0)), text);
        assert_eq!(refusal(&cluster(1, 1, 8), racked(3, 2)), "3 ranks asked, 2 slots on 1 node at 2 a node");
        assert!(refusal(&[], racked(1, 0)).contains("no node is ready"));
    }

    #[test]
    fn names_are_compared_as_people_count() {
        for (a, b) in
            [("h2", "h10"), ("h1", "h1a"), ("a9b2", "a9b11"), ("h09", "h10"), ("a", "b1"), ("", "a")]
        {
            assert_eq!(natural(a, b), Ordering::Less, "{a} {b}");
            assert_eq!(natural(b, a), Ordering::Greater, "{b} {a}");
        }
    }

    proptest! {
        #[test]
        fn every_rank_has_a_free_slot_and_refusals_are_only_for_lack(
            slots in prop::collection::vec((0u32..4, 0u32..5), 1..12),
            ranks in 1u32..30,
            per_node in 0u32..4,
            racked in any::<bool>(),
        ) {
            let hosts: Vec<Host> = (0..).zip(&slots).map(|(i, (rack, free))| {
                Host { name: format!("n{i}"), rack: *rack, slots: 5, free: *free }
            }).collect();
            let placement = if racked { Placement::Racked } else { Placement::Interleaved };
            let bound = |free: u32| if per_node == 0 { free } else { free.min(per_node) };
            let room: u32 = hosts.iter().map(|h| bound(h.free)).sum();
            match allocate(&hosts, AllocationRequest { ranks, per_node, placement }) {
                Ok(places) => {
                    prop_assert_eq!(places.len(), ranks as usize);
                    for (i, host) in hosts.iter().enumerate() {
                        let here = places.iter().filter(|p| **p == i).count();
                        prop_assert!(here <= bound(host.free) as usize);
                    }
                }
                Err(_) => prop_assert!(room < ranks),
            }
        }

        #[test]
        fn natural_order_is_total(names in prop::collection::vec("[a-b0-1]{0,5}", 3)) {
            let (a, b, c) = (&names[0], &names[1], &names[2]);
            prop_assert_eq!(natural(a, b), natural(b, a).reverse());
            prop_assert_eq!(natural(a, b) == Ordering::Equal, a == b);
            if natural(a, b).is_le() && natural(b, c).is_le() {
                prop_assert!(natural(a, c).is_le());
            }
        }
    }
}
