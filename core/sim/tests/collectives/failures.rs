//! Every failure has a name, is reported to every rank, and nothing hangs.

use super::support::{RANKS, SIZE, World, request, send, two_groups as world};
use cool_engine::testing::ReferenceCollective;
use cool_engine::{
    CallFailureKind, CallRequest, DEFAULT_PEER_TIMEOUT, GroupSpec, TransferKind, TransferRequest,
};
use cool_machine::Duration;
use cool_sim::collectives::FailedStep;
use cool_types::Operation;

/// Checks that the failed group cannot be used any more, and that the other group can.
fn check_aftermath(world: &mut World) {
    let done = world.call_each(1, 1000, |_| Some((Operation::Barrier, 0, 0)));
    world.run(done);
    let done = world.call_each(1, 2000, |_| Some((Operation::Barrier, 0, 0)));
    world.run(done);
    for rank in 0..u64::from(SIZE) {
        assert!(world.answers()[&(1000 + rank)].result.is_err());
        assert_eq!(world.failure(2000 + rank).kind, CallFailureKind::Aborted);
    }
    let done = world.call_each(2, 3000, |_| Some((Operation::Allreduce, 0, 10)));
    world.run(done);
    for rank in 0..u64::from(SIZE) {
        let answer = &world.answers()[&(3000 + rank)];
        assert!(answer.result.is_ok(), "{answer:?}");
    }
}

fn check_mismatch(odd: u32, theirs: (Operation, u32, u64), mine: (Operation, u32, u64), words: [&str; 2]) {
    let mut world = world();
    let done = world.call_each(1, 0, |rank| Some(if rank == odd { mine } else { theirs }));
    world.run(done);
    assert!(world.now().as_nanos() < 10_000_000_000, "found only after {:?}", world.now());
    check_aftermath(&mut world);
    for rank in 0..SIZE {
        // A rank that only had to send may have completed before the mismatch was detected. It
        // learns about it in its next call.
        let call = world.answers()[&u64::from(rank)].result.as_ref().err();
        let failed = call.unwrap_or_else(|| world.failure(1000 + u64::from(rank)));
        assert_eq!(failed.kind, CallFailureKind::Mismatch, "{}", failed.message);
        assert!(failed.ranks.contains(&odd), "{failed:?}");
        assert!(words.iter().all(|w| failed.message.contains(w)), "{}", failed.message);
        assert!(failed.message.contains(&format!("rank {odd} called")), "{}", failed.message);
    }
}

#[test]
fn ranks_that_call_different_operations_are_named() {
    for odd in [0, 2, 4, 8] {
        check_mismatch(
            odd,
            (Operation::Allreduce, 0, 10),
            (Operation::Barrier, 0, 0),
            ["allreduce of 10 u32", "barrier"],
        );
        check_mismatch(odd, (Operation::Bcast, 1, 10), (Operation::Gather, 1, 10), ["bcast", "gather"]);
    }
}

#[test]
fn ranks_that_call_with_different_sizes_or_roots_are_named() {
    for odd in [0, 3, 6] {
        check_mismatch(odd, (Operation::Bcast, 2, 10), (Operation::Bcast, 2, 11), ["10 u32", "11 u32"]);
        check_mismatch(
            odd,
            (Operation::Reduce, 0, 10),
            (Operation::Reduce, 0, 50_000),
            ["10 u32", "50000 u32"],
        );
        check_mismatch(
            odd,
            (Operation::Bcast, 2, 10),
            (Operation::Bcast, 3, 10),
            ["from rank 2", "from rank 3"],
        );
        check_mismatch(
            odd,
            (Operation::Scatter, 8, 10),
            (Operation::Scatter, 7, 10),
            ["from rank 8", "from rank 7"],
        );
    }
}

#[test]
fn an_absent_rank_is_named_by_all_that_waited() {
    for missing in [0, 2, 5] {
        let mut world = world();
        let done = world.call_each(1, 0, |r| (r != missing).then_some((Operation::Allreduce, 0, 10)));
        world.run(done);
        for token in (0..u64::from(SIZE)).filter(|t| *t != u64::from(missing)) {
            let failed = world.failure(token);
            assert_eq!(
                (failed.kind, &failed.ranks[..]),
                (CallFailureKind::Timeout, &[missing][..]),
                "{}",
                failed.message
            );
            assert!(failed.message.contains(&format!("h{}", RANKS[missing as usize])), "{}", failed.message);
        }
        let seconds = world.now().as_nanos() / 1_000_000_000;
        assert!((60..70).contains(&seconds), "{seconds}");
        check_aftermath(&mut world);
    }
}

#[test]
fn a_crashed_node_is_named_with_its_ranks() {
    let mut world = world();
    // Node 1 has ranks 3 and 4.
    let done =
        world.call_each(1, 0, |r| (!(3..=4).contains(&r)).then_some((Operation::Allgather, 0, 50_000)));
    world.run_for(Duration::from_millis(20));
    world.cluster.crash(1);
    world.run(done);
    for token in [0, 1, 2, 5, 6, 7, 8] {
        let failed = world.failure(token);
        assert_eq!(
            (failed.kind, &failed.ranks[..]),
            (CallFailureKind::Lost, &[3, 4][..]),
            "{}",
            failed.message
        );
        assert!(failed.message.contains("node h1"), "{}", failed.message);
    }
    assert!(world.now().as_nanos() < 1_000_000_000);
}

#[test]
fn a_silent_node_is_named_in_time_by_all_that_wait() {
    for loss in [0, 200] {
        let mut world = world();
        world.lose(f64::from(loss) / 1000.0);
        let done =
            world.call_each(1, 0, |r| (!(3..=4).contains(&r)).then_some((Operation::Allgather, 0, 50_000)));
        world.run_for(Duration::from_millis(20));
        let from = world.now();
        world.cluster.stop(1);
        world.run(done);
        for token in [0, 1, 2, 5, 6, 7, 8] {
            let failed = world.failure(token);
            assert_eq!(
                (failed.kind, &failed.ranks[..]),
                (CallFailureKind::Lost, &[3, 4][..]),
                "{}",
                failed.message
            );
            assert!(failed.message.contains("node h1"), "{}", failed.message);
        }
        // Work that was in progress before is completed.
        assert!(
            world.now() - from < DEFAULT_PEER_TIMEOUT + Duration::from_secs(1),
            "{:?}",
            world.now() - from
        );
    }
}

#[test]
fn a_node_that_only_tcp_reaches_is_alive_and_named_later() {
    let mut world = world();
    world.cluster.block_datagrams(1);
    let done = world.call_each(1, 0, |r| (!(3..=4).contains(&r)).then_some((Operation::Barrier, 0, 0)));
    world.run(done);
    for token in [0, 1, 2, 5, 6, 7, 8] {
        let failed = world.failure(token);
        assert_eq!(
            (failed.kind, &failed.ranks[..]),
            (CallFailureKind::Timeout, &[3, 4][..]),
            "{}",
            failed.message
        );
    }
    let named = world.failures().iter().any(|failed| failed.message.contains("not over UDP"));
    assert!(named, "{}", world.failure(0).message);
}

#[test]
fn an_isolated_node_reports_it_and_names_all_others() {
    let mut world = world();
    let done = world.call_each(1, 0, |r| (3..=4).contains(&r).then_some((Operation::Allgather, 0, 50_000)));
    world.run_for(Duration::from_millis(700));
    // Node 1, with ranks 3 and 4, receives nothing from the five other nodes any more.
    [0, 2, 3, 4, 5].into_iter().for_each(|node| world.cluster.stop(node));
    world.run(done);
    for token in [3, 4] {
        let failed = world.failure(token);
        assert_eq!((failed.kind, failed.ranks.len()), (CallFailureKind::Lost, 7), "{}", failed.message);
        assert!(failed.message.contains("node h1 seems to be cut off from group 1"), "{}", failed.message);
        for node in ["h0", "h2", "h3", "h4", "h5"] {
            assert!(failed.message.contains(node), "{}", failed.message);
        }
    }
}

#[test]
fn nodes_that_are_lost_together_are_all_named() {
    let mut world = world();
    let done = world.call_each(1, 0, |r| (r == 0).then_some((Operation::Allgather, 0, 50_000)));
    world.run_for(Duration::from_millis(20));
    // They have ranks 3, 4 and 6.
    [1, 2].into_iter().for_each(|node| world.cluster.stop(node));
    world.run(done);
    let failed = world.failure(0);
    assert_eq!(
        (failed.kind, &failed.ranks[..]),
        (CallFailureKind::Lost, &[3, 4, 6][..]),
        "{}",
        failed.message
    );
    assert!(failed.message.contains("nodes h1, h2 with ranks 3, 4, 6 are gone"), "{}", failed.message);
}

#[test]
fn ranks_that_wait_themselves_are_not_named_as_missing() {
    for in_message in [true, false] {
        let mut world = world();
        // Rank 6 is stopped. Rank 0 waits for it longer than the others wait for both.
        let patience = Duration::from_secs(90);
        if in_message {
            let receive = TransferRequest {
                kind: TransferKind::Receive,
                timeout: patience,
                ..send(0, 6, 0, vec![0; 8])
            };
            world.transfer(0, receive, Duration::ZERO);
        } else {
            for rank in (0..SIZE).filter(|rank| *rank != 6) {
                let reduce = request(1, Operation::Reduce, 0, 10, rank);
                let reduce = CallRequest { timeout: Some(patience), ..reduce };
                world.call(u64::from(rank), reduce, Duration::ZERO);
            }
        }
        let others = |r| ![0, 6].contains(&r);
        world.call_each(1, 100, |r| others(r).then_some((Operation::Allreduce, 0, 10)));
        world.run_for(Duration::from_secs(70));
        for rank in (0..SIZE).filter(|rank| others(*rank)) {
            let failed = world.failure(100 + u64::from(rank));
            assert_eq!(
                (failed.kind, &failed.ranks[..]),
                (CallFailureKind::Timeout, &[6][..]),
                "{}",
                failed.message
            );
        }
        assert_eq!(world.failure(0).ranks, [6]);
    }
}

/// Makes one rank call after some time.
fn call_late(world: &mut World, rank: u32, token: u64, patience: Duration, after: Duration) {
    let request = request(1, Operation::Allreduce, 0, 10, rank);
    let request = CallRequest { timeout: Some(patience), ..request };
    world.call(token, request, after);
}

#[test]
fn a_rank_that_calls_just_before_the_timeout_is_not_named() {
    let mut world = world();
    let patience = Duration::from_millis(1500);
    // Rank 6 is stopped. Rank 0 calls so late that no other node has been notified that it waits.
    for rank in (0..SIZE).filter(|rank| *rank != 6) {
        let after = Duration::from_millis(if rank == 0 { 1400 } else { 0 });
        call_late(&mut world, rank, rank.into(), patience, after);
    }
    world.run(SIZE as usize - 1);
    for rank in (0..SIZE).filter(|rank| *rank != 6) {
        let failed = world.failure(rank.into());
        assert_eq!(
            (failed.kind, &failed.ranks[..]),
            (CallFailureKind::Timeout, &[6][..]),
            "{}",
            failed.message
        );
    }
    assert!(world.now().as_nanos() < 1_600_000_000, "{:?}", world.now());
}

#[test]
fn a_stopped_rank_is_named_even_if_it_waited_long_before() {
    let mut world = world();
    let patience = Duration::from_secs(10);
    // All wait for rank 0. Rank 6 does not make the next call.
    for rank in 0..SIZE {
        let after = Duration::from_secs(if rank == 0 { 5 } else { 0 });
        call_late(&mut world, rank, rank.into(), patience, after);
    }
    world.run(SIZE as usize);
    for rank in (0..SIZE).filter(|rank| *rank != 6) {
        call_late(&mut world, rank, 100 + u64::from(rank), patience, Duration::ZERO);
    }
    world.run(2 * SIZE as usize - 1);
    for rank in (0..SIZE).filter(|rank| *rank != 6) {
        let failed = world.failure(100 + u64::from(rank));
        assert_eq!(
            (failed.kind, &failed.ranks[..]),
            (CallFailureKind::Timeout, &[6][..]),
            "{}",
            failed.message
        );
    }
}

#[test]
fn a_receive_names_the_rank_at_the_end_of_the_chain_of_waits() {
    let mut world = world();
    let receive =
        |rank, from| TransferRequest { kind: TransferKind::Receive, ..send(rank, from, 0, vec![0; 8]) };
    for (rank, from) in [(0, 3), (3, 5), (5, 8)] {
        world.transfer(rank.into(), receive(rank, from), Duration::ZERO);
    }
    world.run(3);
    for rank in [0, 3, 5] {
        let failed = world.failure(rank);
        assert_eq!(
            (failed.kind, &failed.ranks[..]),
            (CallFailureKind::Timeout, &[8][..]),
            "{}",
            failed.message
        );
    }
}

#[test]
fn unreachable_ranks_are_named_with_those_that_do_not_wait() {
    let mut world = world();
    let patience = Duration::from_millis(1500);
    for rank in (0..SIZE).filter(|rank| *rank != 6) {
        call_late(&mut world, rank, rank.into(), patience, Duration::ZERO);
    }
    world.run_for(Duration::from_millis(700));
    // Before any node has been notified that the ranks of node 1 wait.
    world.cluster.stop(1);
    world.run(5);
    let failed = world.failure(0);
    assert_eq!(
        (failed.kind, &failed.ranks[..]),
        (CallFailureKind::Timeout, &[3, 4, 6][..]),
        "{}",
        failed.message
    );
}

#[test]
fn a_receive_from_any_rank_names_those_that_do_not_wait() {
    let mut world = world();
    for rank in (0..SIZE).filter(|rank| *rank != 6) {
        let receive = TransferRequest {
            kind: TransferKind::Receive,
            peer: None,
            ..send(rank, (rank + 1) % SIZE, 0, vec![0; 8])
        };
        world.transfer(u64::from(rank), receive, Duration::ZERO);
    }
    world.run(SIZE as usize - 1);
    for rank in (0..SIZE).filter(|rank| *rank != 6) {
        let failed = world.failure(rank.into());
        assert_eq!(
            (failed.kind, &failed.ranks[..]),
            (CallFailureKind::Timeout, &[6][..]),
            "{}",
            failed.message
        );
        assert!(failed.message.contains("check rank 6 on h2"), "{}", failed.message);
    }
}

#[test]
fn the_first_message_after_a_failure_reports_the_cause() {
    let mut world = world();
    let done = world.call_each(1, 0, |r| (r == 0).then_some((Operation::Barrier, 0, 0)));
    world.run_for(Duration::from_millis(20));
    world.lose_rank(1, 6);
    world.run(done);
    world.run_for(Duration::from_millis(20));
    for token in [100, 101] {
        world.transfer(token, send(1, 2, 0, vec![0; 8]), Duration::ZERO);
    }
    world.run(done + 2);
    assert_eq!(
        (world.failure(100).kind, world.failure(101).kind),
        (CallFailureKind::Lost, CallFailureKind::Aborted)
    );
    assert_eq!(world.failure(101).ranks, [6]);
}

#[test]
fn no_node_is_declared_lost_at_twenty_percent_packet_loss() {
    let mut world = world();
    world.lose(0.2);
    let late = |rank| if rank == 4 { Duration::from_secs(50) } else { Duration::ZERO };
    for rank in 0..SIZE {
        let request = request(1, Operation::Allreduce, 0, 10, rank);
        world.call(rank.into(), request, late(rank));
    }
    world.run(SIZE as usize);
    assert!(world.all_well(), "{:?}", world.answers());
    // Each of six nodes pings each other one twice a second or slightly more often, and receives
    // replies.
    assert!(world.cluster.datagrams() < 50 * 6 * 5 * 2 * 4, "{}", world.cluster.datagrams());
}

#[test]
fn a_rank_that_ends_during_or_before_a_call_is_named() {
    for before in [true, false] {
        let mut world = world();
        let done =
            world.call_each(1, 0, |rank| (!before || rank != 6).then_some((Operation::Scatter, 0, 50_000)));
        // Its plan has been chosen, and the first messages are in flight.
        world.run_for(Duration::from_micros(300));
        world.lose_rank(1, 6);
        world.run(done);
        for (token, answer) in world.answers() {
            // Ranks that had received everything they needed have already completed the call.
            let Err(failed) = &answer.result else { continue };
            assert_eq!(
                (failed.kind, &failed.ranks[..]),
                (CallFailureKind::Lost, &[6][..]),
                "{token}: {}",
                failed.message
            );
            assert!(failed.message.contains("its process ended"), "{}", failed.message);
        }
        assert!(world.first_failure().is_some());
    }
}

#[test]
fn a_rank_that_has_made_all_its_calls_may_end() {
    let mut world = world();
    let done = world.call_each(1, 0, |rank| (rank == 1).then_some((Operation::Bcast, 1, 1_000)));
    world.run(done);
    world.lose_rank(1, 1);
    let done = world.call_each(1, 0, |rank| (rank != 1).then_some((Operation::Bcast, 1, 1_000)));
    world.run(done);
    assert!(world.all_well());
}

#[test]
fn an_invalid_call_fails_for_all_ranks_and_names_its_rank() {
    let mut world = world();
    let done = world.call_each(1, 0, |r| Some((Operation::Bcast, if r == 5 { 77 } else { 0 }, 20_000)));
    world.run(done);
    assert_eq!(world.failure(5).kind, CallFailureKind::Invalid);
    assert!(world.failures().iter().all(|failed| failed.message.contains("rank 77")));
}

#[test]
fn a_group_released_by_one_node_fails_for_the_others() {
    let mut world = world();
    world.release_on(1, [0]);
    let done = world.call_each(1, 0, |_| Some((Operation::Reduce, 1, 10)));
    world.run(done);
    let released = world.failures();
    assert!(released.iter().any(|f| f.message.contains("released")), "{released:?}");
    assert_eq!(world.failure(1).kind, CallFailureKind::Invalid);
}

#[test]
fn a_released_group_can_be_made_again_and_starts_anew() {
    let mut world = world();
    for round in 0..3 {
        let done = world.call_each(1, round * 100, |_| Some((Operation::Bcast, 0, 1_000)));
        world.run(done);
        world.cluster.release_group(1).unwrap();
        world.run_for(Duration::from_secs(1));
        let spec = world.spec(1);
        let spec = GroupSpec { epoch: round as u32 + 2, ..spec };
        world.cluster.make_group(&spec).unwrap();
    }
    assert!(world.all_well(), "{:?}", world.answers());
}

#[test]
fn missing_memory_fails_its_group_and_no_wrong_byte_arrives() {
    let mut failed = 0;
    for before in 0..16 {
        let mut world = world();
        world.cluster.fail_step(RANKS[1], FailedStep::Allocation, before);
        let operations = [Operation::Reduce, Operation::Allreduce, Operation::ReduceScatter];
        let collectives = operations.map(|operation| ReferenceCollective::new(1, SIZE, operation, 4, 900, 1));
        for (call, collective) in (0..).zip(&collectives) {
            for request in &collective.requests {
                let token = 100 * call + u64::from(request.rank);
                world.call(token, request.clone(), Duration::ZERO);
            }
            world.run((call as usize + 1) * SIZE as usize);
        }
        for (token, answer) in world.answers() {
            let (call, rank) = (token / 100, token % 100);
            match &answer.result {
                Ok(_) => collectives[call as usize].check_rank(rank as usize).unwrap(),
                Err(failure) => assert!(failure.message.contains("memory"), "{}", failure.message),
            }
        }
        failed += usize::from(world.cluster.has_step_failed());
        world.cluster.fail_no_step();
        let done = world.call_each(2, 1000, |_| Some((Operation::Allreduce, 0, 10)));
        world.run(done);
        assert!((1000..1000 + u64::from(SIZE)).all(|token| world.answers()[&token].result.is_ok()));
    }
    assert!(failed > 8, "only {failed} allocations have failed");
}
