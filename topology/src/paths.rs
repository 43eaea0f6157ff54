//! Shortest paths between switches.

use crate::{DatapathId, Graph};
use std::collections::{BTreeMap, VecDeque};

/// Number of links from each switch to `to`; switches that cannot reach it are left out.
pub fn distances(graph: &Graph, to: DatapathId) -> BTreeMap<DatapathId, u32> {
    let mut distances = BTreeMap::new();
    if !graph.contains(to) {
        return distances;
    }
    distances.insert(to, 0);
    let mut queue = VecDeque::from([(to, 0)]);
    while let Some((switch, distance)) = queue.pop_front() {
        for (_, peer) in graph.neighbours(switch) {
            distances.entry(peer.switch).or_insert_with(|| {
                queue.push_back((peer.switch, distance + 1));
                distance + 1
            });
        }
    }
    distances
}

/// For each switch but `to` the ports that start a shortest path to it, ascending: any choice among them,
/// made by each switch for itself, is free of loops. Switches that cannot reach it are left out.
pub fn ports_towards(graph: &Graph, to: DatapathId) -> BTreeMap<DatapathId, Vec<u32>> {
    let distances = distances(graph, to);
    let nearer = |from: DatapathId, distance: u32| {
        let on_path = |peer: DatapathId| distances.get(&peer).is_some_and(|d| d + 1 == distance);
        graph.neighbours(from).filter(|(_, peer)| on_path(peer.switch)).map(|(port, _)| port).collect()
    };
    distances.iter().filter(|(_, d)| **d > 0).map(|(s, d)| (*s, nearer(*s, *d))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Port;
    use crate::samples::{connected, leaf_spine};
    use proptest::prelude::*;

    #[test]
    fn all_spines_are_equally_near_in_a_leaf_spine_network() {
        let graph = leaf_spine(3, 2, 1);
        let towards = ports_towards(&graph, DatapathId(101));
        assert_eq!(towards[&DatapathId(102)].len(), 2);
        assert_eq!(towards[&DatapathId(1)].len(), 1);
        assert!(!towards.contains_key(&DatapathId(101)));
    }

    proptest! {
        #[test]
        fn every_choice_of_ports_leads_to_the_destination_without_a_loop(
            graph in connected(), to in any::<prop::sample::Index>(), choices in prop::collection::vec(any::<usize>(), 40),
        ) {
            let switches: Vec<DatapathId> = graph.switches().collect();
            let to = switches[to.index(switches.len())];
            let towards = ports_towards(&graph, to);
            for start in &switches {
                let (mut at, mut hops) = (*start, 0);
                while at != to {
                    prop_assert!(hops < switches.len(), "a loop from {}", start);
                    let ports = &towards[&at];
                    let number = ports[choices[hops % choices.len()] % ports.len()];
                    at = graph.peer(Port { switch: at, number }).unwrap().switch;
                    hops += 1;
                }
            }
        }
    }
}
