//! Reductions by functions of the program, on vectors small and large.

use cool::embedded::{Embedded, run};
use cool::{Comm, Error, Operation};

/// Affine maps x -> a x + b: their composition is not commutative.
type Map = [u64; 2];

fn then(first: Map, second: Map) -> Map {
    [first[0].wrapping_mul(second[0]), first[1].wrapping_mul(second[0]).wrapping_add(second[1])]
}

fn map(rank: usize, i: usize) -> Map {
    [(rank * 7 + i + 2) as u64, (rank * 11 + i * 3) as u64]
}

/// What the ranks of a range combine to.
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

#[test]
fn what_makes_no_sense_is_refused_in_words() {
    ranks(|comm| {
        let e = comm.allreduce_with(&[1u8, 2], &mut [0], |a, _| a).unwrap_err();
        let text = "allreduce: recv has 1 elements, but send has 2; they must be equally long";
        assert!(e.to_string().ends_with(text), "{e}");
        let e = comm.reduce_with(&[1u8], &mut [0], |a, _| a, 99).unwrap_err();
        assert!(e.to_string().contains("there is no rank 99"), "{e}");
        let e = comm.fold(Operation::Allreduce, 0, 4, &[0; 6], &mut [0; 6], &mut |_, _| {}).unwrap_err();
        assert!(e.to_string().contains("no whole elements of 4 bytes"), "{e}");
        let e = comm.fold(Operation::Bcast, 0, 1, &[0], &mut [0], &mut |_, _| {}).unwrap_err();
        assert!(e.to_string().contains("bcast combines nothing"), "{e}");
        comm.barrier()
    });
}
