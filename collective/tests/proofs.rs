//! Every plan, for every operation it fits, on many shapes, roots and sizes, is proved right; and run on
//! bytes it gives what plain arithmetic gives.

mod shapes;

use cool_collective::{
    Call, CompileError, Layout, Operation, Place, Plan, Rank, Schedule, compile, interpret, verify,
};
use proptest::prelude::*;
use shapes::config;

/// Even and uneven racks, one and several ranks per node, in order, interleaved and backwards.
fn all_shapes() -> Vec<Layout> {
    let mut places = Vec::new();
    for sizes in [
        &[1][..],
        &[2],
        &[5],
        &[1, 1],
        &[1, 1, 1, 1],
        &[2, 2],
        &[3, 1, 2],
        &[1, 4],
        &[4, 1, 1, 5],
        &[4, 4, 4, 4],
        &[7, 2, 11],
    ] {
        for per_node in [1, 3] {
            let straight = shapes::racks(sizes, per_node);
            places.push(shapes::interleaved(&straight, 3));
            places.push(straight.iter().rev().copied().collect());
            places.push(straight);
        }
    }
    // Nodes with unequal numbers of ranks, of which the first to come is in the last rack.
    places.push(
        [(3, 9), (1, 4), (1, 4), (3, 9), (1, 5), (2, 7), (3, 8), (3, 9), (1, 4)]
            .map(|(rack, node)| Place { rack, node })
            .to_vec(),
    );
    places.iter().map(|places| Layout::new(places).expect("no node stands in two racks")).collect()
}

/// Bytes of the call, bytes of an element, bytes of a segment: nothing, one element, whole and broken
/// segments, segments smaller and larger than a part or an element.
const SIZES: [(u64, u32, u64); 8] = [
    (0, 1, 64),
    (1, 1, 64),
    (8, 8, 4),
    (24, 8, 64),
    (56, 4, 16),
    (61, 1, 16),
    (320, 8, 64),
    (1000, 4, 1 << 18),
];

/// All roots of small groups; of larger ones the ends, and one in between; one where there is no root.
fn roots(operation: Operation, layout: &Layout) -> Vec<Rank> {
    if matches!(operation, Operation::Allreduce | Operation::Allgather | Operation::Barrier) {
        return vec![Rank(0)];
    }
    let last = layout.size() as u32 - 1;
    let mut roots: Vec<u32> =
        if last < 12 { (0..=last).collect() } else { vec![0, 1, last / 2, last - 1, last] };
    roots.dedup();
    roots.into_iter().map(Rank).collect()
}

fn compiled(call: &Call, layout: &Layout, plan: &Plan) -> Schedule {
    compile(call, layout, plan, |_| true).unwrap_or_else(|e| panic!("{call:?} {plan}: {e}"))
}

#[test]
fn every_plan_is_right_for_every_operation_shape_root_and_size() {
    let mut proved = 0;
    for layout in all_shapes() {
        for operation in Operation::ALL {
            for root in roots(operation, &layout) {
                for (bytes, element, segment) in SIZES {
                    let call = Call { operation, root, bytes, element };
                    for plan in Plan::fitting(operation) {
                        let plan = plan.with_segment(segment);
                        let schedule = compiled(&call, &layout, &plan);
                        if let Err(e) = verify(&schedule, &layout) {
                            panic!("{call:?} {plan} on {layout:?}: {e}");
                        }
                        proved += 1;
                    }
                }
            }
        }
    }
    println!("{proved} combinations proved");
    assert!(proved > 10_000, "{proved}");
}

#[test]
fn agents_that_compile_for_their_own_ranks_agree() {
    for layout in all_shapes() {
        for operation in Operation::ALL {
            for plan in Plan::fitting(operation) {
                let call = Call { operation, root: Rank(layout.size() as u32 / 2), bytes: 96, element: 8 };
                let plan = plan.with_segment(32);
                let mut whole = compiled(&call, &layout, &plan);
                for node in 0..layout.nodes() {
                    let own = layout.ranks_of_node(node);
                    let part = compile(&call, &layout, &plan, |rank| own.contains(&rank)).unwrap();
                    for rank in layout.ranks() {
                        let program = &part.programs[rank.0 as usize];
                        assert_eq!(program.is_some(), own.contains(&rank));
                        if program.is_some() {
                            assert_eq!(
                                *program,
                                whole.programs[rank.0 as usize].take(),
                                "{call:?} {plan} {rank}"
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Distinct bytes, so that a byte in a wrong place shows.
fn input(rank: Rank, len: u64) -> Vec<u8> {
    (0..len).map(|i| (u64::from(rank.0) * 89 + i * 7 + i / 251) as u8).collect()
}

fn add(left: &mut [u8], right: &[u8]) {
    for (l, r) in left.iter_mut().zip(right) {
        *l = l.wrapping_add(*r);
    }
}

/// What MPI says each rank has afterwards.
fn expected(call: &Call, inputs: &[Vec<u8>], rank: Rank) -> Vec<u8> {
    let root = call.root.0 as usize;
    let own = rank == call.root;
    let sum = || {
        let mut sum = vec![0; call.bytes as usize];
        inputs.iter().for_each(|input| add(&mut sum, input));
        sum
    };
    match call.operation {
        Operation::Bcast => inputs[root].clone(),
        Operation::Allreduce => sum(),
        Operation::Reduce if own => sum(),
        Operation::Allgather => inputs.concat(),
        Operation::Gather if own => inputs.concat(),
        Operation::Scatter => {
            let start = rank.0 as usize * call.bytes as usize;
            inputs[root][start..start + call.bytes as usize].to_vec()
        }
        Operation::Barrier | Operation::Reduce | Operation::Gather => Vec::new(),
    }
}

fn inputs(call: &Call, size: usize) -> Vec<Vec<u8>> {
    (0..size as u32)
        .map(Rank)
        .map(|rank| match call.operation {
            Operation::Bcast if rank == call.root => input(rank, call.bytes),
            _ => input(rank, call.input_bytes(rank, size)),
        })
        .collect()
}

fn operation() -> impl Strategy<Value = Operation> {
    proptest::sample::select(Operation::ALL.to_vec())
}

/// Up to 20 nodes in up to 5 racks, up to 40 ranks anywhere on them.
fn layout() -> impl Strategy<Value = Layout> {
    proptest::collection::vec(0u32..20, 1..40).prop_map(|nodes| {
        let places: Vec<Place> =
            nodes.into_iter().map(|node| Place { rack: node * node % 5, node }).collect();
        Layout::new(&places).expect("a node's rack follows from its number")
    })
}

proptest! {
    #![proptest_config(config(500))]

    #[test]
    fn any_layout_is_served_rightly_in_any_order_of_events(
        operation in operation(),
        layout in layout(),
        root in any::<prop::sample::Index>(),
        (elements, element, segment) in (0u64..100, prop::sample::select(vec![1u32, 2, 4, 8]), 1u64..200),
        seed in any::<u64>(),
    ) {
        let root = Rank(root.index(layout.size()) as u32);
        let call = Call { operation, root, bytes: elements * u64::from(element), element };
        for plan in Plan::fitting(operation) {
            let schedule = compiled(&call, &layout, &plan.with_segment(segment));
            verify(&schedule, &layout).map_err(|e| TestCaseError::fail(format!("{plan}: {e}")))?;
            let inputs = inputs(&call, layout.size());
            let outputs = interpret(&schedule, &inputs, add, seed).map_err(|e| TestCaseError::fail(e.to_string()))?;
            for (rank, output) in layout.ranks().zip(outputs) {
                prop_assert_eq!(output, expected(&call, &inputs, rank), "{} {}", plan, rank);
            }
        }
    }
}

#[test]
fn impossible_calls_are_refused_by_name() {
    let layout = Layout::new(&shapes::racks(&[2, 1], 1)).unwrap();
    let good = Call { operation: Operation::Gather, root: Rank(0), bytes: 16, element: 8 };
    let cool = "cool-p-p".parse().unwrap();
    let refused = |call: Call, plan: &str| {
        compile(&call, &layout, &plan.parse().unwrap(), |_| true)
            .expect_err("it should be refused")
            .to_string()
    };
    assert!(compile(&good, &layout, &cool, |_| true).is_ok());
    let e = refused(Call { root: Rank(3), ..good }, "cool-p-p");
    assert!(e.contains("rank 3") && e.contains("0 to 2"), "{e}");
    let e = refused(Call { bytes: 17, ..good }, "cool-p-p");
    assert!(e.contains("17 bytes") && e.contains("8 bytes"), "{e}");
    assert!(refused(Call { element: 0, ..good }, "cool-p-p").contains("0 bytes"));
    let e = refused(good, "multicast");
    assert!(e.contains("multicast cannot run gather; these can: cool-p-p"), "{e}");
    let huge = Call { bytes: u64::MAX / 8 * 8, ..good };
    assert!(matches!(compile(&huge, &layout, &cool, |_| true), Err(CompileError::Size { .. })));
}

#[test]
fn a_schedule_of_a_huge_message_stays_small() {
    let layout = Layout::new(&shapes::racks(&[4, 4], 1)).unwrap();
    for operation in Operation::ALL {
        for plan in Plan::fitting(operation) {
            let call = Call { operation, root: Rank(5), bytes: 1 << 40, element: 8 };
            let schedule = compiled(&call, &layout, &plan);
            let proof = verify(&schedule, &layout).unwrap();
            assert!(proof.actions < 100_000, "{operation} {plan}: {proof:?}");
        }
    }
}
