//! Priorities and matches of flows, and the flows that every switch holds.

use super::addresses::{IpVersion, into_tree};
use super::cookies::{COOKIE, FOR_BROADCAST, FOR_LINK_MULTICAST, FOR_MEMBERSHIPS, FOR_NONMEMBERS, FOR_TREE};
use super::multicast::PTP;
use super::tables::{FlowEntry, FlowKey, GROUPS, SwitchTables};
use crate::api::Unicast;
use crate::frames::{loop_probe, ndp, pmac};
use cool_topology::MacAddr;
use cool_topology::membership_report::MLD_REPORT;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use rs_openflow::{
    Action, Body, EtherType, FlowCommand, GroupId, Instruction, IpProtocol, Masked, Match, Oxm, PortNo,
    VlanId,
};
use std::collections::BTreeMap;

// Priorities: of all matching entries, the one with the highest priority applies (OpenFlow 1.3.5,
// 5.3). OF_PORT must be above LLDP and ARP, and DROP below everything else.
pub(crate) const OF_PORT: u16 = 50_010;
pub(crate) const LLDP: u16 = 50_000;
/// Priority of flows for ARP, and for neighbor discovery, the ARP of IPv6.
pub(crate) const ARP: u16 = 49_000;
pub(crate) const TREE: u16 = 40_000;
/// Priority of the flows for multicast packets of senders that are not members. It is below that of
/// trees.
pub(crate) const NONMEMBER: u16 = 39_000;
pub(crate) const NODE: u16 = 30_010;
pub(crate) const HOST: u16 = 30_005;
pub(crate) const RACK: u16 = 30_000;
pub(crate) const NORMAL: u16 = 10_000;
/// Priority of flows for reports of memberships. It is above that of multicast, because some
/// reports are sent to the address that they concern.
const MEMBERSHIP: u16 = 40;
/// Priorities of flows for multicast of other programs, and for multicast of ports that must not
/// send any. They are above that of unknown destinations.
pub(crate) const MULTICAST_REFUSED: u16 = 31;
pub(crate) const MULTICAST: u16 = 30;
/// Priority of flows for unicast to unknown destinations from a port of hosts without an agent. It
/// is above that of broadcasts.
pub(crate) const EDGE: u16 = 20;
pub(crate) const BROADCAST: u16 = 10;
/// Priority of the flow that drops all other packets. It is above 0, because a switch may have a
/// flow of its own at 0 that floods.
pub(crate) const DROP: u16 = 1;

/// Returns the racks of the PMACs that a flow matches.
pub(crate) fn racks_of(key: &FlowKey) -> impl Iterator<Item = u32> + '_ {
    key.matching.fields.iter().filter_map(|field| match field {
        Oxm::EthDst(address) => pmac::rack(address.value),
        _ => None,
    })
}

/// Returns the flow by which packets enter a tree at a port.
pub(crate) fn tree_flow(
    (number, address): (u32, IpAddr),
    port: u32,
    sender: Option<IpAddr>,
) -> (FlowKey, FlowEntry) {
    let matching = into_tree(Match::new().in_port(PortNo(port)), address, sender);
    let purpose = FOR_TREE | u64::from(number - GROUPS.start);
    (FlowKey::new(TREE, matching), flow(purpose, vec![Action::Group(GroupId(number))]))
}

/// Returns the flows that every switch holds. LLDP goes to the controller, and so does ARP unless
/// switches forward unicast. All other packets are dropped, and multicast packets among them are
/// counted.
pub(crate) fn always(unicast: Unicast, carries_hosts: bool) -> SwitchTables {
    let arp = (ARP, Match::new().eth_type(EtherType::ARP), 0, to_controller());
    let flows = [
        (LLDP, Match::new().eth_type(EtherType::LLDP), 0, to_controller()),
        (NONMEMBER, IpVersion::V4.match_all_trees(), FOR_NONMEMBERS, Vec::new()),
    ];
    // Where switches learn addresses, ports on one foreign segment are found by probes.
    let probes = (unicast == Unicast::Normal)
        .then(|| (LLDP, Match::new().eth_type(EtherType(loop_probe::ETHERTYPE)), 0, to_controller()));
    let entry =
        |(priority, matching, purpose, actions)| (FlowKey::new(priority, matching), flow(purpose, actions));
    // Switches that learn addresses flood ARP requests themselves.
    let arp = (unicast == Unicast::Routed).then_some(arp);
    // Without hosts, no node's agent uses IPv6.
    let ipv6 = (carries_hosts || unicast == Unicast::Normal)
        .then(|| (NONMEMBER, IpVersion::V6.match_all_trees(), FOR_NONMEMBERS, Vec::new()));
    let broadcasts = carries_hosts.then(broadcasts).into_iter().flatten();
    let flows = flows
        .into_iter()
        .chain(ipv6)
        .chain(arp)
        .chain(probes)
        .map(entry)
        .chain(broadcasts)
        .chain([drop_rest(0)]);
    SwitchTables { flows: flows.collect(), groups: BTreeMap::new() }
}

/// Returns the flow that drops packets that match no other. The standard drops them, too (OpenFlow
/// 1.3.5, 5.4), but a switch may have a flow of its own that floods.
pub(crate) fn drop_rest(purpose: u64) -> (FlowKey, FlowEntry) {
    (FlowKey::new(DROP, Match::new()), flow(purpose, Vec::new()))
}

pub(crate) fn to_controller() -> Vec<Action> {
    vec![Action::output(PortNo::CONTROLLER)]
}

/// Returns the match for frames of one type at a port.
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

/// Returns the flows that every switch holds if hosts are served: for broadcasts, multicast of the
/// link (RFC 5771, section 4; RFC 4291, section 2.7), reports of memberships, the Precision Time
/// Protocol, and neighbor discovery to any destination.
fn broadcasts() -> impl Iterator<Item = (FlowKey, FlowEntry)> {
    let (link, mask) = (Ipv4Addr::new(224, 0, 0, 0), Ipv4Addr::new(255, 255, 255, 0));
    let ipv4 = Match::new().eth_type(EtherType::IPV4).ipv4_dst_masked(link, mask);
    let (link, mask) =
        (Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0), Ipv6Addr::new(0xffff, 0, 0, 0, 0, 0, 0, 0));
    let ipv6 = Match::new().eth_type(EtherType::IPV6).ipv6_dst_masked(link, mask);
    let kinds = ndp::ROUTER_SOLICITATION..=ndp::ADVERTISEMENT;
    let neighbors = kinds.map(|kind| FlowKey::new(ARP, discovery(kind)));
    let time = Match::new().eth_dst(PTP);
    let link = [ipv4, ipv6, time].map(|matching| FlowKey::new(BROADCAST, matching));
    let link = neighbors.chain(link).map(|key| (key, flow(FOR_LINK_MULTICAST, to_controller())));
    let igmp = Match::new().eth_type(EtherType::IPV4).ip_proto(IpProtocol::IGMP);
    // These are sent to the address that they concern; those of MLDv2 to one on the link.
    let mld = discovery(MLD_REPORT);
    let memberships = [igmp, mld].map(|matching| FlowKey::new(MEMBERSHIP, matching));
    let memberships = memberships.map(|key| (key, flow(FOR_MEMBERSHIPS, to_controller())));
    let broadcast = FlowKey::new(BROADCAST, Match::new().eth_dst(MacAddr::broadcast()));
    link.chain(memberships).chain([(broadcast, flow(FOR_BROADCAST, to_controller()))])
}

/// Returns the key of the flow towards a rack.
pub(crate) fn rack_key(rack: u32) -> Option<FlowKey> {
    let (address, mask) = pmac::for_rack(rack)?;
    Some(FlowKey::new(RACK, Match::new().eth_dst_masked(address, mask)))
}

/// Returns the key of the flow that accepts frames with a priority but no VLAN, if the flow of
/// `key` accepts untagged frames only.
pub(crate) fn priority_twin(key: &FlowKey) -> Option<FlowKey> {
    let untagged = Oxm::VlanVid(Masked::exact(VlanId::NONE));
    let at = key.matching.fields.iter().position(|field| *field == untagged)?;
    let mut matching = (*key.matching).clone();
    matching.fields[at] = Oxm::VlanVid(Masked::exact(VlanId::tagged(0)));
    Some(FlowKey::new(key.priority, matching))
}

/// Returns whether a message deletes a flow by which packets enter a tree.
pub(crate) fn deletes_tree_flow(message: &Body) -> bool {
    matches!(message, Body::FlowMod(flow) if flow.command == FlowCommand::DELETE_STRICT && flow.priority == TREE)
}
