//! When snapshots of the network are published.

use super::world::{World, at, node, ring};
use super::*;

#[test]
fn changes_at_once_are_published_together_up_to_the_last() {
    let mut world = World::new(ring());
    world.intervals(3);
    world.watch.mark_unchanged();
    let mut published = 0;
    for n in 100..150 {
        let (reply, _) = oneshot::channel();
        world.network.handle_request(world.now, FabricRequest::Register(node(n), reply));
        world.deadline = world.network.advance(world.now);
        published += u32::from(world.watch.has_changed().unwrap());
        world.watch.mark_unchanged();
    }
    assert_eq!((published, world.watch.borrow().nodes.len()), (1, 9));
    let soon = world.deadline.unwrap();
    assert!(soon <= world.now + Duration::from_millis(1));
    world.now = soon;
    world.settle();
    assert_eq!(world.watch.borrow().nodes.len(), 58);
}

#[test]
fn a_blocked_port_is_named_until_it_is_opened_again() {
    let mut truth = Graph::default();
    truth.link(at(1, 1), at(2, 1));
    truth.place("h1", at(1, 3));
    truth.place("h2", at(2, 3));
    let config = FabricConfig { unicast: Unicast::Normal, ..FabricConfig::default() };
    let mut world = World::with(config, truth, node);
    world.intervals(6);
    assert_eq!(world.watch.borrow().warnings, [""; 0]);
    // A cable is connected to each of two ports that are open, and nothing else changes.
    world.foreign_segment = [at(1, 2), at(2, 2)].into();
    world.intervals(2);
    let warning = "port s2:2 is blocked, because a switch without OpenFlow connects it to another port; \
                   remove one of the cables";
    assert_eq!(world.watch.borrow().warnings, [warning]);
    world.foreign_segment.clear();
    world.intervals(6);
    assert_eq!(world.watch.borrow().warnings, [""; 0]);
}
