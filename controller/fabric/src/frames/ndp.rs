//! Neighbor discovery for IPv6 (RFC 4861), as far as the controller answers for nodes and forwards
//! for hosts: the messages in which a sender states its own Ethernet address.

use cool_topology::MacAddr;
use cool_topology::checksum::{ICMPV6, icmpv6_checksum};
use core::net::Ipv6Addr;

/// EtherType of IPv6.
pub(crate) const ETHERTYPE: u16 = 0x86dd;
/// ICMPv6 types of the messages.
pub(crate) const ROUTER_SOLICITATION: u8 = 133;
pub(crate) const ROUTER_ADVERTISEMENT: u8 = 134;
pub(crate) const SOLICITATION: u8 = 135;
pub(crate) const ADVERTISEMENT: u8 = 136;

/// Extension headers that may precede ICMPv6: hop-by-hop options, routing, destination options.
const EXTENSIONS: [u8; 3] = [0, 43, 60];
/// Hop limit of messages that no router has forwarded.
const HOP_LIMIT: u8 = 255;
/// Offsets of the IPv6 header and of its payload.
const IP: usize = 14;
const PAYLOAD: usize = IP + 40;
/// Flags of an advertisement: the sender is a router, the message answers a request, and the
/// receiver must replace what it knows of the address.
const ROUTER: u8 = 1 << 7;
const SOLICITED: u8 = 1 << 6;
const OVERRIDE: u8 = 1 << 5;
/// Options that contain an Ethernet address, with their length in units of 8 bytes.
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;
const ADDRESS_UNITS: u8 = 1;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: MacAddr = MacAddr(0x33, 0x33, 0, 0, 0, 1);

/// A message that is valid by RFC 4861.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NeighborMessage<'a> {
    /// The frame up to the end of the message.
    frame: &'a [u8],
    /// Offset of the ICMPv6 header.
    at: usize,
    /// Ethernet addresses of the sender and of the receiver.
    pub(crate) sender: MacAddr,
    pub(crate) to: MacAddr,
    /// IPv6 addresses.
    source: Ipv6Addr,
    destination: Ipv6Addr,
}

/// Returns the ICMPv6 type if a frame is neighbor discovery, valid or not.
pub(crate) fn kind(frame: &[u8]) -> Option<u8> {
    discovery(frame).map(|at| frame[at])
}

impl<'a> NeighborMessage<'a> {
    /// Reads a frame; returns `None` if a host would have to ignore it (RFC 4861, 6.1 and 7.1).
    pub(crate) fn read(frame: &'a [u8]) -> Option<NeighborMessage<'a>> {
        let at = discovery(frame)?;
        let end = PAYLOAD + usize::from(u16::from_be_bytes([frame[IP + 4], frame[IP + 5]]));
        let frame = frame.get(..end).filter(|frame| frame.len() >= at + 8)?;
        let message = NeighborMessage {
            frame,
            at,
            to: mac(frame, 0)?,
            sender: mac(frame, 6)?,
            source: ip(frame, IP + 8)?,
            destination: ip(frame, IP + 24)?,
        };
        message.is_sound().then_some(message)
    }

    fn is_sound(&self) -> bool {
        let (body, kind) = (&self.frame[self.at..], self.kind());
        let whole = body.len() >= options_at(kind) && self.options().is_some();
        let target = whole.then(|| self.target()).flatten();
        let reported = |option| self.addresses().any(|(kind, _)| kind == option);
        self.frame[IP + 7] == HOP_LIMIT
            && body[1] == 0
            && icmpv6_checksum(self.source, self.destination, body) == [0; 2]
            && whole
            && self.sender.is_unicast()
            && !self.sender.is_zero()
            && !self.source.is_multicast()
            && !target.is_some_and(|target| target.is_multicast() || target.is_unspecified())
            && match kind {
                // A sender without an address must not state its Ethernet address, and must send to
                // a multicast address.
                ROUTER_SOLICITATION | SOLICITATION => {
                    !self.source.is_unspecified()
                        || (self.destination.is_multicast() && !reported(SOURCE_ADDRESS))
                }
                ROUTER_ADVERTISEMENT => self.source.is_unicast_link_local(),
                _ => !(self.destination.is_multicast() && body[4] & SOLICITED != 0),
            }
    }

    fn kind(&self) -> u8 {
        self.frame[self.at]
    }

    /// Returns the address that is requested or announced.
    fn target(&self) -> Option<Ipv6Addr> {
        let there = [SOLICITATION, ADVERTISEMENT].contains(&self.kind());
        there.then(|| ip(self.frame, self.at + 8)).flatten()
    }

    /// Returns the IP address that the sender claims. A probe for duplicates claims none.
    pub(crate) fn claimed_address(&self) -> Option<Ipv6Addr> {
        match self.kind() {
            ADVERTISEMENT => self.target(),
            _ => Some(self.source).filter(|source| !source.is_unspecified()),
        }
    }

    /// Returns whether others may have the announced address as well (anycast), or the sender
    /// answers for another machine (RFC 4861, 7.2.7 and 7.2.8).
    pub(crate) fn is_shared(&self) -> bool {
        self.kind() == ADVERTISEMENT && self.frame[self.at + 4] & OVERRIDE == 0
    }

    /// Returns whether the sender is a router, if the message states it.
    pub(crate) fn router(&self) -> Option<bool> {
        match self.kind() {
            ROUTER_ADVERTISEMENT => Some(true),
            ADVERTISEMENT => Some(self.frame[self.at + 4] & ROUTER != 0),
            _ => None,
        }
    }

    /// Returns the requested address.
    pub(crate) fn requested_address(&self) -> Option<Ipv6Addr> {
        self.target().filter(|_| self.kind() == SOLICITATION)
    }

    /// Returns the message as a frame to another receiver. `sender` replaces the Ethernet address
    /// of its sender.
    pub(crate) fn forwarded(&self, sender: MacAddr, to: MacAddr) -> Vec<u8> {
        let mut frame = self.frame.to_vec();
        frame[..6].copy_from_slice(&to.octets());
        frame[6..12].copy_from_slice(&sender.octets());
        let own = self.addresses().filter(|(_, at)| mac(self.frame, *at) == Some(self.sender));
        for (_, at) in own {
            frame[at..at + 6].copy_from_slice(&sender.octets());
        }
        seal(self.source, self.destination, &mut frame[self.at..]);
        padded(frame)
    }

    /// Returns the frame that answers a request with this Ethernet address. The answer goes to all
    /// nodes if the sender has no address yet.
    pub(crate) fn reply(&self, target: MacAddr, router: bool) -> Vec<u8> {
        let router = if router { ROUTER } else { 0 };
        let address = self.target().unwrap_or(Ipv6Addr::UNSPECIFIED);
        match self.source.is_unspecified() {
            true => advertisement(address, target, router | OVERRIDE, ALL_NODES, ALL_NODES_MAC),
            false => {
                let flags = router | SOLICITED | OVERRIDE;
                advertisement(address, target, flags, self.source, self.sender)
            }
        }
    }

    /// Returns type and offset of each option; `None` if one is truncated.
    fn options(&self) -> Option<Vec<(u8, usize)>> {
        let (mut at, mut found) = (self.at + options_at(self.kind()), Vec::new());
        while at < self.frame.len() {
            let units = *self.frame.get(at + 1)?;
            found.push((self.frame[at], at));
            at += usize::from(units) * 8;
            if units == 0 || at > self.frame.len() {
                return None;
            }
        }
        Some(found)
    }

    /// Returns type and offset of the Ethernet addresses in options.
    fn addresses(&self) -> impl Iterator<Item = (u8, usize)> + use<'a> {
        let frame = self.frame;
        let states_address = move |(kind, at): &(u8, usize)| {
            [SOURCE_ADDRESS, TARGET_ADDRESS].contains(kind) && frame[at + 1] == ADDRESS_UNITS
        };
        let options = self.options().unwrap_or_default().into_iter();
        options.filter(states_address).map(|(kind, at)| (kind, at + 2))
    }
}

/// Returns a frame that announces the Ethernet address of an IP address to all, so that they forget
/// any other.
pub(crate) fn announcement(address: Ipv6Addr, now: MacAddr, router: bool) -> Vec<u8> {
    let router = if router { ROUTER } else { 0 };
    advertisement(address, now, router | OVERRIDE, ALL_NODES, ALL_NODES_MAC)
}

/// Returns a frame that probes a host.
pub(crate) fn probe(host: MacAddr, address: Ipv6Addr, asker: MacAddr) -> Vec<u8> {
    let body = about(SOLICITATION, 0, address, SOURCE_ADDRESS, asker);
    message(asker, host, link_local(asker), address, &body)
}

/// Returns the link-local address that follows from an Ethernet address (RFC 4291, appendix A).
pub(crate) fn link_local(mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.octets();
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

fn advertisement(address: Ipv6Addr, has: MacAddr, flags: u8, to: Ipv6Addr, to_mac: MacAddr) -> Vec<u8> {
    message(has, to_mac, address, to, &about(ADVERTISEMENT, flags, address, TARGET_ADDRESS, has))
}

/// Returns an ICMPv6 message about an address, with an Ethernet address as option. Its checksum is
/// not set yet.
fn about(kind: u8, flags: u8, address: Ipv6Addr, option: u8, mac: MacAddr) -> Vec<u8> {
    let head = [kind, 0, 0, 0, flags, 0, 0, 0];
    [&head[..], &address.octets(), &[option, ADDRESS_UNITS], &mac.octets()].concat()
}

/// Returns a frame with this ICMPv6 message.
fn message(sender: MacAddr, to: MacAddr, source: Ipv6Addr, destination: Ipv6Addr, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(PAYLOAD + body.len());
    frame.extend(to.octets());
    frame.extend(sender.octets());
    frame.extend(ETHERTYPE.to_be_bytes());
    frame.extend([0x60, 0, 0, 0]);
    frame.extend((body.len() as u16).to_be_bytes());
    frame.extend([ICMPV6, HOP_LIMIT]);
    frame.extend(source.octets());
    frame.extend(destination.octets());
    frame.extend(body);
    seal(source, destination, &mut frame[PAYLOAD..]);
    padded(frame)
}

/// Pads a frame to the minimum length of Ethernet.
fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    frame.resize(frame.len().max(60), 0);
    frame
}

/// Sets the checksum of an ICMPv6 message.
fn seal(source: Ipv6Addr, destination: Ipv6Addr, body: &mut [u8]) {
    body[2..4].fill(0);
    let sum = icmpv6_checksum(source, destination, body);
    body[2..4].copy_from_slice(&sum);
}

/// Returns the offset of ICMPv6 in a frame. Fragments are ignored.
fn icmpv6(frame: &[u8]) -> Option<usize> {
    if super::ethertype(frame) != Some(ETHERTYPE) || frame.get(IP)? >> 4 != 6 {
        return None;
    }
    let (mut next, mut at) = (*frame.get(IP + 6)?, PAYLOAD);
    while EXTENSIONS.contains(&next) {
        let length = usize::from(*frame.get(at + 1)?) * 8 + 8;
        (next, at) = (frame[at], at + length);
    }
    (next == ICMPV6 && at < frame.len()).then_some(at)
}

/// Returns the offset of a neighbor discovery message in a frame.
fn discovery(frame: &[u8]) -> Option<usize> {
    icmpv6(frame).filter(|at| (ROUTER_SOLICITATION..=ADVERTISEMENT).contains(&frame[*at]))
}

/// Returns the offset of the options in a message.
fn options_at(kind: u8) -> usize {
    match kind {
        ROUTER_SOLICITATION => 8,
        ROUTER_ADVERTISEMENT => 16,
        _ => 24,
    }
}

fn mac(frame: &[u8], at: usize) -> Option<MacAddr> {
    frame.get(at..at + 6).and_then(|octets| <[u8; 6]>::try_from(octets).ok()).map(MacAddr::from)
}

fn ip(frame: &[u8], at: usize) -> Option<Ipv6Addr> {
    frame.get(at..at + 16).and_then(|octets| <[u8; 16]>::try_from(octets).ok()).map(Ipv6Addr::from)
}

/// Returns a message of any type with a correct checksum.
#[cfg(test)]
pub(crate) fn valid_message(
    kind: u8,
    sender: MacAddr,
    (source, destination): (Ipv6Addr, Ipv6Addr),
    flags: u8,
    rest: &[u8],
) -> Vec<u8> {
    let body = [&[kind, 0, 0, 0, flags, 0, 0, 0], rest].concat();
    let [.., a, b, c, d] = destination.octets();
    message(sender, MacAddr(0x33, 0x33, a, b, c, d), source, destination, &body)
}

#[cfg(test)]
mod tests;
