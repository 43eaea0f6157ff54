//! Threads that are ranks on several nodes execute calls, and all get the correct results. A table
//! replaces the communication between leaders.

use super::*;
use crate::segment::BegunCall;
use crate::segment::tests::{Drawn, Patient};
use cool_collective::{Layout, RankPlace};
use cool_shm::segment::Segment;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};

/// The inputs of the leaders to each call.
#[derive(Default)]
struct Table {
    given: Mutex<BTreeMap<u64, BTreeMap<usize, Vec<u8>>>>,
    changed: Condvar,
}

impl Table {
    /// Adds a leader's part of a call, and waits for the parts of the other leaders.
    fn exchange(
        &self,
        number: u64,
        leader: usize,
        leaders: &NodeLeaders,
        call: &Call,
        part: &[u8],
    ) -> Vec<u8> {
        let call = leaders.leader_call(call).unwrap();
        let size = leaders.layout().size();
        let mut given = self.given.lock().unwrap();
        given.entry(number).or_default().insert(leader, part.to_vec());
        self.changed.notify_all();
        let given = self.changed.wait_while(given, |given| given[&number].len() < size).unwrap();
        made(&call, leader, &given[&number])
    }
}

/// Returns a leader's result of a call, given all parts.
fn made(call: &Call, leader: usize, parts: &BTreeMap<usize, Vec<u8>>) -> Vec<u8> {
    let (root, bytes) = (call.root.0 as usize, call.bytes as usize);
    let is_root = leader == root;
    let all = || parts.values().flatten().copied().collect();
    let sum = || {
        let mut sum = parts[&0].clone();
        parts.values().skip(1).for_each(|part| {
            cool_types::combine(crate::Type::I32, crate::Op::Sum, &mut sum, part);
        });
        sum
    };
    match call.operation {
        Operation::Bcast => parts[&root].clone(),
        Operation::Scatter => parts[&root][leader * bytes..(leader + 1) * bytes].to_vec(),
        Operation::Allreduce => sum(),
        Operation::Reduce if is_root => sum(),
        Operation::Allgather => all(),
        Operation::Gather if is_root => all(),
        _ => Vec::new(),
    }
}

/// Executes calls with one thread for each rank; `nodes` contains the node of each rank.
fn check(nodes: &[u32], drawn: &[Drawn]) {
    let places: Vec<RankPlace> = nodes.iter().map(|node| RankPlace { rack: node / 2, node: *node }).collect();
    let leaders = NodeLeaders::for_group(&Layout::new(&places).unwrap()).unwrap();
    let table = Table::default();
    let segments: Vec<Arc<Segment>> = (0..leaders.layout().size())
        .map(|leader| Arc::new(Segment::create_for_node(leaders.ranks_of(leader).len()).unwrap()))
        .collect();
    std::thread::scope(|scope| {
        for rank in 0..nodes.len() {
            let (leaders, table) = (&leaders, &table);
            let leader = leaders.leader_of(Rank(rank as u32));
            let node = NodeRanks { leaders, leader };
            let segment = Arc::clone(&segments[leader]);
            scope.spawn(move || {
                let index = node.index_of(Rank(rank as u32)).unwrap();
                let mut calls = SegmentCalls::new(Arc::clone(&segment), index, node.ranks());
                let mut waits = Patient(&segment);
                let quick =
                    |call: &Drawn| leaders.leader_call(&Call::new(call.operation, Rank(0), 4, 4)).is_some();
                for (number, call) in drawn.iter().enumerate().filter(|(_, call)| quick(call)) {
                    let found = call.call((number, rank, nodes.len()), |described, buffers| {
                        let number = number as u64;
                        let begun = calls.enter(number, described, &mut waits).unwrap();
                        assert_eq!(begun, BegunCall::ByRanks);
                        let between = |given: &[u8]| {
                            Ok(table.exchange(number, leader, leaders, &described.call, given))
                        };
                        calls
                            .execute_over_nodes((number, described), node, buffers, &mut waits, between)
                            .unwrap();
                    });
                    let expected = call.expected(number, rank, nodes.len());
                    assert!(found == expected, "rank {rank} of {nodes:?}, call {number}: {call:?}");
                }
            });
        }
    });
}

fn drawn(size: usize) -> impl Strategy<Value = Drawn> {
    let operation = proptest::sample::select(vec![
        Operation::Barrier,
        Operation::Bcast,
        Operation::Reduce,
        Operation::Allreduce,
        Operation::Gather,
        Operation::Allgather,
        Operation::Scatter,
    ]);
    (operation, 0..size, 0..40usize, any::<bool>()).prop_map(|(operation, root, count, in_place)| Drawn {
        operation,
        root,
        count,
        counts: None,
        in_place,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_time: 60_000, ..ProptestConfig::default() })]
    #[test]
    fn ranks_on_several_nodes_get_correct_results(
        (nodes, drawn) in proptest::collection::vec(0..3u32, 1..8)
            .prop_flat_map(|nodes| (proptest::collection::vec(drawn(nodes.len()), 1..12), Just(nodes)))
            .prop_map(|(drawn, nodes)| (nodes, drawn))
    ) {
        check(&nodes, &drawn);
    }
}

#[test]
fn many_calls_succeed_with_any_order_of_ranks() {
    let operations = [Operation::Gather, Operation::Scatter, Operation::Bcast, Operation::Reduce];
    let call = |i: usize| Drawn {
        operation: operations[i % operations.len()],
        root: i % 6,
        count: 3,
        counts: None,
        in_place: false,
    };
    check(&[0, 1, 2, 1, 0, 2], &(0..1000).map(call).collect::<Vec<_>>());
}
