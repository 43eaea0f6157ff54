//! A network that is only observed.

use super::*;
use crate::api::LldpNeighbor;
use crate::intent::tables::RuleCounts;
use crate::observation::{Observation, PortPeer};
use crate::switch::connection::SwitchEvent;

fn observed(config: FabricConfig) -> World {
    let mut world = World::with(FabricConfig { observes: true, ..config }, ring(), node);
    world.intervals(8);
    world
}

fn observation(world: &mut World) -> Observation {
    world.ask(FabricRequest::Observation).try_recv().unwrap().unwrap()
}

#[test]
fn an_observer_plans_what_a_controller_installs() {
    for unicast in [Unicast::Routed, Unicast::Normal] {
        let config = FabricConfig { unicast, ..FabricConfig::default() };
        let mut controller = World::with(config.clone(), ring(), node);
        controller.intervals(8);
        let installed = |world: &World, switch| {
            let device: &model::ModelSwitch = &world.devices[&switch].switch;
            RuleCounts { flows: device.flows.len(), groups: device.groups.len() }
        };
        let before: Vec<RuleCounts> = (1..=4).map(|n| installed(&controller, dpid(n))).collect();
        let members: Vec<u8> = (1..=8).collect();
        let trees = controller.group(0, &members).try_recv().unwrap().unwrap();
        let after: Vec<RuleCounts> = (1..=4).map(|n| installed(&controller, dpid(n))).collect();

        let mut world = observed(config);
        let report = observation(&mut world);
        assert_eq!((report.group_nodes.len(), report.group_trees as usize), (8, trees.len()));
        for (at, switch) in report.switches.iter().enumerate() {
            let flows: u32 = switch.planned_flows.iter().map(|planned| planned.flows).sum();
            let planned = RuleCounts { flows: flows as usize, groups: switch.planned_groups };
            assert_eq!(planned, before[at], "{switch:?}");
            assert_eq!(switch.withheld.unwrap().put, before[at]);
            let for_group = RuleCounts {
                flows: after[at].flows - before[at].flows,
                groups: after[at].groups - before[at].groups,
            };
            assert_eq!(switch.for_group, for_group);
        }
        for device in world.devices.values() {
            assert!(device.switch.flows.is_empty() && device.switch.groups.is_empty());
        }
    }
}

#[test]
fn groups_of_an_observed_network_have_no_trees() {
    let mut world = observed(FabricConfig::default());
    assert_eq!(world.group(1, &[1, 2, 3, 8]).try_recv().unwrap(), Ok(Vec::new()));
    assert!(world.devices.values().all(|device| device.switch.groups.is_empty()));
}

#[test]
fn an_observer_answers_no_frames_of_hosts() {
    let mut world = observed(FabricConfig::default());
    let node = node(1);
    let frame = crate::frames::arp::announcement(ipv4(200), MacAddr(2, 9, 9, 9, 9, 9));
    world.event(dpid(1), SwitchEvent::PacketIn(4, frame));
    world.network.advance(world.now);
    for device in world.devices.values_mut() {
        while let Ok((_, frame)) = device.packets.try_recv() {
            assert!(crate::frames::is_lldp(&frame), "{frame:?}");
        }
    }
    assert!(world.watch.borrow().hosts.is_empty());
    assert!(world.network.nodes.get(&node.name).is_some());
}

#[test]
fn ports_without_lldp_are_unknown_and_one_direction_is_no_link() {
    let mut world = World::with(FabricConfig { observes: true, ..FabricConfig::default() }, ring(), node);
    // Switch 3 hands in nothing.
    let announcements = |world: &mut World| {
        world.now += FabricConfig::default().lldp_interval;
        world.network.advance(world.now);
        let mut frames = Vec::new();
        for (switch, device) in &mut world.devices {
            while let Ok((numbers, frame)) = device.packets.try_recv() {
                frames.extend(
                    numbers.into_iter().map(|number| (Port { switch: *switch, number }, frame.clone())),
                );
            }
        }
        world.event(dpid(3), SwitchEvent::CaughtUp);
        for (port, frame) in frames {
            if let Some(peer) = world.truth.peer(port).filter(|peer| peer.switch != dpid(3)) {
                world.event(peer.switch, SwitchEvent::PacketIn(peer.number, frame));
            }
        }
    };
    (0..20).for_each(|_| announcements(&mut world));
    let report = observation(&mut world);
    let peer = |switch: usize, port: u32| {
        let ports = &report.switches[switch - 1].ports;
        ports.iter().find(|other| other.number == port).unwrap().peer.clone()
    };
    assert_eq!(peer(1, 1), PortPeer::Switch(at(2, 2)));
    assert_eq!(peer(2, 1), PortPeer::PerhapsSwitch(at(3, 2)));
    assert_eq!(peer(3, 2), PortPeer::PerhapsSwitch(at(2, 1)));
    assert_eq!(peer(3, 3), PortPeer::Unknown);
    let unknown = &report.switches[2].unknown;
    let sentence = "what is connected to ports 3, 4: no LLDP arrives there";
    assert!(unknown.iter().any(|text| text.starts_with(sentence)), "{unknown:?}");
    assert!(report.unknown.iter().any(|text| text.starts_with("entries for ")), "{:?}", report.unknown);
}

#[test]
fn a_node_that_receives_lldp_of_a_port_is_located_there() {
    let place = |observes| {
        let mut world = World::with(FabricConfig { observes, ..FabricConfig::default() }, ring(), node);
        let neighbor =
            LldpNeighbor { chassis: format!("dpid:{}", dpid(2)), port: "3".to_owned(), system_name: None };
        let report = |reply| FabricRequest::SetNeighbor("h3".to_owned(), Some(neighbor), reply);
        world.ask(report).try_recv().unwrap().unwrap();
        world.network.discovery.graph().host("h3")
    };
    assert_eq!(place(true), Some(at(2, 3)));
    assert_eq!(place(false), None, "only authentic LLDP counts");
}

#[test]
fn a_switch_without_room_is_an_obstacle() {
    let mut world = observed(FabricConfig::default());
    let small = TableCapacity { flows: Some(8), groups: Some(0), ..TableCapacity::default() };
    world.network.switches.limit(dpid(1), small);
    let report = observation(&mut world);
    let obstacles = &report.switches[0].obstacles;
    for text in
        ["no multicast tree can cross it", "flows are needed, but only 8 of 8 are free", "it has no room"]
    {
        assert!(obstacles.iter().any(|obstacle| obstacle.contains(text)), "{text} in {obstacles:?}");
    }
    assert_eq!(report.switches[1].obstacles, [""; 0]);
}
