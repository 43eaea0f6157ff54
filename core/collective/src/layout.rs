//! The placement of a group's ranks: nodes, racks, subgroups and their leaders (COOL paper, III.A).
//!
//! Every agent computes the same layout from the same group, so layouts are never negotiated.

use cool_types::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// The place of one rank. The caller chooses the numbers; only equality and order matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankPlace {
    /// The rack, in the controller's stable numbering.
    pub rack: u32,
    /// The node. It must be unique over all racks.
    pub node: u32,
}

/// The nodes of a group that a tree connects, for schedules. A rack has its index in the layout
/// here, and the controller's number in `cool_types::TreeScope`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MulticastScope {
    /// All nodes.
    All,
    /// The nodes of the rack leaders.
    Leaders,
    /// The nodes of one rack, by its index in the layout.
    Rack(usize),
}

/// The nodes of a group in racks, both in chain order: racks by number, nodes of a rack by smallest
/// rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// For each rank the index of its node.
    node_of: Vec<usize>,
    /// For each node its ranks, ascending; the first is the node leader.
    nodes: Vec<Vec<Rank>>,
    /// For each node the index of its rack.
    rack_of_node: Vec<usize>,
    /// For each rack its nodes, ascending indices; the first node's leader is the rack leader.
    racks: Vec<core::ops::Range<usize>>,
    /// Number of trees over all nodes that share no link between switches.
    stripes: u32,
    /// Whether a tree reaches all nodes.
    has_tree: bool,
}

/// The reason why places do not form a layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The group has no ranks.
    #[error("a group needs at least one rank")]
    Empty,
    /// A node is in two racks.
    #[error(
        "node {node} is in rack {first} for one rank and in rack {second} for another; a node is in one rack"
    )]
    NodeInTwoRacks {
        /// The node.
        node: u32,
        /// One rack.
        first: u32,
        /// The other.
        second: u32,
    },
    /// A group names a rank twice.
    #[error("the group names {0} twice; name each rank once")]
    Twice(Rank),
    /// A group names a rank that its parent group does not have.
    #[error("the group names {rank}, but its parent has ranks 0 to {}", size - 1)]
    Outside {
        /// The rank.
        rank: Rank,
        /// Ranks of the parent group.
        size: usize,
    },
}

impl Layout {
    /// Returns the layout of a group with rank `i` at `places[i]`.
    ///
    /// # Errors
    /// Returns an error if there are no ranks, or a node is in two racks.
    pub fn new(places: &[RankPlace]) -> Result<Layout, LayoutError> {
        if places.is_empty() {
            return Err(LayoutError::Empty);
        }
        let mut by_node: BTreeMap<u32, (u32, Vec<Rank>)> = BTreeMap::new();
        for (rank, place) in (0u32..).zip(places) {
            let (rack, ranks) = by_node.entry(place.node).or_insert((place.rack, Vec::new()));
            if *rack != place.rack {
                return Err(LayoutError::NodeInTwoRacks {
                    node: place.node,
                    first: *rack,
                    second: place.rack,
                });
            }
            ranks.push(Rank(rank));
        }
        let mut sorted: Vec<(u32, Vec<Rank>)> = by_node.into_values().collect();
        sorted.sort_by_key(|(rack, ranks)| (*rack, ranks[0]));

        let mut layout = Layout {
            node_of: vec![0; places.len()],
            nodes: Vec::with_capacity(sorted.len()),
            rack_of_node: Vec::with_capacity(sorted.len()),
            racks: Vec::new(),
            stripes: 1,
            has_tree: true,
        };
        let mut previous = None;
        for (node, (rack, ranks)) in sorted.into_iter().enumerate() {
            if previous != Some(rack) {
                layout.racks.push(node..node);
                previous = Some(rack);
            }
            let index = layout.racks.len() - 1;
            layout.racks[index].end = node + 1;
            layout.rack_of_node.push(index);
            for rank in &ranks {
                layout.node_of[rank.0 as usize] = node;
            }
            layout.nodes.push(ranks);
        }
        Ok(layout)
    }

    /// Returns the layout of a subgroup of a parent group with rank `i` at `parent[i]`. The ranks
    /// may be in any order: the first becomes rank 0 of the subgroup.
    ///
    /// # Errors
    /// Returns the errors of [`Layout::new`], and an error if a rank is repeated or not in the
    /// parent group.
    pub fn for_subgroup(parent: &[RankPlace], ranks: &[Rank]) -> Result<Layout, LayoutError> {
        let mut named = BTreeSet::new();
        let mut places = Vec::with_capacity(ranks.len());
        for rank in ranks.iter().copied() {
            let outside = LayoutError::Outside { rank, size: parent.len() };
            places.push(*parent.get(rank.0 as usize).ok_or(outside)?);
            if !named.insert(rank) {
                return Err(LayoutError::Twice(rank));
            }
        }
        Layout::new(&places)
    }

    /// Returns the same ranks on a single node, in rank order or in chain order. A plan of one
    /// level uses this layout.
    pub(crate) fn flat(&self, in_chain_order: bool) -> Layout {
        let ranks = if in_chain_order { self.nodes.concat() } else { self.ranks().collect() };
        Layout {
            node_of: vec![0; ranks.len()],
            nodes: vec![ranks],
            rack_of_node: vec![0],
            racks: core::iter::once(0..1).collect(),
            stripes: 1,
            has_tree: self.has_tree,
        }
    }

    /// Maximum number of trees of one group over which a message is striped.
    pub const MOST_STRIPES: u32 = 8;

    /// Returns the same group on a network with this number of trees over all nodes that share no
    /// link between switches. Messages to all nodes are sent in as many stripes.
    #[must_use]
    pub fn with_stripes(self, trees: u32) -> Layout {
        Layout { stripes: trees.clamp(1, Layout::MOST_STRIPES), ..self }
    }

    /// Returns the same group on a network without a tree that reaches all nodes. Multicasts to all
    /// nodes are then sent along a chain.
    #[must_use]
    pub fn without_tree(self) -> Layout {
        Layout { has_tree: false, ..self }
    }

    /// Returns whether a tree reaches all nodes. Plans are chosen accordingly.
    pub fn has_tree(&self) -> bool {
        self.has_tree
    }

    /// Returns the number of stripes of a long message to the nodes of `scope`, at least one. Each
    /// stripe has a tree of its own.
    pub fn stripes(&self, scope: MulticastScope) -> u32 {
        if scope == MulticastScope::All { self.stripes } else { 1 }
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.node_of.len()
    }

    /// Returns all ranks, ascending.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.node_of.len() as u32).map(Rank)
    }

    /// Returns the number of nodes. Node indices are in chain order.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of racks.
    pub fn racks(&self) -> usize {
        self.racks.len()
    }

    /// Returns the node of a rank.
    pub fn node_of(&self, rank: Rank) -> usize {
        self.node_of[rank.0 as usize]
    }

    /// Returns the rack of a node.
    pub fn rack_of_node(&self, node: usize) -> usize {
        self.rack_of_node[node]
    }

    /// Returns the rack of a rank.
    pub fn rack_of(&self, rank: Rank) -> usize {
        self.rack_of_node[self.node_of(rank)]
    }

    /// Returns the ranks of a node, ascending.
    pub fn ranks_of_node(&self, node: usize) -> &[Rank] {
        &self.nodes[node]
    }

    /// Returns the nodes of a rack.
    pub fn nodes_of_rack(&self, rack: usize) -> core::ops::Range<usize> {
        self.racks[rack].clone()
    }

    /// Returns the smallest rank of a node.
    pub fn node_leader(&self, node: usize) -> Rank {
        self.nodes[node][0]
    }

    /// Returns the smallest rank of a rack.
    pub fn rack_leader(&self, rack: usize) -> Rank {
        self.node_leader(self.racks[rack].start)
    }

    /// Returns the nodes that a tree connects, in chain order.
    pub fn nodes_of(&self, scope: MulticastScope) -> Vec<usize> {
        match scope {
            MulticastScope::All => (0..self.nodes.len()).collect(),
            MulticastScope::Leaders => self.racks.iter().map(|r| r.start).collect(),
            MulticastScope::Rack(rack) => self.racks[rack].clone().collect(),
        }
    }

    /// Returns the chain along which a multicast from `source` is repaired: the source, then the
    /// other nodes of its rack, then rack after rack, so that the chain enters and leaves each rack
    /// once (Zhang and Qiu, 4.3). The tree must contain `source`.
    pub fn chain(&self, scope: MulticastScope, source: usize) -> Vec<usize> {
        let mut rest = self.nodes_of(scope);
        rest.retain(|n| *n != source);
        let racks = self.racks.len();
        let home = self.rack_of_node[source];
        rest.sort_by_key(|n| ((self.rack_of_node[*n] + racks - home) % racks, *n));
        rest.insert(0, source);
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(places: &[(u32, u32)]) -> Layout {
        let places: Vec<RankPlace> =
            places.iter().map(|(rack, node)| RankPlace { rack: *rack, node: *node }).collect();
        Layout::new(&places).unwrap()
    }

    #[test]
    fn leaders_are_the_smallest_ranks_of_their_subgroups() {
        // Ranks interleaved over two racks; node 7 holds ranks 1 and 3.
        let l = layout(&[(5, 9), (2, 7), (5, 8), (2, 7), (2, 6)]);
        assert_eq!((l.size(), l.nodes(), l.racks()), (5, 4, 2));
        assert_eq!(l.rack_leader(0), Rank(1));
        assert_eq!(l.rack_leader(1), Rank(0));
        assert_eq!(l.ranks_of_node(l.node_of(Rank(3))), [Rank(1), Rank(3)]);
        assert_eq!(l.nodes_of(MulticastScope::Leaders), [0, 2]);
    }

    #[test]
    fn a_chain_enters_each_rack_once_and_starts_at_its_source() {
        let l = layout(&[(0, 0), (0, 1), (1, 2), (1, 3), (2, 4)]);
        assert_eq!(l.chain(MulticastScope::All, 3), [3, 2, 4, 0, 1]);
        assert_eq!(l.chain(MulticastScope::Rack(0), 1), [1, 0]);
    }

    #[test]
    fn a_node_in_two_racks_is_refused_by_name() {
        let places = [RankPlace { rack: 0, node: 4 }, RankPlace { rack: 1, node: 4 }];
        let e = Layout::new(&places).unwrap_err();
        assert!(e.to_string().contains("node 4"), "{e}");
        assert_eq!(Layout::new(&[]).unwrap_err(), LayoutError::Empty);
    }

    #[test]
    fn a_group_takes_ranks_of_its_parent_in_any_order_but_each_once() {
        let parent = [(0, 0), (0, 1), (1, 2)].map(|(rack, node)| RankPlace { rack, node });
        let group = Layout::for_subgroup(&parent, &[Rank(2), Rank(0)]).unwrap();
        assert_eq!((group.size(), group.rack_of(Rank(0)), group.rack_of(Rank(1))), (2, 1, 0));
        let twice = Layout::for_subgroup(&parent, &[Rank(1), Rank(1)]).unwrap_err().to_string();
        assert!(twice.contains("rank 1 twice"), "{twice}");
        let outside = Layout::for_subgroup(&parent, &[Rank(3)]).unwrap_err().to_string();
        assert!(outside.contains("rank 3") && outside.contains("0 to 2"), "{outside}");
    }
}
