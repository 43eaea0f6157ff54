//! Proves every plan right for every operation that it fits, for many shapes, roots and sizes. Also
//! runs schedules on bytes and compares the results with plain arithmetic.

mod shapes;

use cool_collective::{
    ActionKind, Call, CallError, CompileError, Layout, MulticastScope, Operation, Plan, Rank, RankPlace,
    Schedule, compile, interpret, verify,
};
use proptest::prelude::*;
use shapes::config;

/// Returns even and uneven racks, with one and several ranks per node, in order, interleaved and
/// reversed.
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
    // Nodes with unequal numbers of ranks. The node of rank 0 is in the last rack.
    places.push(
        [(3, 9), (1, 4), (1, 4), (3, 9), (1, 5), (2, 7), (3, 8), (3, 9), (1, 4)]
            .map(|(rack, node)| RankPlace { rack, node })
            .to_vec(),
    );
    places.iter().map(|places| Layout::new(places).expect("no node stands in two racks")).collect()
}

/// Bytes of the call, of an element, and of a segment: nothing, one element, whole and partial
/// segments, segments smaller and larger than a part or an element.
const SIZES: [(u64, u32, u64); 9] = [
    (0, 1, 64),
    (1, 1, 64),
    (8, 8, 4),
    (24, 8, 64),
    (56, 4, 16),
    (61, 1, 16),
    (320, 8, 64),
    (1000, 4, 1 << 18),
    (2048, 8, 512),
];

/// Returns the named plans, each pattern alone over all ranks in either order, and each pattern at
/// one or all three levels, with the parallel pattern at the others and with leaders of both kinds.
fn plans(operation: Operation) -> Vec<Plan> {
    let mut texts: Vec<String> = Plan::names().map(str::to_owned).collect();
    for p in Plan::patterns() {
        texts.extend([
            format!("flat:{p}"),
            format!("racked:{p}"),
            format!("node:{p}"),
            format!("rack:{p}"),
            format!("center:{p}"),
            format!("node:{p},rack:{p},center:{p}"),
            format!("rack:{p}+parallel,center:{p}+parallel,spread:once"),
            format!("rack:{p},spread:each,leaders:sharded"),
            format!("center:{p},spread:levels,leaders:sharded"),
        ]);
    }
    let plans = texts.iter().map(|text| text.parse::<Plan>().unwrap_or_else(|e| panic!("{e}")));
    plans.filter(|plan| plan.fits(operation)).collect()
}

/// Returns the first rank, one in between, and the last; only one rank if the operation has no
/// root.
fn roots(operation: Operation, layout: &Layout) -> Vec<Rank> {
    if !operation.rooted() {
        return vec![Rank(0)];
    }
    let last = layout.size() as u32 - 1;
    let mut roots = vec![0, last.div_ceil(2), last];
    roots.dedup();
    roots.into_iter().map(Rank).collect()
}

/// Returns the call with parts of unequal lengths, some of them empty.
fn uneven(call: &Call, size: usize) -> Call {
    let count = if call.operation == Operation::Alltoall { size * size } else { size };
    let element = u64::from(call.element);
    let counts: Vec<u64> =
        (0..count as u64).map(|i| i * 7 % 5 * call.bytes.div_ceil(3 * element) * element).collect();
    call.clone().with_counts(counts)
}

fn compiled(call: &Call, layout: &Layout, plan: &Plan) -> Schedule {
    compile(call, layout, plan, |_| true).unwrap_or_else(|e| panic!("{call:?} {plan}: {e}"))
}

/// Proves a call, and, if it has parts, the same call with parts of unequal lengths. Returns the
/// number of proofs.
fn prove(call: &Call, layout: &Layout, plan: &Plan) -> usize {
    let mut calls = vec![call.clone()];
    if call.operation.takes_counts() {
        calls.push(uneven(call, layout.size()));
    }
    for call in &calls {
        let schedule = compiled(call, layout, plan);
        if let Err(e) = verify(&schedule, layout) {
            panic!("{call:?} {plan} on {layout:?}: {e}");
        }
    }
    calls.len()
}

/// Returns distinct bytes, so that a byte in a wrong place is detected.
fn input(rank: Rank, len: u64) -> Vec<u8> {
    (0..len).map(|i| (u64::from(rank.0) * 89 + i * 7 + i / 251) as u8).collect()
}

fn add(left: &mut [u8], right: &[u8]) {
    for (l, r) in left.iter_mut().zip(right) {
        *l = l.wrapping_add(*r);
    }
}

/// Returns the output of each rank according to MPI.
fn expected(call: &Call, inputs: &[Vec<u8>], rank: Rank) -> Vec<u8> {
    let (root, r, size) = (call.root.0 as usize, rank.0 as usize, inputs.len());
    let own = rank == call.root;
    let sum = |inputs: &[Vec<u8>]| {
        let mut sum = inputs[0].clone();
        inputs[1..].iter().for_each(|input| add(&mut sum, input));
        sum
    };
    let part = |of: usize| match &call.counts {
        Some(counts) => counts[of] as usize,
        None => call.bytes as usize,
    };
    let mine = |array: &[u8]| {
        let start: usize = (0..r).map(part).sum();
        array[start..start + part(r)].to_vec()
    };
    match call.operation {
        Operation::Bcast => inputs[root].clone(),
        Operation::Allreduce => sum(inputs),
        Operation::Reduce if own => sum(inputs),
        Operation::Allgather => inputs.concat(),
        Operation::Gather if own => inputs.concat(),
        Operation::Scatter => mine(&inputs[root]),
        Operation::ReduceScatter => mine(&sum(inputs)),
        Operation::Scan => sum(&inputs[..=r]),
        Operation::Exscan if r > 0 => sum(&inputs[..r]),
        Operation::Alltoall => (0..size)
            .flat_map(|from| {
                let start: usize = (0..r).map(|to| part_between(call, from, to, size)).sum();
                inputs[from][start..start + part_between(call, from, r, size)].to_vec()
            })
            .collect(),
        Operation::Barrier | Operation::Reduce | Operation::Gather | Operation::Exscan => Vec::new(),
    }
}

fn part_between(call: &Call, from: usize, to: usize, size: usize) -> usize {
    call.counts.as_ref().map_or(call.bytes, |counts| counts[from * size + to]) as usize
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

/// Generates layouts of at most 20 nodes in at most 3 racks, with at most 39 ranks.
fn layout() -> impl Strategy<Value = Layout> {
    proptest::collection::vec(0u32..20, 1..40).prop_map(|nodes| {
        let places: Vec<RankPlace> =
            nodes.into_iter().map(|node| RankPlace { rack: node * node % 5, node }).collect();
        Layout::new(&places).expect("a node's rack follows from its number")
    })
}

#[test]
fn impossible_calls_are_refused_by_name() {
    let layout = Layout::new(&shapes::racks(&[2, 1], 1)).unwrap();
    let good = Call::new(Operation::Gather, Rank(0), 16, 8);
    let cool = "cool-p-p".parse().unwrap();
    let refused = |call: &Call, plan: &str| {
        compile(call, &layout, &plan.parse().unwrap(), |_| true)
            .expect_err("it should be refused")
            .to_string()
    };
    assert!(compile(&good, &layout, &cool, |_| true).is_ok());
    let e = refused(&Call { root: Rank(3), ..good.clone() }, "cool-p-p");
    assert!(e.contains("rank 3") && e.contains("0 to 2"), "{e}");
    let e = refused(&Call { bytes: 17, ..good.clone() }, "cool-p-p");
    assert!(e.contains("17 bytes") && e.contains("8 bytes"), "{e}");
    assert!(refused(&Call { element: 0, ..good.clone() }, "cool-p-p").contains("0 bytes"));
    let e = refused(&good, "multicast");
    assert!(e.contains("multicast cannot run gather") && e.contains("these can: cool-p-p"), "{e}");
    let e = refused(&good, "rack:ring");
    assert!(e.contains("pattern ring at level rack has no gather"), "{e}");
    let e = refused(&good.clone().with_counts([8, 8]), "cool-p-p");
    assert!(e.contains("2 counts") && e.contains("need 3"), "{e}");
    let e = refused(&good.clone().with_counts([8, 8, 7]), "cool-p-p");
    assert!(e.contains("7 bytes") && e.contains("elements of 8"), "{e}");
    let e = refused(&Call::new(Operation::Scan, Rank(0), 8, 8).with_counts([8, 8, 8]), "cool-p-p");
    assert!(e.contains("leave them out"), "{e}");
    let huge = Call { bytes: u64::MAX / 8 * 8, ..good };
    assert!(matches!(
        compile(&huge, &layout, &cool, |_| true),
        Err(CompileError::Call { reason: CallError::TooLarge, .. })
    ));
}

#[test]
fn long_multicasts_are_striped_over_the_trees() {
    let layout = Layout::new(&shapes::racks(&[2, 3, 1], 2)).unwrap().with_stripes(3);
    for operation in Operation::ALL {
        for plan in plans(operation) {
            for (bytes, element) in [(1 << 20, 8), (200_000, 32), (4096, 4)] {
                prove(&Call::new(operation, Rank(3), bytes, element), &layout, &plan);
            }
        }
    }
    let parts = |bytes| {
        let call = Call::new(Operation::Bcast, Rank(3), bytes, 4);
        let schedule = compiled(&call, &layout, &"multicast".parse().unwrap());
        let actions = schedule.programs.iter().flatten().flat_map(|program| &program.actions);
        let part = |kind| match kind {
            ActionKind::Multicast { scope: MulticastScope::All, stripe, src, .. } => {
                Some((stripe.index, stripe.of, src.len))
            }
            _ => None,
        };
        actions.filter_map(|action| part(action.kind)).collect::<Vec<_>>()
    };
    assert_eq!(parts(600_000), [(0, 3, 200_000), (1, 3, 200_000), (2, 3, 200_000)]);
    assert_eq!(parts(160_000), [(0, 2, 80_000), (1, 2, 80_000)]);
    assert_eq!(parts(100_000), [(0, 1, 100_000)]);
}

#[test]
fn a_schedule_of_a_huge_message_stays_small() {
    let layout = Layout::new(&shapes::racks(&[4, 4], 1)).unwrap();
    for operation in Operation::ALL {
        for plan in Plan::fitting(operation) {
            let call = Call::new(operation, Rank(5), 1 << 40, 8);
            let schedule = compiled(&call, &layout, &plan);
            let proof = verify(&schedule, &layout).unwrap();
            assert!(proof.actions < 250_000, "{operation} {plan}: {proof:?}");
        }
    }
}

// Tests of many combinations. `make test-quick` leaves this module out.
mod slow {
    use super::*;

    #[test]
    fn every_plan_is_right_for_every_operation_shape_and_root() {
        let (mut proved, mut sizes) = (0, SIZES.iter().cycle());
        for layout in all_shapes() {
            for operation in Operation::ALL {
                // For large groups, only every fourth plan is proved, starting at another plan each
                // time.
                let step = if layout.size() > 20 { 4 } else { 1 };
                for plan in plans(operation).into_iter().skip(proved % step).step_by(step) {
                    for root in roots(operation, &layout) {
                        // The number of an operation's plans is not a multiple of the number of
                        // sizes, so that every plan meets every size in time.
                        let Some((bytes, element, segment)) = sizes.next() else { return };
                        let call = Call::new(operation, root, *bytes, *element);
                        proved += prove(&call, &layout, &plan.with_segment(*segment));
                    }
                }
            }
        }
        println!("{proved} combinations of plan, operation, shape and root proved");
        assert!(proved > 20_000, "{proved}");
    }

    #[test]
    fn named_plans_are_right_for_every_root_and_size() {
        let mut proved = 0;
        for sizes in [&[1, 2][..], &[2, 2, 1], &[3, 4]] {
            let layout = Layout::new(&shapes::interleaved(&shapes::racks(sizes, 1), 2)).unwrap();
            for operation in Operation::ALL {
                for root in layout.ranks().filter(|rank| operation.rooted() || rank.0 == 0) {
                    for (bytes, element, segment) in SIZES {
                        for plan in Plan::fitting(operation) {
                            let call = Call::new(operation, root, bytes, element);
                            proved += prove(&call, &layout, &plan.with_segment(segment));
                        }
                    }
                }
            }
        }
        println!("{proved} combinations of plan, operation, root and size proved");
        assert!(proved > 5_000, "{proved}");
    }

    #[test]
    fn plans_are_right_for_groups_of_64_nodes() {
        let mut proved = 0;
        for sizes in [&[8; 8][..], &[16; 4], &[31, 1, 20, 12]] {
            let layout = Layout::new(&shapes::interleaved(&shapes::racks(sizes, 1), 5)).unwrap();
            for operation in Operation::ALL {
                for plan in Plan::fitting(operation) {
                    proved += prove(&Call::new(operation, Rank(37), 520, 8), &layout, &plan);
                }
            }
        }
        println!("{proved} combinations of plan, operation and shape of 64 nodes proved");
    }

    #[test]
    fn agents_that_compile_for_their_own_ranks_agree() {
        for layout in all_shapes() {
            for operation in Operation::ALL {
                for plan in Plan::fitting(operation) {
                    let call = Call::new(operation, Rank(layout.size() as u32 / 2), 96, 8);
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

    proptest! {
        #![proptest_config(config(200))]

        #[test]
        fn any_layout_gets_right_results_in_any_order_of_events(
            operation in operation(),
            layout in layout(),
            root in any::<prop::sample::Index>(),
            (elements, element, segment) in (0u64..100, prop::sample::select(vec![1u32, 2, 4, 8]), 1u64..200),
            (with_counts, seed) in (any::<bool>(), any::<u64>()),
        ) {
            let root = Rank(root.index(layout.size()) as u32);
            let mut call = Call::new(operation, root, elements * u64::from(element), element);
            if with_counts && operation.takes_counts() {
                call = uneven(&call, layout.size());
            }
            // Half of the plans are tested. Other seeds select the other half.
            for plan in plans(operation).into_iter().skip(seed as usize % 2).step_by(2) {
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

    proptest! {
        #![proptest_config(config(60))]

        /// Layouts of 65 to 159 nodes in at most 12 racks.
        #[test]
        fn plans_are_right_for_large_groups(
            operation in operation(),
            racks in proptest::collection::vec(0u32..12, 65..160),
            root in any::<prop::sample::Index>(),
            plan in any::<prop::sample::Index>(),
            (elements, segment) in (0u64..300, 64u64..2000),
        ) {
            let places: Vec<RankPlace> = (0..).zip(&racks).map(|(node, rack)| RankPlace { rack: *rack, node }).collect();
            let layout = Layout::new(&places).expect("each node is in one rack");
            let plans = plans(operation);
            let root = Rank(root.index(layout.size()) as u32);
            let call = Call::new(operation, root, elements * 8, 8);
            // The programs of all ranks are compiled. With short segments they would exceed the
            // limit of actions.
            let bytes = call.input_bytes(root, layout.size()).max(call.output_bytes(root, layout.size()));
            let segment = segment.max(bytes / 8);
            let plan = plan.get(&plans).with_segment(segment);
            verify(&compiled(&call, &layout, &plan), &layout)
                .map_err(|e| TestCaseError::fail(format!("{plan}: {e}")))?;
        }
    }
}
