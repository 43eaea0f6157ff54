//! Error messages for invalid arguments, without any agent. Each rank checks the number of arrays,
//! their lengths and their types; the messages name the array and the expected value.

use super::*;
use crate::Op;

/// The longest array of any case.
const DATA: [u8; 16] = [0; 16];

fn sum(operation: Operation) -> Option<Op> {
    operation.combines().then_some(Op::Sum)
}

/// Returns the error of rank 0 of two for a call with arrays of these lengths in bytes, with a root
/// and counts.
fn refused(
    operation: Operation,
    (send, recv): (usize, usize),
    root: usize,
    counts: Option<&[usize]>,
) -> Reason {
    let mut room = DATA;
    let arrays = Arrays::Apart(Some((&DATA[..send]).into()), Some((&mut room[..recv]).into()));
    let op = sum(operation);
    let collective = Collective { operation, root, op, counts, arrays };
    collective.check(CallingRank { rank: 0, size: 2 }).unwrap_err()
}

/// As `refused`, for a call in place.
fn refused_in_place(operation: Operation, data: usize, counts: Option<&[usize]>) -> Reason {
    let mut room = DATA;
    let arrays = Arrays::InPlace((&mut room[..data]).into());
    let op = sum(operation);
    let collective = Collective { operation, root: 0, op, counts, arrays };
    collective.check(CallingRank { rank: 0, size: 2 }).unwrap_err()
}

#[test]
fn wrong_lengths_are_reported_with_the_array_and_the_remedy() {
    use Operation as O;
    let equal = "recv has 3 elements, but send has 2; they must have the same length";
    let gathered = "recv has 3 elements, but must have 2 times the 2 of send, one part for each rank";
    let dealt = "send has 2 elements, but must have 2 times the 3 of recv, one part for each rank";
    for (operation, text) in [
        (O::Reduce, equal),
        (O::Allreduce, equal),
        (O::Scan, equal),
        (O::Exscan, equal),
        (O::Gather, gathered),
        (O::Allgather, gathered),
        (O::Scatter, dealt),
        (O::ReduceScatter, dealt),
        (O::Alltoall, equal),
        (O::Bcast, "it takes one array, not two"),
        (O::Barrier, "it takes no arrays"),
    ] {
        assert_eq!(refused(operation, (2, 3), 0, None), text, "{operation}");
    }
    let parts = "send has 3 elements, which cannot be divided into 2 equal parts, one for each rank";
    assert_eq!(refused(O::Alltoall, (3, 3), 0, None), parts);
    for operation in [O::Allgather, O::Alltoall, O::Gather, O::Scatter, O::ReduceScatter] {
        assert_eq!(refused_in_place(operation, 3, None), parts.replace("send", "data"), "{operation}");
    }
    assert_eq!(refused_in_place(O::Barrier, 2, None), "it takes no arrays");
}

#[test]
fn inconsistent_counts_are_reported() {
    use Operation as O;
    let one_each = "counts has 1 numbers, but must have 2, one for each rank";
    for operation in [O::Gather, O::Allgather, O::Scatter, O::ReduceScatter] {
        assert_eq!(refused(operation, (1, 1), 0, Some(&[1])), one_each, "{operation}");
    }
    for operation in [O::Gather, O::Allgather] {
        let text = "send has 2 elements, but counts require 1";
        assert_eq!(refused(operation, (2, 3), 0, Some(&[1, 1])), text, "{operation}");
        let text = "recv has 3 elements, but counts require 2";
        assert_eq!(refused(operation, (1, 3), 0, Some(&[1, 1])), text, "{operation}");
    }
    for operation in [O::Scatter, O::ReduceScatter] {
        let text = "recv has 2 elements, but counts require 1";
        assert_eq!(refused(operation, (2, 2), 0, Some(&[1, 1])), text, "{operation}");
        let text = "send has 3 elements, but counts require 2";
        assert_eq!(refused(operation, (3, 1), 0, Some(&[1, 1])), text, "{operation}");
    }
    let pairs = "counts has 2 numbers, but must have 4, one for each pair of ranks";
    assert_eq!(refused(O::Alltoall, (2, 2), 0, Some(&[1, 1])), pairs);
    let text = "send has 3 elements, but counts require 2";
    assert_eq!(refused(O::Alltoall, (3, 3), 0, Some(&[1; 4])), text);
    let text = "recv has 3 elements, but counts require 2";
    assert_eq!(refused(O::Alltoall, (2, 3), 0, Some(&[1; 4])), text);
    let text = "the sum of counts exceeds the size of any array";
    assert_eq!(refused(O::Gather, (1, 3), 0, Some(&[1, usize::MAX])), text);
    for operation in [O::Allgather, O::Gather, O::Scatter, O::ReduceScatter] {
        let text = "data has 3 elements, but counts require 2";
        assert_eq!(refused_in_place(operation, 3, Some(&[1, 1])), text, "{operation}");
        assert_eq!(refused_in_place(operation, 1, Some(&[1])), one_each, "{operation}");
    }
    let text = refused_in_place(O::Alltoall, 3, Some(&[1, 2, 3, 1]));
    assert!(text.ends_with("but 2 elements are sent to rank 1, and 3 received from it"), "{text}");
}

/// Returns the input and output ranges of rank 1 of two within an array of 8 bytes, and whether the
/// input is copied first.
fn within(
    operation: Operation,
    send: Range<usize>,
    recv: Range<usize>,
    counts: Option<&[usize]>,
) -> Result<(Vec<u8>, Vec<u8>, bool), Reason> {
    let mut data = [0, 1, 2, 3, 4, 5, 6, 7u8];
    let arrays = Arrays::Within(data.as_mut_slice().into(), send, recv);
    let collective = Collective { operation, root: 1, op: sum(operation), counts, arrays };
    let checked = collective.check(CallingRank { rank: 1, size: 2 })?;
    let found = |bytes: Option<&[u8]>| bytes.unwrap_or_default().to_vec();
    Ok((found(checked.input()), found(checked.output()), checked.copied.is_some()))
}

#[test]
fn ranges_of_one_array_are_copied_unless_in_place() {
    use Operation as O;
    let (all, own) = (vec![2, 3, 4, 5], vec![4, 5]);
    for operation in [O::Gather, O::Allgather] {
        assert_eq!(within(operation, 4..6, 2..6, None), Ok((own.clone(), all.clone(), false)));
        assert_eq!(within(operation, 2..4, 2..6, None), Ok((vec![2, 3], all.clone(), true)));
        assert_eq!(within(operation, 5..6, 2..6, Some(&[3, 1])), Ok((vec![5], all.clone(), false)));
    }
    assert_eq!(within(O::Scatter, 2..6, 4..6, None), Ok((all.clone(), own.clone(), false)));
    assert_eq!(within(O::ReduceScatter, 2..6, 2..4, None), Ok((all.clone(), vec![2, 3], false)));
    assert_eq!(within(O::ReduceScatter, 2..6, 4..6, None), Ok((all.clone(), own, true)));
    assert_eq!(within(O::Allreduce, 2..6, 2..6, None), Ok((all.clone(), all.clone(), false)));
    assert_eq!(within(O::Allreduce, 2..6, 3..7, None), Ok((all, vec![3, 4, 5, 6], true)));
    assert!(within(O::Allreduce, 2..9, 2..9, None).unwrap_err().contains("which is not within an array of"));
    assert!(within(O::Allreduce, 2..6, 2..5, None).unwrap_err().contains("the same length"));
}

#[test]
fn pairs_are_converted_only_for_reductions() {
    // Little-endian, as all machines on which this test runs.
    let mut pairs = [-7i16, 0x55, -1, -1];
    for (op, sent) in [(Some(Op::MinLoc), [-7, 0x7fff_ffff]), (None, [0x0055_fff9, -1])] {
        let operation = if op.is_some() { Operation::Allreduce } else { Operation::Bcast };
        let data = ArrayMut::new(crate::PairType::I16, bytemuck::cast_slice_mut(&mut pairs)).unwrap();
        let collective = Collective { op, ..Collective::new(operation, Arrays::InPlace(data)) };
        let checked = collective.check(CallingRank { rank: 0, size: 2 }).unwrap();
        assert_eq!(checked.input().unwrap(), bytemuck::cast_slice::<i32, u8>(&sent));
        assert_eq!((checked.dtype, checked.count), (Some(crate::Type::I32Loc), 1));
    }
    let data = ArrayMut::new(crate::PairType::I16, bytemuck::cast_slice_mut(&mut pairs)).unwrap();
    let collective =
        Collective { op: Some(Op::Sum), ..Collective::new(Operation::Allreduce, Arrays::InPlace(data)) };
    assert!(collective.check(CallingRank { rank: 0, size: 2 }).is_err());
}

#[test]
fn an_invalid_root_is_reported_with_the_valid_range() {
    use Operation as O;
    for (operation, root) in [(O::Reduce, 2), (O::Gather, usize::MAX), (O::Scatter, 2)] {
        let text = format!("there is no rank {root} to be the root; the ranks are 0 to 1");
        assert_eq!(refused(operation, (2, 2), root, None), text, "{operation}");
    }
    let folded = |operation| {
        let mut room = DATA;
        let arrays = Arrays::Apart(Some((&DATA[..8]).into()), Some((&mut room[..8]).into()));
        let collective = Collective { root: 2, ..Collective::new(operation, arrays) };
        collective.check_fold(CallingRank { rank: 0, size: 2 }, 4).map(|checked| checked.count)
    };
    assert!(folded(O::Reduce).unwrap_err().contains("there is no rank 2"));
    assert_eq!(folded(O::Allreduce), Ok(2));
}

#[test]
fn unused_arrays_are_ignored() {
    use Operation as O;
    let caller = CallingRank { rank: 1, size: 2 };
    for (operation, counts) in [(O::Reduce, None), (O::Gather, None), (O::Gather, Some(&[1, 2][..]))] {
        let arrays = Arrays::Apart(Some((&DATA[..2]).into()), None);
        let op = sum(operation);
        let checked = Collective { operation, root: 0, op, counts, arrays }.check(caller).unwrap();
        assert_eq!((checked.input().map(<[u8]>::len), checked.output()), (Some(2), None), "{operation}");
    }
    let mut room = DATA;
    let arrays = Arrays::Apart(None, Some((&mut room[..2]).into()));
    let checked = Collective::new(O::Scatter, arrays).check(caller).unwrap();
    assert_eq!((checked.input(), checked.output().map(<[u8]>::len), checked.count), (None, Some(2), 2));
    // An array is missing at a rank that needs it.
    let missing = |operation, rank| {
        let op = sum(operation);
        let arrays = Arrays::Apart(None, None);
        Collective { operation, root: 0, op, counts: None, arrays }
            .check(CallingRank { rank, size: 2 })
            .unwrap_err()
    };
    assert_eq!(
        (missing(O::Reduce, 0), missing(O::Scatter, 1)),
        ("send is missing".into(), "recv is missing".into())
    );
    assert_eq!(
        Collective::new(O::Allreduce, Arrays::None).check(caller).unwrap_err(),
        "it does not specify how to combine elements"
    );
    assert_eq!(Collective::new(O::Gather, Arrays::None).check(caller).unwrap_err(), "arrays are missing");
}

#[test]
fn rank_0_of_an_exscan_needs_arrays_of_equal_length() {
    let check = |rank, recv: &mut [u8]| {
        let arrays = Arrays::Apart(Some((&DATA[..2]).into()), Some(recv.into()));
        let collective = Collective { op: Some(Op::Sum), ..Collective::new(Operation::Exscan, arrays) };
        collective.check(CallingRank { rank, size: 2 }).map(|checked| checked.output().is_some())
    };
    assert_eq!((check(0, &mut [0; 2]), check(1, &mut [0; 2])), (Ok(false), Ok(true)));
    assert!(check(0, &mut [0; 3]).unwrap_err().contains("the same length"));
}

#[test]
fn mixed_types_and_unsupported_reductions_are_reported() {
    let mut room = [0u32; 2];
    let arrays = Arrays::Apart(Some([0i32; 2].as_slice().into()), Some(room.as_mut_slice().into()));
    let caller = CallingRank { rank: 0, size: 2 };
    let text = Collective::new(Operation::Allgather, arrays).check(caller).unwrap_err();
    assert_eq!(text, "send holds i32, but recv u32; they must be of one type");
    let mut data = [0f32; 2];
    let arrays = Arrays::InPlace(data.as_mut_slice().into());
    let collective = Collective { op: Some(Op::BitAnd), ..Collective::new(Operation::Allreduce, arrays) };
    let text = collective.check(caller).unwrap_err();
    assert!(text.starts_with("elements of type f32 have no bit_and; they have sum, prod, min"), "{text}");
}
