//! IGMP packets and ICMPv6 messages of any host at a data interface: only general queries count,
//! and a monitor must forget their sender in the end.

use cool_machine::{Duration, Machine, Poll, Time};
use cool_topology::membership_query::{igmp_querier, is_mld_query};
use cool_topology::querier::{QuerierInput, QuerierMonitor, QuerierOutput};

pub(crate) fn check(bytes: &[u8]) {
    assert!(!is_mld_query(bytes) || bytes[0] == 130);
    let Some(querier) = igmp_querier(bytes) else { return };
    let header = usize::from(bytes[0] & 0xf) * 4;
    assert_eq!((bytes[header], &bytes[header + 4..header + 8]), (0x11, &[0; 4][..]));
    let mut monitor = QuerierMonitor::default();
    monitor.handle(Time::ZERO, QuerierInput::Heard(querier));
    assert_eq!(monitor.poll(Time::ZERO), Poll::Output(QuerierOutput::Changed(Some(querier))));
    let end = Time::ZERO + Duration::from_secs(1000);
    assert_eq!(monitor.poll(end), Poll::Output(QuerierOutput::Changed(None)));
    assert_eq!(monitor.poll(end), Poll::Idle(None));
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    use cool_topology::membership_query::{igmp_query_packet, mld_query_packet};
    let mld = mld_query_packet("fe80::1".parse().unwrap(), None);
    vec![igmp_query_packet(None), mld[48..].to_vec(), mld]
}

target!();
