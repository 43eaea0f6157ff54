//! Unicast routes: the port by which each switch sends packets to each rack, and an alternate port.
//! Routes are shortest paths, and racks are spread over equal-cost paths. The cost of an update
//! depends only on the routes that the changed links concern.

use crate::switch_adjacency::{SwitchAdjacency, UNREACHABLE};
use crate::{DatapathId, Link};
use std::collections::{BTreeMap, BTreeSet};

/// Ports by which packets to a rack leave a switch. Both lead closer to the rack, so packets cannot
/// loop, whichever of them each switch uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NextHops {
    /// Preferred port.
    pub port: u32,
    /// Port to use while the preferred one is down, if another port leads closer to the rack.
    pub alternate: Option<u32>,
}

impl NextHops {
    /// Returns the next hops for which `good` returns true.
    fn restricted_to(self, good: impl Fn(u32) -> bool) -> Option<NextHops> {
        let mut ports = [Some(self.port), self.alternate].into_iter().flatten().filter(|port| good(*port));
        Some(NextHops { port: ports.next()?, alternate: ports.next() })
    }
}

/// A change of a switch's route to a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteUpdate {
    /// Number of the rack.
    pub rack: u32,
    /// The switch.
    pub switch: DatapathId,
    /// New next hops; `None` if there is no path.
    pub next_hops: Option<NextHops>,
    /// Next hops that are loop-free during the update, because they lead closer to the rack by the
    /// old and by the new distances (ordered FIB update, RFC 6976). While switches are updated one
    /// after the other, only the other next hops could cause a loop.
    pub loop_free: Option<NextHops>,
}

/// Routes of all switches to one rack, by position in the adjacency.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RackRoutes {
    tor: DatapathId,
    distances: Vec<u32>,
    chosen: Vec<Option<NextHops>>,
}

/// Routes to all racks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Switches of the adjacency to which the positions refer.
    switches: Vec<DatapathId>,
    racks: BTreeMap<u32, RackRoutes>,
}

impl Routes {
    /// Updates the routes. `racks` must contain the ToR of each rack, and `changed` all links that
    /// were added or removed since the last call. Returns the routes that have changed, without
    /// those of removed switches.
    pub fn update(
        &mut self,
        adjacency: &SwitchAdjacency,
        racks: &BTreeMap<u32, DatapathId>,
        changed: &BTreeSet<Link>,
    ) -> Vec<RouteUpdate> {
        let mut updates = Vec::new();
        if self.switches != adjacency.switches() {
            self.renumber(adjacency);
        }
        let removed = |rack: u32, rack_routes: &RackRoutes| racks.get(&rack) != Some(&rack_routes.tor);
        let lost: Vec<u32> = self.racks.iter().filter(|(r, w)| removed(**r, w)).map(|(r, _)| *r).collect();
        for rack in lost {
            if let Some(rack_routes) = self.racks.remove(&rack) {
                let there = rack_routes
                    .chosen
                    .iter()
                    .zip(adjacency.switches())
                    .filter(|(next_hops, _)| next_hops.is_some());
                updates.extend(there.map(|(_, s)| RouteUpdate {
                    rack,
                    switch: *s,
                    next_hops: None,
                    loop_free: None,
                }));
            }
        }
        for (rack, tor) in racks {
            let Some(to) = adjacency.position(*tor) else { continue };
            match self.racks.get_mut(rack) {
                Some(rack_routes) => rack_routes.update(adjacency, *rack, to, changed, &mut updates),
                None => {
                    let mut rack_routes = RackRoutes::unknown(*tor, adjacency.switches().len());
                    rack_routes.measure(adjacency, *rack, to, false, &mut updates);
                    self.racks.insert(*rack, rack_routes);
                }
            }
        }
        updates
    }

    /// Returns the number of links from a switch to a rack.
    pub fn distance(&self, adjacency: &SwitchAdjacency, from: DatapathId, rack: u32) -> Option<u32> {
        let distance = *self.racks.get(&rack)?.distances.get(adjacency.position(from)?)?;
        (distance != UNREACHABLE).then_some(distance)
    }

    /// Returns the next hops from a switch to a rack.
    pub fn next_hops(&self, adjacency: &SwitchAdjacency, from: DatapathId, rack: u32) -> Option<NextHops> {
        *self.racks.get(&rack)?.chosen.get(adjacency.position(from)?)?
    }

    /// Adapts the positions to another adjacency.
    fn renumber(&mut self, adjacency: &SwitchAdjacency) {
        let places: Vec<Option<usize>> = self.switches.iter().map(|s| adjacency.position(*s)).collect();
        for rack_routes in self.racks.values_mut() {
            let mut moved = RackRoutes::unknown(rack_routes.tor, adjacency.switches().len());
            for (from, to) in places.iter().enumerate() {
                if let Some(to) = to {
                    moved.distances[*to] = rack_routes.distances[from];
                    moved.chosen[*to] = rack_routes.chosen[from];
                }
            }
            *rack_routes = moved;
        }
        self.switches = adjacency.switches().to_vec();
    }
}

impl RackRoutes {
    fn unknown(tor: DatapathId, switches: usize) -> RackRoutes {
        RackRoutes { tor, distances: vec![UNREACHABLE; switches], chosen: vec![None; switches] }
    }

    /// Updates only the routes that the changed links concern. As long as every switch keeps a
    /// neighbor that is closer, and no new link is a shortcut, all distances stay the same.
    fn update(
        &mut self,
        adjacency: &SwitchAdjacency,
        rack: u32,
        to: usize,
        changed: &BTreeSet<Link>,
        updates: &mut Vec<RouteUpdate>,
    ) {
        let mut again: BTreeMap<usize, bool> = BTreeMap::new();
        let mut spread = false;
        let mut moved = self.distances[to] != 0;
        for link in changed {
            let (a, b) = (adjacency.position(link.a.switch), adjacency.position(link.b.switch));
            let there = adjacency.has(*link);
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
                // The switch at the other end was removed.
                (Some(left), None) | (None, Some(left)) => {
                    again.entry(left).or_insert(false);
                }
                (None, None) => {}
            }
        }
        let stranded = |at: &usize| {
            let distance = self.distances[*at];
            distance != 0
                && distance != UNREACHABLE
                && adjacency.nearer(*at, &self.distances).next().is_none()
        };
        if moved || again.keys().any(stranded) {
            return self.measure(adjacency, rack, to, !spread, updates);
        }
        for (at, anew) in again {
            let next_hops = choose(adjacency, at, &self.distances, rack, self.chosen[at].filter(|_| !anew));
            if next_hops != self.chosen[at] {
                self.chosen[at] = next_hops;
                updates.push(RouteUpdate {
                    rack,
                    switch: adjacency.switches()[at],
                    next_hops,
                    loop_free: next_hops,
                });
            }
        }
    }

    /// Computes all distances. With `stay`, ports are kept if they still lead closer.
    fn measure(
        &mut self,
        adjacency: &SwitchAdjacency,
        rack: u32,
        to: usize,
        stay: bool,
        updates: &mut Vec<RouteUpdate>,
    ) {
        let distances = adjacency.distances(to);
        for at in 0..distances.len() {
            let next_hops = choose(adjacency, at, &distances, rack, self.chosen[at].filter(|_| stay));
            if next_hops == self.chosen[at] {
                continue;
            }
            // No switch sends packets by the old distances to a switch that had no route.
            let fresh = self.distances[at] == UNREACHABLE;
            let loop_free = |port| {
                let peer = adjacency.edges(at).iter().find(|edge| edge.port == port).map(|edge| edge.peer);
                fresh || peer.is_some_and(|peer| self.distances[peer] < self.distances[at])
            };
            let loop_free = next_hops.and_then(|next_hops| next_hops.restricted_to(loop_free));
            self.chosen[at] = next_hops;
            updates.push(RouteUpdate { rack, switch: adjacency.switches()[at], next_hops, loop_free });
        }
        self.distances = distances;
    }
}

/// Chooses the ports of a switch. Ports of `keep` are kept if they still lead closer. Otherwise
/// racks are spread over the ports that do, and the next of these becomes the alternate.
fn choose(
    adjacency: &SwitchAdjacency,
    at: usize,
    distances: &[u32],
    rack: u32,
    keep: Option<NextHops>,
) -> Option<NextHops> {
    let nearer = || adjacency.nearer(at, distances).map(|edge| edge.port);
    let leads = |port: &u32| nearer().any(|other| other == *port);
    let spread = (rack as usize).checked_rem(nearer().count())?;
    let keep = keep.filter(|next_hops| leads(&next_hops.port));
    let port = keep.map(|next_hops| next_hops.port).or_else(|| nearer().nth(spread))?;
    let next = || nearer().skip_while(|other| *other != port).nth(1).or_else(|| nearer().next());
    let alternate = keep.and_then(|next_hops| next_hops.alternate).filter(leads).or_else(next);
    Some(NextHops { port, alternate: alternate.filter(|other| *other != port) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{connected, leaf_spine};
    use crate::{Graph, Port};
    use proptest::prelude::*;

    /// Routes as switches hold them, by switch and rack.
    type Held = BTreeMap<(DatapathId, u32), NextHops>;

    fn hold(held: &mut Held, updates: Vec<RouteUpdate>) {
        for update in updates {
            match update.next_hops {
                Some(next_hops) => drop(held.insert((update.switch, update.rack), next_hops)),
                None => drop(held.remove(&(update.switch, update.rack))),
            }
        }
    }

    fn racks(graph: &Graph) -> BTreeMap<u32, DatapathId> {
        let tors: BTreeSet<DatapathId> = graph.hosts().map(|(_, port)| port.switch).collect();
        (0..).zip(tors).collect()
    }

    #[test]
    fn a_lost_link_moves_only_the_routes_that_used_it() {
        let mut graph = leaf_spine(8, 4, 1);
        let racks = racks(&graph);
        let mut routes = Routes::default();
        let all = BTreeSet::new();
        let mut held = Held::new();
        hold(&mut held, routes.update(&SwitchAdjacency::new(&graph), &racks, &all));
        let of_leaf = |held: &Held| (1..8).map(|rack| held[&(DatapathId(101), rack)]).collect::<Vec<_>>();
        let list = |hops: [(u32, u32); 7]| {
            hops.map(|(port, other)| NextHops { port, alternate: Some(other) }).to_vec()
        };
        assert_eq!(of_leaf(&held), list([(2, 3), (3, 4), (4, 1), (1, 2), (2, 3), (3, 4), (4, 1)]));
        assert_eq!(held.len(), 4 * 8 + 8 * 7);
        assert_eq!(held[&(DatapathId(1), 3)].alternate, None);

        let lost = graph.unlink(Port { switch: DatapathId(101), number: 2 }).unwrap();
        let updates = routes.update(&SwitchAdjacency::new(&graph), &racks, &BTreeSet::from([lost]));
        // These routes change: the leaf's routes that used the link or had it as alternate, and the
        // routes of other switches to the leaf's rack.
        let at_leaf: Vec<u32> =
            updates.iter().filter(|h| h.switch == DatapathId(101)).map(|h| h.rack).collect();
        assert_eq!(at_leaf, [1, 4, 5]);
        assert!(updates.iter().all(|h| h.rack == 0 || h.switch == DatapathId(101)), "{updates:?}");
        hold(&mut held, updates);
        assert_eq!(of_leaf(&held), list([(3, 4), (3, 4), (4, 1), (1, 3), (4, 1), (3, 4), (4, 1)]));
    }

    /// Checks that every switch that is connected to a rack has next hops, that all their ports
    /// lead one link closer, and that there is an alternate wherever a second such port exists.
    fn check(graph: &Graph, racks: &BTreeMap<u32, DatapathId>, held: &Held) -> Result<(), TestCaseError> {
        for (rack, tor) in racks {
            let adjacency = SwitchAdjacency::new(graph);
            let Some(to) = adjacency.position(*tor) else { continue };
            let distances = adjacency.distances(to);
            for (at, switch) in adjacency.switches().iter().enumerate() {
                let nearer: BTreeSet<u32> = adjacency.nearer(at, &distances).map(|edge| edge.port).collect();
                let ports: Vec<u32> = held.get(&(*switch, *rack)).into_iter().flat_map(ports).collect();
                prop_assert_eq!(ports.len(), nearer.len().min(2), "from {} to {}", switch, tor);
                prop_assert!(ports.iter().all(|port| nearer.contains(port)), "no shortest path: {:?}", ports);
            }
        }
        Ok(())
    }

    fn ports(next_hops: &NextHops) -> impl Iterator<Item = u32> + use<> {
        [Some(next_hops.port), next_hops.alternate].into_iter().flatten()
    }

    /// Returns whether packets to a rack could loop if each switch used any of its next hops.
    fn goes_round(graph: &Graph, held: &Held, rack: u32) -> bool {
        // A switch may still use a cable that was removed.
        let peer = |switch, number| Some(graph.peer(Port { switch, number })?.switch);
        let of_rack = held.iter().filter(|((_, other), _)| *other == rack);
        let next = of_rack
            .map(|((at, _), next_hops)| (*at, ports(next_hops).filter_map(|port| peer(*at, port)).collect()));
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
        /// Links are added and removed, several at once: the routes must be shortest paths, as if
        /// computed anew.
        #[test]
        fn routes_kept_up_to_date_are_shortest_paths(
            whole in connected(),
            toggles in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 1..4), 0..12),
        ) {
            let links: Vec<Link> = whole.links().collect();
            let racks = racks(&whole);
            let (mut graph, mut routes, mut held) = (whole.clone(), Routes::default(), Held::new());
            hold(&mut held, routes.update(&SwitchAdjacency::new(&graph), &racks, &BTreeSet::new()));
            check(&graph, &racks, &held)?;
            for picks in toggles.iter().filter(|_| !links.is_empty()) {
                let changed: BTreeSet<Link> = picks.iter().map(|p| links[p.index(links.len())]).collect();
                for link in &changed {
                    if graph.unlink(link.a).is_none() {
                        graph.link(link.a, link.b);
                    }
                }
                hold(&mut held, routes.update(&SwitchAdjacency::new(&graph), &racks, &changed));
                check(&graph, &racks, &held)?;
            }
        }

        /// Switches are updated one after the other, in any order: first to the loop-free next
        /// hops, then to all of them. No mixture may form a loop, whichever ports are down.
        #[test]
        fn no_mixture_of_ways_makes_a_loop(
            whole in connected(),
            toggles in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 1..4), 0..8),
            order in any::<prop::sample::Index>(),
        ) {
            let links: Vec<Link> = whole.links().collect();
            let racks = racks(&whole);
            let (mut graph, mut routes, mut held) = (whole.clone(), Routes::default(), Held::new());
            hold(&mut held, routes.update(&SwitchAdjacency::new(&graph), &racks, &BTreeSet::new()));
            for picks in toggles.iter().filter(|_| !links.is_empty()) {
                let changed: BTreeSet<Link> = picks.iter().map(|p| links[p.index(links.len())]).collect();
                for link in &changed {
                    if graph.unlink(link.a).is_none() {
                        graph.link(link.a, link.b);
                    }
                }
                let mut updates = routes.update(&SwitchAdjacency::new(&graph), &racks, &changed);
                let first = order.index(updates.len().max(1));
                let first = first.min(updates.len());
                updates.rotate_left(first);
                let later: Vec<RouteUpdate> = updates.iter().copied().filter(|update| update.loop_free != update.next_hops).collect();
                let now = |update: RouteUpdate| RouteUpdate { next_hops: update.loop_free, ..update };
                for update in updates.into_iter().map(now).chain(later) {
                    hold(&mut held, vec![update]);
                    prop_assert!(!goes_round(&graph, &held, update.rack), "a loop on the way to rack {}", update.rack);
                }
            }
        }

        /// Switches are added and removed: none of their routes may remain, and the others must
        /// have shortest paths.
        #[test]
        fn routes_survive_switches_that_leave_and_return(
            whole in connected(), leaves in prop::collection::vec(any::<prop::sample::Index>(), 1..6),
        ) {
            let racks = racks(&whole);
            let (mut routes, mut held, mut before) = (Routes::default(), Held::new(), Graph::default());
            let switches: Vec<DatapathId> = whole.switches().collect();
            for leave in leaves {
                let removed = switches[leave.index(switches.len())];
                let mut graph = whole.clone();
                graph.remove_switch(removed);
                let changed: BTreeSet<Link> = before.links().collect::<BTreeSet<_>>()
                    .symmetric_difference(&graph.links().collect()).copied().collect();
                let there = racks.iter().filter(|(_, tor)| **tor != removed).map(|(r, t)| (*r, *t)).collect();
                hold(&mut held, routes.update(&SwitchAdjacency::new(&graph), &there, &changed));
                held.retain(|(switch, _), _| *switch != removed);
                check(&graph, &there, &held)?;
                before = graph;
            }
        }
    }
}
