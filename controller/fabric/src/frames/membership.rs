//! Frames with IGMP or MLD: reads those of hosts, and writes the controller's queries.

use super::{ethertype, ndp};
use cool_topology::MacAddr;
use cool_topology::membership_query::{igmp_query_packet, mld_query_packet};
use cool_topology::membership_report::MembershipMessage;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const IPV4: u16 = 0x0800;
const HEADER_BYTES: usize = 14;
/// Prefixes of the Ethernet addresses of multicast (RFC 1112, 6.4; RFC 2464, 7).
const IPV4_MULTICAST: [u8; 3] = [0x01, 0x00, 0x5e];
const IPV6_MULTICAST: [u8; 2] = [0x33, 0x33];

/// Reads an untagged frame; returns `None` if it contains no whole message about memberships.
pub(crate) fn read(frame: &[u8]) -> Option<MembershipMessage> {
    match ethertype(frame)? {
        IPV4 | ndp::ETHERTYPE => MembershipMessage::read(&frame[HEADER_BYTES..]),
        _ => None,
    }
}

/// Returns general queries of both IP versions from this Ethernet address.
pub(crate) fn general_queries(source: MacAddr) -> [Vec<u8>; 2] {
    [
        frame(Ipv4Addr::new(224, 0, 0, 1).into(), source, &igmp_query_packet(None)),
        frame(
            Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into(),
            source,
            &mld_query_packet(ndp::link_local(source), None),
        ),
    ]
}

/// Returns a query for the members of one address.
pub(crate) fn specific_query(address: IpAddr, source: MacAddr) -> Vec<u8> {
    let packet = match address {
        IpAddr::V4(ip) => igmp_query_packet(Some(ip)),
        IpAddr::V6(ip) => mld_query_packet(ndp::link_local(source), Some(ip)),
    };
    frame(address, source, &packet)
}

/// Returns the frame of a packet to a multicast address.
fn frame(address: IpAddr, source: MacAddr, packet: &[u8]) -> Vec<u8> {
    let (destination, kind) = match address {
        IpAddr::V4(ip) => {
            let [_, a, b, c] = ip.octets();
            ([&IPV4_MULTICAST[..], &[a & 0x7f, b, c]].concat(), IPV4)
        }
        IpAddr::V6(ip) => ([&IPV6_MULTICAST[..], &ip.octets()[12..]].concat(), ndp::ETHERTYPE),
    };
    [&destination[..], &source.octets(), &kind.to_be_bytes(), packet].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_go_to_the_ethernet_addresses_of_their_destinations() {
        let source = MacAddr(2, 0, 0, 0, 0, 1);
        let [igmp, mld] = general_queries(source);
        assert_eq!((&igmp[..6], &mld[..6]), (&[1, 0, 0x5e, 0, 0, 1][..], &[0x33, 0x33, 0, 0, 0, 1][..]));
        let specific = specific_query("239.129.2.3".parse().unwrap(), source);
        assert_eq!((&specific[..6], &specific[12..15]), (&[1, 0, 0x5e, 1, 2, 3][..], &[8, 0, 0x46][..]));
        let specific = specific_query("ff1e::5:6".parse().unwrap(), source);
        assert_eq!((&specific[..6], &specific[12..14]), (&[0x33, 0x33, 0, 5, 0, 6][..], &[0x86, 0xdd][..]));
        for frame in [&igmp, &mld, &specific] {
            assert!(matches!(read(frame), Some(MembershipMessage::Query(_))));
        }
        assert_eq!((read(&igmp[..13]), read(&[0; 60])), (None, None));
    }
}
