//! What is said of arguments that make no sense, without any agent. How many arrays, of which lengths and types, is checked
//! at each rank; the texts name the array and what would be right.

use super::*;
use crate::Op;

/// The longest array of any case.
const DATA: [u8; 16] = [0; 16];

fn sum(operation: Operation) -> Option<Op> {
    operation.combines().then_some(Op::Sum)
}

/// What rank 0 of two says of a call with arrays of these many bytes, at a root and with counts.
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
    collective.check(Caller { rank: 0, size: 2 }).unwrap_err()
}

/// The same, in place.
fn refused_in_place(operation: Operation, data: usize, counts: Option<&[usize]>) -> Reason {
    let mut room = DATA;
    let arrays = Arrays::InPlace((&mut room[..data]).into());
    let op = sum(operation);
    let collective = Collective { operation, root: 0, op, counts, arrays };
    collective.check(Caller { rank: 0, size: 2 }).unwrap_err()
}

#[test]
fn arrays_whose_lengths_do_not_fit_are_named_with_what_would() {
    use Operation as O;
    let equal = "recv has 3 elements, but send has 2; they must be equally long";
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
    let parts = "send has 3 elements, which are not 2 equal parts, one for each rank";
    assert_eq!(refused(O::Alltoall, (3, 3), 0, None), parts);
    for operation in [O::Allgather, O::Alltoall] {
        assert_eq!(refused_in_place(operation, 3, None), parts.replace("send", "data"), "{operation}");
    }
    for operation in [O::Gather, O::Scatter, O::ReduceScatter, O::Barrier] {
        let text = "it cannot be done in place; give it two arrays";
        assert_eq!(refused_in_place(operation, 2, None), text, "{operation}");
    }
}

#[test]
fn counts_that_do_not_add_up_are_told() {
    use Operation as O;
    let one_each = "counts has 1 numbers, but must have 2, one for each rank";
    for operation in [O::Gather, O::Allgather, O::Scatter, O::ReduceScatter] {
        assert_eq!(refused(operation, (1, 1), 0, Some(&[1])), one_each, "{operation}");
    }
    for operation in [O::Gather, O::Allgather] {
        let text = "send has 2 elements, but counts say 1";
        assert_eq!(refused(operation, (2, 3), 0, Some(&[1, 1])), text, "{operation}");
        let text = "recv has 3 elements, but counts say 2";
        assert_eq!(refused(operation, (1, 3), 0, Some(&[1, 1])), text, "{operation}");
    }
    for operation in [O::Scatter, O::ReduceScatter] {
        let text = "recv has 2 elements, but counts say 1";
        assert_eq!(refused(operation, (2, 2), 0, Some(&[1, 1])), text, "{operation}");
        let text = "send has 3 elements, but counts say 2";
        assert_eq!(refused(operation, (3, 1), 0, Some(&[1, 1])), text, "{operation}");
    }
    let pairs = "counts has 2 numbers, but must have 4, one for each pair of ranks";
    assert_eq!(refused(O::Alltoall, (2, 2), 0, Some(&[1, 1])), pairs);
    let text = "send has 3 elements, but counts say 2";
    assert_eq!(refused(O::Alltoall, (3, 3), 0, Some(&[1; 4])), text);
    let text = "recv has 3 elements, but counts say 2";
    assert_eq!(refused(O::Alltoall, (2, 3), 0, Some(&[1; 4])), text);
    let text = "the sum of counts is beyond any array";
    assert_eq!(refused(O::Gather, (1, 3), 0, Some(&[1, usize::MAX])), text);
    assert_eq!(refused_in_place(O::Allgather, 3, Some(&[1, 1])), "data has 3 elements, but counts say 2");
    assert_eq!(refused_in_place(O::Allgather, 1, Some(&[1])), one_each);
}

#[test]
fn a_root_that_is_no_rank_is_told_where_there_is_one() {
    use Operation as O;
    for (operation, root) in [(O::Reduce, 2), (O::Gather, usize::MAX), (O::Scatter, 2)] {
        let text = format!("there is no rank {root} to be the root; the ranks are 0 to 1");
        assert_eq!(refused(operation, (2, 2), root, None), text, "{operation}");
    }
    let caller = Caller { rank: 0, size: 2 };
    assert!(caller.user_op(O::Reduce, 2, 1, 1).unwrap_err().contains("there is no rank 2"));
    caller.user_op(O::Allreduce, 2, 1, 1).unwrap();
}

#[test]
fn what_a_rank_neither_sends_nor_receives_is_not_looked_at() {
    use Operation as O;
    let caller = Caller { rank: 1, size: 2 };
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
    // What is missing where it counts.
    let missing = |operation, rank| {
        let op = sum(operation);
        let arrays = Arrays::Apart(None, None);
        Collective { operation, root: 0, op, counts: None, arrays }
            .check(Caller { rank, size: 2 })
            .unwrap_err()
    };
    assert_eq!(
        (missing(O::Reduce, 0), missing(O::Scatter, 1)),
        ("send is missing".into(), "recv is missing".into())
    );
    assert_eq!(
        Collective::new(O::Allreduce, Arrays::None).check(caller).unwrap_err(),
        "it does not say how to combine elements"
    );
    assert_eq!(Collective::new(O::Gather, Arrays::None).check(caller).unwrap_err(), "its arrays are missing");
}

#[test]
fn rank_0_of_an_exscan_receives_nothing_but_its_arrays_are_equally_long() {
    let check = |rank, recv: &mut [u8]| {
        let arrays = Arrays::Apart(Some((&DATA[..2]).into()), Some(recv.into()));
        let collective = Collective { op: Some(Op::Sum), ..Collective::new(Operation::Exscan, arrays) };
        collective.check(Caller { rank, size: 2 }).map(|checked| checked.output().is_some())
    };
    assert_eq!((check(0, &mut [0; 2]), check(1, &mut [0; 2])), (Ok(false), Ok(true)));
    assert!(check(0, &mut [0; 3]).unwrap_err().contains("equally long"));
}

#[test]
fn elements_of_two_types_and_reductions_that_no_element_has_are_told() {
    let mut room = [0u32; 2];
    let arrays = Arrays::Apart(Some([0i32; 2].as_slice().into()), Some(room.as_mut_slice().into()));
    let caller = Caller { rank: 0, size: 2 };
    let text = Collective::new(Operation::Allgather, arrays).check(caller).unwrap_err();
    assert_eq!(text, "send holds i32, but recv u32; they must be of one type");
    let mut data = [0f32; 2];
    let arrays = Arrays::InPlace(data.as_mut_slice().into());
    let collective = Collective { op: Some(Op::BitAnd), ..Collective::new(Operation::Allreduce, arrays) };
    let text = collective.check(caller).unwrap_err();
    assert!(text.starts_with("elements of type f32 have no bit_and; they have sum, prod, min"), "{text}");
}
