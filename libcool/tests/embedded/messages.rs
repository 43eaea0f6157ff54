//! Messages from rank to rank, on one node and between nodes.

use cool::embedded::{Embedded, run};
use cool::{Comm, Error, FailureKind, Op, Received, wait_all};
use std::time::Duration;

/// Ranks 0 and 1 share a node, 2 and 3 another.
const RANKS: usize = 4;

fn ranks(body: impl Fn(&Comm) -> Result<(), Error> + Sync) {
    let how = Embedded { ranks: RANKS, ranks_per_node: 2, racks: 2 };
    for (rank, result) in run(how, |comm| body(&comm)).unwrap().into_iter().enumerate() {
        result.unwrap_or_else(|e| panic!("rank {rank}: {e}"));
    }
}

fn failure<T: std::fmt::Debug>(result: Result<T, Error>) -> (FailureKind, Vec<usize>, String) {
    match result.unwrap_err() {
        Error::Collective { failure, ranks, message, .. } => (failure, ranks, message),
        e => panic!("another error: {e}"),
    }
}

/// Lengths at which messages change their way: none, small, the longest that goes unasked, longer, much longer.
const LENGTHS: [usize; 6] = [0, 1, 1000, 8192, 8193, 300_000];

#[test]
fn messages_of_any_length_come_to_every_rank_from_every_rank() {
    ranks(|comm| {
        let (rank, n) = (comm.rank(), comm.size());
        for len in LENGTHS {
            let data: Vec<u64> = (0..len as u64).map(|i| i * 7 + rank as u64).collect();
            let sends: Vec<_> =
                (0..n).map(|dest| comm.start().send(&data, dest, len as u32)).collect::<Result<_, _>>()?;
            for source in (0..n).rev() {
                let mut got = vec![u64::MAX; len + 1];
                let received = comm.recv(&mut got, source, len as u32)?;
                assert_eq!(received, Received { source, tag: len as u32, count: len });
                assert!(got[..len].iter().zip(0..).all(|(x, i)| *x == i * 7 + source as u64));
                assert_eq!(got[len], u64::MAX);
            }
            wait_all(sends)?;
        }
        Ok(())
    });
}

#[test]
fn messages_are_received_in_the_order_in_which_they_were_sent_and_by_tag_before_it() {
    ranks(|comm| {
        let (rank, to, from) = (comm.rank(), (comm.rank() + 1) % RANKS, (comm.rank() + RANKS - 1) % RANKS);
        // Long and short ones by turns: on the way they overtake each other.
        let message = |i: usize, rank: usize| {
            vec![(i * RANKS + rank) as u32; if i.is_multiple_of(3) { 40_000 } else { 3 }]
        };
        let sent: Vec<_> = (0..60)
            .map(|i| comm.start().send(&message(i, rank), to, (i % 2) as u32))
            .collect::<Result<_, _>>()?;
        let mut room = vec![0u32; 40_000];
        // All with an odd number first, by their tag; then the others, by any.
        for i in (1..60).step_by(2).chain((0..60).step_by(2)) {
            let tag = (i % 2 == 1).then_some(1);
            let received = comm.recv(&mut room, from, tag)?;
            assert_eq!(room[..received.count], message(i, from));
        }
        wait_all(sent)
    });
}

#[test]
fn receives_from_any_rank_take_what_comes_and_calls_go_on_beside_them() {
    ranks(|comm| {
        let (rank, mut sum) = (comm.rank(), [0]);
        if rank == 2 {
            let mut sources = Vec::new();
            for _ in 0..10 * (RANKS - 1) {
                let mut value = [0u64];
                let got = comm.recv(&mut value, None, None)?;
                assert_eq!(value[0], 100 * got.source as u64 + u64::from(got.tag));
                sources.push(got.source);
            }
            sources.sort_unstable();
            assert!(
                [0, 1, 3].iter().all(|rank| sources.iter().filter(|source| *source == rank).count() == 10)
            );
            comm.allreduce(&[1], &mut sum, Op::Sum)?;
        } else {
            let call = comm.start().allreduce(&[1], &mut sum, Op::Sum)?;
            for tag in 0..10 {
                comm.send(&[100 * rank as u64 + u64::from(tag)], 2, tag)?;
            }
            call.wait()?;
        }
        assert_eq!(sum, [4]);
        assert!(!comm.last_plan().is_empty());
        Ok(())
    });
}

#[test]
fn many_messages_that_nobody_has_asked_for_wait_for_their_receives() {
    ranks(|comm| {
        let peer = (comm.rank() + 2) % RANKS;
        // Beyond the credit.
        let data = vec![comm.rank() as u8; 60_000];
        let sends: Vec<_> =
            (0..100).map(|tag| comm.start().send(&data, peer, tag)).collect::<Result<_, _>>()?;
        comm.barrier()?;
        let mut room = vec![0u8; 60_000];
        for tag in (0..100).rev() {
            comm.recv(&mut room, peer, tag)?;
            assert!(room.iter().all(|byte| *byte == peer as u8));
        }
        wait_all(sends)
    });
}

#[test]
fn messages_that_do_not_fit_are_told_with_ranks_and_tag() {
    for (to, count, text) in [
        (1, 5, "rank 0 sent 40 bytes of u64 with tag 9, but the receive of rank 1 from any rank with tag 9"),
        (2, 5, "takes at most 32 bytes of u64"),
        (2, 1, "takes at most 4 bytes of u32"),
    ] {
        ranks(|comm| {
            if comm.rank() == 0 {
                // Small ones are on their way before the other side finds that they do not fit.
                let _ = comm.send(&vec![0u64; count], to, 9);
            } else if comm.rank() == to {
                let result = match count {
                    1 => comm.recv(&mut [0u32], None, 9),
                    _ => comm.recv(&mut [0u64; 4], None, 9),
                };
                let (failure, ranks, message) = failure(result);
                assert_eq!((failure, ranks), (FailureKind::Mismatch, vec![0, to]), "{message}");
                assert!(message.contains(text), "{message}");
            }
            failure(comm.barrier());
            Ok(())
        });
    }
}

#[test]
fn a_rank_that_is_gone_or_does_not_come_is_named_by_what_waits_for_it() {
    for lost in [1, 3] {
        ranks(|comm| {
            if comm.rank() == lost {
                return comm.send(&[5u8], 0, 1);
            }
            if comm.rank() > 0 {
                return Ok(());
            }
            let mut got = [0u8];
            // What it sent before it left comes.
            comm.recv(&mut got, lost, 1)?;
            assert_eq!(got, [5]);
            let (failure, ranks, message) = failure(comm.recv(&mut got, lost, 1));
            assert_eq!((failure, ranks), (FailureKind::Lost, vec![lost]), "{message}");
            Ok(())
        });
    }
    ranks(|comm| {
        if comm.rank() > 0 {
            return Ok(());
        }
        let (failure, _, message) = failure(comm.recv(&mut [0u8], None, None));
        assert_eq!(failure, FailureKind::Lost, "{message}");
        Ok(())
    });
    let ended = std::sync::Barrier::new(RANKS);
    ranks(|comm| {
        if comm.rank() == 0 {
            comm.set_timeout(Duration::from_millis(100));
            let (failure, ranks, message) = failure(comm.recv(&mut [0u8], 2, 77));
            assert_eq!((failure, ranks), (FailureKind::Timeout, vec![2]), "{message}");
            assert!(
                message.starts_with("the receive of rank 0 from rank 2 with tag 77 (group 1)"),
                "{message}"
            );
        }
        ended.wait();
        Ok(())
    });
}

#[test]
fn a_rank_that_does_not_exist_is_told_and_does_no_harm() {
    ranks(|comm| {
        let text = |result: Result<(), Error>| result.unwrap_err().to_string();
        let e = text(comm.send(&[1], 9, 0));
        assert_eq!(e, format!("rank {}: send: there is no rank 9; the ranks are 0 to 3", comm.rank()));
        assert!(text(comm.recv(&mut [1], 9, 0).map(drop)).contains("recv: there is no rank 9"));
        comm.barrier()
    });
}
