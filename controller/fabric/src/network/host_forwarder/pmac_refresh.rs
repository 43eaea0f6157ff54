//! Keeps switches between a port and its hosts from forgetting the PMACs of nodes.
//!
//! Hosts send to a node's PMAC, but the node sends with its own Ethernet address. A switch without
//! OpenFlow behind an edge port would therefore forget after some minutes (300 s by default, IEEE
//! 802.1Q, 8.8.3) where the PMAC is, and flood all packets to it. The PMACs that hosts have
//! received are announced to them from time to time.

use crate::network::deadlines::Deadlines;
use cool_machine::{Duration, Time};
use cool_topology::{DatapathId, Port};
use std::collections::{BTreeMap, BTreeSet};

/// Interval at which PMACs are announced again. It is shorter than the usual shortest aging times.
pub(super) const REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of nodes that are announced to the hosts of a port.
const NODES_MAX: usize = 1024;

/// The nodes of which the hosts at each port have received the PMAC.
#[derive(Debug, Default)]
pub(super) struct PmacRefresh {
    known: BTreeMap<Port, BTreeSet<String>>,
    due: Deadlines<Port>,
}

impl PmacRefresh {
    /// Records that hosts at a port have received the PMAC of a node.
    pub(super) fn record(&mut self, now: Time, port: Port, node: &str) {
        let known = self.known.entry(port).or_insert_with(|| {
            self.due.set(port, now + REFRESH_INTERVAL);
            BTreeSet::new()
        });
        if known.len() < NODES_MAX && !known.contains(node) {
            known.insert(node.to_owned());
        }
    }

    /// Records that a port has no hosts any more.
    pub(super) fn forget(&mut self, port: Port) {
        self.known.remove(&port);
        self.due.clear(port);
    }

    pub(super) fn switch_removed(&mut self, switch: DatapathId) {
        let ports: Vec<Port> = self.known.keys().copied().filter(|port| port.switch == switch).collect();
        ports.into_iter().for_each(|port| self.forget(port));
    }

    /// Returns a port whose hosts must receive the PMACs of nodes again, with the names of these.
    /// Only nodes for which `keeps` returns true are kept.
    pub(super) fn take_due(
        &mut self,
        now: Time,
        keeps: impl Fn(Port, &str) -> bool,
    ) -> Option<(Port, BTreeSet<String>)> {
        let port = self.due.expired(now)?;
        let known = self.known.get_mut(&port)?;
        known.retain(|node| keeps(port, node));
        let nodes = known.clone();
        match nodes.is_empty() {
            true => self.forget(port),
            false => self.due.set(port, now + REFRESH_INTERVAL),
        }
        Some((port, nodes))
    }

    /// Returns when the next port is due.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.due.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_announced_again_while_the_port_has_hosts() {
        let port = |number| Port { switch: DatapathId(1), number };
        let at = |intervals: u32| Time::ZERO + REFRESH_INTERVAL * intervals;
        let mut refresh = PmacRefresh::default();
        for (number, node) in [(1, "h1"), (1, "h2"), (1, "h1"), (2, "h1")] {
            refresh.record(at(0), port(number), node);
        }
        refresh.forget(port(2));
        assert_eq!((refresh.take_due(at(0), |_, _| true), refresh.deadline()), (None, Some(at(1))));
        let both = BTreeSet::from(["h1".to_owned(), "h2".to_owned()]);
        assert_eq!(refresh.take_due(at(1), |_, _| true), Some((port(1), both)));
        let left = BTreeSet::from(["h2".to_owned()]);
        assert_eq!(refresh.take_due(at(2), |_, node| node == "h2"), Some((port(1), left)));
        assert_eq!(refresh.take_due(at(3), |_, _| false), Some((port(1), BTreeSet::new())));
        assert_eq!(refresh.deadline(), None);
    }
}
