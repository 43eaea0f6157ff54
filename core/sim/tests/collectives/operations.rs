//! Every operation on groups of all kinds, with every plan that fits. The results are compared with
//! the definition of the operation.

use super::support::{NODES, RANKS, RATE, World, settings, settings_of};
use cool_collective::Plan;
use cool_engine::testing::ReferenceCollective;
use cool_machine::Duration;
use cool_sim::collectives::ClusterSettings;
use cool_types::Operation;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Groups, and the collectives that run on them in order.
struct Run {
    world: World,
    /// The nodes of the ranks of each group.
    places: BTreeMap<u64, Vec<u16>>,
    collectives: Vec<ReferenceCollective>,
    calls: u64,
}

impl Run {
    fn new(seed: u64, loss: f64, groups: &[&[u16]], trees: usize) -> Run {
        Run::on(World::lossy(settings(seed), loss), groups, trees)
    }

    fn on(mut world: World, groups: &[&[u16]], trees: usize) -> Run {
        let mut places = BTreeMap::new();
        for (id, nodes) in (1..).zip(groups) {
            let spec = world.cluster.group(id, nodes, trees);
            world.cluster.make_group(&spec).unwrap();
            places.insert(id, nodes.to_vec());
        }
        Run { world, places, collectives: Vec::new(), calls: 0 }
    }

    /// Makes all ranks of a group call, each after the time that `late` returns for it.
    fn start(
        &mut self,
        group: u64,
        operation: Operation,
        root: u32,
        count: u64,
        late: impl Fn(u32) -> Duration,
    ) {
        let size = self.places[&group].len() as u32;
        self.make(ReferenceCollective::new(group, size, operation, root, count, self.calls), late);
    }

    fn make(&mut self, collective: ReferenceCollective, late: impl Fn(u32) -> Duration) {
        for request in &collective.requests {
            let node = self.places[&request.group][request.rank as usize];
            self.world.cluster.call(node, self.calls, request.clone(), late(request.rank));
            self.calls += 1;
        }
        self.collectives.push(collective);
    }

    /// Runs until all calls have completed, and checks the results.
    fn finish(&mut self) {
        self.world.run(self.calls as usize);
        for (token, answer) in self.world.answers() {
            assert!(answer.result.is_ok(), "call {token}: {answer:?}");
        }
        self.collectives.drain(..).for_each(|collective| collective.check());
    }
}

fn at_once(_: u32) -> Duration {
    Duration::ZERO
}

#[test]
fn every_operation_is_right_for_every_root() {
    for trees in [2, 0] {
        let mut run = Run::new(1, 0.0, &[&RANKS], trees);
        for operation in Operation::ALL {
            for root in 0..9 {
                run.start(1, operation, root, 100, at_once);
            }
        }
        run.finish();
    }
}

#[test]
fn every_operation_is_right_for_every_size() {
    for trees in [2, 0] {
        let mut run = Run::new(2, 0.0, &[&RANKS], trees);
        for operation in Operation::ALL {
            for bytes in [0, 4, 1424, 1428, 160_000] {
                let count = bytes / 4 / if whole(operation) { 1 } else { RANKS.len() as u64 };
                run.start(1, operation, 4, count, at_once);
                run.finish();
            }
        }
        // These messages are too long to be copied, so ranks wait until their buffers are no longer
        // needed.
        for operation in [Operation::Bcast, Operation::Allreduce] {
            run.start(1, operation, 4, 600_000, at_once);
            run.finish();
        }
    }
}

#[test]
fn every_operation_is_right_by_every_plan_that_fits() {
    let mut ran = 0;
    for operation in Operation::ALL {
        let mut run = Run::new(9, 0.01, &[&RANKS], 2);
        for plan in Plan::fitting(operation) {
            for count in [5, 1_000] {
                let collective =
                    ReferenceCollective::new(1, 9, operation, 5, count, ran).by(&plan.to_string());
                run.make(collective, at_once);
                ran += 1;
            }
        }
        run.finish();
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
        let mut run = Run::new(10, 0.01, &[&RANKS], 2);
        let counts = RANKS.len() * if operation == Operation::Alltoall { RANKS.len() } else { 1 };
        for lengths in [[0, 0, 3], [0, 1_000, 1]] {
            let counts: Vec<u64> = (0..counts).map(|i| lengths[i * i % 3]).collect();
            for plan in Plan::fitting(operation) {
                let collective = ReferenceCollective::counted(1, 9, operation, 4, &counts, run.calls);
                run.make(collective.by(&plan.to_string()), at_once);
            }
        }
        run.finish();
    }
}

/// Returns whether a call's count is that of a whole array, and not of one rank's part.
fn whole(operation: Operation) -> bool {
    !operation.takes_counts()
}

#[test]
fn losing_packets_loses_no_byte() {
    for loss in [10, 50, 200] {
        let mut run = Run::new(3 + loss, loss as f64 / 1000.0, &[&RANKS], 2);
        for operation in Operation::ALL {
            for count in [3, 5_000, 60_000] {
                run.start(1, operation, 7, count, at_once);
            }
        }
        run.finish();
    }
}

#[test]
fn one_node_and_one_rank_are_groups_too() {
    let mut run = Run::on(World::new(settings_of(4, vec![2])), &[&[0], &[0, 0, 0], &[1, 0]], 2);
    for group in 1..=3 {
        for operation in Operation::ALL {
            run.start(group, operation, 0, 20_000, at_once);
        }
    }
    run.finish();
}

#[test]
fn groups_and_calls_in_a_row_do_not_mix() {
    let mut run = Run::new(5, 0.02, &[&RANKS, &[2, 3, 4, 5, 0], &[5, 3]], 2);
    for round in 0..10 {
        for group in 1..=3 {
            for (i, operation) in Operation::ALL.into_iter().enumerate() {
                let late =
                    move |rank| Duration::from_micros(u64::from(rank) * 700 * (round + i as u64) % 9_000);
                // Calls of a rank are in order, so each must not be earlier than the previous one.
                let after = Duration::from_millis(10 * (Operation::ALL.len() as u64 * round + i as u64));
                run.start(group, operation, (round % 2) as u32, 500 * (round + 1), move |r| after + late(r));
            }
        }
    }
    run.finish();
}

#[test]
fn a_late_rank_receives_data_sent_before() {
    let mut run = Run::new(6, 0.0, &[&RANKS], 2);
    for operation in Operation::ALL {
        for late in [0, 4, 8] {
            let wait = move |rank| Duration::from_secs(if rank == late { 5 } else { 0 });
            run.start(1, operation, 1, 3_000, wait);
            run.finish();
        }
    }
}

#[test]
fn the_root_of_a_small_bcast_does_not_wait_for_others() {
    let mut run = Run::new(7, 0.0, &[&RANKS], 2);
    let late = |rank| Duration::from_secs(if rank == 2 { 0 } else { 3 });
    for _ in 0..20 {
        run.start(1, Operation::Bcast, 2, 1_000, late);
    }
    run.world.run(20);
    assert!(run.world.now().as_nanos() < 1_000_000_000);
    run.finish();
}

/// Allowance over the time of the bytes on a link: headers, and the time until receivers make the
/// next call.
const IN_A_ROW: f64 = 1.25;

#[test]
fn consecutive_broadcasts_take_as_long_as_one_of_all_bytes() {
    const BROADCASTS: u64 = 32;
    const BYTES: u64 = 1 << 20;
    let nodes: Vec<u16> = (0..NODES).collect();
    let mut run = Run::new(12, 0.0, &[&nodes], 1);
    let new = |salt| {
        ReferenceCollective::new(1, NODES.into(), Operation::Bcast, 0, BYTES / 4, salt).by("multicast")
    };
    let row: Vec<ReferenceCollective> = (0..BROADCASTS).map(new).collect();
    let size = u64::from(NODES);
    let call = |run: &mut Run, token: u64| {
        let (number, rank) = (token / size, token % size);
        let request = row[number as usize].requests[rank as usize].clone();
        run.world.cluster.call(nodes[rank as usize], token, request, Duration::ZERO);
    };
    // The root's messages are copied, so that it waits for no call. Every other rank makes one call
    // at a time.
    (0..BROADCASTS).for_each(|number| call(&mut run, number * size));
    (1..size).for_each(|rank| call(&mut run, rank));
    let began = run.world.now();
    while run.world.answers().len() < row.len() * nodes.len() {
        run.world.cluster.step().unwrap();
        for token in run.world.cluster.take_answered() {
            if token % size > 0 && token / size + 1 < BROADCASTS {
                call(&mut run, token + size);
            }
        }
    }
    let results: Vec<_> =
        run.world.answers().values().map(|answer| answer.result.as_ref().unwrap()).collect();
    assert_eq!(results.iter().map(|stats| stats.traffic.chunks_repaired).sum::<u64>(), 0);
    let least = (BROADCASTS * BYTES) as f64 / RATE as f64;
    let took = (run.world.now() - began).as_secs_f64();
    assert!(took < IN_A_ROW * least, "{took} s, at least {least}");
    row.into_iter().for_each(|collective| collective.check());
}

#[test]
fn a_queued_call_does_not_time_out_while_earlier_ones_move() {
    let mut run = Run::new(13, 0.0, &[&RANKS], 1);
    run.make(ReferenceCollective::new(1, 9, Operation::Bcast, 0, 16 << 20, 1).by("multicast"), at_once);
    let mut second = ReferenceCollective::new(1, 9, Operation::Bcast, 0, 1 << 20, 2).by("multicast");
    second.requests.iter_mut().for_each(|request| request.timeout = Some(Duration::from_millis(50)));
    run.make(second, at_once);
    run.finish();
    assert!(run.world.now().as_nanos() > 500_000_000, "the first has taken longer");
}

#[test]
fn every_node_completes_a_multicast_despite_lost_notices() {
    // With some seeds the source has closed before all nodes know about it, or a node knows only
    // about itself.
    let calls = [
        (Operation::Allreduce, "multicast", 1, 0.05),
        (Operation::Bcast, "cool-p-p", 5, 0.06),
        (Operation::Allreduce, "sharded", 5, 0.06),
    ];
    for (operation, plan, root, loss) in calls {
        for seed in 0..16 {
            let settings = ClusterSettings { bounce_bytes: 0, ..settings(seed) };
            let mut run = Run::on(World::lossy(settings, loss), &[&RANKS], 2);
            run.make(ReferenceCollective::new(1, 9, operation, root, 60_000, 3).by(plan), at_once);
            run.finish();
        }
    }
}

#[test]
fn without_room_for_copies_calls_wait_but_end() {
    for bounce_bytes in [0, 300_000] {
        let settings = ClusterSettings { bounce_bytes, ..settings(10) };
        let mut run = Run::on(World::lossy(settings, 0.02), &[&RANKS], 2);
        for operation in Operation::ALL {
            run.start(1, operation, 1, 100, at_once);
            run.start(1, operation, 1, if whole(operation) { 200_000 } else { 20_000 }, at_once);
        }
        run.finish();
    }
}

#[test]
fn every_node_records_when_ranks_called_and_data_arrived() {
    let mut run = Run::new(3, 0.0, &[&RANKS], 2);
    let late = |rank| if rank == 5 { Duration::from_millis(300) } else { Duration::ZERO };
    run.make(ReferenceCollective::new(1, 9, Operation::Allreduce, 0, 10, 1), late);
    run.finish();
    let mut ranks = Vec::new();
    for node in 0..NODES {
        let engine = run.world.cluster.engine(node);
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
    let mut run = Run::new(8, 0.0, &[&RANKS], 2);
    run.start(1, Operation::Allreduce, 0, 1_000, at_once);
    run.finish();
    // State that remains in order to reply to late packets is soon removed.
    run.world.run_for(Duration::from_secs(120));
    let before = run.world.cluster.datagrams();
    run.world.run_for(Duration::from_secs(3600));
    assert_eq!(run.world.cluster.datagrams(), before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_calls_on_any_places_are_right(
        shape in prop::collection::vec(1u16..4, 1..4),
        ranks in prop::collection::vec(any::<prop::sample::Index>(), 1..10),
        calls in prop::collection::vec((0usize..Operation::ALL.len(), any::<prop::sample::Index>(), 0u64..20_000), 1..5),
        seed in any::<u64>(),
        loss in prop_oneof![Just(0.0), Just(0.05), Just(0.2)],
        trees in 0usize..3,
    ) {
        let nodes: u16 = shape.iter().sum();
        let ranks: Vec<u16> = ranks.iter().map(|rank| rank.index(nodes.into()) as u16).collect();
        let mut run = Run::on(World::lossy(settings_of(seed, shape), loss), &[&ranks], trees);
        for (operation, root, count) in calls {
            run.start(1, Operation::ALL[operation], root.index(ranks.len()) as u32, count, at_once);
        }
        run.finish();
    }
}
