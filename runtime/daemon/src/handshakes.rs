//! Bounds the connections that have not authenticated yet.
//!
//! Anyone who reaches a port may open connections and prove nothing. Beyond the limit, each new
//! connection therefore replaces the oldest unfinished handshake of the source with the most, so
//! that clients of other sources are always served. The addresses of an IPv6 network (/64) count as
//! one source, because one host may use all of them.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Maximum number of unfinished handshakes of one listener. All agents of a large cluster may
/// reconnect at once.
const MAX_HANDSHAKES: usize = 1024;

/// The unfinished handshakes of a listener.
#[derive(Debug, Default)]
pub(crate) struct PendingHandshakes {
    table: Mutex<HandshakeTable>,
}

#[derive(Debug, Default)]
struct HandshakeTable {
    /// Number of the latest handshake.
    last: u64,
    count: usize,
    /// The handshakes of each source by number, oldest first. Dropping a sender ends its handshake.
    by_source: BTreeMap<IpAddr, BTreeMap<u64, oneshot::Sender<()>>>,
}

/// An unfinished handshake. It must be dropped when the handshake has ended.
#[derive(Debug)]
pub(crate) struct PendingHandshake {
    pending: Arc<PendingHandshakes>,
    source: IpAddr,
    number: u64,
    replaced: oneshot::Receiver<()>,
}

impl PendingHandshakes {
    /// Records a new handshake, which replaces another one if there are too many.
    pub(crate) fn begin(self: &Arc<PendingHandshakes>, address: IpAddr) -> PendingHandshake {
        let (sender, replaced) = oneshot::channel();
        let source = source(address);
        let mut table = self.table.lock();
        if table.count >= MAX_HANDSHAKES {
            table.drop_one();
        }
        table.last += 1;
        table.count += 1;
        let number = table.last;
        table.by_source.entry(source).or_default().insert(number, sender);
        PendingHandshake { pending: self.clone(), source, number, replaced }
    }
}

impl HandshakeTable {
    /// Ends the oldest handshake of the source with the most; among equal ones, that of the source
    /// with the oldest.
    fn drop_one(&mut self) {
        let oldest = |handshakes: &BTreeMap<u64, _>| handshakes.first_key_value().map(|(number, _)| *number);
        let order = |handshakes: &BTreeMap<u64, _>| (handshakes.len(), std::cmp::Reverse(oldest(handshakes)));
        let most = self.by_source.iter().max_by_key(|(_, handshakes)| order(handshakes));
        if let Some((source, number)) = most.and_then(|(source, all)| Some((*source, oldest(all)?))) {
            self.remove(source, number);
        }
    }

    fn remove(&mut self, source: IpAddr, number: u64) {
        let Some(handshakes) = self.by_source.get_mut(&source) else { return };
        self.count -= usize::from(handshakes.remove(&number).is_some());
        if handshakes.is_empty() {
            self.by_source.remove(&source);
        }
    }
}

impl PendingHandshake {
    /// Completes when another handshake has replaced this one. Cancel-safe.
    pub(crate) async fn replaced(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.replaced).await;
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        self.pending.table.lock().remove(self.source, self.number);
    }
}

fn source(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(address) => address.into(),
            None => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_replaced(handshake: &mut PendingHandshake) -> bool {
        handshake.replaced.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn silent_connections_give_way_to_those_of_other_sources() {
        let pending = Arc::new(PendingHandshakes::default());
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        let mut good = pending.begin(address(1));
        let mut bad: Vec<_> =
            (0..3 * MAX_HANDSHAKES).map(|i| pending.begin(address(2 + (i % 2) as u8))).collect();
        assert!(!is_replaced(&mut good), "its source has fewer");
        let mut second = pending.begin(address(9));
        bad.extend((0..MAX_HANDSHAKES).map(|_| pending.begin(address(2))));
        assert!(!is_replaced(&mut good) && !is_replaced(&mut second));
        let unfinished: usize = bad.iter_mut().map(|bad| usize::from(!is_replaced(bad))).sum();
        assert_eq!(unfinished, MAX_HANDSHAKES - 2);
        drop(bad);
        assert_eq!(pending.table.lock().count, 2);
        drop((good, second));
        assert!(pending.table.lock().by_source.is_empty());
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_are_one_source() {
        let parsed = |text: &str| source(text.parse().unwrap());
        assert_eq!(parsed("fd00::1"), parsed("fd00::ffff:2"));
        assert_ne!(parsed("fd00::1"), parsed("fd00:0:0:1::1"));
        assert_eq!(parsed("::ffff:10.0.0.1"), parsed("10.0.0.1"));
    }
}
