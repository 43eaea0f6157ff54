//! LLDP frames of ordinary switches, from any device at a data interface: texts of a decoded
//! neighbor must be printable and short, and a table of neighbors must forget it in the end.

use cool_machine::{Duration, Machine, Poll, Time};
use cool_topology::LldpNeighbor;
use cool_topology::lldp_neighbor::NeighborTable;

pub(crate) fn check(bytes: &[u8]) {
    let decoded = LldpNeighbor::decode(bytes).ok().flatten();
    assert!(decoded.iter().all(|(neighbor, _)| neighbor.is_valid()), "{decoded:?}");
    let mut table = NeighborTable::default();
    table.handle(Time::ZERO, bytes);
    let expected = decoded.filter(|(_, ttl_seconds)| *ttl_seconds > 0);
    match (table.poll(Time::ZERO), expected) {
        (Poll::Output(neighbor), Some((expected, _))) => assert_eq!(neighbor, Some(expected)),
        (Poll::Idle(None), None) => return,
        (polled, expected) => panic!("{polled:?} instead of {expected:?}"),
    }
    let end = Time::ZERO + Duration::from_secs(u16::MAX.into());
    assert_eq!((table.poll(end), table.poll(end)), (Poll::Output(None), Poll::Idle(None)));
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    let lldpd = include_bytes!("../../../core/topology/src/samples/lldpd.bin");
    let ours = cool_topology::lldp::Announcement::Node { name: "h1".into(), mac: cool_topology::MacAddr::broadcast() };
    let ours = ours.encode(cool_topology::MacAddr::broadcast(), &[5; 32].into(), 1).unwrap();
    vec![lldpd.to_vec(), b"\x02\x02\x07a\x04\x02\x07b\x06\x02\x00\x78\x0a\x05leaf1\x00\x00".to_vec(), ours[14..].to_vec()]
}

target!();
