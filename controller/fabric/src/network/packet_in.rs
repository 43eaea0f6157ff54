//! Packet-ins and packet-outs: passes LLDP to discovery and other frames to the host forwarder, and
//! sends frames to switches.

use super::Network;
use super::acknowledgments::AckWaiter;
use super::host_forwarder::{Input as HostInput, Output as HostOutput, Surroundings};
use super::switch_table::SwitchState;
use crate::api::Unicast;
use crate::frames::vlan::{self, Vlan};
use crate::frames::{arp, ethertype, loop_probe};
use cool_machine::{Machine, Time};
use cool_topology::discovery::Input;
use cool_topology::lldp::Announcement;
use cool_topology::{DatapathId, Port, lldp};
use core::net::{IpAddr, Ipv4Addr};
use std::collections::BTreeMap;
use tracing::debug;

impl Network {
    /// Processes a frame that a port has handed to the controller.
    pub(super) fn packet_in(&mut self, now: Time, port: Port, frame: &[u8]) {
        let (tag, untagged) = vlan::untagged(frame);
        if tag.is_priority_only() {
            self.intent.accept_priority_tags();
        }
        match ethertype(&untagged) {
            Some(lldp::ETHERTYPE) if self.group_test_returned(now, &untagged) => {}
            Some(lldp::ETHERTYPE) => {
                let before = self.discovery.refused();
                self.discovery.handle(now, Input::Received(port, &untagged));
                if let Some(normal) = &mut self.normal
                    && self.discovery.heard_switch(port).is_some()
                {
                    normal.switch_heard(port);
                }
                let refused = self.discovery.refused();
                if refused != before {
                    self.telemetry.refused_lldp(refused);
                } else {
                    self.record_vlan(now, port, tag.vlan(), &untagged);
                }
            }
            Some(loop_probe::ETHERTYPE) if self.normal.is_some() => {
                if let Some(normal) = &mut self.normal {
                    normal.received(port, &untagged);
                }
            }
            // An observer receives copies of packets that other controllers handle.
            Some(_) if self.config.unicast == Unicast::Routed && !self.config.observes => {
                self.handle_hosts(now, HostInput::Frame { port, frame, tag, untagged: &untagged });
            }
            _ => {}
        }
    }

    /// Records the VLAN of a node: the one in which its own LLDP, this frame, was received.
    fn record_vlan(&mut self, now: Time, port: Port, vlan: Vlan, frame: &[u8]) {
        // Most networks use no VLANs, and then nothing has to be looked up.
        if vlan == Vlan::default() && self.nodes.are_untagged() {
            return;
        }
        let node = self.surroundings().node_at(port);
        let Some(name) = node.filter(|name| self.nodes.vlan(name) != vlan) else { return };
        let received = Announcement::decode(frame).map(|unverified| unverified.announcement);
        if matches!(received, Ok(Announcement::Node { name: announced, .. }) if announced == name) {
            if self.nodes.set_vlan(&name, vlan) {
                self.handle_hosts(now, HostInput::NodeReset(&name));
            }
            self.changes.nodes.insert(name);
        }
    }

    /// Returns the part of the network that the host forwarder may read.
    pub(super) fn surroundings(&self) -> Surroundings<'_> {
        let Network { nodes, discovery, silent, racks, tors, switches, .. } = self;
        Surroundings { nodes, discovery, silent, racks, tors, switches }
    }

    /// Passes an input to the host forwarder, and executes its outputs.
    pub(super) fn handle_hosts(&mut self, now: Time, input: HostInput<'_>) {
        let Network { host_forwarder, nodes, discovery, silent, racks, tors, switches, .. } = self;
        let surroundings = Surroundings { nodes, discovery, silent, racks, tors, switches };
        host_forwarder.handle(now, &surroundings, input);
        self.drain_hosts();
    }

    /// Executes the outputs of the host forwarder.
    pub(super) fn drain_hosts(&mut self) {
        while let Some(output) = self.host_forwarder.next_output() {
            match output {
                HostOutput::Send { switch, ports, frame } => self.send_to(switch, ports, frame),
                HostOutput::PlaceHost { host, rack, port } => self.intent.place_host(host, rack, port),
                HostOutput::WithdrawHost(host) => {
                    for switch in self.intent.displace_host(host) {
                        self.acknowledgments.expect(AckWaiter::Host(host), switch);
                    }
                }
                HostOutput::WithdrawalEnded(host) => self.acknowledgments.forget(AckWaiter::Host(host)),
                HostOutput::SetEdge { port, open } => self.intent.edge(port, open),
                HostOutput::CloseEdge(port) => self.intent.close_edge(port),
                HostOutput::SeparateDiscovery { port, kind } => self.intent.separate_discovery(port, kind),
            }
        }
    }

    /// Sends a frame out of a port. The frame may be lost, like any frame.
    pub(super) fn send(&self, port: Port, frame: Vec<u8>) {
        self.send_to(port.switch, vec![port.number], frame);
    }

    fn send_to(&self, switch: DatapathId, ports: Vec<u32>, frame: Vec<u8>) {
        if let Some(handle) = self.switches.get(switch).and_then(SwitchState::handle)
            && handle.packets.try_send((ports, frame)).is_err()
        {
            debug!(%switch, "send queue full; a frame was dropped");
        }
    }

    /// Makes switches that learn addresses learn the nodes' places anew, by frames that seem to
    /// come from the nodes.
    pub(super) fn reannounce(&mut self, now: Time) {
        let Some(tree) = self.normal.as_mut().and_then(|normal| normal.reannounce(now)) else { return };
        let mut ends: BTreeMap<DatapathId, Vec<Port>> = BTreeMap::new();
        for end in tree.iter().flat_map(|link| [link.a, link.b]) {
            ends.entry(end.switch).or_default().push(end);
        }
        for (name, place) in self.discovery.graph().hosts() {
            let Some(node) = self.nodes.get(name) else { continue };
            // Only the source of the frame counts: without IPv4 the announced address is
            // unspecified.
            let ip = match node.ip {
                IpAddr::V4(ip) => ip,
                IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
            };
            let frame = self.nodes.vlan(name).put(arp::announcement(ip, node.mac));
            for end in ends.get(&place.switch).into_iter().flatten() {
                self.send(*end, frame.clone());
            }
        }
    }
}
