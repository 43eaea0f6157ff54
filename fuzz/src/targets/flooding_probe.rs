//! IP packets of any host at a data interface: a probe must have the address, and must survive
//! being sent again.

use cool_topology::flooding_probe::{FloodingProbe, PROBE_BYTES_MIN};
use std::net::IpAddr;

const ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(239, 195, 255, 255)),
    IpAddr::V6(std::net::Ipv6Addr::new(0xff18, 0, 0, 0, 0x434f, 0x4f4c, 0xc003, 0xffff)),
];

pub(crate) fn check(bytes: &[u8]) {
    for to in ADDRESSES {
        let Some(probe) = FloodingProbe::from_packet(bytes, to) else { continue };
        assert_eq!(bytes[0] >> 4, if to.is_ipv6() { 6 } else { 4 });
        let payload = probe.payload(bytes.len(), to.is_ipv6());
        assert!(payload.len() >= PROBE_BYTES_MIN);
        assert_eq!(FloodingProbe::from_payload(&payload), Some(probe));
    }
    if let Some(probe) = FloodingProbe::from_payload(bytes) {
        assert!(bytes.starts_with(&probe.payload(0, false)));
    }
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    let probe = FloodingProbe { nonce: [3; cool_topology::flooding_probe::NONCE_BYTES], train: 1 };
    let packet = |to: IpAddr| {
        let mut header = match to {
            IpAddr::V4(to) => {
                [&[0x45, 0, 0, 0, 0, 0, 0, 0, 8, 17, 0, 0, 10, 0, 0, 1], &to.octets()[..]].concat()
            }
            IpAddr::V6(to) => [&[0x60, 0, 0, 0, 0, 0, 17, 8], &[0; 16][..], &to.octets()].concat(),
        };
        header.extend([0; 8]);
        header.extend(probe.payload(0, to.is_ipv6()));
        header
    };
    vec![packet(ADDRESSES[0]), packet(ADDRESSES[1]), probe.payload(0, false)]
}

target!();
