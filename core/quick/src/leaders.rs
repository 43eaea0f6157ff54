//! The node leaders of a group, which execute its calls between nodes. They form a layout of their
//! own, with one rank per node.

use cool_collective::{Layout, Rank, RankPlace};
use cool_types::{Call, Operation};

/// The node leaders of a group, numbered in the order of their ranks. If each rank has a node of
/// its own, a leader's number is its rank.
#[derive(Clone, Debug)]
pub struct NodeLeaders {
    layout: Layout,
    /// For each leader the ranks of its node, ascending. The first is the leader.
    nodes: Vec<Vec<Rank>>,
    /// For each rank the number of its leader.
    leader_of: Vec<usize>,
}

impl NodeLeaders {
    /// Returns the leaders of a group, or `None` if they do not form a layout, which does not occur
    /// for a valid group.
    pub fn for_group(group: &Layout) -> Option<NodeLeaders> {
        let mut nodes: Vec<Vec<Rank>> =
            (0..group.nodes()).map(|node| group.ranks_of_node(node).to_vec()).collect();
        nodes.sort();
        let place = |ranks: &Vec<Rank>| {
            let leader = *ranks.first()?;
            Some(RankPlace { rack: group.rack_of(leader) as u32, node: group.node_of(leader) as u32 })
        };
        let places: Vec<RankPlace> = nodes.iter().map(place).collect::<Option<_>>()?;
        let mut leader_of = vec![0; group.size()];
        for (leader, ranks) in nodes.iter().enumerate() {
            ranks.iter().for_each(|rank| leader_of[rank.0 as usize] = leader);
        }
        Some(NodeLeaders { layout: Layout::new(&places).ok()?, nodes, leader_of })
    }

    /// Returns the layout of the leaders, by their numbers.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the number of ranks in the group.
    pub fn size(&self) -> usize {
        self.leader_of.len()
    }

    /// Returns the number of the leader of a rank's node.
    pub fn leader_of(&self, rank: Rank) -> usize {
        self.leader_of[rank.0 as usize]
    }

    /// Returns the ranks of a leader's node, ascending.
    pub fn ranks_of(&self, leader: usize) -> &[Rank] {
        &self.nodes[leader]
    }

    /// Returns the call that the leaders make when the ranks make `call`, with the contributions of
    /// whole nodes. Returns `None` if no such call exists: nodes with different numbers of ranks
    /// have parts of different lengths, and a scan must follow the rank order.
    pub fn leader_call(&self, call: &Call) -> Option<Call> {
        if call.counts.is_some() {
            return None;
        }
        let most = self.nodes.iter().map(Vec::len).max()?;
        let per_node = match call.operation {
            Operation::Barrier | Operation::Bcast | Operation::Reduce | Operation::Allreduce => 1,
            Operation::Gather | Operation::Allgather | Operation::Scatter => {
                self.nodes.iter().all(|ranks| ranks.len() == most).then_some(most as u64)?
            }
            _ if most == 1 => 1,
            _ => return None,
        };
        let root = self.leader_of(call.root) as u32;
        Some(Call { root: Rank(root), bytes: call.bytes * per_node, ..call.clone() })
    }

    /// Returns the parts of all ranks in rank order, given the node order in which leaders hold
    /// them.
    pub fn to_rank_order(&self, parts: &[u8]) -> Vec<u8> {
        self.reordered(parts, |from, to| (from, to))
    }

    /// Returns the parts of all ranks in node order, given the rank order.
    pub fn to_node_order(&self, parts: &[u8]) -> Vec<u8> {
        self.reordered(parts, |from, to| (to, from))
    }

    /// Returns the reordered parts. `places` returns the source and destination offset of a part,
    /// given its offset in node order and in rank order.
    fn reordered(&self, parts: &[u8], places: impl Fn(usize, usize) -> (usize, usize)) -> Vec<u8> {
        let each = parts.len() / self.size();
        let mut reordered = vec![0; parts.len()];
        for (at, rank) in self.nodes.iter().flatten().enumerate() {
            let (from, to) = places(at * each, rank.0 as usize * each);
            reordered[to..to + each].copy_from_slice(&parts[from..from + each]);
        }
        reordered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaders(nodes: &[u32]) -> NodeLeaders {
        let places: Vec<RankPlace> =
            nodes.iter().map(|node| RankPlace { rack: node % 2, node: *node }).collect();
        NodeLeaders::for_group(&Layout::new(&places).unwrap()).unwrap()
    }

    #[test]
    fn leaders_are_numbered_by_rank_in_all_racks() {
        let interleaved = leaders(&[5, 2, 7, 4]);
        assert_eq!((0..4).map(|rank| interleaved.leader_of(Rank(rank))).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let shared = leaders(&[1, 0, 1, 0, 2, 2]);
        assert_eq!((0..6).map(|rank| shared.leader_of(Rank(rank))).collect::<Vec<_>>(), [0, 1, 0, 1, 2, 2]);
        assert_eq!(shared.ranks_of(1), [Rank(1), Rank(3)]);
        let layout = shared.layout();
        assert_eq!((layout.nodes(), layout.size(), layout.racks()), (3, 3, 2));
        assert_eq!(layout.rack_of(Rank(1)), layout.rack_of(Rank(2)));
    }

    #[test]
    fn leaders_call_with_the_parts_of_their_whole_node() {
        let (even, uneven) = (leaders(&[0, 1, 0, 1]), leaders(&[0, 0, 1]));
        let call = |leaders: &NodeLeaders, operation| {
            let call = leaders.leader_call(&Call::new(operation, Rank(2), 8, 8))?;
            Some((call.root.0, call.bytes))
        };
        assert_eq!(call(&even, Operation::Bcast), Some((0, 8)));
        assert_eq!(call(&even, Operation::Gather), Some((0, 16)));
        assert_eq!(call(&uneven, Operation::Reduce), Some((1, 8)));
        assert_eq!([call(&uneven, Operation::Scatter), call(&even, Operation::Scan)], [None, None]);
        assert_eq!(call(&leaders(&[1, 0, 2]), Operation::Scan), Some((2, 8)));
    }

    #[test]
    fn parts_are_put_in_order_and_back() {
        let leaders = leaders(&[0, 1, 0, 1]);
        assert_eq!(leaders.to_rank_order(b"aaccbbdd"), b"aabbccdd");
        assert_eq!(leaders.to_node_order(b"aabbccdd"), b"aaccbbdd");
        assert_eq!(leaders.to_rank_order(b""), b"");
    }
}
