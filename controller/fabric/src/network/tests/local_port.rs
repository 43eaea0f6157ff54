//! Nodes with an address on the bridge itself, as on a hypervisor: their switch reaches them by its
//! local port.

use super::world::{World, at, dpid, node, ring};
use super::*;
use crate::frames::pmac;
use crate::switch::model::ModelPacket;
use crate::switch::port_info::PortInfo;

#[test]
fn a_node_at_a_local_port_receives_trees_and_packets() {
    let mut truth = ring();
    truth.place("h1", at(1, Port::LOCAL));
    let mut world = World::new(truth);
    let local = PortInfo {
        number: Port::LOCAL,
        mac: node(1).mac,
        up: true,
        blocked: false,
        forwards: true,
        bytes_per_second: 0,
    };
    world.event(dpid(1), SwitchEvent::PortChanged(local));
    world.intervals(6);
    let snapshot = world.watch.borrow().clone();
    assert_eq!(snapshot.port_name(snapshot.node("h1").unwrap().location.unwrap().port.unwrap()), "s1:local");
    assert_eq!(snapshot.switches.iter().map(|switch| switch.ports).collect::<Vec<_>>(), [4, 4, 4, 4]);
    let grants = world.group(1, &[1, 2, 3, 4, 5, 6, 7, 8]).try_recv().unwrap().unwrap();
    assert_eq!(world.send(1, grants[0].address), ["h2", "h3", "h4", "h5", "h6", "h7", "h8"]);
    assert_eq!(world.send(5, grants[0].address), ["h1", "h2", "h3", "h4", "h6", "h7", "h8"]);
    let pmac = pmac::for_port(world.network.racks.number(dpid(1)).unwrap(), Port::LOCAL).unwrap();
    let packet = ModelPacket::from_ips(pmac, (node(7).ip, node(1).ip));
    let [(host, arrived)] = &world.model().send(at(4, 3), packet).hosts[..] else { panic!("one copy") };
    assert_eq!((host.as_str(), arrived.eth_dst), ("h1", node(1).mac));
}
