//! Engines against each other over a made-up network, checked against what each operation means.

mod connections;
mod failures;
mod messages;
mod network;

pub(crate) use crate::testing::Collective;
use cool_collective::Plan;
use cool_machine::Duration;
use cool_types::Operation;
use cool_types::limits::BOUNCE_BYTES;
use network::Network;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Groups and the collectives that run on them, rank by rank in order.
struct Scenario {
    network: Network,
    /// Of each group, the node of each rank.
    places: BTreeMap<u64, Vec<usize>>,
    collectives: Vec<Collective>,
    calls: u64,
}

impl Scenario {
    fn new(racks: &[u32], seed: u64, loss: u64, groups: &[&[usize]], trees: bool) -> Scenario {
        Scenario::on(Network::new(racks.len(), seed, loss, BOUNCE_BYTES), racks, groups, trees)
    }

    fn on(mut network: Network, racks: &[u32], groups: &[&[usize]], trees: bool) -> Scenario {
        let mut places = BTreeMap::new();
        for (id, nodes) in (1..).zip(groups) {
            network.make_group(&Network::spec(id, nodes, racks, trees));
            places.insert(id, nodes.to_vec());
        }
        Scenario { network, places, collectives: Vec::new(), calls: 0 }
    }

    /// All ranks of a group call, rank by rank later by what `late` says.
    fn start(
        &mut self,
        group: u64,
        operation: Operation,
        root: u32,
        count: u64,
        late: impl Fn(u32) -> Duration,
    ) {
        let size = self.places[&group].len() as u32;
        self.make(Collective::new(group, size, operation, root, count, self.calls), late);
    }

    fn make(&mut self, collective: Collective, late: impl Fn(u32) -> Duration) {
        for request in &collective.requests {
            let node = self.places[&request.group][request.rank as usize];
            self.network.call(node, self.calls, request.clone(), late(request.rank));
            self.calls += 1;
        }
        self.collectives.push(collective);
    }

    /// Runs all that was started to its end.
    fn finish(&mut self) {
        self.network.run(self.calls as usize);
        for (token, result) in &self.network.done {
            assert!(result.is_ok(), "call {token}: {result:?}");
        }
        self.collectives.drain(..).for_each(|collective| collective.check());
    }
}

fn at_once(_: u32) -> Duration {
    Duration::ZERO
}

/// Three racks of 3, 1 and 2 nodes; two ranks on some nodes, racks and ranks not in order.
const RACKS: [u32; 6] = [5, 5, 5, 2, 9, 9];
const RANKS: [usize; 9] = [4, 0, 3, 1, 1, 5, 2, 0, 3];

#[test]
fn every_operation_is_right_for_every_root() {
    for trees in [true, false] {
        let mut scenario = Scenario::new(&RACKS, 1, 0, &[&RANKS], trees);
        for operation in Operation::ALL {
            for root in 0..9 {
                scenario.start(1, operation, root, 100, at_once);
            }
        }
        scenario.finish();
    }
}

#[test]
fn every_operation_is_right_for_every_size() {
    for trees in [true, false] {
        let mut scenario = Scenario::new(&RACKS, 2, 0, &[&RANKS], trees);
        for operation in Operation::ALL {
            for bytes in [0, 4, 1424, 1428, 160_000] {
                let count = bytes / 4 / if whole(operation) { 1 } else { RANKS.len() as u64 };
                scenario.start(1, operation, 4, count, at_once);
                scenario.finish();
            }
        }
        // Longer than what is copied: ranks wait until nobody needs their buffers.
        for operation in [Operation::Bcast, Operation::Allreduce] {
            scenario.start(1, operation, 4, 600_000, at_once);
            scenario.finish();
        }
    }
}

#[test]
fn every_operation_is_right_by_every_plan_that_fits() {
    let mut ran = 0;
    for operation in Operation::ALL {
        let mut scenario = Scenario::new(&RACKS, 9, 10, &[&RANKS], true);
        for plan in Plan::fitting(operation) {
            for count in [5, 1_000] {
                let collective = Collective::new(1, 9, operation, 5, count, ran).by(&plan.to_string());
                scenario.make(collective, at_once);
                ran += 1;
            }
        }
        scenario.finish();
    }
    assert!(ran > 100, "{ran}");
}

#[test]
fn parts_of_any_lengths_are_right_by_every_plan_that_fits() {
    const PARTED: [Operation; 5] = [
        Operation::Gather,
        Operation::Allgather,
        Operation::Scatter,
        Operation::ReduceScatter,
        Operation::Alltoall,
    ];
    for operation in PARTED {
        let mut scenario = Scenario::new(&RACKS, 10, 10, &[&RANKS], true);
        let counts = RANKS.len() * if operation == Operation::Alltoall { RANKS.len() } else { 1 };
        for lengths in [[0, 0, 3], [0, 1_000, 1]] {
            let counts: Vec<u64> = (0..counts).map(|i| lengths[i * i % 3]).collect();
            for plan in Plan::fitting(operation) {
                let collective = Collective::counted(1, 9, operation, 4, &counts, scenario.calls);
                scenario.make(collective.by(&plan.to_string()), at_once);
            }
        }
        scenario.finish();
    }
}

/// Whether a call's count is that of a whole array, not of one rank's part.
fn whole(operation: Operation) -> bool {
    !operation.takes_counts()
}

#[test]
fn losing_packets_loses_no_byte() {
    for loss in [10, 50, 200] {
        let mut scenario = Scenario::new(&RACKS, 3 + loss, loss, &[&RANKS], true);
        for operation in Operation::ALL {
            for count in [3, 5_000, 60_000] {
                scenario.start(1, operation, 7, count, at_once);
            }
        }
        scenario.finish();
    }
}

#[test]
fn one_node_and_one_rank_are_groups_too() {
    let mut scenario = Scenario::new(&[0, 0], 4, 0, &[&[0], &[0, 0, 0], &[1, 0]], true);
    for group in 1..=3 {
        for operation in Operation::ALL {
            scenario.start(group, operation, 0, 20_000, at_once);
        }
    }
    scenario.finish();
}

#[test]
fn groups_and_calls_in_a_row_do_not_mix() {
    let mut scenario = Scenario::new(&RACKS, 5, 20, &[&RANKS, &[2, 3, 4, 5, 0], &[5, 3]], true);
    for round in 0..10 {
        for group in 1..=3 {
            for (i, operation) in Operation::ALL.into_iter().enumerate() {
                let late =
                    move |rank| Duration::from_micros(u64::from(rank) * 700 * (round + i as u64) % 9_000);
                // Calls of a rank are in order, so each is at least as late as the one before.
                let after = Duration::from_millis(10 * (Operation::ALL.len() as u64 * round + i as u64));
                scenario
                    .start(group, operation, (round % 2) as u32, 500 * (round + 1), move |r| after + late(r));
            }
        }
    }
    scenario.finish();
}

#[test]
fn a_rank_that_comes_late_gets_what_was_sent_before() {
    let mut scenario = Scenario::new(&RACKS, 6, 0, &[&RANKS], true);
    for operation in Operation::ALL {
        for late in [0, 4, 8] {
            let wait = move |rank| Duration::from_secs(if rank == late { 5 } else { 0 });
            scenario.start(1, operation, 1, 3_000, wait);
            scenario.finish();
        }
    }
}

#[test]
fn the_root_of_a_small_bcast_does_not_wait_for_the_others() {
    let mut scenario = Scenario::new(&RACKS, 7, 0, &[&RANKS], true);
    let late = |rank| Duration::from_secs(if rank == 2 { 0 } else { 3 });
    for _ in 0..20 {
        scenario.start(1, Operation::Bcast, 2, 1_000, late);
    }
    scenario.network.run(20);
    assert!(scenario.network.now.as_nanos() < 1_000_000_000);
    scenario.finish();
}

#[test]
fn whoever_was_not_told_that_all_have_a_multicast_still_leaves_its_call() {
    // Seeds by which the source was gone before all had heard it, or a node had heard it of itself only.
    let calls = [
        (Operation::Allreduce, "multicast", 1, 50, [3, 7, 10]),
        (Operation::Bcast, "cool-p-p", 5, 60, [36, 38, 42]),
        (Operation::Allreduce, "sharded", 5, 60, [40, 44, 50]),
    ];
    for (operation, plan, root, loss, seeds) in calls {
        for seed in seeds {
            let network = Network::new(RACKS.len(), seed, loss, 0);
            let mut scenario = Scenario::on(network, &RACKS, &[&RANKS], true);
            scenario.make(Collective::new(1, 9, operation, root, 60_000, 3).by(plan), at_once);
            scenario.finish();
        }
    }
}

#[test]
fn without_room_for_copies_calls_wait_but_end() {
    for copies in [0, 300_000] {
        let network = Network::new(RACKS.len(), 10, 20, copies);
        let mut scenario = Scenario::on(network, &RACKS, &[&RANKS], true);
        for operation in Operation::ALL {
            scenario.start(1, operation, 1, 100, at_once);
            scenario.start(1, operation, 1, if whole(operation) { 200_000 } else { 20_000 }, at_once);
        }
        scenario.finish();
    }
}

#[test]
fn every_node_remembers_who_came_when_to_a_call_and_whose_data_came() {
    let mut scenario = Scenario::new(&RACKS, 3, 0, &[&RANKS], true);
    let late = |rank| if rank == 5 { Duration::from_millis(300) } else { Duration::ZERO };
    scenario.make(Collective::new(1, 9, Operation::Allreduce, 0, 10, 1), late);
    scenario.finish();
    let mut ranks = Vec::new();
    for engine in &scenario.network.engines {
        let [record] = &engine.trace(10, Some(1))[..] else { panic!("one call") };
        assert!(record.words.starts_with("allreduce of 10 u32 by sum") && record.failure.is_none());
        assert!(!record.arrivals.is_empty());
        ranks.extend(record.ranks.iter().copied());
        assert!(engine.trace(10, Some(2)).is_empty());
    }
    ranks.sort_by_key(|times| times.rank);
    assert_eq!(ranks.iter().map(|times| times.rank).collect::<Vec<_>>(), (0..9).collect::<Vec<_>>());
    let last = ranks.iter().max_by_key(|times| times.came).unwrap();
    assert!(last.rank == 5 && ranks.iter().all(|times| times.ended >= last.came));
}

#[test]
fn idle_engines_have_nothing_to_do() {
    let mut scenario = Scenario::new(&RACKS, 8, 0, &[&RANKS], true);
    scenario.start(1, Operation::Allreduce, 0, 1_000, at_once);
    scenario.finish();
    // What lingers to answer late packets is over soon.
    scenario.network.run_for(Duration::from_secs(120));
    let before = scenario.network.datagrams;
    scenario.network.run_for(Duration::from_secs(3600));
    assert_eq!(scenario.network.datagrams, before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_calls_on_any_places_are_right(
        racks in prop::collection::vec(0u32..3, 1..6),
        ranks in prop::collection::vec(any::<prop::sample::Index>(), 1..10),
        calls in prop::collection::vec((0usize..Operation::ALL.len(), any::<prop::sample::Index>(), 0u64..20_000), 1..5),
        seed in any::<u64>(),
        loss in prop_oneof![Just(0u64), Just(50), Just(200)],
        trees in any::<bool>(),
    ) {
        let ranks: Vec<usize> = ranks.iter().map(|r| r.index(racks.len())).collect();
        let mut scenario = Scenario::new(&racks, seed, loss, &[&ranks], trees);
        for (operation, root, count) in calls {
            scenario.start(1, Operation::ALL[operation], root.index(ranks.len()) as u32, count, at_once);
        }
        scenario.finish();
    }
}
