//! Frames that switches hand in, and that leave by their ports: announcements, questions and answers for addresses, and
//! what hosts without an agent say to all or to somebody who is not known.

use super::Network;
use super::carrier::{ASKER, HostWarning};
use super::floods::{Arrival, Purpose};
use super::hosts::Heard;
use super::switches::Switch;
use crate::fabric::api::{MacAddr, Unicast};
use crate::fabric::frames::vlan::{Tag, Vlan};
use crate::fabric::frames::{arp, ethertype, pmac, vlan};
use crate::fabric::intent::hosts::HostKey;
use cool_machine::{Machine, Time};
use cool_topology::discovery::Input;
use cool_topology::lldp::Announcement;
use cool_topology::{DatapathId, Port, lldp};
use core::net::IpAddr;
use std::collections::BTreeMap;
use tracing::debug;

/// Ports that one message to a switch names.
const PORTS_AT_ONCE: usize = 1024;
/// The longest frame that is carried.
const MAX_FRAME: usize = 16 << 10;
/// Bridges keep to themselves what is for these, up to the last four bits (IEEE 802.1D, 7.12.6).
const BRIDGES: [u8; 5] = [0x01, 0x80, 0xc2, 0x00, 0x00];

impl Network {
    pub(crate) fn packet_in(&mut self, now: Time, port: Port, frame: &[u8]) {
        let (tag, plain) = vlan::untagged(frame);
        match ethertype(&plain) {
            Some(lldp::ETHERTYPE) => {
                let before = self.discovery.refused();
                self.discovery.handle(now, Input::Received(port, &plain));
                let refused = self.discovery.refused();
                if refused != before {
                    self.telemetry.refused_lldp(refused);
                } else {
                    self.note_vlan(port, tag.vlan(), &plain);
                }
            }
            Some(kind) if self.config.unicast == Unicast::Routed => {
                let carried = self.is_carried(now, port, frame);
                match kind {
                    arp::ETHERTYPE => self.arp(now, port, tag, &plain, carried),
                    _ if carried => self.carry(now, port, tag, &plain),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    /// A node is in the segment in which its own LLDP is heard, this frame.
    fn note_vlan(&mut self, port: Port, vlan: Vlan, frame: &[u8]) {
        let Some(name) = self.node_at(port).filter(|name| self.nodes.vlan(name) != vlan) else { return };
        let heard = Announcement::decode(frame).map(|unverified| unverified.announcement);
        if matches!(heard, Ok(Announcement::Node { name: heard, .. }) if heard == name) {
            self.nodes.note_vlan(&name, vlan);
            self.changes.nodes.insert(name);
        }
    }

    /// Whether a frame that came by a port may be a host's: not over a link, and not round by another port.
    fn is_carried(&mut self, now: Time, port: Port, frame: &[u8]) -> bool {
        let settled = self.carrier.as_ref().is_some_and(|carrier| carrier.edges.all().contains(&port));
        if frame.len() > MAX_FRAME || !(settled || self.node_at(port).is_some()) {
            return false;
        }
        let Some(carrier) = &mut self.carrier else { return false };
        match carrier.floods.arrived(now, port, frame) {
            Arrival::Fresh => true,
            Arrival::Round => false,
            Arrival::Closes => {
                carrier.edges.touch(port);
                carrier.hosts.port_down(port);
                self.note(now, port, HostWarning::Round);
                false
            }
        }
    }

    /// Answers for nodes with their PMACs; what is asked of others goes to them.
    fn arp(&mut self, now: Time, port: Port, tag: Tag, frame: &[u8], carried: bool) {
        let Some(arp) = arp::Arp::read(frame) else { return };
        let key = HostKey { mac: arp.sender, vlan: tag.vlan() };
        let address = (!arp.sender_ip.is_unspecified()).then_some(IpAddr::V4(arp.sender_ip));
        if carried && !self.hear(now, port, key, address) {
            return;
        }
        if !arp.reply && self.nodes.with_ip(key.vlan, arp.target_ip).is_some() {
            return self.answer_arp(port, tag, &arp);
        }
        if !carried {
            return;
        }
        // Nodes are known to others by their PMACs.
        let arp = arp::Arp { sender: self.shown(key), ..arp };
        let Some(carrier) = &mut self.carrier else { return };
        if arp.reply && arp.target == ASKER {
            return;
        }
        if arp.reply {
            return self.deliver(now, port, tag, |to| arp::Arp { target: to, ..arp }.frame(to), arp.target);
        }
        match carrier.hosts.ask(now, key.vlan, arp.target_ip.into()) {
            // A switch at that port has carried the question itself.
            Some((_, at)) if at == port => {}
            Some((host, at)) => self.send(at, tag.put(arp.frame(host.mac))),
            None => self.flood(now, port, tag.put(arp.frame(MacAddr::broadcast())), Purpose::Address),
        }
    }

    /// Answers for the node asked for with its PMAC.
    fn answer_arp(&self, port: Port, tag: Tag, request: &arp::Arp) {
        let Some(name) = self.nodes.with_ip(tag.vlan(), request.target_ip) else { return };
        let Some(target) = self.discovery.graph().host(name) else {
            debug!(%port, node = name, "ARP request for a node that is not located yet");
            return;
        };
        // Who looks whether its own address is in use must not be told so.
        if target == port {
            return;
        }
        if let Some(pmac) = self.pmac_at(target) {
            self.send(port, tag.put(request.answer(pmac)));
        }
    }

    /// Takes note of who speaks at a port; returns whether it is to be listened to.
    fn hear(&mut self, now: Time, port: Port, key: HostKey, address: Option<IpAddr>) -> bool {
        if key.mac == ASKER || pmac::rack(key.mac).is_some() {
            return false;
        }
        let holder = match address {
            Some(IpAddr::V4(ip)) => self.nodes.with_ip(key.vlan, ip),
            _ => None,
        };
        let node = self.nodes.with_mac(key.mac);
        let at = |name: &str| self.discovery.graph().host(name) == Some(port);
        let taken = node.filter(|name| !at(name)).or(holder.filter(|name| node != Some(*name)));
        if let Some(name) = taken {
            let warning = HostWarning::TakesNode(key, name.to_owned());
            self.note(now, port, warning);
            return false;
        }
        // Of a node, in its own segment, only what its agent has not said is to be kept: further addresses.
        let own = node.is_some_and(|name| self.nodes.vlan(name) == key.vlan);
        if own && (address.is_none() || holder.is_some()) {
            return true;
        }
        let Some(carrier) = &mut self.carrier else { return false };
        let warning = match carrier.hosts.heard(now, port, key, address) {
            Heard::Believed => return true,
            Heard::TooMany => HostWarning::TooMany,
            Heard::MovesTooOften => HostWarning::MovesTooOften(key),
        };
        self.note(now, port, warning);
        false
    }

    /// Carries what comes by a host's port and is for all, or for nobody to whom switches know the way.
    fn carry(&mut self, now: Time, port: Port, tag: Tag, frame: &[u8]) {
        let [to, from] = [0, 6].map(|at| {
            let octets = frame.get(at..at + 6).and_then(|octets| <[u8; 6]>::try_from(octets).ok());
            octets.map(MacAddr::from)
        });
        let (Some(to), Some(from)) = (to, from) else { return };
        let is_for_bridges = to.octets()[..5] == BRIDGES && to.octets()[5] < 16;
        if !from.is_unicast() || from.is_zero() || is_for_bridges {
            return;
        }
        if self.hear(now, port, HostKey { mac: from, vlan: tag.vlan() }, None) {
            self.deliver(now, port, tag, |_| frame.to_vec(), to);
        }
    }

    /// Hands a frame to who has an address, or to all if nobody is known to have it.
    fn deliver(
        &mut self,
        now: Time,
        from: Port,
        tag: Tag,
        frame: impl FnOnce(MacAddr) -> Vec<u8>,
        to: MacAddr,
    ) {
        let Some(carrier) = &self.carrier else { return };
        let host = HostKey { mac: to, vlan: tag.vlan() };
        let in_segment = |name: &&str| self.nodes.vlan(name) == host.vlan;
        let node = self.nodes.with_mac(to).filter(in_segment);
        let node = node.and_then(|name| self.discovery.graph().host(name));
        let place = match pmac::port(to, |rack| self.tors.get(&rack).copied()) {
            // Only a node has one.
            Some(port) => {
                let node = self.node_at(port).filter(|name| in_segment(&name.as_str()));
                let Some(node) = node.and_then(|name| self.nodes.get(&name)) else { return };
                Some((port, node.mac))
            }
            None if pmac::rack(to).is_some() => return,
            None => node.or_else(|| carrier.hosts.get(host).map(|host| host.port)).map(|port| (port, to)),
        };
        match place {
            Some((port, _)) if port == from => {}
            Some((port, mac)) => self.send(port, tag.put(frame(mac))),
            None => self.flood(now, from, tag.put(frame(to)), Purpose::Other),
        }
    }

    /// Sends a frame to all edge ports but the one where it came from.
    fn flood(&mut self, now: Time, from: Port, frame: Vec<u8>, purpose: Purpose) {
        let Some(carrier) = &mut self.carrier else { return };
        let copies = carrier.edges.all().len();
        if !carrier.floods.admit(now, from, &frame, purpose, copies) {
            return debug!(%from, "too many frames for all; one is dropped");
        }
        let mut ports: BTreeMap<DatapathId, Vec<u32>> = BTreeMap::new();
        for port in carrier.edges.all() {
            if *port != from && !carrier.floods.is_closed(*port) {
                ports.entry(port.switch).or_default().push(port.number);
            }
        }
        for (switch, numbers) in ports {
            for some in numbers.chunks(PORTS_AT_ONCE) {
                self.send_to(switch, some.to_vec(), frame.clone());
            }
        }
    }

    /// Tells all hosts and nodes something about one.
    pub(super) fn announce(&mut self, now: Time, about: Port, frame: Vec<u8>) {
        if self.carrier.is_some() {
            self.flood(now, about, frame, Purpose::Address);
        }
    }

    /// The PMAC of the node at a port.
    pub(super) fn pmac_at(&self, port: Port) -> Option<MacAddr> {
        pmac::of(self.racks.number(port.switch)?, port.number)
    }

    /// The address by which others of its segment know who has this one.
    fn shown(&self, key: HostKey) -> MacAddr {
        let node = self.nodes.with_mac(key.mac).filter(|name| self.nodes.vlan(name) == key.vlan);
        let port = node.and_then(|name| self.discovery.graph().host(name));
        port.and_then(|port| self.pmac_at(port)).unwrap_or(key.mac)
    }

    /// A node is at another place: whoever knows its PMAC hears the new one.
    pub(crate) fn announce_move(&self, name: &str, place: Port) {
        if self.config.unicast == Unicast::Normal {
            return;
        }
        let (Some(node), Some(pmac)) = (self.nodes.get(name), self.pmac_at(place)) else { return };
        let frame = self.nodes.vlan(name).put(arp::announcement(node.ip, pmac));
        for (_, port) in self.discovery.graph().hosts().filter(|(_, port)| *port != place) {
            self.send(port, frame.clone());
        }
        let of_hosts = self.carrier.iter().flat_map(|carrier| carrier.hosts.ports());
        for port in of_hosts.filter(|port| self.node_at(*port).is_none()) {
            self.send(port, frame.clone());
        }
    }

    /// Sends a frame out of a port; it may be lost, like any frame.
    pub(crate) fn send(&self, port: Port, frame: Vec<u8>) {
        self.send_to(port.switch, vec![port.number], frame);
    }

    fn send_to(&self, switch: DatapathId, ports: Vec<u32>, frame: Vec<u8>) {
        if let Some(handle) = self.switches.get(switch).and_then(Switch::handle)
            && handle.packets.try_send((ports, frame)).is_err()
        {
            debug!(%switch, "too many frames wait; one is dropped");
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
            let frame = self.nodes.vlan(name).put(arp::announcement(node.ip, node.mac));
            for end in ends.get(&place.switch).into_iter().flatten() {
                self.send(*end, frame.clone());
            }
        }
    }
}
