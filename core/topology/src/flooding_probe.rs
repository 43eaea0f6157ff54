//! Probes that show whether a network floods: one node multicasts them, another one has joined
//! their address, and all others should not receive them.

use core::net::IpAddr;

/// Length of the random number of an examination.
pub const NONCE_BYTES: usize = 16;
/// The shortest probe. The rest of a longer one is padding.
pub const PROBE_BYTES_MIN: usize = MAGIC.len() + NONCE_BYTES + 1;

/// The first bytes, by which a person recognizes a probe.
const MAGIC: [u8; 8] = *b"coolfld1";

const UDP: u8 = 17;
const UDP_HEADER: usize = 8;
const IPV6_HEADER: usize = 40;
const IPV4_HEADER_MIN: usize = 20;
/// Bits of the flags and the fragment offset of IPv4 that are set in all fragments but the last,
/// or in all but the first.
const FRAGMENT: u16 = 0x3fff;

/// A probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloodingProbe {
    /// The random number of the examination, which only its nodes know.
    pub nonce: [u8; NONCE_BYTES],
    /// The number of the train to which the probe belongs.
    pub train: u8,
}

impl FloodingProbe {
    /// Returns the payload of the UDP datagram, padded so that its IP packet has this length. It is
    /// not shorter than [`PROBE_BYTES_MIN`].
    pub fn payload(&self, packet_bytes: usize, is_ipv6: bool) -> Vec<u8> {
        let headers = UDP_HEADER + if is_ipv6 { IPV6_HEADER } else { IPV4_HEADER_MIN };
        let mut payload = [&MAGIC[..], &self.nonce, &[self.train]].concat();
        payload.resize(packet_bytes.saturating_sub(headers).max(PROBE_BYTES_MIN), 0);
        payload
    }

    /// Returns the probe in the payload of a UDP datagram, if it is one.
    pub fn from_payload(payload: &[u8]) -> Option<FloodingProbe> {
        let (nonce, rest) = payload.strip_prefix(&MAGIC)?.split_first_chunk()?;
        Some(FloodingProbe { nonce: *nonce, train: *rest.first()? })
    }

    /// Returns the probe in an IP packet to this address, if it is one. The end of the packet may
    /// be missing.
    pub fn from_packet(packet: &[u8], to: IpAddr) -> Option<FloodingProbe> {
        let datagram = match to {
            IpAddr::V4(to) => {
                let header = usize::from(*packet.first()? & 0xf) * 4;
                let fragment = u16::from_be_bytes(packet.get(6..8)?.try_into().ok()?) & FRAGMENT;
                let is_for_us = packet[0] >> 4 == 4
                    && header >= IPV4_HEADER_MIN
                    && fragment == 0
                    && *packet.get(9)? == UDP
                    && packet.get(16..20)? == to.octets();
                is_for_us.then(|| packet.get(header..))??
            }
            IpAddr::V6(to) => {
                let is_for_us = *packet.first()? >> 4 == 6
                    && *packet.get(6)? == UDP
                    && packet.get(24..IPV6_HEADER)? == to.octets();
                is_for_us.then(|| packet.get(IPV6_HEADER..))??
            }
        };
        FloodingProbe::from_payload(datagram.get(UDP_HEADER..)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBE: FloodingProbe = FloodingProbe { nonce: [7; NONCE_BYTES], train: 1 };

    /// Returns an IP packet with the probe to this address.
    fn packet(to: IpAddr) -> Vec<u8> {
        let payload = PROBE.payload(1500, to.is_ipv6());
        let mut packet = match to {
            IpAddr::V4(to) => {
                let mut header = vec![0; 20];
                (header[0], header[9]) = (0x45, UDP);
                header[16..20].copy_from_slice(&to.octets());
                header
            }
            IpAddr::V6(to) => {
                let mut header = vec![0; 40];
                (header[0], header[6]) = (0x60, UDP);
                header[24..40].copy_from_slice(&to.octets());
                header
            }
        };
        packet.extend([0; UDP_HEADER]);
        packet.extend(payload);
        packet
    }

    #[test]
    fn probes_fill_the_packet_and_are_recognized() {
        for to in ["239.195.255.255", "ff18::434f:4f4c:c003:ffff"].map(|to| to.parse().unwrap()) {
            let packet = packet(to);
            assert_eq!(packet.len(), 1500);
            assert_eq!(FloodingProbe::from_packet(&packet, to), Some(PROBE));
            assert_eq!(FloodingProbe::from_packet(&packet[..80], to), Some(PROBE), "the end may be missing");
        }
        assert_eq!(PROBE.payload(0, false).len(), PROBE_BYTES_MIN);
    }

    #[test]
    fn other_packets_are_no_probes() {
        let to: IpAddr = "239.195.255.255".parse().unwrap();
        let whole = packet(to);
        let changed = |at: usize, value| {
            let mut other = whole.clone();
            other[at] = value;
            FloodingProbe::from_packet(&other, to)
        };
        // The version, the header's length, a fragment, the protocol, the address, and the magic.
        for (at, value) in [(0, 0x55), (0, 0x44), (6, 0x20), (7, 1), (9, 6), (19, 1), (28, b'C')] {
            assert_eq!(changed(at, value), None, "byte {at}");
        }
        assert_eq!(changed(6, 0x40), Some(PROBE), "it must not be fragmented");
        let shortest = 20 + UDP_HEADER + PROBE_BYTES_MIN;
        (0..shortest).for_each(|length| assert_eq!(FloodingProbe::from_packet(&whole[..length], to), None));
        assert_eq!(FloodingProbe::from_packet(&whole[..shortest], to), Some(PROBE));
        assert_eq!(FloodingProbe::from_packet(&whole, "ff18::1".parse().unwrap()), None);
    }
}
