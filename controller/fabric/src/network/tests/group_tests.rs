//! Switches whose groups do not leave out the ingress port.

use super::world::{World, dpid, ring};

#[test]
fn no_tree_crosses_a_switch_that_returns_packets_of_groups() {
    let mut world = World::new(ring());
    world.intervals(2);
    let mut granted = world.group(1, &[1, 3, 5]);
    assert!(granted.try_recv().unwrap().is_ok());
    assert!(!world.devices[&dpid(2)].trees().is_empty());
    // The switch connects again, with other software.
    let model = world.devices[&dpid(2)].switch.clone();
    world.connect(dpid(2), model);
    world.devices.get_mut(&dpid(2)).unwrap().returns_packets = true;
    world.intervals(3);
    assert!(world.devices[&dpid(2)].trees().is_empty());
    let warnings = world.watch.borrow().warnings.clone();
    assert!(warnings.iter().any(|text| text.contains("switch s2 returns packets of groups")), "{warnings:?}");
    assert!(warnings.iter().all(|text| !text.contains("forged")), "{warnings:?}");
}
