//! Forwards frames for hosts without an agent, and resolves addresses for them and for nodes.
//!
//! This is the only owner of the state of such hosts: the place of each ([`HostTable`]), the ports
//! that lead to hosts ([`EdgePorts`]), the frames that were flooded ([`FloodGuard`]), the IPv6
//! addresses that nodes use ([`NeighborCache`]), the PMACs that hosts have received
//! ([`PmacRefresh`]), the hosts for which switches have flows ([`HostPlacements`]), the members of
//! multicast addresses ([`Memberships`]) and the warnings for the operator ([`HostWarnings`]). The
//! parts do not depend on each other; this file routes between them.
//! [`Network`](super::Network) passes every [`Input`] together with a read-only view of its
//! [`Surroundings`], and executes each [`Output`].

mod delivery;
mod flood_guard;
mod host_table;
mod memberships;
mod multicast_snooping;
mod neighbor_cache;
mod placements;
mod pmac_refresh;
mod resolver;
mod surroundings;
mod warnings;

pub(super) use surroundings::Surroundings;

use super::edge_ports::EdgePorts;
use crate::api::{HostLimits, HostView, MacAddr, NodeRegistration};
use crate::frames::resolution;
use crate::frames::vlan::{Tag, Vlan};
use crate::intent::hosts::HostKey;
use cool_machine::{Duration, Time, earliest};
use cool_topology::{DatapathId, Key, Port};
use core::net::IpAddr;
use flood_guard::FloodGuard;
use host_table::HostTable;
use memberships::Memberships;
use neighbor_cache::NeighborCache;
use placements::HostPlacements;
use pmac_refresh::PmacRefresh;
use std::collections::{BTreeSet, VecDeque};
use tracing::info;
use warnings::{HostWarning, HostWarnings};

/// Source address of the probes that the controller sends to hosts and nodes.
pub(super) const PROBE_SOURCE: MacAddr = MacAddr(0x02, 0xc1, 0, 0, 0, 1);

/// An event of the network that concerns hosts or the resolution of addresses.
#[derive(Debug)]
pub(super) enum Input<'a> {
    /// A switch has connected. `hosts` are those that an earlier controller knew at its ports.
    SwitchUp { switch: DatapathId, up: &'a BTreeSet<u32>, hosts: &'a [(HostKey, u32)] },
    /// A switch was removed from the network.
    SwitchRemoved(DatapathId),
    /// A port is up; a link at it would have been found by `settled_at`.
    PortUp { port: Port, settled_at: Time },
    /// A port is down.
    PortDown(Port),
    /// A link was found at this port.
    LinkFound(Port),
    /// No node is located at this port any more.
    NodeLost(Port),
    /// A port received a frame that is not LLDP: whole, and without its VLAN tag.
    Frame { port: Port, frame: &'a [u8], tag: Tag, untagged: &'a [u8] },
    /// These nodes were registered, located, moved or removed.
    NodesChanged(&'a BTreeSet<String>),
    /// A node was located at another port than before.
    NodeMoved(&'a str, Port),
    /// A node was unregistered. It may continue as a host at `port`.
    NodeUnregistered { node: &'a NodeRegistration, vlan: Vlan, port: Option<Port> },
    /// A node has another Ethernet address or VLAN: the addresses it announced are void.
    NodeReset(&'a str),
    /// These hosts may need other flows.
    PlaceHosts(&'a BTreeSet<HostKey>),
    /// The flows of edge ports must be brought up to date.
    UpdateEdges,
    /// Time has passed.
    Tick,
}

/// An action that the network must take.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// Send this frame out of these ports of a switch.
    Send { switch: DatapathId, ports: Vec<u32>, frame: Vec<u8> },
    /// Install flows that lead to a host at a port of a rack's ToR.
    PlaceHost { host: HostKey, rack: u32, port: Port },
    /// Withdraw all flows that lead to a host, and expect the switches to acknowledge that.
    WithdrawHost(HostKey),
    /// The withdrawal of a host's flows need not be awaited any longer.
    WithdrawalEnded(HostKey),
    /// Open or close a port for frames of hosts.
    SetEdge { port: Port, open: bool },
    /// Remove the flows that only an edge port has.
    CloseEdge(Port),
    /// Meter this type of neighbor discovery at a port apart from other frames.
    SeparateDiscovery { port: Port, kind: u8 },
}

/// State and logic for hosts without an agent.
#[derive(Debug)]
pub(super) struct HostForwarder {
    /// If false, no frames of hosts are forwarded, and addresses are resolved for nodes only.
    serves_hosts: bool,
    limits: HostLimits,
    hosts: HostTable,
    edges: EdgePorts,
    floods: FloodGuard,
    /// Authenticates loop probes.
    probe_key: Key,
    neighbors: NeighborCache,
    placements: HostPlacements,
    pmacs: PmacRefresh,
    memberships: Memberships,
    warnings: HostWarnings,
    outputs: VecDeque<Output>,
}

impl HostForwarder {
    /// Returns a forwarder without hosts. Without `limits`, hosts are not served. New flows towards
    /// a host wait at most `deferral_timeout` until the switches have withdrawn the old ones.
    /// `probe_key` authenticates loop probes.
    pub(super) fn new(
        limits: Option<HostLimits>,
        deferral_timeout: Duration,
        probe_key: Key,
    ) -> HostForwarder {
        let (serves_hosts, limits) = (limits.is_some(), limits.unwrap_or_default());
        HostForwarder {
            serves_hosts,
            limits,
            hosts: HostTable::new(limits),
            edges: EdgePorts::default(),
            floods: FloodGuard::default(),
            probe_key,
            neighbors: NeighborCache::default(),
            placements: HostPlacements::new(deferral_timeout),
            pmacs: PmacRefresh::default(),
            memberships: Memberships::default(),
            warnings: HostWarnings::default(),
            outputs: VecDeque::new(),
        }
    }

    /// Processes an input. The caller must then take all outputs with
    /// [`next_output`](HostForwarder::next_output).
    pub(super) fn handle(&mut self, now: Time, network: &Surroundings<'_>, input: Input<'_>) {
        match input {
            Input::Frame { port, frame, tag, untagged } => {
                return self.receive(now, network, port, frame, tag, untagged);
            }
            Input::NodeMoved(name, place) => return self.announce_move(network, name, place),
            Input::NodeReset(name) => return drop(self.neighbors.forget(name)),
            Input::NodeUnregistered { node, vlan, port } => {
                return self.node_unregistered(now, node, vlan, port);
            }
            _ if !self.serves_hosts => return,
            _ => {}
        }
        match input {
            Input::SwitchUp { switch, up, hosts } => {
                self.edges.switch_up(switch, up);
                for (key, number) in hosts.iter().filter(|(_, number)| up.contains(number)) {
                    self.hosts.restore(now, Port { switch, number: *number }, *key);
                }
            }
            Input::SwitchRemoved(switch) => {
                self.edges.switch_removed(switch);
                self.hosts.switch_removed(switch);
                self.pmacs.switch_removed(switch);
            }
            Input::PortUp { port, settled_at } => self.edges.port_up(port, settled_at),
            Input::PortDown(port) => {
                self.edges.port_down(port);
                self.hosts.port_down(port);
                self.pmacs.forget(port);
                self.warnings.port_down(port, self.floods.port_down(port));
            }
            Input::LinkFound(port) => self.edges.linked(port),
            Input::NodeLost(port) => self.edges.touch(port),
            Input::NodesChanged(names) => self.nodes_changed(now, network, names),
            Input::PlaceHosts(hosts) => self.place_hosts(now, network, hosts),
            Input::UpdateEdges => self.update_edges(now, network),
            Input::Tick => self.pass_time(now, network),
            Input::Frame { .. }
            | Input::NodeMoved(..)
            | Input::NodeReset(_)
            | Input::NodeUnregistered { .. } => {}
        }
    }

    /// Returns the next action to take, in order.
    pub(super) fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the hosts that appeared, vanished or moved, and those whose old flows are withdrawn
    /// now, because the switches acknowledged it or the wait for them is over.
    pub(super) fn take_changed_hosts(
        &mut self,
        now: Time,
        is_acknowledged: impl Fn(HostKey) -> bool,
    ) -> BTreeSet<HostKey> {
        let mut changed = self.hosts.take_changed();
        let withdrawn = self.placements.take_withdrawn(now, is_acknowledged);
        self.outputs.extend(withdrawn.iter().map(|host| Output::WithdrawalEnded(*host)));
        changed.extend(withdrawn);
        changed
    }

    /// Returns when to send [`Input::Tick`] even if nothing happens.
    pub(super) fn deadline(&self) -> Option<Time> {
        let own = [
            self.hosts.deadline(),
            self.edges.deadline(),
            self.floods.deadline(),
            self.warnings.deadline(),
            self.placements.deadline(),
            self.pmacs.deadline(),
            self.memberships.deadline(),
        ];
        own.into_iter().fold(None, earliest)
    }

    /// Returns the number of changes so far that are visible in a snapshot of the network.
    pub(super) fn revision(&self) -> u64 {
        self.hosts.revision() + self.warnings.revision() + self.memberships.revision()
    }

    /// Returns whether hosts without an agent are served.
    pub(super) fn serves_hosts(&self) -> bool {
        self.serves_hosts
    }

    /// Returns the members of multicast addresses.
    pub(super) fn memberships(&self) -> &Memberships {
        &self.memberships
    }

    /// Returns the switches that have hosts.
    pub(super) fn switches(&self) -> impl Iterator<Item = DatapathId> {
        self.hosts.switches()
    }

    /// Returns whether a port has hosts.
    pub(super) fn has_hosts_at(&self, port: Port) -> bool {
        self.hosts.are_at(port)
    }

    /// Returns all hosts, as the API shows them.
    pub(super) fn views(&self) -> Vec<HostView> {
        self.hosts.views()
    }

    /// Returns the warnings for the operator, one line each.
    pub(super) fn warnings(&self, network: &Surroundings<'_>) -> Vec<String> {
        let looped = self.floods.closed().map(|port| (port, HostWarning::Loop));
        let all = self.warnings.iter().chain(looped);
        all.map(|(port, warning)| self.describe(network, port, &warning)).collect()
    }

    /// Stops serving hosts, as a controller that was started without them.
    #[cfg(test)]
    pub(super) fn stop_serving_hosts(&mut self) {
        self.serves_hosts = false;
    }

    /// Probes hosts that have been silent, and ends warnings and closures of ports that are over.
    fn pass_time(&mut self, now: Time, network: &Surroundings<'_>) {
        self.edges.pass_time(now);
        self.warnings.pass_time(now);
        let (reopened, round) = self.floods.pass_time(now);
        for port in reopened {
            info!("port {} is open to hosts again", network.port_name(port));
            self.edges.touch(port);
            self.warnings.touch();
        }
        if let Some(round) = round {
            self.send_probes(&round);
        }
        while let Some((port, nodes)) = self.next_refresh(now, network) {
            nodes.iter().for_each(|node| self.announce_node(network, node, &[port]));
        }
        for (key, port, address) in self.hosts.pass_time(now) {
            self.send(port, key.vlan.put(resolution::probe(key.mac, address, PROBE_SOURCE)));
        }
        self.query_members(now, network);
    }

    /// Returns the next port whose hosts must receive the PMACs of nodes again.
    fn next_refresh(&mut self, now: Time, network: &Surroundings<'_>) -> Option<(Port, BTreeSet<String>)> {
        let HostForwarder { pmacs, hosts, .. } = self;
        pmacs.take_due(now, |port, node| hosts.are_at(port) && network.nodes.get(node).is_some())
    }

    /// Updates the flows of edge ports. An edge port is open if it leads to hosts only and is not
    /// part of a loop.
    fn update_edges(&mut self, now: Time, network: &Surroundings<'_>) {
        for port in self.edges.take_changed() {
            let is_edge = self.edges.all().contains(&port) && !self.floods.is_closed(port);
            let open = is_edge && network.node_at(port).is_none();
            self.outputs.push_back(Output::SetEdge { port, open });
            self.memberships.set_edge(now, port, is_edge);
            if !is_edge {
                self.outputs.push_back(Output::CloseEdge(port));
            }
        }
    }

    /// Installs or withdraws flows so that they lead to the current ports of these hosts.
    fn place_hosts(&mut self, now: Time, network: &Surroundings<'_>, hosts: &BTreeSet<HostKey>) {
        for key in hosts {
            // A node in its own VLAN needs no such flow, because others reach it by its PMAC.
            let node = network.node_of(*key).is_some();
            let port = self.hosts.get(*key).map(|host| host.port).filter(|_| !node);
            let place = port.and_then(|port| Some((port, network.racks.number(port.switch)?)));
            if let Some(output) = self.placements.update(now, *key, place) {
                if let Output::PlaceHost { port, .. } = &output {
                    info!(host = %key.mac, "host at {}", network.port_name(*port));
                }
                self.outputs.push_back(output);
            }
        }
    }

    /// Turns hosts with newly registered agents into nodes, and announces the new addresses to
    /// others.
    fn nodes_changed(&mut self, now: Time, network: &Surroundings<'_>, names: &BTreeSet<String>) {
        let mut became: Vec<(String, Port)> = Vec::new();
        for name in names {
            let node = network.nodes.get(name);
            let (Some(node), Some(port)) = (node, network.discovery.graph().host(name)) else { continue };
            self.edges.node_at(port);
            self.edges.touch(port);
            let (mac, vlan) = (node.mac, network.nodes.vlan(name));
            for key in self.hosts.with_mac(mac) {
                self.hosts.touch(key);
                let Some(host) = self.hosts.get(key).filter(|_| key.vlan == vlan) else { continue };
                for address in &host.addresses {
                    if let IpAddr::V6(ip) = address
                        && self.neighbors.holder(vlan, *ip).is_none()
                    {
                        self.neighbors.on_announcement(now, vlan, *ip, name, host.router);
                    }
                }
                self.hosts.forget(key);
                became.push((name.clone(), port));
            }
        }
        for (name, port) in became {
            let Some(pmac) = network.pmac_at(port) else { continue };
            info!(node = name, "host has become a node");
            let addresses = self.addresses(network, &name);
            self.announce(now, port, network.nodes.vlan(&name), &addresses, pmac);
        }
    }

    /// Turns a node without its agent into a host, because its machine may still be there:
    /// neighbors that know its PMAC must learn its own Ethernet address.
    fn node_unregistered(&mut self, now: Time, node: &NodeRegistration, vlan: Vlan, port: Option<Port>) {
        let addresses = self.neighbors.addresses_with(node);
        self.neighbors.forget(&node.name);
        if !self.serves_hosts {
            return;
        }
        let key = HostKey { mac: node.mac, vlan };
        for key in self.hosts.with_mac(key.mac) {
            self.hosts.touch(key);
        }
        let Some(port) = port else { return };
        self.edges.touch(port);
        for (address, router) in &addresses {
            self.hosts.on_frame(now, port, key, Some(*address));
            router.iter().for_each(|router| self.hosts.set_router(key, *router));
        }
        self.announce(now, port, key.vlan, &addresses, key.mac);
    }
}
