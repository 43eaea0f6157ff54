//! The record of datagrams that do not arrive at this node, which `cool doctor` reports.

use cool_types::name_list;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a fault is remembered and reported unless a later test passes.
const FAULT_LIFETIME: Duration = Duration::from_secs(3600);

/// Maximum number of senders and trees whose faults are remembered.
const FAULTS_MAX: usize = 64;

/// The recent failures of datagrams to arrive at this node, by sender or tree.
#[derive(Debug, Default)]
pub(crate) struct DatagramFaults(Mutex<BTreeMap<IpAddr, (Instant, String)>>);

impl DatagramFaults {
    /// Returns the faults as text, each with a remedy.
    pub(crate) fn texts(&self) -> Vec<String> {
        let mut faults = self.lock();
        faults.retain(|_, (since, _)| since.elapsed() < FAULT_LIFETIME);
        faults.values().map(|(_, text)| text.clone()).collect()
    }

    /// Records that datagrams of this many bytes from an agent do not arrive, although shorter ones
    /// do.
    pub(crate) fn record_length(&self, from: SocketAddr, bytes: u64) {
        let text = format!(
            "datagrams of {bytes} bytes from {from} do not arrive, although shorter ones do, so multicasts are sent in short \
             datagrams, which is slower: set the same MTU on all interfaces and switch ports between the nodes"
        );
        self.record(from.ip(), text);
    }

    /// Records that this node, with this address, cannot join a tree.
    pub(crate) fn record_unjoined_tree(&self, tree: IpAddr, ip: IpAddr, error: &std::io::Error) {
        let text = format!(
            "multicasts to {tree} are not received on the data interface {ip} ({error}), so the node gets their data from other \
             nodes, which is slower: see net.ipv4.igmp_max_memberships, net.ipv4.igmp_max_msf and the limit of open files"
        );
        self.record(tree, text);
    }

    /// Records that multicasts of a tree do not arrive although this node has renewed its
    /// membership.
    pub(crate) fn record_silent_tree(&self, tree: IpAddr, ip: IpAddr) {
        let text = format!(
            "multicasts to {tree} do not arrive on the data interface {ip} although other nodes receive them, so the node gets \
             their data from other nodes, which is slower: see the multicast settings of its switch port, and its firewall"
        );
        self.record(tree, text);
    }

    /// Records that multicasts of this node over a source-specific tree do not arrive at some
    /// nodes.
    pub(crate) fn record_unproven_source(&self, tree: IpAddr, ip: IpAddr, nodes: &[String]) {
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let text = format!(
            "multicasts of the data interface {ip} to {tree} do not arrive at {}, so its messages are sent along chains, which is \
             slower: routers need PIM with source-specific multicast for this range, and IGMPv3 or MLDv2 in each subnet",
            name_list(&nodes)
        );
        self.record(tree, text);
    }

    pub(crate) fn is_recent(&self, from: IpAddr) -> bool {
        self.lock().get(&from).is_some_and(|(since, _)| since.elapsed() < FAULT_LIFETIME)
    }

    pub(crate) fn record(&self, from: IpAddr, text: String) {
        tracing::warn!("{text}");
        let mut faults = self.lock();
        if faults.len() < FAULTS_MAX || faults.contains_key(&from) {
            faults.insert(from, (Instant::now(), text));
        }
    }

    pub(crate) fn clear(&self, from: IpAddr) {
        self.lock().remove(&from);
    }

    // Every change is one insertion or removal, so a panic elsewhere leaves the map consistent.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, (Instant, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_that_does_not_arrive_is_reported_with_its_sender() {
        let (faults, from) = (DatagramFaults::default(), SocketAddr::from(([10, 0, 0, 7], 7420)));
        faults.record_length(from, 8972);
        let texts = faults.texts();
        assert!(texts[0].contains("8972") && texts[0].contains("10.0.0.7:7420"), "{}", texts[0]);
        assert!(texts[0].len() <= 400, "the controller cuts longer texts");
        faults.clear(from.ip());
        assert!(faults.texts().is_empty());
    }
}
