//! Every type of elements and every way to combine it.

use cool::embedded::{Embedded, run};
use cool::{
    Array, ArrayMut, Arrays, Collective, Comm, Complex, Element, Error, Located, Op, Operation, PairType,
    bf16, f16,
};
use std::fmt::Debug;

/// Runs on 4 ranks, with two on each node.
fn four(body: impl Fn(&Comm) -> Result<(), Error> + Sync) {
    let how = Embedded { ranks: 4, ranks_per_node: 2, racks: 2 };
    run(how, |comm| body(&comm)).unwrap().into_iter().for_each(|result| result.unwrap());
}

/// Checks the combination of the contributions of all ranks, in rank order.
fn combines<T: Element + Debug + PartialEq>(
    comm: &Comm,
    op: Op,
    contributions: [T; 4],
    expected: T,
) -> Result<(), Error> {
    let mut results = [contributions[0]; 3];
    comm.allreduce(&[contributions[comm.rank()]; 3], &mut results, op)?;
    assert_eq!(results, [expected; 3], "{op} of {contributions:?}");
    Ok(())
}

#[test]
fn integers_have_logical_and_bitwise_reductions() {
    four(|comm| {
        combines(comm, Op::LogicalAnd, [1i8, 2, -3, 4], 1)?;
        combines(comm, Op::LogicalAnd, [1u16, 2, 0, 4], 0)?;
        combines(comm, Op::LogicalOr, [0i64, 0, 7, 0], 1)?;
        combines(comm, Op::LogicalXor, [5u32, 0, 7, 9], 1)?;
        combines(comm, Op::BitAnd, [0b111u8, 0b110, 0b1110, 0b11110], 0b110)?;
        combines(comm, Op::BitOr, [1i32, 2, 4, i32::MIN], i32::MIN + 7)?;
        combines(comm, Op::BitXor, [u64::MAX, 1, 2, 4], u64::MAX - 7)
    });
}

#[test]
fn short_floats_and_complex_numbers_are_carried_and_combined() {
    four(|comm| {
        let (half, brain) = (f16::from_f32, bf16::from_f32);
        combines(comm, Op::Sum, [0.5, 1.0, 2.0, 4.0].map(half), half(7.5))?;
        combines(comm, Op::Min, [0.5, -1.0, 2.0, 4.0].map(half), half(-1.0))?;
        combines(comm, Op::Prod, [0.5, 1.0, 2.0, 4.0].map(brain), brain(4.0))?;
        let sum = [(1.0, 2.0), (0.0, 1.0), (1.0, 0.0), (0.5, 0.5)].map(|(re, im)| Complex::new(re, im));
        combines::<Complex<f32>>(comm, Op::Sum, sum, Complex::new(2.5, 3.5))?;
        let product = [(0.0, 1.0), (0.0, 1.0), (0.0, 1.0), (2.0, 0.0)].map(|(re, im)| Complex::new(re, im));
        combines::<Complex<f64>>(comm, Op::Prod, product, Complex::new(0.0, -2.0))
    });
}

#[test]
fn averages_are_divided_where_they_arrive() {
    four(|comm| {
        combines(comm, Op::Average, [1.0f32, 2.0, 3.0, 4.0], 2.5)?;
        combines(comm, Op::Average, [1.0, 2.0, 3.0, 4.0].map(f16::from_f64), f16::from_f64(2.5))?;
        combines(comm, Op::Average, [1.0, 2.0, 3.0, 4.0].map(bf16::from_f64), bf16::from_f64(2.5))?;
        let z = Complex::new;
        combines(comm, Op::Average, [z(1.0, 0.0), z(0.0, 2.0), z(3.0, 0.0), z(0.0, 4.0)], z(1.0, 1.5))?;
        let (mut part, send) = ([0.0], [1.0, 2.0, 3.0, comm.rank() as f64]);
        comm.reduce_scatter(&send, &mut part, Op::Average)?;
        assert_eq!(part, [[1.0], [2.0], [3.0], [1.5]][comm.rank()]);
        let mut at_root = [send[3]];
        comm.reduce_in_place(&mut at_root, Op::Average, 2)?;
        assert_eq!(at_root, [if comm.rank() == 2 { 1.5 } else { send[3] }]);
        Ok(())
    });
}

#[test]
fn minimum_and_maximum_are_returned_with_their_index() {
    four(|comm| {
        let f64s = [(3.5, 0), (-1.0, 1), (9.0, 2), (-1.0, 3)].map(|(v, i)| Located::new(v, i));
        combines::<Located<f64>>(comm, Op::MinLoc, f64s, f64s[1])?;
        let f32s = [(3.5, 7), (-1.0, 1), (9.0, 6), (9.0, 3)].map(|(v, i)| Located::new(v, i));
        combines::<Located<f32>>(comm, Op::MaxLoc, f32s, f32s[3])?;
        let i32s = [(3, 0), (3, 9), (3, 8), (3, 7)].map(|(v, i)| Located::new(v, i));
        combines::<Located<i32>>(comm, Op::MinLoc, i32s, i32s[0])?;
        let i64s = [(i64::MIN, 0), (1, 9), (2, 8), (0, 7)].map(|(v, i)| Located::new(v, i));
        combines::<Located<i64>>(comm, Op::MaxLoc, i64s, i64s[2])
    });
}

fn largest<'s, 'r>(arrays: Arrays<'s, 'r>) -> Collective<'s, 'r> {
    Collective { op: Some(Op::MaxLoc), ..Collective::new(Operation::Allreduce, arrays) }
}

#[test]
fn pairs_of_mpi_are_combined_by_their_signed_index() {
    // A double, an int, and padding.
    let pair = |value: f64, index: i32| {
        let mut bytes = [0xff; 16];
        bytes[..8].copy_from_slice(&value.to_ne_bytes());
        bytes[8..12].copy_from_slice(&index.to_ne_bytes());
        bytes
    };
    four(|comm| {
        let mine = pair(2.5, [3, -1, i32::MIN, 0][comm.rank()]);
        let mut best = mine;
        comm.collective(largest(Arrays::InPlace(ArrayMut::new(PairType::F64, &mut best).unwrap())))?;
        assert_eq!(best[..12], pair(2.5, i32::MIN)[..12]);
        let mut least = [0; 16];
        let arrays =
            Arrays::Apart(Array::new(PairType::F64, &mine), ArrayMut::new(PairType::F64, &mut least));
        comm.start().collective(largest(arrays))?.wait()?;
        assert_eq!(least[..12], pair(2.5, i32::MIN)[..12]);
        Ok(())
    });
}

#[test]
fn unsupported_combinations_are_rejected_with_a_remedy() {
    four(|comm| {
        let wrong = |result: Result<(), Error>| match result {
            Err(e @ Error::Argument { .. }) => e.to_string(),
            other => panic!("{other:?} instead of an error about arguments"),
        };
        let e = wrong(comm.allreduce(&[1.0f32], &mut [0.0], Op::BitAnd));
        assert!(
            e.contains("elements of type f32 have no bit_and; they have sum, prod, min, max, average"),
            "{e}"
        );
        let e = wrong(comm.allreduce(&[Complex::new(1.0, 0.0)], &mut [Complex::default()], Op::Max));
        assert!(e.contains("elements of type c64 have no max; they have sum, prod, average"), "{e}");
        let e = wrong(comm.reduce(&[1u8], &mut [0], Op::Average, 0));
        assert!(e.contains("elements of type u8 have no average"), "{e}");
        let e = wrong(comm.allreduce(&[Located::<f64>::default()], &mut [Located::default()], Op::Sum));
        assert!(e.contains("elements of type f64_loc have no sum; they have min_loc, max_loc"), "{e}");
        let e = wrong(comm.scan(&[1.0], &mut [0.0], Op::Average));
        assert!(e.contains("a scan has no average"), "{e}");
        comm.barrier()
    });
}
