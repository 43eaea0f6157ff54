//! All that the fabric knows: switches, discovered network, nodes, groups. Events and calls change it;
//! [`Network::advance`] then draws what follows for the switches, the waiting callers and the watchers.

mod calls;
mod follow;
mod normal;
mod packets;
mod stale;
mod view;

use crate::fabric::Reply;
use crate::fabric::api::{FabricConfig, FabricError, NodeRegistration, TopologySnapshot, TreeGrant, Unicast};
use crate::fabric::intent::Intent;
use crate::fabric::intent::failover::FAILOVERS;
use crate::fabric::switch::capacity::TableCapacity;
use crate::fabric::switch::channel::{ChannelConfig, PortInfo, SwitchInfo};
use crate::fabric::switch::connection::{ConnectionContext, ConnectionId, Event, FromSwitch, Handle};
use crate::fabric::switch::reconcile::Refusals;
use crate::fabric::telemetry::{Presence, Telemetry};
use crate::fabric::trees::reverse_index::ReverseIndex;
use crate::fabric::trees::{GroupTree, TreeIds};
use calls::answer;
use cool_machine::{Duration, Machine, Poll, Time, earliest};
use cool_topology::discovery::{Input, Output};
use cool_topology::{DatapathId, Discovery, Index, Key, Link, Port, Racks, Routes};
use core::net::Ipv4Addr;
use follow::{Changes, DeferredUpdate, tree};
use normal::Normal;
use stale::{Adopted, Former};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::watch;
use tracing::{debug, info, warn};

/// Intervals after a switch has come during which its unicast flows are not deleted: until its
/// neighbourhood has been discovered.
const SETTLING: u32 = 4;
/// The topology is published at most this often, by the number of switches, links and nodes that it has: while a large
/// network comes up, drawing it must not take more time than finding it.
const DRAWING: Duration = Duration::from_micros(5);

/// A switch, also while its connection is away for a moment.
pub(crate) struct Switch {
    pub(crate) name: String,
    pub(crate) ports: BTreeMap<u32, PortInfo>,
    session: Option<(ConnectionId, Handle)>,
    /// The version that told this connection all that is wanted; `None` until then.
    joining: Option<u64>,
    /// Discovery knows of this connection: what the switch held before has been brought up to date, so it
    /// cannot make loops with what others hold now.
    joined: bool,
    /// What it was told last.
    version: u64,
    /// What it refused of that.
    pub(crate) refused: Refusals,
    capacity: TableCapacity,
    settling: bool,
    /// The trees of an earlier life that it keeps for now.
    former: Arc<BTreeSet<u32>>,
    /// The trees that wait for its answer.
    awaited: BTreeSet<u32>,
}

/// A group in use.
#[derive(Default)]
pub(crate) struct Group {
    pub(crate) trees: Vec<GroupTree>,
    /// Switches that had no room for a tree, which was left out.
    pub(crate) lacking: BTreeSet<DatapathId>,
    /// Who waits for the switches, and until when.
    waiting: Option<(Reply<Vec<TreeGrant>>, Time)>,
    /// Made by an earlier life of the controller, and not followed yet.
    adopted: Option<Adopted>,
}

impl Switch {
    /// Whether it can be reached now.
    pub(crate) fn connected(&self) -> bool {
        self.session.is_some()
    }
}

/// The fabric's knowledge and what is derived from it.
pub(crate) struct Network {
    pub(crate) config: FabricConfig,
    pub(crate) discovery: Discovery,
    pub(crate) racks: Racks,
    pub(crate) nodes: BTreeMap<String, NodeRegistration>,
    by_ip: BTreeMap<Ipv4Addr, String>,
    pub(crate) switches: BTreeMap<DatapathId, Switch>,
    groups: BTreeMap<u64, Group>,
    /// The group of each tree, by number.
    owners: BTreeMap<u32, u64>,
    numbers: TreeIds,
    reverse_index: ReverseIndex,
    publish: watch::Sender<Arc<TopologySnapshot>>,
    telemetry: Arc<Telemetry>,
    presence: Presence,

    changes: Changes,
    /// Links that went down at an end since trees were mended: nothing crosses them.
    cut: BTreeSet<Link>,
    index: Index,
    routes: Routes,
    /// The ToR of each rack that has nodes.
    tors: BTreeMap<u32, DatapathId>,
    deferred: BTreeMap<u32, DeferredUpdate>,
    /// Where each node was found last.
    places: BTreeMap<String, Port>,
    intent: Intent,
    /// Who lets frames in, where unicast is the switches' own affair.
    normal: Option<Normal>,
    version: u64,
    /// Switches to be told though nothing else is wanted of them.
    news: BTreeSet<DatapathId>,
    /// Trees that are to be wanted anew.
    reshaped: BTreeSet<u32>,
    /// Trees that may have been confirmed, or refused.
    ready: BTreeSet<u32>,
    /// Trees to be looked at anew, and when to look at all.
    improvable: BTreeSet<u32>,
    improve_at: Option<Time>,
    /// When switches have settled, and callers have waited enough.
    settling: BTreeSet<(Time, DatapathId)>,
    waiting: BTreeSet<(Time, u64)>,
    former: Former,
    /// Something has happened since the topology was published that may be seen there.
    seen: bool,
    /// When it may be published again.
    draw_at: Time,
}

impl Network {
    pub(crate) fn new(
        config: FabricConfig,
        key: Key,
        publish: watch::Sender<Arc<TopologySnapshot>>,
        telemetry: Arc<Telemetry>,
    ) -> Network {
        Network {
            discovery: Discovery::new(config.lldp_interval, key),
            intent: Intent::new(config.unicast),
            normal: (config.unicast == Unicast::Normal).then(Normal::default),
            config,
            racks: Racks::default(),
            nodes: BTreeMap::new(),
            by_ip: BTreeMap::new(),
            switches: BTreeMap::new(),
            groups: BTreeMap::new(),
            owners: BTreeMap::new(),
            numbers: TreeIds::new(),
            reverse_index: ReverseIndex::default(),
            publish,
            telemetry,
            presence: Presence::default(),
            changes: Changes::default(),
            cut: BTreeSet::new(),
            index: Index::default(),
            routes: Routes::default(),
            tors: BTreeMap::new(),
            deferred: BTreeMap::new(),
            places: BTreeMap::new(),
            version: 0,
            news: BTreeSet::new(),
            reshaped: BTreeSet::new(),
            ready: BTreeSet::new(),
            improvable: BTreeSet::new(),
            improve_at: None,
            settling: BTreeSet::new(),
            waiting: BTreeSet::new(),
            former: Former::default(),
            seen: false,
            draw_at: Time::ZERO,
        }
    }

    /// What all connections of switches have in common.
    pub(crate) fn connection_context(&self) -> ConnectionContext {
        let session = ChannelConfig {
            packet_ins_per_second: self.config.packet_ins_per_second,
            counters_interval: self.config.counters_interval,
            max_meters: self.config.capacity.meters,
            generation: self.config.generation,
        };
        ConnectionContext { session, telemetry: self.telemetry.clone() }
    }

    /// Takes what a switch tells.
    pub(crate) fn event(&mut self, now: Time, FromSwitch { connection, switch, event }: FromSwitch) {
        if let Event::Up(info, handle) = event {
            return self.up(now, connection, info, handle);
        }
        let Some(state) = self.switches.get_mut(&switch) else { return };
        if state.session.as_ref().is_none_or(|(current, _)| *current != connection) {
            return; // of a connection that has been replaced
        }
        match event {
            Event::Up(..) => {}
            Event::PortChanged(port) => {
                let (number, up, mac, joined) = (port.number, port.up, port.mac, state.joined);
                state.ports.insert(number, port);
                self.seen = true;
                match up {
                    true if joined => {
                        self.port_up(now, Port { switch, number });
                        self.discovery.handle(now, Input::PortUp(Port { switch, number }, mac));
                    }
                    true => {}
                    false => self.port_down(now, Port { switch, number }),
                }
            }
            Event::PortGone(number) => {
                state.ports.remove(&number);
                self.seen = true;
                self.port_down(now, Port { switch, number });
            }
            Event::PacketIn(number, frame) => self.packet_in(now, Port { switch, number }, &frame),
            Event::Answered(version, refusals) => self.answered(now, switch, version, refusals),
            Event::Down => {
                (state.session, state.joining, state.joined) = (None, None, false);
                self.seen = true;
                self.discovery.handle(now, Input::SwitchDown(switch));
                if !self.discovery.graph().contains(switch) {
                    self.forget(switch);
                }
            }
        }
    }

    fn up(&mut self, now: Time, connection: ConnectionId, info: SwitchInfo, handle: Handle) {
        let switch = info.datapath_id;
        if let Some(number) = info.former.rack {
            self.racks.claim(switch, number);
        }
        if let Some(normal) = &mut self.normal {
            let up = info.ports.iter().filter(|port| port.up).map(|port| port.number).collect();
            normal.remember(switch, &info.former.open, &up);
        }
        let old = self.switches.remove(&switch);
        if old.as_ref().is_some_and(Switch::connected) {
            warn!(%switch, "switch {} connected again; the older connection is given up", info.name);
        }
        let capacity = info.capacity.within(self.config.capacity);
        let state = Switch {
            name: info.name,
            ports: info.ports.into_iter().map(|port| (port.number, port)).collect(),
            session: Some((connection, handle)),
            joining: None,
            joined: false,
            version: 0,
            refused: Refusals::new(),
            capacity,
            settling: true,
            former: self.keep_former(now, switch, info.former.trees),
            awaited: old.map(|old| old.awaited).unwrap_or_default(),
        };
        self.switches.insert(switch, state);
        self.settling.insert((now + self.config.lldp_interval * SETTLING, switch));
        self.intent.add_switch(switch);
        self.intent.allow_failovers(switch, capacity.failovers());
        self.news.insert(switch);
        self.seen = true;
    }

    /// A switch is gone for good.
    fn forget(&mut self, switch: DatapathId) {
        let Some(state) = self.switches.remove(&switch) else { return };
        self.intent.remove_switch(switch);
        self.telemetry.desired(switch, None);
        self.presence.switch_gone(switch);
        if let Some(normal) = &mut self.normal {
            normal.switch_gone(switch);
        }
        for number in state.awaited {
            if let Some(tree) = tree(&self.owners, &mut self.groups, number) {
                tree.unconfirmed.remove(&switch);
                self.ready.insert(number);
            }
        }
        for deferral in self.deferred.values_mut() {
            deferral.unconfirmed.remove(&switch);
        }
        self.seen = true;
    }

    fn port_up(&mut self, now: Time, port: Port) {
        self.presence.port_up(now, port);
        if let Some(normal) = &mut self.normal {
            normal.port_up(port, now + self.config.lldp_interval * SETTLING);
        }
    }

    fn port_down(&mut self, now: Time, port: Port) {
        self.presence.port_down(port);
        if let Some(normal) = &mut self.normal {
            normal.port_down(port);
        }
        if let Some(peer) = self.discovery.graph().peer(port) {
            self.cut.insert(Link::new(port, peer));
        }
        self.discovery.handle(now, Input::PortDown(port));
    }

    fn answered(&mut self, now: Time, switch: DatapathId, version: u64, refused: Refusals) {
        let Some(state) = self.switches.get_mut(&switch) else { return };
        for what in refused.iter().filter(|new| state.refused.get(new.0) != Some(new.1)).map(|new| new.1) {
            warn!(%switch, "switch {} refused an entry: {what}", state.name);
        }
        if refused.keys().flatten().any(|number| FAILOVERS.contains(number)) {
            warn!(%switch, "switch {} does without fast failover", state.name);
            self.intent.allow_failovers(switch, 0);
        }
        self.seen |= state.refused != refused;
        state.refused = refused;
        if !state.joined && state.joining.is_some_and(|joining| joining <= version) {
            state.joined = true;
            let up: Vec<_> = state.ports.values().filter(|p| p.up).map(|p| (p.number, p.mac)).collect();
            for (number, _) in &up {
                self.port_up(now, Port { switch, number: *number });
            }
            self.discovery.handle(now, Input::SwitchUp { switch, ports: &up });
        }
        self.pass(switch, version);
    }

    /// Draws all conclusions; returns when to draw the next even if nothing happens.
    pub(crate) fn advance(&mut self, now: Time) -> Option<Time> {
        let discovery = self.drain_discovery(now);
        let takeover = self.take_over(now);
        let settled = self.settle(now);
        // What callers are told, and what a confirmed tree becomes, can change what is wanted.
        loop {
            self.follow(now);
            self.tell();
            self.expire(now);
            self.progress();
            if self.reshaped.is_empty() {
                break;
            }
        }
        let drawing = self.show(now);
        let waiting = self.waiting.first().map(|(until, _)| *until);
        let opening = self.normal.as_ref().and_then(Normal::deadline);
        let own = [takeover, settled, drawing, waiting, opening, self.improving(now), self.deferred_until()];
        own.into_iter().fold(discovery, earliest)
    }

    /// Publishes the topology if it looks different now; returns when to do so if that is too early.
    fn show(&mut self, now: Time) -> Option<Time> {
        if !self.seen || now < self.draw_at {
            return self.seen.then_some(self.draw_at);
        }
        self.seen = false;
        let snapshot = view::snapshot(self);
        let parts = snapshot.switches.len() + snapshot.links.len() + snapshot.nodes.len();
        self.draw_at = now + DRAWING * u32::try_from(parts).unwrap_or(u32::MAX);
        self.publish.send_if_modified(|current| {
            let changed = **current != snapshot;
            if changed {
                *current = Arc::new(snapshot);
            }
            changed
        });
        None
    }

    fn drain_discovery(&mut self, now: Time) -> Option<Time> {
        loop {
            let output = match self.discovery.poll(now) {
                Poll::Output(Output::Announce(port, frame)) => {
                    self.send(port, frame);
                    continue;
                }
                Poll::Output(output) => output,
                Poll::Idle(deadline) => return deadline,
            };
            self.seen = true;
            match output {
                Output::Announce(..) => {}
                Output::Warning(warning) => warn!("{warning}"),
                Output::LinkUp(link) => {
                    info!("link {} - {} found", self.label(link.a), self.label(link.b));
                    self.presence.link(now, link).into_iter().for_each(|took| self.telemetry.found(took));
                    self.changes.links.insert(link);
                }
                Output::LinkDown(link) => {
                    warn!("link {} - {} lost", self.label(link.a), self.label(link.b));
                    self.changes.links.insert(link);
                }
                Output::SwitchFound(switch) => {
                    debug!(%switch, "switch joins");
                    self.changes.switches = true;
                }
                Output::SwitchLost(switch) => {
                    warn!(%switch, "switch {} is gone", self.name(switch));
                    self.changes.switches = true;
                    if self.switches.get(&switch).is_some_and(|state| !state.connected()) {
                        self.forget(switch);
                    }
                }
                Output::NodeLocated(node, port) => {
                    info!(node, "node located at {}", self.label(port));
                    let took = self.presence.node(now, &node, port);
                    took.into_iter().for_each(|took| self.telemetry.found(took));
                    self.changes.nodes.insert(node);
                }
                Output::NodeLost(node, port) => {
                    warn!(node, "node no longer at {}", self.label(port));
                    self.changes.nodes.insert(node);
                }
            }
        }
    }

    /// Ends the settling of switches; returns when the next one ends.
    fn settle(&mut self, now: Time) -> Option<Time> {
        while self.settling.first().is_some_and(|(until, _)| *until <= now) {
            let Some((_, switch)) = self.settling.pop_first() else { break };
            let again = self.settling.iter().any(|(_, other)| *other == switch);
            if let Some(state) = self.switches.get_mut(&switch).filter(|_| !again) {
                // Deletions that were held back are due.
                state.settling = false;
                self.news.insert(switch);
            }
        }
        self.settling.first().map(|(until, _)| *until)
    }

    /// Moves trees on whose switches have confirmed, and answers who waits for them.
    fn progress(&mut self) {
        let mut concerned: BTreeSet<u64> = BTreeSet::new();
        for number in core::mem::take(&mut self.ready) {
            concerned.extend(self.owners.get(&number));
            let Some(tree) = tree(&self.owners, &mut self.groups, number) else { continue };
            if tree.unconfirmed.is_empty() {
                if tree.confirmed() {
                    self.reshaped.insert(number);
                }
                self.reverse_index.note(tree);
            }
        }
        for id in concerned {
            let Some(group) = self.groups.get(&id).filter(|group| group.waiting.is_some()) else { continue };
            let made = |tree: &GroupTree| {
                tree.unconfirmed.is_empty() && tree.is_final() && !self.reshaped.contains(&tree.number)
            };
            let outcome = match self.refusal(id, group) {
                Some(error) => Err(error),
                None if group.trees.iter().all(made) => Ok(view::grants(self, group)),
                None => continue,
            };
            let refused = outcome.is_err();
            let Some((reply, until)) = self.groups.get_mut(&id).and_then(|group| group.waiting.take()) else {
                continue;
            };
            self.waiting.remove(&(until, id));
            // A caller that has gone away would never release it.
            if reply.send(outcome).is_err() || refused {
                self.release(id);
            }
        }
    }

    fn refusal(&self, id: u64, group: &Group) -> Option<FabricError> {
        group.trees.iter().find_map(|tree| {
            tree.current().ports().into_keys().find_map(|switch| {
                let state = self.switches.get(&switch)?;
                let reason = state.refused.get(&Some(tree.number))?.clone();
                Some(FabricError::Refused { id, switch: state.name.clone(), reason })
            })
        })
    }

    /// Gives up groups that have waited too long.
    fn expire(&mut self, now: Time) {
        while self.waiting.first().is_some_and(|(until, _)| *until <= now) {
            let Some((_, id)) = self.waiting.pop_first() else { return };
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let waiting = group.waiting.take();
            let missing: BTreeSet<DatapathId> =
                group.trees.iter().flat_map(|tree| tree.unconfirmed.keys().copied()).collect();
            let switches = missing.into_iter().map(|switch| self.name(switch)).collect();
            if let Some((reply, _)) = waiting {
                let waited = self.config.confirm_timeout;
                answer(reply, Err(FabricError::Unconfirmed { id, switches, waited }));
            }
            self.release(id);
        }
    }

    /// Switches that had no room for trees, and how many groups do without.
    pub(crate) fn lacking(&self) -> BTreeMap<DatapathId, usize> {
        let mut counts = BTreeMap::new();
        for switch in self.groups.values().flat_map(|group| &group.lacking) {
            *counts.entry(*switch).or_default() += 1;
        }
        counts
    }

    /// A switch as operators know it.
    pub(crate) fn name(&self, switch: DatapathId) -> String {
        self.switches.get(&switch).map_or_else(|| format!("dpid:{switch}"), |state| state.name.clone())
    }

    /// A port as operators know it: "s1:2".
    pub(crate) fn label(&self, port: Port) -> String {
        format!("{}:{}", self.name(port.switch), port.number)
    }
}

#[cfg(test)]
mod tests;
