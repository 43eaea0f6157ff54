//! Reductions by functions of the program, on short and long vectors.

use cool::embedded::{Embedded, run};
use cool::{Arrays, Collective, Comm, Error, Operation};

/// Affine maps x -> a x + b: their composition is not commutative.
type Map = [u64; 2];

fn then(first: Map, second: Map) -> Map {
    [first[0].wrapping_mul(second[0]), first[1].wrapping_mul(second[0]).wrapping_add(second[1])]
}

fn map(rank: usize, i: usize) -> Map {
    [(rank * 7 + i + 2) as u64, (rank * 11 + i * 3) as u64]
}

/// Returns the combination of a range of ranks.
fn all(ranks: std::ops::Range<usize>, i: usize) -> Map {
    ranks.map(|rank| map(rank, i)).reduce(then).unwrap()
}

const COUNTS: [usize; 5] = [0, 1, 3, 500, 20_001];

fn ranks(body: impl Fn(&Comm) -> Result<(), Error> + Sync) {
    for ranks in [1, 2, 5, 7] {
        let how = Embedded { ranks, ranks_per_node: 2, racks: 2 };
        run(how, |comm| body(&comm)).unwrap().into_iter().for_each(|result| result.unwrap());
    }
}

#[test]
fn functions_combine_in_rank_order() {
    ranks(|comm| {
        let (rank, size) = (comm.rank(), comm.size());
        for count in COUNTS {
            let mine: Vec<Map> = (0..count).map(|i| map(rank, i)).collect();
            let of =
                |ranks: std::ops::Range<usize>| (0..count).map(|i| all(ranks.clone(), i)).collect::<Vec<_>>();
            let mut result = vec![[7; 2]; count];
            comm.allreduce_with(&mine, &mut result, then)?;
            assert!(result == of(0..size), "allreduce of {count}");
            comm.scan_with(&mine, &mut result, then)?;
            assert!(result == of(0..rank + 1), "scan of {count}");
            result.fill([7; 2]);
            comm.exscan_with(&mine, &mut result, then)?;
            assert!(result == if rank == 0 { vec![[7; 2]; count] } else { of(0..rank) }, "exscan of {count}");
            let root = size / 2;
            result.fill([7; 2]);
            comm.reduce_with(&mine, &mut result, then, root)?;
            assert!(
                result == if rank == root { of(0..size) } else { vec![[7; 2]; count] },
                "reduce of {count}"
            );
        }
        Ok(())
    });
}

#[test]
fn parts_of_a_combination_are_dealt_out() {
    ranks(|comm| {
        let (rank, size) = (comm.rank(), comm.size());
        for count in COUNTS {
            let mine: Vec<Map> = (0..count * size).map(|i| map(rank, i)).collect();
            let mut result = vec![[7; 2]; count];
            comm.reduce_scatter_with(&mine, &mut result, then)?;
            assert!((0..count).all(|i| result[i] == all(0..size, rank * count + i)), "{count} elements");
        }
        Ok(())
    });
}

/// Combines vectors of maps, as bytes.
fn then_all(left: &mut [u8], right: &[u8]) {
    let pairs = left.as_chunks_mut::<16>().0.iter_mut().zip(right.as_chunks::<16>().0);
    let map = |bytes: &[u8; 16]| -> Map {
        [0, 8].map(|at| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap()))
    };
    for (left, right) in pairs {
        let [a, b] = then(map(left), map(right)).map(u64::to_ne_bytes);
        left.copy_from_slice(&[a, b].concat());
    }
}

#[test]
fn function_reductions_start_and_work_in_place_and_by_counts() {
    ranks(|comm| {
        let (rank, size) = (comm.rank(), comm.size());
        let of = |ranks: std::ops::Range<usize>, count: usize| -> Vec<Map> {
            (0..count).map(|i| if ranks.is_empty() { map(rank, i) } else { all(ranks.clone(), i) }).collect()
        };
        for count in [0, 3, 3_001] {
            let counts: Vec<usize> = (0..size).map(|i| [count, 0, count / 2][i % 3]).collect();
            let whole: usize = counts.iter().sum();
            let (root, start) = (size / 2, counts[..rank].iter().sum::<usize>());
            let calls = [
                (Operation::Allreduce, 0..size, None),
                (Operation::Reduce, if rank == root { 0..size } else { 0..0 }, None),
                (Operation::Scan, 0..rank + 1, None),
                (Operation::Exscan, 0..rank, None),
                (Operation::ReduceScatter, 0..size, Some(&counts[..])),
            ];
            let mut data: Vec<Vec<Map>> = vec![of(rank..rank + 1, whole); 2 * calls.len()];
            // All calls are started before one is waited for.
            let (started, waited) = data.split_at_mut(calls.len());
            let mut pending = Vec::new();
            for ((operation, _, counts), data) in calls.clone().into_iter().zip(started) {
                let arrays = Arrays::InPlace(data.as_flattened_mut().into());
                let collective = Collective { root, counts, ..Collective::new(operation, arrays) };
                pending.push(comm.start().fold(collective, 16, then_all)?);
            }
            cool::wait_all(pending.into_iter().rev())?;
            for ((operation, _, counts), data) in calls.clone().into_iter().zip(waited) {
                let arrays = Arrays::InPlace(data.as_flattened_mut().into());
                let collective = Collective { root, counts, ..Collective::new(operation, arrays) };
                comm.fold(collective, 16, &mut then_all)?;
            }
            for ((operation, ranks, _), data) in calls.iter().cycle().zip(data) {
                let expected = of(ranks.clone(), whole);
                if *operation == Operation::ReduceScatter {
                    let part = counts[rank];
                    assert!(data[..part] == expected[start..start + part], "{operation} of {counts:?}");
                } else {
                    assert!(data == expected, "{operation} of {whole} at rank {rank}");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn invalid_arguments_are_rejected_with_a_remedy() {
    ranks(|comm| {
        let e = comm.allreduce_with(&[1u8, 2], &mut [0], |a, _| a).unwrap_err();
        let text = "allreduce: recv has 1 elements, but send has 2; they must have the same length";
        assert!(e.to_string().ends_with(text), "{e}");
        let e = comm.reduce_with(&[1u8], &mut [0], |a, _| a, 99).unwrap_err();
        assert!(e.to_string().contains("there is no rank 99"), "{e}");
        let refused = |operation, element| {
            let mut data = [0u8; 6];
            let collective = Collective::new(operation, Arrays::InPlace(data.as_mut_slice().into()));
            comm.fold(collective, element, &mut |_, _| {}).unwrap_err()
        };
        let e = refused(Operation::Allreduce, 4);
        assert!(e.to_string().contains("not a multiple of the element size of 4 bytes"), "{e}");
        let e = refused(Operation::Bcast, 1);
        assert!(e.to_string().contains("bcast is not a reduction"), "{e}");
        comm.barrier()
    });
}
