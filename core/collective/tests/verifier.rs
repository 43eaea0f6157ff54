//! Checks that the verifier detects faults: in schedules written by hand, and, compared with the
//! interpreter, in schedules that are damaged at random.

mod shapes;

use cool_collective::{
    ActionId, ActionKind, Call, Layout, Operation, Plan, Program, Rank, RankBuffer, Schedule, ScheduleAction,
    Span, TransferId, VerifyError, compile, interpret, verify,
};
use proptest::prelude::*;
use shapes::config;

fn pair() -> Layout {
    Layout::new(&shapes::racks(&[1, 1], 1)).unwrap()
}

fn span(buffer: RankBuffer, offset: u64, len: u64) -> Span {
    Span { buffer, offset, len }
}

fn send(to: u32, transfer: u32, src: Span) -> ActionKind {
    ActionKind::Send { to: Rank(to), transfer: TransferId(transfer), src }
}

fn receive(from: u32, transfer: u32, dst: Span) -> ActionKind {
    ActionKind::Receive { from: Rank(from), transfer: TransferId(transfer), dst }
}

/// Returns the programs of two ranks for vectors of 8 bytes. Each action is listed with its
/// dependencies.
fn schedule(operation: Operation, programs: [&[(ActionKind, &[u32])]; 2]) -> Schedule {
    let program = |actions: &[(ActionKind, &[u32])]| Program {
        actions: actions
            .iter()
            .map(|(kind, after)| ScheduleAction {
                kind: *kind,
                after: after.iter().copied().map(ActionId).collect(),
            })
            .collect(),
        scratch: 8,
    };
    Schedule {
        call: Call::new(operation, Rank(0), 8, 4),
        programs: programs.map(|actions| Some(program(actions))).to_vec(),
    }
}

const IN: Span = Span { buffer: RankBuffer::Input, offset: 0, len: 8 };
const OUT: Span = Span { buffer: RankBuffer::Output, offset: 0, len: 8 };
const WORK: Span = Span { buffer: RankBuffer::Scratch, offset: 0, len: 8 };

fn refused(operation: Operation, programs: [&[(ActionKind, &[u32])]; 2]) -> VerifyError {
    verify(&schedule(operation, programs), &pair()).expect_err("it is wrong")
}

#[test]
fn a_right_schedule_by_hand_is_accepted() {
    let root: [(ActionKind, &[u32]); 3] = [
        (ActionKind::Copy { src: IN, dst: OUT }, &[]),
        (receive(1, 0, WORK), &[]),
        (ActionKind::Reduce { src: WORK, dst: OUT }, &[0, 1]),
    ];
    let proof = verify(&schedule(Operation::Reduce, [&root, &[(send(0, 0, IN), &[])]]), &pair()).unwrap();
    assert_eq!((proof.actions, proof.transfers, proof.scratch), (4, 1, 8));
}

#[test]
fn actions_that_do_not_wait_for_each_other_race() {
    let root: [(ActionKind, &[u32]); 3] = [
        (ActionKind::Copy { src: IN, dst: OUT }, &[]),
        (receive(1, 0, WORK), &[]),
        (ActionKind::Reduce { src: WORK, dst: OUT }, &[1]),
    ];
    let e = refused(Operation::Reduce, [&root, &[(send(0, 0, IN), &[])]]);
    let race = VerifyError::Race {
        rank: Rank(0),
        first: ActionId(0),
        second: ActionId(2),
        buffer: RankBuffer::Output,
    };
    assert_eq!(e, race);
}

#[test]
fn ranks_that_wait_for_each_other_are_a_deadlock() {
    let own = |rank: u64| (ActionKind::Copy { src: IN, dst: span(RankBuffer::Output, rank * 8, 8) }, &[][..]);
    let theirs = |rank: u64| span(RankBuffer::Output, 8 - rank * 8, 8);
    let first = [own(0), (receive(1, 1, theirs(0)), &[][..]), (send(1, 0, IN), &[1])];
    let second = [own(1), (receive(0, 0, theirs(1)), &[][..]), (send(0, 1, IN), &[1])];
    assert!(matches!(refused(Operation::Allgather, [&first, &second]), VerifyError::Deadlock { .. }));
    let polite = [own(1), (receive(0, 0, theirs(1)), &[][..]), (send(0, 1, IN), &[])];
    let eager = [own(0), (send(1, 0, IN), &[]), (receive(1, 1, theirs(0)), &[][..])];
    assert!(verify(&schedule(Operation::Allgather, [&eager, &polite]), &pair()).is_ok());
}

#[test]
fn messages_must_have_both_ends_of_one_length() {
    let transfer = |e| match e {
        VerifyError::Transfer { reason, .. } => reason,
        other => panic!("{other}"),
    };
    let half = span(RankBuffer::Output, 0, 4);
    let send_all: [(ActionKind, &[u32]); 1] = [(send(1, 0, OUT), &[])];
    let reason = transfer(refused(Operation::Bcast, [&send_all, &[(receive(0, 0, half), &[])]]));
    assert!(reason.contains("length"), "{reason}");
    let reason = transfer(refused(Operation::Bcast, [&send_all, &[]]));
    assert!(reason.contains("does not receive"), "{reason}");
    let reason = transfer(refused(Operation::Bcast, [&[], &[(receive(0, 0, OUT), &[])]]));
    assert!(reason.contains("not sent"), "{reason}");
}

#[test]
fn reading_unwritten_bytes_is_found() {
    let e = refused(Operation::Bcast, [&[(send(1, 0, WORK), &[])], &[(receive(0, 0, OUT), &[])]]);
    let unwritten =
        VerifyError::Unwritten { rank: Rank(0), action: ActionId(0), buffer: RankBuffer::Scratch, offset: 0 };
    assert_eq!(e, unwritten);
}

#[test]
fn a_value_counted_twice_is_named() {
    let root: [(ActionKind, &[u32]); 4] = [
        (ActionKind::Copy { src: IN, dst: OUT }, &[]),
        (receive(1, 0, WORK), &[]),
        (ActionKind::Reduce { src: WORK, dst: OUT }, &[0, 1]),
        (ActionKind::Reduce { src: WORK, dst: OUT }, &[2]),
    ];
    let e = refused(Operation::Reduce, [&root, &[(send(0, 0, IN), &[])]]).to_string();
    assert!(e.contains("rank 0 + 1 + 1"), "{e}");
}

#[test]
fn spans_outside_their_buffers_and_cut_elements_are_found() {
    for (bad, reason) in [
        (span(RankBuffer::Output, 4, 8), "outside"),
        (span(RankBuffer::Output, u64::MAX, 8), "outside"),
        (span(RankBuffer::Output, 0, 6), "cuts"),
        (span(RankBuffer::Input, 0, 8), "outside"),
    ] {
        let e =
            refused(Operation::Bcast, [&[(send(1, 0, OUT), &[])], &[(receive(0, 0, bad), &[])]]).to_string();
        assert!(e.contains(reason), "{e}");
    }
    let e = refused(Operation::Reduce, [&[(ActionKind::Copy { src: OUT, dst: IN }, &[])], &[]]).to_string();
    assert!(e.contains("writes to the input"), "{e}");
}

#[test]
fn leaving_a_barrier_early_is_found() {
    let nothing = span(RankBuffer::Input, 0, 0);
    let token = span(RankBuffer::Scratch, 0, 0);
    let e = refused(Operation::Barrier, [&[(receive(1, 0, token), &[])], &[(send(0, 0, nothing), &[])]]);
    assert_eq!(e, VerifyError::Barrier { rank: Rank(1), before: Rank(0) });
}

#[test]
fn every_dependency_is_needed_or_follows_from_others() {
    let layout = Layout::new(&shapes::interleaved(&shapes::racks(&[2, 3], 2), 3)).unwrap();
    let (mut races, mut implied) = (0, 0);
    for operation in Operation::ALL {
        for plan in Plan::fitting(operation) {
            // The empty shares of a barrier have more dependencies than the barrier needs.
            if operation == Operation::Barrier && plan.to_string().starts_with("flat:") {
                continue;
            }
            let call = Call::new(operation, Rank(3), 80, 8);
            let good = compile(&call, &layout, &plan.with_segment(16), |_| true).unwrap();
            for rank in 0..layout.size() {
                let actions = good.programs[rank].as_ref().map_or(0, |program| program.actions.len());
                for action in 0..actions {
                    let mut bad = good.clone();
                    let after = &mut bad.programs[rank].as_mut().unwrap().actions[action].after;
                    if after.is_empty() {
                        continue;
                    }
                    after.clear();
                    match verify(&bad, &layout) {
                        Err(VerifyError::Race { .. } | VerifyError::Barrier { .. }) => races += 1,
                        Err(e) => panic!("{e}"),
                        Ok(_) => implied += 1,
                    }
                }
            }
        }
    }
    assert_eq!(implied, 0, "of {races}");
}

fn add(left: &mut [u8], right: &[u8]) {
    for (l, r) in left.iter_mut().zip(right) {
        *l = l.wrapping_add(*r);
    }
}

/// Damages one of an action's spans.
fn damage(kind: &mut ActionKind, how: usize, by: u64) {
    let (first, second) = match kind {
        ActionKind::Send { src: span, .. } | ActionKind::Multicast { src: span, .. } => (span, None),
        ActionKind::Receive { dst: span, .. } | ActionKind::ReceiveMulticast { dst: span, .. } => {
            (span, None)
        }
        ActionKind::Reduce { src, dst } | ActionKind::Copy { src, dst } => (src, Some(dst)),
    };
    let span = if how < 3 { first } else { second.unwrap_or(first) };
    shift(span, how % 3, by);
}

fn shift(span: &mut Span, how: usize, by: u64) {
    match how {
        0 => span.offset = by * 8,
        1 => span.buffer = RankBuffer::Scratch,
        _ => span.buffer = RankBuffer::Output,
    }
}

proptest! {
    #![proptest_config(config(3000))]

    /// Every schedule that the verifier accepts must give the same bytes as the compiled one, in
    /// every order of events.
    #[test]
    fn every_accepted_schedule_is_right(
        operation in prop::sample::select(Operation::ALL.to_vec()),
        which in any::<prop::sample::Index>(),
        rank in any::<prop::sample::Index>(),
        action in any::<prop::sample::Index>(),
        (how, by, drop) in (0usize..6, 0u64..12, any::<bool>()),
        seed in any::<u64>(),
    ) {
        let layout = Layout::new(&shapes::racks(&[2, 1, 3], 2)).unwrap();
        let plans: Vec<Plan> = Plan::fitting(operation).collect();
        let plan = which.get(&plans).with_segment(16);
        let call = Call::new(operation, Rank(4), 40, 8);
        let good = compile(&call, &layout, &plan, |_| true).unwrap();
        let mut bad = good.clone();
        let program = bad.programs[rank.index(layout.size())].as_mut().unwrap();
        prop_assume!(!program.actions.is_empty());
        let index = action.index(program.actions.len());
        if drop {
            program.actions[index].after.clear();
        } else {
            damage(&mut program.actions[index].kind, how, by);
        }
        if verify(&bad, &layout).is_ok() {
            let bytes = |rank: Rank| match operation {
                Operation::Bcast if rank == call.root => call.bytes,
                _ => call.input_bytes(rank, layout.size()),
            };
            let inputs: Vec<Vec<u8>> = layout
                .ranks()
                .map(|rank| (0..bytes(rank)).map(|i| (i * 31 + u64::from(rank.0) * 97) as u8).collect())
                .collect();
            let expected = interpret(&good, &inputs, add, 0).unwrap();
            prop_assert_eq!(interpret(&bad, &inputs, add, seed).unwrap(), expected);
        }
    }
}
