//! From what has changed in the network to what switches are to hold: only what the change concerns is
//! computed, and only what is different is sent.

use super::Network;
use super::acknowledgments::AckWaiter;
use crate::intent::hosts::HostKey;
use crate::intent::tables::RuleCounts;
use cool_machine::Time;
use cool_topology::{DatapathId, Index, Link};
use std::collections::BTreeSet;
use tracing::warn;

/// Trees that are improved at once, before events are looked at again.
const IMPROVED_AT_ONCE: usize = 32;

/// What has changed since conclusions were last drawn.
#[derive(Debug, Default)]
pub(crate) struct NetworkChanges {
    /// Switches have come or gone.
    pub(crate) switches: bool,
    /// Links that have come or gone.
    pub(crate) links: BTreeSet<Link>,
    /// Links that went down at an end: nothing crosses them, whatever switches hold.
    pub(crate) cut: BTreeSet<Link>,
    /// NodeRegistry that are at another place, or of which something else is known.
    pub(crate) nodes: BTreeSet<String>,
    /// Hosts without an agent that are at another place.
    pub(crate) hosts: BTreeSet<HostKey>,
}

impl NetworkChanges {
    pub(crate) fn is_empty(&self) -> bool {
        !self.switches && self.links.is_empty() && self.nodes.is_empty() && self.hosts.is_empty()
    }
}

impl Network {
    /// Brings the desired state in line with what has changed.
    pub(crate) fn follow(&mut self, now: Time) {
        let mut changes = core::mem::take(&mut self.changes);
        self.nodes_changed(now, &changes.nodes);
        changes.hosts = self.changed_hosts(now);
        if !changes.is_empty() {
            self.follow_changes(now, &changes);
        }
        self.follow_edges();
        self.send_deferred(now);
        let settled = self.switches.is_settled();
        let due = |normal: &&mut super::NormalForwarding| !changes.is_empty() || normal.is_due(now, settled);
        if let Some(normal) = self.normal.as_mut().filter(due) {
            for (port, open) in normal.follow(now, self.discovery.graph(), settled) {
                self.intent.normal(port, open);
            }
        }
        self.reannounce(now);
        self.improve(now);
        for number in self.multicast.take_changed() {
            self.put(number);
        }
    }

    fn follow_changes(&mut self, now: Time, changes: &NetworkChanges) {
        if changes.switches || !changes.links.is_empty() {
            self.index = Index::new(self.discovery.graph());
        }
        if !(changes.nodes.is_empty() && changes.hosts.is_empty()) {
            self.number_racks();
        }
        for end in changes.links.iter().flat_map(|link| [link.a, link.b]) {
            self.intent.link(end, self.discovery.graph().peer(end).is_some());
        }
        self.route(now, &changes.links);
        self.place(&changes.nodes);
        self.place_hosts(now, &changes.hosts);
        self.mend(now, changes);
    }

    fn number_racks(&mut self) {
        let graph = self.discovery.graph();
        let mut tors: BTreeSet<DatapathId> = graph.tors().collect();
        let of_hosts = self.carrier.iter().flat_map(|carrier| carrier.hosts.switches());
        let of_silent = self.silent.ports().map(|port| port.switch);
        tors.extend(of_hosts.chain(of_silent).filter(|switch| graph.contains(*switch)));
        // Each keeps its number.
        if self.tors.len() == tors.len() && self.tors.values().all(|tor| tors.contains(tor)) {
            return;
        }
        for switch in self.racks.update(&tors) {
            warn!(%switch, "no rack number is left for this switch's nodes");
        }
        self.tors = tors.into_iter().filter_map(|tor| Some((self.racks.number(tor)?, tor))).collect();
        for (rack, tor) in &self.tors {
            self.intent.number_rack(*tor, *rack);
        }
    }

    /// NodeRegistry have come, gone or moved.
    fn place(&mut self, nodes: &BTreeSet<String>) {
        for name in nodes {
            self.intent.displace(name);
        }
        for name in nodes {
            let (Some(node), Some(port)) = (self.nodes.get(name), self.place_of(name)) else {
                continue;
            };
            if let Some(rack) = self.racks.number(port.switch) {
                self.intent.place(node, self.nodes.vlan(name), rack, port);
            }
            if self.nodes.locate(name, port) {
                self.announce_move(name, port);
            }
        }
    }

    /// The trees that a change concerns get another shape if they need one.
    fn mend(&mut self, now: Time, changes: &NetworkChanges) {
        let better = changes.switches || changes.links.iter().any(|link| self.index.has(*link));
        if better {
            self.multicast.improve_at(now + self.config.lldp_interval);
        }
        let moved: BTreeSet<u32> =
            changes.nodes.iter().flat_map(|node| self.multicast.of_node(node)).collect();
        let gone = changes.links.iter().filter(|link| !self.index.has(**link));
        let mut concerned: BTreeSet<u32> = gone.flat_map(|link| self.multicast.of_link(*link)).collect();
        concerned.extend(&moved);
        if better || !changes.nodes.is_empty() {
            concerned.extend(self.multicast.partitioned());
        }
        for number in concerned {
            let (index, graph) = (&self.index, self.discovery.graph());
            self.multicast.edit(number, |tree| {
                changes.cut.iter().for_each(|link| tree.cut(*link));
                // A node that stays may have another address.
                tree.mend(index, graph) || moved.contains(&number)
            });
        }
    }

    /// Once the network has stopped becoming better, trees are looked at anew, some at a time.
    fn improve(&mut self, now: Time) {
        for _ in 0..IMPROVED_AT_ONCE {
            let Some(number) = self.multicast.next_improvable(now) else { return };
            let (index, graph) = (&self.index, self.discovery.graph());
            self.multicast.edit(number, |tree| tree.improve(index, graph));
        }
    }

    /// Brings the desired state in line with a tree.
    fn put(&mut self, number: u32) {
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

    /// The switches that have no room for what a tree newly takes of them: what is behind gets its data by the chain.
    fn full_switches(&self, number: u32) -> BTreeSet<DatapathId> {
        let Some(tree) = self.multicast.tree(number) else { return BTreeSet::new() };
        let full = |(switch, ports): (DatapathId, BTreeSet<u32>)| {
            let state = self.switches.get(switch).filter(|_| !self.intent.has_tree(switch, number))?;
            let used = self.intent.rules(switch).unwrap_or_default();
            let exhausted =
                state.capacity.exhausted_by(used, RuleCounts { groups: 1, flows: ports.len() })?;
            warn!(
                group = self.multicast.owner(number),
                "switch {} is full, {exhausted}: a tree does without it", state.name
            );
            Some(switch)
        };
        tree.current().ports().into_iter().filter_map(full).collect()
    }

    /// Sends the switches what has changed for them.
    pub(crate) fn send_updates(&mut self) {
        for (switch, delta) in self.intent.take_pending() {
            let full = || self.intent.full_delta(switch);
            let Some(version) = self.switches.send(switch, delta, full) else { continue };
            self.telemetry.desired(switch, self.intent.rules(switch));
            self.acknowledgments.sent(switch, version);
        }
    }
}
