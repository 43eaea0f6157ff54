//! Nodes that state which port's announcements they receive.

use super::*;

#[test]
fn a_node_is_where_it_says_until_a_port_receives_it() {
    let mut world = World::new(leaf_spine(1, 2, 2));
    for switch in world.truth.switches().collect::<Vec<_>>() {
        world.connect(switch);
    }
    world.register_all();
    let hosts: Vec<(String, Port)> =
        world.truth.hosts().map(|(name, port)| (name.to_owned(), port)).collect();
    let [(one, at_one), (two, at_two)] = &hosts[..2] else { panic!("{hosts:?}") };
    let host = |world: &World, name: &str| world.discovery.graph().host(name);
    world.input(Input::NodeReported(one, Some(*at_one)));
    assert_eq!((host(&world, one), host(&world, two)), (Some(*at_one), None));
    assert_eq!(world.discovery.node_at(*at_one).as_deref(), Some(one.as_str()));
    // The port goes down and up again.
    world.flip(*at_one);
    assert_eq!(host(&world, one), None);
    world.flip(*at_one);
    assert_eq!(host(&world, one), Some(*at_one));
    // It states another port, but its own announcement arrives at this one.
    world.input(Input::NodeReported(one, Some(*at_two)));
    assert_eq!(host(&world, one), Some(*at_two));
    let frame = world.announcement_of(one);
    world.input(Input::Received(*at_one, &frame));
    assert_eq!(host(&world, one), Some(*at_one));
    // Nothing remains of a statement after the node has left.
    world.input(Input::NodeUnregistered(one));
    world.input(Input::NodeReported(one, Some(*at_two)));
    world.input(Input::NodeRegistered(one, mac(one), &key(one)));
    assert_eq!(host(&world, one), Some(*at_one), "its announcement still counts");
    world.input(Input::NodeReported(two, Some(*at_two)));
    world.input(Input::NodeReported(two, None));
    assert_eq!(host(&world, two), None);
}

#[test]
fn a_port_of_a_link_is_no_place_of_a_node() {
    let mut world = World::new(leaf_spine(1, 2, 2));
    world.settle();
    let link = world.truth.links().next().unwrap();
    let (name, place) = world.truth.hosts().next().map(|(name, port)| (name.to_owned(), port)).unwrap();
    world.input(Input::NodeReported(&name, Some(link.a)));
    assert_eq!(world.discovery.graph().host(&name), Some(place));
    world.flip(place);
    assert_eq!(world.discovery.graph().host(&name), None);
}
