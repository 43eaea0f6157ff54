//! Decides the parameters of a group: the size of its chunks, its rates and cost model, its
//! encryption, and whether its agents connect on demand and its ranks execute quick calls.

use super::group_keys::{self, GroupProtection};
use super::member_place::MemberPlace;
use crate::costs::{AgentSpeed, LinkRates, MeasuredCosts};
use cool_collective::CostModel;
use cool_collective::timing::AgentCosts;
use cool_fabric::{TopologySnapshot, TreeGrant, TreeScope};
use cool_proto::control::{Description, Group, Member, Tree, controller_message::Body, tree};
use cool_proto::features;
use cool_types::{is_source_specific, wire};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};

/// Epoch of a group's first membership.
pub const FIRST_EPOCH: u32 = 1;

/// Headers of a data packet: IPv4 without options, UDP and ours.
const HEADER_BYTES: u32 = (wire::IPV4 + wire::UDP + wire::STREAM_DATA_HEADER) as u32;
/// Maximum size of an IP packet.
const MAX_PACKET_BYTES: u32 = 65_535;

/// The rate of all links, in bytes per second, from which they are fast: 1 Gbit/s. On slower links
/// the transfer takes most of the time of a call, whatever the work of the CPUs. On fast ones,
/// ranks execute long quick calls, and plans depend on the costs of the CPUs.
const FAST_LINK_RATE_MIN: u64 = 125_000_000;
/// The smallest MTU for long quick calls. With smaller packets, a long message would have more
/// parts than the system sends by one call.
const LONG_QUICK_CALLS_MTU_MIN: u32 = 1280;

/// Returns the description of a group of a job for its members. Its parameters follow from the
/// agents, and from the network and the `trees` as they are now.
pub fn decide_parameters(
    (id, job): (u64, u64),
    places: &[MemberPlace],
    network: &TopologySnapshot,
    measured: &MeasuredCosts,
    (trees, key): (Vec<TreeGrant>, Option<GroupProtection>),
) -> Group {
    let mut nodes = BTreeSet::new();
    let on_demand = key.as_ref().is_some_and(|key| key.connects_on_demand);
    let connections_per_hop = key.as_ref().map_or(1, |key| key.connections_per_hop);
    let member = |(rank, place): (u32, &MemberPlace)| {
        let agent = &place.session.agent;
        let is_first = nodes.insert(place.session.number);
        Member {
            rank,
            node: agent.name.clone(),
            incarnation: agent.incarnation,
            rack: place.rack,
            ip: agent.ip.to_string(),
            udp_port: agent.udp_port.into(),
            tcp_port: agent.tcp_port.into(),
            key: agent.key.as_ref().filter(|_| is_first && !on_demand).map(group_keys::secret),
        }
    };
    let ipv6 = places.iter().any(|place| place.session.agent.ip.is_ipv6());
    let mut cost_model = cost_model(places, network, measured);
    cost_model.costs.tag = key.as_ref().map_or(0, GroupProtection::tag_bytes);
    // Quick calls use unencrypted IPv4, and their ranks reach all others by one tree. It must not
    // be source-specific, because every node would be a source. Their messages may be longer than a
    // packet. The sender's system divides them by the MTU of its own interface, so a node with a
    // smaller MTU would never receive them.
    let quick = !ipv6
        && has_one_mtu(places)
        && group_keys::all_have(places, features::QUICK)
        && key.as_ref().is_some_and(|key| !key.encrypted && !key.connects_on_demand)
        && trees.iter().any(|tree| tree.scope == TreeScope::All && !is_source_specific(tree.address));
    Group {
        id,
        epoch: FIRST_EPOCH,
        members: (0..).zip(places).map(member).collect(),
        trees: trees.iter().map(|tree| tree_message(tree, network)).collect(),
        chunk_bytes: chunk_bytes(mtu(places), &cost_model.costs),
        host_bytes_per_second: host_rate(places, network),
        uplink_bytes_per_second: uplink_rate(places, network),
        job,
        cost_model: text(&cost_model),
        encrypted: key.as_ref().is_some_and(|key| key.encrypted),
        key: key.map(|key| key.secret),
        on_demand,
        quick,
        connections_per_hop: connections_per_hop.into(),
        probe_quick: quick && group_keys::all_have(places, features::QUICK_PROBES),
        quick_datagram_bytes: if quick { quick_datagram_bytes(places, network, measured) } else { 0 },
    }
}

/// Returns the length of the datagrams into which ranks divide long messages of quick calls.
/// Returns 0 if ranks execute only short calls, because an agent does not support long ones, or
/// because a link is slow or its rate unknown.
fn quick_datagram_bytes(places: &[MemberPlace], network: &TopologySnapshot, measured: &MeasuredCosts) -> u32 {
    let supported = group_keys::all_have(places, features::LONG_QUICK_CALLS);
    let is_long = mtu(places) >= LONG_QUICK_CALLS_MTU_MIN && supported;
    if is_long && is_fast(places, network, measured) {
        mtu(places).min(MAX_PACKET_BYTES) - (wire::IPV4 + wire::UDP) as u32
    } else {
        0
    }
}

/// Returns whether all links between the places are known to be fast.
fn is_fast(places: &[MemberPlace], network: &TopologySnapshot, measured: &MeasuredCosts) -> bool {
    let is_fast = |rate: Option<u64>| rate.is_some_and(|rate| rate >= FAST_LINK_RATE_MIN);
    let (host, uplink) = measured.rates(link_rates(places, network));
    let has_one_rack = places.windows(2).all(|pair| pair[0].rack == pair[1].rack);
    is_fast(host) && (has_one_rack || is_fast(uplink))
}

/// Returns the number of bytes of a chunk that fits into an IP packet on interfaces with this MTU,
/// with all headers and the tag.
fn chunk_bytes(mtu: u32, costs: &AgentCosts) -> u32 {
    let further_bytes = (costs.tag + costs.beyond_ipv4) as u32;
    mtu.min(MAX_PACKET_BYTES).saturating_sub(HEADER_BYTES + further_bytes)
}

/// Returns the message that announces a group. If all agents support descriptions, it is encoded
/// only once.
pub(super) fn announcement(group: &Group, places: &[MemberPlace]) -> Body {
    match group_keys::all_have(places, features::DESCRIPTIONS)
        .then(|| Description::from_group(group))
        .flatten()
    {
        Some(description) => Body::Description(description.encode_to_vec().into()),
        None => Body::Group(group.clone()),
    }
}

/// Returns the cost model for groups on these places.
pub fn cost_model(places: &[MemberPlace], network: &TopologySnapshot, measured: &MeasuredCosts) -> CostModel {
    let mut model = measured.cost_model(link_rates(places, network));
    let beyond = places.iter().map(|place| wire::beyond_ipv4(&place.session.agent.ip));
    model.costs.beyond_ipv4 = beyond.max().unwrap_or(0);
    model.unicast_plans = group_keys::all_have(places, features::UNICAST_PLANS);
    if is_fast(places, network, measured) && group_keys::all_have(places, features::CPU_COSTS) {
        let nodes: BTreeMap<u32, &MemberPlace> =
            places.iter().map(|place| (place.session.number, place)).collect();
        let speeds: Option<Vec<&AgentSpeed>> =
            nodes.values().map(|place| place.session.agent.speed.as_ref()).collect();
        speeds.into_iter().for_each(|speeds| AgentSpeed::set_costs(speeds.into_iter(), &mut model.costs));
    }
    model
}

/// Returns the properties of the members' links, as switches and agents report them.
fn link_rates(places: &[MemberPlace], network: &TopologySnapshot) -> LinkRates {
    let (uplink, ecmp_paths) = uplinks(places, network);
    LinkRates { host: host_rate(places, network), uplink, ecmp_paths, mtu: mtu(places) }
}

/// Encodes a cost model for agents and tools.
pub fn text(model: &CostModel) -> String {
    serde_json::json!(model).to_string()
}

/// Returns whether the interfaces of all members have the same MTU.
fn has_one_mtu(places: &[MemberPlace]) -> bool {
    places.windows(2).all(|pair| pair[0].session.agent.mtu == pair[1].session.agent.mtu)
}

/// Returns the smallest MTU of all members' interfaces.
fn mtu(places: &[MemberPlace]) -> u32 {
    places.iter().map(|p| p.session.agent.mtu).min().unwrap_or(0)
}

pub(super) fn tree_message(tree: &TreeGrant, network: &TopologySnapshot) -> Tree {
    let (scope, rack) = match tree.scope {
        TreeScope::All => (tree::Scope::All, 0),
        TreeScope::Leaders => (tree::Scope::Leaders, 0),
        TreeScope::Rack(rack) => (tree::Scope::Rack, rack),
    };
    let uplinks = tree.links.iter().map(|link| network.link_name(link.a, link.b));
    let to_nodes = tree.nodes.iter().map(|(node, port)| network.node_link_name(*port, node));
    Tree {
        scope: scope.into(),
        rack,
        address: tree.address.to_string(),
        port: tree.port.into(),
        bytes_per_second: tree.bytes_per_second,
        links: uplinks.chain(to_nodes).collect(),
    }
}

/// Returns the scope of a tree in a description, or `None` if it is unknown.
pub(crate) fn scope(tree: &Tree) -> Option<TreeScope> {
    Some(match tree.scope() {
        tree::Scope::All => TreeScope::All,
        tree::Scope::Leaders => TreeScope::Leaders,
        tree::Scope::Rack => TreeScope::Rack(tree.rack),
        tree::Scope::Unspecified => return None,
    })
}

/// Returns the rate of the slowest member's link, or 0 if any is unknown.
fn host_rate(places: &[MemberPlace], network: &TopologySnapshot) -> u64 {
    let rate =
        |place: &MemberPlace| network.node(&place.session.agent.name)?.location.map(|l| l.bytes_per_second);
    places.iter().map(|p| rate(p).unwrap_or(0)).min().unwrap_or(0)
}

/// Returns the uplink rate of the slowest rack, which is the sum over all links of its switch to
/// other switches. Returns 0 if any is unknown.
fn uplink_rate(places: &[MemberPlace], network: &TopologySnapshot) -> u64 {
    let total = |rates: Vec<u64>| if rates.contains(&0) { 0 } else { rates.iter().sum() };
    uplink_rates_by_rack(places, network).map(total).min().unwrap_or(0)
}

/// Returns the rate of the slowest link between switches (0 if any is unknown) and the smallest
/// number of uplinks of a rack.
fn uplinks(places: &[MemberPlace], network: &TopologySnapshot) -> (u64, u32) {
    let ways: Vec<Vec<u64>> = uplink_rates_by_rack(places, network).collect();
    let rate = ways.iter().flatten().copied().min().unwrap_or(0);
    let ecmp_paths = ways.iter().map(Vec::len).min().unwrap_or(0);
    (rate, u32::try_from(ecmp_paths).unwrap_or(u32::MAX))
}

/// Returns the rates of the uplinks of each rack's switch. A rate of 0 is unknown.
fn uplink_rates_by_rack<'a>(
    places: &[MemberPlace],
    network: &'a TopologySnapshot,
) -> impl Iterator<Item = Vec<u64>> + use<'a> {
    let tor =
        |place: &MemberPlace| network.node(&place.session.agent.name)?.location?.port.map(|port| port.switch);
    let tors: BTreeSet<_> = places.iter().filter_map(tor).collect();
    tors.into_iter().map(|tor| {
        let links = network.links.iter().filter(|l| l.a.switch == tor || l.b.switch == tor);
        links.map(|l| l.bytes_per_second).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::{Admission, AgentRegistry, RegisteredAgent};
    use crate::costs::ConfiguredRates;
    use crate::costs::agent_speed::tests::measured;
    use cool_fabric::{DatapathId, LinkView, Location, MacAddr, NodeView, Port};
    use cool_proto::control::Secret;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// h1 at switch 2 and h2 at switch 3, which are connected by switch 1.
    fn network(host_rates: [u64; 2], uplink_rates: [u64; 2]) -> TopologySnapshot {
        let port = |switch, number| Port { switch: DatapathId(switch), number };
        let node = |i: u8| {
            let bytes_per_second = host_rates[usize::from(i) - 1];
            let location =
                Location { port: Some(port(u64::from(i) + 1, 1)), rack: u32::from(i) - 1, bytes_per_second };
            NodeView {
                name: format!("h{i}"),
                ip: [10, 0, 0, i].into(),
                mac: MacAddr(2, 0, 0, 0, 0, i),
                location: Some(location),
            }
        };
        let link = |i: u64| LinkView {
            a: port(1, i as u32),
            b: port(i + 1, 9),
            bytes_per_second: uplink_rates[i as usize - 1],
        };
        TopologySnapshot {
            nodes: vec![node(1), node(2)],
            links: vec![link(1), link(2)],
            ..Default::default()
        }
    }

    fn places(network: &TopologySnapshot, mtus: [u32; 2]) -> Vec<MemberPlace> {
        places_with(network, mtus, features::QUICK | features::QUICK_PROBES)
    }

    fn places_with(network: &TopologySnapshot, mtus: [u32; 2], features: u64) -> Vec<MemberPlace> {
        let agents = AgentRegistry::new(1000, [7; 32].into(), 1);
        let place = |(node, mtu): (&NodeView, u32)| {
            let agent = RegisteredAgent {
                name: node.name.clone(),
                incarnation: 8,
                ip: node.ip,
                mac: node.mac,
                mtu,
                udp_port: 7420,
                tcp_port: 7421,
                slots: 1,
                probe_port: 7421,
                version: cool_proto::VERSION,
                features,
                key: None,
                rack: None,
                neighbor: None,
                speed: AgentSpeed::try_from(measured("m", 1_000)).ok(),
            };
            let Ok(Admission::New(session)) = agents.admit(agent, None) else { panic!("not admitted") };
            MemberPlace { session, rack: node.location.unwrap().rack }
        };
        network.nodes.iter().zip(mtus).map(place).collect()
    }

    fn described(ids: (u64, u64), network: &TopologySnapshot, mtus: [u32; 2]) -> Group {
        decide_parameters(ids, &places(network, mtus), network, &MeasuredCosts::default(), (Vec::new(), None))
    }

    #[test]
    fn a_description_has_the_slowest_rates_and_the_smallest_mtu() {
        let network = network([50, 40], [30, 20]);
        let group = described((7, 3), &network, [9000, 1500]);
        assert_eq!((group.id, group.job, group.epoch), (7, 3, FIRST_EPOCH));
        assert_eq!((group.host_bytes_per_second, group.uplink_bytes_per_second), (40, 20));
        assert_eq!(group.chunk_bytes, 1500 - HEADER_BYTES);
        let h2 = &group.members[1];
        assert_eq!((h2.rank, h2.node.as_str(), h2.rack), (1, "h2", 1));
        assert_eq!((h2.ip.as_str(), h2.udp_port, h2.tcp_port), ("10.0.0.2", 7420, 7421));
        assert_eq!(h2.incarnation, 8);
    }

    #[test]
    fn the_cost_model_uses_the_slowest_links_until_measured() {
        let group = described((7, 3), &network([50, 40], [30, 20]), [9000, 1500]);
        let model: CostModel = serde_json::from_str(&group.cost_model).unwrap();
        assert_eq!((model.rack.bytes_per_second, model.core.bytes_per_second), (40, 20));
        assert_eq!((model.ecmp_paths, model.costs.mtu), (1, 1500));
        assert!(!model.unicast_plans, "the agents have no such feature");
    }

    #[test]
    fn nodes_with_different_mtus_execute_no_quick_calls() {
        let network = network([50, 40], [30, 20]);
        let quick = |mtus| {
            let tree = TreeGrant {
                scope: TreeScope::All,
                address: Ipv4Addr::new(239, 77, 0, 1).into(),
                port: 7000,
                bytes_per_second: 0,
                links: Vec::new(),
                nodes: Vec::new(),
                needs_proof: false,
            };
            let secret = Secret { value: vec![1; 32] };
            let key = GroupProtection {
                secret,
                encrypted: false,
                connects_on_demand: false,
                connections_per_hop: 1,
            };
            let (places, measured) = (places(&network, mtus), MeasuredCosts::default());
            let group = decide_parameters((7, 3), &places, &network, &measured, (vec![tree], Some(key)));
            assert_eq!(group.probe_quick, group.quick, "all agents can test datagrams");
            group.quick
        };
        assert!(quick([1500; 2]) && quick([9000; 2]));
        assert!(!quick([9000, 1500]) && !quick([1500, 1280]));
    }

    #[test]
    fn long_quick_calls_need_fast_links_and_support() {
        let network = network([125_000_000; 2], [125_000_000; 2]);
        let slow = TopologySnapshot { links: Vec::new(), ..network.clone() };
        let datagram_bytes = |network: &TopologySnapshot, features, mtu, measured: MeasuredCosts| {
            let places = places_with(network, [mtu; 2], features);
            quick_datagram_bytes(&places, network, &measured)
        };
        let unmeasured = MeasuredCosts::default();
        let (short, long) = (features::QUICK, features::QUICK | features::LONG_QUICK_CALLS);
        assert_eq!(datagram_bytes(&network, long, 1500, unmeasured), 1472);
        assert_eq!(datagram_bytes(&network, long, 65_536, unmeasured), 65_507);
        assert_eq!(datagram_bytes(&network, short, 1500, unmeasured), 0);
        assert_eq!(datagram_bytes(&network, long, 1200, unmeasured), 0);
        assert_eq!(datagram_bytes(&slow, long, 1500, unmeasured), 0, "the nodes have two racks");
        let configured = ConfiguredRates { host: Some(2_500_000), uplink: None };
        let measured = MeasuredCosts { configured, ..unmeasured };
        assert_eq!(datagram_bytes(&network, long, 1500, measured), 0);
    }

    #[test]
    fn costs_of_cpus_count_on_fast_links_if_all_agents_know_them() {
        let packet = |rate, features| {
            let network = network([rate; 2], [rate; 2]);
            let places = places_with(&network, [1500; 2], features);
            cost_model(&places, &network, &MeasuredCosts::default()).costs.packet
        };
        assert!(packet(125_000_000, features::CPU_COSTS) > std::time::Duration::ZERO);
        assert!(packet(125_000_000, features::QUICK).is_zero());
        assert!(packet(2_500_000, features::CPU_COSTS).is_zero());
    }

    #[test]
    fn ipv6_reduces_the_payload_and_enters_the_cost_model() {
        let mut network = network([50, 40], [30, 20]);
        for (number, node) in (1..).zip(&mut network.nodes) {
            node.ip = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number).into();
        }
        let group = described((7, 3), &network, [1500; 2]);
        let headers = wire::IPV6 + wire::UDP + wire::STREAM_DATA_HEADER;
        assert_eq!((u64::from(group.chunk_bytes), group.members[1].ip.as_str()), (1500 - headers, "fd00::2"));
        let model: CostModel = serde_json::from_str(&group.cost_model).unwrap();
        assert_eq!(model.costs.multicast(group.chunk_bytes.into()), 1514);
    }

    #[test]
    fn a_rate_with_an_unknown_part_is_unknown() {
        let unknown = network([50, 0], [0, 20]);
        let group = described((1, 1), &unknown, [1500; 2]);
        assert_eq!((group.host_bytes_per_second, group.uplink_bytes_per_second), (0, 0));
    }

    #[test]
    fn chunks_on_loopback_fit_into_ip_packets() {
        let network = network([0; 2], [0; 2]);
        let group = described((1, 1), &network, [65_536; 2]);
        assert_eq!(group.chunk_bytes, 65_535 - HEADER_BYTES);
    }
}
