//! Hosts without an agent: which machines receive their frames, and where switches send frames for
//! them.

use super::world::{World, at, dpid, ipv4, node, ring};
use super::*;
use crate::frames::arp::Arp;
use crate::frames::loop_probe::LoopProbe;
use crate::frames::vlan::Vlan;

/// Returns the ring, in which hosts 2 and 7 have no agent.
pub(super) fn world() -> World {
    let mut world = World::new(ring());
    without_agents(&mut world);
    world.intervals(6);
    world
}

pub(super) fn without_agents(world: &mut World) {
    for n in [2, 7] {
        world.ask(|reply| FabricRequest::Unregister(format!("h{n}"), reply)).try_recv().unwrap().unwrap();
    }
}

/// Returns the snapshot that is published next.
pub(super) fn shown(world: &mut World) -> Arc<TopologySnapshot> {
    world.intervals(1);
    world.watch.borrow().clone()
}

pub(super) fn place(world: &World, n: u8) -> Port {
    world.truth.host(&format!("h{n}")).unwrap()
}

fn arp(from: u8, to: u8, reply: bool) -> Arp {
    Arp { reply, sender: node(from).mac, sender_ip: ipv4(from), target: node(to).mac, target_ip: ipv4(to) }
}

/// A host sends a frame. Returns the frames that leave the network afterwards, with their ports.
pub(super) fn frames_after(world: &mut World, n: u8, frame: Vec<u8>) -> Vec<(Port, Vec<u8>)> {
    let place = place(world, n);
    sent_by(world, place, frame)
}

pub(super) fn sent_by(world: &mut World, place: Port, frame: Vec<u8>) -> Vec<(Port, Vec<u8>)> {
    world.event(place.switch, SwitchEvent::PacketIn(place.number, frame));
    let left = sent(world);
    world.settle();
    left
}

/// Returns the frames that the controller has sent out of ports.
pub(super) fn sent(world: &mut World) -> Vec<(Port, Vec<u8>)> {
    let mut left = Vec::new();
    for (switch, device) in &mut world.devices {
        while let Ok((numbers, frame)) = device.packets.try_recv() {
            let ports = numbers.into_iter().map(|number| Port { switch: *switch, number });
            left.extend(ports.map(|port| (port, frame.clone())));
        }
    }
    left
}

pub(super) fn ports(left: &[(Port, Vec<u8>)]) -> Vec<Port> {
    left.iter().map(|(port, _)| *port).collect()
}

/// Returns the hosts that receive a packet to an Ethernet address.
fn arrives(world: &World, from: u8, eth_dst: MacAddr) -> Vec<String> {
    let packet = ModelPacket::from_ips(eth_dst, (node(from).ip, Ipv4Addr::UNSPECIFIED.into()));
    let arrivals = world.model().send(place(world, from), packet);
    arrivals.hosts.into_iter().map(|(host, _)| host).collect()
}

/// Returns the ring after both hosts have requested each other's address.
fn acquainted() -> World {
    let mut world = world();
    frames_after(&mut world, 2, arp(2, 7, false).frame(MacAddr::broadcast()));
    frames_after(&mut world, 7, arp(7, 2, true).frame(node(2).mac));
    world
}

#[test]
fn requests_for_unknown_hosts_go_to_all_edge_ports() {
    let mut world = world();
    let question = arp(2, 7, false).frame(MacAddr::broadcast());
    let left = frames_after(&mut world, 2, question.clone());
    let all = (1..=4).flat_map(|tor| [at(tor, 3), at(tor, 4)]).filter(|port| *port != at(1, 4));
    assert_eq!(ports(&left), all.collect::<Vec<_>>());
    assert!(left.iter().all(|(_, frame)| *frame == question));
    let answer = arp(7, 2, true).frame(node(2).mac);
    assert_eq!(frames_after(&mut world, 7, answer.clone()), [(at(1, 4), answer)]);
    // From now on only the requested host receives the request, and every switch has a flow to it.
    assert_eq!(ports(&frames_after(&mut world, 2, question)), [at(4, 3)]);
    for from in [1, 2, 3, 5, 8] {
        assert_eq!(arrives(&world, from, node(7).mac), ["h7"], "from {from}");
    }
    let shown = shown(&mut world);
    let shown: Vec<_> =
        shown.hosts.iter().map(|host| (host.mac, host.port, host.addresses.clone())).collect();
    assert_eq!(shown, [2, 7].map(|n| (node(n).mac, place(&world, n), vec![node(n).ip])));
}

#[test]
fn hosts_and_nodes_see_a_node_by_its_pmac() {
    let mut world = acquainted();
    let pmac = |n: u8| world.network.surroundings().pmac_at(place(&world, n)).unwrap();
    let (of_1, of_5) = (pmac(1), pmac(5));
    let left = frames_after(&mut world, 2, arp(2, 5, false).frame(MacAddr::broadcast()));
    assert_eq!((ports(&left), Arp::read(&left[0].1).unwrap().sender), (vec![at(1, 4)], of_5));
    // A node requests the address of a host. The host receives the PMAC and replies to it, and the
    // node gets the reply.
    let left = frames_after(&mut world, 1, arp(1, 7, false).frame(MacAddr::broadcast()));
    assert_eq!((ports(&left), Arp::read(&left[0].1).unwrap().sender), (vec![at(4, 3)], of_1));
    let answer = Arp { target: of_1, ..arp(7, 1, true) };
    let left = frames_after(&mut world, 7, answer.frame(of_1));
    let received = Arp::read(&left[0].1).unwrap();
    assert_eq!((ports(&left), received.sender, received.target), (vec![at(1, 3)], node(7).mac, node(1).mac));
    assert_eq!(left[0].1[..6], node(1).mac.octets());
}

#[test]
fn broadcasts_go_to_all_edge_ports_and_bridge_frames_to_none() {
    let mut world = acquainted();
    let frame = |to: [u8; 6], from: [u8; 6]| [&to[..], &from, &[8, 0], &[7; 46]].concat();
    let own = node(2).mac.octets();
    for to in [[0xff; 6], [0x33, 0x33, 0, 0, 0, 1], [2, 9, 9, 9, 9, 9]] {
        assert_eq!(frames_after(&mut world, 2, frame(to, own)).len(), 7, "{to:x?}");
    }
    assert_eq!(ports(&frames_after(&mut world, 2, frame(node(7).mac.octets(), own))), [at(4, 3)]);
    assert_eq!(ports(&frames_after(&mut world, 2, frame(node(5).mac.octets(), own))), [at(3, 3)]);
    for (to, from) in [([1, 0x80, 0xc2, 0, 0, 0], own), ([0xff; 6], [1; 6]), ([0xff; 6], [0; 6])] {
        assert_eq!(frames_after(&mut world, 2, frame(to, from)), []);
    }
    // Frames over a link do not count, because the link may be a cable that was just connected.
    assert_eq!(sent_by(&mut world, at(1, 1), frame([0xff; 6], own)), []);
    assert_eq!(sent_by(&mut world, at(1, 4), vec![0xff; 9]), []);
}

#[test]
fn no_host_takes_the_address_of_a_node() {
    let mut world = acquainted();
    let claim = |sender, sender_ip| Arp { sender, sender_ip, ..arp(2, 7, true) }.frame(MacAddr::broadcast());
    for frame in [claim(node(2).mac, ipv4(5)), claim(node(5).mac, ipv4(2)), claim(node(5).mac, ipv4(5))] {
        assert_eq!(frames_after(&mut world, 2, frame), []);
        let warnings = shown(&mut world).warnings.clone();
        assert!(warnings[0].contains("node h5"), "{warnings:?}");
    }
    assert_eq!((shown(&mut world).hosts.len(), arrives(&world, 2, node(5).mac).len()), (2, 0));
    // The node itself may have several addresses.
    let alias = Arp { sender_ip: [10, 9, 9, 9].into(), ..arp(5, 2, false) };
    assert_eq!(ports(&frames_after(&mut world, 5, alias.frame(MacAddr::broadcast()))), [at(1, 4)]);
    let question = Arp { target_ip: alias.sender_ip, ..arp(2, 5, false) };
    assert_eq!(ports(&frames_after(&mut world, 2, question.frame(MacAddr::broadcast()))), [at(3, 3)]);
    world.intervals(61);
    assert_eq!(shown(&mut world).warnings, [""; 0]);
}

#[test]
fn hosts_receive_the_pmacs_that_they_use_from_time_to_time() {
    let mut world = acquainted();
    frames_after(&mut world, 2, arp(2, 5, false).frame(MacAddr::broadcast()));
    let pmac = world.network.surroundings().pmac_at(place(&world, 5)).unwrap();
    for _ in 0..3 {
        world.now += Duration::from_secs(60);
        world.network.advance(world.now);
        let mut announced = sent(&mut world);
        announced.retain(|(_, frame)| frame[6..12] == pmac.octets());
        assert_eq!(ports(&announced), [place(&world, 2)]);
        // The host continues to answer probes.
        frames_after(&mut world, 2, arp(2, 7, true).frame(MacAddr::broadcast()));
    }
    goes_down(&mut world, at(1, 4));
    world.now += Duration::from_secs(60);
    world.network.advance(world.now);
    assert!(sent(&mut world).iter().all(|(_, frame)| frame[6..12] != pmac.octets()));
}

#[test]
fn only_a_probe_that_returns_closes_a_port_to_hosts() {
    let mut world = acquainted();
    let frame = |n: u8| [&[0xff; 6][..], &node(n).mac.octets(), &[8, 0], &[7; 46]].concat();
    let closed = |world: &World| {
        let forwarder = &world.network.host_forwarder;
        forwarder
            .warnings(&world.network.surroundings())
            .iter()
            .any(|text| text.contains("is closed to hosts"))
    };
    let sends = |world: &mut World, frame: Vec<u8>| {
        let mut left = frames_after(world, 7, frame);
        left.retain(|(_, frame)| !crate::frames::is_lldp(frame));
        left
    };
    world.now += Duration::from_secs(2);
    // Host 2 sends the bytes first that host 7 is about to send.
    frames_after(&mut world, 2, frame(7));
    let probes = sends(&mut world, frame(7));
    assert_eq!(probes.len(), 8, "each edge port gets a probe");
    let key = cool_topology::Key::from([77; 32]).derive(b"loop probes");
    let read = |frame: &[u8]| LoopProbe::read(frame, &key).unwrap();
    let round = read(&probes[0].1).round;
    for (port, frame) in &probes {
        assert_eq!(read(frame), LoopProbe { port: *port, round });
    }
    let probe_of = |n: u8, world: &World| {
        let place = place(world, n);
        probes.iter().find(|(port, _)| *port == place).unwrap().1.clone()
    };
    let [own, other] = [7, 2].map(|n| probe_of(n, &world));
    assert_eq!(sends(&mut world, own), []);
    assert!(!closed(&world), "a host can return the probe that it receives");
    // A foreign switch connects the ports of hosts 2 and 7.
    assert_eq!(sends(&mut world, other), []);
    assert!(closed(&world));
    // The foreign switch is removed.
    world.intervals(10);
    assert!(!closed(&world));
}

#[test]
fn hosts_follow_broken_cables_and_packets_never_go_round() {
    let mut world = acquainted();
    for tor in [1, 3, 2, 4, 1] {
        world.cable(at(tor, 1), false);
        world.settle();
        assert_eq!(arrives(&world, 2, node(7).mac), ["h7"], "without the cable of {tor}");
        assert_eq!(arrives(&world, 3, node(2).mac), ["h2"], "without the cable of {tor}");
        world.cable(at(tor, 1), true);
        world.intervals(1);
        assert_eq!(arrives(&world, 2, node(7).mac), ["h7"], "with the cable of {tor} again");
    }
}

#[test]
fn a_moved_host_gets_flows_only_after_the_old_are_withdrawn() {
    let mut world = acquainted();
    world.now += Duration::from_secs(2);
    world.devices.get_mut(&dpid(3)).unwrap().stuck = true;
    sent_by(&mut world, at(2, 4), arp(7, 7, true).frame(MacAddr::broadcast()));
    // One switch has not acknowledged, and could still send the packet back.
    assert_eq!(arrives(&world, 2, node(7).mac), [""; 0]);
    world.devices.get_mut(&dpid(3)).unwrap().stuck = false;
    world.settle();
    for from in [2, 6, 8] {
        assert_eq!(arrives(&world, from, node(7).mac), ["h4"], "from {from}");
    }
}

#[test]
fn hosts_at_dead_ports_and_silent_hosts_lose_their_flows() {
    for silent in [false, true] {
        let mut world = acquainted();
        let leads = |world: &World| arrives(world, 3, node(7).mac).len();
        assert_eq!(leads(&world), 1);
        if silent {
            world.now += Duration::from_secs(61);
            world.settle();
            assert_eq!(leads(&world), 1);
            world.intervals(30);
        } else {
            goes_down(&mut world, at(4, 3));
        }
        assert_eq!(leads(&world), 0);
        let flows = world.devices.values().flat_map(|device| &device.switch.flows);
        assert_eq!(
            flows
                .filter(|flow| flow.priority == 30_005 && flow.matching.to_string().contains("00:07"))
                .count(),
            0
        );
    }
}

#[test]
fn a_restarted_controller_keeps_serving_hosts() {
    let first = acquainted();
    let mut second = World::new(Graph::default());
    without_agents(&mut second);
    let mut second = takes_over(second, first);
    let both = |world: &World| (arrives(world, 2, node(7).mac), arrives(world, 7, node(2).mac));
    let there = (vec!["h7".to_owned()], vec!["h2".to_owned()]);
    assert_eq!(both(&second), there);
    for _ in 0..30 {
        second.intervals(1);
        assert_eq!(both(&second), there);
    }
    second.cable(at(1, 2), false);
    second.settle();
    assert_eq!(both(&second), there);
    assert_eq!(shown(&mut second).hosts.len(), 2);
    // Their addresses are requested again.
    let left = frames_after(&mut second, 2, arp(2, 7, false).frame(MacAddr::broadcast()));
    assert_eq!(left.len(), 7);
}

#[test]
fn a_host_becomes_a_node_and_a_node_a_host() {
    let mut world = acquainted();
    world.ask(|reply| FabricRequest::Register(node(7), reply)).try_recv().unwrap().unwrap();
    world.intervals(2);
    let hosts = |world: &mut World| shown(world).hosts.iter().map(|host| host.mac).collect::<Vec<_>>();
    assert_eq!((hosts(&mut world), arrives(&world, 2, node(7).mac)), (vec![node(2).mac], vec![]));
    let pmac = world.network.surroundings().pmac_at(place(&world, 7)).unwrap();
    assert_eq!(arrives(&world, 2, pmac), ["h7"]);
    world.ask(|reply| FabricRequest::Unregister("h7".into(), reply)).try_recv().unwrap().unwrap();
    assert_eq!((hosts(&mut world).len(), arrives(&world, 2, pmac).len()), (2, 0));
    assert_eq!(arrives(&world, 2, node(7).mac), ["h7"]);
}

/// A port without a link goes down.
fn goes_down(world: &mut World, port: Port) {
    let mac = MacAddr(2, 1, 0, 0, 0, port.number as u8);
    let down =
        PortInfo { number: port.number, mac, up: false, blocked: false, forwards: true, bytes_per_second: 0 };
    world.event(port.switch, SwitchEvent::PortChanged(down));
    world.settle();
}

/// Returns the ring with two hosts, in which the agents of both nodes of a switch have crashed, and
/// the PMAC of one of these nodes, h5.
fn crashed() -> (World, MacAddr) {
    let mut world = acquainted();
    world.mute = ["h5".into(), "h6".into()].into();
    let located =
        |snapshot: &TopologySnapshot| snapshot.nodes.iter().filter(|n| n.location.is_some()).count();
    world.intervals(6);
    assert_eq!(located(&shown(&mut world)), 4);
    let pmac = world.network.surroundings().pmac_at(place(&world, 5)).unwrap();
    (world, pmac)
}

#[test]
fn a_node_stays_reachable_after_its_agent_crashes() {
    let (mut world, pmac) = crashed();
    assert_eq!((arrives(&world, 2, pmac), arrives(&world, 1, pmac)), (vec!["h5".into()], vec!["h5".into()]));
    let left = frames_after(&mut world, 2, arp(2, 5, false).frame(MacAddr::broadcast()));
    assert_eq!((ports(&left), Arp::read(&left[0].1).unwrap().sender), (vec![at(1, 4)], pmac));
    let left = frames_after(&mut world, 5, arp(5, 2, false).frame(MacAddr::broadcast()));
    assert_eq!((ports(&left), Arp::read(&left[0].1).unwrap().sender), (vec![at(1, 4)], pmac));
    assert_eq!((shown(&mut world).warnings.clone(), shown(&mut world).hosts.len()), (vec![], 2));
    // A node with a restarted agent is where it was.
    world.mute.remove("h6");
    world.intervals(2);
    assert!(world.network.silent.at(place(&world, 6)).is_none());
    world.ask(|reply| FabricRequest::Unregister("h5".into(), reply)).try_recv().unwrap().unwrap();
    assert_eq!((shown(&mut world).hosts.len(), arrives(&world, 2, pmac).len()), (3, 0));
    assert_eq!(arrives(&world, 2, node(5).mac), ["h5"]);
}

#[test]
fn a_crashed_node_is_unreachable_once_its_port_is_down_or_taken() {
    let (mut world, pmac) = crashed();
    let port = place(&world, 5);
    goes_down(&mut world, port);
    assert!(arrives(&world, 2, pmac).is_empty());
    let (mut world, pmac) = crashed();
    // The other node of the switch, with a running agent again, has been moved to this port.
    world.truth.displace("h5");
    world.truth.place("h6", port);
    world.mute.remove("h6");
    world.intervals(6);
    assert_eq!((arrives(&world, 2, pmac), world.network.silent.at(at(3, 4))), (vec!["h6".into()], None));
}

/// Puts the data interfaces of nodes into these VLANs, and sends their tagged LLDP once.
pub(super) fn tagged(world: &mut World, tags: &[(u8, u16)]) {
    for (n, vlan) in tags {
        let NodeRegistration { name, mac, lldp_key, .. } = node(*n);
        let number = world.now.as_nanos() + 2;
        let frame = Announcement::Node { name, mac }.encode(mac, &lldp_key, number).unwrap();
        frames_after(world, *n, Vlan(Some(*vlan)).put(frame));
    }
}

#[test]
fn vlans_stay_apart_also_where_addresses_are_the_same() {
    let mut world = acquainted();
    tagged(&mut world, &[(1, 10), (5, 20)]);
    let question = |from: u8, to: u8, vlan| Vlan(vlan).put(arp(from, to, false).frame(MacAddr::broadcast()));
    // The controller answers only requests for nodes in the VLAN of the requester.
    assert_eq!(ports(&frames_after(&mut world, 2, question(2, 1, Some(10)))), [at(1, 4)]);
    for (to, vlan) in [(1, None), (1, Some(20)), (5, Some(10))] {
        assert_eq!(frames_after(&mut world, 2, question(2, to, vlan)).len(), 7, "{to} {vlan:?}");
    }
    // A host in another VLAN may have the address of a node, and is known by its own Ethernet
    // address there.
    let claim = Arp { reply: true, sender_ip: ipv4(1), ..arp(7, 2, true) };
    frames_after(&mut world, 7, Vlan(Some(30)).put(claim.frame(MacAddr::broadcast())));
    assert_eq!(ports(&frames_after(&mut world, 2, question(2, 1, Some(30)))), [at(4, 3)]);
    let arrives = |world: &World, eth_dst, vlan| {
        let vlan = Vlan(vlan).field();
        let packet = ModelPacket::from_ips(eth_dst, (node(2).ip, Ipv4Addr::UNSPECIFIED.into()));
        let arrivals = world.model().send(at(1, 4), ModelPacket { vlan, ..packet });
        arrivals.hosts.into_iter().map(|(host, _)| host).collect::<Vec<_>>()
    };
    let pmacs = [1, 3, 5].map(|n| (n, world.network.surroundings().pmac_at(place(&world, n)).unwrap()));
    let pmacs = BTreeMap::from(pmacs);
    for (n, vlan) in [(1, Some(10)), (5, Some(20)), (3, None)] {
        for other in [None, Some(10), Some(20), Some(30)] {
            let expected = if other == vlan { vec![format!("h{n}")] } else { vec![] };
            assert_eq!(arrives(&world, pmacs[&n], other), expected, "{n} {other:?}");
        }
    }
    for (vlan, expected) in [(None, 1), (Some(30), 1), (Some(10), 0)] {
        assert_eq!(arrives(&world, node(7).mac, vlan).len(), expected, "{vlan:?}");
    }
    // The controller does not forward it either.
    let frame =
        |vlan| Vlan(vlan).put([&pmacs[&1].octets()[..], &node(2).mac.octets(), &[8, 0], &[7; 46]].concat());
    let (own, other) = (frame(Some(10)), frame(Some(20)));
    assert_eq!(ports(&frames_after(&mut world, 2, own)), [at(1, 3)]);
    assert_eq!(frames_after(&mut world, 2, other), []);
    let error = world.group(9, &[1, 3]).try_recv().unwrap().unwrap_err();
    assert_eq!(error, FabricError::Segments { one: "h1".into(), other: "h3".into() });
    // LLDP of another sender with another tag must not move a node.
    let foreign = Announcement::Node { name: "h1".into(), mac: node(1).mac };
    let frame = foreign.encode(node(1).mac, &[99; 32].into(), u64::MAX).unwrap();
    frames_after(&mut world, 1, Vlan(Some(20)).put(frame));
    assert_eq!(arrives(&world, pmacs[&1], Some(10)), ["h1"]);
}
