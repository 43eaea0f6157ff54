//! The desired state against a network of model switches: where do packets arrive?

use super::inherited_state::InheritedState;
use super::*;
use crate::frames::vlan::Vlan;
use crate::intent::hosts::HostKey;
use crate::intent::tables::GROUPS;
use crate::switch::model::{ModelArrivals, ModelNetwork, ModelPacket};
use cool_topology::{Graph, MacAddr, Port, Racks, Routes, SwitchAdjacency};
use core::net::IpAddr;
use core::net::Ipv4Addr;
use proptest::prelude::*;
use rs_openflow::VlanId;

fn ip(host: usize) -> IpAddr {
    Ipv4Addr::from(0x0a00_0001 + host as u32).into()
}

fn real(host: usize) -> MacAddr {
    MacAddr(2, 0, 0, 0, 0, host as u8)
}

/// Returns a host without an agent, located where the node of that index in order of names is.
fn plain(host: usize) -> HostKey {
    HostKey { mac: MacAddr(2, 2, 0, 0, 0, host as u8), vlan: Vlan(host.is_multiple_of(3).then_some(42)) }
}

/// A network made from links between switches and the switch of each host. Ports are numbered in
/// order of use.
#[derive(Debug)]
struct World {
    graph: Graph,
    racks: Racks,
    nodes: BTreeMap<String, NodeRegistration>,
}

impl World {
    fn new(links: &[(u64, u64)], hosts: &[u64]) -> World {
        let mut graph = Graph::default();
        let mut used: BTreeMap<u64, u32> = BTreeMap::new();
        let mut port = |switch: u64| {
            let number = used.entry(switch).or_default();
            *number += 1;
            Port { switch: DatapathId(switch), number: *number }
        };
        for (one, other) in links {
            graph.link(port(*one), port(*other));
        }
        let mut nodes = BTreeMap::new();
        for (host, switch) in hosts.iter().enumerate() {
            let name = format!("h{host}");
            graph.place(&name, port(*switch));
            nodes.insert(
                name.clone(),
                NodeRegistration {
                    name,
                    ip: ip(host),
                    mac: real(host),
                    lldp_key: [0; 32].into(),
                    rack: None,
                    neighbor: None,
                },
            );
        }
        let mut racks = Racks::default();
        assert!(racks.update(&graph.hosts().map(|(_, port)| port.switch).collect()).is_empty());
        World { graph, racks, nodes }
    }

    /// Returns a network with root switch 1, or several spines, and racks 101 and up.
    fn leaf_spine(leaves: u64, spines: u64, per_leaf: u64) -> World {
        let links: Vec<_> =
            (0..leaves).flat_map(|leaf| (1..=spines).map(move |spine| (spine, 101 + leaf))).collect();
        let hosts: Vec<_> = (0..leaves * per_leaf).map(|host| 101 + host / per_leaf).collect();
        World::new(&links, &hosts)
    }

    /// Returns the same network with agents that use IPv6.
    fn by_ipv6(mut self) -> World {
        for (host, node) in (1..).zip(self.nodes.values_mut()) {
            node.ip = [0xfd00, 0, 0, 0, 0, 0, 0, host].into();
        }
        self
    }

    fn tree(&self, members: &[usize], tie_break: u64) -> Tree {
        let names: Vec<String> = members.iter().map(|m| format!("h{m}")).collect();
        Tree::over(
            &SwitchAdjacency::new(&self.graph),
            &self.graph,
            names.iter().map(String::as_str),
            tie_break,
        )
    }

    fn network(&self, trees: &[Tree]) -> ModelNetwork<'_> {
        ModelNetwork::new(&self.graph, self.tables(trees))
    }

    fn tables(&self, trees: &[Tree]) -> BTreeMap<DatapathId, SwitchTables> {
        let mut wanted = Intent::default();
        for switch in self.graph.switches() {
            wanted.add_switch(switch);
            wanted.allow_failovers(switch, usize::MAX);
        }
        // Places hosts without an agent next to the nodes, some of them before routes to them are
        // known.
        let place_hosts = |wanted: &mut Intent, early: bool| {
            for (host, (_, port)) in
                self.graph.hosts().enumerate().filter(|(host, _)| host.is_multiple_of(2) == early)
            {
                wanted.place_host(plain(host), self.racks.number(port.switch).unwrap(), port);
            }
        };
        place_hosts(&mut wanted, true);
        let tors: BTreeSet<DatapathId> = self.graph.hosts().map(|(_, port)| port.switch).collect();
        let racks = tors.into_iter().map(|tor| (self.racks.number(tor).unwrap(), tor)).collect();
        for hop in Routes::default().update(&SwitchAdjacency::new(&self.graph), &racks, &BTreeSet::new()) {
            wanted.route(hop.switch, hop.rack, hop.next_hops);
        }
        place_hosts(&mut wanted, false);
        for (name, port) in self.graph.hosts() {
            wanted.place(&self.nodes[name], Vlan(None), self.racks.number(port.switch).unwrap(), port);
        }
        for (number, tree) in (GROUPS.start..).zip(trees) {
            wanted.tree(number, Some(tree), &self.nodes);
        }
        wanted.tables().clone()
    }

    fn place(&self, host: usize) -> Port {
        self.graph.host(&format!("h{host}")).unwrap()
    }

    fn unicast(&self, network: &ModelNetwork<'_>, from: usize, to: usize) -> ModelArrivals {
        let place = self.place(to);
        let eth_dst = pmac::for_port(self.racks.number(place.switch).unwrap(), place.number).unwrap();
        network.send(self.place(from), ModelPacket::from_ips(eth_dst, (ip(from), ip(to))))
    }

    /// Returns the packet from a node to the host without an agent of this number, in a VLAN.
    fn to_plain(&self, network: &ModelNetwork<'_>, from: usize, to: usize, vlan: Vlan) -> ModelArrivals {
        let packet =
            ModelPacket { vlan: vlan.field(), ..ModelPacket::from_ips(plain(to).mac, (ip(from), ip(to))) };
        network.send(self.place(from), packet)
    }

    fn multicast(
        &self,
        network: &ModelNetwork<'_>,
        from: usize,
        claiming: usize,
        tree: u32,
    ) -> ModelArrivals {
        let source = self.nodes[&format!("h{claiming}")].ip;
        let address = IpVersion::from_ip(source).address(GROUPS.start + tree);
        let eth_dst = match address {
            IpAddr::V4(ip) => MacAddr(1, 0, 0x5e, ip.octets()[1] & 0x7f, ip.octets()[2], ip.octets()[3]),
            IpAddr::V6(ip) => {
                MacAddr(0x33, 0x33, ip.octets()[12], ip.octets()[13], ip.octets()[14], ip.octets()[15])
            }
        };
        network.send(self.place(from), ModelPacket::from_ips(eth_dst, (source, address)))
    }
}

fn hosts(arrivals: &ModelArrivals) -> Vec<String> {
    arrivals.hosts.iter().map(|(host, _)| host.clone()).collect()
}

fn named(members: impl IntoIterator<Item = usize>) -> Vec<String> {
    let mut names: Vec<String> = members.into_iter().map(|m| format!("h{m}")).collect();
    names.sort();
    names
}

#[test]
fn a_packet_to_a_pmac_arrives_with_the_nodes_own_address() {
    let world = World::leaf_spine(4, 1, 4);
    let network = world.network(&[]);
    for to in 1..16 {
        let arrivals = world.unicast(&network, 0, to);
        assert_eq!(hosts(&arrivals), named([to]));
        assert_eq!(arrivals.hosts[0].1.eth_dst, real(to));
        assert_eq!(arrivals.links, if to < 4 { 0 } else { 2 });
    }
}

#[test]
fn a_tor_needs_rules_for_its_hosts_and_the_other_racks_only() {
    let world = World::leaf_spine(4, 1, 4);
    let tables = world.tables(&[]);
    let count = |switch| tables[&DatapathId(switch)].flows.len() - always(Unicast::Routed, false).flows.len();
    // Each node takes three flows: one for packets to it, and two for LLDP and ARP from it. Each
    // host without an agent takes one flow in every switch.
    assert_eq!((count(101), count(1)), (4 * 3 + 3 + 16, 4 + 16));
}

#[test]
fn racks_are_spread_over_the_spines() {
    let world = World::leaf_spine(4, 2, 1);
    let tables = world.tables(&[]);
    let mut ports: Vec<String> = Vec::new();
    for (key, flow) in &tables[&DatapathId(101)].flows {
        if key.priority == RACK {
            ports.push(format!("{:?}", flow.instructions));
        }
    }
    assert_eq!(ports.len(), 3);
    assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 2);
}

#[test]
fn switches_replace_a_pulled_uplink_on_their_own() {
    let world = World::leaf_spine(4, 3, 1);
    let tables = world.tables(&[]);
    // One group for each uplink, shared by the racks that prefer it.
    assert_eq!(tables[&DatapathId(101)].groups.len(), 3);
    assert!(tables[&DatapathId(1)].groups.is_empty());
    for link in world.graph.links() {
        let mut network = world.network(&[]);
        network.cable(link, false);
        let leaf = link.a.switch.max(link.b.switch);
        for to in (0..4).filter(|to| world.place(*to).switch != leaf) {
            let from = (0..4).find(|from| world.place(*from).switch == leaf).unwrap();
            assert_eq!(hosts(&world.unicast(&network, from, to)), named([to]), "{link:?}");
        }
    }
}

#[test]
fn failover_groups_exist_only_while_racks_use_them() {
    let (mut wanted, switch) = (Intent::default(), DatapathId(1));
    wanted.add_switch(switch);
    let way = |port, alternate| Some(NextHops { port, alternate: Some(alternate) });
    let groups = |wanted: &Intent| -> Vec<u32> { wanted.tables()[&switch].groups.keys().copied().collect() };
    let rules =
        |wanted: &Intent| wanted.tables()[&switch].flows.iter().filter(|f| f.0.priority == RACK).count();
    wanted.route(switch, 1, way(1, 2));
    assert_eq!(groups(&wanted), [0; 0]);
    wanted.allow_failovers(switch, 2);
    for rack in 1..=3 {
        wanted.route(switch, rack, way(1, 2));
    }
    wanted.route(switch, 4, way(2, 1));
    wanted.route(switch, 5, way(2, 3));
    wanted.route(switch, 6, way(5000, 1));
    assert_eq!(groups(&wanted), [0xc100_1002, 0xc100_2001]);
    wanted.route(switch, 4, way(2, 3));
    assert_eq!(groups(&wanted), [0xc100_1002]);
    for rack in 1..=3 {
        assert_eq!(groups(&wanted), [0xc100_1002]);
        wanted.route(switch, rack, (rack == 1).then_some(NextHops { port: 1, alternate: None }));
    }
    assert_eq!(groups(&wanted), [0; 0]);
    wanted.route(switch, 4, way(2, 3));
    wanted.allow_failovers(switch, 0);
    assert_eq!((groups(&wanted), rules(&wanted)), (vec![], 4));
}

#[test]
fn lldp_and_arp_reach_the_controller_and_unknown_frames_nothing() {
    let world = World::leaf_spine(2, 1, 2);
    let network = world.network(&[world.tree(&[0, 1, 2], 0)]);
    let send = |eth_type, eth_dst| {
        let packet = ModelPacket { eth_type, ..ModelPacket::from_ips(eth_dst, (ip(0), ip(3))) };
        network.send(world.place(0), packet)
    };
    for eth_type in [EtherType::LLDP, EtherType::ARP] {
        let arrivals = send(eth_type, MacAddr::broadcast());
        assert_eq!((arrivals.hosts, arrivals.controller), (Vec::new(), vec![DatapathId(101)]));
    }
    for eth_dst in
        [MacAddr::broadcast(), real(3), pmac::for_port(9, 1).unwrap(), pmac::for_port(1, 99).unwrap()]
    {
        let arrivals = send(EtherType::IPV4, eth_dst);
        assert_eq!((arrivals.hosts, arrivals.controller), (Vec::new(), Vec::new()), "{eth_dst}");
    }
}

#[test]
fn a_multicast_crosses_every_link_of_its_tree_once() {
    let world = || World::leaf_spine(4, 1, 4);
    for world in [world(), world().by_ipv6()] {
        let network =
            world.network(&[world.tree(&(0..16).collect::<Vec<_>>(), 0), world.tree(&[0, 4, 8, 12], 0)]);
        let all = world.multicast(&network, 5, 5, 0);
        assert_eq!((hosts(&all), all.links), (named((0..16).filter(|h| *h != 5)), 4));
        let leaders = world.multicast(&network, 8, 8, 1);
        assert_eq!((hosts(&leaders), leaders.links), (named([0, 4, 12]), 4));
    }
}

#[test]
fn only_members_send_into_a_group_with_their_own_address() {
    let world = || World::leaf_spine(2, 1, 3);
    for world in [world(), world().by_ipv6()] {
        let network = world.network(&[world.tree(&[0, 1, 3], 0)]);
        assert_eq!(hosts(&world.multicast(&network, 0, 0, 0)), named([1, 3]));
        assert_eq!(hosts(&world.multicast(&network, 2, 2, 0)), named([]));
        assert_eq!(hosts(&world.multicast(&network, 2, 0, 0)), named([]));
        assert_eq!(hosts(&world.multicast(&network, 0, 1, 0)), named([]));
    }
}

#[test]
fn nonmember_packets_to_ipv6_trees_are_counted() {
    let nonmember_packets = |unicast, carries_hosts| {
        let flows = always(unicast, carries_hosts).flows.into_values();
        flows.filter(|flow| flow.cookie == cookies::NONMEMBERS.0).count()
    };
    assert_eq!((nonmember_packets(Unicast::Routed, true), nonmember_packets(Unicast::Normal, false)), (2, 2));
    assert_eq!(nonmember_packets(Unicast::Routed, false), 1);
}

#[test]
fn a_priority_without_a_vlan_needs_flows_once_it_occurs() {
    let (mut intent, tor) = (Intent::default(), DatapathId(1));
    intent.add_switch(tor);
    let world = World::leaf_spine(1, 1, 2);
    let at = |number| Port { switch: tor, number };
    let accepting = |intent: &Intent| {
        let field = Oxm::VlanVid(Masked::exact(VlanId::tagged(0)));
        let keys = intent.tables()[&tor].flows.keys();
        keys.filter(|key| key.matching.fields.contains(&field)).map(|key| key.priority).collect::<Vec<_>>()
    };
    let (untagged, in_vlan) = (plain(1), plain(3));
    assert_eq!((untagged.vlan, in_vlan.vlan), (Vlan(None), Vlan(Some(42))));
    intent.place_host(untagged, 0, at(1));
    intent.place_host(in_vlan, 0, at(2));
    assert_eq!(accepting(&intent), [0; 0]);
    intent.accept_priority_tags();
    assert_eq!(accepting(&intent), [flows::HOST]);
    intent.place(&world.nodes["h0"], Vlan(None), 0, at(3));
    intent.place(&world.nodes["h1"], Vlan(Some(7)), 0, at(4));
    assert_eq!(accepting(&intent), [flows::HOST, NODE]);
    // A later controller sees one host.
    let inherited = InheritedState::read(&intent.tables()[&tor]).hosts.here;
    assert!(inherited.iter().all(|(host, _)| [untagged, in_vlan].contains(host)), "{inherited:?}");
    intent.displace("h0");
    intent.displace_host(untagged);
    assert_eq!(accepting(&intent), [0; 0]);
}

#[test]
fn every_switch_remembers_the_numbers_of_all_racks() {
    let world = World::leaf_spine(2, 2, 2);
    let tables = world.tables(&[]);
    let remembered: BTreeSet<BTreeSet<u32>> =
        tables.values().map(|tables| InheritedState::read(tables).racks).collect();
    assert_eq!(remembered, BTreeSet::from([BTreeSet::from([0, 1])]));
}

#[test]
fn a_tor_remembers_the_number_of_its_rack() {
    let mut intent = Intent::default();
    let (tor, spine) = (DatapathId(103), DatapathId(1));
    [tor, spine].into_iter().for_each(|switch| intent.add_switch(switch));
    for rack in [2, 0, 65_535] {
        intent.number_rack(tor, rack);
        assert_eq!(InheritedState::read(&intent.tables()[&tor]).rack, Some(rack));
    }
    assert_eq!(InheritedState::read(&intent.tables()[&spine]).rack, None);
}

#[test]
fn only_differences_are_reported() {
    let world = World::leaf_spine(3, 2, 2);
    let mut wanted = Intent::default();
    world.graph.switches().for_each(|switch| wanted.add_switch(switch));
    let (large, small) = (world.tree(&[0, 1, 2, 4], 0), world.tree(&[0, 1, 4], 0));
    let all = wanted.tree(GROUPS.start, Some(&large), &world.nodes);
    assert_eq!(all.len(), 4);
    assert_eq!(wanted.take_pending().len(), 4);
    assert_eq!(wanted.tree(GROUPS.start, Some(&large), &world.nodes), BTreeSet::new());
    assert!(wanted.take_pending().is_empty());
    // The leaf that was removed, and the spine that lost a port.
    let touched = wanted.tree(GROUPS.start, Some(&small), &world.nodes);
    assert_eq!(touched, BTreeSet::from([DatapathId(1), DatapathId(102)]));
    assert_eq!(wanted.take_pending().into_keys().collect::<BTreeSet<_>>(), touched);
    wanted.tree(GROUPS.start, None, &world.nodes);
    assert!(wanted.tables().values().all(|tables| *tables == always(Unicast::Routed, false)));
}

/// Generates any connected network with hosts, and two groups of them.
fn worlds() -> impl Strategy<Value = (World, Vec<usize>, Vec<usize>)> {
    let index = any::<prop::sample::Index>;
    let parents = prop::collection::vec(index(), 0..9);
    let extra = prop::collection::vec((index(), index()), 0..8);
    let hosts = prop::collection::vec(index(), 2..14);
    let groups = prop::collection::vec((any::<bool>(), any::<bool>()), 14);
    (parents, extra, hosts, groups).prop_map(|(parents, extra, hosts, groups)| {
        let switches = parents.len() + 1;
        let mut links: Vec<(u64, u64)> = Vec::new();
        for (switch, parent) in (1..).zip(&parents) {
            links.push((switch as u64, parent.index(switch) as u64));
        }
        let extra = extra.iter().map(|(a, b)| (a.index(switches) as u64, b.index(switches) as u64));
        links.extend(extra.filter(|(a, b)| a != b));
        let hosts: Vec<u64> = hosts.iter().map(|h| h.index(switches) as u64).collect();
        let pick =
            |member: fn(&(bool, bool)) -> bool| (0..hosts.len()).filter(|h| member(&groups[*h])).collect();
        let (first, second) = (pick(|g| g.0), pick(|g| g.1));
        (World::new(&links, &hosts), first, second)
    })
}

proptest! {
    #[test]
    fn in_any_network_packets_arrive_exactly_where_they_should(
        (world, first, second) in worlds(), tie_break in any::<u64>(), ipv6: bool,
    ) {
        let world = if ipv6 { world.by_ipv6() } else { world };
        let groups = [first, second];
        let trees = [world.tree(&groups[0], tie_break), world.tree(&groups[1], tie_break + 1)];
        let network = world.network(&trees);
        let count = world.nodes.len();
        let names: Vec<&String> = world.nodes.keys().collect();
        for from in 0..count {
            for to in (0..count).filter(|to| world.place(from) != world.graph.host(names[*to]).unwrap()) {
                let arrivals = world.to_plain(&network, from, to, plain(to).vlan);
                prop_assert_eq!(hosts(&arrivals), vec![names[to].clone()]);
                prop_assert_eq!(hosts(&world.to_plain(&network, from, to, Vlan(Some(7)))), named([]));
            }
            for to in (0..count).filter(|to| *to != from) {
                let arrivals = world.unicast(&network, from, to);
                prop_assert_eq!(hosts(&arrivals), named([to]));
                prop_assert_eq!(arrivals.hosts[0].1.eth_dst, real(to));
            }
            for (number, members) in (0..).zip(&groups) {
                let others = members.iter().copied().filter(|m| members.contains(&from) && *m != from);
                let arrivals = world.multicast(&network, from, from, number);
                prop_assert_eq!(hosts(&arrivals), named(others));
                prop_assert!(arrivals.links <= trees[number as usize].links.len());
            }
        }
        // Whichever cable is pulled, no packet loops, is duplicated or arrives elsewhere before the
        // controller knows.
        for link in world.graph.links() {
            let mut network = world.network(&trees);
            network.cable(link, false);
            for (to, name) in names.iter().enumerate().skip(1) {
                let arrived = hosts(&world.unicast(&network, 0, to));
                prop_assert!(arrived.is_empty() || arrived == named([to]), "{:?}", arrived);
                let arrived = hosts(&world.to_plain(&network, 0, to, plain(to).vlan));
                prop_assert!(arrived.is_empty() || arrived == [(*name).clone()], "{:?}", arrived);
            }
        }
    }
}
