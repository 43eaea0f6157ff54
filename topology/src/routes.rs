//! By which port each switch sends what is for each rack, and by which other one if that is down: along shortest
//! paths, racks spread over equally short ones. Kept up to date: a link that comes or goes costs what it concerns,
//! not the whole network.

use crate::index::{Index, UNREACHABLE};
use crate::{DatapathId, Link};
use std::collections::{BTreeMap, BTreeSet};

/// How what is for a rack leaves a switch. Both ports lead nearer to the rack, so packets cannot go round whichever
/// of them each switch uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// The port.
    pub port: u32,
    /// The one that stands in for it while it is down, if another one leads nearer.
    pub alternate: Option<u32>,
}

impl Way {
    /// What is left of it without the ports that are not `good`.
    fn only(self, good: impl Fn(u32) -> bool) -> Option<Way> {
        let mut ports = [Some(self.port), self.alternate].into_iter().flatten().filter(|port| good(*port));
        Some(Way { port: ports.next()?, alternate: ports.next() })
    }
}

/// A change: what is for this rack leaves this switch by this way from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hop {
    /// The rack's number.
    pub rack: u32,
    /// The switch.
    pub switch: DatapathId,
    /// Its way; `None` if there is none.
    pub way: Option<Way>,
    /// What of it leads nearer to the rack also by the distances before this change. While switches change one
    /// after the other, packets can go round only by ports of which this is not so.
    pub downhill: Option<Way>,
}

/// All ways to one rack. By position in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ways {
    tor: DatapathId,
    distances: Vec<u32>,
    chosen: Vec<Option<Way>>,
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
                let there = ways.chosen.iter().zip(index.switches()).filter(|(way, _)| way.is_some());
                hops.extend(there.map(|(_, s)| Hop { rack, switch: *s, way: None, downhill: None }));
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

    /// How what is for a rack leaves a switch.
    pub fn way(&self, index: &Index, from: DatapathId, rack: u32) -> Option<Way> {
        *self.racks.get(&rack)?.chosen.get(index.position(from)?)?
    }

    /// Positions are those of another index from now on.
    fn renumber(&mut self, index: &Index) {
        let places: Vec<Option<usize>> = self.switches.iter().map(|s| index.position(*s)).collect();
        for ways in self.racks.values_mut() {
            let mut moved = Ways::unknown(ways.tor, index.switches().len());
            for (from, to) in places.iter().enumerate() {
                if let Some(to) = to {
                    moved.distances[*to] = ways.distances[from];
                    moved.chosen[*to] = ways.chosen[from];
                }
            }
            *ways = moved;
        }
        self.switches = index.switches().to_vec();
    }
}

impl Ways {
    fn unknown(tor: DatapathId, switches: usize) -> Ways {
        Ways { tor, distances: vec![UNREACHABLE; switches], chosen: vec![None; switches] }
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
            let way = choose(index, at, &self.distances, rack, self.chosen[at].filter(|_| !anew));
            if way != self.chosen[at] {
                self.chosen[at] = way;
                hops.push(Hop { rack, switch: index.switches()[at], way, downhill: way });
            }
        }
    }

    /// Measures all distances. With `stay`, ports that still lead nearer are kept.
    fn measure(&mut self, index: &Index, rack: u32, to: usize, stay: bool, hops: &mut Vec<Hop>) {
        let distances = index.distances(to);
        for at in 0..distances.len() {
            let way = choose(index, at, &distances, rack, self.chosen[at].filter(|_| stay));
            if way == self.chosen[at] {
                continue;
            }
            // To a switch that had no way so far, nobody sends by the old distances.
            let fresh = self.distances[at] == UNREACHABLE;
            let downhill = |port| {
                let peer = index.edges(at).iter().find(|edge| edge.port == port).map(|edge| edge.peer);
                fresh || peer.is_some_and(|peer| self.distances[peer] < self.distances[at])
            };
            let downhill = way.and_then(|way| way.only(downhill));
            self.chosen[at] = way;
            hops.push(Hop { rack, switch: index.switches()[at], way, downhill });
        }
        self.distances = distances;
    }
}

/// Ports of `keep` stay as long as they lead nearer. Otherwise racks are spread over the ports that do, and the next
/// of these stands in.
fn choose(index: &Index, at: usize, distances: &[u32], rack: u32, keep: Option<Way>) -> Option<Way> {
    let nearer = || index.nearer(at, distances).map(|edge| edge.port);
    let leads = |port: &u32| nearer().any(|other| other == *port);
    let spread = (rack as usize).checked_rem(nearer().count())?;
    let keep = keep.filter(|way| leads(&way.port));
    let port = keep.map(|way| way.port).or_else(|| nearer().nth(spread))?;
    let next = || nearer().skip_while(|other| *other != port).nth(1).or_else(|| nearer().next());
    let alternate = keep.and_then(|way| way.alternate).filter(leads).or_else(next);
    Some(Way { port, alternate: alternate.filter(|other| *other != port) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{connected, leaf_spine};
    use crate::{Graph, Port};
    use proptest::prelude::*;

    /// The routes as switches hold them: by switch and rack.
    type Held = BTreeMap<(DatapathId, u32), Way>;

    fn hold(held: &mut Held, hops: Vec<Hop>) {
        for hop in hops {
            match hop.way {
                Some(way) => drop(held.insert((hop.switch, hop.rack), way)),
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
        let ways = |held: &Held| (1..8).map(|rack| held[&(DatapathId(101), rack)]).collect::<Vec<_>>();
        let list =
            |ways: [(u32, u32); 7]| ways.map(|(port, other)| Way { port, alternate: Some(other) }).to_vec();
        assert_eq!(ways(&held), list([(2, 3), (3, 4), (4, 1), (1, 2), (2, 3), (3, 4), (4, 1)]));
        assert_eq!(held.len(), 4 * 8 + 8 * 7);
        assert_eq!(held[&(DatapathId(1), 3)].alternate, None);

        let lost = graph.unlink(Port { switch: DatapathId(101), number: 2 }).unwrap();
        let hops = routes.update(&Index::new(&graph), &racks, &BTreeSet::from([lost]));
        // The leaf's racks that used the link or kept it in reserve, the others' way to the leaf, and the spine's own.
        let at_leaf: Vec<u32> = hops.iter().filter(|h| h.switch == DatapathId(101)).map(|h| h.rack).collect();
        assert_eq!(at_leaf, [1, 4, 5]);
        assert!(hops.iter().all(|h| h.rack == 0 || h.switch == DatapathId(101)), "{hops:?}");
        hold(&mut held, hops);
        assert_eq!(ways(&held), list([(3, 4), (3, 4), (4, 1), (1, 3), (4, 1), (3, 4), (4, 1)]));
    }

    /// Every switch that is connected to a rack has a way, all ports of which lead one link nearer, and an alternate
    /// wherever there is a second such port.
    fn check(graph: &Graph, racks: &BTreeMap<u32, DatapathId>, held: &Held) -> Result<(), TestCaseError> {
        for (rack, tor) in racks {
            let index = Index::new(graph);
            let Some(to) = index.position(*tor) else { continue };
            let distances = index.distances(to);
            for (at, switch) in index.switches().iter().enumerate() {
                let nearer: BTreeSet<u32> = index.nearer(at, &distances).map(|edge| edge.port).collect();
                let ports: Vec<u32> = held.get(&(*switch, *rack)).into_iter().flat_map(ports).collect();
                prop_assert_eq!(ports.len(), nearer.len().min(2), "from {} to {}", switch, tor);
                prop_assert!(ports.iter().all(|port| nearer.contains(port)), "no shortest path: {:?}", ports);
            }
        }
        Ok(())
    }

    fn ports(way: &Way) -> impl Iterator<Item = u32> + use<> {
        [Some(way.port), way.alternate].into_iter().flatten()
    }

    /// Whether packets for a rack could go round if each switch used any port of its way, whatever is down.
    fn goes_round(graph: &Graph, held: &Held, rack: u32) -> bool {
        // A switch may still use a cable that is gone.
        let peer = |switch, number| Some(graph.peer(Port { switch, number })?.switch);
        let of_rack = held.iter().filter(|((_, other), _)| *other == rack);
        let next =
            of_rack.map(|((at, _), way)| (*at, ports(way).filter_map(|port| peer(*at, port)).collect()));
        let mut next: BTreeMap<DatapathId, BTreeSet<DatapathId>> = next.collect();
        loop {
            let left = next.len();
            let on: BTreeSet<DatapathId> = next.keys().copied().collect();
            next.retain(|_, peers| peers.iter().any(|peer| on.contains(peer)));
            if next.len() == left {
                return left > 0;
            }
        }
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

        /// Switches change one after the other, in any order: first to what of their way is downhill, then to
        /// all of it. No mixture makes a loop, whichever ports are down.
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
                let later: Vec<Hop> = hops.iter().copied().filter(|hop| hop.downhill != hop.way).collect();
                let now = |hop: Hop| Hop { way: hop.downhill, ..hop };
                for hop in hops.into_iter().map(now).chain(later) {
                    hold(&mut held, vec![hop]);
                    prop_assert!(!goes_round(&graph, &held, hop.rack), "a loop on the way to rack {}", hop.rack);
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
