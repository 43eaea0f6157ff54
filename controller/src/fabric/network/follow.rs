//! From what has changed in the network to what switches are to hold: only what the change concerns is
//! computed, and only what is different is told.

use super::{Network, Switch};
use crate::fabric::intent::Keep;
use crate::fabric::switch::reconcile::Wish;
use crate::fabric::telemetry::Rules;
use cool_machine::Time;
use cool_topology::routes::Hop;
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

/// New ways to a rack that some switches get only when others have confirmed theirs.
#[derive(Debug, Default)]
pub(crate) struct Detour {
    /// Who has no way until then, or only a part of it.
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
            self.wanted.link(end, self.discovery.graph().peer(end).is_some());
        }
        let changed = changes.switches || !changes.links.is_empty() || !changes.nodes.is_empty();
        if changed {
            let hops = self.routes.update(&self.index, &self.tors, &changes.links);
            self.route(now, hops);
            self.place(&changes.nodes);
            self.mend(now, &changes);
        }
        self.pass_detours(now);
        let settled = self.settling.is_empty();
        if let Some(normal) = self.normal.as_mut().filter(|normal| changed || normal.is_due(now, settled)) {
            for (port, open) in normal.follow(now, self.discovery.graph(), settled) {
                self.wanted.normal(port, open);
            }
        }
        self.teach(now);
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
            self.wanted.displace(name);
        }
        for name in nodes {
            let (Some(node), Some(port)) = (self.nodes.get(name), self.discovery.graph().host(name)) else {
                continue;
            };
            if let Some(rack) = self.racks.number(port.switch) {
                self.wanted.place(node, rack, port);
            }
            let before = self.places.insert(name.clone(), port);
            if before.is_some_and(|before| before != port) {
                self.announce_move(name, port);
            }
        }
    }

    /// Changes routes. A switch whose new way leads away from the rack by the old distances could send packets
    /// to a switch that sends them back: until all others have theirs it gets what of it does not.
    fn route(&mut self, now: Time, hops: Vec<Hop>) {
        let mut by_rack: BTreeMap<u32, Vec<Hop>> = BTreeMap::new();
        for hop in hops {
            by_rack.entry(hop.rack).or_default().push(hop);
        }
        for (rack, hops) in by_rack {
            // What switches hold while a detour is under way follows neither the old distances nor the new.
            let under_way = self.detours.contains_key(&rack);
            let mut held = BTreeSet::new();
            for hop in &hops {
                let way = hop.downhill.filter(|_| !under_way);
                self.wanted.route(hop.switch, rack, way);
                if way != hop.way {
                    held.insert(hop.switch);
                }
            }
            if held.is_empty() && !under_way {
                continue;
            }
            let detour = self.detours.entry(rack).or_default();
            detour.held.append(&mut held);
            detour.until = Some(now + self.config.detour_timeout);
            for switch in hops.iter().map(|hop| hop.switch).chain(detour.held.iter().copied()) {
                // One that cannot be reached sends nothing there.
                if self.routes.distance(&self.index, switch, rack).is_some() {
                    detour.unconfirmed.insert(switch, u64::MAX);
                    self.news.insert(switch);
                } else {
                    detour.unconfirmed.remove(&switch);
                }
            }
        }
    }

    /// Gives the ways that were held back to those who waited for them.
    fn pass_detours(&mut self, now: Time) {
        let over =
            |detour: &Detour| detour.unconfirmed.is_empty() || detour.until.is_some_and(|until| until <= now);
        let passed: Vec<u32> = self.detours.iter().filter(|(_, d)| over(d)).map(|(rack, _)| *rack).collect();
        for rack in passed {
            for switch in self.detours.remove(&rack).unwrap_or_default().held {
                let way = self.routes.way(&self.index, switch, rack);
                self.wanted.route(switch, rack, way);
            }
        }
    }

    /// A switch has answered for a version: who waited for it goes on.
    pub(crate) fn pass(&mut self, switch: DatapathId, version: u64) {
        for detour in self.detours.values_mut() {
            if detour.unconfirmed.get(&switch).is_some_and(|needed| *needed <= version) {
                detour.unconfirmed.remove(&switch);
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
            concerned.extend(self.uses.of_link(*link));
        }
        concerned.extend(changes.nodes.iter().flat_map(|node| self.uses.of_node(node)));
        if better || !changes.nodes.is_empty() {
            concerned.extend(self.uses.torn());
        }
        let moved: BTreeSet<u32> = changes.nodes.iter().flat_map(|node| self.uses.of_node(node)).collect();
        for number in concerned {
            let Some(tree) = tree(&self.owners, &mut self.groups, number) else { continue };
            for link in &self.cut {
                tree.cut(*link);
            }
            // A node that stays may have another address.
            if tree.mend(&self.index, self.discovery.graph()) || moved.contains(&number) {
                self.reshaped.insert(number);
            }
            self.uses.note(tree);
        }
        self.cut.clear();
    }

    /// Once the network has stopped becoming better, trees are looked at anew, some at a time.
    fn improve(&mut self, now: Time) {
        if self.improve_at.is_some_and(|at| at <= now) {
            self.improve_at = None;
            self.improvable = self.uses.all();
        }
        for _ in 0..IMPROVED_AT_ONCE {
            let Some(number) = self.improvable.pop_first() else { return };
            let Some(tree) = tree(&self.owners, &mut self.groups, number) else { continue };
            if tree.improve(&self.index, self.discovery.graph()) {
                self.reshaped.insert(number);
                self.uses.note(tree);
            }
        }
    }

    /// When to go on improving.
    pub(crate) fn improving(&self, now: Time) -> Option<Time> {
        if self.improvable.is_empty() { self.improve_at } else { Some(now) }
    }

    /// When held ways are given anyway.
    pub(crate) fn detouring(&self) -> Option<Time> {
        self.detours.values().filter_map(|detour| detour.until).min()
    }

    /// Wants a tree as it is to be now.
    fn put(&mut self, number: u32) {
        let Some(tree) = tree(&self.owners, &mut self.groups, number) else {
            self.wanted.tree(number, None, &self.nodes);
            return;
        };
        // A tree that moves may come to a switch that is full: what is behind gets its data by the chain.
        let full = tree.current().ports().into_iter().filter_map(|(switch, ports)| {
            let state = self.switches.get(&switch).filter(|_| !self.wanted.has_tree(switch, number))?;
            let used = self.wanted.rules(switch).unwrap_or_default();
            let lack = state.room.lacks(used, Rules { groups: 1, flows: ports.len() })?;
            warn!(
                group = self.owners.get(&number),
                "switch {} is full, {lack}: a tree does without it", state.name
            );
            Some(switch)
        });
        let full: BTreeSet<DatapathId> = full.collect();
        if !full.is_empty() {
            tree.avoid(&full);
            self.uses.note(tree);
        }
        for switch in self.wanted.tree(number, Some(tree.current()), &self.nodes) {
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
        let mut untold = self.wanted.take_untold();
        for switch in core::mem::take(&mut self.news) {
            untold.entry(switch).or_default();
        }
        for (switch, patch) in untold {
            let Some(state) = self.switches.get_mut(&switch) else { continue };
            self.version += 1;
            state.version = self.version;
            self.telemetry.told(switch, self.wanted.rules(switch));
            let patch = match state.joining {
                None if state.session.is_some() => {
                    state.joining = Some(state.version);
                    self.wanted.whole(switch)
                }
                _ => patch,
            };
            for number in &state.awaited {
                let tree = tree(&self.owners, &mut self.groups, *number);
                if let Some(needed) = tree.and_then(|tree| tree.unconfirmed.get_mut(&switch)) {
                    *needed = (*needed).min(state.version);
                }
            }
            for detour in self.detours.values_mut() {
                if let Some(needed) = detour.unconfirmed.get_mut(&switch) {
                    *needed = (*needed).min(state.version);
                }
            }
            state.wish(patch);
        }
    }
}

impl Switch {
    fn wish(&self, patch: crate::fabric::intent::tables::Patch) {
        if let Some((_, handle)) = &self.session {
            let keep = Keep { unicast: self.settling, trees: self.former.clone() };
            handle.wishes.add(Wish { version: self.version, patch, keep });
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
