//! What goes wrong has a name, everybody is told, and nothing hangs.

use super::messages::send;
use super::network::Network;
use super::{Collective, RACKS, RANKS};
use crate::{CallRequest, DEFAULT_PEER_TIMEOUT, TransferRequest};
use crate::{Failure, FailureKind};
use cool_machine::Duration;
use cool_types::Operation;
use cool_types::limits::BOUNCE_BYTES;

pub(super) const SIZE: u32 = RANKS.len() as u32;

fn network() -> Network {
    let mut network = Network::new(RACKS.len(), 9, 0, BOUNCE_BYTES);
    network.make_group(&Network::spec(1, &RANKS, &RACKS, true));
    network.make_group(&Network::spec(2, &RANKS, &RACKS, true));
    network
}

/// Rank by rank, what `calls` says; nothing for ranks without one.
pub(super) fn call(
    network: &mut Network,
    group: u64,
    token: u64,
    calls: impl Fn(u32) -> Option<(Operation, u32, u64)>,
) -> usize {
    let before = network.done.len();
    let mut made = 0;
    for (rank, node) in (0..SIZE).zip(RANKS) {
        if let Some((operation, root, count)) = calls(rank) {
            let request =
                Collective::new(group, SIZE, operation, root, count, 1).requests[rank as usize].clone();
            network.call(node, token + u64::from(rank), request, Duration::ZERO);
            made += 1;
        }
    }
    before + made
}

fn failure(network: &Network, token: u64) -> &Failure {
    network.done[&token].as_ref().unwrap_err()
}

/// The group cannot be used any more, and the other one can.
fn check_aftermath(network: &mut Network) {
    let done = call(network, 1, 1000, |_| Some((Operation::Barrier, 0, 0)));
    network.run(done);
    let done = call(network, 1, 2000, |_| Some((Operation::Barrier, 0, 0)));
    network.run(done);
    for rank in 0..u64::from(SIZE) {
        assert!(network.done[&(1000 + rank)].is_err());
        assert_eq!(failure(network, 2000 + rank).kind, FailureKind::Aborted);
    }
    let done = call(network, 2, 3000, |_| Some((Operation::Allreduce, 0, 10)));
    network.run(done);
    for rank in 0..u64::from(SIZE) {
        assert!(network.done[&(3000 + rank)].is_ok(), "{:?}", network.done[&(3000 + rank)]);
    }
}

fn check_mismatch(odd: u32, theirs: (Operation, u32, u64), mine: (Operation, u32, u64), words: [&str; 2]) {
    let mut network = network();
    let done = call(&mut network, 1, 0, |rank| Some(if rank == odd { mine } else { theirs }));
    network.run(done);
    assert!(network.now.as_nanos() < 10_000_000_000, "found only after {:?}", network.now);
    check_aftermath(&mut network);
    for rank in 0..SIZE {
        // Who only had to send was through before anyone could know; it learns with its next call.
        let call = network.done[&u64::from(rank)].as_ref().err();
        let failed = call.unwrap_or_else(|| failure(&network, 1000 + u64::from(rank)));
        assert_eq!(failed.kind, FailureKind::Mismatch, "{}", failed.message);
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
fn a_rank_that_does_not_come_is_named_by_everyone_who_waited() {
    for missing in [0, 2, 5] {
        let mut network = network();
        let done = call(&mut network, 1, 0, |r| (r != missing).then_some((Operation::Allreduce, 0, 10)));
        network.run(done);
        for token in (0..u64::from(SIZE)).filter(|t| *t != u64::from(missing)) {
            let failed = failure(&network, token);
            assert_eq!(
                (failed.kind, &failed.ranks[..]),
                (FailureKind::Timeout, &[missing][..]),
                "{}",
                failed.message
            );
            assert!(failed.message.contains(&format!("h{}", RANKS[missing as usize])), "{}", failed.message);
        }
        let seconds = network.now.as_nanos() / 1_000_000_000;
        assert!((60..70).contains(&seconds), "{seconds}");
        check_aftermath(&mut network);
    }
}

#[test]
fn a_node_that_dies_is_named_with_its_ranks() {
    let mut network = network();
    // Node 1 has ranks 3 and 4.
    let done =
        call(&mut network, 1, 0, |r| (!(3..=4).contains(&r)).then_some((Operation::Allgather, 0, 50_000)));
    network.run_for(Duration::from_millis(20));
    network.kill(1);
    network.run(done);
    for token in [0, 1, 2, 5, 6, 7, 8] {
        let failed = failure(&network, token);
        assert_eq!((failed.kind, &failed.ranks[..]), (FailureKind::Lost, &[3, 4][..]), "{}", failed.message);
        assert!(failed.message.contains("node h1"), "{}", failed.message);
    }
    assert!(network.now.as_nanos() < 1_000_000_000);
}

#[test]
fn a_node_that_falls_silent_is_named_in_time_by_all_who_wait() {
    for loss in [0, 200] {
        let mut network = network();
        network.loss = loss;
        let done = call(&mut network, 1, 0, |r| {
            (!(3..=4).contains(&r)).then_some((Operation::Allgather, 0, 50_000))
        });
        network.run_for(Duration::from_millis(20));
        let from = network.now;
        network.silence(1);
        network.run(done);
        for token in [0, 1, 2, 5, 6, 7, 8] {
            let failed = failure(&network, token);
            assert_eq!(
                (failed.kind, &failed.ranks[..]),
                (FailureKind::Lost, &[3, 4][..]),
                "{}",
                failed.message
            );
            assert!(failed.message.contains("node h1"), "{}", failed.message);
        }
        // All that moved before moves to its end.
        assert!(
            network.now - from < DEFAULT_PEER_TIMEOUT + Duration::from_secs(1),
            "{:?}",
            network.now - from
        );
    }
}

#[test]
fn a_node_that_is_cut_off_says_so_and_names_all_that_it_misses() {
    let mut network = network();
    let done =
        call(&mut network, 1, 0, |r| (3..=4).contains(&r).then_some((Operation::Allgather, 0, 50_000)));
    network.run_for(Duration::from_millis(700));
    // Of six nodes node 1, with ranks 3 and 4, hears nobody any more.
    [0, 2, 3, 4, 5].into_iter().for_each(|node| network.silence(node));
    network.run(done);
    for token in [3, 4] {
        let failed = failure(&network, token);
        assert_eq!((failed.kind, failed.ranks.len()), (FailureKind::Lost, 7), "{}", failed.message);
        assert!(failed.message.contains("node h1 is cut off from group 1"), "{}", failed.message);
        for node in ["h0", "h2", "h3", "h4", "h5"] {
            assert!(failed.message.contains(node), "{}", failed.message);
        }
    }
}

#[test]
fn nodes_that_are_lost_together_are_all_named() {
    let mut network = network();
    let done = call(&mut network, 1, 0, |r| (r == 0).then_some((Operation::Allgather, 0, 50_000)));
    network.run_for(Duration::from_millis(20));
    // Ranks 3 and 4, and 6.
    [1, 2].into_iter().for_each(|node| network.silence(node));
    network.run(done);
    let failed = failure(&network, 0);
    assert_eq!((failed.kind, &failed.ranks[..]), (FailureKind::Lost, &[3, 4, 6][..]), "{}", failed.message);
    assert!(failed.message.contains("nodes h1, h2 with ranks 3, 4, 6 are gone"), "{}", failed.message);
}

#[test]
fn ranks_that_wait_themselves_are_not_named_as_missing() {
    for in_message in [true, false] {
        let mut network = network();
        // Rank 6 is stopped, rank 0 waits for it for longer than the others wait for both.
        let patience = Duration::from_secs(90);
        if in_message {
            let receive = TransferRequest { sending: false, timeout: patience, ..send(0, 6, 0, vec![0; 8]) };
            network.transfer(RANKS[0], 0, receive, Duration::ZERO);
        } else {
            for rank in (0..SIZE).filter(|rank| *rank != 6) {
                let reduce =
                    Collective::new(1, SIZE, Operation::Reduce, 0, 10, 1).requests[rank as usize].clone();
                let reduce = CallRequest { timeout: Some(patience), ..reduce };
                network.call(RANKS[rank as usize], u64::from(rank), reduce, Duration::ZERO);
            }
        }
        let others = |r| ![0, 6].contains(&r);
        call(&mut network, 1, 100, |r| others(r).then_some((Operation::Allreduce, 0, 10)));
        network.run_for(Duration::from_secs(70));
        for rank in (0..SIZE).filter(|rank| others(*rank)) {
            let failed = failure(&network, 100 + u64::from(rank));
            assert_eq!(
                (failed.kind, &failed.ranks[..]),
                (FailureKind::Timeout, &[6][..]),
                "{}",
                failed.message
            );
        }
        assert_eq!(failure(&network, 0).ranks, [6]);
    }
}

/// As [`call`], one rank.
fn call_late(network: &mut Network, rank: u32, token: u64, patience: Duration, after: Duration) {
    let request = Collective::new(1, SIZE, Operation::Allreduce, 0, 10, 1).requests[rank as usize].clone();
    let request = CallRequest { timeout: Some(patience), ..request };
    network.call(RANKS[rank as usize], token, request, after);
}

#[test]
fn a_rank_that_comes_shortly_before_the_others_give_up_is_not_named_as_missing() {
    let mut network = network();
    let patience = Duration::from_millis(1500);
    // Rank 6 is stopped. Rank 0 comes so late that nobody has been told that it waits.
    for rank in (0..SIZE).filter(|rank| *rank != 6) {
        let after = Duration::from_millis(if rank == 0 { 1400 } else { 0 });
        call_late(&mut network, rank, rank.into(), patience, after);
    }
    network.run(SIZE as usize - 1);
    for rank in (0..SIZE).filter(|rank| *rank != 6) {
        let failed = failure(&network, rank.into());
        assert_eq!((failed.kind, &failed.ranks[..]), (FailureKind::Timeout, &[6][..]), "{}", failed.message);
    }
    assert!(network.now.as_nanos() < 1_600_000_000, "{:?}", network.now);
}

#[test]
fn a_rank_that_has_waited_long_before_it_is_stopped_is_named() {
    let mut network = network();
    let patience = Duration::from_secs(10);
    // All wait for rank 0; rank 6 does not come to the next call.
    for rank in 0..SIZE {
        let after = Duration::from_secs(if rank == 0 { 5 } else { 0 });
        call_late(&mut network, rank, rank.into(), patience, after);
    }
    network.run(SIZE as usize);
    for rank in (0..SIZE).filter(|rank| *rank != 6) {
        call_late(&mut network, rank, 100 + u64::from(rank), patience, Duration::ZERO);
    }
    network.run(2 * SIZE as usize - 1);
    for rank in (0..SIZE).filter(|rank| *rank != 6) {
        let failed = failure(&network, 100 + u64::from(rank));
        assert_eq!((failed.kind, &failed.ranks[..]), (FailureKind::Timeout, &[6][..]), "{}", failed.message);
    }
}

#[test]
fn a_receive_from_a_rank_that_waits_itself_names_the_one_at_the_end_of_the_line() {
    let mut network = network();
    let receive = |rank, from| TransferRequest { sending: false, ..send(rank, from, 0, vec![0; 8]) };
    for (rank, from) in [(0, 3), (3, 5), (5, 8)] {
        network.transfer(RANKS[rank as usize], rank.into(), receive(rank, from), Duration::ZERO);
    }
    network.run(3);
    for rank in [0, 3, 5] {
        let failed = failure(&network, rank);
        assert_eq!((failed.kind, &failed.ranks[..]), (FailureKind::Timeout, &[8][..]), "{}", failed.message);
    }
}

#[test]
fn who_cannot_be_asked_is_named_with_those_who_do_not_wait() {
    let mut network = network();
    let patience = Duration::from_millis(1500);
    for rank in (0..SIZE).filter(|rank| *rank != 6) {
        call_late(&mut network, rank, rank.into(), patience, Duration::ZERO);
    }
    network.run_for(Duration::from_millis(700));
    // Before anybody has been told that its ranks wait.
    network.silence(1);
    network.run(5);
    let failed = failure(&network, 0);
    assert_eq!(
        (failed.kind, &failed.ranks[..]),
        (FailureKind::Timeout, &[3, 4, 6][..]),
        "{}",
        failed.message
    );
}

#[test]
fn a_receive_from_any_rank_names_those_who_do_not_wait_themselves() {
    let mut network = network();
    for rank in (0..SIZE).filter(|rank| *rank != 6) {
        let receive =
            TransferRequest { sending: false, peer: None, ..send(rank, (rank + 1) % SIZE, 0, vec![0; 8]) };
        network.transfer(RANKS[rank as usize], u64::from(rank), receive, Duration::ZERO);
    }
    network.run(SIZE as usize - 1);
    for rank in (0..SIZE).filter(|rank| *rank != 6) {
        let failed = failure(&network, rank.into());
        assert_eq!((failed.kind, &failed.ranks[..]), (FailureKind::Timeout, &[6][..]), "{}", failed.message);
        assert!(failed.message.contains("look after rank 6 on h2"), "{}", failed.message);
    }
}

#[test]
fn who_first_sends_or_receives_after_a_failure_is_told_why_and_then_that_it_was_told() {
    let mut network = network();
    let done = call(&mut network, 1, 0, |r| (r == 0).then_some((Operation::Barrier, 0, 0)));
    network.run_for(Duration::from_millis(20));
    network.lose_rank(RANKS[6], 1, 6);
    network.run(done);
    network.run_for(Duration::from_millis(20));
    for token in [100, 101] {
        network.transfer(RANKS[1], token, send(1, 2, 0, vec![0; 8]), Duration::ZERO);
    }
    network.run(done + 2);
    assert_eq!(
        (failure(&network, 100).kind, failure(&network, 101).kind),
        (FailureKind::Lost, FailureKind::Aborted)
    );
    assert_eq!(failure(&network, 101).ranks, [6]);
}

#[test]
fn nobody_is_taken_for_gone_while_all_wait_for_a_rank_and_every_fifth_packet_is_lost() {
    let mut network = network();
    network.loss = 200;
    let late = |rank| if rank == 4 { Duration::from_secs(50) } else { Duration::ZERO };
    for (rank, node) in (0..SIZE).zip(RANKS) {
        let request =
            Collective::new(1, SIZE, Operation::Allreduce, 0, 10, 1).requests[rank as usize].clone();
        network.call(node, u64::from(rank), request, late(rank));
    }
    network.run(SIZE as usize);
    assert!(network.done.values().all(Result::is_ok), "{:?}", network.done);
    // Each of six nodes asks each other one twice a second or a little more often, and is answered.
    assert!(network.datagrams < 50 * 6 * 5 * 2 * 4, "{}", network.datagrams);
}

#[test]
fn a_rank_that_dies_in_a_call_or_before_it_is_named() {
    for before in [true, false] {
        let mut network = network();
        let done = call(&mut network, 1, 0, |rank| {
            (!before || rank != 6).then_some((Operation::Scatter, 0, 50_000))
        });
        // Its plan has been picked, and the first messages are under way.
        network.run_for(Duration::from_micros(300));
        network.lose_rank(RANKS[6], 1, 6);
        network.run(done);
        for (token, result) in &network.done {
            // Those that had what they needed were done before.
            let Err(failed) = result else { continue };
            assert_eq!(
                (failed.kind, &failed.ranks[..]),
                (FailureKind::Lost, &[6][..]),
                "{token}: {}",
                failed.message
            );
            assert!(failed.message.contains("its process ended"), "{}", failed.message);
        }
        assert!(network.done.values().any(Result::is_err));
    }
}

#[test]
fn a_rank_that_has_made_all_its_calls_may_go() {
    let mut network = network();
    let done = call(&mut network, 1, 0, |rank| (rank == 1).then_some((Operation::Bcast, 1, 1_000)));
    network.run(done);
    network.lose_rank(RANKS[1], 1, 1);
    let done = call(&mut network, 1, 0, |rank| (rank != 1).then_some((Operation::Bcast, 1, 1_000)));
    network.run(done);
    assert!(network.done.values().all(Result::is_ok));
}

#[test]
fn a_call_that_makes_no_sense_fails_for_all_and_names_its_rank() {
    let mut network = network();
    let done = call(&mut network, 1, 0, |r| Some((Operation::Bcast, if r == 5 { 77 } else { 0 }, 20_000)));
    network.run(done);
    assert_eq!(failure(&network, 5).kind, FailureKind::Invalid);
    assert!(network.done.values().filter_map(|r| r.as_ref().err()).all(|f| f.message.contains("rank 77")));
}

#[test]
fn a_group_that_one_node_has_released_fails_for_those_who_still_use_it() {
    let mut network = network();
    network.release_group(0, 1);
    let done = call(&mut network, 1, 0, |_| Some((Operation::Reduce, 1, 10)));
    network.run(done);
    let released: Vec<&Failure> = network.done.values().filter_map(|r| r.as_ref().err()).collect();
    assert!(released.iter().any(|f| f.message.contains("released")), "{released:?}");
    assert_eq!(failure(&network, 1).kind, FailureKind::Invalid);
}

#[test]
fn a_released_group_can_be_made_again_and_starts_anew() {
    let mut network = network();
    for round in 0..3 {
        let done = call(&mut network, 1, round * 100, |_| Some((Operation::Bcast, 0, 1_000)));
        network.run(done);
        (0..RACKS.len()).for_each(|node| network.release_group(node, 1));
        network.run_for(Duration::from_secs(1));
        let mut spec = Network::spec(1, &RANKS, &RACKS, true);
        spec.epoch += round as u32 + 1;
        network.make_group(&spec);
    }
    assert!(network.done.values().all(Result::is_ok), "{:?}", network.done);
}
