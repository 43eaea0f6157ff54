//! Unicast by the switches' own forwarding (NORMAL), while COOL programs multicast only: decides
//! from which ports that forwarding accepts frames.
//!
//! A switch that learns addresses floods frames to unknown ones, which would never end in a loop of
//! links. Frames are therefore accepted at edge ports and at links of a spanning tree, and dropped
//! elsewhere. A port counts as an edge port only after the time in which its link would have been
//! found. A link of the tree stays in it as long as it exists. A replacement is chosen only after
//! the link is lost, and never while switches are still being discovered, so that old and new trees
//! cannot form a loop together.
//!
//! Several ports may be connected to one segment behind switches without OpenFlow. Only one of them
//! is open then. The others are also blocked for output, because a frame that leaves by one of them
//! would return by the open one.

use super::DISCOVERY_INTERVALS;
use super::edge_ports::EdgePorts;
use super::foreign_segments::ForeignSegments;
use super::host_forwarder::PROBE_SOURCE;
use crate::frames::loop_probe::LoopProbe;
use cool_machine::{Duration, Time, earliest};
use cool_topology::spanning_tree::SpanningTree;
use cool_topology::{DatapathId, Graph, Key, Link, Port};
use std::collections::{BTreeMap, BTreeSet};

/// Time after a change of the tree until switches accept frames from its links.
const REANNOUNCE_AFTER: Duration = Duration::from_millis(200);

/// Time after a port has come up until it is probed, so that other ports are probed together with
/// it.
const PROBE_AFTER: Duration = Duration::from_millis(20);
/// Minimum time per probe. If more ports are probed than fit into an interval at this rate, the
/// interval is extended, as for LLDP.
const PROBE_TIME_MIN: Duration = Duration::from_micros(100);

/// Ports and links, and the decisions about them.
#[derive(Debug)]
pub(crate) struct NormalForwarding {
    /// Interval between rounds of probes, and the key that authenticates them.
    probe_interval: Duration,
    key: Key,
    next_probes: Option<Time>,
    segments: ForeignSegments,
    /// Ports that must not send frames, and the number of changes of this set.
    blocked: BTreeSet<Port>,
    revision: u64,
    /// Ports that their switch cannot block.
    unblockable: BTreeSet<Port>,
    /// Changes of `blocked` that have not been taken.
    blocked_changes: BTreeMap<Port, bool>,
    /// Ends of links.
    link_ends: BTreeSet<Port>,
    tree: SpanningTree,
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

/// Ports that do not belong to the open part of their segment.
#[derive(Debug, Default)]
struct SegmentPorts {
    /// Ports that accept no frames.
    closed: BTreeSet<Port>,
    /// Ports that also send none.
    blocked: BTreeSet<Port>,
}

impl NormalForwarding {
    /// Returns the state of a network without ports. Probes are sent at this interval and
    /// authenticated by `key`.
    pub(crate) fn new(probe_interval: Duration, key: Key) -> NormalForwarding {
        NormalForwarding {
            probe_interval,
            key,
            next_probes: None,
            segments: ForeignSegments::default(),
            blocked: BTreeSet::new(),
            revision: 0,
            unblockable: BTreeSet::new(),
            blocked_changes: BTreeMap::new(),
            link_ends: BTreeSet::new(),
            tree: SpanningTree::default(),
            edges: EdgePorts::default(),
            heard_switch: BTreeSet::new(),
            inherited: BTreeSet::new(),
            open: BTreeSet::new(),
            changed: false,
            was_settled: false,
            reannounce_at: None,
        }
    }

    /// Records a switch that still accepts frames from the ports `open`, blocks the ports
    /// `blocked`, and whose ports `up` are up.
    pub(crate) fn remember(
        &mut self,
        switch: DatapathId,
        open: &BTreeSet<u32>,
        blocked: &BTreeSet<u32>,
        up: &BTreeSet<u32>,
    ) {
        let port = |number: &u32| Port { switch, number: *number };
        self.inherited.extend(open.iter().map(port));
        self.edges.switch_up(switch, up);
        self.heard_switch.retain(|port| port.switch != switch || up.contains(&port.number));
        self.segments.forget(|port| port.switch == switch && !up.contains(&port.number));
        self.unblockable.retain(|port| port.switch != switch);
        // Blocked ports, and no others, have a flow for probes.
        let before: BTreeSet<Port> =
            self.blocked.iter().copied().filter(|port| port.switch == switch).collect();
        let blocked: BTreeSet<Port> = blocked.iter().map(port).collect();
        self.blocked_changes.extend(before.iter().map(|port| (*port, false)));
        self.blocked_changes.extend(blocked.iter().map(|port| (*port, true)));
        self.set_blocked(self.blocked.difference(&before).chain(&blocked).copied().collect());
        self.changed = true;
    }

    /// Records that a port is up. A link at it would have been found by `settled`.
    pub(crate) fn port_up(&mut self, now: Time, port: Port, settled: Time) {
        self.edges.port_up(port, settled);
        let soon = now + PROBE_AFTER;
        self.next_probes = Some(self.next_probes.map_or(soon, |next| next.min(soon)));
        self.changed = true;
    }

    pub(crate) fn port_down(&mut self, port: Port) {
        self.edges.port_down(port);
        self.heard_switch.remove(&port);
        self.segments.forget(|gone| gone == port);
        self.changed = true;
    }

    /// Handles a frame that may be a probe.
    pub(crate) fn received(&mut self, port: Port, frame: &[u8]) {
        if let Some(probe) = LoopProbe::read(frame, &self.key) {
            self.changed |= self.segments.received(port, &probe);
        }
    }

    /// Returns the frames of a new round of probes if it is due, each with the port out of which it
    /// must be sent. Only ports of switches that are `connected` are probed.
    pub(crate) fn probes(
        &mut self,
        now: Time,
        connected: impl Fn(DatapathId) -> bool,
    ) -> Vec<(Port, Vec<u8>)> {
        if self.next_probes.take_if(|next| *next <= now).is_none() {
            return Vec::new();
        }
        let is_probed = |port: &Port| {
            let is_link_end = self.link_ends.contains(port) && !self.segments.contains(*port);
            !is_link_end && !self.blocked.contains(port) && connected(port.switch)
        };
        let probed: BTreeSet<Port> = self.edges.up().filter(is_probed).collect();
        let (probes, changed) = self.segments.begin_round(probed, connected);
        self.changed |= changed;
        let probes_max = u32::try_from(probes.len()).unwrap_or(u32::MAX);
        self.next_probes = Some(now + self.probe_interval.max(PROBE_TIME_MIN * probes_max));
        probes.into_iter().map(|probe| (probe.port, probe.frame(PROBE_SOURCE, &self.key))).collect()
    }

    /// Records that the switch of a port cannot block it. No port of its segment may be open then.
    pub(crate) fn cannot_block(&mut self, port: Port) {
        self.unblockable.insert(port);
        self.changed = true;
    }

    /// Returns the ports that must be blocked (`true`) or not (`false`) from now on.
    pub(crate) fn take_blocked_changes(&mut self) -> BTreeMap<Port, bool> {
        core::mem::take(&mut self.blocked_changes)
    }

    /// Returns the ports that are blocked.
    pub(crate) fn blocked(&self) -> impl Iterator<Item = Port> + '_ {
        self.blocked.iter().copied()
    }

    /// Returns the number of changes so far that are visible in a snapshot of the network: those of
    /// the blocked ports.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the ports of all foreign segments that must not be open.
    fn segment_ports(&self, graph: &Graph) -> SegmentPorts {
        let nodes: BTreeSet<Port> = graph.hosts().map(|(_, port)| port).collect();
        let is_link = |one, other| graph.peer(one) == Some(other);
        let mut result = SegmentPorts::default();
        for segment in self.segments.all(is_link) {
            let mut others = segment.clone();
            let hears_switch = segment.iter().any(|port| self.heard_switch.contains(port));
            if segment.iter().any(|port| self.link_ends.contains(port)) {
                // A switch that forwards LLDP lies on a link. Its further ports are useless.
                others.retain(|port| !self.link_ends.contains(port));
                result.closed.extend(&others);
                // Before that, a link may still be found at the port.
                let settled = others.intersection(self.edges.all());
                result.blocked.extend(settled);
            } else if hears_switch && segment.is_disjoint(&nodes) {
                // A link may still be found here, or LLDP passes in one direction only. Blocked
                // ports would send none.
                result.closed.extend(&others);
            } else {
                let rank = |port: &&Port| (!nodes.contains(*port), !self.open.contains(*port), **port);
                let kept = segment.iter().min_by_key(rank).copied();
                others.retain(|port| Some(*port) != kept);
                let can_block = others.is_disjoint(&self.unblockable);
                result.closed.extend(if can_block { &others } else { &segment });
                result.blocked.extend(others);
            }
        }
        result
    }

    /// Decides which ports are blocked. A port that is unblocked counts as new, because a link may
    /// be found at it only from then on.
    fn follow_blocked(&mut self, now: Time, wanted: &BTreeSet<Port>) {
        let ready = |port: &Port| self.edges.all().contains(port) || self.link_ends.contains(port);
        let kept = self.blocked.iter().copied().filter(|port| !ready(port));
        let blocked: BTreeSet<Port> = wanted.iter().copied().chain(kept).collect();
        for port in self.blocked.difference(&blocked) {
            self.blocked_changes.insert(*port, false);
            self.edges.port_down(*port);
            self.edges.port_up(*port, now + self.probe_interval * DISCOVERY_INTERVALS);
        }
        self.blocked_changes.extend(blocked.difference(&self.blocked).map(|port| (*port, true)));
        self.set_blocked(blocked);
    }

    fn set_blocked(&mut self, blocked: BTreeSet<Port>) {
        self.revision += u64::from(self.blocked != blocked);
        self.blocked = blocked;
    }

    /// Records that a port has received an announcement of any switch. It must not become an edge
    /// port, unless a node is located there, which outweighs relayed announcements.
    pub(crate) fn switch_heard(&mut self, port: Port) {
        self.changed |= self.heard_switch.insert(port);
    }

    pub(crate) fn switch_removed(&mut self, switch: DatapathId) {
        self.edges.switch_removed(switch);
        self.heard_switch.retain(|port| port.switch != switch);
        self.segments.forget(|port| port.switch == switch);
        self.set_blocked(self.blocked.iter().copied().filter(|port| port.switch != switch).collect());
        self.unblockable.retain(|port| port.switch != switch);
        self.open.retain(|port| port.switch != switch);
        self.changed = true;
    }

    /// Returns whether a new decision is due even if no link and no node has changed.
    pub(crate) fn is_due(&self, now: Time, settled: bool) -> bool {
        let deadline = earliest(self.edges.deadline(), self.next_probes);
        self.changed || settled != self.was_settled || deadline.is_some_and(|next| next <= now)
    }

    /// Decides anew. Returns the ports whose state has changed, each with whether it accepts frames
    /// now. Links are added to the tree only if the network is `settled`.
    pub(crate) fn follow(&mut self, now: Time, graph: &Graph, settled: bool) -> Vec<(Port, bool)> {
        let links: BTreeSet<Link> = graph.links().collect();
        self.link_ends = links.iter().flat_map(|link| [link.a, link.b]).collect();
        self.link_ends.iter().for_each(|end| self.edges.linked(*end));
        self.edges.pass_time(now);
        let was = |link: &Link| self.inherited.contains(&link.a) && self.inherited.contains(&link.b);
        if self.tree.update(&links, settled, was) {
            self.reannounce_at = Some(now + REANNOUNCE_AFTER);
        }
        if settled {
            self.inherited.clear();
        }
        let segments = self.segment_ports(graph);
        self.follow_blocked(now, &segments.blocked);
        let nodes = graph.hosts().map(|(_, port)| port).filter(|port| self.edges.may_be(*port));
        let ends = self.tree.links().iter().flat_map(|link| [link.a, link.b]);
        let edges = self.edges.all().difference(&self.heard_switch).copied();
        let is_closed = |port: &Port| segments.closed.contains(port) || self.blocked.contains(port);
        let outside = edges.chain(nodes).filter(|port| !is_closed(port));
        let open: BTreeSet<Port> = outside.chain(ends).collect();
        let closed = self.open.difference(&open).map(|port| (*port, false));
        let changed = closed.chain(open.difference(&self.open).map(|port| (*port, true))).collect();
        self.open = open;
        (self.changed, self.was_settled) = (false, settled);
        changed
    }

    /// Returns the links of the tree if nodes must be announced over them now, because switches
    /// have learned their places by the old tree.
    pub(crate) fn reannounce(&mut self, now: Time) -> Option<&BTreeSet<Link>> {
        self.reannounce_at.take_if(|at| *at <= now).map(|_| self.tree.links())
    }

    /// Returns when to decide or announce again even if nothing happens.
    pub(crate) fn deadline(&self) -> Option<Time> {
        earliest(earliest(self.edges.deadline(), self.reannounce_at), self.next_probes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_topology::trees::{forest, is_forest};
    use proptest::prelude::*;

    const INTERVAL: Duration = Duration::from_secs(1);

    fn forwarding() -> NormalForwarding {
        NormalForwarding::new(INTERVAL, Key::from([7; 32]))
    }

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
            let (mut graph, mut normal, mesh) = (Graph::default(), forwarding(), mesh());
            (0..5).for_each(|switch| graph.add_switch(DatapathId(switch)));
            let mut open: BTreeSet<Port> = BTreeSet::new();
            for (step, (which, up)) in changes.into_iter().enumerate() {
                let Link { a, b } = mesh[which];
                match up {
                    true => graph.link(a, b),
                    false => drop(graph.unlink(a)),
                }
                [a, b].into_iter().for_each(|end| normal.port_up(at(0), end, at(0)));
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
        let (mut graph, mut normal) = (Graph::default(), forwarding());
        graph.link(port(1, 1), port(2, 1));
        graph.place("h1", port(1, 2));
        for end in [port(1, 1), port(1, 2), port(1, 3), port(2, 1)] {
            normal.port_up(at(0), end, at(4000));
        }
        assert_eq!(normal.follow(at(0), &graph, false), [(port(1, 2), true)]);
        assert_eq!(normal.edges.deadline(), Some(at(4000)));
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
        normal.port_up(at(8000), port(1, 1), at(9000));
        assert_eq!(normal.follow(at(9000), &graph, true), [(port(1, 1), true)]);
    }

    #[test]
    fn a_port_that_hears_a_switch_without_a_link_stays_closed() {
        let (mut graph, mut normal) = (Graph::default(), forwarding());
        graph.add_switch(DatapathId(1));
        (1..=3).for_each(|number| normal.port_up(at(0), port(1, number), at(0)));
        // Ports 1 and 2 are connected by a cable. Port 2 opens before it receives anything.
        normal.switch_heard(port(1, 1));
        assert_eq!(normal.follow(at(0), &graph, true), [(port(1, 2), true), (port(1, 3), true)]);
        normal.switch_heard(port(1, 2));
        assert!(normal.is_due(at(1), true));
        assert_eq!(normal.follow(at(1), &graph, true), [(port(1, 2), false)]);
        normal.port_down(port(1, 2));
        normal.port_up(at(1), port(1, 2), at(2));
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
        let mut normal = forwarding();
        for (switch, open) in [(1, vec![3]), (2, vec![3]), (3, vec![1, 2])] {
            let open: BTreeSet<u32> = open.into_iter().collect();
            normal.remember(DatapathId(switch), &open, &BTreeSet::new(), &open);
        }
        let open: Vec<Port> = normal.follow(at(0), &graph, true).into_iter().map(|(port, _)| port).collect();
        assert_eq!(open, [port(1, 3), port(2, 3), port(3, 1), port(3, 2)]);
    }

    /// A network of switches whose ports are connected to foreign switches.
    struct ForeignWorld {
        normal: NormalForwarding,
        graph: Graph,
        now: Time,
        /// Ports on one segment with each other.
        segment: Vec<Port>,
        blocked: BTreeSet<Port>,
    }

    impl ForeignWorld {
        /// Returns ports 1 and 2 of switch 1, and port 1 of switch 2, all of which are up.
        fn new(segment: &[Port]) -> ForeignWorld {
            let (graph, blocked) = (Graph::default(), BTreeSet::new());
            let (normal, now) = (forwarding(), at(0));
            let mut world = ForeignWorld { normal, graph, now, segment: segment.to_vec(), blocked };
            for end in [port(1, 1), port(1, 2), port(2, 1)] {
                world.graph.add_switch(end.switch);
                world.normal.port_up(at(0), end, at(4000));
            }
            world
        }

        /// Lets rounds of probes pass. Frames must never return by the foreign segment meanwhile.
        fn rounds(&mut self, count: u32) {
            for _ in 0..count {
                self.now += INTERVAL;
                let probes = self.normal.probes(self.now, |_| true);
                for (sender, frame) in probes {
                    assert!(!self.blocked.contains(&sender));
                    let receives = |port: &&Port| self.segment.contains(&sender) && **port != sender;
                    for receiver in self.segment.iter().filter(receives) {
                        self.normal.received(*receiver, &frame);
                    }
                }
                self.normal.follow(self.now, &self.graph, true);
                for (port, blocked) in self.normal.take_blocked_changes() {
                    match blocked {
                        true => self.blocked.insert(port),
                        false => self.blocked.remove(&port),
                    };
                }
                let on_segment =
                    |ports: &BTreeSet<Port>| self.segment.iter().filter(|p| ports.contains(p)).count();
                let sending = self.segment.len() - on_segment(&self.blocked);
                assert!(on_segment(&self.normal.open) == 0 || sending <= 1, "a loop");
            }
        }

        fn open(&self) -> Vec<Port> {
            self.normal.open.iter().copied().collect()
        }
    }

    #[test]
    fn of_several_ports_on_a_foreign_segment_one_is_open() {
        let mut world = ForeignWorld::new(&[port(1, 2), port(2, 1)]);
        world.rounds(20);
        assert_eq!(world.open(), [port(1, 1), port(1, 2)]);
        // The open port goes down, so the other one is needed.
        world.segment = vec![port(2, 1)];
        world.normal.port_down(port(1, 2));
        world.rounds(10);
        assert_eq!(world.open(), [port(1, 1), port(2, 1)]);
        // The foreign segment is connected to other ports, too.
        world.normal.port_up(world.now, port(1, 2), world.now + INTERVAL * 4);
        world.segment = vec![port(1, 1), port(1, 2)];
        world.rounds(20);
        assert_eq!(world.open(), [port(1, 1), port(2, 1)]);
        assert_eq!(world.blocked, [port(1, 2)].into());
        world.segment = vec![];
        world.rounds(20);
        assert_eq!((world.open().len(), world.blocked.len()), (3, 0));
    }

    #[test]
    fn a_segment_is_closed_if_its_switches_cannot_block_ports() {
        let mut world = ForeignWorld::new(&[port(1, 2), port(2, 1)]);
        world.rounds(6);
        world.normal.cannot_block(port(2, 1));
        world.rounds(6);
        assert_eq!(world.open(), [port(1, 1)]);
    }

    #[test]
    fn a_foreign_switch_on_a_link_has_no_further_open_port() {
        let mut world = ForeignWorld::new(&[]);
        world.graph.link(port(1, 2), port(2, 1));
        world.rounds(6);
        assert_eq!(world.open(), [port(1, 1), port(1, 2), port(2, 1)]);
        // A switch between the ends of the link, which forwards LLDP, is connected to port 1.
        let probe = LoopProbe { port: port(1, 1), round: world.normal.segments.current_round() };
        world.normal.received(port(1, 2), &probe.frame(PROBE_SOURCE, &world.normal.key));
        world.normal.follow(world.now, &world.graph, true);
        assert_eq!(world.open(), [port(1, 2), port(2, 1)]);
        assert_eq!(world.normal.take_blocked_changes(), [(port(1, 1), true)].into());
    }

    #[test]
    fn ports_blocked_for_an_earlier_controller_are_checked_first() {
        let mut world = ForeignWorld::new(&[port(1, 2), port(2, 1)]);
        let up = BTreeSet::from([1]);
        world.normal.remember(DatapathId(2), &BTreeSet::new(), &up, &up);
        world.blocked.insert(port(2, 1));
        // Its probes get a flow of their own again.
        assert_eq!(world.normal.take_blocked_changes(), [(port(2, 1), true)].into());
        world.rounds(20);
        assert_eq!((world.open(), world.blocked.len()), (vec![port(1, 1), port(1, 2)], 1));
        world.segment = vec![];
        world.rounds(20);
        assert_eq!((world.open().len(), world.blocked.len()), (3, 0));
    }
}
