//! What every switch is to hold, computed from the network, its nodes and the groups' trees.
//!
//! Everything is installed ahead of traffic and nothing is flooded; what no flow matches is dropped.

use super::api::NodeRegistration;
use super::locator;
use super::tables::{COOKIE, Flow, FlowKey, GROUPS, Tables};
use cool_topology::{DatapathId, Graph, Mac, Racks, Tree, paths};
use core::net::Ipv4Addr;
use rs_openflow::{Action, EtherType, GroupId, Instruction, MacAddr, Masked, Match, Oxm, PortNo};
use std::collections::BTreeMap;

/// Multicast addresses: 239.192.0.0/14 (RFC 2365), one for each of [`GROUPS`].
const MULTICAST: u32 = u32::from_be_bytes([239, 192, 0, 0]);

// Priorities. Only the last overlaps with others.
const LLDP: u16 = 50_000;
const ARP: u16 = 49_000;
const TREE: u16 = 40_000;
const NODE: u16 = 30_010;
const RACK: u16 = 30_000;
/// Above 0, where a switch may have a flow of its own that floods.
const DROP: u16 = 1;

/// What a flow is for: the top byte of the cookie's low half.
const FOR_TREE: u64 = 1 << 24;
const FOR_RACK: u64 = 2 << 24;
const FOR_NODE: u64 = 3 << 24;

/// The multicast address of a tree, by its group number.
pub(super) fn address(group: u32) -> Ipv4Addr {
    Ipv4Addr::from(MULTICAST + (group - GROUPS.start))
}

/// Whether a flow forwards unicast. While a switch's neighbourhood is still being discovered such flows
/// stay, so that a controller that restarts does not interrupt traffic.
pub(super) fn is_unicast(flow: &Flow) -> bool {
    matches!(flow.cookie & 0xff00_0000, FOR_RACK | FOR_NODE)
}

/// The rack that a switch was the ToR of, by the flows that it holds.
pub(super) fn former_rack(tables: &Tables) -> Option<u32> {
    tables.flows.iter().filter(|(_, flow)| flow.cookie == COOKIE | FOR_NODE).find_map(|(key, _)| {
        match key.matching.fields.first() {
            Some(Oxm::EthDst(dst)) => locator::rack(dst.value.0),
            _ => None,
        }
    })
}

/// A tree to install.
pub(super) struct WantedTree<'a> {
    /// One of [`GROUPS`].
    pub(super) group: u32,
    pub(super) tree: &'a Tree,
}

/// The tables of every switch of `graph`.
pub(super) fn tables<'a>(
    graph: &Graph,
    racks: &Racks,
    nodes: &BTreeMap<String, NodeRegistration>,
    trees: impl IntoIterator<Item = WantedTree<'a>>,
) -> BTreeMap<DatapathId, Tables> {
    let mut all: BTreeMap<DatapathId, Tables> = graph.switches().map(|s| (s, always())).collect();
    let mut tors: BTreeMap<DatapathId, u32> = BTreeMap::new();
    for (name, port) in graph.hosts() {
        let (Some(rack), Some(node), Some(tables)) =
            (racks.number(port.switch), nodes.get(name), all.get_mut(&port.switch))
        else {
            continue;
        };
        tors.insert(port.switch, rack);
        if let Some(locator) = locator::of(rack, port.number) {
            tables.put(NODE, Match::new().eth_dst(mac(locator)), FOR_NODE, to_node(node.mac, port.number));
        }
    }
    for (tor, rack) in tors {
        let Some((address, mask)) = locator::of_rack(rack) else { continue };
        for (switch, ports) in paths::ports_towards(graph, tor) {
            // Equally short ways: racks are spread over them.
            let port = ports[rack as usize % ports.len()];
            let matching = Match::new().eth_dst_masked(mac(address), mac(mask));
            let Some(tables) = all.get_mut(&switch) else { continue };
            tables.put(RACK, matching, FOR_RACK, vec![Action::output(PortNo(port))]);
        }
    }
    for tree in trees {
        put_tree(&mut all, nodes, &tree);
    }
    all
}

/// What every switch holds: LLDP and ARP come to the controller, the rest goes nowhere.
pub(super) fn always() -> Tables {
    let mut tables = Tables::default();
    let controller = || vec![Action::output(PortNo::CONTROLLER)];
    tables.put(LLDP, Match::new().eth_type(EtherType::LLDP), 0, controller());
    tables.put(ARP, Match::new().eth_type(EtherType::ARP), 0, controller());
    tables.put(DROP, Match::new(), 0, Vec::new());
    tables
}

fn to_node(real: Mac, port: u32) -> Vec<Action> {
    vec![Action::SetField(Oxm::EthDst(Masked::exact(mac(real)))), Action::output(PortNo(port))]
}

/// One group of type ALL at each switch of the tree, and a flow to it for each port by which its packets may
/// come: from a member's port only what the member sends under its own address.
fn put_tree(
    all: &mut BTreeMap<DatapathId, Tables>,
    nodes: &BTreeMap<String, NodeRegistration>,
    WantedTree { group, tree }: &WantedTree<'_>,
) {
    let members: BTreeMap<_, _> = tree.members.iter().map(|(name, port)| (*port, nodes.get(name))).collect();
    for (switch, ports) in tree.ports() {
        let Some(tables) = all.get_mut(&switch) else { continue };
        for number in &ports {
            let mut matching =
                Match::new().in_port(PortNo(*number)).eth_type(EtherType::IPV4).ipv4_dst(address(*group));
            match members.get(&cool_topology::Port { switch, number: *number }) {
                Some(Some(member)) => matching = matching.ipv4_src(member.ip),
                Some(None) => continue,
                None => {}
            }
            let purpose = FOR_TREE | u64::from(group - GROUPS.start);
            tables.put(TREE, matching, purpose, vec![Action::Group(GroupId(*group))]);
        }
        tables.groups.insert(*group, Some(ports));
    }
}

impl Tables {
    fn put(&mut self, priority: u16, matching: Match, purpose: u64, actions: Vec<Action>) {
        let instructions =
            if actions.is_empty() { Vec::new() } else { vec![Instruction::ApplyActions(actions)] };
        let flow = Flow { cookie: COOKIE | purpose, instructions };
        self.flows.insert(FlowKey::new(priority, matching), flow);
    }
}

fn mac(mac: Mac) -> MacAddr {
    MacAddr(mac.0)
}

#[cfg(test)]
mod tests;
