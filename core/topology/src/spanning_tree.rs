//! A spanning tree of the switches, and the ports by which each switch forwards a packet so that it
//! reaches all members of an address from any port.

use crate::trees::forest;
use crate::{DatapathId, Link, Port};
use std::collections::{BTreeMap, BTreeSet};

/// Links that connect all switches and form no loop. In a partitioned network there is one tree in
/// each partition.
///
/// A link stays in the tree as long as it exists, and is only then replaced. No mixture of an old
/// and a new tree therefore forms a loop, because the links in which they differ are gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpanningTree {
    links: BTreeSet<Link>,
}

impl SpanningTree {
    /// Returns the links.
    pub fn links(&self) -> &BTreeSet<Link> {
        &self.links
    }

    /// Removes the links that are not in `links` any more. If `may_grow`, adds others, preferred
    /// ones first. Returns whether the tree has changed.
    pub fn update(
        &mut self,
        links: &BTreeSet<Link>,
        may_grow: bool,
        is_preferred: impl Fn(&Link) -> bool,
    ) -> bool {
        let before = self.links.clone();
        self.links.retain(|link| links.contains(link));
        if may_grow {
            let preferred = links.iter().filter(|link| is_preferred(link));
            self.links = forest(self.links.iter().chain(preferred).chain(links).copied());
        }
        self.links != before
    }

    /// Returns the ports by which each switch must forward a packet that all `members` shall
    /// receive: ports of members, and links of the tree that lead to some. A switch must not send
    /// the packet out of the port that has received it.
    pub fn outputs(&self, members: &BTreeSet<Port>) -> BTreeMap<DatapathId, BTreeSet<u32>> {
        let mut outputs: BTreeMap<DatapathId, BTreeSet<u32>> = BTreeMap::new();
        for member in members {
            outputs.entry(member.switch).or_default().insert(member.number);
        }
        let mut edges: BTreeMap<DatapathId, Vec<(Port, Port)>> = BTreeMap::new();
        for Link { a, b } in &self.links {
            edges.entry(a.switch).or_default().push((*a, *b));
            edges.entry(b.switch).or_default().push((*b, *a));
        }
        let mut seen: BTreeSet<DatapathId> = BTreeSet::new();
        for root in edges.keys() {
            if !seen.insert(*root) {
                continue;
            }
            // The switches of this partition, each after its parent, with the link to the parent.
            let mut order: Vec<(DatapathId, Option<(Port, Port)>)> = vec![(*root, None)];
            let mut at = 0;
            while let Some((switch, _)) = order.get(at).copied() {
                for (own, peer) in edges.get(&switch).into_iter().flatten() {
                    if seen.insert(peer.switch) {
                        order.push((peer.switch, Some((*peer, *own))));
                    }
                }
                at += 1;
            }
            // Members at each switch and below it.
            let mut below: BTreeMap<DatapathId, usize> = BTreeMap::new();
            for (switch, _) in &order {
                let ports = Port { switch: *switch, number: 0 }..=Port { switch: *switch, number: u32::MAX };
                below.insert(*switch, members.range(ports).count());
            }
            for (switch, to_parent) in order.iter().rev() {
                if let Some((_, parent)) = to_parent {
                    let members = below[switch];
                    *below.entry(parent.switch).or_default() += members;
                }
            }
            for (switch, to_parent) in &order {
                let Some((own, parent)) = to_parent else { continue };
                if below[switch] > 0 {
                    outputs.entry(parent.switch).or_default().insert(parent.number);
                }
                if below[root] > below[switch] {
                    outputs.entry(own.switch).or_default().insert(own.number);
                }
            }
        }
        outputs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Graph;
    use crate::samples::{connected, leaf_spine, tree};
    use proptest::prelude::*;

    fn spanning(graph: &Graph) -> SpanningTree {
        let mut tree = SpanningTree::default();
        tree.update(&graph.links().collect(), true, |_| false);
        tree
    }

    /// Returns the ports of members that receive a packet from a port, and the number of links that
    /// it crosses.
    fn send(
        graph: &Graph,
        outputs: &BTreeMap<DatapathId, BTreeSet<u32>>,
        from: Port,
    ) -> (BTreeSet<Port>, usize) {
        let (mut received, mut links, mut under_way) = (BTreeSet::new(), 0, vec![from]);
        while let Some(at) = under_way.pop() {
            for number in outputs.get(&at.switch).into_iter().flatten().filter(|n| **n != at.number) {
                let out = Port { switch: at.switch, number: *number };
                match graph.peer(out) {
                    Some(peer) => {
                        (links, _) = (links + 1, under_way.push(peer));
                        assert!(links < 1000, "a loop through {at}");
                    }
                    None => assert!(received.insert(out), "two copies at {out}"),
                }
            }
        }
        (received, links)
    }

    #[test]
    fn each_rack_receives_one_copy_over_its_uplink() {
        let graph = leaf_spine(4, 3, 2);
        let places: Vec<Port> = graph.hosts().map(|(_, port)| port).collect();
        let members: BTreeSet<Port> =
            places.iter().copied().filter(|port| port.switch != places[0].switch).collect();
        let outputs = spanning(&graph).outputs(&members);
        let (received, links) = send(&graph, &outputs, places[0]);
        assert_eq!((received, links), (members, 4));
    }

    #[test]
    fn a_link_stays_in_the_tree_until_it_is_lost() {
        let graph = leaf_spine(3, 2, 1);
        let all: BTreeSet<Link> = graph.links().collect();
        let mut tree = SpanningTree::default();
        assert!(!tree.update(&all, false, |_| true), "the network is not known yet");
        let preferred: Vec<Link> = all.iter().copied().skip(3).collect();
        assert!(tree.update(&all, true, |link| preferred.contains(link)));
        assert!(preferred.iter().all(|link| tree.links().contains(link)));
        let before = tree.clone();
        assert!(!tree.update(&all, true, |_| false) && tree == before);
        let lost = preferred[0];
        let rest: BTreeSet<Link> = all.iter().copied().filter(|link| *link != lost).collect();
        assert!(tree.update(&rest, true, |_| false));
        assert!(tree.links().len() == before.links().len() && !tree.links().contains(&lost));
        assert!(!tree.update(&all, true, |_| false));
    }

    proptest! {
        #[test]
        fn all_members_receive_one_copy_from_everywhere(graph in connected(), chosen in any::<u64>()) {
            let places: Vec<Port> = graph.hosts().map(|(_, port)| port).collect();
            let member = |(n, port): (usize, &Port)| (chosen >> (n % 64) & 1 == 1).then_some(*port);
            let members: BTreeSet<Port> = places.iter().enumerate().filter_map(member).collect();
            let outputs = spanning(&graph).outputs(&members);
            for from in &places {
                let mut others = members.clone();
                others.remove(from);
                prop_assert_eq!(send(&graph, &outputs, *from).0, others);
            }
        }
    }

    #[test]
    fn without_members_nothing_is_forwarded() {
        let graph = tree(4, 2);
        assert_eq!(spanning(&graph).outputs(&BTreeSet::new()), BTreeMap::new());
    }
}
