//! Tests of the membership service by its inputs and outputs: which reports it sends when ranks
//! join, leave, are lost or arrive late.

use super::*;
use proptest::prelude::*;

const SEC: Duration = Duration::from_secs(1);

/// A location: a node's number, and its name `h<number>`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct On(u32, String);

fn on(node: u32) -> On {
    On(node, format!("h{node}"))
}

impl RankLocation for On {
    fn node(&self) -> u32 {
        self.0
    }

    fn name(&self) -> &str {
        &self.1
    }
}

/// The service, with a clock that the test sets.
struct World {
    service: Membership<On>,
    now: Time,
}

impl World {
    /// Returns a service that numbers its groups from 1.
    fn new() -> World {
        let mut last = 0;
        let number = move || {
            last += 1;
            last
        };
        World { service: Membership::new(number, 60 * SEC), now: Time::ZERO }
    }

    fn handle(&mut self, input: Input<'_, On>) -> Vec<Output<On>> {
        self.service.handle(self.now, input);
        self.poll()
    }

    fn poll(&mut self) -> Vec<Output<On>> {
        let mut outputs = Vec::new();
        while let Poll::Output(output) = self.service.poll(self.now) {
            outputs.push(output);
        }
        outputs
    }

    fn enlist(&mut self, node: u32, key: &str, rank: u32, size: u32) -> Vec<Output<On>> {
        self.enlist_with(0, (node, key, rank, size))
    }

    fn enlist_with(
        &mut self,
        ticket: u64,
        (node, key, rank, size): (u32, &str, u32, u32),
    ) -> Vec<Output<On>> {
        let (place, key) = (on(node), key.to_owned());
        self.handle(Input::Enlist { place, key, rank, size, timeout: 10 * SEC, ticket })
    }

    fn shrink(&mut self, node: u32, group: (u64, u32), rank: u32) -> Vec<Output<On>> {
        let (place, purpose, timeout) = (on(node), RecoveryPurpose::Shrink, 10 * SEC);
        self.handle(Input::Recover { place, group, rank, purpose, timeout, unreachable: Vec::new() })
    }

    /// Forms a group of one rank on each of the nodes 0, 1, ..., and makes all nodes ready.
    fn group(&mut self, size: u32) -> u64 {
        let formed = (0..size).flat_map(|rank| self.enlist(rank, "k", rank, size)).collect::<Vec<_>>();
        let [Output::Form { group, .. }] = formed[..] else { panic!("{formed:?}") };
        self.ready(group, 0..size);
        group
    }

    /// Announces a group and makes these of its nodes ready.
    fn ready(&mut self, group: u64, nodes: impl IntoIterator<Item = u32>) -> Vec<Output<On>> {
        let mut outputs = self.handle(Input::Announced(group));
        outputs.extend(nodes.into_iter().flat_map(|node| self.handle(Input::Ready { group, node })));
        outputs
    }

    fn lose(&mut self, node: u32) -> Vec<Output<On>> {
        let name = format!("h{node}");
        self.handle(Input::NodeLost { node, name: &name, reason: "it broke", ranks: Vec::new() })
    }
}

/// Returns the nodes that receive a rendezvous outcome, with group and reason.
fn enlisted(outputs: &[Output<On>]) -> Vec<(u32, u64, &str)> {
    let mut reports = Vec::new();
    for output in outputs {
        if let Output::Enlisted(place, enlisted) = output {
            reports.push((place.0, enlisted.group, enlisted.reason.as_str()));
        }
    }
    reports
}

/// Returns the nodes that receive a rendezvous outcome, with the tickets that it lists.
fn tickets(outputs: &[Output<On>]) -> Vec<(u32, Vec<u64>)> {
    let of = |output: &Output<On>| match output {
        Output::Enlisted(place, enlisted) => Some((place.0, enlisted.tickets.clone())),
        _ => None,
    };
    outputs.iter().filter_map(of).collect()
}

fn released(outputs: &[Output<On>]) -> Vec<u64> {
    let of = |output: &Output<On>| match output {
        Output::Release { group, .. } => Some(*group),
        _ => None,
    };
    outputs.iter().filter_map(of).collect()
}

#[test]
fn a_group_is_formed_reported_and_released_when_unused() {
    let mut world = World::new();
    assert_eq!(world.enlist(7, "k", 2, 3), []);
    assert_eq!(world.enlist(9, "k", 1, 3), []);
    let places = vec![on(7), on(9), on(7)];
    assert_eq!(world.enlist(7, "k", 0, 3), [Output::Form { group: 1, places }]);
    // A node may be ready before the driver has announced the group to all.
    assert_eq!(world.handle(Input::Ready { group: 1, node: 9 }), []);
    assert_eq!(enlisted(&world.ready(1, [7])), [(7, 1, ""), (9, 1, "")]);
    assert_eq!(world.handle(Input::Unused { group: 1, node: 7 }), []);
    assert_eq!(released(&world.handle(Input::Unused { group: 1, node: 9 })), [1]);
}

#[test]
fn reports_name_the_tickets_of_the_ranks_that_enlisted() {
    let mut world = World::new();
    world.enlist_with(5, (7, "k", 0, 3));
    world.enlist_with(6, (9, "k", 1, 3));
    // Another process with the same key, rank and node. This happens when the process of the first
    // ticket has been killed.
    let refused = world.enlist_with(8, (7, "k", 0, 3));
    assert_eq!(tickets(&refused), [(7, vec![8])]);
    let failed = world.handle(Input::Withdraw { node: 9, key: "k", rank: 1 });
    assert_eq!(tickets(&failed), [(7, vec![5])]);

    world.enlist_with(11, (7, "k", 0, 3));
    world.enlist_with(12, (7, "k", 1, 3));
    world.enlist_with(7, (9, "k", 2, 3));
    assert_eq!(tickets(&world.ready(1, [7, 9])), [(7, vec![11, 12]), (9, vec![7])]);

    // If one rank has no ticket (an earlier release), the report concerns all ranks of the node
    // with that key.
    world.enlist_with(13, (7, "old", 0, 2));
    world.enlist_with(0, (7, "old", 1, 2));
    assert_eq!(tickets(&world.ready(2, [7])), [(7, vec![])]);
}

#[test]
fn ranks_that_wait_for_a_lost_or_late_node_get_its_name() {
    let mut world = World::new();
    world.enlist(1, "a", 0, 2);
    world.enlist(2, "a", 1, 2);
    // A group must not be released while it is being announced.
    assert_eq!(world.lose(2), []);
    let outputs = world.handle(Input::Announced(1));
    assert_eq!(
        enlisted(&outputs),
        [(1, 0, "node h2 was lost: it broke"), (2, 0, "node h2 was lost: it broke")]
    );
    assert_eq!(released(&outputs), [1]);

    world.enlist(1, "b", 0, 2);
    world.enlist(3, "b", 1, 2);
    assert_eq!(world.ready(2, [1]), []);
    world.now += 60 * SEC;
    let outputs = world.poll();
    let reason = "not ready on h3 within 60s; check the logs of the agents there";
    assert_eq!(enlisted(&outputs), [(1, 0, reason), (3, 0, reason)]);
    assert_eq!(released(&outputs), [2]);

    world.enlist(1, "c", 0, 2);
    let outputs = world.lose(1);
    assert_eq!(enlisted(&outputs), []);
    world.enlist(1, "d", 0, 2);
    world.now += 10 * SEC;
    assert_eq!(
        enlisted(&world.poll()),
        [(1, 0, "rank 1 of d did not join in time; check that every rank was started")]
    );
}

#[test]
fn survivors_form_a_group_without_nodes_lost_meanwhile() {
    let mut world = World::new();
    let old = world.group(4);
    world.handle(Input::RanksLeft { group: (old, 4), ranks: &[3] });
    for rank in [0, 1] {
        assert_eq!(world.shrink(rank, (old, 4), rank), []);
    }
    let places = vec![on(0), on(1), on(2)];
    assert_eq!(world.shrink(2, (old, 4), 2), [Output::Form { group: 2, places }]);
    world.ready(2, [0, 2]);
    let outputs = world.lose(1);
    assert_eq!(released(&outputs), [2]);
    assert_eq!(outputs.last(), Some(&Output::Form { group: 3, places: vec![on(0), on(2)] }));
    let lost = vec![1, 3];
    let recovered = RecoveryOutcome { group: old, lost, new_group: 3, ..RecoveryOutcome::default() };
    let reports = [0, 2].map(|node| Output::Recovered(on(node), recovered.clone()));
    assert_eq!(world.ready(3, [0, 2]), reports);
}

#[test]
fn late_survivors_are_excluded_and_a_release_ends_a_recovery() {
    let mut world = World::new();
    let old = world.group(3);
    assert_eq!(world.shrink(0, (old, 3), 0), []);
    world.now += 10 * SEC;
    assert_eq!(world.poll(), [Output::Form { group: 2, places: vec![on(0)] }]);
    let outputs = world.shrink(1, (old, 3), 1);
    assert_eq!(outputs[0], Output::Excluded(on(1)));
    let Output::Recovered(_, RecoveryOutcome { rank: Some(1), failure, .. }) = &outputs[1] else {
        panic!("{outputs:?}")
    };
    assert!(failure.contains("rank 1 counts as lost from group 1"), "{failure}");

    world.shrink(5, (9, 2), 0);
    let outputs = world.handle(Input::GroupsInUse(&[old].into()));
    let failure = "group 9 was released".to_owned();
    assert_eq!(
        outputs,
        [Output::Recovered(on(5), RecoveryOutcome { group: 9, failure, ..RecoveryOutcome::default() })]
    );
}

#[test]
fn a_reserved_group_is_resumed_unless_no_node_uses_it() {
    let mut world = World::new();
    let places = vec![on(1), on(2)];
    for (group, unused) in [(71, vec![1]), (72, vec![1, 2])] {
        world.handle(Input::Reserve(group));
        for node in &unused {
            assert_eq!(world.handle(Input::Unused { group, node: *node }), []);
        }
        let resume = Input::Resume { group, places: places.clone(), users: [1, 2].into() };
        assert_eq!(released(&world.handle(resume)).len(), usize::from(unused.len() == 2));
    }
    assert_eq!(released(&world.lose(2)), [71]);
    world.handle(Input::Reserve(73));
    world.handle(Input::Forget(73));
    assert_eq!(world.handle(Input::Resume { group: 73, places, users: [1].into() }), []);
}

proptest! {
    /// Ranks of a few groups on a few nodes enlist, become ready, leave and are lost in any order.
    #[test]
    fn every_formed_group_is_released_once_when_all_nodes_are_lost(
        steps in prop::collection::vec((0u8..6, 0u32..4, 0u32..3, 1u32..4), 0..120)
    ) {
        let mut world = World::new();
        let mut outputs = Vec::new();
        for (event, node, rank, size) in steps {
            world.now += SEC;
            let groups: Vec<u64> = world.service.groups.keys().copied().collect();
            let group = groups.get(rank as usize).copied().unwrap_or(1);
            outputs.extend(match event {
                0 | 1 => world.enlist(node, &size.to_string(), rank, size),
                2 => world.handle(Input::Announced(group)),
                3 => world.handle(Input::Ready { group, node }),
                4 => world.shrink(node, (group, size), rank),
                _ => world.lose(node),
            });
        }
        // All waiting ranks time out, and the driver announces each requested group.
        for _ in 0..8 {
            world.now += 60 * SEC;
            outputs.extend(world.poll());
            let groups: Vec<u64> = world.service.groups.keys().copied().collect();
            outputs.extend(groups.into_iter().flat_map(|group| world.handle(Input::Announced(group))));
        }
        outputs.extend((0..4).flat_map(|node| world.lose(node)));
        let formed: Vec<u64> = outputs
            .iter()
            .filter_map(|output| if let Output::Form { group, .. } = output { Some(*group) } else { None })
            .collect();
        let mut over = released(&outputs);
        over.sort_unstable();
        prop_assert_eq!(over, formed);
        prop_assert!(world.service.groups.is_empty());
    }
}
