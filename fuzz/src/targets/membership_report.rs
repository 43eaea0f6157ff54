//! IP packets that any host sends to a switch: a report names multicast addresses only, and no more
//! of them than fit into the packet.

use cool_topology::membership_report::MembershipMessage;

/// The shortest record of a report, that of IGMPv3 without sources.
const RECORD_BYTES_MIN: usize = 8;

pub(crate) fn check(bytes: &[u8]) {
    if let Some(MembershipMessage::Report(records)) = MembershipMessage::read(bytes) {
        assert!(records.len() <= bytes.len() / RECORD_BYTES_MIN);
        assert!(records.iter().all(|record| record.address.is_multicast()));
    }
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    use cool_topology::checksum::internet_checksum;
    use cool_topology::membership_query::{igmp_query_packet, mld_query_packet};
    // A report of two addresses by IGMPv3, one of them with a source.
    let mut report = vec![0x22, 0, 0, 0, 0, 0, 0, 2, 4, 0, 0, 0, 239, 1, 2, 3, 1, 0, 0, 1, 232, 1, 2, 3];
    report.extend([10, 0, 0, 1]);
    let sum = internet_checksum(&[&report]);
    report[2..4].copy_from_slice(&sum);
    let mut packet = vec![0x45, 0, 0, (20 + report.len()) as u8, 0, 0, 0, 0, 1, 2, 0, 0, 10, 0, 0, 7];
    packet.extend([224, 0, 0, 22]);
    let sum = internet_checksum(&[&packet]);
    packet[10..12].copy_from_slice(&sum);
    packet.extend(report);
    let mld = mld_query_packet("fe80::1".parse().unwrap(), "ff1e::5".parse().ok());
    vec![packet, igmp_query_packet(None), mld]
}

target!();
