//! The network against model switches: what switches, nodes and callers observe.

mod group_tests;
mod hosts;
mod ipv6;
mod local_port;
mod multicast;
mod observation;
mod self_location;
mod snapshots;
mod tree_sharing;
mod world;

use super::*;
use crate::api::{GroupRequest, MacAddr, NodeRegistration, TableCapacity, TreeScope};
use crate::frames::pmac;
use crate::intent::addresses;
use crate::intent::tables::{FlowEntry, FlowKey, GROUPS};
use crate::request::FabricRequest;
use crate::switch::model::{self, ModelPacket};
use crate::switch::port_info::PortInfo;
use cool_topology::{Graph, lldp::Announcement};
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use rs_openflow::{GroupType, Match, VlanId};
use tokio::sync::oneshot;
use world::{World, at, dpid, ipv4, node, ring};

fn others(from: u8) -> Vec<String> {
    (1..=8).filter(|n| *n != from).map(|n| format!("h{n}")).collect()
}

#[test]
fn a_group_gets_trees_once_switches_have_acknowledged() {
    let mut world = World::new(ring());
    world.intervals(1);
    let snapshot = world.watch.borrow().clone();
    assert_eq!((snapshot.switches.len(), snapshot.links.len()), (4, 4));
    assert_eq!(snapshot.warnings, [""; 0]);
    assert_eq!(snapshot.node("h5").unwrap().location.unwrap().rack, 2);
    let grants = world.group(3, &[1, 2, 3, 4, 5, 6, 7, 8]).try_recv().unwrap().unwrap();
    assert_eq!(grants.len(), 6);
    let scopes: Vec<TreeScope> = grants.iter().map(|g| g.scope).collect();
    assert_eq!(scopes[..3], [TreeScope::All, TreeScope::Leaders, TreeScope::Rack(0)]);
    assert_eq!(grants[0].bytes_per_second, 1000);
    assert!(grants[2].nodes.contains(&("h1".to_owned(), at(1, 3))), "{:?}", grants[2]);
    for from in 1..=8 {
        assert_eq!(world.send(from, grants[0].address), others(from));
    }
    assert_eq!(world.send(1, grants[1].address), ["h3", "h5", "h7"]);
}

#[test]
fn a_group_on_one_node_needs_no_switch() {
    let mut world = World::new(ring());
    world.intervals(6);
    assert_eq!(world.group(1, &[3, 3]).try_recv().unwrap().unwrap(), []);
    world.ask(|reply| FabricRequest::ReleaseGroup(1, reply)).try_recv().unwrap().unwrap();
}

#[test]
fn a_group_of_unknown_nodes_or_over_a_gap_is_refused_by_name() {
    let mut world = World::new(ring());
    world.intervals(1);
    let error = world.group(1, &[1, 77]).try_recv().unwrap().unwrap_err();
    assert_eq!(error, FabricError::NotLocated { nodes: vec!["h77".into()] });
    world.cable(at(1, 1), false);
    world.cable(at(3, 1), false);
    world.settle();
    let error = world.group(1, &[1, 3]).try_recv().unwrap().unwrap_err();
    assert_eq!(error, FabricError::Partitioned { from: "h1".into(), to: "h3".into() });
    assert!(world.group(1, &[1, 7]).try_recv().unwrap().is_ok());
    let error = world.group(1, &[1]).try_recv().unwrap().unwrap_err();
    assert_eq!(error, FabricError::GroupExists { id: 1 });
}

#[test]
fn trees_follow_broken_cables_and_packets_never_go_round() {
    let mut world = World::new(ring());
    world.intervals(1);
    let grants = world.group(0, &[1, 2, 3, 4, 5, 6, 7, 8]).try_recv().unwrap().unwrap();
    for tor in [1, 3, 2, 4, 1] {
        world.cable(at(tor, 1), false);
        world.settle();
        for from in 1..=8 {
            assert_eq!(world.send(from, grants[0].address), others(from), "without the cable of {tor}");
        }
        world.cable(at(tor, 1), true);
        world.intervals(1);
        for from in 1..=8 {
            assert_eq!(world.send(from, grants[0].address), others(from), "with the cable of {tor} again");
        }
    }
    world.ask(|reply| FabricRequest::ReleaseGroup(0, reply)).try_recv().unwrap().unwrap();
    assert!(world.devices.values().all(|d| d.trees().is_empty()));
}

#[test]
fn a_switch_that_does_not_acknowledge_prevents_the_group() {
    let mut world = World::new(ring());
    world.intervals(6);
    world.devices.get_mut(&dpid(2)).unwrap().stuck = true;
    let mut answer = world.group(1, &[1, 3, 5]);
    assert!(answer.try_recv().is_err());
    world.now += FabricConfig::default().ack_timeout;
    world.settle();
    let error = answer.try_recv().unwrap().unwrap_err();
    let waited = Duration::from_secs(5);
    assert_eq!(error, FabricError::Unacknowledged { id: 1, switches: vec!["s2".into()], waited });
    world.devices.get_mut(&dpid(2)).unwrap().stuck = false;
    world.settle();
    assert!(world.devices.values().all(|d| d.trees().is_empty()));
}

#[test]
fn a_refusing_switch_is_named_with_the_entry() {
    let mut world = World::new(ring());
    world.intervals(1);
    let device = world.devices.get_mut(&dpid(2)).unwrap();
    device.switch.capacity = Some(device.switch.flows.len());
    let error = world.group(1, &[1, 3, 5]).try_recv().unwrap().unwrap_err();
    let FabricError::Refused { id: 1, switch, reason } = &error else { panic!("{error}") };
    assert!(switch == "s2" && reason.contains("table_full") && reason.contains("239.192"), "{error}");
    world.settle();
    assert!(world.devices.values().all(|d| d.trees().is_empty()));
}

#[test]
fn a_switch_that_refuses_failover_groups_works_without() {
    let mut world = World::new(Graph::default());
    world.truth = ring();
    for switch in 1..=4 {
        let refuses = (switch == 2).then_some(GroupType::FF);
        world.connect(dpid(switch), model::ModelSwitch { refuses, ..model::ModelSwitch::default() });
    }
    world.intervals(6);
    let failovers = |world: &World| -> Vec<usize> {
        world.devices.values().map(|d| d.switch.groups.range(FAILOVERS).count()).collect()
    };
    assert_eq!(failovers(&world), [1, 0, 1, 1]);
    // A packet from a host to one in the opposite rack, to which two paths lead.
    let pmac = pmac::for_port(world.network.racks.number(dpid(4)).unwrap(), 3).unwrap();
    let packet = ModelPacket::from_ips(pmac, (node(3).ip, node(7).ip));
    let arrived = |world: &World| world.model().send(at(2, 3), packet).hosts.len();
    assert_eq!((arrived(&world), world.watch.borrow().warnings.len()), (1, 0));
    world.cable(at(2, 1), false);
    world.settle();
    assert_eq!(arrived(&world), 1);
}

#[test]
fn only_a_switch_that_lost_its_tables_is_filled_again() {
    let mut world = World::new(ring());
    world.intervals(6);
    let grants = world.group(1, &[1, 2, 3, 4, 5, 6, 7, 8]).try_recv().unwrap().unwrap();
    for lost in [true, false] {
        let before = world.devices[&dpid(2)].switch.clone();
        world.event(dpid(2), SwitchEvent::Down);
        world.settle();
        assert!(world.watch.borrow().warnings[0].contains("s2 is not connected"));
        world.connect(dpid(2), if lost { model::ModelSwitch::default() } else { before.clone() });
        world.settle();
        assert_eq!(world.devices[&dpid(2)].switch.tables(), before.tables());
        if !lost {
            // The flows were not even replaced: their order of insertion is the same.
            assert_eq!(world.devices[&dpid(2)].switch.flows, before.flows);
        }
        assert_eq!(world.send(1, grants[0].address), others(1));
    }
}

#[test]
fn events_of_a_replaced_connection_do_not_count() {
    let mut world = World::new(ring());
    world.intervals(1);
    let old = world.devices[&dpid(1)].connection;
    world.connect(dpid(1), model::ModelSwitch::default());
    world.network.event(world.now, FromSwitch { connection: old, switch: dpid(1), event: SwitchEvent::Down });
    world.settle();
    assert_eq!(world.watch.borrow().warnings, [""; 0]);
    assert_eq!(world.watch.borrow().switches.len(), 4);
}

#[test]
fn a_restarted_controller_reads_rack_numbers_from_switches() {
    let mut first = World::new(Graph::default());
    first.truth = ring();
    // The switches connect in an order that differs from their numbers.
    for switch in [4, 2, 3, 1] {
        first.connect(dpid(switch), model::ModelSwitch::default());
        first.intervals(2);
    }
    let racks = |world: &World| world.watch.borrow().switches.iter().map(|s| s.rack).collect::<Vec<_>>();
    assert_eq!(racks(&first), [Some(3), Some(1), Some(2), Some(0)]);
    let mut second = World::new(Graph::default());
    second.truth = ring();
    for (switch, device) in &first.devices {
        second.connect(*switch, device.switch.clone());
    }
    second.settle();
    let unicast = |world: &World| {
        let tables = world.devices.values().map(|d| d.switch.tables());
        let of_unicast = |(key, _): &(FlowKey, FlowEntry)| (30_000..31_000).contains(&key.priority);
        tables
            .map(|t| (t.flows.into_iter().filter(of_unicast).collect::<Vec<_>>(), t.groups))
            .collect::<Vec<_>>()
    };
    assert!(unicast(&first).iter().all(|(_, groups)| groups.keys().all(|number| FAILOVERS.contains(number))));
    assert!(unicast(&first).iter().any(|(_, groups)| !groups.is_empty()));
    // No LLDP has been received yet, but traffic still flows.
    assert_eq!(unicast(&second), unicast(&first));
    second.intervals(6);
    assert_eq!(racks(&second), racks(&first));
    assert_eq!(unicast(&second), unicast(&first));
}

/// Replaces the controller by a new one that finds the switches as they are.
fn restarted(first: World) -> World {
    let by_ipv6 = first.network.nodes.all().values().any(|node| node.ip.is_ipv6());
    takes_over(World::of(Graph::default(), if by_ipv6 { world::node_by_ipv6 } else { node }), first)
}

/// Like [`restarted`], with a controller that already has some state.
fn takes_over(mut second: World, first: World) -> World {
    second.truth = first.truth;
    for (switch, device) in first.devices {
        second.connect(switch, device.switch);
    }
    second.settle();
    second
}

/// Returns the switches that have a route to a rack.
fn with_route_to(world: &World, rack: u32) -> Vec<u64> {
    let (address, mask) = pmac::for_rack(rack).unwrap();
    let key = FlowKey::new(30_000, Match::new().eth_dst_masked(address, mask));
    let has = |device: &world::Device| device.switch.tables().flows.contains_key(&key);
    world.devices.iter().filter(|(_, device)| has(device)).map(|(switch, _)| switch.0).collect()
}

#[test]
fn racks_keep_their_numbers_over_a_controller_without_nodes() {
    let mut first = World::new(Graph::default());
    first.truth = ring();
    // The switches connect in an order that differs from their numbers.
    for switch in [4, 2, 3, 1] {
        first.connect(dpid(switch), model::ModelSwitch::default());
        first.intervals(2);
    }
    let mut second = restarted(first);
    for n in 1..=8 {
        second.ask(|reply| FabricRequest::Unregister(format!("h{n}"), reply)).try_recv().unwrap().unwrap();
    }
    second.intervals(24);
    assert_eq!(with_route_to(&second, 3), [0; 0]);
    // Hosts still know each other by PMACs, which contain the rack.
    let mut third = restarted(second);
    third.intervals(6);
    let racks: Vec<_> = third.watch.borrow().switches.iter().map(|switch| switch.rack).collect();
    assert_eq!(racks, [Some(3), Some(1), Some(2), Some(0)]);
}

#[test]
fn a_rack_number_is_reserved_for_a_switch_that_returns_late() {
    let mut first = World::new(ring());
    first.intervals(6);
    let mut second = World::new(Graph::default());
    second.truth = first.truth;
    let mut devices = first.devices;
    let kept = devices.remove(&dpid(3)).unwrap().switch;
    second.connect(dpid(3), kept);
    second.connect(dpid(2), model::ModelSwitch::default());
    second.intervals(6);
    for late in [1, 4] {
        second.connect(dpid(late), devices.remove(&dpid(late)).unwrap().switch);
    }
    second.intervals(6);
    let racks: Vec<_> = second.watch.borrow().switches.iter().map(|switch| switch.rack).collect();
    // Hosts know those at switches 1, 3 and 4 by PMACs with racks 0, 2 and 3.
    assert_eq!(racks, [Some(0), Some(4), Some(2), Some(3)]);
}

#[test]
fn routes_to_a_switch_that_returns_late_are_retained() {
    let mut first = World::new(ring());
    first.intervals(6);
    let mut devices = first.devices;
    let mut second = World::new(Graph::default());
    second.truth = first.truth;
    let late = devices.remove(&dpid(3)).unwrap();
    for (switch, device) in devices {
        second.connect(switch, device.switch);
    }
    second.settle();
    for _ in 0..8 {
        second.intervals(1);
        assert_eq!(with_route_to(&second, 2), [1, 2, 4]);
    }
    second.connect(dpid(3), late.switch);
    second.intervals(2);
    assert_eq!((with_route_to(&second, 2), with_route_to(&second, 0)), (vec![1, 2, 4], vec![2, 3, 4]));
    let place =
        FlowKey::new(30_010, Match::new().eth_dst(pmac::for_port(0, 3).unwrap()).vlan_vid(VlanId::NONE));
    let placed = |world: &World| world.devices[&dpid(1)].switch.tables().flows.contains_key(&place);
    assert!(placed(&second));
    second.ask(|reply| FabricRequest::Unregister("h1".into(), reply)).try_recv().unwrap().unwrap();
    assert!(!placed(&second));
}

#[test]
fn a_restarted_controller_adopts_used_trees_and_removes_others() {
    for node in [node, world::node_by_ipv6] {
        trees_are_taken_over(World::of(ring(), node));
    }
}

fn trees_are_taken_over(mut first: World) {
    first.intervals(6);
    let all = [1, 2, 3, 4, 5, 6, 7, 8];
    let used = first.group(7, &all).try_recv().unwrap().unwrap();
    // This group has another order of ranks, so it shares no trees.
    let reversed = [8, 7, 6, 5, 4, 3, 2, 1];
    first.group(8, &reversed).try_recv().unwrap().unwrap();
    let groups = |world: &World| {
        let groups = world.devices.values().map(|d| d.trees());
        groups.collect::<Vec<_>>()
    };
    let trees: Vec<(TreeScope, IpAddr)> = used.iter().map(|grant| (grant.scope, grant.address)).collect();
    let flows = |world: &World| {
        let numbers: BTreeSet<u32> = trees.iter().filter_map(|(_, a)| addresses::number(*a)).collect();
        let of_group = |flow: &&rs_openflow::FlowMod| {
            numbers.contains(&(GROUPS.start + (flow.cookie as u32 & 0xff_ffff)))
        };
        let tables = world
            .devices
            .values()
            .map(|d| d.switch.flows.iter().filter(of_group).cloned().collect::<Vec<_>>());
        tables.collect::<Vec<_>>()
    };
    let (before, both) = (flows(&first), groups(&first));
    let mut second = restarted(first);
    second.intervals(2);
    assert_eq!((flows(&second), groups(&second)), (before.clone(), both.clone()));
    // An agent returns with its group while the network is still being discovered.
    let request = GroupRequest {
        id: 7,
        members: all.iter().map(|n| format!("h{n}")).collect(),
        can_prove: false,
        can_join_sources: false,
    };
    second.ask(|reply| FabricRequest::AdoptGroup(request, trees.clone(), reply)).try_recv().unwrap().unwrap();
    for _ in 0..8 {
        second.intervals(1);
        assert_eq!((flows(&second), groups(&second)), (before.clone(), both.clone()));
        assert_eq!(second.send(1, used[0].address), others(1));
    }
    // A new group must get addresses that no other group uses.
    let new = second.group(9, &reversed).try_recv().unwrap().unwrap();
    assert!(
        new.iter().all(|grant| !both.iter().flatten().any(|n| Some(*n) == addresses::number(grant.address)))
    );
    // Unclaimed trees are removed, and the group follows the network from now on.
    second.intervals(20);
    assert_eq!(flows(&second), before);
    let wanted: BTreeSet<u32> =
        used.iter().chain(&new).filter_map(|grant| addresses::number(grant.address)).collect();
    assert_eq!(groups(&second).concat().into_iter().collect::<BTreeSet<_>>(), wanted);
    second.cable(at(1, 1), false);
    second.settle();
    assert_eq!(second.send(1, used[0].address), others(1));
    for id in [7, 9] {
        second.ask(|reply| FabricRequest::ReleaseGroup(id, reply)).try_recv().unwrap().unwrap();
    }
    assert_eq!(groups(&second).concat(), [0; 0]);
}

#[test]
fn groups_that_are_made_and_released_leave_nothing_behind() {
    let mut world = World::new(ring());
    world.intervals(6);
    let before: Vec<_> = world.devices.values().map(|d| d.switch.tables()).collect();
    for id in 0..200 {
        let members: Vec<u8> = (1..=8).filter(|n| (id + u64::from(*n)) % 3 > 0).collect();
        world.group(id, &members).try_recv().unwrap().unwrap();
        world.ask(|reply| FabricRequest::ReleaseGroup(id, reply)).try_recv().unwrap().unwrap();
    }
    assert_eq!(world.devices.values().map(|d| d.switch.tables()).collect::<Vec<_>>(), before);
    let network = &world.network;
    assert!(network.multicast.is_empty() && network.acknowledgments.is_empty());
}

#[test]
fn a_change_is_sent_only_to_the_switches_that_it_concerns() {
    let mut world = World::new(ring());
    world.intervals(8);
    let versions =
        |world: &World| world.network.switches.iter().map(|(_, s)| s.version()).collect::<Vec<_>>();
    let before = versions(&world);
    world.group(1, &[1, 2]).try_recv().unwrap().unwrap();
    let after = versions(&world);
    assert!(after[0] > before[0] && after[1..] == before[1..], "{before:?} {after:?}");
}

#[test]
fn the_new_place_of_a_moved_node_is_announced() {
    let mut world = World::new(ring());
    world.intervals(6);
    world.truth.displace("h1");
    world.truth.place("h1", at(3, 9));
    let down = PortInfo {
        number: 3,
        mac: MacAddr(2, 1, 0, 0, 0, 3),
        up: false,
        blocked: false,
        forwards: true,
        bytes_per_second: 0,
    };
    world.event(dpid(1), SwitchEvent::PortChanged(down));
    let up = PortInfo {
        number: 9,
        mac: MacAddr(2, 1, 0, 0, 0, 9),
        up: true,
        blocked: false,
        forwards: true,
        bytes_per_second: 0,
    };
    world.event(dpid(3), SwitchEvent::PortChanged(up));
    let NodeRegistration { name, mac, lldp_key, .. } = node(1);
    let frame = Announcement::Node { name, mac }.encode(mac, &lldp_key, u64::MAX).unwrap();
    world.event(dpid(3), SwitchEvent::PacketIn(9, frame));
    world.deadline = world.network.advance(world.now);
    let mut reported = Vec::new();
    for (switch, device) in &mut world.devices {
        while let Ok((port, frame)) = device.packets.try_recv() {
            if frame[12..14] == [8, 6] {
                assert_eq!(frame[22..32], [2, 0xc0, 0, 2, 0, 9, 10, 0, 0, 1]);
                reported.extend(port.into_iter().map(|port| (switch.0, port)));
            }
        }
    }
    assert_eq!(reported, [(1, 4), (2, 3), (2, 4), (3, 3), (3, 4), (4, 3), (4, 4)]);
}

#[test]
fn addresses_belong_to_one_node_and_are_given_back() {
    let mut world = World::new(ring());
    let mut twin = node(1);
    twin.name = "twin".into();
    let error =
        world.ask(|reply| FabricRequest::Register(twin.clone(), reply)).try_recv().unwrap().unwrap_err();
    assert!(matches!(&error, FabricError::AddressTaken { holder, .. } if holder == "h1"), "{error}");
    world.ask(|reply| FabricRequest::Unregister("h1".into(), reply)).try_recv().unwrap().unwrap();
    world.ask(|reply| FabricRequest::Register(twin, reply)).try_recv().unwrap().unwrap();
    let nobody = NodeRegistration { name: String::new(), ..node(9) };
    let error = world.ask(|reply| FabricRequest::Register(nobody, reply)).try_recv().unwrap().unwrap_err();
    assert!(matches!(error, FabricError::BadRegistration { .. }), "{error}");
}

#[test]
fn arp_is_answered_with_pmacs_or_forwarded_to_nodes() {
    let mut world = World::new(ring());
    world.intervals(1);
    let ask = |world: &mut World, target: u8| {
        let mut frame = [&[0xff; 6][..], &node(1).mac.octets(), &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        frame
            .extend([&node(1).mac.octets()[..], &ipv4(1).octets(), &[0; 6], &ipv4(target).octets()].concat());
        world.event(dpid(1), SwitchEvent::PacketIn(3, frame));
        world.devices.get_mut(&dpid(1)).unwrap().packets.try_recv().ok()
    };
    let (port, answer) = ask(&mut world, 8).unwrap();
    assert_eq!(port, [3]);
    assert_eq!(answer[6..12], [2, 0xc0, 0, 3, 0, 4]);
    assert_eq!(ask(&mut world, 1), None);
    // A node may have further addresses, so a request that the controller cannot answer goes to all
    // others.
    let (ports, question) = ask(&mut world, 99).unwrap();
    assert_eq!((ports, &question[..6]), (vec![4], &[0xff; 6][..]));
}

#[test]
fn a_full_switch_is_named_and_groups_get_fewer_trees() {
    let mut world = World::new(ring());
    world.intervals(6);
    world.leave_room(dpid(2), 1);
    let grants = world.group(1, &[1, 2, 3, 4, 5, 6, 7, 8]).try_recv().unwrap().unwrap();
    let scopes: Vec<TreeScope> = grants.iter().map(|g| g.scope).collect();
    assert_eq!(scopes, [TreeScope::All, TreeScope::Rack(0), TreeScope::Rack(2), TreeScope::Rack(3)]);
    assert_eq!(world.send(1, grants[0].address), others(1));
    let warnings = world.watch.borrow().warnings.clone();
    assert_eq!(warnings, ["switch s2 is full; groups without some of their trees: 1"]);
    let error = world.group(2, &[3, 4]).try_recv().unwrap().unwrap_err();
    let exhausted = "2 of its 2 group entries are in use".to_owned();
    assert_eq!(error, FabricError::Full { id: 2, switch: "s2".into(), exhausted });
    assert_eq!(world.network.multicast.in_use(), grants.len());
    world.ask(|reply| FabricRequest::ReleaseGroup(1, reply)).try_recv().unwrap().unwrap();
    world.intervals(1);
    assert_eq!(world.watch.borrow().warnings, [""; 0]);
    assert_eq!(world.group(2, &[3, 4]).try_recv().unwrap().unwrap().len(), 1);
}

#[test]
fn where_one_way_is_full_a_tree_takes_another() {
    let mut graph = Graph::default();
    for leaf in 1..=2 {
        (3..=4).for_each(|spine| graph.link(at(leaf, spine as u32), at(spine, leaf as u32)));
        (0..2).for_each(|n| graph.place(&format!("h{}", 2 * leaf - 1 + n), at(leaf, 1 + n as u32)));
    }
    let mut world = World::new(graph);
    world.intervals(6);
    for id in 0..4 {
        let capacity = TableCapacity { flows: Some(9), ..TableCapacity::default() };
        world.network.switches.limit(dpid(3), capacity);
        let grants = world.group(id, &[1, 3]).try_recv().unwrap().unwrap();
        assert_eq!(grants.len(), 2);
        let full = |link: &Link| [link.a.switch, link.b.switch].contains(&dpid(3));
        assert!(!grants.iter().flat_map(|g| &g.links).any(full), "{grants:?}");
    }
}

/// Returns leaves 1 and 2 with links of 1000 bytes per second to spines 3 and 4, and of 3000 and
/// 4000 bytes per second to nodes h1 to h4.
fn two_spines() -> Graph {
    let mut graph = Graph::default();
    for leaf in 1..=2 {
        (1..=2).for_each(|n| graph.link(at(leaf, n), at(2 + u64::from(n), leaf as u32)));
        (3..=4).for_each(|n| graph.place(&format!("h{}", 2 * leaf + u64::from(n) - 4), at(leaf, n)));
    }
    graph
}

#[test]
fn disjoint_trees_fill_a_link_that_is_faster_than_one_tree() {
    let mut world = World::new(two_spines());
    world.intervals(6);
    let grants = world.group(5, &[1, 2, 3, 4]).try_recv().unwrap().unwrap();
    let all: Vec<&TreeGrant> = grants.iter().filter(|grant| grant.scope == TreeScope::All).collect();
    assert_eq!(all.iter().map(|grant| grant.bytes_per_second).collect::<Vec<_>>(), [1000, 1000]);
    let reached = |world: &World| all.iter().all(|grant| world.send(1, grant.address) == ["h2", "h3", "h4"]);
    assert!(reached(&world));
    // Without one spine both trees use the other, and each returns to its own afterwards.
    let shapes = |world: &mut World| {
        let trees = world.ask(|reply| FabricRequest::Trees(5, reply)).try_recv().unwrap().unwrap();
        let all = trees.into_iter().filter(|grant| grant.scope == TreeScope::All);
        all.map(|grant| grant.links).collect::<Vec<_>>()
    };
    let before = shapes(&mut world);
    world.cable(at(1, 1), false);
    world.intervals(2);
    assert!(reached(&world));
    world.cable(at(1, 1), true);
    world.intervals(3);
    assert!(reached(&world));
    assert_eq!(shapes(&mut world), before);

    let mut second = restarted(world);
    second.intervals(2);
    let trees: Vec<(TreeScope, IpAddr)> = grants.iter().map(|grant| (grant.scope, grant.address)).collect();
    let request = GroupRequest {
        id: 5,
        members: (1..=4).map(|n| format!("h{n}")).collect(),
        can_prove: false,
        can_join_sources: false,
    };
    second.ask(|reply| FabricRequest::AdoptGroup(request, trees, reply)).try_recv().unwrap().unwrap();
    second.intervals(20);
    assert!(reached(&second));
    assert_eq!(shapes(&mut second), before);
}

#[test]
fn where_all_links_are_equally_fast_one_tree_is_enough() {
    let mut world = World::new(two_spines());
    world.network.config.uplink_bytes_per_second = Some(3000);
    world.intervals(6);
    let grants = world.group(5, &[1, 2, 3, 4]).try_recv().unwrap().unwrap();
    assert_eq!(grants.iter().filter(|grant| grant.scope == TreeScope::All).count(), 1);
}

#[test]
fn a_moving_tree_avoids_a_full_switch_until_there_is_room() {
    let mut world = World::new(ring());
    world.intervals(6);
    let grants = world.group(1, &[1, 5, 7]).try_recv().unwrap().unwrap();
    assert_eq!(world.send(1, grants[0].address), ["h5", "h7"]);
    assert!(world.devices[&dpid(2)].trees().is_empty());
    world.network.switches.limit(dpid(2), TableCapacity { groups: Some(0), ..TableCapacity::default() });
    world.cable(at(4, 1), false);
    world.intervals(1);
    assert!(world.devices[&dpid(2)].trees().is_empty());
    assert_eq!(world.send(5, grants[0].address), ["h7"]);
    world.cable(at(4, 1), true);
    world.intervals(2);
    assert_eq!(world.send(1, grants[0].address), ["h5", "h7"]);
}
