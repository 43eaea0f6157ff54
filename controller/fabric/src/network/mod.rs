//! State of the fabric: switches, the discovered network, nodes and groups. Events and requests
//! change it. [`Network::advance`] then computes the consequences for switches, waiting callers and
//! watchers.
//!
//! Each part of the state has an owner that alone changes it, for example the [`SwitchTable`], the
//! [`NodeRegistry`], the [`MulticastGroups`], the [`HostForwarder`] and the [`Intent`]. This file
//! routes between them.

mod acknowledgments;
mod convergence;
mod deadlines;
mod edge_ports;
mod foreign_segments;
mod group_creation;
mod group_tests;
mod host_forwarder;
mod host_multicast;
mod multicast_groups;
mod node_registry;
mod normal_forwarding;
mod observation;
mod packet_in;
mod requests;
mod self_location;
mod silent_nodes;
mod snapshot;
mod snapshot_publisher;
mod snooped_trees;
mod stale_trees;
mod switch_table;
mod tree_grants;
mod tree_sharing;
mod unicast_routes;

use crate::api::ConnectionId;
use crate::api::{FabricConfig, FabricError, TopologySnapshot, TreeGrant, Unicast};
use crate::intent::Intent;
use crate::intent::failover::FAILOVERS;
use crate::switch::admission_policy::AdmissionPolicy;
use crate::switch::channel::{ChannelConfig, SwitchInfo};
use crate::switch::connection::{ConnectionContext, FromSwitch, SwitchEvent, SwitchHandle};
use crate::switch::reconciler::EntryRefusals;
use crate::telemetry::{DiscoveryLatency, Telemetry};
use crate::trees::GroupTree;
use acknowledgments::{AckWaiter, Acknowledgments};
use convergence::NetworkChanges;
use cool_machine::{Machine, Poll, Time, earliest};
use cool_topology::discovery::{Input, Output};
use cool_topology::{DatapathId, Discovery, Key, Link, Port, Racks, SwitchAdjacency};
use group_tests::GroupTests;
use host_forwarder::{HostForwarder, Input as HostInput};
use host_multicast::HostMulticast;
use multicast_groups::{GroupTrees, MulticastGroups};
use node_registry::NodeRegistry;
use normal_forwarding::NormalForwarding;
use requests::answer;
use self_location::SelfLocation;
use silent_nodes::SilentNodes;
use snapshot_publisher::{PublishDue, SnapshotPublisher};
use snooped_trees::SnoopedTrees;
use stale_trees::StaleTrees;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use switch_table::{ConnectedSwitch, SwitchTable};
use tokio::sync::watch;
use tracing::{debug, info, warn};
use tree_sharing::TreeSharing;
use unicast_routes::UnicastRoutes;

/// LLDP intervals after which the neighborhood of a newly connected switch counts as discovered.
const DISCOVERY_INTERVALS: u32 = 4;
/// Number of notifications per LLDP interval that all messages of a switch have been read.
const CAUGHT_UP_PER_INTERVAL: u32 = 8;

/// Maximum number of nodes lost at once of which each is named in the log.
const LOST_BY_NAME: usize = 16;

/// State of the fabric, and everything derived from it.
pub(crate) struct Network {
    pub(crate) config: FabricConfig,
    pub(crate) discovery: Discovery,
    pub(crate) racks: Racks,
    pub(crate) nodes: NodeRegistry,
    pub(crate) switches: SwitchTable,
    pub(crate) multicast: MulticastGroups,
    /// Which groups share which trees.
    sharing: TreeSharing,
    /// The trees of groups that no OpenFlow switch serves.
    snooped: SnoopedTrees,
    telemetry: Arc<Telemetry>,
    presence: DiscoveryLatency,
    publisher: SnapshotPublisher,

    changes: NetworkChanges,
    adjacency: SwitchAdjacency,
    /// The ToR of each rack that has nodes.
    tors: BTreeMap<u32, DatapathId>,
    unicast: UnicastRoutes,
    intent: Intent,
    acknowledgments: Acknowledgments,
    /// Ports that are open to the switches' own forwarding, if that handles unicast.
    normal: Option<NormalForwarding>,
    /// State and logic for hosts without an agent.
    host_forwarder: HostForwarder,
    /// Flows for multicast of other programs.
    host_multicast: HostMulticast,
    silent: SilentNodes,
    self_location: SelfLocation,
    group_tests: GroupTests,
    stale_trees: StaleTrees,
}

impl Network {
    pub(crate) fn new(
        config: FabricConfig,
        key: Key,
        publish: watch::Sender<Arc<TopologySnapshot>>,
        telemetry: Arc<Telemetry>,
    ) -> Network {
        let hosts = config.hosts.filter(|_| config.unicast == Unicast::Routed);
        // Loop probes and LLDP are authenticated separately.
        let probe_key = key.derive(b"loop probes");
        let test_key = key.derive(b"group tests");
        Network {
            discovery: Discovery::new(config.lldp_interval, config.grace, key),
            intent: Intent::new(config.unicast, hosts.is_some()),
            host_forwarder: HostForwarder::new(hosts, config.deferral_timeout, probe_key.clone()),
            host_multicast: HostMulticast::default(),
            normal: (config.unicast == Unicast::Normal)
                .then(|| NormalForwarding::new(config.lldp_interval, probe_key)),
            config,
            racks: Racks::default(),
            nodes: NodeRegistry::default(),
            switches: SwitchTable::default(),
            multicast: MulticastGroups::default(),
            sharing: TreeSharing::default(),
            snooped: SnoopedTrees::default(),
            telemetry,
            presence: DiscoveryLatency::default(),
            publisher: SnapshotPublisher::new(publish),
            changes: NetworkChanges::default(),
            adjacency: SwitchAdjacency::default(),
            tors: BTreeMap::new(),
            unicast: UnicastRoutes::default(),
            acknowledgments: Acknowledgments::default(),
            silent: SilentNodes::default(),
            self_location: SelfLocation::default(),
            group_tests: GroupTests::new(test_key),
            stale_trees: StaleTrees::default(),
        }
    }

    /// Returns the context of all connections.
    pub(crate) fn connection_context(&self, generation: watch::Receiver<Option<u64>>) -> ConnectionContext {
        let channel = ChannelConfig {
            packet_ins_per_second: self.config.packet_ins_per_second,
            keepalive_interval: self.config.lldp_interval,
            counters_interval: self.config.counters_interval,
            max_meters: self.config.capacity.meters,
            max_flows: self.config.capacity.flows,
            pipeline: self.config.pipeline,
            admission: AdmissionPolicy {
                names: self.config.switch_names.clone(),
                only_named: self.config.only_named_switches,
                only_bound: self.config.only_bound_certificates,
                bound: Vec::new(),
            },
            generation: self.config.generation,
            observes: self.config.observes,
        };
        let caught_up_interval = self.config.lldp_interval / CAUGHT_UP_PER_INTERVAL;
        let (telemetry, peers) = (self.telemetry.clone(), Arc::default());
        ConnectionContext { channel, generation, caught_up_interval, telemetry, peers }
    }

    /// Returns the entries that each switch should have.
    #[cfg(feature = "testing")]
    pub(crate) fn intended_tables(&self) -> &BTreeMap<DatapathId, crate::intent::tables::SwitchTables> {
        self.intent.tables()
    }

    /// Processes an event of a switch.
    pub(crate) fn event(&mut self, now: Time, FromSwitch { connection, switch, event }: FromSwitch) {
        if let SwitchEvent::Up(info, handle) = event {
            return self.up(now, connection, *info, handle);
        }
        if !self.switches.is_current(switch, connection) {
            return;
        }
        match event {
            SwitchEvent::Up(..) => {}
            SwitchEvent::PortChanged(port) => {
                let (at, up, mac) = (Port { switch, number: port.number }, port.up, port.mac);
                let joined = self.switches.port_changed(switch, port);
                match up {
                    true if joined => {
                        self.port_up(now, at);
                        self.discovery.handle(now, Input::PortUp(at, mac));
                    }
                    true => {}
                    false => self.port_down(now, at),
                }
            }
            SwitchEvent::PortRemoved(number) => {
                self.switches.port_removed(switch, number);
                self.port_down(now, Port { switch, number });
            }
            SwitchEvent::PacketIn(number, frame) => self.packet_in(now, Port { switch, number }, &frame),
            SwitchEvent::BlockRefused(number) => {
                let port = Port { switch, number };
                warn!("the switch cannot block port {}, so its segment stays closed", self.port_name(port));
                if let Some(normal) = &mut self.normal {
                    normal.cannot_block(port);
                }
            }
            SwitchEvent::Counted(inventory) => self.switches.counted(switch, inventory),
            SwitchEvent::Withheld(changes) => self.switches.withheld(switch, changes),
            SwitchEvent::CaughtUp => self.discovery.handle(now, Input::CaughtUp(switch)),
            SwitchEvent::Acknowledged(version, refusals) => self.acknowledged(now, switch, version, refusals),
            SwitchEvent::Down => {
                self.switches.disconnect(switch);
                self.discovery.handle(now, Input::SwitchDown(switch));
                if !self.discovery.graph().contains(switch) {
                    self.forget(now, switch);
                }
            }
        }
    }

    fn up(&mut self, now: Time, connection: ConnectionId, info: SwitchInfo, handle: SwitchHandle) {
        let switch = info.datapath_id;
        let up: BTreeSet<u32> = info.ports.iter().filter(|port| port.up).map(|port| port.number).collect();
        let hosts = info.inherited.hosts;
        self.handle_hosts(now, HostInput::SwitchUp { switch, up: &up, hosts: &hosts.here });
        if self.host_forwarder.serves_hosts() {
            self.intent.remember_hosts(switch, hosts.elsewhere);
        }
        if let Some(number) = info.inherited.rack {
            self.racks.claim(switch, number);
        }
        self.racks.reserve(info.inherited.racks);
        if let Some(normal) = &mut self.normal {
            let blocked = info.ports.iter().filter(|port| !port.forwards).map(|port| port.number).collect();
            normal.remember(switch, &info.inherited.open, &blocked, &up);
        }
        let capacity = info.capacity.within(self.config.capacity);
        let stale_trees = self.retain_stale(now, switch, info.inherited.trees);
        let discovered_at = now + self.config.lldp_interval * DISCOVERY_INTERVALS;
        // After a restart, switches reconnect one after the other, so routes to absent switches are
        // retained as long as trees. If switches forward unicast themselves, old flows must not
        // remain next to a new spanning tree.
        let retain_until = match self.config.unicast {
            Unicast::Routed => {
                self.stale_trees.until().map_or(discovered_at, |until| until.max(discovered_at))
            }
            Unicast::Normal => discovered_at,
        };
        let SwitchInfo { name, ports, model, tables, .. } = info;
        let connected = ConnectedSwitch {
            name,
            ports,
            model,
            tables,
            connection,
            handle,
            capacity,
            stale_trees,
            discovered_at,
            retain_until,
        };
        self.switches.connect(switch, connected);
        self.forget_group_test(switch);
        self.intent.add_switch(switch);
        self.intent.allow_failovers(switch, capacity.failovers());
        if let Some(rack) = self.racks.number(switch) {
            self.intent.number_rack(switch, rack);
        }
        self.intent.touch(switch);
    }

    /// Removes a switch.
    fn forget(&mut self, now: Time, switch: DatapathId) {
        if !self.switches.remove(switch) {
            return;
        }
        self.intent.remove_switch(switch);
        self.telemetry.desired(switch, None);
        self.presence.switch_removed(switch);
        self.clear_switch(switch);
        if let Some(normal) = &mut self.normal {
            normal.switch_removed(switch);
        }
        self.handle_hosts(now, HostInput::SwitchRemoved(switch));
        self.acknowledgments.switch_removed(switch);
    }

    fn port_up(&mut self, now: Time, port: Port) {
        self.presence.port_up(now, port);
        let settled = now + self.config.lldp_interval * DISCOVERY_INTERVALS;
        if let Some(normal) = &mut self.normal {
            normal.port_up(now, port, settled);
        }
        self.handle_hosts(now, HostInput::PortUp { port, settled_at: settled });
    }

    fn port_down(&mut self, now: Time, port: Port) {
        self.presence.port_down(port);
        self.clear_port(port);
        if let Some(normal) = &mut self.normal {
            normal.port_down(port);
        }
        self.handle_hosts(now, HostInput::PortDown(port));
        if let Some(peer) = self.discovery.graph().peer(port) {
            self.changes.cut.insert(Link::new(port, peer));
        }
        self.discovery.handle(now, Input::PortDown(port));
    }

    fn acknowledged(&mut self, now: Time, switch: DatapathId, version: u64, refused: EntryRefusals) {
        for number in refused.keys().flatten() {
            self.acknowledgments.touch(AckWaiter::Tree(*number));
        }
        let without_failover = refused.keys().flatten().any(|number| FAILOVERS.contains(number));
        let answer = self.switches.acknowledged(switch, version, refused);
        for what in answer.refused {
            warn!(%switch, "switch {} refused an entry: {what}", self.name(switch));
        }
        if without_failover {
            warn!(%switch, "switch {} works without fast failover", self.name(switch));
            self.intent.allow_failovers(switch, 0);
        }
        if let Some(ports) = answer.joined {
            for (number, _) in &ports {
                self.port_up(now, Port { switch, number: *number });
            }
            self.discovery.handle(now, Input::SwitchUp { switch, ports: &ports });
            let linked = self.discovery.graph().neighbors(switch).next().map(|(number, _)| number);
            if let Some(number) = linked {
                self.test_groups(now, Port { switch, number });
            }
        }
        self.acknowledgments.acknowledged(switch, version);
    }

    /// Computes all consequences of what has happened. Returns when to call it again even if
    /// nothing happens.
    pub(crate) fn advance(&mut self, now: Time) -> Option<Time> {
        let discovery = self.drain_discovery(now);
        let adoption = self.follow_stale(now);
        for switch in self.switches.pass_time(now) {
            self.intent.touch(switch);
        }
        self.locate_by_reports(now);
        self.handle_hosts(now, HostInput::Tick);
        // Answers to callers, and acknowledged trees, can change the desired state again.
        loop {
            self.follow(now);
            self.send_updates();
            self.expire(now);
            self.progress();
            if !self.multicast.has_changed() {
                break;
            }
        }
        let own = [
            adoption,
            self.switches.deadline(),
            self.show(now),
            self.multicast.deadline(),
            self.normal.as_ref().and_then(NormalForwarding::deadline),
            self.host_forwarder.deadline(),
            self.multicast.improving(now),
            self.unicast.deferred_until(),
            self.self_location.deadline(),
        ];
        own.into_iter().fold(discovery, earliest)
    }

    /// Publishes a snapshot if it has changed. Returns when to try again if that is too early.
    fn show(&mut self, now: Time) -> Option<Time> {
        let revisions = [
            self.discovery.revision(),
            self.nodes.revision(),
            self.self_location.revision(),
            self.switches.revision(),
            self.multicast.revision(),
            self.host_forwarder.revision(),
            self.normal.as_ref().map_or(0, NormalForwarding::revision),
        ];
        let revision = revisions.iter().sum();
        match self.publisher.due(now, revision) {
            PublishDue::Now => {
                let snapshot = snapshot::snapshot(self);
                self.publisher.publish(now, revision, snapshot);
                None
            }
            PublishDue::At(time) => Some(time),
            PublishDue::Never => None,
        }
    }

    fn drain_discovery(&mut self, now: Time) -> Option<Time> {
        let mut lost: Vec<(String, Port)> = Vec::new();
        let deadline = loop {
            let output = match self.discovery.poll(now) {
                Poll::Output(Output::Announce(port, frame)) => {
                    self.send(port, frame);
                    continue;
                }
                Poll::Output(output) => output,
                Poll::Idle(deadline) => break deadline,
            };
            match output {
                Output::Announce(..) => {}
                Output::Warning(warning) => warn!("{warning}"),
                Output::LinkUp(link) => {
                    info!("link {} - {} found", self.port_name(link.a), self.port_name(link.b));
                    self.presence.link(now, link).into_iter().for_each(|took| self.telemetry.found(took));
                    for end in [link.a, link.b] {
                        self.test_groups(now, end);
                        self.handle_hosts(now, HostInput::LinkFound(end));
                    }
                    [link.a, link.b].into_iter().for_each(|end| self.clear_port(end));
                    self.changes.links.insert(link);
                }
                Output::LinkDown(link) => {
                    warn!("link {} - {} lost", self.port_name(link.a), self.port_name(link.b));
                    self.changes.links.insert(link);
                }
                Output::SwitchFound(switch) => {
                    debug!(%switch, "switch found");
                    self.changes.switches = true;
                }
                Output::SwitchLost(switch) => {
                    warn!(%switch, "switch {} lost", self.name(switch));
                    self.changes.switches = true;
                    if self.switches.get(switch).is_some_and(|state| !state.connected()) {
                        self.forget(now, switch);
                    }
                }
                Output::NodeLocated(node, port) => {
                    info!(node, "node located at {}", self.port_name(port));
                    let took = self.presence.node(now, &node, port);
                    took.into_iter().for_each(|took| self.telemetry.found(took));
                    self.node_heard_at(&node, port);
                    self.self_location.remove(&node);
                    self.changes.nodes.insert(node);
                }
                Output::NodeLost(node, port) => {
                    lost.push((node.clone(), port));
                    self.node_silent_at(&node, port);
                    self.handle_hosts(now, HostInput::NodeLost(port));
                    self.changes.nodes.insert(node);
                }
            }
        };
        self.report_lost(&lost);
        deadline
    }

    /// Logs lost nodes. If many are lost at once, a single line reports their number, so that the
    /// log is not flooded.
    fn report_lost(&self, lost: &[(String, Port)]) {
        let nodes = lost.len();
        if let [(node, port), ..] = lost
            && nodes > LOST_BY_NAME
        {
            let port = self.port_name(*port);
            warn!(node, nodes, "{nodes} nodes no longer at their ports, this one at {port}");
            return;
        }
        for (node, port) in lost {
            warn!(node, "node no longer at {}", self.port_name(*port));
        }
    }

    /// Advances trees after their switches have acknowledged, and answers the callers that wait for
    /// them.
    fn progress(&mut self) {
        let mut concerned: BTreeSet<u64> = BTreeSet::new();
        for waiter in self.acknowledgments.take_touched() {
            let AckWaiter::Tree(number) = waiter else { continue };
            concerned.extend(self.multicast.owner(number));
            if self.acknowledgments.is_acknowledged(waiter) {
                self.multicast.edit(number, GroupTree::acknowledged);
            }
        }
        for id in concerned {
            let Some(outcome) = self.outcome(id) else { continue };
            let refused = outcome.is_err();
            let Some(caller) = self.multicast.take_caller(id) else { continue };
            // A caller that no longer waits would never release the group.
            if caller.send(outcome).is_err() || refused {
                self.release(id);
            }
        }
    }

    /// Returns the answer to the caller that waits for a group, if it is known.
    fn outcome(&self, id: u64) -> Option<Result<Vec<TreeGrant>, FabricError>> {
        let group = self.multicast.group(id).filter(|group| group.caller.is_some())?;
        if let Some(error) = self.refusal(id, group) {
            return Some(Err(error));
        }
        let made = |tree: &GroupTree| {
            self.acknowledgments.is_acknowledged(AckWaiter::Tree(tree.number))
                && tree.is_final()
                && !self.multicast.is_changed(tree.number)
        };
        group.trees.iter().all(made).then(|| Ok(tree_grants::grants(self, group)))
    }

    fn refusal(&self, id: u64, group: &GroupTrees) -> Option<FabricError> {
        group.trees.iter().find_map(|tree| {
            tree.current().ports().into_keys().find_map(|switch| {
                let state = self.switches.get(switch)?;
                let reason = state.refused.get(&Some(tree.number))?.clone();
                Some(FabricError::Refused { id, switch: state.name.clone(), reason })
            })
        })
    }

    /// Gives up groups for which callers have waited too long.
    fn expire(&mut self, now: Time) {
        while let Some(id) = self.multicast.overdue(now) {
            let Some(group) = self.multicast.group(id) else { continue };
            let trees = group.trees.iter().map(|tree| AckWaiter::Tree(tree.number));
            let missing: BTreeSet<DatapathId> =
                trees.flat_map(|waiter| self.acknowledgments.missing(waiter)).collect();
            let switches = missing.into_iter().map(|switch| self.name(switch)).collect();
            if let Some(caller) = self.multicast.take_caller(id) {
                let waited = self.config.ack_timeout;
                answer(caller, Err(FabricError::Unacknowledged { id, switches, waited }));
            }
            self.release(id);
        }
    }

    /// Returns the name of a switch as operators know it.
    pub(crate) fn name(&self, switch: DatapathId) -> String {
        self.switches.name(switch)
    }

    /// Returns the name of a port as operators know it, for example "s1:2".
    pub(crate) fn port_name(&self, port: Port) -> String {
        self.switches.port_name(port)
    }
}

#[cfg(test)]
mod tests;
