//! Multicast addresses of trees: for each number in [`GROUPS`] one of IPv4 and one of IPv6, and the
//! matches for them.

use super::tables::GROUPS;
use crate::api::NodeRegistration;
use cool_topology::Tree;
use cool_types::is_source_specific;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use rs_openflow::{EtherType, Match};
use std::collections::BTreeMap;

/// 239.192.0.0/14, of organization-local scope (RFC 2365).
const IPV4: u32 = u32::from_be_bytes([239, 192, 0, 0]);
const IPV4_MASK: u32 = u32::from_be_bytes([255, 252, 0, 0]);

/// ff18::434f:4f4c:c000:0/110, a transient address of the same scope (RFC 4291, RFC 7346). Its last
/// 32 bits, from which Ethernet addresses are derived, are the group numbers. These lie in the
/// range for dynamic assignment (RFC 3307).
const IPV6: u128 = 0xff18_0000_0000_0000_434f_4f4c_0000_0000;
const IPV6_MASK: u128 = (!0 << 32) | !(GROUPS.end - GROUPS.start - 1) as u128;

/// 232.192.0.0/14, within the range for source-specific multicast and without its reserved
/// addresses, 232.0.0.0/24 (RFC 4607, 4.3).
const SOURCE_SPECIFIC_IPV4: u32 = u32::from_be_bytes([232, 192, 0, 0]);

/// ff38::c000:0/110, a source-specific address (RFC 3306) of the same scope as [`IPV6`]. The last
/// 32 bits are the group numbers, which lie in the range that hosts may assign (RFC 4607, 1).
const SOURCE_SPECIFIC_IPV6: u128 = 0xff38 << 112;

/// The group numbers whose addresses no tree gets, because nodes examine with them whether the
/// network floods.
pub(crate) const EXAMINATIONS: core::ops::Range<u32> = GROUPS.end - 256..GROUPS.end;

/// Returns the multicast address of the examination with this number of whether the network floods,
/// of the same version of IP as `ip`. No tree has this address. An address returns after 256
/// examinations, because switches may take minutes to forget the members of the earlier one.
pub fn examination_address(ip: IpAddr, number: u64) -> IpAddr {
    let count = u64::from(EXAMINATIONS.end - EXAMINATIONS.start);
    IpVersion::from_ip(ip).address(EXAMINATIONS.start + (number % count) as u32)
}

/// Version of IP that a tree carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IpVersion {
    V4,
    V6,
}

impl IpVersion {
    pub(crate) fn from_ip(ip: IpAddr) -> IpVersion {
        if ip.is_ipv6() { IpVersion::V6 } else { IpVersion::V4 }
    }

    /// Returns the version that the members of a tree use. All members use the same.
    pub(crate) fn for_tree(tree: &Tree, nodes: &BTreeMap<String, NodeRegistration>) -> IpVersion {
        let member = tree.members.keys().find_map(|name| nodes.get(name));
        member.map_or(IpVersion::V4, |node| IpVersion::from_ip(node.ip))
    }

    /// Returns the multicast address of the tree with this group number.
    pub(crate) fn address(self, number: u32) -> IpAddr {
        match self {
            IpVersion::V4 => Ipv4Addr::from_bits(IPV4 + (number - GROUPS.start)).into(),
            IpVersion::V6 => Ipv6Addr::from_bits(IPV6 | u128::from(number)).into(),
        }
    }

    /// Returns the source-specific multicast address of the tree with this group number.
    pub(crate) fn source_specific_address(self, number: u32) -> IpAddr {
        match self {
            IpVersion::V4 => Ipv4Addr::from_bits(SOURCE_SPECIFIC_IPV4 + (number - GROUPS.start)).into(),
            IpVersion::V6 => Ipv6Addr::from_bits(SOURCE_SPECIFIC_IPV6 | u128::from(number)).into(),
        }
    }

    /// Matches packets to any tree.
    pub(super) fn match_all_trees(self) -> Match {
        match self {
            IpVersion::V4 => Match::new()
                .eth_type(EtherType::IPV4)
                .ipv4_dst_masked(Ipv4Addr::from_bits(IPV4), Ipv4Addr::from_bits(IPV4_MASK)),
            IpVersion::V6 => Match::new().eth_type(EtherType::IPV6).ipv6_dst_masked(
                Ipv6Addr::from_bits(IPV6 | u128::from(GROUPS.start)),
                Ipv6Addr::from_bits(IPV6_MASK),
            ),
        }
    }
}

/// Returns the group number of the tree with this multicast address, which may be source-specific.
pub(crate) fn number(address: IpAddr) -> Option<u32> {
    let (ipv4, ipv6) = match is_source_specific(address) {
        true => (SOURCE_SPECIFIC_IPV4, SOURCE_SPECIFIC_IPV6),
        false => (IPV4, IPV6),
    };
    let number = match address {
        IpAddr::V4(ip) => ip.to_bits().checked_sub(ipv4)?.checked_add(GROUPS.start)?,
        IpAddr::V6(ip) => u32::try_from(ip.to_bits() ^ ipv6).ok()?,
    };
    GROUPS.contains(&number).then_some(number)
}

/// Matches packets into a tree, from one sender only if that is given.
pub(super) fn into_tree(matching: Match, address: IpAddr, sender: Option<IpAddr>) -> Match {
    let to = match address {
        IpAddr::V4(ip) => matching.eth_type(EtherType::IPV4).ipv4_dst(ip),
        IpAddr::V6(ip) => matching.eth_type(EtherType::IPV6).ipv6_dst(ip),
    };
    match sender {
        None => to,
        Some(IpAddr::V4(ip)) => to.ipv4_src(ip),
        Some(IpAddr::V6(ip)) => to.ipv6_src(ip),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rs_openflow::Oxm;

    #[test]
    fn tree_addresses_lie_in_the_range_that_switches_match() {
        for version in [IpVersion::V4, IpVersion::V6] {
            for number in [GROUPS.start, GROUPS.start + 1, GROUPS.end - 1] {
                let address = version.address(number);
                assert!(address.is_multicast(), "{address}");
                assert_eq!(super::number(address), Some(number));
                let within = version.match_all_trees().fields.iter().any(|field| match (field, address) {
                    (Oxm::Ipv4Dst(range), IpAddr::V4(ip)) => {
                        ip.to_bits() & range.mask.unwrap().to_bits() == range.value.to_bits()
                    }
                    (Oxm::Ipv6Dst(range), IpAddr::V6(ip)) => {
                        ip.to_bits() & range.mask.unwrap().to_bits() == range.value.to_bits()
                    }
                    _ => false,
                });
                assert!(within, "{address}");
            }
        }
        for version in [IpVersion::V4, IpVersion::V6] {
            for number in [GROUPS.start, GROUPS.start + 1, GROUPS.end - 1] {
                let address = version.source_specific_address(number);
                assert!(address.is_multicast() && is_source_specific(address), "{address}");
                assert_eq!(super::number(address), Some(number));
            }
        }
        assert_eq!(IpVersion::V6.source_specific_address(GROUPS.start + 5).to_string(), "ff38::c000:5");
        assert_eq!(IpVersion::V6.address(GROUPS.start + 5).to_string(), "ff18::434f:4f4c:c000:5");
        let numbered =
            [0, 255, 256].map(|number| examination_address([10, 0, 0, 1].into(), number).to_string());
        assert_eq!(numbered, ["239.195.255.0", "239.195.255.255", "239.195.255.0"]);
        let others = [
            "232.0.0.1",
            "232.196.0.0",
            "ff3e::c000:5",
            "239.196.0.0",
            "239.191.255.255",
            "ff18::434f:4f4c:c004:0",
            "ff15::434f:4f4c:c000:5",
            "ff02::1",
        ];
        assert!(others.iter().all(|ip| number(ip.parse().unwrap()).is_none()));
    }
}
