//! From what has changed in the network to what switches are to hold: only what the change concerns is
//! computed, and only what is different is told.

use super::{Network, Switch};
use crate::fabric::intent::StaleEntries;
use crate::fabric::switch::reconcile::Update;
use crate::fabric::telemetry::Rules;
use cool_machine::Time;
use cool_topology::routes::RouteUpdate;
use cool_topology::{DatapathId, Index, Link};
use std::collections::{BTreeMap, BTreeSet};
use tracing::warn;

/// Trees that are improved at once, before events are looked at again.
const IMPROVED_AT_ONCE: usize = 32;

/// What has changed since conclusions were last drawn.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Switches have come or gone.
    pub(crate) switches: bool,
    /// Links that have come or gone.
    pub(crate) links: BTreeSet<Link>,
    /// Nodes that are at another place, or of which something else is known.
    pub(crate) nodes: BTreeSet<String>,
}

/// New next hops towards a rack that some switches get only when others have confirmed theirs: an ordered FIB update
/// (RFC 6976).
#[derive(Debug, Default)]
pub(crate) struct DeferredUpdate {
    /// Switches whose new next hops are withheld, all or the part that is not loop-free, until `unconfirmed` is empty.
    held: BTreeSet<DatapathId>,
    /// Who has to confirm, and which version.
    pub(crate) unconfirmed: BTreeMap<DatapathId, u64>,
    /// Then they get it anyway.
    until: Option<Time>,
}

impl Network {
    /// Brings what is wanted in line with what has changed.
    pub(crate) fn follow(&mut self, now: Time) {
        let changes = core::mem::take(&mut self.changes);
        if changes.switches || !changes.links.is_empty() {
            self.index = Index::new(self.discovery.graph());
        }
        if !changes.nodes.is_empty() {
            self.number_racks();
        }
        for end in changes.links.iter().flat_map(|link| [link.a, link.b]) {
            self.intent.link(end, self.discovery.graph().peer(end).is_some());
        }
        let changed = changes.switches || !changes.links.is_empty() || !changes.nodes.is_empty();
        if changed {
            let updates = self.routes.update(&self.index, &self.tors, &changes.links);
            self.route(now, updates);
            self.place(&changes.nodes);
            self.mend(now, &changes);
        }
        self.release_deferred(now);
        let settled = self.settling.is_empty();
        if let Some(normal) = self.normal.as_mut().filter(|normal| changed || normal.is_due(now, settled)) {
            for (port, open) in normal.follow(now, self.discovery.graph(), settled) {
                self.intent.normal(port, open);
            }
        }
        self.reannounce(now);
        self.improve(now);
        for number in core::mem::take(&mut self.reshaped) {
            self.put(number);
        }
    }

    fn number_racks(&mut self) {
        let graph = self.discovery.graph();
        for switch in self.racks.update(graph) {
            warn!(%switch, "no rack number is left for this switch's nodes");
        }
        let tors: BTreeSet<DatapathId> = graph.hosts().map(|(_, port)| port.switch).collect();
        self.tors = tors.into_iter().filter_map(|tor| Some((self.racks.number(tor)?, tor))).collect();
    }

    /// Nodes have come, gone or moved.
    fn place(&mut self, nodes: &BTreeSet<String>) {
        for name in nodes {
            self.intent.displace(name);
        }
        for name in nodes {
            let (Some(node), Some(port)) = (self.nodes.get(name), self.discovery.graph().host(name)) else {
                continue;
            };
            if let Some(rack) = self.racks.number(port.switch) {
                self.intent.place(node, rack, port);
            }
            let before = self.places.insert(name.clone(), port);
            if before.is_some_and(|before| before != port) {
                self.announce_move(name, port);
            }
        }
    }

    /// Changes routes. A switch whose new next hop leads away from the rack by the old distances could send packets
    /// to a switch that sends them back: until all others have theirs it gets what of it does not.
    fn route(&mut self, now: Time, updates: Vec<RouteUpdate>) {
        let mut by_rack: BTreeMap<u32, Vec<RouteUpdate>> = BTreeMap::new();
        for update in updates {
            by_rack.entry(update.rack).or_default().push(update);
        }
        for (rack, updates) in by_rack {
            // What switches hold while a deferral is under way follows neither the old distances nor the new.
            let under_way = self.deferred.contains_key(&rack);
            let mut held = BTreeSet::new();
            for update in &updates {
                let next_hops = update.loop_free.filter(|_| !under_way);
                self.intent.route(update.switch, rack, next_hops);
                if next_hops != update.next_hops {
                    held.insert(update.switch);
                }
            }
            if held.is_empty() && !under_way {
                continue;
            }
            let deferral = self.deferred.entry(rack).or_default();
            deferral.held.append(&mut held);
            deferral.until = Some(now + self.config.deferral_timeout);
            for switch in updates.iter().map(|update| update.switch).chain(deferral.held.iter().copied()) {
                // One that cannot be reached sends nothing there.
                if self.routes.distance(&self.index, switch, rack).is_some() {
                    deferral.unconfirmed.insert(switch, u64::MAX);
                    self.news.insert(switch);
                } else {
                    deferral.unconfirmed.remove(&switch);
                }
            }
        }
    }

    /// Sends the updates that were withheld and may go now.
    fn release_deferred(&mut self, now: Time) {
        let over = |deferral: &DeferredUpdate| {
            deferral.unconfirmed.is_empty() || deferral.until.is_some_and(|until| until <= now)
        };
        let passed: Vec<u32> = self.deferred.iter().filter(|(_, d)| over(d)).map(|(rack, _)| *rack).collect();
        for rack in passed {
            for switch in self.deferred.remove(&rack).unwrap_or_default().held {
                let next_hops = self.routes.next_hops(&self.index, switch, rack);
                self.intent.route(switch, rack, next_hops);
            }
        }
    }

    /// A switch has answered for a version: who waited for it goes on.
    pub(crate) fn pass(&mut self, switch: DatapathId, version: u64) {
        for deferral in self.deferred.values_mut() {
            if deferral.unconfirmed.get(&switch).is_some_and(|needed| *needed <= version) {
                deferral.unconfirmed.remove(&switch);
            }
        }
        let Some(state) = self.switches.get_mut(&switch) else { return };
        for number in core::mem::take(&mut state.awaited) {
            let Some(tree) = tree(&self.owners, &mut self.groups, number) else { continue };
            match tree.unconfirmed.get(&switch) {
                Some(needed) if *needed > version => drop(state.awaited.insert(number)),
                _ => {
                    tree.unconfirmed.remove(&switch);
                    self.ready.insert(number);
                }
            }
        }
        self.ready.extend(state.refused.keys().flatten());
    }

    /// The trees that a change concerns get another shape if they need one.
    fn mend(&mut self, now: Time, changes: &Changes) {
        let better = changes.switches || changes.links.iter().any(|link| self.index.has(*link));
        if better {
            self.improve_at = Some(now + self.config.lldp_interval);
        }
        let mut concerned: BTreeSet<u32> = BTreeSet::new();
        for link in changes.links.iter().filter(|link| !self.index.has(**link)) {
            concerned.extend(self.reverse_index.of_link(*link));
        }
        concerned.extend(changes.nodes.iter().flat_map(|node| self.reverse_index.of_node(node)));
        if better || !changes.nodes.is_empty() {
            concerned.extend(self.reverse_index.partitioned());
        }
        let moved: BTreeSet<u32> =
            changes.nodes.iter().flat_map(|node| self.reverse_index.of_node(node)).collect();
        for number in concerned {
            let Some(tree) = tree(&self.owners, &mut self.groups, number) else { continue };
            for link in &self.cut {
                tree.cut(*link);
            }
            // A node that stays may have another address.
            if tree.mend(&self.index, self.discovery.graph()) || moved.contains(&number) {
                self.reshaped.insert(number);
            }
            self.reverse_index.note(tree);
        }
        self.cut.clear();
    }

    /// Once the network has stopped becoming better, trees are looked at anew, some at a time.
    fn improve(&mut self, now: Time) {
        if self.improve_at.is_some_and(|at| at <= now) {
            self.improve_at = None;
            self.improvable = self.reverse_index.all();
        }
        for _ in 0..IMPROVED_AT_ONCE {
            let Some(number) = self.improvable.pop_first() else { return };
            let Some(tree) = tree(&self.owners, &mut self.groups, number) else { continue };
            if tree.improve(&self.index, self.discovery.graph()) {
                self.reshaped.insert(number);
                self.reverse_index.note(tree);
            }
        }
    }

    /// When to go on improving.
    pub(crate) fn improving(&self, now: Time) -> Option<Time> {
        if self.improvable.is_empty() { self.improve_at } else { Some(now) }
    }

    /// When held ways are given anyway.
    pub(crate) fn deferred_until(&self) -> Option<Time> {
        self.deferred.values().filter_map(|deferral| deferral.until).min()
    }

    /// Wants a tree as it is to be now.
    fn put(&mut self, number: u32) {
        let Some(tree) = tree(&self.owners, &mut self.groups, number) else {
            self.intent.tree(number, None, &self.nodes);
            return;
        };
        // A tree that moves may come to a switch that is full: what is behind gets its data by the chain.
        let full = tree.current().ports().into_iter().filter_map(|(switch, ports)| {
            let state = self.switches.get(&switch).filter(|_| !self.intent.has_tree(switch, number))?;
            let used = self.intent.rules(switch).unwrap_or_default();
            let exhausted = state.capacity.exhausted_by(used, Rules { groups: 1, flows: ports.len() })?;
            warn!(
                group = self.owners.get(&number),
                "switch {} is full, {exhausted}: a tree does without it", state.name
            );
            Some(switch)
        });
        let full: BTreeSet<DatapathId> = full.collect();
        if !full.is_empty() {
            tree.avoid(&full);
            self.reverse_index.note(tree);
        }
        for switch in self.intent.tree(number, Some(tree.current()), &self.nodes) {
            if let Some(state) = self.switches.get_mut(&switch) {
                // The version is known when it is told.
                tree.unconfirmed.insert(switch, u64::MAX);
                state.awaited.insert(number);
            }
        }
        self.ready.insert(number);
    }

    /// Tells the switches what has changed for them.
    pub(crate) fn tell(&mut self) {
        let mut pending = self.intent.take_pending();
        for switch in core::mem::take(&mut self.news) {
            pending.entry(switch).or_default();
        }
        for (switch, delta) in pending {
            let Some(state) = self.switches.get_mut(&switch) else { continue };
            self.version += 1;
            state.version = self.version;
            self.telemetry.desired(switch, self.intent.rules(switch));
            let delta = match state.joining {
                None if state.session.is_some() => {
                    state.joining = Some(state.version);
                    self.intent.whole(switch)
                }
                _ => delta,
            };
            for number in &state.awaited {
                let tree = tree(&self.owners, &mut self.groups, *number);
                if let Some(needed) = tree.and_then(|tree| tree.unconfirmed.get_mut(&switch)) {
                    *needed = (*needed).min(state.version);
                }
            }
            for deferral in self.deferred.values_mut() {
                if let Some(needed) = deferral.unconfirmed.get_mut(&switch) {
                    *needed = (*needed).min(state.version);
                }
            }
            state.update(delta);
        }
    }
}

impl Switch {
    fn update(&self, delta: crate::fabric::intent::tables::Delta) {
        if let Some((_, handle)) = &self.session {
            let keep = StaleEntries { unicast: self.settling, trees: self.former.clone() };
            handle.updates.add(Update { version: self.version, delta, keep });
        }
    }
}

/// The tree of a number.
pub(crate) fn tree<'a>(
    owners: &BTreeMap<u32, u64>,
    groups: &'a mut BTreeMap<u64, super::Group>,
    number: u32,
) -> Option<&'a mut super::GroupTree> {
    let group = groups.get_mut(owners.get(&number)?)?;
    group.trees.iter_mut().find(|tree| tree.number == number)
}
