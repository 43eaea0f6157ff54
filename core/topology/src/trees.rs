//! Multicast trees: the links and ports that connect a set of hosts.

use crate::switch_adjacency::{SwitchAdjacency, UNREACHABLE};
use crate::{DatapathId, Graph, Link, Port};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A tree that connects a set of hosts. In a partitioned network it has one component in each
/// partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Links between switches. They form no loop, and none leads only to switches without members.
    pub links: BTreeSet<Link>,
    /// Members with a known place.
    pub members: BTreeMap<String, Port>,
}

impl Tree {
    /// Returns a small tree over the members. Members without a known place are left out.
    ///
    /// Candidates are the shortest-path trees of the switches with the smallest sum of distances to
    /// the members' switches: for example, the root of a tree network, or any spine of a leaf-spine
    /// network. `choice` decides among equally small ones, so that groups with different numbers
    /// are spread over the spines.
    pub fn over<'a>(
        adjacency: &SwitchAdjacency,
        graph: &Graph,
        members: impl IntoIterator<Item = &'a str>,
        choice: u64,
    ) -> Tree {
        Tree::avoiding(adjacency, graph, members, choice, &BTreeSet::new())
    }

    /// Returns trees over the same members of which no two share a link between switches, as far as
    /// a greedy search finds them. The first is that of [`Tree::over`]. Members at one switch have
    /// only one tree.
    pub fn disjoint<'a>(
        adjacency: &'a SwitchAdjacency,
        graph: &'a Graph,
        members: impl IntoIterator<Item = &'a str> + Clone + 'a,
        choice: u64,
    ) -> impl Iterator<Item = Tree> + 'a {
        let mut used = BTreeSet::new();
        let next = move |found: u64| {
            let tree = Tree::avoiding(adjacency, graph, members.clone(), choice.wrapping_add(found), &used);
            let new = found == 0 || !tree.links.is_empty() && tree.links.is_disjoint(&used);
            used.extend(&tree.links);
            new.then_some(tree)
        };
        (0..).map_while(next)
    }

    /// Does the same as [`Tree::over`], but uses as few of the `used` links as possible.
    fn avoiding<'a>(
        adjacency: &SwitchAdjacency,
        graph: &Graph,
        members: impl IntoIterator<Item = &'a str>,
        choice: u64,
        used: &BTreeSet<Link>,
    ) -> Tree {
        let members: BTreeMap<String, Port> =
            members.into_iter().filter_map(|m| Some((m.to_owned(), graph.host(m)?))).collect();
        let mut left: BTreeSet<usize> =
            members.values().filter_map(|port| adjacency.position(port.switch)).collect();
        let mut links = BTreeSet::new();
        // Each round connects the switch of one member with all others that it reaches. The
        // switches that are left belong to other components.
        while left.len() > 1
            && let Some(first) = left.pop_first()
        {
            let distances = adjacency.distances(first);
            let mut ends: BTreeSet<usize> =
                left.extract_if(.., |end| distances[*end] != UNREACHABLE).collect();
            if !ends.is_empty() {
                ends.insert(first);
                links.append(&mut smallest(adjacency, &ends, choice, used));
            }
        }
        Tree { links, members }
    }

    /// Returns the tree repaired after a change of the network, with as few changes as possible:
    /// remaining links are kept, and shortest paths join the components. It may be larger than a
    /// new tree.
    pub fn repaired<'a>(
        &self,
        adjacency: &SwitchAdjacency,
        graph: &Graph,
        members: impl IntoIterator<Item = &'a str>,
        choice: u64,
    ) -> Tree {
        let members: BTreeMap<String, Port> =
            members.into_iter().filter_map(|m| Some((m.to_owned(), graph.host(m)?))).collect();
        let ends: BTreeSet<usize> =
            members.values().filter_map(|port| adjacency.position(port.switch)).collect();
        let mut links: BTreeSet<Link> = self.links.iter().copied().filter(|l| adjacency.has(*l)).collect();
        let mut left = reached(adjacency, &links, &ends);
        let in_use = |l: &Link| adjacency.position(l.a.switch).is_some_and(|at| left.contains(&at));
        links.retain(in_use);
        for end in &ends {
            let mut piece = reached(adjacency, &links, &BTreeSet::from([*end]));
            left.retain(|at| !piece.contains(at));
            while let Some(path) = shortest(adjacency, &piece, &left, choice) {
                links.extend(path);
                piece = reached(adjacency, &links, &piece);
                left.retain(|at| !piece.contains(at));
            }
        }
        Tree { links: pruned(links, &ends, adjacency), members }
    }

    /// Returns the ports of each switch in the tree, towards other switches and towards members.
    pub fn ports(&self) -> BTreeMap<DatapathId, BTreeSet<u32>> {
        let mut ports: BTreeMap<DatapathId, BTreeSet<u32>> = BTreeMap::new();
        let ends = self.links.iter().flat_map(|link| [link.a, link.b]);
        for port in ends.chain(self.members.values().copied()) {
            ports.entry(port.switch).or_default().insert(port.number);
        }
        ports
    }

    /// Returns whether the tree connects all its members.
    pub fn is_whole(&self) -> bool {
        let ends = self.links.iter().flat_map(|link| [link.a, link.b]);
        let switches: BTreeSet<DatapathId> =
            ends.chain(self.members.values().copied()).map(|port| port.switch).collect();
        switches.len() <= self.links.len() + 1
    }
}

/// Returns the switches that these links connect with those in `from`.
fn reached(adjacency: &SwitchAdjacency, links: &BTreeSet<Link>, from: &BTreeSet<usize>) -> BTreeSet<usize> {
    let mut reached = from.clone();
    let mut next: Vec<usize> = from.iter().copied().collect();
    while let Some(at) = next.pop() {
        let by_links = adjacency.edges(at).iter().filter(|edge| links.contains(&adjacency.link(at, **edge)));
        next.extend(by_links.map(|edge| edge.peer).filter(|peer| reached.insert(*peer)));
    }
    reached
}

/// Returns the links of a shortest path from a component to one of `others`.
fn shortest(
    adjacency: &SwitchAdjacency,
    piece: &BTreeSet<usize>,
    others: &BTreeSet<usize>,
    choice: u64,
) -> Option<Vec<Link>> {
    if others.is_empty() {
        return None;
    }
    let mut came: BTreeMap<usize, (usize, Link)> = BTreeMap::new();
    let mut queue: VecDeque<usize> = piece.iter().copied().collect();
    while let Some(mut at) = queue.pop_front() {
        if others.contains(&at) {
            let mut path = Vec::new();
            while let Some((before, link)) = came.get(&at) {
                path.push(*link);
                at = *before;
            }
            return Some(path);
        }
        let edges = adjacency.edges(at);
        // Trees are spread over equally short paths.
        let start = choice.checked_rem(edges.len() as u64).unwrap_or(0) as usize;
        for edge in edges.iter().cycle().skip(start).take(edges.len()) {
            if !piece.contains(&edge.peer) && !came.contains_key(&edge.peer) {
                came.insert(edge.peer, (at, adjacency.link(at, *edge)));
                queue.push_back(edge.peer);
            }
        }
    }
    None
}

/// Returns whether these links form no loop.
pub fn is_forest<'a>(links: impl IntoIterator<Item = &'a Link>) -> bool {
    let mut sets = UnionFind::default();
    links.into_iter().all(|link| sets.join(*link))
}

/// Returns the links that form no loop with earlier ones. They connect everything that all links
/// connect.
pub fn forest(links: impl IntoIterator<Item = Link>) -> BTreeSet<Link> {
    let mut sets = UnionFind::default();
    links.into_iter().filter(|link| sets.join(*link)).collect()
}

/// Switches that links connect: each points towards the representative of its component.
#[derive(Default)]
struct UnionFind {
    towards: BTreeMap<DatapathId, DatapathId>,
}

impl UnionFind {
    fn root(&self, mut switch: DatapathId) -> DatapathId {
        while let Some(next) = self.towards.get(&switch) {
            switch = *next;
        }
        switch
    }

    /// Joins the components of a link's ends. Returns whether they were different.
    fn join(&mut self, link: Link) -> bool {
        let (a, b) = (self.root(link.a.switch), self.root(link.b.switch));
        if a != b {
            self.towards.insert(b, a);
        }
        a != b
    }
}

/// Maximum number of candidates, because a large network has many equally near roots.
const CANDIDATES: usize = 16;

/// Returns the smallest set of links found that connects `ends`, among those with the fewest `used`
/// links. `ends` must be at least two switches of one component.
fn smallest(
    adjacency: &SwitchAdjacency,
    ends: &BTreeSet<usize>,
    choice: u64,
    used: &BTreeSet<Link>,
) -> BTreeSet<Link> {
    let mut sums = vec![0u64; adjacency.switches().len()];
    for end in ends {
        for (sum, distance) in sums.iter_mut().zip(adjacency.distances(*end)) {
            *sum += u64::from(distance);
        }
    }
    let nearest = sums.iter().min().copied();
    let roots: Vec<usize> = (0..sums.len()).filter(|root| Some(sums[*root]) == nearest).collect();
    // Starts with another candidate for each choice, so that all are used.
    let start = choice.checked_rem(roots.len() as u64).unwrap_or(0) as usize;
    let tried = roots.iter().cycle().skip(start).take(roots.len().min(CANDIDATES));
    let trees = tried.map(|root| pruned(branches(adjacency, *root, ends, choice, used), ends, adjacency));
    // The first of the smallest.
    trees.min_by_key(|links| (links.intersection(used).count(), links.len())).unwrap_or_default()
}

/// Returns the union of shortest paths from each of `ends` to `root`. All paths use the same
/// parents, and avoid `used` links where possible.
fn branches(
    adjacency: &SwitchAdjacency,
    root: usize,
    ends: &BTreeSet<usize>,
    choice: u64,
    used: &BTreeSet<Link>,
) -> BTreeSet<Link> {
    let distances = adjacency.distances(root);
    let mut links = BTreeSet::new();
    for end in ends {
        let mut at = *end;
        while at != root {
            let mut edges: Vec<_> = adjacency.nearer(at, &distances).collect();
            if edges.iter().any(|edge| !used.contains(&adjacency.link(at, *edge))) {
                edges.retain(|edge| !used.contains(&adjacency.link(at, *edge)));
            }
            let Some(parent) = edges.iter().map(|edge| edge.peer).min() else { break };
            let mut parallel: Vec<_> = edges.into_iter().filter(|edge| edge.peer == parent).collect();
            parallel.sort_unstable_by_key(|edge| edge.peer_port);
            let edge = parallel[(choice % parallel.len() as u64) as usize];
            if !links.insert(adjacency.link(at, edge)) {
                break; // from here on another end's path
            }
            at = parent;
        }
    }
    links
}

/// Removes the branches that lead to none of `ends`.
fn pruned(mut links: BTreeSet<Link>, ends: &BTreeSet<usize>, adjacency: &SwitchAdjacency) -> BTreeSet<Link> {
    let ends: BTreeSet<DatapathId> = ends.iter().map(|end| adjacency.switches()[*end]).collect();
    loop {
        let mut degree: BTreeMap<DatapathId, u32> = BTreeMap::new();
        for switch in links.iter().flat_map(|link| [link.a.switch, link.b.switch]) {
            *degree.entry(switch).or_default() += 1;
        }
        let idle = |switch: DatapathId| degree[&switch] == 1 && !ends.contains(&switch);
        let before = links.len();
        links.retain(|link| !idle(link.a.switch) && !idle(link.b.switch));
        if links.len() == before {
            return links;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{connected, leaf_spine, tree};
    use proptest::prelude::*;

    fn hosts(graph: &Graph) -> Vec<&str> {
        graph.hosts().map(|(name, _)| name).collect()
    }

    fn over<'a>(graph: &Graph, members: impl IntoIterator<Item = &'a str>, choice: u64) -> Tree {
        Tree::over(&SwitchAdjacency::new(graph), graph, members, choice)
    }

    #[test]
    fn a_tree_network_is_spanned_by_its_uplinks() {
        let graph = tree(4, 4);
        let all = over(&graph, hosts(&graph), 5);
        assert_eq!(all.links, graph.links().collect());
        let rack = over(&graph, ["h5", "h6", "h7", "h8"], 5);
        assert!(rack.links.is_empty());
        assert_eq!(rack.ports()[&DatapathId(102)].len(), 4);
    }

    #[test]
    fn groups_spread_over_the_spines_and_use_one_each() {
        let graph = leaf_spine(4, 3, 2);
        let mut used = BTreeSet::new();
        for group in 0..3 {
            let tree = over(&graph, hosts(&graph), group);
            assert_eq!(tree.links.len(), 4);
            let spines: BTreeSet<DatapathId> = tree.links.iter().map(|l| l.a.switch).collect();
            assert_eq!(spines.len(), 1);
            used.extend(spines);
        }
        assert_eq!(used.len(), 3);
    }

    #[test]
    fn there_are_as_many_disjoint_trees_as_spines_or_links() {
        let disjoint = |graph: &Graph, choice| {
            let adjacency = SwitchAdjacency::new(graph);
            let trees = Tree::disjoint(&adjacency, graph, hosts(graph), choice);
            trees.take(8).map(|tree| tree.links.len()).collect::<Vec<_>>()
        };
        for choice in 0..5 {
            assert_eq!(disjoint(&leaf_spine(4, 3, 2), choice), [4, 4, 4]);
            // With two leaves, a leaf is as near to both as a spine is.
            assert_eq!(disjoint(&leaf_spine(2, 4, 1), choice), [2; 4]);
            assert_eq!(disjoint(&tree(4, 4), choice), [4]);
            assert_eq!(disjoint(&leaf_spine(1, 2, 3), choice), [0]);
        }
        let mut doubled = tree(2, 1);
        for link in doubled.links().collect::<Vec<_>>() {
            let beside = |port: Port| Port { number: port.number + 50, ..port };
            doubled.link(beside(link.a), beside(link.b));
        }
        assert_eq!(disjoint(&doubled, 7), [2, 2]);
    }

    #[test]
    fn a_network_in_pieces_has_a_tree_in_each_piece() {
        let mut graph = tree(4, 1);
        for link in graph.links().collect::<Vec<_>>().into_iter().take(2) {
            graph.unlink(link.a);
        }
        let all = over(&graph, hosts(&graph), 0);
        assert_eq!((all.links.len(), all.members.len()), (2, 4));
        assert_eq!(over(&graph, ["nobody"], 0), Tree::default());
    }

    /// Walks the tree from one of its switches. Returns the switches met, and whether one was met
    /// twice.
    fn walk(tree: &Tree, start: DatapathId) -> (BTreeSet<DatapathId>, bool) {
        let (mut seen, mut twice) = (BTreeSet::from([start]), false);
        let mut next = vec![(start, None)];
        while let Some((at, came_by)) = next.pop() {
            for link in tree.links.iter().filter(|l| Some(**l) != came_by) {
                let other = match at {
                    s if s == link.a.switch => link.b.switch,
                    s if s == link.b.switch => link.a.switch,
                    _ => continue,
                };
                match seen.insert(other) {
                    true => next.push((other, Some(*link))),
                    false => twice = true,
                }
                if twice {
                    return (seen, true);
                }
            }
        }
        (seen, twice)
    }

    #[test]
    fn a_tree_that_lost_a_link_keeps_the_others_and_is_joined_again() {
        let mut graph = leaf_spine(4, 2, 1);
        let before = over(&graph, hosts(&graph), 0);
        let lost = *before.links.first().unwrap();
        graph.unlink(lost.a);
        let after = before.repaired(&SwitchAdjacency::new(&graph), &graph, hosts(&graph), 0);
        assert!(after.is_whole() && is_forest(&after.links));
        assert_eq!(before.links.difference(&after.links).collect::<Vec<_>>(), [&lost]);
        // To the other spine and down again.
        assert_eq!(after.links.len(), before.links.len() + 1);
    }

    proptest! {
        #[test]
        fn a_repaired_tree_forms_no_loop_with_the_old_one(
            graph in connected(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4), choice in any::<u64>(),
        ) {
            let before = over(&graph, hosts(&graph), choice);
            let mut cut = graph.clone();
            let links: Vec<Link> = graph.links().collect();
            for pick in cuts.iter().filter(|_| !links.is_empty()) {
                cut.unlink(links[pick.index(links.len())].a);
            }
            let after = before.repaired(&SwitchAdjacency::new(&cut), &cut, hosts(&cut), choice);
            let fresh = over(&cut, hosts(&cut), choice);
            prop_assert_eq!(after.is_whole(), fresh.is_whole());
            prop_assert_eq!(&after.members, &fresh.members);
            let left = before.links.iter().filter(|l| cut.peer(l.a).is_some());
            let union: BTreeSet<Link> = left.chain(&after.links).copied().collect();
            prop_assert!(is_forest(&union));
        }

        #[test]
        fn disjoint_trees_are_trees_over_all_members_and_share_no_link(
            graph in connected(), choice in any::<u64>(),
        ) {
            let adjacency = SwitchAdjacency::new(&graph);
            let trees: Vec<Tree> = Tree::disjoint(&adjacency, &graph, hosts(&graph), choice).collect();
            prop_assert_eq!(&trees[0], &over(&graph, hosts(&graph), choice));
            let mut used = BTreeSet::new();
            for tree in &trees {
                prop_assert!(tree.is_whole() && is_forest(&tree.links));
                prop_assert_eq!(&tree.members, &trees[0].members);
                prop_assert!(tree.links.iter().all(|link| used.insert(*link)));
            }
        }

        #[test]
        fn a_tree_spans_exactly_its_members_without_a_loop(
            graph in connected(), picks in prop::collection::vec(any::<bool>(), 40), choice in any::<u64>(),
        ) {
            let members: Vec<&str> =
                hosts(&graph).into_iter().zip(&picks).filter(|(_, pick)| **pick).map(|(h, _)| h).collect();
            prop_assume!(!members.is_empty());
            let tree = over(&graph, members.iter().copied(), choice);
            prop_assert_eq!(tree.members.keys().map(String::as_str).collect::<Vec<_>>(), members);

            let ends: BTreeSet<DatapathId> = tree.members.values().map(|p| p.switch).collect();
            let (seen, twice) = walk(&tree, *ends.first().unwrap());
            prop_assert!(!twice, "a loop");
            prop_assert!(is_forest(&tree.links));
            let closing = graph.links().find(|l| !tree.links.contains(l) && seen.contains(&l.a.switch) && seen.contains(&l.b.switch));
            if let Some(closing) = closing {
                prop_assert!(!is_forest(tree.links.iter().chain([&closing])));
            }
            prop_assert!(ends.is_subset(&seen), "a member is not reached");
            prop_assert_eq!(tree.links.len() + 1, seen.len(), "links elsewhere");
            for (switch, ports) in tree.ports() {
                let linked = tree.links.iter().filter(|l| l.a.switch == switch || l.b.switch == switch).count();
                prop_assert!(linked > 1 || ends.contains(&switch), "{} is a dead end", switch);
                let own = tree.members.values().filter(|p| p.switch == switch).count();
                prop_assert_eq!(ports.len(), linked + own);
            }
        }
    }
}
