//! All that the fabric knows: switches, discovered network, nodes, groups. Events and calls change it;
//! [`Network::advance`] then computes what follows for the switches, the waiting callers and the watchers.

mod calls;

use super::api::{FabricConfig, FabricError, NodeRegistration, TopologySnapshot, TreeGrant};
use super::connection::{ConnectionId, Event, FromSwitch, Handle};
use super::groups::{GroupTree, Numbers};
use super::reconcile::Wanted;
use super::session::{PortInfo, SwitchInfo};
use super::tables::Tables;
use super::wanted::{self, WantedTree};
use super::{Reply, arp, locator, view};
use calls::answer;
use cool_machine::{Machine, Poll, Time, earliest};
use cool_topology::discovery::{Input, Output};
use cool_topology::{DatapathId, Discovery, Port, Racks, lldp};
use core::net::Ipv4Addr;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::watch;
use tracing::{debug, info, warn};

/// Intervals after a switch has come during which its unicast flows are not deleted: until its
/// neighbourhood has been discovered.
const SETTLING: u32 = 4;

/// A switch, also while its connection is away for a moment.
pub(super) struct Switch {
    pub(super) name: String,
    pub(super) ports: BTreeMap<u32, PortInfo>,
    session: Option<(ConnectionId, Handle)>,
    /// Discovery knows of this connection: what the switch held before has been brought up to date, so it
    /// cannot make loops with what others hold now.
    joined: bool,
    /// What it was told to hold, and in which version.
    tables: Arc<Tables>,
    version: u64,
    /// The version that it has answered for.
    answered: u64,
    /// What it refused of that.
    pub(super) refused: Option<String>,
    settling: Option<Time>,
}

/// A group in use.
pub(super) struct Group {
    pub(super) trees: Vec<GroupTree>,
    /// Who waits for the switches, and until when.
    waiting: Option<(Reply<Vec<TreeGrant>>, Time)>,
}

impl Switch {
    /// Whether it can be reached now.
    pub(super) fn connected(&self) -> bool {
        self.session.is_some()
    }
}

/// The fabric's knowledge and what is derived from it.
pub(super) struct Network {
    pub(super) config: FabricConfig,
    pub(super) discovery: Discovery,
    pub(super) racks: Racks,
    pub(super) nodes: BTreeMap<String, NodeRegistration>,
    by_ip: BTreeMap<Ipv4Addr, String>,
    pub(super) switches: BTreeMap<DatapathId, Switch>,
    groups: BTreeMap<u64, Group>,
    numbers: Numbers,
    version: u64,
    publish: watch::Sender<Arc<TopologySnapshot>>,
    /// The graph has changed since trees were computed.
    graph_changed: bool,
    /// Something has changed since tables were computed.
    changed: bool,
    /// Something has happened since the topology was published that may be seen there.
    seen: bool,
}

impl Network {
    pub(super) fn new(config: FabricConfig, publish: watch::Sender<Arc<TopologySnapshot>>) -> Network {
        Network {
            discovery: Discovery::new(config.lldp_interval),
            config,
            racks: Racks::default(),
            nodes: BTreeMap::new(),
            by_ip: BTreeMap::new(),
            switches: BTreeMap::new(),
            groups: BTreeMap::new(),
            numbers: Numbers::new(),
            version: 0,
            publish,
            graph_changed: false,
            changed: false,
            seen: false,
        }
    }

    /// Takes what a switch tells.
    pub(super) fn event(&mut self, now: Time, FromSwitch { connection, switch, event }: FromSwitch) {
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
                let at = Port { switch, number: port.number };
                let (up, mac, joined) = (port.up, port.mac, state.joined);
                state.ports.insert(port.number, port);
                self.changed = true;
                if joined {
                    self.discovery.handle(now, if up { Input::PortUp(at, mac) } else { Input::PortDown(at) });
                }
            }
            Event::PortGone(number) => {
                state.ports.remove(&number);
                self.changed = true;
                self.discovery.handle(now, Input::PortDown(Port { switch, number }));
            }
            Event::PacketIn(number, frame) => self.packet_in(now, Port { switch, number }, &frame),
            Event::Confirmed(version) => self.answered(now, switch, version, None),
            Event::Refused(version, what) => {
                warn!(%switch, "switch {} refused an entry: {what}", state.name);
                self.answered(now, switch, version, Some(what));
            }
            Event::Down => {
                state.session = None;
                state.joined = false;
                self.changed = true;
                self.discovery.handle(now, Input::SwitchDown(switch));
                if !self.discovery.graph().contains(switch) {
                    self.switches.remove(&switch);
                }
            }
        }
    }

    fn up(&mut self, now: Time, connection: ConnectionId, info: SwitchInfo, handle: Handle) {
        let switch = info.datapath_id;
        if let Some(number) = info.former_rack {
            self.racks.claim(switch, number);
        }
        let old = self.switches.remove(&switch).and_then(|state| state.session);
        if old.is_some() {
            warn!(%switch, "switch {} connected again; the older connection is given up", info.name);
        }
        let state = Switch {
            name: info.name,
            ports: info.ports.into_iter().map(|port| (port.number, port)).collect(),
            session: Some((connection, handle)),
            joined: false,
            tables: Arc::default(),
            version: 0,
            answered: 0,
            refused: None,
            settling: Some(now + self.config.lldp_interval * SETTLING),
        };
        self.switches.insert(switch, state);
        self.changed = true;
    }

    fn answered(&mut self, now: Time, switch: DatapathId, version: u64, refused: Option<String>) {
        let Some(state) = self.switches.get_mut(&switch) else { return };
        self.changed |= state.refused != refused;
        state.answered = version;
        state.refused = refused;
        if !state.joined && version == state.version {
            state.joined = true;
            let up: Vec<_> = state.ports.values().filter(|p| p.up).map(|p| (p.number, p.mac)).collect();
            self.discovery.handle(now, Input::SwitchUp { switch, ports: &up });
        }
    }

    fn packet_in(&mut self, now: Time, port: Port, frame: &[u8]) {
        let Some(&[high, low]) = frame.get(12..14) else { return };
        match u16::from_be_bytes([high, low]) {
            lldp::ETHERTYPE => self.discovery.handle(now, Input::Heard(port, frame)),
            arp::ETHERTYPE => self.answer_arp(port, frame),
            _ => {}
        }
    }

    /// Answers for the node asked for with its locator.
    fn answer_arp(&self, port: Port, frame: &[u8]) {
        let Some(request) = arp::Request::read(frame) else { return };
        let Some(name) = self.by_ip.get(&request.target_ip) else { return };
        let Some(target) = self.discovery.graph().host(name) else {
            debug!(%port, node = name, "ARP request for a node that is not located yet");
            return;
        };
        // Who looks whether its own address is in use must not be told so.
        if target == port {
            return;
        }
        let rack = self.racks.number(target.switch);
        if let Some(locator) = rack.and_then(|rack| locator::of(rack, target.number)) {
            self.send(port, request.answer(locator));
        }
    }

    /// Sends a frame out of a port; it may be lost, like any frame.
    fn send(&self, port: Port, frame: Vec<u8>) {
        let session = self.switches.get(&port.switch).and_then(|state| state.session.as_ref());
        if let Some((_, handle)) = session
            && handle.packets.try_send((port.number, frame)).is_err()
        {
            debug!(%port, "too many frames wait; one is dropped");
        }
    }

    /// Draws all conclusions; returns when to draw the next even if nothing happens.
    pub(super) fn advance(&mut self, now: Time) -> Option<Time> {
        loop {
            let discovery = self.drain_discovery(now);
            let settled = self.settle(now);
            if core::mem::take(&mut self.changed) {
                self.seen = true;
                self.rebuild();
            }
            self.progress();
            let groups = self.expire(now);
            if !self.changed {
                self.show();
                return earliest(earliest(discovery, settled), groups);
            }
        }
    }

    /// Publishes the topology if it looks different now.
    fn show(&mut self) {
        if !core::mem::take(&mut self.seen) {
            return;
        }
        let snapshot = view::snapshot(self);
        self.publish.send_if_modified(|current| {
            let changed = **current != snapshot;
            if changed {
                *current = Arc::new(snapshot);
            }
            changed
        });
    }

    fn drain_discovery(&mut self, now: Time) -> Option<Time> {
        loop {
            let output = match self.discovery.poll(now) {
                Poll::Output(output) => output,
                Poll::Idle(deadline) => {
                    if self.graph_changed {
                        self.number_racks();
                    }
                    return deadline;
                }
            };
            self.seen = true;
            match output {
                Output::Announce(port, frame) => {
                    self.send(port, frame);
                    continue;
                }
                Output::Warning(warning) => {
                    warn!("{warning}");
                    continue;
                }
                Output::LinkUp(link) => info!("link {} - {} found", self.label(link.a), self.label(link.b)),
                Output::LinkDown(link) => warn!("link {} - {} lost", self.label(link.a), self.label(link.b)),
                Output::SwitchFound(switch) => debug!(%switch, "switch joins"),
                Output::SwitchLost(switch) => {
                    warn!(%switch, "switch {} is gone", self.name(switch));
                    if self.switches.get(&switch).is_some_and(|state| state.session.is_none()) {
                        self.switches.remove(&switch);
                    }
                }
                Output::NodeLocated(node, port) => info!(node, "node located at {}", self.label(port)),
                Output::NodeLost(node, port) => warn!(node, "node no longer at {}", self.label(port)),
            }
            self.graph_changed = true;
            self.changed = true;
        }
    }

    fn number_racks(&mut self) {
        for switch in self.racks.update(self.discovery.graph()) {
            warn!(%switch, "no rack number is left for this switch's nodes");
        }
    }

    /// Ends the settling of switches; returns when the next one ends.
    fn settle(&mut self, now: Time) -> Option<Time> {
        for state in self.switches.values_mut() {
            if state.settling.is_some_and(|until| until <= now) {
                state.settling = None;
                // Deletions that were held back are due, so it is told anew.
                state.version = 0;
                self.changed = true;
            }
        }
        self.switches.values().filter_map(|state| state.settling).min()
    }

    /// Computes all tables and tells the switches whose tables have changed.
    fn rebuild(&mut self) {
        let graph = self.discovery.graph();
        if core::mem::take(&mut self.graph_changed) {
            for tree in self.groups.values_mut().flat_map(|group| &mut group.trees) {
                tree.follow(graph);
            }
        }
        let trees = self.groups.values().flat_map(|group| &group.trees);
        let trees = trees.map(|tree| WantedTree { group: tree.number, tree: tree.current() });
        let mut all = wanted::tables(graph, &self.racks, &self.nodes, trees);
        for (switch, state) in &mut self.switches {
            let tables = all.remove(switch).unwrap_or_else(wanted::always);
            if state.version != 0 && *state.tables == tables {
                continue;
            }
            self.version += 1;
            state.version = self.version;
            state.tables = Arc::new(tables);
            if let Some((_, handle)) = &state.session {
                let settling = state.settling.is_some();
                handle.wanted.send_replace(Wanted {
                    version: state.version,
                    tables: state.tables.clone(),
                    settling,
                });
            }
        }
    }

    /// Whether a switch holds what is wanted now; one that is not part of the network has nothing to hold.
    fn holds_wanted(&self, switch: DatapathId) -> bool {
        match self.switches.get(&switch) {
            Some(state) => {
                state.joined
                    && state.version != 0
                    && state.answered == state.version
                    && state.refused.is_none()
            }
            None => !self.discovery.graph().contains(switch),
        }
    }

    /// Moves trees on whose switches have confirmed, and answers who waits for them.
    fn progress(&mut self) {
        if self.changed {
            return;
        }
        let mut groups = core::mem::take(&mut self.groups);
        let mut refused = Vec::new();
        for (id, group) in &mut groups {
            let mut done = true;
            for tree in &mut group.trees {
                if tree.switches().into_iter().all(|switch| self.holds_wanted(switch)) {
                    self.changed |= tree.confirmed();
                    done &= tree.is_final();
                } else {
                    done = false;
                }
            }
            if self.changed {
                continue;
            }
            if let Some((reply, _)) = group.waiting.take_if(|_| done) {
                if reply.send(Ok(view::grants(self, group))).is_err() {
                    refused.push(*id); // the caller has gone away
                }
            } else if group.waiting.is_some()
                && let Some(error) = self.refusal(*id, group)
                && let Some((reply, _)) = group.waiting.take()
            {
                answer(reply, Err(error));
                refused.push(*id);
            }
        }
        self.groups = groups;
        refused.into_iter().for_each(|id| self.release(id));
    }

    fn refusal(&self, id: u64, group: &Group) -> Option<FabricError> {
        let mut switches = group.trees.iter().flat_map(GroupTree::switches);
        switches.find_map(|switch| {
            let state = self.switches.get(&switch).filter(|s| s.answered == s.version)?;
            let reason = state.refused.clone()?;
            Some(FabricError::Refused { id, switch: state.name.clone(), reason })
        })
    }

    /// Gives up groups that have waited too long; returns when the next one will have.
    fn expire(&mut self, now: Time) -> Option<Time> {
        let late = |group: &Group| group.waiting.as_ref().is_some_and(|(_, until)| *until <= now);
        let expired: Vec<u64> = self.groups.iter().filter(|(_, g)| late(g)).map(|(id, _)| *id).collect();
        for id in expired {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let waiting = group.waiting.take();
            let concerned: BTreeSet<DatapathId> = group.trees.iter().flat_map(GroupTree::switches).collect();
            let missing = concerned.iter().filter(|switch| !self.holds_wanted(**switch));
            let switches = missing.map(|switch| self.name(*switch)).collect();
            if let Some((reply, _)) = waiting {
                let waited = self.config.confirm_timeout;
                answer(reply, Err(FabricError::Unconfirmed { id, switches, waited }));
            }
            self.release(id);
        }
        self.groups.values().filter_map(|group| group.waiting.as_ref().map(|(_, until)| *until)).min()
    }

    /// A switch as operators know it.
    pub(super) fn name(&self, switch: DatapathId) -> String {
        self.switches.get(&switch).map_or_else(|| format!("dpid:{switch}"), |state| state.name.clone())
    }

    /// A port as operators know it: "s1:2".
    pub(super) fn label(&self, port: Port) -> String {
        format!("{}:{}", self.name(port.switch), port.number)
    }
}

#[cfg(test)]
mod tests;
