//! The trees of a group, and how each is moved to another shape without ever forming a loop.

pub(crate) mod reverse_index;

use crate::api::{GroupRequest, TreeScope};
use crate::intent::addresses::EXAMINATIONS;
use crate::intent::tables::GROUPS;
use cool_topology::{DatapathId, Graph, Link, SwitchAdjacency, Tree, trees::is_forest};
use std::collections::{BTreeMap, BTreeSet};

/// Allocates the numbers of trees. Each number stands for a group entry of the switches and a
/// multicast address.
#[derive(Debug)]
pub(crate) struct TreeNumbers {
    used: BTreeSet<u32>,
    /// Where the search for a free number starts. A number is reused as late as possible, so that
    /// no packets of its last use are still in flight.
    next: u32,
}

impl Default for TreeNumbers {
    fn default() -> TreeNumbers {
        TreeNumbers { used: BTreeSet::new(), next: GROUPS.start }
    }
}

impl TreeNumbers {
    /// Allocates a number; returns `None` if all are in use.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let number = (self.next..EXAMINATIONS.start)
            .chain(GROUPS.start..self.next)
            .find(|n| !self.used.contains(n))?;
        self.used.insert(number);
        self.next = if number + 1 == EXAMINATIONS.start { GROUPS.start } else { number + 1 };
        Some(number)
    }

    /// Marks a number as used.
    pub(crate) fn reserve(&mut self, number: u32) {
        if GROUPS.contains(&number) {
            self.used.insert(number);
        }
    }

    pub(crate) fn give_back(&mut self, number: u32) {
        self.used.remove(&number);
    }

    /// Returns how many numbers are in use.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.used.len()
    }
}

/// Returns the nodes of each tree of a group. `racks` must have the rack of every member. Trees of
/// fewer than two nodes are left out.
pub(crate) fn scopes(group: &GroupRequest, racks: &BTreeMap<String, u32>) -> Vec<(TreeScope, Vec<String>)> {
    let mut all: Vec<String> = Vec::new();
    let mut by_rack: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for name in group.members.iter().filter(|name| seen.insert(name.as_str())) {
        all.push(name.clone());
        if let Some(rack) = racks.get(name) {
            by_rack.entry(*rack).or_default().push(name.clone());
        }
    }
    // Members are in rank order, so the first of a rack has its smallest rank.
    let leaders = by_rack.values().filter_map(|nodes| nodes.first().cloned()).collect();
    let racks = by_rack.into_iter().map(|(rack, nodes)| (TreeScope::Rack(rack), nodes));
    let mut scopes = vec![(TreeScope::All, all), (TreeScope::Leaders, leaders)];
    scopes.extend(racks);
    scopes.retain(|(_, nodes)| nodes.len() > 1);
    scopes
}

/// Selects one of several trees that are equally good.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TieBreak {
    /// Number of the group. Groups with different numbers prefer different trees.
    pub(crate) group: u64,
    /// Number of earlier trees over the same nodes, with which this one should share no link.
    pub(crate) stripe: usize,
}

impl TieBreak {
    /// Returns the tree over these nodes in the current network.
    pub(crate) fn tree(self, adjacency: &SwitchAdjacency, graph: &Graph, members: &[String]) -> Tree {
        let members = members.iter().map(String::as_str);
        let mut disjoint = Tree::disjoint(adjacency, graph, members.clone(), self.group);
        // If fewer disjoint trees exist than stripes, the tree shares links with others.
        disjoint.nth(self.stripe).unwrap_or_else(|| Tree::over(adjacency, graph, members, self.number()))
    }

    fn number(self) -> u64 {
        self.group.wrapping_add(self.stripe as u64)
    }
}

/// A tree that follows the network.
///
/// While switches change from one shape to another, some still have the old shape and some already
/// the new one. If old and new links together form no loop, no mixture of them does, and the new
/// shape is desired at once. Otherwise the links that both shapes share are desired first, and the
/// new shape once all switches concerned have acknowledged that. The price is a moment of loss,
/// which retransmission repairs, because the alternative would be a loop.
#[derive(Debug)]
pub(crate) struct GroupTree {
    pub(crate) scope: TreeScope,
    /// Number out of [`GROUPS`].
    pub(crate) number: u32,
    members: Vec<String>,
    tie_break: TieBreak,
    /// Shape that the switches must have now.
    current: Tree,
    /// Shape that they must have finally.
    target: Tree,
    /// Union of the old and the new shape until all switches have acknowledged. The next shape must
    /// form a forest with it.
    possible: BTreeSet<Link>,
}

impl GroupTree {
    /// Creates a tree that no switch has yet.
    pub(crate) fn new(
        scope: TreeScope,
        number: u32,
        members: Vec<String>,
        tie_break: TieBreak,
        target: Tree,
    ) -> GroupTree {
        let (current, possible) = (target.clone(), target.links.clone());
        GroupTree { scope, number, members, tie_break, current, target, possible }
    }

    /// Creates a tree of which switches already hold these links.
    pub(crate) fn adopt(
        adjacency: &SwitchAdjacency,
        graph: &Graph,
        scope: TreeScope,
        number: u32,
        members: Vec<String>,
        tie_break: TieBreak,
        held: BTreeSet<Link>,
    ) -> GroupTree {
        let target = tie_break.tree(adjacency, graph, &members);
        let mut tree = GroupTree::new(scope, number, members, tie_break, target);
        if is_forest(&held) {
            let members = tree.target.members.clone();
            let current = Tree { links: held.clone(), members };
            (tree.possible, tree.target, tree.current) = (held, current.clone(), current);
            tree.repair(adjacency, graph);
        } else {
            tree.possible = held;
            tree.current.links.clear();
            tree.advance_to_target_shape();
        }
        tree
    }

    /// Returns the shape that the switches must have now.
    pub(crate) fn current(&self) -> &Tree {
        &self.current
    }

    /// Returns the nodes that the tree must connect.
    pub(crate) fn members(&self) -> &[String] {
        &self.members
    }

    /// Repairs the tree after a change of the network, with as few changes as possible. Returns
    /// whether another shape is desired now.
    pub(crate) fn repair(&mut self, adjacency: &SwitchAdjacency, graph: &Graph) -> bool {
        let members = self.members.iter().map(String::as_str);
        self.retarget(self.target.repaired(adjacency, graph, members, self.tie_break.number()))
    }

    /// Replaces the tree after the network has improved, because a new tree may be smaller or
    /// spread groups more evenly. Returns whether another shape is desired now.
    pub(crate) fn improve(&mut self, adjacency: &SwitchAdjacency, graph: &Graph) -> bool {
        self.retarget(self.tie_break.tree(adjacency, graph, &self.members))
    }

    fn retarget(&mut self, target: Tree) -> bool {
        if target == self.target {
            return false;
        }
        self.target = target;
        self.advance_to_target_shape()
    }

    /// Leaves out switches that have no room for the tree, until it gets another shape.
    pub(crate) fn avoid(&mut self, full: &BTreeSet<DatapathId>) {
        for tree in [&mut self.current, &mut self.target] {
            tree.links.retain(|link| !full.contains(&link.a.switch) && !full.contains(&link.b.switch));
            tree.members.retain(|_, port| !full.contains(&port.switch));
        }
    }

    /// Records that no packet can cross this link any longer, whatever the switches hold.
    pub(crate) fn cut(&mut self, link: Link) {
        self.possible.remove(&link);
    }

    /// Records that all switches have the desired shape. Returns whether another shape is desired
    /// now.
    pub(crate) fn acknowledged(&mut self) -> bool {
        self.possible = self.current.links.clone();
        self.current != self.target && self.advance_to_target_shape()
    }

    fn advance_to_target_shape(&mut self) -> bool {
        let union: BTreeSet<Link> = self.possible.union(&self.target.links).copied().collect();
        let next = if is_forest(&union) {
            self.possible = union;
            self.target.clone()
        } else {
            let links = self.current.links.intersection(&self.target.links).copied().collect();
            Tree { links, members: self.target.members.clone() }
        };
        let changed = next != self.current;
        self.current = next;
        changed
    }

    /// Returns whether nothing is left to do once all switches concerned have acknowledged.
    pub(crate) fn is_final(&self) -> bool {
        self.current == self.target
    }

    /// Returns whether the tree connects all its members.
    pub(crate) fn is_whole(&self) -> bool {
        self.target.members.len() == self.members.len() && self.target.is_whole()
    }

    /// Returns the links that the tree uses or will use.
    pub(crate) fn links(&self) -> BTreeSet<Link> {
        self.current.links.union(&self.target.links).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_topology::Port;
    use proptest::prelude::*;

    #[test]
    fn trees_span_all_nodes_the_leaders_and_each_rack() {
        let racks = BTreeMap::from([("a", 3), ("b", 3), ("c", 1), ("d", 1), ("e", 0)]);
        let racks = racks.into_iter().map(|(n, r)| (n.to_owned(), r)).collect();
        let members = ["b", "a", "b", "e", "d", "c"].map(str::to_owned).to_vec();
        let scopes =
            scopes(&GroupRequest { id: 1, members, can_prove: false, can_join_sources: false }, &racks);
        let names = |scope| scopes.iter().find(|(s, _)| *s == scope).map(|(_, n)| n.join(""));
        assert_eq!(names(TreeScope::All).as_deref(), Some("baedc"));
        assert_eq!(names(TreeScope::Leaders).as_deref(), Some("edb"));
        assert_eq!(names(TreeScope::Rack(3)).as_deref(), Some("ba"));
        assert_eq!(names(TreeScope::Rack(1)).as_deref(), Some("dc"));
        assert_eq!(names(TreeScope::Rack(0)), None);
    }

    #[test]
    fn a_number_is_reused_as_late_as_possible() {
        let mut numbers = TreeNumbers::default();
        let first = numbers.take().unwrap();
        numbers.give_back(first);
        assert_ne!(numbers.take(), Some(first));
        assert_eq!(numbers.in_use(), 1);
        // The last numbers are reserved for examinations of the network.
        for _ in GROUPS.start + 1..EXAMINATIONS.start {
            assert!(numbers.take().is_some());
        }
        assert_eq!(numbers.take(), None);
        numbers.give_back(first);
        assert_eq!(numbers.take(), Some(first));
    }

    /// Returns a ring of `n` switches with one host each, without the `cut` links.
    fn ring(n: u64, cut: &[u64]) -> Graph {
        let mut graph = Graph::default();
        for at in 0..n {
            let port = |switch, number| Port { switch: DatapathId(switch), number };
            graph.place(&format!("h{at}"), port(at, 1));
            if !cut.contains(&at) {
                graph.link(port(at, 2), port((at + 1) % n, 3));
            }
        }
        graph
    }

    proptest! {
        /// Whichever of the shapes each switch has acknowledged, no mixture forms a loop, and
        /// finally all switches have the target.
        #[test]
        fn no_mixture_of_old_and_new_makes_a_loop(
            cuts in prop::collection::vec(prop::collection::vec(0u64..6, 0..2), 1..6),
            lags in prop::collection::vec(prop::collection::vec(any::<bool>(), 6), 40),
        ) {
            let members: Vec<String> = (0..6).map(|h| format!("h{h}")).collect();
            let whole = ring(6, &[]);
            let tie_break = TieBreak { group: 0, stripe: 0 };
            let first = tie_break.tree(&SwitchAdjacency::new(&whole), &whole, &members);
            let mut tree = GroupTree::new(TreeScope::All, GROUPS.start, members, tie_break, first);
            // The links that each switch uses.
            let mut has = vec![tree.current().links.clone(); 6];
            let mut cuts = cuts.into_iter();
            let mut target = ring(6, &[]);
            for (round, lag) in lags.iter().enumerate() {
                if round % 3 == 0 && let Some(cut) = cuts.next() {
                    target = ring(6, &cut);
                    match round % 2 {
                        0 => tree.repair(&SwitchAdjacency::new(&target), &target),
                        _ => tree.improve(&SwitchAdjacency::new(&target), &target),
                    };
                }
                for (switch, lags) in lag.iter().enumerate() {
                    if !lags {
                        has[switch] = tree.current().links.clone();
                    }
                }
                // A link carries packets only if both of its ends use it.
                let used: BTreeSet<Link> = has.iter().flatten().copied().filter(|l| {
                    has[l.a.switch.0 as usize].contains(l) && has[l.b.switch.0 as usize].contains(l)
                }).collect();
                prop_assert!(is_forest(&used), "{used:?}");
                if has.iter().all(|links| *links == tree.current().links) {
                    tree.acknowledged();
                }
            }
            tree.improve(&SwitchAdjacency::new(&target), &target);
            for _ in 0..3 {
                tree.acknowledged();
            }
            prop_assert!(tree.is_final());
            let names = tree.members.iter().map(String::as_str);
            let fresh = Tree::over(&SwitchAdjacency::new(&target), &target, names, 0);
            prop_assert_eq!(tree.current(), &fresh);
        }
    }
}
