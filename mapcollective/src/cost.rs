//! What an exchange puts on the network, counted before anything is sent, and by all ranks alike.

use cool::Comm;
use std::ops::Range;

/// A rank's run of `count` things, of as even lengths as can be.
pub(crate) fn share(count: usize, ranks: usize, rank: usize) -> Range<usize> {
    let start = |rank: usize| (count as u128 * rank as u128 / ranks as u128) as usize;
    start(rank)..start(rank + 1)
}

/// Where each rank of a group runs.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Of each rank, its node.
    nodes: Vec<usize>,
    /// Of each rank, its rack.
    racks: Vec<usize>,
}

impl Layout {
    /// Of a process without others.
    pub(crate) fn alone() -> Layout {
        Layout { nodes: vec![0], racks: vec![0] }
    }

    pub(crate) fn of(comm: &Comm) -> Layout {
        let places = || (0..comm.size()).filter_map(|rank| comm.place(rank));
        Layout { nodes: places().map(|p| p.node).collect(), racks: places().map(|p| p.rack).collect() }
    }

    pub(crate) fn ranks(&self) -> usize {
        self.nodes.len()
    }

    /// The ranks of a rank's node, itself among them.
    pub(crate) fn on_node_of(&self, rank: usize) -> Vec<usize> {
        (0..self.ranks()).filter(|other| self.nodes[*other] == self.nodes[rank]).collect()
    }

    /// Whether some ranks share a node.
    pub(crate) fn shares_nodes(&self) -> bool {
        (0..self.ranks()).any(|rank| self.nodes[..rank].contains(&self.nodes[rank]))
    }

    /// The bytes that the busiest link of a node, or of a rack to the others, carries in one direction when rank i
    /// sends `bytes(i, j)` to rank j.
    pub(crate) fn busiest(&self, bytes: impl Fn(usize, usize) -> u64) -> u64 {
        busiest(&self.nodes, &bytes).max(busiest(&self.racks, &bytes))
    }

    /// The same when every rank's own `bytes` go to all others, once over each link.
    pub(crate) fn busiest_to_all(&self, bytes: &[u64]) -> u64 {
        let total: u64 = bytes.iter().sum();
        let one = |places: &[usize]| {
            let inside =
                |place| (0..places.len()).filter(move |r| places[*r] == place).map(|r| bytes[r]).sum::<u64>();
            let all = places.iter().all(|place| *place == places[0]);
            if all { 0 } else { places.iter().map(|p| inside(*p).max(total - inside(*p))).max().unwrap_or(0) }
        };
        one(&self.nodes).max(one(&self.racks))
    }

    /// The same when equally long vectors of `bytes` are added up and spread over all nodes, each node's ranks first.
    pub(crate) fn busiest_reduce_scatter(&self, bytes: u64) -> u64 {
        let nodes = self.nodes.iter().max().map_or(1, |last| last + 1) as u64;
        bytes - bytes / nodes
    }
}

/// The most that any place sends to the others, or receives from them.
fn busiest(places: &[usize], bytes: &impl Fn(usize, usize) -> u64) -> u64 {
    let count = places.iter().max().map_or(0, |last| last + 1);
    let mut totals = vec![[0u64; 2]; count];
    for (from, sender) in places.iter().enumerate() {
        for (to, receiver) in places.iter().enumerate().filter(|(_, receiver)| *receiver != sender) {
            totals[*sender][0] += bytes(from, to);
            totals[*receiver][1] += bytes(from, to);
        }
    }
    totals.into_iter().flatten().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two racks of two nodes of two ranks.
    fn layout() -> Layout {
        let by = |n: usize| (0..8).map(|rank| rank / n).collect();
        Layout { nodes: by(2), racks: by(4) }
    }

    #[test]
    fn what_stays_within_a_node_is_on_no_link() {
        assert_eq!(layout().busiest(|from, to| u64::from(from / 2 == to / 2) * 9), 0);
        assert!(layout().shares_nodes());
        assert_eq!(layout().on_node_of(5), [4, 5]);
    }

    #[test]
    fn a_racks_link_carries_what_all_its_ranks_send_to_other_racks() {
        // To each of the 6 ranks of other nodes from 2 ranks; to each of 4 ranks of the other rack from 4.
        assert_eq!(layout().busiest(|_, _| 1), 16);
        assert_eq!(layout().busiest(|from, to| u64::from(from / 4 == to / 4)), 4);
        assert_eq!(layout().busiest_to_all(&[1; 8]), 6);
        assert_eq!(layout().busiest_to_all(&[8, 0, 0, 0, 0, 0, 0, 0]), 8);
        assert_eq!(layout().busiest_reduce_scatter(100), 75);
    }
}
