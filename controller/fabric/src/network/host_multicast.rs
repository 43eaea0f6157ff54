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
    /// Switches with a flow for each address.
    carried: BTreeMap<MulticastKey, BTreeSet<DatapathId>>,
    /// Ports that must not send multicast.
    refused: BTreeSet<Port>,
    /// Number of changes of members, ports and switches that were processed, and whether the
    /// network was settled then.
    processed: (u64, bool),
}

impl Network {
    /// Brings the flows in line with the members, the ports and, if it has changed, the topology.
    pub(super) fn carry_multicast(&mut self, topology_changed: bool) {
        let revision = self.host_forwarder.memberships().revision() + self.switches.revision();
        let state = (revision, self.switches.is_settled());
        if !self.host_forwarder.serves_hosts()
            || (state == self.host_multicast.processed && !topology_changed)
        {
            return;
        }
        let Network { host_multicast, intent, .. } = self;
        host_multicast.processed = state;
        let links: BTreeSet<Link> = self.discovery.graph().links().collect();
        host_multicast.tree.update(&links, state.1, |_| false);
        let mut before = core::mem::take(&mut host_multicast.carried);
        for (key, receivers) in self.host_forwarder.memberships().receivers() {
            let outputs = host_multicast.tree.outputs(&receivers);
            for (switch, ports) in &outputs {
                intent.carry(*switch, key, Some(ports));
            }
            let switches: BTreeSet<DatapathId> = outputs.into_keys().collect();
            for switch in before.remove(&key).unwrap_or_default().difference(&switches) {
                intent.carry(*switch, key, None);
            }
            host_multicast.carried.insert(key, switches);
        }
        for (key, switches) in before {
            switches.into_iter().for_each(|switch| intent.carry(switch, key, None));
        }
        let is_in_use = !host_multicast.carried.is_empty();
        let open = self.host_forwarder.memberships().open_ports();
        let refused = if is_in_use {
            closed_ports(&self.switches, open, &host_multicast.tree)
        } else {
            BTreeSet::new()
        };
        for port in host_multicast.refused.difference(&refused) {
            intent.refuse_multicast(*port, false);
        }
        refused.iter().for_each(|port| intent.refuse_multicast(*port, true));
        host_multicast.refused = refused;
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
