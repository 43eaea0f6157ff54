//! Sizes of headers on the wire, in bytes. The codecs are in `cool-transport`; its tests check
//! these figures against the encoded packets.

use core::net::IpAddr;

/// Ethernet header (IEEE 802.3) without preamble, check sequence and gap, which Linux does not
/// count either.
pub const ETHERNET: u64 = 14;

/// IPv4 header without options (RFC 791).
pub const IPV4: u64 = 20;

/// IPv6 header without extensions (RFC 8200).
pub const IPV6: u64 = 40;

/// Returns the bytes by which the IP header of a packet to or from `ip` is longer than an IPv4
/// header. The sums below are for IPv4, so this must be added to them.
pub const fn beyond_ipv4(ip: &IpAddr) -> u64 {
    if ip.is_ipv6() { IPV6 - IPV4 } else { 0 }
}

/// UDP header (RFC 768).
pub const UDP: u64 = 8;

/// TCP header (RFC 9293) with timestamps (RFC 7323), which Linux sends by default.
pub const TCP: u64 = 20 + 12;

/// Headers around the payload of a UDP datagram.
pub const DATAGRAM_FRAMING: u64 = ETHERNET + IPV4 + UDP;

/// Headers within an IP packet before the payload of a TCP segment.
pub const TCP_IP: u64 = IPV4 + TCP;

/// Header before the payload of a multicast stream's data packet.
pub const STREAM_DATA_HEADER: u64 = 48;

/// Tag at the end of a datagram of a group that has a key: the 16 bytes of GMAC cut to 12, which
/// NIST SP 800-38D permits.
pub const STREAM_TAG: u64 = 12;

/// Tag at the end of a datagram with an encrypted payload (AES-GCM).
pub const STREAM_CIPHER_TAG: u64 = 16;

/// Header before the payload of a unicast message's data frame, including its length field.
pub const MESSAGE_DATA_HEADER: u64 = 61;
