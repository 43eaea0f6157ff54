//! Derives the desired state from changes of the network. Only the consequences of a change are
//! computed, and only differences are sent.

use super::Network;
use super::acknowledgments::AckWaiter;
use super::host_forwarder::Input as HostInput;
use super::switch_table::SwitchState;
use crate::api::Unicast;
use crate::intent::hosts::HostKey;
use crate::intent::tables::RuleCounts;
use cool_machine::Time;
use cool_topology::{DatapathId, Link, Port, SwitchAdjacency};
use std::collections::{BTreeMap, BTreeSet};
use tracing::{info, warn};

/// Number of trees that are improved before events are processed again.
const IMPROVED_AT_ONCE: usize = 32;

/// Changes of the network that have not been processed yet.
#[derive(Debug, Default)]
pub(crate) struct NetworkChanges {
    /// Whether switches were added or removed.
    pub(crate) switches: bool,
    /// Links that were added or removed.
    pub(crate) links: BTreeSet<Link>,
    /// Links that went down at one end: no packet crosses them, whatever the switches hold.
    pub(crate) cut: BTreeSet<Link>,
    /// Nodes that have another place or other properties.
    pub(crate) nodes: BTreeSet<String>,
    /// Hosts without an agent that have another place.
    pub(crate) hosts: BTreeSet<HostKey>,
}

impl NetworkChanges {
    pub(crate) fn is_empty(&self) -> bool {
        !self.switches && self.links.is_empty() && self.nodes.is_empty() && self.hosts.is_empty()
    }
}

impl Network {
    /// Brings the desired state in line with the changes.
    pub(crate) fn follow(&mut self, now: Time) {
        let mut changes = core::mem::take(&mut self.changes);
        self.handle_hosts(now, HostInput::NodesChanged(&changes.nodes));
        let acknowledgments = &self.acknowledgments;
        let is_acknowledged = |host| acknowledgments.is_acknowledged(AckWaiter::Host(host));
        changes.hosts = self.host_forwarder.take_changed_hosts(now, is_acknowledged);
        self.drain_hosts();
        if !changes.is_empty() {
            self.follow_changes(now, &changes);
        }
        self.handle_hosts(now, HostInput::UpdateEdges);
        self.carry_multicast(changes.switches || !changes.links.is_empty());
        self.send_deferred(now);
        let settled = self.switches.is_settled();
        let due = |normal: &&mut super::NormalForwarding| !changes.is_empty() || normal.is_due(now, settled);
        if let Some(normal) = self.normal.as_mut().filter(due) {
            let switches = &self.switches;
            let connected = |switch| switches.get(switch).is_some_and(SwitchState::connected);
            let probes = normal.probes(now, connected);
            for (port, open) in normal.follow(now, self.discovery.graph(), settled) {
                self.intent.normal(port, open);
            }
            let blocked = normal.take_blocked_changes();
            self.block(blocked);
            for (port, probe) in probes {
                self.send(port, probe);
            }
        }
        self.reannounce(now);
        self.improve(now);
        for number in self.multicast.take_changed() {
            self.apply_tree(number);
        }
    }

    /// Blocks ports, or ends that.
    fn block(&mut self, changes: BTreeMap<Port, bool>) {
        for (port, blocked) in changes {
            let at = self.port_name(port);
            match blocked {
                true => warn!(
                    "port {at} is blocked, because a switch without OpenFlow connects it to another port"
                ),
                false => info!("port {at} is no longer blocked"),
            }
            self.intent.block(port, blocked);
        }
    }

    fn follow_changes(&mut self, now: Time, changes: &NetworkChanges) {
        if changes.switches || !changes.links.is_empty() {
            self.adjacency = SwitchAdjacency::new(self.discovery.graph());
        }
        if !(changes.nodes.is_empty() && changes.hosts.is_empty()) {
            self.number_racks();
        }
        for end in changes.links.iter().flat_map(|link| [link.a, link.b]) {
            self.intent.link(end, self.discovery.graph().peer(end).is_some());
        }
        self.route(now, &changes.links);
        self.place(now, &changes.nodes);
        self.handle_hosts(now, HostInput::PlaceHosts(&changes.hosts));
        self.repair_trees(now, changes);
    }

    fn number_racks(&mut self) {
        let graph = self.discovery.graph();
        let mut tors: BTreeSet<DatapathId> = graph.tors().collect();
        let of_hosts = self.host_forwarder.switches();
        let of_silent = self.silent.ports().map(|port| port.switch);
        tors.extend(of_hosts.chain(of_silent).filter(|switch| graph.contains(*switch)));
        // Every rack keeps its number.
        if self.tors.len() == tors.len() && self.tors.values().all(|tor| tors.contains(tor)) {
            return;
        }
        for switch in self.racks.update(&tors) {
            warn!(%switch, "no rack number is left for the nodes of this switch");
        }
        self.tors = tors.into_iter().filter_map(|tor| Some((self.racks.number(tor)?, tor))).collect();
        for (rack, tor) in &self.tors {
            self.intent.number_rack(*tor, *rack);
        }
    }

    /// Updates the flows of nodes that were located, moved or removed.
    fn place(&mut self, now: Time, nodes: &BTreeSet<String>) {
        for name in nodes {
            self.intent.displace(name);
        }
        for name in nodes {
            let (Some(node), Some(port)) = (self.nodes.get(name), self.surroundings().place_of(name)) else {
                continue;
            };
            if let Some(rack) = self.racks.number(port.switch) {
                self.intent.place(node, self.nodes.vlan(name), rack, port);
            }
            if self.nodes.locate(name, port) && self.config.unicast == Unicast::Routed {
                self.handle_hosts(now, HostInput::NodeMoved(name, port));
            }
        }
    }

    /// Repairs the trees that a change concerns.
    fn repair_trees(&mut self, now: Time, changes: &NetworkChanges) {
        let better = changes.switches || changes.links.iter().any(|link| self.adjacency.has(*link));
        if better {
            self.multicast.improve_at(now + self.config.lldp_interval);
        }
        let moved: BTreeSet<u32> =
            changes.nodes.iter().flat_map(|node| self.multicast.of_node(node)).collect();
        let removed = changes.links.iter().filter(|link| !self.adjacency.has(**link));
        let mut concerned: BTreeSet<u32> = removed.flat_map(|link| self.multicast.of_link(*link)).collect();
        concerned.extend(&moved);
        if better || !changes.nodes.is_empty() {
            concerned.extend(self.multicast.partitioned());
        }
        for number in concerned {
            let (adjacency, graph) = (&self.adjacency, self.discovery.graph());
            self.multicast.edit(number, |tree| {
                changes.cut.iter().for_each(|link| tree.cut(*link));
                // A node may have another address even if it stays in its place.
                tree.repair(adjacency, graph) || moved.contains(&number)
            });
        }
    }

    /// Improves trees, some at a time, once the network has not improved any further for a while.
    fn improve(&mut self, now: Time) {
        for _ in 0..IMPROVED_AT_ONCE {
            let Some(number) = self.multicast.next_improvable(now) else { return };
            let (adjacency, graph) = (&self.adjacency, self.discovery.graph());
            self.multicast.edit(number, |tree| tree.improve(adjacency, graph));
        }
    }

    /// Brings the desired state in line with a tree.
    fn apply_tree(&mut self, number: u32) {
        let full = self.full_switches(number);
        if !full.is_empty() {
            self.multicast.edit(number, |tree| {
                tree.avoid(&full);
                false
            });
        }
        let tree = self.multicast.tree(number);
        let touched = self.intent.tree(number, tree.map(|tree| tree.current()), self.nodes.all());
        if tree.is_none() {
            return;
        }
        let waiter = AckWaiter::Tree(number);
        for switch in touched.into_iter().filter(|switch| self.switches.get(*switch).is_some()) {
            self.acknowledgments.expect(waiter, switch);
        }
        self.acknowledgments.touch(waiter);
    }

    /// Returns the switches without room for their part of a tree. Members behind them receive
    /// their data along the chain.
    fn full_switches(&self, number: u32) -> BTreeSet<DatapathId> {
        let Some(tree) = self.multicast.tree(number) else { return BTreeSet::new() };
        let full = |(switch, ports): (DatapathId, BTreeSet<u32>)| {
            let state = self.switches.get(switch).filter(|_| !self.intent.has_tree(switch, number))?;
            let used = self.intent.rules(switch).unwrap_or_default();
            let exhausted =
                state.capacity.exhausted_by(used, RuleCounts { groups: 1, flows: ports.len() })?;
            warn!(
                group = self.multicast.owner(number),
                "switch {} is full, {exhausted}: a tree leaves it out", state.name
            );
            Some(switch)
        };
        tree.current().ports().into_iter().filter_map(full).collect()
    }

    /// Sends the pending changes to the switches.
    pub(crate) fn send_updates(&mut self) {
        for (switch, delta) in self.intent.take_pending() {
            let full = || self.intent.full_delta(switch);
            let Some(version) = self.switches.send(switch, delta, full) else { continue };
            self.telemetry.desired(switch, self.intent.rules(switch));
            self.acknowledgments.sent(switch, version);
        }
    }
}
