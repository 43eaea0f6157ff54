//! By which port each switch sends what is for each rack: along shortest paths, racks spread over equally
//! short ones. Kept up to date: a link that comes or goes costs what it concerns, not the whole network.

use crate::index::{Index, UNREACHABLE};
use crate::{DatapathId, Link};
use std::collections::{BTreeMap, BTreeSet};

/// No way: OpenFlow's ports begin at 1.
const NONE: u32 = 0;

/// A change: what is for this rack leaves this switch by this port from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hop {
    /// The rack's number.
    pub rack: u32,
    /// The switch.
    pub switch: DatapathId,
    /// Its port; `None` if it has no way there.
    pub port: Option<u32>,
    /// The port leads nearer to the rack also by the distances before this change. While switches change one
    /// after the other, packets can go round only by ports of which this is not so.
    pub downhill: bool,
}

/// All ways to one rack. By position in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ways {
    tor: DatapathId,
    distances: Vec<u32>,
    ports: Vec<u32>,
}

/// The ways to all racks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Those of the index by which positions are meant.
    switches: Vec<DatapathId>,
    racks: BTreeMap<u32, Ways>,
}

impl Routes {
    /// Brings the routes in line with the network: `racks` says which switch is the ToR of each rack, and
    /// `changed` names all links that have come or gone since the last time. Returns what is different now;
    /// switches that are gone are left out.
    pub fn update(
        &mut self,
        index: &Index,
        racks: &BTreeMap<u32, DatapathId>,
        changed: &BTreeSet<Link>,
    ) -> Vec<Hop> {
        let mut hops = Vec::new();
        if self.switches != index.switches() {
            self.renumber(index);
        }
        let gone = |rack: u32, ways: &Ways| racks.get(&rack) != Some(&ways.tor);
        let lost: Vec<u32> = self.racks.iter().filter(|(r, w)| gone(**r, w)).map(|(r, _)| *r).collect();
        for rack in lost {
            if let Some(ways) = self.racks.remove(&rack) {
                let there = ways.ports.iter().zip(index.switches()).filter(|(port, _)| **port != NONE);
                hops.extend(there.map(|(_, s)| Hop { rack, switch: *s, port: None, downhill: true }));
            }
        }
        for (rack, tor) in racks {
            let Some(to) = index.position(*tor) else { continue };
            match self.racks.get_mut(rack) {
                Some(ways) => ways.update(index, *rack, to, changed, &mut hops),
                None => {
                    let mut ways = Ways::unknown(*tor, index.switches().len());
                    ways.measure(index, *rack, to, false, &mut hops);
                    self.racks.insert(*rack, ways);
                }
            }
        }
        hops
    }

    /// Number of links from a switch to a rack.
    pub fn distance(&self, index: &Index, from: DatapathId, rack: u32) -> Option<u32> {
        let distance = *self.racks.get(&rack)?.distances.get(index.position(from)?)?;
        (distance != UNREACHABLE).then_some(distance)
    }

    /// The port by which a switch sends what is for a rack.
    pub fn port(&self, index: &Index, from: DatapathId, rack: u32) -> Option<u32> {
        let port = *self.racks.get(&rack)?.ports.get(index.position(from)?)?;
        (port != NONE).then_some(port)
    }

    /// Positions are those of another index from now on.
    fn renumber(&mut self, index: &Index) {
        let places: Vec<Option<usize>> = self.switches.iter().map(|s| index.position(*s)).collect();
        for ways in self.racks.values_mut() {
            let mut moved = Ways::unknown(ways.tor, index.switches().len());
            for (from, to) in places.iter().enumerate() {
                if let Some(to) = to {
                    moved.distances[*to] = ways.distances[from];
                    moved.ports[*to] = ways.ports[from];
                }
            }
            *ways = moved;
        }
        self.switches = index.switches().to_vec();
    }
}

impl Ways {
    fn unknown(tor: DatapathId, switches: usize) -> Ways {
        Ways { tor, distances: vec![UNREACHABLE; switches], ports: vec![NONE; switches] }
    }

    /// Only what the changed links concern: as long as every switch keeps a neighbour that is nearer, and
    /// no new link is a shortcut, all distances stay.
    fn update(&mut self, index: &Index, rack: u32, to: usize, changed: &BTreeSet<Link>, hops: &mut Vec<Hop>) {
        let mut again: BTreeMap<usize, bool> = BTreeMap::new();
        let mut spread = false;
        let mut moved = self.distances[to] != 0;
        for link in changed {
            let (a, b) = (index.position(link.a.switch), index.position(link.b.switch));
            let there = index.has(*link);
            spread |= there;
            let far = |one: usize, other: usize| {
                if self.distances[one] > self.distances[other] { one } else { other }
            };
            match (a, b) {
                (Some(a), Some(b)) if self.distances[a] == self.distances[b] => {}
                (Some(a), Some(b)) if there => {
                    moved |= self.distances[a].abs_diff(self.distances[b]) > 1;
                    again.insert(far(a, b), true);
                }
                (Some(a), Some(b)) => {
                    again.entry(far(a, b)).or_insert(false);
                }
                // The switch at the other end is gone.
                (Some(left), None) | (None, Some(left)) => {
                    again.entry(left).or_insert(false);
                }
                (None, None) => {}
            }
        }
        let stranded = |at: &usize| {
            let distance = self.distances[*at];
            distance != 0 && distance != UNREACHABLE && index.nearer(*at, &self.distances).next().is_none()
        };
        if moved || again.keys().any(stranded) {
            return self.measure(index, rack, to, !spread, hops);
        }
        for (at, anew) in again {
            let distances = &self.distances;
            let port = choose(index, at, distances, rack, self.ports[at], !anew);
            if port != self.ports[at] {
                self.ports[at] = port;
                hops.push(hop(index, rack, at, port, true));
            }
        }
    }

    /// Measures all distances. With `stay`, a port that still leads nearer is kept.
    fn measure(&mut self, index: &Index, rack: u32, to: usize, stay: bool, hops: &mut Vec<Hop>) {
        let distances = index.distances(to);
        for at in 0..distances.len() {
            let port = choose(index, at, &distances, rack, self.ports[at], stay);
            if port == self.ports[at] {
                continue;
            }
            let peer = index.edges(at).iter().find(|edge| edge.port == port).map(|edge| edge.peer);
            // To a switch that had no way so far, nobody sends by the old distances.
            let uphill = |peer: usize| self.distances[peer] >= self.distances[at];
            let downhill = self.distances[at] == UNREACHABLE || !peer.is_some_and(uphill);
            self.ports[at] = port;
            hops.push(hop(index, rack, at, port, downhill));
        }
        self.distances = distances;
    }
}

fn choose(index: &Index, at: usize, distances: &[u32], rack: u32, now: u32, stay: bool) -> u32 {
    let count = index.nearer(at, distances).count();
    if stay && now != NONE && index.nearer(at, distances).any(|edge| edge.port == now) {
        return now;
    }
    let spread = (rack as usize).checked_rem(count).unwrap_or(0);
    index.nearer(at, distances).nth(spread).map_or(NONE, |edge| edge.port)
}

fn hop(index: &Index, rack: u32, at: usize, port: u32, downhill: bool) -> Hop {
    Hop { rack, switch: index.switches()[at], port: (port != NONE).then_some(port), downhill }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{connected, leaf_spine};
    use crate::{Graph, Port};
    use proptest::prelude::*;

    /// The routes as switches hold them: by switch and rack.
    type Held = BTreeMap<(DatapathId, u32), u32>;

    fn hold(held: &mut Held, hops: Vec<Hop>) {
        for hop in hops {
            match hop.port {
                Some(port) => drop(held.insert((hop.switch, hop.rack), port)),
                None => drop(held.remove(&(hop.switch, hop.rack))),
            }
        }
    }

    fn racks(graph: &Graph) -> BTreeMap<u32, DatapathId> {
        let tors: BTreeSet<DatapathId> = graph.hosts().map(|(_, port)| port.switch).collect();
        (0..).zip(tors).collect()
    }

    #[test]
    fn racks_are_spread_over_the_spines_and_a_lost_link_moves_only_what_used_it() {
        let mut graph = leaf_spine(8, 4, 1);
        let racks = racks(&graph);
        let mut routes = Routes::default();
        let all = BTreeSet::new();
        let mut held = Held::new();
        hold(&mut held, routes.update(&Index::new(&graph), &racks, &all));
        let ports: Vec<u32> = (1..8).map(|rack| held[&(DatapathId(101), rack)]).collect();
        assert_eq!(ports, [2, 3, 4, 1, 2, 3, 4]);
        assert_eq!(held.len(), 4 * 8 + 8 * 7);

        let lost = graph.unlink(Port { switch: DatapathId(101), number: 2 }).unwrap();
        let hops = routes.update(&Index::new(&graph), &racks, &BTreeSet::from([lost]));
        // The leaf's two racks that used the link, the others' way to the leaf, and the spine's own.
        let at_leaf: Vec<u32> = hops.iter().filter(|h| h.switch == DatapathId(101)).map(|h| h.rack).collect();
        assert_eq!(at_leaf, [1, 5]);
        assert!(hops.iter().all(|h| h.rack == 0 || h.switch == DatapathId(101)), "{hops:?}");
    }

    /// Follows what is held from each switch to each rack.
    fn check(graph: &Graph, racks: &BTreeMap<u32, DatapathId>, held: &Held) -> Result<(), TestCaseError> {
        for (rack, tor) in racks {
            let index = Index::new(graph);
            let Some(to) = index.position(*tor) else { continue };
            let distances = index.distances(to);
            let distance = |from| distances[index.position(from).unwrap()];
            for start in graph.switches() {
                let (mut at, mut hops) = (start, 0);
                while let Some(port) = held.get(&(at, *rack)) {
                    at = graph.peer(Port { switch: at, number: *port }).unwrap().switch;
                    hops += 1;
                    prop_assert!(hops <= distance(start), "no shortest path from {} to {}", start, tor);
                }
                prop_assert!(at == *tor || distance(start) == UNREACHABLE, "{} ends at {}", start, at);
            }
        }
        Ok(())
    }

    proptest! {
        /// Links come and go, several at once: the ways held are shortest paths, as if computed afresh.
        #[test]
        fn routes_kept_up_to_date_are_shortest_paths(
            whole in connected(),
            toggles in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 1..4), 0..12),
        ) {
            let links: Vec<Link> = whole.links().collect();
            let racks = racks(&whole);
            let (mut graph, mut routes, mut held) = (whole.clone(), Routes::default(), Held::new());
            hold(&mut held, routes.update(&Index::new(&graph), &racks, &BTreeSet::new()));
            check(&graph, &racks, &held)?;
            for picks in toggles.iter().filter(|_| !links.is_empty()) {
                let changed: BTreeSet<Link> = picks.iter().map(|p| links[p.index(links.len())]).collect();
                for link in &changed {
                    if graph.unlink(link.a).is_none() {
                        graph.link(link.a, link.b);
                    }
                }
                hold(&mut held, routes.update(&Index::new(&graph), &racks, &changed));
                check(&graph, &racks, &held)?;
            }
        }

        /// Switches change one after the other, in any order: downhill ways at once, the others first to
        /// nothing and then to their way. No mixture makes a loop.
        #[test]
        fn no_mixture_of_ways_makes_a_loop(
            whole in connected(),
            toggles in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 1..4), 0..8),
            order in any::<prop::sample::Index>(),
        ) {
            let links: Vec<Link> = whole.links().collect();
            let racks = racks(&whole);
            let (mut graph, mut routes, mut held) = (whole.clone(), Routes::default(), Held::new());
            hold(&mut held, routes.update(&Index::new(&graph), &racks, &BTreeSet::new()));
            for picks in toggles.iter().filter(|_| !links.is_empty()) {
                let changed: BTreeSet<Link> = picks.iter().map(|p| links[p.index(links.len())]).collect();
                for link in &changed {
                    if graph.unlink(link.a).is_none() {
                        graph.link(link.a, link.b);
                    }
                }
                let mut hops = routes.update(&Index::new(&graph), &racks, &changed);
                let first = order.index(hops.len().max(1));
                let first = first.min(hops.len());
                hops.rotate_left(first);
                let later: Vec<Hop> = hops.iter().copied().filter(|hop| !hop.downhill).collect();
                let now = |hop: Hop| Hop { port: hop.port.filter(|_| hop.downhill), ..hop };
                for hop in hops.into_iter().map(now).chain(later) {
                    hold(&mut held, vec![hop]);
                    for (start, rack) in held.keys() {
                        let (mut at, mut steps) = (*start, 0);
                        while let Some(port) = held.get(&(at, *rack))
                            // A switch may still use a cable that is gone.
                            && let Some(peer) = graph.peer(Port { switch: at, number: *port })
                        {
                            at = peer.switch;
                            steps += 1;
                            prop_assert!(steps <= 20, "a loop from {} to rack {}", start, rack);
                        }
                    }
                }
            }
        }

        /// Switches come and go: nothing of them stays, and the others have shortest paths.
        #[test]
        fn routes_survive_switches_that_leave_and_return(
            whole in connected(), leaves in prop::collection::vec(any::<prop::sample::Index>(), 1..6),
        ) {
            let racks = racks(&whole);
            let (mut routes, mut held, mut before) = (Routes::default(), Held::new(), Graph::default());
            let switches: Vec<DatapathId> = whole.switches().collect();
            for leave in leaves {
                let gone = switches[leave.index(switches.len())];
                let mut graph = whole.clone();
                graph.remove_switch(gone);
                let changed: BTreeSet<Link> = before.links().collect::<BTreeSet<_>>()
                    .symmetric_difference(&graph.links().collect()).copied().collect();
                let there = racks.iter().filter(|(_, tor)| **tor != gone).map(|(r, t)| (*r, *t)).collect();
                hold(&mut held, routes.update(&Index::new(&graph), &there, &changed));
                held.retain(|(switch, _), _| *switch != gone);
                check(&graph, &there, &held)?;
                before = graph;
            }
        }
    }
}
