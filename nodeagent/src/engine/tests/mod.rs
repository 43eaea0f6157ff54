//! Engines against each other over a made-up network, checked against what each operation means.

mod failures;
mod network;

use super::{CallRequest, HeapMemory, SharedSlice};
use cool_machine::Duration;
use cool_proto::local::{Dtype, Operation, ReduceOp};
use network::Network;
use proptest::prelude::*;
use std::collections::BTreeMap;

const OPERATIONS: [Operation; 7] = [
    Operation::Bcast,
    Operation::Reduce,
    Operation::Allreduce,
    Operation::Gather,
    Operation::Allgather,
    Operation::Scatter,
    Operation::Barrier,
];

/// The elements that a rank contributes to a call.
fn contribution(salt: u64, rank: u32, count: u64) -> Vec<u32> {
    (0..count).map(|i| (salt * 7919 + u64::from(rank) * 104_729 + i * 31) as u32).collect()
}

fn bytes(elements: &[u32]) -> Vec<u8> {
    elements.iter().flat_map(|e| e.to_ne_bytes()).collect()
}

/// One collective of a test: its buffers and what they must hold at the end.
pub(crate) struct Collective {
    pub(crate) requests: Vec<CallRequest>,
    expected: Vec<Option<Vec<u8>>>,
}

impl Collective {
    pub(crate) fn new(
        group: u64,
        size: u32,
        operation: Operation,
        root: u32,
        count: u64,
        salt: u64,
    ) -> Collective {
        let part = |rank| contribution(salt, rank, count);
        let all: Vec<u32> = (0..size).flat_map(part).collect();
        let sum = (0..size)
            .map(part)
            .reduce(|sum, part| sum.iter().zip(part).map(|(a, b)| a.wrapping_add(b)).collect());
        let sum = sum.unwrap_or_default();
        let slice = |elements: &[u32]| Some(HeapMemory::slice(bytes(elements)));
        let empty = |elements: u64| Some(HeapMemory::slice(vec![0xee; elements as usize * 4]));
        let total = count * u64::from(size);
        let mut requests = Vec::new();
        let mut expected = Vec::new();
        for rank in 0..size {
            let at_root = rank == root;
            let (input, output, want) = match operation {
                Operation::Bcast if at_root => (None, slice(&part(root)), Some(part(root))),
                Operation::Bcast => (None, empty(count), Some(part(root))),
                Operation::Reduce if at_root => (slice(&part(rank)), empty(count), Some(sum.clone())),
                Operation::Reduce | Operation::Gather if !at_root => (slice(&part(rank)), None, None),
                Operation::Allreduce => (slice(&part(rank)), empty(count), Some(sum.clone())),
                Operation::Gather | Operation::Allgather => {
                    (slice(&part(rank)), empty(total), Some(all.clone()))
                }
                Operation::Scatter => {
                    (at_root.then(|| slice(&all)).flatten(), empty(count), Some(part(rank)))
                }
                _ => (None, None, None),
            };
            let (dtype, reduce, timeout) = (Dtype::U32, ReduceOp::Sum, None);
            requests.push(CallRequest {
                group,
                rank,
                operation,
                root,
                dtype,
                reduce,
                count,
                input,
                output,
                timeout,
            });
            expected.push(want.map(|want| bytes(&want)));
        }
        Collective { requests, expected }
    }

    /// Whether all outputs are as they must be, and all inputs as they were.
    pub(crate) fn check(&self) {
        for (request, expected) in self.requests.iter().zip(&self.expected) {
            if let (Some(output), Some(expected)) = (&request.output, expected) {
                let wrong = read(output).iter().zip(expected).position(|(a, b)| a != b);
                let CallRequest { group, rank, operation, root, count, .. } = request;
                assert_eq!(wrong, None, "{operation:?} of {count} from {root}: rank {rank} of group {group}");
            }
        }
    }
}

fn read(slice: &SharedSlice) -> Vec<u8> {
    let mut bytes = vec![0; slice.bytes() as usize];
    slice.read(0, &mut bytes);
    bytes
}

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
        let mut network = Network::new(racks.len(), seed, loss);
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
        let places = &self.places[&group];
        let size = places.len() as u32;
        let collective = Collective::new(group, size, operation, root, count, self.calls);
        for (request, node) in collective.requests.iter().zip(places) {
            self.network.call(*node, self.calls, request.clone(), late(request.rank));
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
        self.collectives.iter().for_each(Collective::check);
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
        for operation in OPERATIONS {
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
        for operation in OPERATIONS {
            for count in [0, 1, 356, 357, 20_000, 300_000] {
                scenario.start(1, operation, 4, count, at_once);
                scenario.finish();
            }
        }
    }
}

#[test]
fn losing_packets_loses_no_byte() {
    for loss in [10, 50, 200] {
        let mut scenario = Scenario::new(&RACKS, 3 + loss, loss, &[&RANKS], true);
        for operation in OPERATIONS {
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
        for operation in OPERATIONS {
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
            for (i, operation) in OPERATIONS.into_iter().enumerate() {
                let late =
                    move |rank| Duration::from_micros(u64::from(rank) * 700 * (round + i as u64) % 9_000);
                // Calls of a rank are in order, so each is at least as late as the one before.
                let after = Duration::from_millis(10 * (7 * round + i as u64));
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
    for operation in OPERATIONS {
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
        calls in prop::collection::vec((0usize..7, any::<prop::sample::Index>(), 0u64..20_000), 1..5),
        seed in any::<u64>(),
        loss in prop_oneof![Just(0u64), Just(50), Just(200)],
        trees in any::<bool>(),
    ) {
        let ranks: Vec<usize> = ranks.iter().map(|r| r.index(racks.len())).collect();
        let mut scenario = Scenario::new(&racks, seed, loss, &[&ranks], trees);
        for (operation, root, count) in calls {
            scenario.start(1, OPERATIONS[operation], root.index(ranks.len()) as u32, count, at_once);
        }
        scenario.finish();
    }
}
