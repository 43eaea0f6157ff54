//! Bytes of headers on the wire. The codecs are `cool-transport`'s, whose tests tie these figures to what they write.

use core::net::IpAddr;

/// Ethernet's header (IEEE 802.3), without preamble, check sequence and gap, as Linux counts a link's bytes.
pub const ETHERNET: u64 = 14;

/// IPv4's header without options (RFC 791).
pub const IPV4: u64 = 20;

/// IPv6's header without extensions (RFC 8200).
pub const IPV6: u64 = 40;

/// What the header of a packet to or from an address is longer than IPv4's, of which the sums below are.
pub const fn beyond_ipv4(ip: &IpAddr) -> u64 {
    if ip.is_ipv6() { IPV6 - IPV4 } else { 0 }
}

/// UDP's header (RFC 768).
pub const UDP: u64 = 8;

/// TCP's header (RFC 9293) with timestamps (RFC 7323), which Linux sends unless told otherwise.
pub const TCP: u64 = 20 + 12;

/// Headers around the payload of a UDP datagram.
pub const DATAGRAM_FRAMING: u64 = ETHERNET + IPV4 + UDP;

/// Headers within an IP packet before the payload of a TCP segment.
pub const TCP_IP: u64 = IPV4 + TCP;

/// What stands before the payload of a multicast stream's data packet.
pub const STREAM_DATA_HEADER: u64 = 48;

/// The tag at the end of a datagram of a group that has a key: GMAC's 16 bytes cut to 12, as NIST SP 800-38D allows.
pub const STREAM_TAG: u64 = 12;

/// The tag at the end of one whose payload is encrypted (AES-GCM).
pub const STREAM_CIPHER_TAG: u64 = 16;

/// What stands before the payload of a unicast message's data frame, with its length.
pub const MESSAGE_DATA_HEADER: u64 = 61;
