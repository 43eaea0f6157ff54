//! Priorities and matches of the flows, and the flows that every switch holds.

use super::addresses::{IpVersion, into_tree};
use super::cookies::{COOKIE, FOR_BROADCAST, FOR_IPV6, FOR_NONMEMBERS, FOR_TREE};
use super::tables::{FlowEntry, FlowKey, GROUPS, SwitchTables};
use crate::api::Unicast;
use crate::frames::{ndp, pmac};
use cool_topology::MacAddr;
use core::net::{IpAddr, Ipv6Addr};
use rs_openflow::{Action, EtherType, GroupId, Instruction, IpProtocol, Match, Oxm, PortNo};
use std::collections::BTreeMap;

// Priorities (OpenFlow 1.3.5, 5.3: of the entries that match, the highest is taken). OF_PORT must beat LLDP and ARP;
// DROP must lose to everything.
pub(crate) const OF_PORT: u16 = 50_010;
pub(crate) const LLDP: u16 = 50_000;
/// And neighbour discovery, which is to IPv6 what ARP is to IPv4.
pub(crate) const ARP: u16 = 49_000;
pub(crate) const TREE: u16 = 40_000;
/// Below the trees: what is for a group and comes from nobody who may send there.
pub(crate) const NONMEMBER: u16 = 39_000;
pub(crate) const NODE: u16 = 30_010;
pub(crate) const HOST: u16 = 30_005;
pub(crate) const RACK: u16 = 30_000;
pub(crate) const NORMAL: u16 = 10_000;
/// What comes by a port of hosts without an agent, and is for nobody who is known; below it, what others say to all.
pub(crate) const EDGE: u16 = 20;
pub(crate) const BROADCAST: u16 = 10;
/// Above 0, where a switch may have a flow of its own that floods.
pub(crate) const DROP: u16 = 1;

/// The racks of the PMACs that a flow is for.
pub(crate) fn racks_of(key: &FlowKey) -> impl Iterator<Item = u32> + '_ {
    key.matching.fields.iter().filter_map(|field| match field {
        Oxm::EthDst(address) => pmac::rack(address.value),
        _ => None,
    })
}

/// The flow by which packets come into a tree at a port.
pub(crate) fn tree_flow(
    (number, address): (u32, IpAddr),
    port: u32,
    sender: Option<IpAddr>,
) -> (FlowKey, FlowEntry) {
    let matching = into_tree(Match::new().in_port(PortNo(port)), address, sender);
    let purpose = FOR_TREE | u64::from(number - GROUPS.start);
    (FlowKey::new(TREE, matching), flow(purpose, vec![Action::Group(GroupId(number))]))
}

/// What every switch holds: LLDP and, unless switches forward unicast, ARP come to the controller, the rest goes nowhere, and what of that is for a
/// group is counted.
pub(crate) fn always(unicast: Unicast, carries_hosts: bool) -> SwitchTables {
    let arp = (ARP, Match::new().eth_type(EtherType::ARP), 0, to_controller());
    let flows = [
        (LLDP, Match::new().eth_type(EtherType::LLDP), 0, to_controller()),
        (NONMEMBER, IpVersion::V4.match_all_trees(), FOR_NONMEMBERS, Vec::new()),
    ];
    let entry =
        |(priority, matching, purpose, actions)| (FlowKey::new(priority, matching), flow(purpose, actions));
    // Who forwards by what it learns floods the question instead.
    let arp = (unicast == Unicast::Routed).then_some(arp);
    // Else there are no nodes whose agents speak IPv6.
    let ipv6 = (carries_hosts || unicast == Unicast::Normal)
        .then(|| (NONMEMBER, IpVersion::V6.match_all_trees(), FOR_NONMEMBERS, Vec::new()));
    let broadcasts = carries_hosts.then(broadcasts).into_iter().flatten();
    let flows = flows.into_iter().chain(ipv6).chain(arp).map(entry).chain(broadcasts).chain([drop_rest(0)]);
    SwitchTables { flows: flows.collect(), groups: BTreeMap::new() }
}

/// The flow that drops what no other matches (OpenFlow 1.3.5, 5.4, has the switch drop it too, unless it has a flow of its
/// own that floods).
pub(crate) fn drop_rest(purpose: u64) -> (FlowKey, FlowEntry) {
    (FlowKey::new(DROP, Match::new()), flow(purpose, Vec::new()))
}

pub(crate) fn to_controller() -> Vec<Action> {
    vec![Action::output(PortNo::CONTROLLER)]
}

/// The flow for frames of a kind that come by a port, for the controller.
pub(crate) fn port_key(port: u32, kind: EtherType) -> FlowKey {
    FlowKey::new(OF_PORT, Match::new().in_port(PortNo(port)).eth_type(kind))
}

pub(crate) fn flow(purpose: u64, actions: Vec<Action>) -> FlowEntry {
    let instructions = match actions.is_empty() {
        true => Vec::new(),
        false => vec![Instruction::ApplyActions(actions)],
    };
    FlowEntry { cookie: COOKIE | purpose, instructions: instructions.into() }
}

pub(crate) fn discovery(kind: u8) -> Match {
    Match::new().eth_type(EtherType::IPV6).ip_proto(IpProtocol::ICMPV6).icmpv6_type(kind)
}

/// What every switch holds where hosts are carried: what a node says to all, and neighbour discovery, whoever it is for.
fn broadcasts() -> impl Iterator<Item = (FlowKey, FlowEntry)> {
    let (link_local, mask) =
        (Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0), Ipv6Addr::new(0xffff, 0, 0, 0, 0, 0, 0, 0));
    let broadcast = FlowKey::new(BROADCAST, Match::new().eth_dst(MacAddr::broadcast()));
    let multicast = Match::new().eth_type(EtherType::IPV6).ipv6_dst_masked(link_local, mask);
    let kinds = ndp::ROUTER_SOLICITATION..=ndp::ADVERTISEMENT;
    let ipv6 = kinds.map(|kind| FlowKey::new(ARP, discovery(kind)));
    let ipv6 = ipv6.chain([FlowKey::new(BROADCAST, multicast)]).map(|key| (key, FOR_IPV6));
    ipv6.chain([(broadcast, FOR_BROADCAST)]).map(|(key, purpose)| (key, flow(purpose, to_controller())))
}

/// What is for a rack.
pub(crate) fn rack_key(rack: u32) -> Option<FlowKey> {
    let (address, mask) = pmac::rack_key(rack)?;
    Some(FlowKey::new(RACK, Match::new().eth_dst_masked(address, mask)))
}
