//! Queries for the members of multicast groups: IGMPv3 (RFC 3376, 4.1) and MLDv2 (RFC 3810, 5.1).
//! Switches with snooping learn from the hosts' answers where members are.
//!
//! The IPv4 query has the source address 0.0.0.0, as that of a snooping switch (RFC 4541, 2.1.1),
//! so that it never wins the election of a querier against a router.

use crate::checksum::{ICMPV6, icmpv6_checksum, internet_checksum};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Time between two queries, in seconds (RFC 3376, 8.2).
pub const QUERY_INTERVAL_SECONDS: u8 = 125;
/// Time within which hosts answer, in tenths of a second. It is shorter than the default of ten
/// seconds, because the first answers make multicast work.
const RESPONSE_TENTHS: u8 = 20;
/// Time within which hosts answer a query for one address, in tenths of a second (RFC 3376, 8.8).
const LAST_MEMBER_TENTHS: u8 = 10;
/// Number of queries in a row that may be lost.
const ROBUSTNESS: u8 = 2;

/// IP protocol number of IGMP, and the types of queries in IGMP and ICMPv6.
pub(crate) const IGMP: u8 = 2;
pub(crate) const IGMP_QUERY: u8 = 0x11;
pub(crate) const MLD_QUERY: u8 = 130;
/// The shortest queries: those of IGMPv1 and IGMPv2, and of MLDv1.
const IGMP_QUERY_MIN: usize = 8;
const MLD_QUERY_MIN: usize = 24;

/// The address of all hosts of a network segment.
pub const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Precedence "internetwork control" (RFC 3376, 4).
const CONTROL: u8 = 0xc0;
/// The options that make routers examine the packet (RFC 2113, RFC 2711).
const ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];
const HOP_BY_HOP_ALERT: [u8; 8] = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];

/// Returns an IGMPv3 query for one address, or a general one, without IP header.
pub fn igmp_query(address: Option<Ipv4Addr>) -> [u8; 12] {
    let mut query = [0; 12];
    (query[0], query[1]) = (IGMP_QUERY, response_tenths(address.is_some()));
    query[4..8].copy_from_slice(&address.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
    (query[8], query[9]) = (ROBUSTNESS, QUERY_INTERVAL_SECONDS);
    let sum = internet_checksum(&[&query]);
    query[2..4].copy_from_slice(&sum);
    query
}

/// Returns the time within which hosts answer a query, in tenths of a second.
fn response_tenths(is_for_one_address: bool) -> u8 {
    if is_for_one_address { LAST_MEMBER_TENTHS } else { RESPONSE_TENTHS }
}

/// Returns the IPv4 packet of an IGMPv3 query for one address, or of a general one.
pub fn igmp_query_packet(address: Option<Ipv4Addr>) -> Vec<u8> {
    let query = igmp_query(address);
    let length = (20 + ROUTER_ALERT.len() + query.len()) as u8;
    let mut packet = vec![0x46, CONTROL, 0, length, 0, 0, 0, 0, 1, IGMP, 0, 0];
    packet.extend(Ipv4Addr::UNSPECIFIED.octets());
    packet.extend(address.unwrap_or(ALL_HOSTS).octets());
    packet.extend(ROUTER_ALERT);
    let sum = internet_checksum(&[&packet]);
    packet[10..12].copy_from_slice(&sum);
    packet.extend(query);
    packet
}

/// Returns the IPv6 packet of an MLDv2 query for one address, or of a general one, from a
/// link-local address.
pub fn mld_query_packet(source: Ipv6Addr, address: Option<Ipv6Addr>) -> Vec<u8> {
    let destination = address.unwrap_or(ALL_NODES);
    let mut query = [0; 28];
    query[0] = MLD_QUERY;
    let response_ms = u16::from(response_tenths(address.is_some())) * 100;
    query[4..6].copy_from_slice(&response_ms.to_be_bytes());
    query[8..24].copy_from_slice(&address.unwrap_or(Ipv6Addr::UNSPECIFIED).octets());
    (query[24], query[25]) = (ROBUSTNESS, QUERY_INTERVAL_SECONDS);
    let sum = icmpv6_checksum(source, destination, &query);
    query[2..4].copy_from_slice(&sum);
    let length = (HOP_BY_HOP_ALERT.len() + query.len()) as u8;
    // The next header is that of hop-by-hop options.
    let mut packet = vec![0x60, 0, 0, 0, 0, length, 0, 1];
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend(HOP_BY_HOP_ALERT);
    packet.extend(query);
    packet
}

/// Returns the source of a general query, given an IPv4 packet with IGMP. Returns `None` for any
/// other packet.
pub fn igmp_querier(packet: &[u8]) -> Option<IpAddr> {
    let first = *packet.first()?;
    let message = packet.get(usize::from(first & 0xf) * 4..)?;
    let source: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
    let is_query = first >> 4 == 4
        && message.len() >= IGMP_QUERY_MIN
        && message[0] == IGMP_QUERY
        && message[4..8] == [0; 4];
    is_query.then(|| Ipv4Addr::from(source).into())
}

/// Returns whether an ICMPv6 message is a general query.
pub fn is_mld_query(message: &[u8]) -> bool {
    message.len() >= MLD_QUERY_MIN && message[0] == MLD_QUERY && message[8..24] == [0; 16]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_have_the_bytes_of_the_standards() {
        assert_eq!(
            igmp_query_packet(None),
            [
                0x46, 0xc0, 0, 36, 0, 0, 0, 0, 1, 2, 0x44, 0x13, 0, 0, 0, 0, 224, 0, 0, 1, 0x94, 4, 0, 0,
                0x11, 20, 0xec, 0x6e, 0, 0, 0, 0, 2, 125, 0, 0
            ]
        );
        let packet = mld_query_packet("fe80::1".parse().unwrap(), None);
        assert_eq!(packet[..8], [0x60, 0, 0, 0, 0, 36, 0, 1]);
        assert_eq!(packet[40..52], [58, 0, 5, 2, 0, 0, 1, 0, 130, 0, packet[50], packet[51]]);
        assert_eq!(packet[52..], [&[7, 0xd0][..], &[0; 18], &[2, 125, 0, 0]].concat());
        // A correct checksum makes the sum of all words zero.
        let pseudo_header = [0, 0, 0, 28, 0, 0, 0, 58];
        assert_eq!(internet_checksum(&[&packet[8..40], &pseudo_header, &packet[48..]]), [0; 2]);
        assert_eq!(
            (internet_checksum(&[&igmp_query(None)]), internet_checksum(&[&igmp_query_packet(None)[..24]])),
            ([0; 2], [0; 2])
        );
    }

    #[test]
    fn a_query_for_one_address_is_sent_to_that_address() {
        let address = Ipv4Addr::new(239, 1, 2, 3);
        let packet = igmp_query_packet(Some(address));
        assert_eq!((&packet[16..20], &packet[28..32]), (&[239, 1, 2, 3][..], &[239, 1, 2, 3][..]));
        assert_eq!((packet[25], igmp_querier(&packet)), (LAST_MEMBER_TENTHS, None));
        assert_eq!(internet_checksum(&[&packet[24..]]), [0; 2]);
        let address: Ipv6Addr = "ff1e::5".parse().unwrap();
        let packet = mld_query_packet("fe80::1".parse().unwrap(), Some(address));
        assert_eq!((&packet[24..40], &packet[56..72]), (&address.octets()[..], &address.octets()[..]));
        assert!(packet[52..54] == 1000u16.to_be_bytes() && !is_mld_query(&packet[48..]));
    }

    #[test]
    fn only_general_queries_show_a_querier() {
        let mut packet = igmp_query_packet(None);
        assert_eq!(igmp_querier(&packet), Some(Ipv4Addr::UNSPECIFIED.into()));
        packet[12..16].copy_from_slice(&[10, 0, 0, 9]);
        assert_eq!(igmp_querier(&packet), Some(Ipv4Addr::new(10, 0, 0, 9).into()));
        (0..32).for_each(|length| assert_eq!(igmp_querier(&packet[..length]), None, "{length} bytes"));
        assert!(igmp_querier(&packet[..32]).is_some(), "a query of IGMPv2");
        // A query for one group, and a report.
        let changed = |at: usize, value| {
            let mut other = packet.clone();
            other[at] = value;
            other
        };
        assert_eq!((igmp_querier(&changed(28, 239)), igmp_querier(&changed(24, 0x16))), (None, None));

        let packet = mld_query_packet("fe80::1".parse().unwrap(), None);
        let message = &packet[48..];
        assert!(is_mld_query(message) && is_mld_query(&message[..24]) && !is_mld_query(&message[..23]));
        assert!(!is_mld_query(&[131; 28]) && !is_mld_query(&[&message[..8], &[1; 16]].concat()));
    }
}
