//! Nodes on networks without OpenFlow switches.

use super::world::{World, at, node, ring};
use super::*;
use crate::api::{LldpNeighbor, MulticastModel, NetworkMode, RackSource, RackTable, ReportedRack};
use crate::intent::addresses;
use cool_types::is_source_specific;

fn world(mode: NetworkMode, truth: Graph) -> World {
    World::with(FabricConfig { mode, ..FabricConfig::default() }, truth, node)
}

fn register(world: &mut World, n: u8, rack: &str) {
    let rack = Some(rack.to_owned()).filter(|rack| !rack.is_empty());
    let registration = NodeRegistration { rack, ..node(n) };
    world.ask(|reply| FabricRequest::Register(registration, reply)).try_recv().unwrap().unwrap();
    world.settle();
}

fn neighbor(chassis: &str, port: &str, system_name: &str) -> LldpNeighbor {
    let system_name = Some(system_name.to_owned()).filter(|name| !name.is_empty());
    LldpNeighbor { chassis: chassis.to_owned(), port: port.to_owned(), system_name }
}

fn hear(world: &mut World, name: &str, neighbor: Option<LldpNeighbor>) {
    let request = |reply| FabricRequest::SetNeighbor(name.to_owned(), neighbor, reply);
    world.ask(request).try_recv().unwrap().unwrap();
    // Snapshots are published at most once per interval.
    world.intervals(1);
}

/// Returns the name of a node's rack and its source.
fn rack(world: &World, name: &str) -> (String, RackSource) {
    let ReportedRack { name, source, .. } = world.watch.borrow().reported_racks[name].clone();
    (name.unwrap_or_default(), source)
}

/// Returns the port and the rack of a node.
fn place(world: &World, name: &str) -> Option<(Option<Port>, u32)> {
    world.watch.borrow().node(name).unwrap().location.map(|location| (location.port, location.rack))
}

#[test]
fn without_switches_nodes_are_located_by_their_reports() {
    let mut world = world(NetworkMode::Auto, Graph::default());
    for (n, rack) in [(1, "west"), (2, "east"), (3, "west"), (4, "")] {
        register(&mut world, n, rack);
    }
    world.intervals(2);
    assert_eq!(["h1", "h2", "h3", "h4"].map(|name| place(&world, name)), [None; 4]);
    world.intervals(2);
    let racks = [0, 1, 0, 2].map(|rack| Some((None, rack)));
    assert_eq!(["h1", "h2", "h3", "h4"].map(|name| place(&world, name)), racks);
    // Such a group uses no trees, and needs no switch.
    assert_eq!(world.group(1, &[1, 2, 3]).try_recv().unwrap().unwrap(), []);
    // An agent that registers again may name another rack.
    register(&mut world, 3, "east");
    assert_eq!(place(&world, "h3"), Some((None, 1)));
    world.ask(|reply| FabricRequest::Unregister("h3".into(), reply)).try_recv().unwrap().unwrap();
    world.intervals(1);
    assert!(world.watch.borrow().node("h3").is_none());
}

#[test]
fn an_operator_takes_precedence_over_lldp() {
    let mut world = world(NetworkMode::Plain, Graph::default());
    world.network.set_racks(Arc::new(RackTable::parse("east h[2-3]").unwrap()));
    register(&mut world, 1, "west");
    for n in 2..5 {
        register(&mut world, n, "");
    }
    for name in ["h1", "h2", "h4"] {
        hear(&mut world, name, Some(neighbor("02:00:00:00:00:01", "e1", "leaf1")));
    }
    assert_eq!(rack(&world, "h1"), ("west".into(), RackSource::AgentOption));
    assert_eq!(rack(&world, "h2"), ("east".into(), RackSource::RackTable));
    assert_eq!(rack(&world, "h3"), ("east".into(), RackSource::RackTable));
    assert_eq!(rack(&world, "h4"), ("leaf1".into(), RackSource::Neighbor));
    let heard = world.watch.borrow().reported_racks["h2"].neighbor.clone();
    assert_eq!(heard.unwrap().port, "e1");
    // Another table relocates nodes at once, and so does a switch that is silent.
    world.network.set_racks(Arc::new(RackTable::parse("north h4").unwrap()));
    world.intervals(1);
    assert_eq!(rack(&world, "h2"), ("leaf1".into(), RackSource::Neighbor));
    assert_eq!(rack(&world, "h4"), ("north".into(), RackSource::RackTable));
    hear(&mut world, "h2", None);
    assert_eq!(rack(&world, "h2"), (String::new(), RackSource::Nothing));
    assert_eq!(place(&world, "h2"), place(&world, "h3"));
    assert_ne!(place(&world, "h2"), place(&world, "h4"));
    hear(&mut world, "unknown", None);
}

#[test]
fn nodes_of_one_chassis_are_in_one_rack() {
    let mut world = world(NetworkMode::Plain, Graph::default());
    for n in 1..6 {
        register(&mut world, n, "");
    }
    hear(&mut world, "h1", Some(neighbor("02:00:00:00:00:01", "e1", "switch")));
    // Frames of a switch may differ, and two switches may have the same name.
    hear(&mut world, "h2", Some(neighbor("02:00:00:00:00:01", "e2", "")));
    hear(&mut world, "h3", Some(neighbor("02:00:00:00:00:02", "e1", "switch")));
    hear(&mut world, "h4", Some(neighbor("02:00:00:00:00:03", "e1", "")));
    let names = ["h1", "h2", "h3", "h4", "h5"].map(|name| rack(&world, name).0);
    assert_eq!(names, ["switch", "switch", "switch (02:00:00:00:00:02)", "02:00:00:00:00:03", ""]);
    let racks = ["h1", "h2", "h3", "h4", "h5"].map(|name| place(&world, name).unwrap().1);
    assert_eq!(racks[0], racks[1]);
    let distinct: BTreeSet<u32> = racks.into_iter().collect();
    assert_eq!(distinct.len(), 4);
}

#[test]
fn a_neighbor_counts_once_a_node_is_located_by_its_report() {
    let mut world = world(NetworkMode::Auto, ring());
    world.intervals(6);
    hear(&mut world, "h1", Some(neighbor("02:00:00:00:00:01", "e1", "leaf1")));
    world.intervals(1);
    assert!(world.watch.borrow().reported_racks.is_empty(), "a switch locates it");
    let registration = NodeRegistration { neighbor: Some(neighbor("c", "e1", "leaf2")), ..node(9) };
    world.ask(|reply| FabricRequest::Register(registration, reply)).try_recv().unwrap().unwrap();
    world.intervals(12);
    assert_eq!(rack(&world, "h9"), ("leaf2".into(), RackSource::Neighbor));
}

#[test]
fn a_switch_that_hears_a_node_later_locates_it() {
    let mut world = world(NetworkMode::Auto, ring());
    world.mute.insert("h1".to_owned());
    world.intervals(6);
    assert_eq!((place(&world, "h1"), place(&world, "h2").unwrap().0), (None, Some(at(1, 4))));
    world.intervals(6);
    let (port, rack) = place(&world, "h1").unwrap();
    assert_eq!((port, world.watch.borrow().nodes.iter().all(|n| n.location.is_some())), (None, true));
    assert!((0..4).all(|tor| world.network.racks.number(dpid(tor + 1)) != Some(rack)), "rack {rack}");
    assert_eq!(world.group(1, &[1, 3]).try_recv().unwrap().unwrap(), []);
    assert_ne!(world.group(2, &[2, 3]).try_recv().unwrap().unwrap(), []);
    world.mute.clear();
    world.intervals(2);
    assert_eq!(place(&world, "h1").unwrap().0, Some(at(1, 3)));
    assert_ne!(world.group(3, &[1, 3]).try_recv().unwrap().unwrap(), []);
    // A node that a switch no longer hears does not fall back to its report.
    world.mute.insert("h1".to_owned());
    world.intervals(20);
    assert_eq!(place(&world, "h1"), None);
}

#[test]
fn with_openflow_only_switches_locate_nodes() {
    let mut world = world(NetworkMode::OpenFlow, Graph::default());
    register(&mut world, 1, "west");
    world.intervals(20);
    assert_eq!(place(&world, "h1"), None);
    let error = world.group(1, &[1]).try_recv().unwrap().unwrap_err();
    assert_eq!(error, FabricError::NotLocated { nodes: vec!["h1".into()] });
}

/// Makes a group of nodes that can prove trees. Returns the scopes and addresses of its trees.
fn provable(world: &mut World, id: u64, members: &[u8]) -> Vec<(TreeScope, IpAddr)> {
    let members = members.iter().map(|n| format!("h{n}")).collect();
    let request = GroupRequest { id, members, can_prove: true, can_join_sources: true };
    let trees = world.ask(|reply| FabricRequest::CreateGroup(request, reply)).try_recv().unwrap().unwrap();
    assert!(trees.iter().all(|tree| tree.needs_proof && tree.nodes.is_empty()));
    trees.into_iter().map(|tree| (tree.scope, tree.address)).collect()
}

#[test]
fn groups_without_switches_get_addresses_that_they_must_prove() {
    for mode in [NetworkMode::Auto, NetworkMode::Snooping] {
        let mut world = world(mode, Graph::default());
        for (n, rack) in [(1, "west"), (2, "west"), (3, "east"), (4, "east")] {
            register(&mut world, n, rack);
        }
        world.intervals(4);
        let trees = provable(&mut world, 1, &[1, 2, 3, 4]);
        let scopes: Vec<TreeScope> = trees.iter().map(|(scope, _)| *scope).collect();
        let racks = ["h1", "h3"].map(|name| TreeScope::Rack(place(&world, name).unwrap().1));
        assert_eq!(scopes, [TreeScope::All, TreeScope::Leaders, racks[0], racks[1]]);
        let addresses: BTreeSet<IpAddr> = trees.iter().map(|(_, address)| *address).collect();
        assert!(addresses.len() == 4 && addresses.iter().all(IpAddr::is_multicast), "{addresses:?}");
        // Nodes that cannot prove trees get none.
        assert_eq!(world.group(2, &[1, 2]).try_recv().unwrap().unwrap(), []);
        // Groups of the same members share trees.
        assert_eq!(provable(&mut world, 3, &[1, 2, 3, 4]), trees);
        for id in [1, 3] {
            world.ask(|reply| FabricRequest::ReleaseGroup(id, reply)).try_recv().unwrap().unwrap();
            let left = world.ask(|reply| FabricRequest::Trees(id, reply)).try_recv().unwrap();
            assert_eq!(left, Err(FabricError::NoSuchGroup { id }));
        }
        assert_eq!(world.network.multicast.in_use(), 0);
    }
}

#[test]
fn source_specific_addresses_need_no_request_of_a_proof() {
    let config = FabricConfig {
        mode: NetworkMode::Snooping,
        multicast: MulticastModel::Ssm,
        ..FabricConfig::default()
    };
    let mut world = World::with(config, Graph::default(), node);
    [(1, "west"), (2, "east")].into_iter().for_each(|(n, rack)| register(&mut world, n, rack));
    let mut create = |id, can_join_sources| {
        let members = vec!["h1".to_owned(), "h2".to_owned()];
        let request = GroupRequest { id, members, can_prove: true, can_join_sources };
        world.ask(|reply| FabricRequest::CreateGroup(request, reply)).try_recv().unwrap().unwrap()
    };
    let trees = create(1, true);
    assert_eq!(trees.iter().map(|tree| tree.scope).collect::<Vec<_>>(), [TreeScope::All, TreeScope::Leaders]);
    for tree in trees {
        assert!(!tree.needs_proof && is_source_specific(tree.address), "{tree:?}");
        assert!(addresses::number(tree.address).is_some(), "a later controller keeps the number");
    }
    // An agent of an earlier release cannot join sources.
    assert_eq!(create(2, false), []);
}

#[test]
fn few_addresses_are_used_and_groups_beyond_them_get_none() {
    let config =
        FabricConfig { mode: NetworkMode::Snooping, max_snooped_trees: 4, ..FabricConfig::default() };
    let mut world = World::with(config, Graph::default(), node);
    for n in 1..=4 {
        register(&mut world, n, if n <= 2 { "west" } else { "east" });
    }
    let scopes =
        |trees: Vec<(TreeScope, IpAddr)>| trees.into_iter().map(|(scope, _)| scope).collect::<Vec<_>>();
    // Half of the addresses are kept for trees over all nodes.
    assert_eq!(scopes(provable(&mut world, 1, &[1, 2, 3, 4])), [TreeScope::All, TreeScope::Leaders]);
    assert_eq!(scopes(provable(&mut world, 2, &[1, 2])), [TreeScope::All]);
    assert_eq!(scopes(provable(&mut world, 3, &[1, 3])), [TreeScope::All]);
    assert_eq!(scopes(provable(&mut world, 4, &[2, 3])), []);
    world.ask(|reply| FabricRequest::ReleaseGroup(1, reply)).try_recv().unwrap().unwrap();
    assert_eq!(scopes(provable(&mut world, 5, &[2, 4])), [TreeScope::All]);
}

#[test]
fn a_group_of_nodes_with_and_without_switches_uses_no_multicast() {
    let mut world = world(NetworkMode::Auto, ring());
    world.mute.extend(["h1".to_owned(), "h2".to_owned()]);
    world.intervals(12);
    assert_eq!(provable(&mut world, 1, &[1, 3]), []);
    assert_eq!(provable(&mut world, 2, &[1, 2]).len(), 2, "all nodes, and their rack");
}

#[test]
fn a_plain_network_has_no_trees() {
    let mut world = world(NetworkMode::Plain, ring());
    assert_eq!(place(&world, "h1").map(|(port, _)| port), Some(None));
    world.intervals(6);
    assert_eq!(place(&world, "h1").unwrap().0, Some(at(1, 3)));
    assert_eq!(world.group(1, &[1, 3]).try_recv().unwrap().unwrap(), []);
}
