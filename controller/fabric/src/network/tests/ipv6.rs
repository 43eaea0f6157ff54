//! IPv6 of nodes and hosts: which side answers requests for an address, and where messages are
//! forwarded.

use super::hosts::{self, place, ports, sent_by, shown, tagged, without_agents, world};
use super::world::{World, at, dpid, node, node_by_ipv6, ring};
use super::*;
use crate::frames::ndp::{self, NeighborMessage};
use crate::frames::vlan::Vlan;
use core::net::Ipv6Addr;

const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const SOLICITED_NODE_MULTICAST: MacAddr = MacAddr(0x33, 0x33, 0xff, 0, 0, 1);
const OVERRIDE: u8 = 1 << 5;

fn ip(n: u8) -> Ipv6Addr {
    ndp::link_local(node(n).mac)
}

/// Returns a request from one host for the address of another.
fn question(from: u8, to: u8) -> Vec<u8> {
    ndp::probe(SOLICITED_NODE_MULTICAST, ip(to), node(from).mac)
}

/// Returns the reply to a request that a host or node has received.
fn answer(n: u8, question: &[u8], router: bool) -> Vec<u8> {
    NeighborMessage::read(question).unwrap().reply(node(n).mac, router)
}

fn read(frame: &[u8]) -> NeighborMessage<'_> {
    NeighborMessage::read(frame).unwrap()
}

/// A host or node sends a frame. Returns the frames that leave the network, except probes of the
/// controller to the sender's own port.
fn frames_after(world: &mut World, n: u8, frame: Vec<u8>) -> Vec<(Port, Vec<u8>)> {
    let (own, mut left) = (place(world, n), hosts::frames_after(world, n, frame));
    left.retain(|(port, frame)| *port != own || !is_from_controller(frame));
    left
}

fn is_from_controller(frame: &[u8]) -> bool {
    let plain = crate::frames::vlan::untagged(frame).1;
    NeighborMessage::read(&plain).is_some_and(|message| {
        message.sender == host_forwarder::PROBE_SOURCE && message.requested_address().is_some()
    })
}

fn pmac(world: &World, n: u8) -> MacAddr {
    world.network.surroundings().pmac_at(place(world, n)).unwrap()
}

/// Returns the frame that one of the receivers got.
fn at_place(world: &World, left: &[(Port, Vec<u8>)], n: u8) -> Vec<u8> {
    left.iter().find(|(port, _)| *port == place(world, n)).unwrap().1.clone()
}

/// One host requests the address of another and gets the reply.
fn ask(world: &mut World, from: u8, to: u8) {
    let left = frames_after(world, from, question(from, to));
    let received = at_place(world, &left, to);
    frames_after(world, to, answer(to, &received, false));
}

#[test]
fn nodes_find_pmacs_and_the_controller_answers_for_them() {
    let mut world = world();
    let (of_1, of_5) = (pmac(&world, 1), pmac(&world, 5));
    let left = frames_after(&mut world, 1, question(1, 5));
    assert_eq!(left.len(), 7);
    let received = at_place(&world, &left, 5);
    assert_eq!((read(&received).sender, read(&received).claimed_address()), (of_1, Some(ip(1))));
    let left = frames_after(&mut world, 5, answer(5, &received, true));
    assert_eq!(ports(&left), [at(1, 3)]);
    let received = read(&left[0].1);
    assert_eq!((received.to, received.sender, received.claimed_address()), (node(1).mac, of_5, Some(ip(5))));
    // Further requests are answered, even one to that Ethernet address only.
    for requested in [question(3, 5), ndp::probe(of_5, ip(5), node(3).mac)] {
        let left = frames_after(&mut world, 3, requested);
        assert_eq!(ports(&left), [at(2, 3)]);
        let received = read(&left[0].1);
        assert_eq!(
            (received.to, received.sender, received.claimed_address()),
            (node(3).mac, of_5, Some(ip(5)))
        );
        assert_eq!(received.router(), Some(true));
    }
    // A request contains the sender's address, but not whether the sender is a router, which only
    // the sender can state.
    let left = frames_after(&mut world, 3, question(3, 1));
    assert_eq!((ports(&left), read(&left[0].1).sender), (vec![at(1, 3)], pmac(&world, 3)));
    // An old announcement must be confirmed again, and the request goes to all if there is no
    // reply.
    world.intervals(61);
    assert_eq!(ports(&frames_after(&mut world, 3, question(3, 5))), [at(3, 3)]);
    world.intervals(1);
    assert_eq!(frames_after(&mut world, 3, question(3, 5)).len(), 7);
    assert_eq!(shown(&mut world).hosts, []);
}

#[test]
fn a_machine_is_asked_once_whether_it_is_a_router() {
    let mut world = world();
    for n in [1, 7] {
        let left = hosts::frames_after(&mut world, n, question(n, 5));
        let (to, probe) = left.iter().find(|(_, frame)| is_from_controller(frame)).unwrap();
        assert_eq!((*to, read(probe).requested_address()), (place(&world, n), Some(ip(n))));
        assert_eq!(hosts::frames_after(&mut world, n, answer(n, probe, false)), []);
        let again = hosts::frames_after(&mut world, n, question(n, 5));
        assert!(again.len() == 7 && !again.iter().any(|(_, frame)| is_from_controller(frame)));
    }
}

#[test]
fn nodes_and_hosts_find_each_other_by_ipv6() {
    let mut world = world();
    ask(&mut world, 1, 7);
    ask(&mut world, 2, 5);
    // The request for a known host goes to that host only.
    let left = frames_after(&mut world, 3, question(3, 7));
    assert_eq!((ports(&left), left[0].1[..6].to_vec()), (vec![at(4, 3)], node(7).mac.octets().to_vec()));
    assert_eq!(read(&left[0].1).sender, pmac(&world, 3));
    let left = frames_after(&mut world, 7, answer(7, &left[0].1, false));
    let received = read(&left[0].1);
    assert_eq!((ports(&left), received.sender, received.to), (vec![at(2, 3)], node(7).mac, node(3).mac));
    let left = frames_after(&mut world, 2, question(2, 5));
    assert_eq!((ports(&left), read(&left[0].1).sender), (vec![at(1, 4)], pmac(&world, 5)));
    let known: Vec<_> = shown(&mut world).hosts.iter().map(|host| host.addresses.clone()).collect();
    assert_eq!(known, [2, 7].map(|n| vec![IpAddr::V6(ip(n))]));
    // A host may request the address from which the controller sends probes; the controller
    // answers.
    world.now += Duration::from_secs(61);
    let left = sent_by(&mut world, at(1, 1), Vec::new());
    assert_eq!(left, []);
    let asker = ndp::link_local(host_forwarder::PROBE_SOURCE);
    let left = frames_after(&mut world, 7, ndp::probe(host_forwarder::PROBE_SOURCE, asker, node(7).mac));
    assert_eq!((ports(&left), read(&left[0].1).sender), (vec![at(4, 3)], host_forwarder::PROBE_SOURCE));
}

#[test]
fn no_machine_takes_an_address_while_its_node_answers_for_it() {
    let mut world = world();
    ask(&mut world, 1, 5);
    let claim = ndp::announcement(ip(5), node(7).mac, false);
    assert_eq!(frames_after(&mut world, 7, claim.clone()), []);
    let warnings = shown(&mut world).warnings.clone();
    assert!(warnings[0].contains("node h5"), "{warnings:?}");
    world.intervals(1);
    // The node is probed and replies.
    let left = frames_after(&mut world, 7, claim.clone());
    assert_eq!(ports(&left), [at(3, 3)]);
    assert_eq!(frames_after(&mut world, 5, answer(5, &left[0].1, false)), []);
    world.intervals(2);
    assert_eq!(ports(&frames_after(&mut world, 7, claim.clone())), [at(3, 3)]);
    world.intervals(1);
    // The node no longer replies.
    assert_eq!(frames_after(&mut world, 7, claim).len(), 7);
    assert_eq!(ports(&frames_after(&mut world, 3, question(3, 5))), [at(4, 3)]);
    // The Ethernet address of a node cannot be claimed either.
    assert_eq!(frames_after(&mut world, 7, ndp::announcement(ip(9), node(5).mac, false)), []);
}

#[test]
fn duplicate_address_detection_finds_other_machines_only() {
    let mut world = world();
    let check = |n: u8, address: Ipv6Addr| {
        let to = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 5);
        let rest = address.octets();
        ndp::valid_message(ndp::SOLICITATION, node(n).mac, (Ipv6Addr::UNSPECIFIED, to), 0, &rest)
    };
    assert_eq!(frames_after(&mut world, 5, check(5, ip(5))).len(), 7);
    // A probe for duplicates claims no address.
    assert_eq!(frames_after(&mut world, 3, question(3, 5)).len(), 7);
    ask(&mut world, 1, 5);
    assert_eq!(frames_after(&mut world, 5, check(5, ip(5))), []);
    let left = frames_after(&mut world, 3, check(3, ip(5)));
    assert_eq!(ports(&left), [at(2, 3)]);
    assert_eq!(
        (read(&left[0].1).to, read(&left[0].1).sender),
        (MacAddr(0x33, 0x33, 0, 0, 0, 1), pmac(&world, 5))
    );
}

#[test]
fn routers_are_found_and_forged_or_anycast_is_not_learned() {
    let mut world = world();
    let own = |n: u8| [&[1, 1][..], &node(n).mac.octets()].concat();
    let solicitation =
        ndp::valid_message(ndp::ROUTER_SOLICITATION, node(1).mac, (ip(1), ALL_ROUTERS), 0, &own(1));
    let left = frames_after(&mut world, 1, solicitation);
    assert_eq!((left.len(), read(&left[0].1).sender), (7, pmac(&world, 1)));
    let rest = [&[0; 8][..], &own(7)].concat();
    let advertisement =
        ndp::valid_message(ndp::ROUTER_ADVERTISEMENT, node(7).mac, (ip(7), ALL_NODES), 64, &rest);
    let left = frames_after(&mut world, 7, advertisement.clone());
    assert_eq!((left.len(), &left[0].1), (7, &advertisement));
    let mut forged = advertisement;
    forged[70] ^= 1;
    assert_eq!(frames_after(&mut world, 7, forged), []);
    // An anycast address: requests go to all.
    let anycast = ndp::valid_message(ndp::ADVERTISEMENT, node(5).mac, (ip(5), ALL_NODES), 0, &ip(5).octets());
    assert_eq!(frames_after(&mut world, 5, anycast).len(), 7);
    assert_eq!(frames_after(&mut world, 3, question(3, 5)).len(), 7);
}

#[test]
fn a_host_that_becomes_a_node_is_announced_and_vice_versa() {
    let mut world = world();
    ask(&mut world, 1, 7);
    let reported = |world: &mut World| {
        let mut reported = Vec::new();
        for device in world.devices.values_mut() {
            while let Ok((_, frame)) = device.packets.try_recv() {
                reported.extend(
                    NeighborMessage::read(&frame).map(|message| (message.claimed_address(), message.sender)),
                );
            }
        }
        reported.dedup();
        reported
    };
    let (reply, _answer) = oneshot::channel();
    world.network.handle_request(world.now, FabricRequest::Register(node(7), reply));
    world.now += FabricConfig::default().lldp_interval;
    let key = node(7).lldp_key;
    let lldp = cool_topology::lldp::Announcement::Node { name: "h7".into(), mac: node(7).mac };
    let lldp = lldp.encode(node(7).mac, &key, world.now.as_nanos() + 1).unwrap();
    world.event(dpid(4), SwitchEvent::PacketIn(3, lldp));
    world.network.advance(world.now);
    let of_7 = pmac(&world, 7);
    assert_eq!(reported(&mut world), [(Some(ip(7)), of_7)]);
    world.intervals(1);
    let left = frames_after(&mut world, 3, question(3, 7));
    assert_eq!((ports(&left), read(&left[0].1).sender), (vec![at(2, 3)], of_7));
    let (reply, _answer) = oneshot::channel();
    world.network.handle_request(world.now, FabricRequest::Unregister("h7".into(), reply));
    assert_eq!(reported(&mut world), [(Some(ip(7)), node(7).mac)]);
    world.settle();
    assert_eq!(ports(&frames_after(&mut world, 3, question(3, 7))), [at(4, 3)]);
}

#[test]
fn addresses_of_the_link_are_of_one_vlan_only() {
    let mut world = world();
    tagged(&mut world, &[(1, 10), (5, 10)]);
    let tag = |frame: Vec<u8>| Vlan(Some(10)).put(frame);
    let left = frames_after(&mut world, 1, tag(question(1, 5)));
    let received = crate::frames::vlan::untagged(&at_place(&world, &left, 5)).1.into_owned();
    assert_eq!(ports(&frames_after(&mut world, 5, tag(answer(5, &received, false)))), [at(1, 3)]);
    assert_eq!(ports(&frames_after(&mut world, 1, tag(question(1, 5)))), [at(1, 3)]);
    assert_eq!(frames_after(&mut world, 3, question(3, 5)).len(), 7);
    // The same address may belong to another host in another VLAN.
    assert_eq!(frames_after(&mut world, 7, ndp::announcement(ip(5), node(7).mac, false)).len(), 7);
    assert_eq!(ports(&frames_after(&mut world, 3, question(3, 5))), [at(4, 3)]);
    assert_eq!(ports(&frames_after(&mut world, 1, tag(question(1, 5)))), [at(1, 3)]);
    // A node that moves to another VLAN has no addresses here any longer.
    world.now += Duration::from_millis(1);
    tagged(&mut world, &[(5, 20)]);
    assert_eq!(frames_after(&mut world, 1, tag(question(1, 5))).len(), 7);
}

#[test]
fn neighbor_discovery_is_metered_per_port_only_where_used() {
    let mut world = world();
    let flows = |world: &World, port: Port| {
        let key = format!("in_port={}", port.number);
        let of_port = world.devices[&port.switch].switch.flows.iter();
        let of_port = of_port.map(|flow| flow.matching.to_string());
        of_port.filter(|text| text.contains(&key) && text.contains("icmpv6_type")).count()
    };
    assert_eq!((1..=4).map(|tor| flows(&world, at(tor, 3)) + flows(&world, at(tor, 4))).sum::<usize>(), 0);
    let solicitation =
        ndp::valid_message(ndp::ROUTER_SOLICITATION, node(3).mac, (ip(3), ALL_ROUTERS), 0, &[]);
    frames_after(&mut world, 3, solicitation);
    ask(&mut world, 1, 7);
    assert_eq!([at(1, 3), at(4, 3), at(2, 3)].map(|port| flows(&world, port)), [2, 2, 0]);
    let packet = |eth_dst| {
        ModelPacket::from_ips(eth_dst, (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()))
    };
    // Further packets are forwarded by switches.
    for (from, eth_dst, to) in
        [(1, node(7).mac, "h7"), (7, pmac(&world, 1), "h1"), (3, pmac(&world, 1), "h1")]
    {
        let arrivals = world.model().send(place(&world, from), packet(eth_dst));
        assert_eq!(arrivals.hosts.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), [to]);
    }
    let mac = MacAddr(2, 1, 0, 0, 0, 3);
    world.event(
        dpid(4),
        SwitchEvent::PortChanged(PortInfo {
            number: 3,
            mac,
            up: false,
            blocked: false,
            forwards: true,
            bytes_per_second: 0,
        }),
    );
    world.settle();
    assert_eq!(flows(&world, at(4, 3)), 0);
}

#[test]
fn a_restarted_controller_relearns_ipv6_addresses() {
    let mut first = world();
    ask(&mut first, 1, 5);
    let of_5 = pmac(&first, 5);
    let mut second = World::new(Graph::default());
    without_agents(&mut second);
    let mut second = takes_over(second, first);
    second.intervals(10);
    // Reachability probes go to the known Ethernet address.
    let left = frames_after(&mut second, 1, ndp::probe(of_5, ip(5), node(1).mac));
    assert_eq!((ports(&left), left[0].1[..6].to_vec()), (vec![at(3, 3)], node(5).mac.octets().to_vec()));
    let left = frames_after(&mut second, 5, answer(5, &left[0].1, false));
    assert_eq!((ports(&left), read(&left[0].1).sender), (vec![at(1, 3)], of_5));
    assert_eq!(ports(&frames_after(&mut second, 3, question(3, 5))), [at(2, 3)]);
}

#[test]
fn link_local_multicast_is_forwarded_unless_it_is_invalid() {
    let mut world = world();
    let mut frame = ndp::valid_message(128, node(1).mac, (ip(1), ALL_NODES), 0, &[]);
    assert_eq!(frames_after(&mut world, 1, frame.clone()).len(), 7);
    // A message with the Ethernet address of another sender is not forwarded.
    frame[6..12].copy_from_slice(&node(5).mac.octets());
    assert_eq!(frames_after(&mut world, 1, frame), []);
    let without_target =
        ndp::valid_message(ndp::ADVERTISEMENT, node(1).mac, (ip(1), ALL_NODES), OVERRIDE, &[]);
    assert_eq!(frames_after(&mut world, 1, without_target), []);
}

/// Returns the address that an agent has registered.
fn registered(n: u8) -> Ipv6Addr {
    match node_by_ipv6(n).ip {
        IpAddr::V6(ip) => ip,
        IpAddr::V4(ip) => panic!("{ip}"),
    }
}

#[test]
fn an_ipv6_group_has_ipv6_trees_that_follow_the_network() {
    let mut world = World::of(ring(), node_by_ipv6);
    world.intervals(6);
    let grants = world.group(7, &[1, 3, 5, 8]).try_recv().unwrap().unwrap();
    assert!(grants.iter().all(|grant| grant.address.is_ipv6() && grant.address.is_multicast()), "{grants:?}");
    let receive = |world: &World| world.send(1, grants[0].address);
    assert_eq!(receive(&world), ["h3", "h5", "h8"]);
    assert_eq!(world.send(2, grants[0].address), [""; 0]);
    world.cable(at(1, 1), false);
    world.settle();
    assert_eq!(receive(&world), ["h3", "h5", "h8"]);
}

#[test]
fn a_group_with_both_versions_of_ip_is_refused() {
    let mut world = World::of(ring(), |n| if n == 5 { node(n) } else { node_by_ipv6(n) });
    world.intervals(6);
    let refused = world.group(7, &[1, 3, 5]).try_recv().unwrap().unwrap_err().to_string();
    assert!(refused.contains("h1 (fd00::1) and h5 (10.0.0.5)") && refused.contains("--ipv6"), "{refused}");
    assert!(world.group(8, &[1, 3]).try_recv().unwrap().is_ok());
}

#[test]
fn a_registered_address_belongs_to_its_node_only() {
    let mut world = World::of(ring(), node_by_ipv6);
    world.intervals(6);
    // The node has not announced this address itself: it alone receives the request, and afterwards
    // the controller answers.
    let request_from = |from: u8| ndp::probe(SOLICITED_NODE_MULTICAST, registered(5), node(from).mac);
    let left = frames_after(&mut world, 1, request_from(1));
    assert_eq!(ports(&left), [at(3, 3)]);
    let received = at_place(&world, &left, 5);
    frames_after(&mut world, 5, answer(5, &received, false));
    let left = frames_after(&mut world, 3, request_from(3));
    assert_eq!((ports(&left), read(&left[0].1).sender), (vec![at(2, 3)], pmac(&world, 5)));
    // However long it is silent.
    world.intervals(100);
    let claim = ndp::announcement(registered(5), node(7).mac, false);
    for _ in 0..3 {
        assert_eq!(frames_after(&mut world, 7, claim.clone()), []);
        assert!(shown(&mut world).warnings[0].contains("node h5"));
        world.intervals(3);
    }
    assert_eq!(ports(&frames_after(&mut world, 1, request_from(1))), [at(3, 3)]);
}

#[test]
fn without_hosts_an_agent_with_ipv6_is_refused() {
    let mut world = World::new(ring());
    world.network.host_forwarder.stop_serving_hosts();
    let refused =
        world.ask(|reply| FabricRequest::Register(node_by_ipv6(1), reply)).try_recv().unwrap().unwrap_err();
    assert!(refused.to_string().contains("--agents-only"), "{refused}");
}
