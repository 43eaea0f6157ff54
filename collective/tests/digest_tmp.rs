use cool_collective::*;
use std::hash::{DefaultHasher, Hash, Hasher};
#[test]
fn digest() {
    let mut h = DefaultHasher::new();
    let mut n = 0;
    for (racks, nodes, ranks, mix) in [
        (1u32, 1u32, 1u32, 1u32),
        (1, 1, 5, 1),
        (1, 4, 1, 1),
        (3, 2, 2, 1),
        (2, 3, 3, 5),
        (4, 4, 1, 3),
        (3, 5, 2, 7),
    ] {
        let size = racks * nodes * ranks;
        let node_of = |r: u32| ((r * mix) % size) / ranks;
        let places: Vec<Place> =
            (0..size).map(|r| Place { rack: node_of(r) / nodes, node: node_of(r) }).collect();
        let layout = Layout::new(&places).unwrap();
        for op in [Operation::Gather, Operation::Scatter, Operation::Allgather, Operation::ReduceScatter] {
            for plan in Plan::fitting(op).chain(
                ["racked:ring", "racked:chain", "racked:parallel", "racked:linear"]
                    .map(|t| t.parse().unwrap()),
            ) {
                for seg in [0u64, 64, 4096] {
                    let plan = if seg == 0 { plan } else { plan.with_segment(seg) };
                    for root in [0, size / 2, size - 1] {
                        for counts in 0..4u64 {
                            let mut call =
                                Call::new(op, Rank(root), [4, 1000, 40_000, 0][counts as usize], 4);
                            if counts == 3 {
                                call = call.with_counts(
                                    (0..u64::from(size))
                                        .map(|i| (i * 37 % 11) * 4 * 25)
                                        .collect::<Vec<u64>>(),
                                );
                            }
                            if let Ok(s) = compile(&call, &layout, &plan, |_| true) {
                                format!("{s:?}").hash(&mut h);
                                n += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    eprintln!("DIGEST {n} {:x}", h.finish());
}
