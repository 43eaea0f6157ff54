//! The Internet checksum (RFC 1071), which is zero for data that contains the right one.

use core::net::Ipv6Addr;

/// The protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;

/// Returns the Internet checksum of consecutive parts, in network byte order. All parts except the
/// last must have even lengths.
pub fn internet_checksum(parts: &[&[u8]]) -> [u8; 2] {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u32 =
        words.map(|word| u32::from(u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// Returns the checksum of an ICMPv6 message between two addresses (RFC 4443, 2.3), in network byte
/// order.
pub fn icmpv6_checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> [u8; 2] {
    let length = (message.len() as u32).to_be_bytes();
    internet_checksum(&[&source.octets(), &destination.octets(), &length, &[0, 0, 0, ICMPV6], message])
}
