//! Forwards frames to the one port behind which their destination is, or floods them to all edge
//! ports.

use super::flood_guard::{FloodPurpose, ProbeRound};
use super::{HostForwarder, Output, PROBE_SOURCE, Surroundings};
use crate::api::MacAddr;
use crate::frames::loop_probe::LoopProbe;
use crate::frames::vlan::{Tag, Vlan};
use crate::frames::{membership, pmac, resolution};
use crate::intent::hosts::HostKey;
use cool_machine::Time;
use cool_topology::{DatapathId, Port};
use core::net::IpAddr;
use std::collections::BTreeMap;
use tracing::debug;

/// Maximum number of ports in one message to a switch.
const PORTS_PER_MESSAGE: usize = 1024;
/// Prefix of the destination addresses that bridges never forward, up to the last four bits (IEEE
/// 802.1D, 7.12.6).
const BRIDGE_ADDRESSES: [u8; 5] = [0x01, 0x80, 0xc2, 0x00, 0x00];

impl HostForwarder {
    /// Forwards a frame of a host that is a broadcast, or has a destination for which switches have
    /// no flow. A message about memberships is snooped.
    pub(super) fn forward(
        &mut self,
        now: Time,
        network: &Surroundings<'_>,
        port: Port,
        tag: Tag,
        frame: &[u8],
    ) {
        let [to, from] = [0, 6].map(|at| {
            let octets = frame.get(at..at + 6).and_then(|octets| <[u8; 6]>::try_from(octets).ok());
            octets.map(MacAddr::from)
        });
        let (Some(to), Some(from)) = (to, from) else { return };
        let is_for_bridges = to.octets()[..5] == BRIDGE_ADDRESSES && to.octets()[5] < 16;
        if !from.is_unicast() || from.is_zero() || is_for_bridges {
            return;
        }
        if !self.accept_sender(now, network, port, HostKey { mac: from, vlan: tag.vlan() }, None) {
            return;
        }
        match membership::read(frame) {
            Some(message) => self.snoop(now, network, port, tag, frame, &message),
            None => {
                self.memberships.on_frame(to, tag.vlan());
                self.deliver(now, network, port, tag, |_| frame.to_vec(), to, FloodPurpose::Other);
            }
        }
    }

    /// Sends a frame to the port of its destination, or floods it if the destination is unknown.
    #[expect(clippy::too_many_arguments, reason = "a frame with all that is known of it")]
    pub(super) fn deliver(
        &mut self,
        now: Time,
        network: &Surroundings<'_>,
        from: Port,
        tag: Tag,
        frame: impl FnOnce(MacAddr) -> Vec<u8>,
        to: MacAddr,
        purpose: FloodPurpose,
    ) {
        if !self.serves_hosts {
            return;
        }
        let host = HostKey { mac: to, vlan: tag.vlan() };
        let node = network.node_of(host).and_then(|name| network.place_of(name));
        let place = match network.pmac_port(to) {
            // Only nodes have a PMAC.
            Some(port) => {
                let node = network.node_at(port).filter(|name| network.nodes.vlan(name) == host.vlan);
                let Some(node) = node.and_then(|name| network.nodes.get(&name)) else { return };
                Some((port, node.mac))
            }
            None if pmac::rack(to).is_some() => return,
            None => node.or_else(|| self.hosts.get(host).map(|host| host.port)).map(|port| (port, to)),
        };
        match place {
            Some((port, _)) if port == from => {}
            Some((port, mac)) => self.send(port, tag.put(frame(mac))),
            None => self.flood(now, from, tag.put(frame(to)), purpose),
        }
    }

    /// Sends a frame to all edge ports except the one that it came from.
    pub(super) fn flood(&mut self, now: Time, from: Port, frame: Vec<u8>, purpose: FloodPurpose) {
        if !self.serves_hosts {
            return;
        }
        let copies = self.edges.all().len();
        if !self.floods.admit(now, from, &frame, purpose, copies) {
            return debug!(%from, "flood budget exhausted; a frame was dropped");
        }
        let mut ports: BTreeMap<DatapathId, Vec<u32>> = BTreeMap::new();
        for port in self.open_edges().filter(|port| *port != from) {
            ports.entry(port.switch).or_default().push(port.number);
        }
        for (switch, numbers) in ports {
            self.send_to_ports(switch, &numbers, &frame);
        }
    }

    /// Returns the edge ports that are not closed.
    fn open_edges(&self) -> impl Iterator<Item = Port> + '_ {
        self.edges.all().iter().copied().filter(|port| !self.floods.is_closed(*port))
    }

    /// Sends a probe out of each open edge port.
    pub(super) fn send_probes(&mut self, round: &ProbeRound) {
        for port in self.open_edges().collect::<Vec<_>>() {
            let probe = LoopProbe { port, round: round.number }.frame(PROBE_SOURCE, &self.probe_key);
            for tag in &round.tags {
                self.send(port, tag.put(probe.clone()));
            }
        }
    }

    /// Announces to all hosts and nodes of a VLAN the Ethernet address by which addresses are
    /// reached now.
    pub(super) fn announce(
        &mut self,
        now: Time,
        about: Port,
        vlan: Vlan,
        addresses: &[(IpAddr, Option<bool>)],
        mac: MacAddr,
    ) {
        for (address, router) in addresses {
            if let Some(frame) = resolution::announcement(*address, mac, *router) {
                self.flood(now, about, vlan.put(frame), FloodPurpose::Address);
            }
        }
    }

    /// Announces the new PMAC of a node that has moved, because others still send to its old one.
    pub(super) fn announce_move(&mut self, network: &Surroundings<'_>, name: &str, place: Port) {
        let of_nodes = network.discovery.graph().hosts().map(|(_, port)| port).chain(network.silent.ports());
        let of_nodes = of_nodes.filter(|port| *port != place);
        let of_hosts = self.hosts.ports().filter(|_| self.serves_hosts);
        let of_hosts = of_hosts.filter(|port| network.node_at(*port).is_none());
        let ports: Vec<Port> = of_nodes.chain(of_hosts).collect();
        self.announce_node(network, name, &ports);
    }

    /// Announces the PMAC of a node at these ports.
    pub(super) fn announce_node(&mut self, network: &Surroundings<'_>, name: &str, ports: &[Port]) {
        let Some(pmac) = network.place_of(name).and_then(|place| network.pmac_at(place)) else { return };
        for (address, router) in self.addresses(network, name) {
            let Some(frame) = resolution::announcement(address, pmac, router) else { continue };
            let frame = network.nodes.vlan(name).put(frame);
            ports.iter().for_each(|port| self.send(*port, frame.clone()));
        }
    }

    /// Sends a frame out of these ports of a switch.
    pub(super) fn send_to_ports(&mut self, switch: DatapathId, ports: &[u32], frame: &[u8]) {
        for some in ports.chunks(PORTS_PER_MESSAGE) {
            self.outputs.push_back(Output::Send { switch, ports: some.to_vec(), frame: frame.to_vec() });
        }
    }

    /// Sends a frame out of one port.
    pub(super) fn send(&mut self, port: Port, frame: Vec<u8>) {
        self.outputs.push_back(Output::Send { switch: port.switch, ports: vec![port.number], frame });
    }
}
