//! Resolves addresses by ARP and neighbor discovery: answers for nodes with their PMACs, and passes
//! other requests on to the hosts that may answer. Also decides from which hosts frames are
//! accepted.

use super::flood_guard::{FloodPurpose, LoopCheck};
use super::host_table::HostVerdict;
use super::neighbor_cache::{AddressResponder, ClaimVerdict};
use super::warnings::HostWarning;
use super::{HostForwarder, Output, PROBE_SOURCE, Surroundings};
use crate::api::MacAddr;
use crate::frames::loop_probe::LoopProbe;
use crate::frames::resolution::AddressResolution;
use crate::frames::vlan::{self, Tag, Vlan};
use crate::frames::{arp, ethertype, ndp, pmac};
use crate::intent::hosts::HostKey;
use cool_machine::Time;
use cool_topology::Port;
use core::net::{IpAddr, Ipv6Addr};
use tracing::debug;

/// Maximum length of a frame that is forwarded.
const FRAME_BYTES_MAX: usize = 16 << 10;

impl HostForwarder {
    /// Processes a frame that a port received: whole, and without its VLAN tag.
    pub(super) fn receive(
        &mut self,
        now: Time,
        network: &Surroundings<'_>,
        port: Port,
        frame: &[u8],
        tag: Tag,
        untagged: &[u8],
    ) {
        let served = self.is_served(now, network, port, frame);
        let discovery = ndp::kind(untagged).filter(|_| served);
        if let Some(kind) = discovery {
            self.outputs.push_back(Output::SeparateDiscovery { port, kind });
        }
        if ethertype(untagged) == Some(arp::ETHERTYPE) || discovery.is_some() {
            if let Some(message) = AddressResolution::read(untagged) {
                self.resolve(now, network, port, tag, &message, served);
            }
        } else if served {
            self.forward(now, network, port, tag, untagged);
        }
    }

    /// Returns whether a host at this port may have sent the frame. It may not have if the frame
    /// crossed a link between switches, or if it was flooded and has returned through another port.
    fn is_served(&mut self, now: Time, network: &Surroundings<'_>, port: Port, frame: &[u8]) -> bool {
        let settled = self.serves_hosts && self.edges.all().contains(&port);
        if frame.len() > FRAME_BYTES_MAX
            || !(settled || network.node_at(port).is_some())
            || !self.serves_hosts
        {
            return false;
        }
        let (tag, untagged) = vlan::untagged(frame);
        if let Some(probe) = LoopProbe::read(&untagged, &self.probe_key) {
            if self.floods.probe_received(now, port, tag, &probe) {
                self.edges.touch(port);
                self.hosts.port_down(port);
                self.warn(now, network, port, HostWarning::Loop);
            }
            return false;
        }
        match self.floods.check(now, port, frame) {
            LoopCheck::Fresh => true,
            LoopCheck::Looped => false,
            LoopCheck::Suspicious => {
                // In the VLAN of the frame, because others may not be connected.
                if let Some(round) = self.floods.start_probes(now, tag) {
                    self.send_probes(&round);
                }
                false
            }
        }
    }

    /// Answers a request for a node's address with its PMAC, and passes other messages on.
    fn resolve(
        &mut self,
        now: Time,
        network: &Surroundings<'_>,
        port: Port,
        tag: Tag,
        message: &AddressResolution<'_>,
        served: bool,
    ) {
        let key = HostKey { mac: message.sender(), vlan: tag.vlan() };
        if served && !self.accept_sender(now, network, port, key, Some(message)) {
            return;
        }
        // Others know nodes by their PMACs only.
        let sender = shown_address(network, key);
        if let Some(address) = message.requested_address() {
            if let Some((name, responder)) = self.responder(now, network, key.vlan, address) {
                return self.answer_for(now, network, &name, responder, port, tag, message, sender);
            }
            if address == IpAddr::V6(ndp::link_local(PROBE_SOURCE)) {
                return self.send(port, tag.put(message.reply(PROBE_SOURCE, false)));
            }
        }
        if !(self.serves_hosts && served && message.destination() != PROBE_SOURCE) {
            return;
        }
        let requested = message.requested_address();
        match requested.and_then(|address| self.hosts.resolve(now, key.vlan, address)) {
            // The switch at that port has forwarded the request itself.
            Some((_, at)) if at == port => {}
            Some((host, at)) => {
                if let Some(name) = network.node_of(key) {
                    self.pmacs.record(now, at, name);
                }
                self.send(at, tag.put(message.forwarded(sender, host.mac)));
            }
            None => {
                let (to, purpose) = (message.destination(), FloodPurpose::Address);
                self.deliver(now, network, port, tag, |to| message.forwarded(sender, to), to, purpose);
            }
        }
    }

    /// Answers a request for a node's address with its PMAC, or lets the node answer.
    #[expect(clippy::too_many_arguments, reason = "a request with all that is known of it")]
    fn answer_for(
        &mut self,
        now: Time,
        network: &Surroundings<'_>,
        name: &str,
        responder: AddressResponder,
        port: Port,
        tag: Tag,
        message: &AddressResolution<'_>,
        sender: MacAddr,
    ) {
        let Some(target) = network.place_of(name) else {
            debug!(%port, node = name, "a request concerns a node that is not located yet");
            return;
        };
        // A node that probes whether its own address is in use must get no answer.
        if target == port {
            return;
        }
        match (responder, network.pmac_at(target), network.nodes.get(name)) {
            (AddressResponder::Controller { router }, Some(pmac), _) => {
                self.pmacs.record(now, port, name);
                self.send(port, tag.put(message.reply(pmac, router)));
            }
            (AddressResponder::Node, _, Some(node)) => {
                self.send(target, tag.put(message.forwarded(sender, node.mac)));
            }
            _ => {}
        }
    }

    /// Records the sender of a frame, and its address if the frame claims one. Returns whether the
    /// frame may be processed further.
    pub(super) fn accept_sender(
        &mut self,
        now: Time,
        network: &Surroundings<'_>,
        port: Port,
        key: HostKey,
        message: Option<&AddressResolution<'_>>,
    ) -> bool {
        if key.mac == PROBE_SOURCE || pmac::rack(key.mac).is_some() {
            return false;
        }
        let address = message.and_then(AddressResolution::claimed_address);
        if let Some(name) = self.contested_node(now, network, port, key, address) {
            self.warn(now, network, port, HostWarning::ClaimsNodeAddress(key, name));
            return false;
        }
        let address = address.filter(|_| !message.is_some_and(AddressResolution::is_shared));
        let router = message.and_then(AddressResolution::router);
        // The agent of a node has registered one address; only further ones must be recorded.
        if let Some(name) = network.node_of(key).map(str::to_owned) {
            match address {
                Some(ip @ IpAddr::V4(_)) if network.nodes.registered(key.vlan, ip).is_none() => {}
                Some(IpAddr::V6(ip)) => {
                    let known = self.neighbors.on_announcement(now, key.vlan, ip, &name, router);
                    self.probe_unless(known, port, key, ip);
                    return true;
                }
                _ => return true,
            }
        }
        if !self.serves_hosts {
            return false;
        }
        let warning = match self.hosts.on_frame(now, port, key, address) {
            HostVerdict::Accepted => {
                router.into_iter().for_each(|router| self.hosts.set_router(key, router));
                if let Some(IpAddr::V6(ip)) = address {
                    let known = self.hosts.get(key).is_some_and(|host| host.router.is_some());
                    self.probe_unless(known, port, key, ip);
                }
                return true;
            }
            HostVerdict::TooManyHosts => HostWarning::TooManyHosts,
            HostVerdict::MovesTooOften => HostWarning::MovesTooOften(key),
        };
        self.warn(now, network, port, warning);
        false
    }

    /// Probes the owner of an IPv6 address unless it is known whether that is a router, because
    /// answers and announcements on its behalf must state it.
    fn probe_unless(&mut self, known: bool, port: Port, key: HostKey, address: Ipv6Addr) {
        if !known {
            self.send(port, key.vlan.put(ndp::probe(key.mac, address, PROBE_SOURCE)));
        }
    }

    /// Returns the node that owns the Ethernet or IP address in this frame, if another machine has
    /// sent the frame.
    fn contested_node(
        &mut self,
        now: Time,
        network: &Surroundings<'_>,
        port: Port,
        key: HostKey,
        address: Option<IpAddr>,
    ) -> Option<String> {
        let node = network.nodes.with_mac(key.mac);
        if let Some(name) = node.filter(|name| network.place_of(name) != Some(port)) {
            return Some(name.to_owned());
        }
        let holder = self.holder(network, key.vlan, address?).filter(|name| node != Some(name.as_str()))?;
        let IpAddr::V6(ip) = address? else { return Some(holder) };
        if network.nodes.registered(key.vlan, ip.into()).is_some() {
            return Some(holder);
        }
        // No agent has registered this address: it is the node's only as long as the node answers
        // for it.
        match self.neighbors.claim(now, key.vlan, ip) {
            ClaimVerdict::Granted => return None,
            ClaimVerdict::Refused => {}
            ClaimVerdict::Doubted => {
                let place = network.place_of(&holder);
                if let (Some(place), Some(node)) = (place, network.nodes.get(&holder)) {
                    self.send(place, key.vlan.put(ndp::probe(node.mac, ip, PROBE_SOURCE)));
                }
            }
        }
        Some(holder)
    }

    /// Returns the node that has an address: as its agent registered, or as the node itself
    /// announced.
    fn holder(&self, network: &Surroundings<'_>, vlan: Vlan, ip: IpAddr) -> Option<String> {
        let announced = || match ip {
            IpAddr::V4(_) => None,
            IpAddr::V6(ip) => self.neighbors.holder(vlan, ip),
        };
        network.nodes.registered(vlan, ip).or_else(announced).map(str::to_owned)
    }

    /// Returns the node that has a requested address, and which side must answer the request.
    fn responder(
        &mut self,
        now: Time,
        network: &Surroundings<'_>,
        vlan: Vlan,
        ip: IpAddr,
    ) -> Option<(String, AddressResponder)> {
        let registered = network.nodes.registered(vlan, ip).map(str::to_owned);
        match ip {
            // ARP does not distinguish routers from other nodes.
            IpAddr::V4(_) => Some((registered?, AddressResponder::Controller { router: false })),
            IpAddr::V6(requested) => {
                let found = self.neighbors.resolve(now, vlan, requested);
                let Some(name) = registered else { return found.map(|(name, by)| (name.to_owned(), by)) };
                // An agent registers an address, but not whether its node is a router.
                let by = found.filter(|(holder, _)| *holder == name).map(|(_, by)| by);
                Some((name, by.unwrap_or(AddressResponder::Node)))
            }
        }
    }

    /// Returns the addresses of a node, each with whether the node is a router if that is known.
    pub(super) fn addresses(&self, network: &Surroundings<'_>, name: &str) -> Vec<(IpAddr, Option<bool>)> {
        network.nodes.get(name).map(|node| self.neighbors.addresses_with(node)).unwrap_or_default()
    }
}

/// Returns the Ethernet address by which others of its VLAN know a sender: for a node, its PMAC.
fn shown_address(network: &Surroundings<'_>, key: HostKey) -> MacAddr {
    let port = network.node_of(key).and_then(|name| network.place_of(name));
    port.and_then(|port| network.pmac_at(port)).unwrap_or(key.mac)
}
