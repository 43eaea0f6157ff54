//! Address resolution: ARP (RFC 826) for IPv4 and neighbour discovery (RFC 4861) for IPv6, by which hosts ask and tell which
//! Ethernet address an IP address has; the controller does the same with both.

use super::arp::{self, Arp};
use super::ndp::{self, Neighbour};
use cool_topology::MacAddr;
use core::net::IpAddr;

/// A message of either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressResolution<'a> {
    Arp(Arp),
    Neighbour(Neighbour<'a>),
}

impl<'a> AddressResolution<'a> {
    /// Reads a frame; `None` if it is neither, or nothing that can be answered or carried.
    pub(crate) fn read(frame: &'a [u8]) -> Option<AddressResolution<'a>> {
        let arp = Arp::read(frame).map(AddressResolution::Arp);
        arp.or_else(|| Neighbour::read(frame).map(AddressResolution::Neighbour))
    }

    /// Who says it.
    pub(crate) fn sender(&self) -> MacAddr {
        match self {
            AddressResolution::Arp(arp) => arp.sender,
            AddressResolution::Neighbour(neighbor) => neighbor.sender,
        }
    }

    /// Whom it is for: one, several or all.
    pub(crate) fn to(&self) -> MacAddr {
        match self {
            AddressResolution::Arp(arp) if arp.reply => arp.target,
            AddressResolution::Arp(_) => MacAddr::broadcast(),
            AddressResolution::Neighbour(neighbor) => neighbor.to,
        }
    }

    /// The address that its sender says it has.
    pub(crate) fn says(&self) -> Option<IpAddr> {
        match self {
            AddressResolution::Arp(arp) => (!arp.sender_ip.is_unspecified()).then_some(arp.sender_ip.into()),
            AddressResolution::Neighbour(neighbor) => neighbor.says().map(IpAddr::V6),
        }
    }

    /// Whether others may have that address as well.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, AddressResolution::Neighbour(neighbor) if neighbor.is_shared())
    }

    /// What its sender says of being a router.
    pub(crate) fn router(&self) -> Option<bool> {
        match self {
            AddressResolution::Arp(_) => None,
            AddressResolution::Neighbour(neighbor) => neighbor.router(),
        }
    }

    /// The address that it asks for.
    pub(crate) fn asks(&self) -> Option<IpAddr> {
        match self {
            AddressResolution::Arp(arp) => (!arp.reply).then_some(arp.target_ip.into()),
            AddressResolution::Neighbour(neighbor) => neighbor.asks().map(IpAddr::V6),
        }
    }

    /// The frame for somebody, from who is known to it by another Ethernet address.
    pub(crate) fn frame(&self, sender: MacAddr, to: MacAddr) -> Vec<u8> {
        match self {
            AddressResolution::Arp(arp) if arp.reply => Arp { sender, target: to, ..*arp }.frame(to),
            AddressResolution::Arp(arp) => Arp { sender, ..*arp }.frame(to),
            AddressResolution::Neighbour(neighbor) => neighbor.frame(sender, to),
        }
    }

    /// The frame that answers a question: the target has this Ethernet address, and is a router or not.
    pub(crate) fn answer(&self, target: MacAddr, router: bool) -> Vec<u8> {
        match self {
            AddressResolution::Arp(arp) => arp.answer(target),
            AddressResolution::Neighbour(neighbor) => neighbor.answer(target, router),
        }
    }
}

/// A frame that tells everybody, unasked, who has an address now. For IPv6 it has to say whether that is a router.
pub(crate) fn announcement(address: IpAddr, now: MacAddr, router: Option<bool>) -> Option<Vec<u8>> {
    match address {
        IpAddr::V4(ip) => Some(arp::announcement(ip, now)),
        IpAddr::V6(ip) => router.map(|router| ndp::announcement(ip, now, router)),
    }
}

/// A frame that asks a host whether it is there.
pub(crate) fn probe(host: MacAddr, address: IpAddr, asker: MacAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => arp::probe(host, ip, asker),
        IpAddr::V6(ip) => ndp::probe(host, ip, asker),
    }
}
