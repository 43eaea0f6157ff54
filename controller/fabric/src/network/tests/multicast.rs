//! Multicast of other programs: which machines receive the packets of an address that some have
//! joined.

use super::hosts::{frames_after, ports, sent, sent_by, shown, without_agents};
use super::world::{MULTICAST, World, at, dpid, ipv4, node, ring};
use super::*;
use crate::frames::membership;
use crate::intent::cookies::FOR_MULTICAST;
use cool_topology::checksum::internet_checksum;
use cool_topology::membership_report::MembershipMessage;
use core::net::Ipv4Addr;

/// IGMPv2 types: a report, and a leave.
const JOIN: u8 = 0x16;
const LEAVE: u8 = 0x17;

/// Returns the ring, of which all ports take part; hosts 2 and 7 have no agent.
fn world() -> World {
    let mut world = World::new(ring());
    without_agents(&mut world);
    world.intervals(8);
    world
}

/// Returns the frame of a host's message about an address.
fn igmp(from: u8, kind: u8, address: Ipv4Addr) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0][..], &address.octets()].concat();
    let sum = internet_checksum(&[&message]);
    message[2..4].copy_from_slice(&sum);
    let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 1, 2, 0, 0];
    packet.extend([ipv4(from).octets(), address.octets()].concat());
    let sum = internet_checksum(&[&packet]);
    packet[10..12].copy_from_slice(&sum);
    let [_, a, b, c] = address.octets();
    let header = [&[1, 0, 0x5e, a & 0x7f, b, c][..], &node(from).mac.octets(), &[8, 0]].concat();
    [header, packet, message].concat()
}

fn join(world: &mut World, n: u8) {
    assert_eq!(frames_after(world, n, igmp(n, JOIN, MULTICAST)), [], "reports reach no other host");
}

/// Returns the number of flows for multicast in all switches.
fn flows(world: &World) -> usize {
    let of_switch = |device: &super::world::Device| {
        device.switch.flows.iter().filter(|flow| flow.cookie & 0xff00_0000 == FOR_MULTICAST).count()
    };
    world.devices.values().map(of_switch).sum()
}

#[test]
fn members_receive_packets_of_nodes_and_hosts_and_others_none() {
    let mut world = world();
    assert_eq!(flows(&world), 0);
    for n in [1, 4, 7] {
        join(&mut world, n);
    }
    for (from, to) in
        [(1, &["h4", "h7"][..]), (2, &["h1", "h4", "h7"]), (7, &["h1", "h4"]), (8, &["h1", "h4", "h7"])]
    {
        assert_eq!(world.send(from, MULTICAST.into()), to, "from {from}");
    }
    assert!(world.send(1, Ipv4Addr::new(239, 1, 2, 4).into()).is_empty());
    // The members are at three switches of the ring.
    let packet = ModelPacket::from_ips(MacAddr(1, 0, 0x5e, 1, 2, 3), (ipv4(1).into(), MULTICAST.into()));
    assert_eq!(world.model().send(at(1, 3), packet).links, 2);
}

#[test]
fn a_port_without_members_receives_nothing_after_its_query() {
    let mut world = world();
    for n in [1, 4, 7] {
        join(&mut world, n);
    }
    world.event(dpid(2), SwitchEvent::PacketIn(4, igmp(4, LEAVE, MULTICAST)));
    world.network.advance(world.now);
    let queries = sent(&mut world);
    let [(port, query)] = &queries[..] else { panic!("{queries:?}") };
    assert!(*port == at(2, 4) && matches!(membership::read(query), Some(MembershipMessage::Query(_))));
    assert_eq!(world.send(2, MULTICAST.into()), ["h1", "h4", "h7"], "another machine may answer");
    world.intervals(8);
    assert_eq!(world.send(2, MULTICAST.into()), ["h1", "h7"]);
    for n in [1, 7] {
        frames_after(&mut world, n, igmp(n, LEAVE, MULTICAST));
    }
    world.intervals(8);
    assert_eq!(flows(&world), 0);
}

#[test]
fn a_lost_link_is_replaced_without_a_loop() {
    let mut world = world();
    for n in 1..=8 {
        join(&mut world, n);
    }
    let others = |from: u8| (1..=8).filter(|n| *n != from).map(|n| format!("h{n}")).collect::<Vec<_>>();
    for link in world.truth.links().collect::<Vec<_>>() {
        world.cable(link.a, false);
        world.intervals(8);
        assert_eq!(world.send(1, MULTICAST.into()), others(1), "without {}", link.a);
        world.cable(link.a, true);
        world.intervals(8);
        assert_eq!(world.send(6, MULTICAST.into()), others(6), "with {}", link.a);
    }
}

#[test]
fn a_port_whose_probe_returns_neither_sends_nor_receives() {
    let mut world = world();
    for n in [1, 2, 7] {
        join(&mut world, n);
    }
    // A cable connects the ports of hosts 2 and 7. A broadcast returns, and so do the probes.
    world.foreign_segment = [at(1, 4), at(4, 3)].into();
    let frame = [&[0xff; 6][..], &node(5).mac.octets(), &[0x88, 0xb6], &[0; 46]].concat();
    world.event(dpid(3), SwitchEvent::PacketIn(3, frame));
    world.settle();
    let closed = world.network.host_forwarder.warnings(&world.network.surroundings());
    assert_eq!(closed.len(), 1, "{closed:?}");
    let received = world.send(1, MULTICAST.into());
    assert!(received == ["h2"] || received == ["h7"], "{received:?}");
    let (open, shut) = if received == ["h2"] { (2, 7) } else { (7, 2) };
    assert!(world.send(shut, MULTICAST.into()).is_empty());
    assert_eq!(world.send(open, MULTICAST.into()), ["h1"]);
}

#[test]
fn reports_go_to_routers_and_so_do_packets() {
    let mut world = world();
    let mut query = igmp(7, 0x11, Ipv4Addr::UNSPECIFIED);
    query[30..34].copy_from_slice(&[224, 0, 0, 1]);
    query[24..26].fill(0);
    let sum = internet_checksum(&[&query[14..34]]);
    query[24..26].copy_from_slice(&sum);
    assert_eq!(frames_after(&mut world, 7, query).len(), 7, "all others must hear the query");
    let report = igmp(1, JOIN, MULTICAST);
    assert_eq!(frames_after(&mut world, 1, report.clone()), [(at(4, 3), report)]);
    assert_eq!(world.send(5, MULTICAST.into()), ["h1", "h7"]);
}

#[test]
fn the_time_protocol_needs_no_members() {
    let mut world = world();
    let frame = [&[0x01, 0x1b, 0x19, 0, 0, 0][..], &node(1).mac.octets(), &[0x88, 0xf7], &[0; 46]].concat();
    let first = sent_by(&mut world, at(1, 3), frame);
    assert_eq!(ports(&first).len(), 7, "the first packet is delivered by the controller");
    let packet = ModelPacket::from_ips(MacAddr(0x01, 0x1b, 0x19, 0, 0, 0), (ipv4(1).into(), ipv4(9).into()));
    assert_eq!(world.model().send(at(1, 3), packet).hosts.len(), 7);
}

#[test]
fn a_new_switch_and_a_full_one_are_no_obstacle() {
    let mut world = world();
    for n in [1, 4, 7] {
        join(&mut world, n);
    }
    world.connect(dpid(2), model::ModelSwitch::default());
    world.intervals(8);
    assert_eq!(world.send(2, MULTICAST.into()), ["h1", "h4", "h7"]);
    for address in 0..40 {
        frames_after(&mut world, 4, igmp(4, JOIN, Ipv4Addr::new(239, 9, 9, address)));
    }
    assert!(shown(&mut world).warnings.iter().any(|warning| warning.contains("32 for a port")));
    assert_eq!(world.send(2, MULTICAST.into()), ["h1", "h4", "h7"]);
}
