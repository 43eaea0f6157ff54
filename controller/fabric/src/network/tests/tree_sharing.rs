//! Groups of the same nodes share their trees.

use super::*;

const ALL: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

fn release(world: &mut World, id: u64) {
    world.ask(|reply| FabricRequest::ReleaseGroup(id, reply)).try_recv().unwrap().unwrap();
}

fn trees(world: &World) -> Vec<Vec<u32>> {
    world.devices.values().map(|device| device.trees()).collect()
}

#[test]
fn groups_of_the_same_nodes_take_the_entries_of_one() {
    let mut world = World::new(ring());
    world.intervals(6);
    let before = trees(&world);
    let grants = world.group(1, &ALL).try_recv().unwrap().unwrap();
    let of_one = trees(&world);
    for id in 2..=200 {
        assert_eq!(world.group(id, &ALL).try_recv().unwrap().unwrap(), grants);
    }
    assert_eq!(trees(&world), of_one);
    let error = world.group(100, &ALL).try_recv().unwrap().unwrap_err();
    assert_eq!(error, FabricError::GroupExists { id: 100 });
    // Groups with another order have trees of their own, because rack leaders and chains depend on
    // the order.
    let swapped = world.group(1001, &[2, 1, 3, 4, 5, 6, 7, 8]).try_recv().unwrap().unwrap();
    assert_ne!(swapped[0].address, grants[0].address);
    release(&mut world, 1001);
    // The group that made the trees may be released first.
    for id in 1..=200 {
        assert_eq!(trees(&world), of_one, "before group {id} is released");
        release(&mut world, id);
    }
    assert_eq!(trees(&world), before);
    let network = &world.network;
    assert!(network.multicast.is_empty() && network.sharing.is_empty());
    assert!(world.ask(|reply| FabricRequest::Trees(7, reply)).try_recv().unwrap().is_err());
}

#[test]
fn shared_trees_follow_the_network_for_all_their_groups() {
    let mut world = World::new(ring());
    world.intervals(1);
    world.group(1, &ALL).try_recv().unwrap().unwrap();
    world.group(2, &ALL).try_recv().unwrap().unwrap();
    release(&mut world, 1);
    let before = world.ask(|reply| FabricRequest::Trees(2, reply)).try_recv().unwrap().unwrap();
    let cut = Port { switch: dpid(1), number: 1 };
    world.cable(cut, false);
    world.settle();
    let after = world.ask(|reply| FabricRequest::Trees(2, reply)).try_recv().unwrap().unwrap();
    assert_ne!(before[0].links, after[0].links);
    for from in ALL {
        assert_eq!(world.send(from, after[0].address), others(from));
    }
}

#[test]
fn trees_are_shared_only_after_switches_acknowledged() {
    let mut world = World::new(ring());
    world.intervals(6);
    world.devices.get_mut(&dpid(2)).unwrap().stuck = true;
    let mut first = world.group(1, &ALL);
    let mut second = world.group(2, &ALL);
    assert!(first.try_recv().is_err() && second.try_recv().is_err());
    world.now += FabricConfig::default().ack_timeout;
    world.settle();
    for (id, mut answer) in [(1, first), (2, second)] {
        let error = answer.try_recv().unwrap().unwrap_err();
        assert!(matches!(error, FabricError::Unacknowledged { id: named, .. } if named == id), "{error}");
    }
    world.devices.get_mut(&dpid(2)).unwrap().stuck = false;
    world.settle();
    assert!(trees(&world).concat().is_empty() && world.network.sharing.is_empty());
}

#[test]
fn a_restarted_controller_adopts_shared_trees_for_each_group() {
    let mut first = World::new(ring());
    first.intervals(6);
    let used = first.group(7, &ALL).try_recv().unwrap().unwrap();
    first.group(8, &ALL).try_recv().unwrap().unwrap();
    let before = trees(&first);
    let mut second = restarted(first);
    let held: Vec<(TreeScope, IpAddr)> = used.iter().map(|grant| (grant.scope, grant.address)).collect();
    for id in [8, 7] {
        second.intervals(1);
        let request = GroupRequest {
            id,
            members: ALL.iter().map(|n| format!("h{n}")).collect(),
            can_prove: false,
            can_join_sources: false,
        };
        second
            .ask(|reply| FabricRequest::AdoptGroup(request, held.clone(), reply))
            .try_recv()
            .unwrap()
            .unwrap();
    }
    // Later groups share them as well.
    second.intervals(30);
    assert_eq!(second.group(9, &ALL).try_recv().unwrap().unwrap()[0].address, used[0].address);
    for id in [8, 9, 7] {
        assert_eq!(trees(&second), before, "before group {id} is released");
        assert_eq!(second.send(1, used[0].address), others(1));
        release(&mut second, id);
    }
    assert!(trees(&second).concat().is_empty() && second.network.sharing.is_empty());
}
