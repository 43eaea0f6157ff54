//! Frames that switches hand in, and that leave by their ports: announcements, questions and answers for addresses, and
//! what hosts without an agent say to all or to somebody who is not known.

use super::Network;
use super::carrier::{ASKER, HostWarning};
use super::flood_guard::{FloodPurpose, LoopCheck};
use super::host_table::HostVerdict;
use super::neighbor_cache::{AddressResponder, ClaimVerdict};
use super::switch_table::SwitchState;
use crate::api::{MacAddr, Unicast};
use crate::frames::resolution::{self, AddressResolution};
use crate::frames::vlan::{Tag, Vlan};
use crate::frames::{arp, ethertype, ndp, pmac, vlan};
use crate::intent::hosts::HostKey;
use cool_machine::{Machine, Time};
use cool_topology::discovery::Input;
use cool_topology::lldp::Announcement;
use cool_topology::{DatapathId, Port, lldp};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
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
                    self.set_vlan(port, tag.vlan(), &plain);
                }
            }
            Some(kind) if self.config.unicast == Unicast::Routed => {
                let carried = self.is_carried(now, port, frame);
                let discovery = ndp::kind(&plain).filter(|_| carried);
                if let Some(kind) = discovery {
                    self.intent.separate_discovery(port, kind);
                }
                if kind == arp::ETHERTYPE || discovery.is_some() {
                    if let Some(said) = AddressResolution::read(&plain) {
                        self.resolve(now, port, tag, &said, carried);
                    }
                } else if carried {
                    self.carry(now, port, tag, &plain);
                }
            }
            _ => {}
        }
    }

    /// A node is in the segment in which its own LLDP is heard, this frame.
    fn set_vlan(&mut self, port: Port, vlan: Vlan, frame: &[u8]) {
        // Where none is used, as mostly, nothing has to be looked up.
        if vlan == Vlan::default() && self.nodes.are_untagged() {
            return;
        }
        let Some(name) = self.node_at(port).filter(|name| self.nodes.vlan(name) != vlan) else { return };
        let heard = Announcement::decode(frame).map(|unverified| unverified.announcement);
        if matches!(heard, Ok(Announcement::Node { name: heard, .. }) if heard == name) {
            self.nodes.set_vlan(&name, vlan);
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
            LoopCheck::Fresh => true,
            LoopCheck::Looped => false,
            LoopCheck::ClosesPort => {
                carrier.edges.touch(port);
                carrier.hosts.port_down(port);
                self.note(now, port, HostWarning::Round);
                false
            }
        }
    }

    /// Answers for nodes with their PMACs; what is asked of others goes to them.
    fn resolve(&mut self, now: Time, port: Port, tag: Tag, said: &AddressResolution<'_>, carried: bool) {
        let key = HostKey { mac: said.sender(), vlan: tag.vlan() };
        if carried && !self.hear(now, port, key, Some(said)) {
            return;
        }
        // NodeRegistry are known to others by their PMACs.
        let sender = self.shown(key);
        if let Some(address) = said.asks() {
            if let Some((name, answerer)) = self.nodes.ask(now, key.vlan, address) {
                let name = name.to_owned();
                return self.answer_for(&name, answerer, port, tag, said, sender);
            }
            if address == IpAddr::V6(ndp::link_local(ASKER)) {
                return self.send(port, tag.put(said.answer(ASKER, false)));
            }
        }
        let Some(carrier) = self.carrier.as_mut().filter(|_| carried && said.to() != ASKER) else { return };
        match said.asks().and_then(|address| carrier.hosts.ask(now, key.vlan, address)) {
            // A switch at that port has carried the question itself.
            Some((_, at)) if at == port => {}
            Some((host, at)) => self.send(at, tag.put(said.frame(sender, host.mac))),
            None => {
                self.deliver(now, port, tag, |to| said.frame(sender, to), said.to(), FloodPurpose::Address);
            }
        }
    }

    /// Answers with its PMAC for the node asked for, or lets it answer itself.
    fn answer_for(
        &self,
        name: &str,
        answerer: AddressResponder,
        port: Port,
        tag: Tag,
        said: &AddressResolution<'_>,
        sender: MacAddr,
    ) {
        let Some(target) = self.place_of(name) else {
            debug!(%port, node = name, "an address is asked for of a node that is not located yet");
            return;
        };
        // Who looks whether its own address is in use must not be told so.
        if target == port {
            return;
        }
        match (answerer, self.pmac_at(target), self.nodes.get(name)) {
            (AddressResponder::Controller { router }, Some(pmac), _) => {
                self.send(port, tag.put(said.answer(pmac, router)));
            }
            (AddressResponder::Node, _, Some(node)) => {
                self.send(target, tag.put(said.frame(sender, node.mac)))
            }
            _ => {}
        }
    }

    /// Takes note of who speaks at a port, and of its address if it says one; returns whether it is to be listened to.
    fn hear(&mut self, now: Time, port: Port, key: HostKey, said: Option<&AddressResolution<'_>>) -> bool {
        if key.mac == ASKER || pmac::rack(key.mac).is_some() {
            return false;
        }
        let address = said.and_then(AddressResolution::says);
        if let Some(name) = self.taken(now, port, key, address) {
            self.note(now, port, HostWarning::TakesNode(key, name));
            return false;
        }
        let (address, router) = (
            address.filter(|_| !said.is_some_and(AddressResolution::is_shared)),
            said.and_then(AddressResolution::router),
        );
        // Of a node, in its own segment, only what its agent has not said is to be kept: further addresses.
        let node = self.nodes.with_mac(key.mac).filter(|name| self.nodes.vlan(name) == key.vlan);
        if let Some(name) = node.map(str::to_owned) {
            match address {
                Some(ip @ IpAddr::V4(_)) if self.nodes.with_ip(key.vlan, ip).is_none() => {}
                Some(IpAddr::V6(ip)) => {
                    let known = self.nodes.neighbors.heard(now, key.vlan, ip, &name, router);
                    self.probe_unless(known, port, key, ip);
                    return true;
                }
                _ => return true,
            }
        }
        let Some(carrier) = &mut self.carrier else { return false };
        let warning = match carrier.hosts.heard(now, port, key, address) {
            HostVerdict::Accepted => {
                router.into_iter().for_each(|router| carrier.hosts.set_router(key, router));
                if let Some(IpAddr::V6(ip)) = address {
                    let known = carrier.hosts.get(key).is_some_and(|host| host.router.is_some());
                    self.probe_unless(known, port, key, ip);
                }
                return true;
            }
            HostVerdict::TooMany => HostWarning::TooMany,
            HostVerdict::MovesTooOften => HostWarning::MovesTooOften(key),
        };
        self.note(now, port, warning);
        false
    }

    /// Who has said an address of IPv6, but not whether it is a router, is asked: only then can others be answered, or told of a
    /// change, in its name.
    fn probe_unless(&self, known: bool, port: Port, key: HostKey, address: Ipv6Addr) {
        if !known {
            self.send(port, key.vlan.put(ndp::probe(key.mac, address, ASKER)));
        }
    }

    /// The node whose Ethernet address, or other address, somebody else takes.
    fn taken(&mut self, now: Time, port: Port, key: HostKey, address: Option<IpAddr>) -> Option<String> {
        let node = self.nodes.with_mac(key.mac);
        if let Some(name) = node.filter(|name| self.place_of(name) != Some(port)) {
            return Some(name.to_owned());
        }
        let holder = self.nodes.with_ip(key.vlan, address?).filter(|name| node != Some(*name))?.to_owned();
        let IpAddr::V6(ip) = address? else { return Some(holder) };
        if self.nodes.registered(key.vlan, ip.into()).is_some() {
            return Some(holder);
        }
        // No agent has said so: a node has it as long as it answers for it.
        match self.nodes.neighbors.claim(now, key.vlan, ip) {
            ClaimVerdict::Granted => return None,
            ClaimVerdict::Refused => {}
            ClaimVerdict::Doubted => {
                let place = self.place_of(&holder);
                if let (Some(place), Some(node)) = (place, self.nodes.get(&holder)) {
                    self.send(place, key.vlan.put(ndp::probe(node.mac, ip, ASKER)));
                }
            }
        }
        Some(holder)
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
            self.deliver(now, port, tag, |_| frame.to_vec(), to, FloodPurpose::Other);
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
        purpose: FloodPurpose,
    ) {
        let Some(carrier) = &self.carrier else { return };
        let host = HostKey { mac: to, vlan: tag.vlan() };
        let in_segment = |name: &&str| self.nodes.vlan(name) == host.vlan;
        let node = self.nodes.with_mac(to).filter(in_segment);
        let node = node.and_then(|name| self.place_of(name));
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
            None => self.flood(now, from, tag.put(frame(to)), purpose),
        }
    }

    /// Sends a frame to all edge ports but the one where it came from.
    fn flood(&mut self, now: Time, from: Port, frame: Vec<u8>, purpose: FloodPurpose) {
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

    /// Tells all hosts and nodes of a segment by which Ethernet address the addresses of one of them are known now.
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

    /// The PMAC of the node at a port.
    pub(super) fn pmac_at(&self, port: Port) -> Option<MacAddr> {
        pmac::of(self.racks.number(port.switch)?, port.number)
    }

    /// The address by which others of its segment know who has this one.
    fn shown(&self, key: HostKey) -> MacAddr {
        let node = self.nodes.with_mac(key.mac).filter(|name| self.nodes.vlan(name) == key.vlan);
        let port = node.and_then(|name| self.place_of(name));
        port.and_then(|port| self.pmac_at(port)).unwrap_or(key.mac)
    }

    /// A node is at another place: whoever knows its PMAC hears the new one.
    pub(crate) fn announce_move(&self, name: &str, place: Port) {
        if self.config.unicast == Unicast::Normal {
            return;
        }
        let Some(pmac) = self.pmac_at(place) else { return };
        let of_nodes = self.discovery.graph().hosts().map(|(_, port)| port).chain(self.silent.ports());
        let of_nodes = of_nodes.filter(|port| *port != place);
        let of_hosts = self.carrier.iter().flat_map(|carrier| carrier.hosts.ports());
        let of_hosts = of_hosts.filter(|port| self.node_at(*port).is_none());
        let ports: Vec<Port> = of_nodes.chain(of_hosts).collect();
        for (address, router) in self.nodes.addresses(name) {
            let Some(frame) = resolution::announcement(address, pmac, router) else { continue };
            let frame = self.nodes.vlan(name).put(frame);
            ports.iter().for_each(|port| self.send(*port, frame.clone()));
        }
    }

    /// Sends a frame out of a port; it may be lost, like any frame.
    pub(crate) fn send(&self, port: Port, frame: Vec<u8>) {
        self.send_to(port.switch, vec![port.number], frame);
    }

    fn send_to(&self, switch: DatapathId, ports: Vec<u32>, frame: Vec<u8>) {
        if let Some(handle) = self.switches.get(switch).and_then(SwitchState::handle)
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
            // All that counts is who has sent it: where there is no IPv4, one about nobody does.
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
