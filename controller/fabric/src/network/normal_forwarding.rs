//! Unicast by the switches' own forwarding (NORMAL), while COOL programs multicast only: decides
//! from which ports that forwarding accepts frames.
//!
//! A switch that learns addresses floods frames to unknown ones, which would never end in a loop of
//! links. Frames are therefore accepted at edge ports and at links of a spanning tree, and dropped
//! elsewhere. A port counts as an edge port only after the time in which its link would have been
//! found. A link of the tree stays in it as long as it exists. A replacement is chosen only after
//! the link is lost, and never while switches are still being discovered, so that old and new trees
//! cannot form a loop together.

use super::edge_ports::EdgePorts;
use cool_machine::{Duration, Time, earliest};
use cool_topology::{DatapathId, Graph, Link, Port, trees::forest};
use std::collections::BTreeSet;

/// Time after a change of the tree until switches accept frames from its links.
const REANNOUNCE_AFTER: Duration = Duration::from_millis(200);

/// Ports and links, and the decisions about them.
#[derive(Debug, Default)]
pub(crate) struct NormalForwarding {
    tree: BTreeSet<Link>,
    edges: EdgePorts,
    /// Ports that have received an announcement of any switch since they came up. Without a link in
    /// the tree, frames from them could return to another port.
    heard_switch: BTreeSet<Port>,
    /// Ports from which an earlier controller accepted frames.
    inherited: BTreeSet<Port>,
    /// Ports from which frames are accepted.
    open: BTreeSet<Port>,
    /// Whether a port has changed since the last decision.
    changed: bool,
    was_settled: bool,
    /// When switches must learn the places of nodes anew, because the tree has changed.
    reannounce_at: Option<Time>,
}

impl NormalForwarding {
    /// Records a switch that still accepts frames from the ports `open`, and whose ports `up` are
    /// up.
    pub(crate) fn remember(&mut self, switch: DatapathId, open: &BTreeSet<u32>, up: &BTreeSet<u32>) {
        self.inherited.extend(open.iter().map(|number| Port { switch, number: *number }));
        self.edges.switch_up(switch, up);
        self.heard_switch.retain(|port| port.switch != switch || up.contains(&port.number));
        self.changed = true;
    }

    /// Records that a port is up. A link at it would have been found by `settled`.
    pub(crate) fn port_up(&mut self, port: Port, settled: Time) {
        self.edges.port_up(port, settled);
        self.changed = true;
    }

    pub(crate) fn port_down(&mut self, port: Port) {
        self.edges.port_down(port);
        self.heard_switch.remove(&port);
        self.changed = true;
    }

    /// Records that a port has received an announcement of any switch. It must not become an edge
    /// port, unless a node is located there, which outweighs relayed announcements.
    pub(crate) fn switch_heard(&mut self, port: Port) {
        self.changed |= self.heard_switch.insert(port);
    }

    pub(crate) fn switch_removed(&mut self, switch: DatapathId) {
        self.edges.switch_removed(switch);
        self.heard_switch.retain(|port| port.switch != switch);
        self.open.retain(|port| port.switch != switch);
        self.changed = true;
    }

    /// Returns whether a new decision is due even if no link and no node has changed.
    pub(crate) fn is_due(&self, now: Time, settled: bool) -> bool {
        self.changed || settled != self.was_settled || self.edges.deadline().is_some_and(|next| next <= now)
    }

    /// Decides anew. Returns the ports whose state has changed, each with whether it accepts frames
    /// now. Links are added to the tree only if the network is `settled`.
    pub(crate) fn follow(&mut self, now: Time, graph: &Graph, settled: bool) -> Vec<(Port, bool)> {
        let links: BTreeSet<Link> = graph.links().collect();
        let before = self.tree.clone();
        links.iter().flat_map(|link| [link.a, link.b]).for_each(|end| self.edges.linked(end));
        self.edges.pass_time(now);
        self.tree.retain(|link| links.contains(link));
        if settled {
            let was = |link: &&Link| self.inherited.contains(&link.a) && self.inherited.contains(&link.b);
            let first: Vec<Link> = self.tree.iter().chain(links.iter().filter(was)).copied().collect();
            self.tree = forest(first.into_iter().chain(links));
            self.inherited.clear();
        }
        let nodes = graph.hosts().map(|(_, port)| port).filter(|port| self.edges.may_be(*port));
        let ends = self.tree.iter().flat_map(|link| [link.a, link.b]);
        let edges = self.edges.all().difference(&self.heard_switch).copied();
        let open: BTreeSet<Port> = edges.chain(nodes).chain(ends).collect();
        let closed = self.open.difference(&open).map(|port| (*port, false));
        let changed = closed.chain(open.difference(&self.open).map(|port| (*port, true))).collect();
        self.open = open;
        if self.tree != before {
            self.reannounce_at = Some(now + REANNOUNCE_AFTER);
        }
        (self.changed, self.was_settled) = (false, settled);
        changed
    }

    /// Returns the links of the tree if nodes must be announced over them now, because switches
    /// have learned their places by the old tree.
    pub(crate) fn reannounce(&mut self, now: Time) -> Option<&BTreeSet<Link>> {
        self.reannounce_at.take_if(|at| *at <= now).map(|_| &self.tree)
    }

    /// Returns when to decide or announce again even if nothing happens.
    pub(crate) fn deadline(&self) -> Option<Time> {
        earliest(self.edges.deadline(), self.reannounce_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_topology::trees::is_forest;
    use proptest::prelude::*;

    fn port(switch: u64, number: u32) -> Port {
        Port { switch: DatapathId(switch), number }
    }

    /// Returns a full mesh of five switches, in which port n leads to switch n.
    fn mesh() -> Vec<Link> {
        let pairs = (0..5u32).flat_map(|a| (0..a).map(move |b| (a, b)));
        pairs.map(|(a, b)| Link::new(port(a.into(), b), port(b.into(), a))).collect()
    }

    fn at(ms: u64) -> Time {
        Time::ZERO + core::time::Duration::from_millis(ms)
    }

    proptest! {
        /// Links are added and removed, and switches apply the decisions one by one. Meanwhile the
        /// links that accept frames at both ends never form a loop, and finally they connect
        /// everything that is linked.
        #[test]
        fn frames_never_go_round_and_reach_all(changes in prop::collection::vec((0usize..10, any::<bool>()), 1..60)) {
            let (mut graph, mut normal, mesh) = (Graph::default(), NormalForwarding::default(), mesh());
            (0..5).for_each(|switch| graph.add_switch(DatapathId(switch)));
            let mut open: BTreeSet<Port> = BTreeSet::new();
            for (step, (which, up)) in changes.into_iter().enumerate() {
                let Link { a, b } = mesh[which];
                match up {
                    true => graph.link(a, b),
                    false => drop(graph.unlink(a)),
                }
                [a, b].into_iter().for_each(|end| normal.port_up(end, at(0)));
                for (port, opened) in normal.follow(at(step as u64), &graph, true) {
                    match opened {
                        true => open.insert(port),
                        false => open.remove(&port),
                    };
                    let crossed: Vec<Link> =
                        graph.links().filter(|l| open.contains(&l.a) && open.contains(&l.b)).collect();
                    prop_assert!(is_forest(&crossed), "{crossed:?}");
                }
                let crossed: BTreeSet<Link> =
                    graph.links().filter(|l| open.contains(&l.a) && open.contains(&l.b)).collect();
                prop_assert_eq!(crossed.len(), forest(graph.links()).len());
            }
        }
    }

    #[test]
    fn ports_open_after_a_while_or_at_once_with_a_node() {
        let (mut graph, mut normal) = (Graph::default(), NormalForwarding::default());
        graph.link(port(1, 1), port(2, 1));
        graph.place("h1", port(1, 2));
        for end in [port(1, 1), port(1, 2), port(1, 3), port(2, 1)] {
            normal.port_up(end, at(4000));
        }
        assert_eq!(normal.follow(at(0), &graph, false), [(port(1, 2), true)]);
        assert_eq!((normal.deadline(), normal.is_due(at(3999), false)), (Some(at(4000)), false));
        assert!(normal.is_due(at(4000), false));
        let opened = [port(1, 1), port(1, 3), port(2, 1)].map(|port| (port, true));
        assert_eq!(normal.follow(at(4000), &graph, true), opened);
        graph.unlink(port(1, 1));
        assert_eq!(normal.follow(at(5000), &graph, true), [(port(1, 1), false), (port(2, 1), false)]);
        assert!(normal.reannounce(at(5100)).is_none());
        assert!(
            normal.reannounce(at(5200)).is_some_and(BTreeSet::is_empty)
                && normal.reannounce(at(5300)).is_none()
        );
        normal.port_down(port(1, 1));
        normal.port_up(port(1, 1), at(9000));
        assert_eq!(normal.follow(at(9000), &graph, true), [(port(1, 1), true)]);
    }

    #[test]
    fn a_port_that_hears_a_switch_without_a_link_stays_closed() {
        let (mut graph, mut normal) = (Graph::default(), NormalForwarding::default());
        graph.add_switch(DatapathId(1));
        (1..=3).for_each(|number| normal.port_up(port(1, number), at(0)));
        // Ports 1 and 2 are connected by a cable. Port 2 opens before it receives anything.
        normal.switch_heard(port(1, 1));
        assert_eq!(normal.follow(at(0), &graph, true), [(port(1, 2), true), (port(1, 3), true)]);
        normal.switch_heard(port(1, 2));
        assert!(normal.is_due(at(1), true));
        assert_eq!(normal.follow(at(1), &graph, true), [(port(1, 2), false)]);
        normal.port_down(port(1, 2));
        normal.port_up(port(1, 2), at(2));
        assert_eq!(normal.follow(at(2), &graph, true), [(port(1, 2), true)]);
        graph.place("h1", port(1, 1));
        assert_eq!(normal.follow(at(3), &graph, true), [(port(1, 1), true)]);
    }

    #[test]
    fn the_tree_of_an_earlier_controller_is_kept() {
        let mut graph = Graph::default();
        for (a, b) in [(1, 2), (2, 3), (1, 3)] {
            graph.link(port(a, b as u32), port(b, a as u32));
        }
        let mut normal = NormalForwarding::default();
        for (switch, open) in [(1, vec![3]), (2, vec![3]), (3, vec![1, 2])] {
            let open: BTreeSet<u32> = open.into_iter().collect();
            normal.remember(DatapathId(switch), &open, &open);
        }
        let open: Vec<Port> = normal.follow(at(0), &graph, true).into_iter().map(|(port, _)| port).collect();
        assert_eq!(open, [port(1, 3), port(2, 3), port(3, 1), port(3, 2)]);
    }
}
