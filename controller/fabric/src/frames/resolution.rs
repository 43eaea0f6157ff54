//! Address resolution: ARP (RFC 826) for IPv4 and neighbor discovery (RFC 4861) for IPv6, by which
//! hosts request and announce the Ethernet address of an IP address.

use super::arp::{self, Arp};
use super::ndp::{self, NeighborMessage};
use cool_topology::MacAddr;
use core::net::IpAddr;

/// A message of either protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressResolution<'a> {
    Arp(Arp),
    Neighbor(NeighborMessage<'a>),
}

impl<'a> AddressResolution<'a> {
    /// Reads a frame; returns `None` if it cannot be answered or forwarded.
    pub(crate) fn read(frame: &'a [u8]) -> Option<AddressResolution<'a>> {
        let arp = Arp::read(frame).map(AddressResolution::Arp);
        arp.or_else(|| NeighborMessage::read(frame).map(AddressResolution::Neighbor))
    }

    /// Returns the Ethernet address of the sender.
    pub(crate) fn sender(&self) -> MacAddr {
        match self {
            AddressResolution::Arp(arp) => arp.sender,
            AddressResolution::Neighbor(neighbor) => neighbor.sender,
        }
    }

    /// Returns the Ethernet address of the receiver, which may be a group or broadcast address.
    pub(crate) fn destination(&self) -> MacAddr {
        match self {
            AddressResolution::Arp(arp) if arp.reply => arp.target,
            AddressResolution::Arp(_) => MacAddr::broadcast(),
            AddressResolution::Neighbor(neighbor) => neighbor.to,
        }
    }

    /// Returns the IP address that the sender claims.
    pub(crate) fn claimed_address(&self) -> Option<IpAddr> {
        match self {
            AddressResolution::Arp(arp) => (!arp.sender_ip.is_unspecified()).then_some(arp.sender_ip.into()),
            AddressResolution::Neighbor(neighbor) => neighbor.claimed_address().map(IpAddr::V6),
        }
    }

    /// Returns whether others may have that address as well.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, AddressResolution::Neighbor(neighbor) if neighbor.is_shared())
    }

    /// Returns whether the sender is a router, if the message states it.
    pub(crate) fn router(&self) -> Option<bool> {
        match self {
            AddressResolution::Arp(_) => None,
            AddressResolution::Neighbor(neighbor) => neighbor.router(),
        }
    }

    /// Returns the requested address.
    pub(crate) fn requested_address(&self) -> Option<IpAddr> {
        match self {
            AddressResolution::Arp(arp) => (!arp.reply).then_some(arp.target_ip.into()),
            AddressResolution::Neighbor(neighbor) => neighbor.requested_address().map(IpAddr::V6),
        }
    }

    /// Returns the message as a frame to another receiver. `sender` replaces the Ethernet address
    /// of its sender.
    pub(crate) fn forwarded(&self, sender: MacAddr, to: MacAddr) -> Vec<u8> {
        match self {
            AddressResolution::Arp(arp) if arp.reply => Arp { sender, target: to, ..*arp }.frame(to),
            AddressResolution::Arp(arp) => Arp { sender, ..*arp }.frame(to),
            AddressResolution::Neighbor(neighbor) => neighbor.forwarded(sender, to),
        }
    }

    /// Returns the frame that answers a request with this Ethernet address. `router` states whether
    /// the owner of the address is a router.
    pub(crate) fn reply(&self, target: MacAddr, router: bool) -> Vec<u8> {
        match self {
            AddressResolution::Arp(arp) => arp.reply_with(target),
            AddressResolution::Neighbor(neighbor) => neighbor.reply(target, router),
        }
    }
}

/// Returns a frame that announces the Ethernet address of an IP address to all; `None` for IPv6 if
/// it is unknown whether the owner is a router, because the frame must state it.
pub(crate) fn announcement(address: IpAddr, now: MacAddr, router: Option<bool>) -> Option<Vec<u8>> {
    match address {
        IpAddr::V4(ip) => Some(arp::announcement(ip, now)),
        IpAddr::V6(ip) => router.map(|router| ndp::announcement(ip, now, router)),
    }
}

/// Returns a frame that probes a host.
pub(crate) fn probe(host: MacAddr, address: IpAddr, asker: MacAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => arp::probe(host, ip, asker),
        IpAddr::V6(ip) => ndp::probe(host, ip, asker),
    }
}
