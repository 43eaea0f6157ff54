//! Frames that switches hand in, and that leave by their ports: announcements, questions and answers for addresses.

use super::Network;
use super::switches::Switch;
use crate::fabric::api::Unicast;
use crate::fabric::frames::{arp, pmac, vlan};
use cool_machine::{Machine, Time};
use cool_topology::discovery::Input;
use cool_topology::{DatapathId, Port, lldp};
use std::collections::BTreeMap;
use tracing::debug;

impl Network {
    pub(crate) fn packet_in(&mut self, now: Time, port: Port, frame: &[u8]) {
        let (tag, frame) = vlan::untagged(frame);
        let Some(&[high, low]) = frame.get(12..14) else { return };
        match u16::from_be_bytes([high, low]) {
            lldp::ETHERTYPE => {
                let before = self.discovery.refused();
                self.discovery.handle(now, Input::Received(port, &frame));
                let refused = self.discovery.refused();
                if refused != before {
                    self.telemetry.refused_lldp(refused);
                }
            }
            arp::ETHERTYPE => self.answer_arp(port, tag, &frame),
            _ => {}
        }
    }

    /// Answers for the node asked for with its PMAC.
    fn answer_arp(&self, port: Port, tag: vlan::Tag, frame: &[u8]) {
        if self.config.unicast == Unicast::Normal {
            return;
        }
        let Some(request) = arp::Request::read(frame) else { return };
        let Some(name) = self.nodes.with_ip(request.target_ip) else { return };
        let Some(target) = self.discovery.graph().host(name) else {
            debug!(%port, node = name, "ARP request for a node that is not located yet");
            return;
        };
        // Who looks whether its own address is in use must not be told so.
        if target == port {
            return;
        }
        let rack = self.racks.number(target.switch);
        if let Some(pmac) = rack.and_then(|rack| pmac::of(rack, target.number)) {
            self.send(port, tag.put(request.answer(pmac)));
        }
    }

    /// A node is at another place: whoever knows its PMAC hears the new one.
    pub(crate) fn announce_move(&self, node: &str, place: Port) {
        if self.config.unicast == Unicast::Normal {
            return;
        }
        let (Some(node), Some(rack)) = (self.nodes.get(node), self.racks.number(place.switch)) else {
            return;
        };
        let Some(pmac) = pmac::of(rack, place.number) else { return };
        let frame = arp::announcement(node.ip, pmac);
        for (_, port) in self.discovery.graph().hosts().filter(|(_, port)| *port != place) {
            self.send(port, frame.clone());
        }
    }

    /// Sends a frame out of a port; it may be lost, like any frame.
    pub(crate) fn send(&self, port: Port, frame: Vec<u8>) {
        if let Some(handle) = self.switches.get(port.switch).and_then(Switch::handle)
            && handle.packets.try_send((port.number, frame)).is_err()
        {
            debug!(%port, "too many frames wait; one is dropped");
        }
    }

    /// Switches that forward by what they have learned learn anew where nodes are, as if these had sent something.
    pub(crate) fn reannounce(&mut self, now: Time) {
        let Some(tree) = self.normal.as_mut().and_then(|normal| normal.reannounce(now)) else { return };
        let mut ends: BTreeMap<DatapathId, Vec<Port>> = BTreeMap::new();
        for end in tree.iter().flat_map(|link| [link.a, link.b]) {
            ends.entry(end.switch).or_default().push(end);
        }
        for (name, place) in self.discovery.graph().hosts() {
            let Some(node) = self.nodes.get(name) else { continue };
            let frame = arp::announcement(node.ip, node.mac);
            for end in ends.get(&place.switch).into_iter().flatten() {
                self.send(*end, frame.clone());
            }
        }
    }
}
