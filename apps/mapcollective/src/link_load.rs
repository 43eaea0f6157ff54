//! The network load of an exchange. All ranks compute the same load before the exchange, so they
//! choose the same method.

use cool::Comm;
use std::ops::Range;

/// Returns the indices of the items that belong to `rank` if `count` items are divided among
/// `ranks` ranks, in runs of nearly equal lengths.
pub(crate) fn share(count: usize, ranks: usize, rank: usize) -> Range<usize> {
    let start = |rank: usize| (count as u128 * rank as u128 / ranks as u128) as usize;
    start(rank)..start(rank + 1)
}

/// Where each rank of a group runs.
#[derive(Clone, Debug)]
pub(crate) struct RankLayout {
    /// Node of each rank.
    nodes: Vec<usize>,
    /// Rack of each rank.
    racks: Vec<usize>,
}

impl RankLayout {
    /// Returns the layout of a single process.
    pub(crate) fn alone() -> RankLayout {
        RankLayout { nodes: vec![0], racks: vec![0] }
    }

    pub(crate) fn from_comm(comm: &Comm) -> RankLayout {
        let places = || (0..comm.size()).filter_map(|rank| comm.place(rank));
        RankLayout { nodes: places().map(|p| p.node).collect(), racks: places().map(|p| p.rack).collect() }
    }

    pub(crate) fn ranks(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the ranks on a rank's node, including itself.
    pub(crate) fn ranks_on_node_of(&self, rank: usize) -> Vec<usize> {
        (0..self.ranks()).filter(|other| self.nodes[*other] == self.nodes[rank]).collect()
    }

    /// Returns whether any ranks share a node.
    pub(crate) fn shares_nodes(&self) -> bool {
        (0..self.ranks()).any(|rank| self.nodes[..rank].contains(&self.nodes[rank]))
    }

    /// Returns the ranks in a rank's rack, including itself.
    pub(crate) fn ranks_in_rack_of(&self, rank: usize) -> Vec<usize> {
        (0..self.ranks()).filter(|other| self.racks[*other] == self.racks[rank]).collect()
    }

    /// Returns, for each rack and each owner of keys, the merger: the rank of the rack that merges
    /// the values of the rack's ranks for that owner. Only the first rank of each node can be a
    /// merger. If the owner is in the same rack, its merger is on its node, so that no value moves
    /// between the rack's nodes twice. A rack without ranks has an empty list.
    fn mergers(&self) -> Vec<Vec<usize>> {
        let mut firsts = vec![Vec::new(); empty_links(&self.racks).len()];
        for rank in (0..self.ranks()).filter(|rank| !self.nodes[..*rank].contains(&self.nodes[*rank])) {
            firsts[self.racks[rank]].push(rank);
        }
        let place = |owner: usize| {
            let on_node = |first: &usize| self.nodes[*first] == self.nodes[owner];
            firsts[self.racks[owner]].iter().position(on_node).unwrap_or_default()
        };
        let places: Vec<usize> = (0..self.ranks()).map(place).collect();
        let of_rack = |firsts: &Vec<usize>| places.iter().map(|p| firsts[p % firsts.len()]).collect();
        firsts.iter().map(|firsts| if firsts.is_empty() { Vec::new() } else { of_rack(firsts) }).collect()
    }

    /// Returns, for each owner, the rank in this rank's rack that merges the values for it.
    pub(crate) fn mergers_for(&self, rank: usize) -> Vec<usize> {
        self.mergers().swap_remove(self.racks[rank])
    }

    /// Returns the load of links when rank i sends `bytes(i, j)` to rank j.
    pub(crate) fn exchange(&self, bytes: impl Fn(usize, usize) -> u64) -> LinkBytes {
        let mut links = LinkBytes::none(self);
        self.each_pair(|from, to| links.carry(self, from, to, bytes(from, to)));
        links
    }

    /// Returns the load of links when all ranks send their values to the mergers of their racks.
    /// Links of racks have no load.
    pub(crate) fn mergers_gather(&self, bytes: impl Fn(usize, usize) -> u64) -> LinkBytes {
        let (mut links, mergers) = (LinkBytes::none(self), self.mergers());
        self.each_pair(|from, to| links.carry(self, from, mergers[self.racks[from]][to], bytes(from, to)));
        links
    }

    /// Returns the maximum load of links when mergers send the values to the owners. This load
    /// occurs if no two ranks of a rack have values of the same key.
    pub(crate) fn mergers_send(&self, bytes: impl Fn(usize, usize) -> u64) -> LinkBytes {
        let (mut links, mergers) = (LinkBytes::none(self), self.mergers());
        self.each_pair(|from, to| links.carry(self, mergers[self.racks[from]][to], to, bytes(from, to)));
        links
    }

    fn each_pair(&self, mut visit: impl FnMut(usize, usize)) {
        (0..self.ranks()).for_each(|from| (0..self.ranks()).for_each(|to| visit(from, to)));
    }

    /// Returns the load of links when each rank sends its number of `bytes` to all others by
    /// multicast, and thus once over each link.
    pub(crate) fn to_all(&self, bytes: &[u64]) -> LinkBytes {
        let total: u64 = bytes.iter().sum();
        let links = |places: &[usize]| {
            let mut links = empty_links(places);
            places.iter().zip(bytes).for_each(|(place, bytes)| links[*place][0] += bytes);
            links.iter_mut().for_each(|link| link[1] = total - link[0]);
            if links.len() == 1 { empty_links(places) } else { links }
        };
        LinkBytes { nodes: links(&self.nodes), racks: links(&self.racks) }
    }

    /// Returns the load of links of a reduce-scatter of vectors of `bytes` bytes: within each node
    /// first, then along a ring of all nodes that enters each rack once.
    pub(crate) fn reduce_scatter(&self, bytes: u64) -> LinkBytes {
        let nodes = empty_links(&self.nodes).len() as u64;
        let links = |places: &[usize]| {
            let links = empty_links(places);
            let each = if links.len() == 1 { 0 } else { bytes - bytes / nodes };
            vec![[each; 2]; links.len()]
        };
        LinkBytes { nodes: links(&self.nodes), racks: links(&self.racks) }
    }
}

/// Payload bytes on the link of each node and of each rack: first those that leave the node or
/// rack, then those that enter it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkBytes {
    nodes: Vec<[u64; 2]>,
    racks: Vec<[u64; 2]>,
}

impl LinkBytes {
    /// Returns the links of a layout, without load.
    fn none(layout: &RankLayout) -> LinkBytes {
        LinkBytes { nodes: empty_links(&layout.nodes), racks: empty_links(&layout.racks) }
    }

    /// Adds the load of a message from one rank to another.
    fn carry(&mut self, layout: &RankLayout, from: usize, to: usize, bytes: u64) {
        for (links, places) in [(&mut self.nodes, &layout.nodes), (&mut self.racks, &layout.racks)] {
            if places[from] != places[to] {
                links[places[from]][0] += bytes;
                links[places[to]][1] += bytes;
            }
        }
    }

    /// Returns the load of the busiest node link in one direction.
    pub(crate) fn busiest_of_nodes(&self) -> u64 {
        self.nodes.iter().flatten().copied().max().unwrap_or(0)
    }

    /// Returns the load of the busiest link in one direction.
    pub fn busiest(&self) -> u64 {
        self.nodes.iter().chain(&self.racks).flatten().copied().max().unwrap_or(0)
    }

    /// Returns the total load of several stages.
    pub fn sum<'a>(stages: impl IntoIterator<Item = &'a LinkBytes>) -> LinkBytes {
        let mut all = LinkBytes::default();
        for stage in stages {
            for (sums, links) in [(&mut all.nodes, &stage.nodes), (&mut all.racks, &stage.racks)] {
                sums.resize(sums.len().max(links.len()), [0; 2]);
                sums.iter_mut()
                    .zip(links)
                    .for_each(|(sum, link)| *sum = [sum[0] + link[0], sum[1] + link[1]]);
            }
        }
        all
    }
}

/// Returns one link without load for each number of a node or rack, up to the largest in `places`.
fn empty_links(places: &[usize]) -> Vec<[u64; 2]> {
    vec![[0; 2]; places.iter().max().map_or(1, |last| last + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two racks with two nodes each and two ranks per node.
    fn layout() -> RankLayout {
        let by = |n: usize| (0..8).map(|rank| rank / n).collect();
        RankLayout { nodes: by(2), racks: by(4) }
    }

    #[test]
    fn messages_within_a_node_load_no_link() {
        assert_eq!(layout().exchange(|from, to| u64::from(from / 2 == to / 2) * 9).busiest(), 0);
        assert!(layout().shares_nodes());
        assert_eq!(layout().ranks_on_node_of(5), [4, 5]);
        assert_eq!(RankLayout::alone().to_all(&[7]).busiest(), 0);
        assert_eq!(RankLayout::alone().reduce_scatter(7).busiest(), 0);
    }

    #[test]
    fn a_racks_link_carries_the_traffic_of_its_ranks_to_other_racks() {
        // Each of the 6 ranks of other nodes receives from 2 ranks; each of the 4 ranks of the
        // other rack receives from 4.
        assert_eq!(layout().exchange(|_, _| 1).busiest(), 16);
        assert_eq!(layout().exchange(|from, to| u64::from(from / 4 == to / 4)).busiest(), 4);
        assert_eq!(layout().to_all(&[1; 8]).busiest(), 6);
        assert_eq!(layout().to_all(&[8, 0, 0, 0, 0, 0, 0, 0]).busiest(), 8);
        assert_eq!(layout().reduce_scatter(100).busiest(), 75);
    }

    #[test]
    fn stages_are_added_up_link_by_link() {
        let out = layout().exchange(|from, to| u64::from(from == 0 && to == 7) * 5);
        let back = layout().exchange(|from, to| u64::from(from == 7 && to == 0) * 3);
        assert_eq!(LinkBytes::sum([&out, &back]).busiest(), 5);
        assert_eq!(LinkBytes::sum([&out, &out]).busiest(), 10);
    }

    #[test]
    fn mergers_are_on_the_owners_node_or_alternate() {
        assert_eq!(layout().mergers_for(1), [0, 0, 2, 2, 0, 0, 2, 2]);
        assert_eq!(layout().mergers_for(7), [4, 4, 6, 6, 4, 4, 6, 6]);
        // A rack without ranks, as can occur after losses, and a rack with a single node.
        let uneven = RankLayout { nodes: vec![0, 1, 2, 4], racks: vec![0, 0, 0, 2] };
        assert_eq!(uneven.mergers(), [vec![0, 1, 2, 0], vec![], vec![3; 4]]);
    }

    #[test]
    fn merging_in_racks_loads_node_links_more_but_not_rack_links() {
        let by = |n: usize| (0..16).map(|rank| rank / n).collect();
        let layout = RankLayout { nodes: by(1), racks: by(4) };
        let straight = layout.exchange(|_, _| 1);
        let carried = LinkBytes::sum([&layout.mergers_gather(|_, _| 1), &layout.mergers_send(|_, _| 1)]);
        assert_eq!(straight.racks, carried.racks);
        assert_eq!((straight.busiest_of_nodes(), straight.busiest()), (15, 48));
        assert_eq!(carried.busiest_of_nodes(), 12 + 12);
    }
}
