//! What switches hold for hosts without an agent: where the host is, a flow to it; elsewhere, a flow that goes the same way
//! as what is for the rack there. Hosts keep their own Ethernet addresses, so whoever speaks to them does so as through
//! any switch, whatever the protocol.

use super::Intent;
use super::cookies::{COOKIE, FOR_EDGE, FOR_HOST, FOR_HOST_HERE};
use super::flows::{EDGE, HOST, OF_PORT, discovery, flow, port_key, rack_key, to_controller};
use super::tables::{FlowEntry, FlowKey};
use crate::frames::ndp;
use crate::frames::vlan::Vlan;
use cool_topology::{DatapathId, MacAddr, Port};
use rs_openflow::{Action, EtherType, Match, PortNo};
use std::collections::BTreeMap;

/// A host without an agent: an Ethernet address in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostKey {
    pub(crate) mac: MacAddr,
    pub(crate) vlan: Vlan,
}

/// The hosts for which there are flows.
#[derive(Debug, Default)]
pub(super) struct HostFlows {
    /// By rack, with where each is.
    racks: BTreeMap<u32, BTreeMap<HostKey, Port>>,
    /// Flows of an earlier controller towards hosts of a rack, by the switch that holds them.
    stale: BTreeMap<(DatapathId, u32), Vec<FlowKey>>,
}

impl HostFlows {
    /// There is no such switch any more.
    pub(super) fn forget(&mut self, switch: DatapathId) {
        self.stale.retain(|(other, _), _| *other != switch);
    }
}

impl Intent {
    /// A switch still holds what an earlier controller told it of hosts.
    pub(crate) fn remember_hosts(&mut self, switch: DatapathId, elsewhere: BTreeMap<u32, Vec<FlowKey>>) {
        let stale = elsewhere.into_iter().map(|(rack, keys)| ((switch, rack), keys));
        self.hosts.stale.extend(stale);
    }

    /// A host without an agent is at this port of this rack's ToR.
    pub(crate) fn place_host(&mut self, host: HostKey, rack: u32, port: Port) {
        let here = flow(FOR_HOST_HERE | u64::from(rack), vec![Action::output(PortNo(port.number))]);
        self.flow(port.switch, to_host(host), Some(here));
        self.hosts.racks.entry(rack).or_default().insert(host, port);
        let others = self.switches.keys().copied().filter(|switch| *switch != port.switch);
        for switch in others.collect::<Vec<_>>() {
            self.lead_to_hosts(switch, rack, &[host]);
        }
    }

    /// Nothing leads to a host any more, not even what an earlier controller told switches; returns those that are told so.
    pub(crate) fn displace_host(&mut self, host: HostKey) -> Vec<DatapathId> {
        self.hosts.racks.retain(|_, hosts| {
            hosts.remove(&host);
            !hosts.is_empty()
        });
        let (key, switches) = (to_host(host), self.switches.keys().copied().collect::<Vec<_>>());
        for switch in &switches {
            self.flow(*switch, key.clone(), None);
            self.pending.entry(*switch).or_default().flows.insert(key.clone(), None);
        }
        switches
    }

    /// What is for a rack leaves a switch by another way: so does what is for its hosts.
    pub(super) fn follow_rack(&mut self, switch: DatapathId, rack: u32) {
        let hosts = self.hosts.racks.get(&rack).into_iter().flatten();
        let hosts: Vec<HostKey> =
            hosts.filter(|(_, port)| port.switch != switch).map(|(host, _)| *host).collect();
        self.lead_to_hosts(switch, rack, &hosts);
        for key in self.hosts.stale.remove(&(switch, rack)).unwrap_or_default() {
            let Some(tables) = self.switches.get(&switch) else { return };
            if !tables.flows.contains_key(&key) {
                // It may lead another way than what other switches hold by now.
                self.pending.entry(switch).or_default().flows.insert(key, None);
            }
        }
    }

    fn lead_to_hosts(&mut self, switch: DatapathId, rack: u32, hosts: &[HostKey]) {
        let (false, Some(key)) = (hosts.is_empty(), rack_key(rack)) else { return };
        let to_rack = self.switches.get(&switch).and_then(|tables| tables.flows.get(&key));
        let instructions = to_rack.map(|flow| flow.instructions.clone());
        for host in hosts {
            let cookie = COOKIE | FOR_HOST | u64::from(rack);
            let flow = instructions.clone().map(|instructions| FlowEntry { cookie, instructions });
            self.flow(switch, to_host(*host), flow);
        }
    }

    /// What comes by a port without a link and an agent, and is for nobody who is known, is the controller's to carry, or nobody's.
    pub(crate) fn edge(&mut self, port: Port, open: bool) {
        let rest = FlowKey::new(EDGE, Match::new().in_port(PortNo(port.number)));
        for key in [rest, port_key(port.number, EtherType::ARP)] {
            let held = self.switches.get(&port.switch).and_then(|tables| tables.flows.get(&key));
            // Not that of a node at this port.
            let ours = held.is_none_or(|flow| flow.cookie == COOKIE | FOR_EDGE);
            if ours {
                self.flow(port.switch, key, open.then(|| flow(FOR_EDGE, to_controller())));
            }
        }
    }

    /// Neighbour discovery comes by an edge port: from now on what asks for addresses there, and answers, is apart from what others
    /// say, so that it can be bounded apart, as ARP is.
    pub(crate) fn separate_discovery(&mut self, port: Port, kind: u8) {
        if ASKING.contains(&kind) {
            for key in of_discovery(port) {
                self.flow(port.switch, key, Some(flow(FOR_EDGE, to_controller())));
            }
        }
    }

    /// A port is no edge any more, or closed.
    pub(crate) fn close_edge(&mut self, port: Port) {
        for key in of_discovery(port) {
            self.flow(port.switch, key, None);
        }
    }
}

/// Neighbour discovery by which addresses are asked for, and the answers.
const ASKING: [u8; 2] = [ndp::SOLICITATION, ndp::ADVERTISEMENT];

fn of_discovery(port: Port) -> impl Iterator<Item = FlowKey> {
    ASKING.into_iter().map(move |kind| {
        let matching = discovery(kind).in_port(PortNo(port.number));
        FlowKey::new(OF_PORT, matching)
    })
}

/// What is for a host.
fn to_host(host: HostKey) -> FlowKey {
    FlowKey::new(HOST, Match::new().eth_dst(host.mac).vlan_vid(host.vlan.field()))
}
