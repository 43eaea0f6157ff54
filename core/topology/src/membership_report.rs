//! Messages by which hosts join and leave multicast groups, as a switch with snooping reads them
//! (RFC 4541): IGMPv1, v2 and v3 (RFC 1112, RFC 2236, RFC 3376), MLDv1 and v2 (RFC 2710, RFC 3810).
//!
//! Source lists count only as far as they show whether a host is a member at all.

use crate::checksum::{ICMPV6, icmpv6_checksum, internet_checksum};
use crate::membership_query::{IGMP, IGMP_QUERY, MLD_QUERY};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
/// The IPv6 header for hop-by-hop options, which precede MLD.
const HOP_BY_HOP: u8 = 0;
/// The flag "more fragments", and the offset of a fragment.
const FRAGMENT: u16 = 0x3fff;

const IGMP_REPORTS: [u8; 2] = [0x12, 0x16];
const IGMP_LEAVE: u8 = 0x17;
const IGMP3_REPORT: u8 = 0x22;
/// ICMPv6 type of the reports of MLDv1, which are sent to the address that they concern.
pub const MLD_REPORT: u8 = 131;
const MLD_DONE: u8 = 132;
const MLD2_REPORT: u8 = 143;

/// Types of records: the sources that a host includes or excludes now, and changes of them (RFC
/// 3376, 4.2.12).
const IS_INCLUDE: u8 = 1;
const IS_EXCLUDE: u8 = 2;
const TO_INCLUDE: u8 = 3;
const TO_EXCLUDE: u8 = 4;
const ALLOW_NEW: u8 = 5;
const BLOCK_OLD: u8 = 6;

/// A message about the members of multicast groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipMessage {
    /// A query. The source is unspecified if a switch, not a router, has sent it.
    Query(IpAddr),
    /// A report of one host.
    Report(Vec<MembershipRecord>),
}

/// The part of a report about one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MembershipRecord {
    /// The multicast address.
    pub address: IpAddr,
    /// Whether the host is a member. Otherwise it may have left, and a query for this address must
    /// show whether another host behind the same port is still a member.
    pub is_member: bool,
}

impl MembershipMessage {
    /// Reads an IPv4 packet with IGMP, or an IPv6 packet with MLD. Returns `None` for any other or
    /// damaged packet.
    pub fn read(packet: &[u8]) -> Option<MembershipMessage> {
        match packet.first()? >> 4 {
            4 => read_igmp(packet),
            6 => read_mld(packet),
            _ => None,
        }
    }
}

fn read_igmp(packet: &[u8]) -> Option<MembershipMessage> {
    let header_bytes = usize::from(packet[0] & 0xf) * 4;
    let packet = packet.get(..usize::from(word(packet, 2)?))?;
    let (header, message) = packet.split_at_checked(header_bytes)?;
    let is_whole = header.len() >= IPV4_HEADER && word(header, 6)? & FRAGMENT == 0;
    if !is_whole || header[9] != IGMP || internet_checksum(&[header]) != [0; 2] {
        return None;
    }
    if internet_checksum(&[message]) != [0; 2] {
        return None;
    }
    let one = |is_member| Some(vec![MembershipRecord { address: ipv4(message, 4)?, is_member }]);
    let records = match *message.first()? {
        IGMP_QUERY => return Some(MembershipMessage::Query(ipv4(header, 12)?)),
        kind if IGMP_REPORTS.contains(&kind) => one(true)?,
        IGMP_LEAVE => one(false)?,
        IGMP3_REPORT => records(message, 4, ipv4)?,
        _ => return None,
    };
    Some(MembershipMessage::Report(only_multicast(records)))
}

fn read_mld(packet: &[u8]) -> Option<MembershipMessage> {
    let packet = packet.get(..IPV6_HEADER + usize::from(word(packet, 4)?))?;
    let (header, rest) = packet.split_at_checked(IPV6_HEADER)?;
    let options_bytes = (usize::from(*rest.get(1)?) + 1) * 8;
    let (options, message) = rest.split_at_checked(options_bytes)?;
    if header[6] != HOP_BY_HOP || options[0] != ICMPV6 {
        return None;
    }
    let (source, destination) = (ipv6(header, 8)?, ipv6(header, 24)?);
    let (IpAddr::V6(from), IpAddr::V6(to)) = (source, destination) else { return None };
    if icmpv6_checksum(from, to, message) != [0; 2] {
        return None;
    }
    let one = |is_member| Some(vec![MembershipRecord { address: ipv6(message, 8)?, is_member }]);
    let records = match *message.first()? {
        MLD_QUERY => return Some(MembershipMessage::Query(source)),
        MLD_REPORT => one(true)?,
        MLD_DONE => one(false)?,
        MLD2_REPORT => records(message, 16, ipv6)?,
        _ => return None,
    };
    Some(MembershipMessage::Report(only_multicast(records)))
}

/// Reads the records of a report of IGMPv3 or MLDv2, of which each address has `address_bytes`.
/// Returns `None` if a record is incomplete.
fn records(
    message: &[u8],
    address_bytes: usize,
    address: fn(&[u8], usize) -> Option<IpAddr>,
) -> Option<Vec<MembershipRecord>> {
    let mut rest = message.get(8..)?;
    let mut records = Vec::new();
    for _ in 0..word(message, 6)? {
        let (kind, auxiliary_words) = (*rest.first()?, usize::from(*rest.get(1)?));
        let sources = usize::from(word(rest, 2)?);
        let is_member = match kind {
            IS_EXCLUDE | TO_EXCLUDE | ALLOW_NEW => Some(true),
            IS_INCLUDE | TO_INCLUDE => Some(sources > 0),
            BLOCK_OLD => Some(false),
            _ => None,
        };
        let address = address(rest, 4)?;
        records.extend(is_member.map(|is_member| MembershipRecord { address, is_member }));
        rest = rest.get(4 + address_bytes * (1 + sources) + 4 * auxiliary_words..)?;
    }
    Some(records)
}

fn only_multicast(mut records: Vec<MembershipRecord>) -> Vec<MembershipRecord> {
    records.retain(|record| record.address.is_multicast());
    records
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn ipv4(bytes: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(Ipv4Addr::from(octets).into())
}

fn ipv6(bytes: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
    Some(Ipv6Addr::from(octets).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership_query;

    /// Returns an IPv4 packet with a message of IGMP, with correct checksums.
    fn igmp(message: &[u8]) -> Vec<u8> {
        let mut message = message.to_vec();
        let sum = internet_checksum(&[&message]);
        message[2..4].copy_from_slice(&sum);
        let length = (20 + message.len()) as u8;
        let mut packet = vec![0x45, 0, 0, length, 0, 0, 0x40, 0, 1, IGMP, 0, 0, 10, 0, 0, 7, 224, 0, 0, 22];
        let sum = internet_checksum(&[&packet]);
        packet[10..12].copy_from_slice(&sum);
        packet.extend(message);
        packet
    }

    /// Returns an IPv6 packet with a message of MLD, with a correct checksum.
    fn mld(message: &[u8]) -> Vec<u8> {
        let (source, destination) = ("fe80::7".parse().unwrap(), "ff02::16".parse().unwrap());
        let mut message = message.to_vec();
        let sum = icmpv6_checksum(source, destination, &message);
        message[2..4].copy_from_slice(&sum);
        let mut packet = vec![0x60, 0, 0, 0, 0, (8 + message.len()) as u8, HOP_BY_HOP, 1];
        packet.extend(source.octets());
        packet.extend(destination.octets());
        packet.extend([ICMPV6, 0, 5, 2, 0, 0, 1, 0]);
        packet.extend(message);
        packet
    }

    fn report(address: &str, is_member: bool) -> Option<MembershipMessage> {
        let record = MembershipRecord { address: address.parse().unwrap(), is_member };
        Some(MembershipMessage::Report(vec![record]))
    }

    #[test]
    fn reports_of_all_versions_join_and_leave() {
        for (kind, is_member) in [(0x12, true), (0x16, true), (0x17, false)] {
            let packet = igmp(&[kind, 0, 0, 0, 239, 1, 2, 3]);
            assert_eq!(MembershipMessage::read(&packet), report("239.1.2.3", is_member));
        }
        let address: [u8; 16] = "ff1e::5".parse::<Ipv6Addr>().unwrap().octets();
        for (kind, is_member) in [(131, true), (132, false)] {
            let packet = mld(&[&[kind, 0, 0, 0, 0, 0, 0, 0], &address[..]].concat());
            assert_eq!(MembershipMessage::read(&packet), report("ff1e::5", is_member));
        }
        // Of a record, its type and its number of sources.
        let records = [(1, 0, false), (1, 1, true), (2, 0, true), (3, 0, false), (3, 2, true), (4, 1, true)];
        for (kind, sources, is_member) in records.into_iter().chain([(5, 1, true), (6, 1, false)]) {
            let listed = vec![10; 4 * sources];
            let head = [0x22, 0, 0, 0, 0, 0, 0, 1, kind, 0, 0, sources as u8, 239, 1, 2, 3];
            let packet = igmp(&[&head[..], &listed].concat());
            assert_eq!(MembershipMessage::read(&packet), report("239.1.2.3", is_member), "{kind} {sources}");
            let head = [143, 0, 0, 0, 0, 0, 0, 1, kind, 0, 0, sources as u8];
            let packet = mld(&[&head[..], &address, &vec![9; 16 * sources]].concat());
            assert_eq!(MembershipMessage::read(&packet), report("ff1e::5", is_member), "{kind} {sources}");
        }
    }

    #[test]
    fn a_report_may_have_many_records_and_auxiliary_data() {
        let first = [4, 1, 0, 1, 239, 0, 0, 1, 10, 0, 0, 1, 7, 7, 7, 7];
        let (unknown, unicast) = ([9, 0, 0, 0, 239, 0, 0, 2], [4, 0, 0, 0, 10, 0, 0, 2]);
        let last = [3, 0, 0, 0, 239, 0, 0, 3];
        let message = [&[0x22, 0, 0, 0, 0, 0, 0, 4][..], &first, &unknown, &unicast, &last].concat();
        let record = |last: u8, is_member| MembershipRecord { address: [239, 0, 0, last].into(), is_member };
        let expected = MembershipMessage::Report(vec![record(1, true), record(3, false)]);
        assert_eq!(MembershipMessage::read(&igmp(&message)), Some(expected));
        // One record more than there is.
        let mut short = message.clone();
        short[7] = 5;
        assert_eq!(MembershipMessage::read(&igmp(&short)), None);
    }

    #[test]
    fn queries_of_switches_have_no_source() {
        let read = |packet: &[u8]| MembershipMessage::read(packet);
        let packet = membership_query::igmp_query_packet(None);
        assert_eq!(read(&packet), Some(MembershipMessage::Query(Ipv4Addr::UNSPECIFIED.into())));
        let source = "fe80::1".parse().unwrap();
        let packet = membership_query::mld_query_packet(source, None);
        assert_eq!(read(&packet), Some(MembershipMessage::Query(source.into())));
    }

    #[test]
    fn damaged_packets_and_other_protocols_are_ignored() {
        let address = [0xff, 0x1e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
        let packets = [
            igmp(&[0x16, 0, 0, 0, 239, 1, 2, 3]),
            igmp(&[0x22, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 239, 1, 2, 3]),
            mld(&[&[143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0][..], &address].concat()),
        ];
        for packet in packets {
            assert!(MembershipMessage::read(&packet).is_some());
            for length in 0..packet.len() {
                assert_eq!(MembershipMessage::read(&packet[..length]), None, "{length} bytes");
            }
            // Padding of the Ethernet frame does not count.
            assert!(MembershipMessage::read(&[&packet[..], &[0; 6]].concat()).is_some());
            let mut damaged = packet.clone();
            *damaged.last_mut().unwrap() ^= 1;
            assert_eq!(MembershipMessage::read(&damaged), None);
        }
    }
}
