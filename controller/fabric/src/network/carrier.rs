//! What the network does for hosts without an agent: which ports are theirs, where each is, what switches are told of it.

use super::Network;
use super::acknowledgments::AckWaiter;
use super::edge_ports::EdgePorts;
use super::flood_guard::FloodGuard;
use super::host_table::HostTable;
use crate::api::{HostLimits, HostView, MacAddr};
use crate::frames::resolution;
use crate::intent::hosts::HostKey;
use crate::switch::channel::SwitchInfo;
use cool_machine::{Duration, Time, earliest};
use cool_topology::{DatapathId, Port};
use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};
use tracing::{info, warn};

/// As whom the controller asks hosts whether they are there.
pub(super) const ASKER: MacAddr = MacAddr(0x02, 0xc1, 0, 0, 0, 1);
/// How long a warning stays after its cause was last seen.
const WARNED: Duration = Duration::from_secs(60);
/// Ports of which there may be warnings.
const MAX_WARNINGS: usize = 64;

/// The hosts, and what is done for them.
#[derive(Debug)]
pub(crate) struct Carrier {
    pub(super) hosts: HostTable,
    pub(super) edges: EdgePorts,
    pub(super) floods: FloodGuard,
    placed: BTreeMap<HostKey, HostPlacement>,
    /// What hosts do that they should not, and until when it is told, by port.
    warnings: BTreeMap<Port, (HostWarning, Time)>,
    warnings_revision: u64,
}

/// What switches are told of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostPlacement {
    At(Port),
    /// Nothing any more; by then they must have taken it back, so that old and new flows never make a loop.
    Withdrawn(Time),
}

/// Why what comes by a port is not carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HostWarning {
    /// A host says that it has an address of a node that is elsewhere.
    TakesNode(HostKey, String),
    TooMany,
    MovesTooOften(HostKey),
    /// What was flooded elsewhere comes in here.
    Round,
}

impl Carrier {
    pub(super) fn new(limits: HostLimits) -> Carrier {
        Carrier {
            hosts: HostTable::new(limits),
            edges: EdgePorts::default(),
            floods: FloodGuard::default(),
            placed: BTreeMap::new(),
            warnings: BTreeMap::new(),
            warnings_revision: 0,
        }
    }

    pub(super) fn port_down(&mut self, port: Port) {
        self.edges.port_down(port);
        self.hosts.port_down(port);
        if self.floods.port_down(port) | self.warnings.remove(&port).is_some() {
            self.warnings_revision += 1;
        }
    }

    pub(super) fn switch_removed(&mut self, switch: DatapathId) {
        self.edges.switch_removed(switch);
        self.hosts.switch_removed(switch);
    }

    /// Counts the changes that a snapshot of the network shows.
    pub(super) fn revision(&self) -> u64 {
        self.hosts.revision() + self.warnings_revision
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let warnings = self.warnings.values().map(|(_, until)| *until).min();
        let withdrawn = self.placed.values().filter_map(|placement| match placement {
            HostPlacement::Withdrawn(until) => Some(*until),
            HostPlacement::At(_) => None,
        });
        let own = [self.hosts.deadline(), self.edges.deadline(), self.floods.deadline(), warnings];
        own.into_iter().chain(withdrawn.map(Some)).fold(None, earliest)
    }

    /// Notes why something is not carried; returns whether that is new.
    pub(super) fn note(&mut self, now: Time, port: Port, warning: HostWarning) -> bool {
        let until = now + WARNED;
        let before = self.warnings.get_mut(&port);
        if let Some((same, then)) = before
            && *same == warning
        {
            *then = until;
            return false;
        }
        if self.warnings.len() >= MAX_WARNINGS && !self.warnings.contains_key(&port) {
            return false;
        }
        self.warnings_revision += 1;
        self.warnings.insert(port, (warning, until)).is_none()
    }

    fn forget_warnings(&mut self, now: Time) {
        let before = self.warnings.len();
        self.warnings.retain(|_, (_, until)| *until > now);
        self.warnings_revision += u64::from(self.warnings.len() < before);
    }

    pub(super) fn views(&self) -> Vec<HostView> {
        let view = |(key, host): (HostKey, &super::host_table::HostEntry)| HostView {
            mac: key.mac,
            vlan: key.vlan.0,
            addresses: host.addresses.iter().copied().collect(),
            port: host.port,
        };
        self.hosts.iter().map(view).collect()
    }
}

impl Network {
    /// A switch has come: the hosts that an earlier controller knew at its ports are still there, as far as can be told.
    pub(super) fn restore_hosts(&mut self, now: Time, info: &SwitchInfo) {
        let Some(carrier) = &mut self.carrier else { return };
        let up: BTreeSet<u32> = info.ports.iter().filter(|port| port.up).map(|port| port.number).collect();
        carrier.edges.switch_up(info.datapath_id, &up);
        for (key, number) in info.inherited.hosts.here.iter().filter(|(_, number)| up.contains(number)) {
            carrier.hosts.restore(now, Port { switch: info.datapath_id, number: *number }, *key);
        }
        self.intent.remember_hosts(info.datapath_id, info.inherited.hosts.elsewhere.clone());
    }

    /// Time goes on for hosts: those that have been silent are asked whether they are there.
    pub(super) fn pass_time_of_hosts(&mut self, now: Time) {
        let Some(carrier) = &mut self.carrier else { return };
        carrier.edges.pass_time(now);
        carrier.forget_warnings(now);
        while let Some(port) = carrier.floods.opened(now) {
            carrier.edges.touch(port);
            carrier.warnings_revision += 1;
        }
        for (key, port, address) in carrier.hosts.pass_time(now) {
            self.send(port, key.vlan.put(resolution::probe(key.mac, address, ASKER)));
        }
    }

    /// The hosts that have come, gone or moved, and those that switches have forgotten now.
    pub(super) fn changed_hosts(&mut self, now: Time) -> BTreeSet<HostKey> {
        let Some(carrier) = &mut self.carrier else { return BTreeSet::new() };
        let mut changed = carrier.hosts.take_changed();
        let acknowledgments = &mut self.acknowledgments;
        carrier.placed.retain(|key, placement| {
            let HostPlacement::Withdrawn(until) = placement else { return true };
            let waits = *until > now && !acknowledgments.is_acknowledged(AckWaiter::Host(*key));
            if !waits {
                acknowledgments.forget(AckWaiter::Host(*key));
                changed.insert(*key);
            }
            waits
        });
        changed
    }

    /// Brings what switches hold of these hosts in line with where they are.
    pub(super) fn place_hosts(&mut self, now: Time, hosts: &BTreeSet<HostKey>) {
        for key in hosts {
            let Some(carrier) = &mut self.carrier else { return };
            // What is for a node, in its own segment, is known by its PMAC.
            let node = self.nodes.with_mac(key.mac).is_some_and(|name| self.nodes.vlan(name) == key.vlan);
            let port = carrier.hosts.get(*key).map(|host| host.port).filter(|_| !node);
            let place = port.and_then(|port| Some((port, self.racks.number(port.switch)?)));
            match (carrier.placed.get(key), place) {
                (Some(HostPlacement::At(before)), Some((port, _))) if *before == port => {}
                (Some(HostPlacement::Withdrawn(_)), _) | (None, None) => {}
                (Some(HostPlacement::At(_)), _) => {
                    let until = now + self.config.deferral_timeout;
                    carrier.placed.insert(*key, HostPlacement::Withdrawn(until));
                    for switch in self.intent.displace_host(*key) {
                        self.acknowledgments.expect(AckWaiter::Host(*key), switch);
                    }
                }
                (None, Some((port, rack))) => {
                    carrier.placed.insert(*key, HostPlacement::At(port));
                    self.intent.place_host(*key, rack, port);
                    info!(host = %key.mac, "host at {}", self.port_name(port));
                }
            }
        }
    }

    /// Ports without a link and an agent hand in what comes for nobody who is known.
    pub(super) fn follow_edges(&mut self) {
        let changed = self.carrier.as_mut().map(|carrier| carrier.edges.take_changed());
        for port in changed.unwrap_or_default() {
            let Some(carrier) = &self.carrier else { return };
            let theirs = carrier.edges.all().contains(&port) && !carrier.floods.is_closed(port);
            let open = theirs && self.node_at(port).is_none();
            self.intent.edge(port, open);
            if !theirs {
                self.intent.close_edge(port);
            }
        }
    }

    /// The node that is at a port.
    pub(super) fn node_at(&self, port: Port) -> Option<String> {
        let heard =
            self.discovery.node_at(port).filter(|name| self.discovery.graph().host(name) == Some(port));
        heard.or_else(|| self.silent_at(port))
    }

    /// NodeRegistry have come, gone or moved, and so hosts have become nodes or the other way round.
    pub(super) fn nodes_changed(&mut self, now: Time, names: &BTreeSet<String>) {
        let Some(carrier) = &mut self.carrier else { return };
        let mut became: Vec<(String, Port)> = Vec::new();
        for name in names {
            let (Some(node), Some(port)) = (self.nodes.get(name), self.discovery.graph().host(name)) else {
                continue;
            };
            carrier.edges.node_at(port);
            carrier.edges.touch(port);
            let (mac, vlan) = (node.mac, self.nodes.vlan(name));
            for key in carrier.hosts.with_mac(mac) {
                carrier.hosts.touch(key);
                let Some(host) = carrier.hosts.get(key).filter(|_| key.vlan == vlan) else { continue };
                for address in &host.addresses {
                    if let IpAddr::V6(ip) = address
                        && self.nodes.neighbors.holder(vlan, *ip).is_none()
                    {
                        self.nodes.neighbors.heard(now, vlan, *ip, name, host.router);
                    }
                }
                carrier.hosts.forget(key);
                became.push((name.clone(), port));
            }
        }
        for (name, port) in became {
            let Some(pmac) = self.pmac_at(port) else { continue };
            info!(node = name, "a host has become a node");
            self.announce(now, port, self.nodes.vlan(&name), &self.nodes.addresses(&name), pmac);
        }
    }

    /// An agent has ended, and its node, which had these addresses, may go on as a host: whoever knows it by its PMAC hears its
    /// own Ethernet address.
    pub(super) fn node_left(
        &mut self,
        now: Time,
        addresses: &[(IpAddr, Option<bool>)],
        key: HostKey,
        port: Option<Port>,
    ) {
        let Some(carrier) = &mut self.carrier else { return };
        for key in carrier.hosts.with_mac(key.mac) {
            carrier.hosts.touch(key);
        }
        let Some(port) = port else { return };
        carrier.edges.touch(port);
        for (address, router) in addresses {
            carrier.hosts.heard(now, port, key, Some(*address));
            router.iter().for_each(|router| carrier.hosts.set_router(key, *router));
        }
        self.announce(now, port, key.vlan, addresses, key.mac);
    }

    /// What hosts do that they should not, in words.
    pub(super) fn warnings_of_hosts(&self) -> Vec<String> {
        let Some(carrier) = &self.carrier else { return Vec::new() };
        let told = |(port, (warning, _)): (&Port, &(HostWarning, Time))| self.describe(*port, warning);
        let rounds = carrier.floods.closed().map(|port| self.describe(port, &HostWarning::Round));
        carrier.warnings.iter().map(told).chain(rounds).collect()
    }

    fn describe(&self, port: Port, warning: &HostWarning) -> String {
        let at = self.port_name(port);
        let limits = self.config.hosts.unwrap_or_default();
        match warning {
            HostWarning::TakesNode(key, node) => format!(
                "port {at}: host {} says that it has an address of node {node}, and is not heard; give it one of its own",
                key.mac
            ),
            HostWarning::TooMany => format!(
                "port {at}: further hosts are not carried, there are {} of {} in all and at most {} at a port: --max-hosts, \
                 --max-hosts-per-port",
                self.carrier.as_ref().map_or(0, |carrier| carrier.hosts.len()),
                limits.all,
                limits.per_port
            ),
            HostWarning::MovesTooOften(key) => format!(
                "port {at}: host {} is heard at another port as well; see whether two hosts have its address, or a cable \
                 makes a loop",
                key.mac
            ),
            HostWarning::Round => format!(
                "port {at} is closed to hosts: what is said to all at other ports comes in by it, so it leads to another \
                 port by a switch that hears no LLDP"
            ),
        }
    }

    /// Notes why something is not carried, and tells it once.
    pub(super) fn note(&mut self, now: Time, port: Port, warning: HostWarning) {
        let Some(carrier) = &mut self.carrier else { return };
        // Closed ports are known as such.
        let is_new = match warning {
            HostWarning::Round => {
                carrier.warnings_revision += 1;
                true
            }
            _ => carrier.note(now, port, warning.clone()),
        };
        if is_new {
            warn!("{}", self.describe(port, &warning));
        }
    }
}
