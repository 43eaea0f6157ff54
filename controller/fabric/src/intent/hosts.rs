//! Flows for hosts without an agent. The host's own switch has a flow to its port; every other
//! switch has a flow that takes the same way as the flow to the host's rack. Hosts keep their own
//! Ethernet addresses, so others reach them as through any switch, with any protocol.

use super::Intent;
use super::cookies::{COOKIE, FOR_EDGE, FOR_HOST, FOR_HOST_HERE};
use super::flows::{EDGE, HOST, OF_PORT, discovery, flow, port_key, priority_twin, rack_key, to_controller};
use super::tables::{FlowEntry, FlowKey};
use crate::frames::ndp;
use crate::frames::vlan::Vlan;
use cool_topology::{DatapathId, MacAddr, Port};
use rs_openflow::{Action, EtherType, Match, PortNo};
use std::collections::BTreeMap;

/// A host without an agent: an Ethernet address in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostKey {
    pub(crate) mac: MacAddr,
    pub(crate) vlan: Vlan,
}

/// Hosts that have flows.
#[derive(Debug, Default)]
pub(super) struct HostFlows {
    /// Port of each host, by rack.
    racks: BTreeMap<u32, BTreeMap<HostKey, Port>>,
    /// Flows of an earlier controller towards hosts of a rack, by the switch that holds them.
    stale: BTreeMap<(DatapathId, u32), Vec<FlowKey>>,
}

impl HostFlows {
    /// Removes a switch.
    pub(super) fn forget(&mut self, switch: DatapathId) {
        self.stale.retain(|(other, _), _| *other != switch);
    }
}

impl Intent {
    /// Records the flows towards hosts that a switch holds from an earlier controller.
    pub(crate) fn remember_hosts(&mut self, switch: DatapathId, elsewhere: BTreeMap<u32, Vec<FlowKey>>) {
        let stale = elsewhere.into_iter().map(|(rack, keys)| ((switch, rack), keys));
        self.hosts.stale.extend(stale);
    }

    /// Installs flows that lead to a host at this port of a rack's ToR.
    pub(crate) fn place_host(&mut self, host: HostKey, rack: u32, port: Port) {
        let here = flow(FOR_HOST_HERE | u64::from(rack), vec![Action::output(PortNo(port.number))]);
        self.flow(port.switch, host_key(host), Some(here));
        self.hosts.racks.entry(rack).or_default().insert(host, port);
        let others = self.switches.keys().copied().filter(|switch| *switch != port.switch);
        for switch in others.collect::<Vec<_>>() {
            self.lead_to_hosts(switch, rack, &[host]);
        }
    }

    /// Removes all flows towards a host, including those of an earlier controller. Returns the
    /// switches concerned.
    pub(crate) fn displace_host(&mut self, host: HostKey) -> Vec<DatapathId> {
        self.hosts.racks.retain(|_, hosts| {
            hosts.remove(&host);
            !hosts.is_empty()
        });
        let (key, switches) = (host_key(host), self.switches.keys().copied().collect::<Vec<_>>());
        for switch in &switches {
            self.flow(*switch, key.clone(), None);
            // Flows of an earlier controller may exist for both kinds of frames.
            let keys = [Some(key.clone()), priority_twin(&key)];
            let pending = self.pending.entry(*switch).or_default();
            pending.flows.extend(keys.into_iter().flatten().map(|key| (key, None)));
        }
        switches
    }

    /// Updates the flows towards the hosts of a rack after the flow towards the rack has changed.
    pub(super) fn follow_rack(&mut self, switch: DatapathId, rack: u32) {
        let hosts = self.hosts.racks.get(&rack).into_iter().flatten();
        let hosts: Vec<HostKey> =
            hosts.filter(|(_, port)| port.switch != switch).map(|(host, _)| *host).collect();
        self.lead_to_hosts(switch, rack, &hosts);
        for key in self.hosts.stale.remove(&(switch, rack)).unwrap_or_default() {
            let Some(tables) = self.switches.get(&switch) else { return };
            if !tables.flows.contains_key(&key) {
                // A flow of an earlier controller must go, because with newer flows of other
                // switches it could form a loop.
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
            self.flow(switch, host_key(*host), flow);
        }
    }

    /// Opens or closes an edge port. Flows at an open edge port send frames to unknown
    /// destinations, and ARP, to the controller.
    pub(crate) fn edge(&mut self, port: Port, open: bool) {
        let rest = FlowKey::new(EDGE, Match::new().in_port(PortNo(port.number)));
        for key in [rest, port_key(port.number, EtherType::ARP)] {
            let held = self.switches.get(&port.switch).and_then(|tables| tables.flows.get(&key));
            // The flow of a node at this port must stay.
            let ours = held.is_none_or(|flow| flow.cookie == COOKIE | FOR_EDGE);
            if ours {
                self.flow(port.switch, key, open.then(|| flow(FOR_EDGE, to_controller())));
            }
        }
    }

    /// Installs separate flows for neighbor discovery at an edge port, after the first such
    /// message, so that it can be metered apart from other frames, as ARP is.
    pub(crate) fn separate_discovery(&mut self, port: Port, kind: u8) {
        if RESOLUTION_KINDS.contains(&kind) {
            for key in discovery_keys(port) {
                self.flow(port.switch, key, Some(flow(FOR_EDGE, to_controller())));
            }
        }
    }

    /// Removes the flows of a port that is no edge port any longer, or is closed.
    pub(crate) fn close_edge(&mut self, port: Port) {
        for key in discovery_keys(port) {
            self.flow(port.switch, key, None);
        }
    }
}

/// The messages of neighbor discovery that request and announce addresses.
const RESOLUTION_KINDS: [u8; 2] = [ndp::SOLICITATION, ndp::ADVERTISEMENT];

fn discovery_keys(port: Port) -> impl Iterator<Item = FlowKey> {
    RESOLUTION_KINDS.into_iter().map(move |kind| {
        let matching = discovery(kind).in_port(PortNo(port.number));
        FlowKey::new(OF_PORT, matching)
    })
}

/// Returns the key of the flow towards a host.
fn host_key(host: HostKey) -> FlowKey {
    FlowKey::new(HOST, Match::new().eth_dst(host.mac).vlan_vid(host.vlan.field()))
}
