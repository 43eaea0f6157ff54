//! Carries multicast of other programs: installs flows that lead packets from any port to the
//! members of their address, over a spanning tree of the switches.
//!
//! All addresses use the same spanning tree, of which each uses the links that lead to members. The
//! sources of packets need not be known. Without an address in use there are no such flows.

use super::Network;
use super::switch_table::SwitchTable;
use crate::intent::multicast::MulticastKey;
use cool_topology::spanning_tree::SpanningTree;
use cool_topology::{DatapathId, Link, Port};
use std::collections::{BTreeMap, BTreeSet};

/// The spanning tree, and the flows that are desired.
#[derive(Debug, Default)]
pub(super) struct HostMulticast {
    tree: SpanningTree,
    carried: BTreeMap<MulticastKey, CarriedAddress>,
    /// Ports that must not send multicast.
    refused: BTreeSet<Port>,
    /// Number of changes of members and ports that were processed, and of switches, and whether the
    /// network was settled then.
    processed: (u64, u64, bool),
}

/// An address in use.
#[derive(Debug)]
struct CarriedAddress {
    receivers: BTreeSet<Port>,
    /// Switches with a flow.
    switches: BTreeSet<DatapathId>,
}

impl Network {
    /// Brings the flows in line with the members, the ports and, if it has changed, the topology.
    pub(super) fn carry_multicast(&mut self, topology_changed: bool) {
        let memberships = self.host_forwarder.memberships();
        let state = (memberships.revision(), self.switches.revision(), self.switches.is_settled());
        let processed = core::mem::replace(&mut self.host_multicast.processed, state);
        if !self.host_forwarder.serves_hosts() || (state == processed && !topology_changed) {
            return;
        }
        let Network { host_multicast: HostMulticast { tree, carried, refused, .. }, intent, .. } = self;
        let links: BTreeSet<Link> = self.discovery.graph().links().collect();
        tree.update(&links, state.2, |_| false);
        let only_members = !topology_changed && (state.1, state.2) == (processed.1, processed.2);
        let mut before = core::mem::take(carried);
        for (key, receivers) in memberships.receivers() {
            let mut old = before.remove(&key);
            if let Some(same) = old.take_if(|old| only_members && old.receivers == receivers) {
                carried.insert(key, same);
                continue;
            }
            let outputs = tree.outputs(&receivers);
            for (switch, ports) in &outputs {
                intent.carry(*switch, key, Some(ports));
            }
            let switches: BTreeSet<DatapathId> = outputs.into_keys().collect();
            for switch in old.iter().flat_map(|old| old.switches.difference(&switches)) {
                intent.carry(*switch, key, None);
            }
            carried.insert(key, CarriedAddress { receivers, switches });
        }
        for (key, old) in before {
            old.switches.into_iter().for_each(|switch| intent.carry(switch, key, None));
        }
        let closed = if carried.is_empty() {
            BTreeSet::new()
        } else {
            closed_ports(&self.switches, memberships.open_ports(), tree)
        };
        for port in refused.difference(&closed) {
            intent.refuse_multicast(*port, false);
        }
        closed.iter().for_each(|port| intent.refuse_multicast(*port, true));
        *refused = closed;
    }
}

/// Returns the ports from which no multicast is accepted: those that may be part of a loop outside
/// of the network, and links that are not part of the tree.
fn closed_ports(switches: &SwitchTable, open: &BTreeSet<Port>, tree: &SpanningTree) -> BTreeSet<Port> {
    let ends: BTreeSet<Port> = tree.links().iter().flat_map(|link| [link.a, link.b]).collect();
    let ports = switches
        .iter()
        .flat_map(|(switch, state)| state.ports.keys().map(move |number| Port { switch, number: *number }));
    ports.filter(|port| !open.contains(port) && !ends.contains(port)).collect()
}
