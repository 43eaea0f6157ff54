//! Messages between ranks, on one node and on several.

use cool::embedded::{Embedded, run};
use cool::{Comm, Error, FailureKind, Op, Probed, Received, wait_all};
use std::time::Duration;

/// Ranks 0 and 1 share a node, and so do 2 and 3.
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

/// Numbers of elements around the limits of the protocol: none, few, the most that are sent without
/// a grant, more, and many.
const LENGTHS: [usize; 6] = [0, 1, 1000, 8192, 8193, 300_000];

#[test]
fn messages_of_any_length_arrive_between_all_ranks() {
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
fn messages_keep_their_order_per_tag() {
    ranks(|comm| {
        let (rank, to, from) = (comm.rank(), (comm.rank() + 1) % RANKS, (comm.rank() + RANKS - 1) % RANKS);
        // Long and short messages alternate, because short ones may overtake long ones in transit.
        let message = |i: usize, rank: usize| {
            vec![(i * RANKS + rank) as u32; if i.is_multiple_of(3) { 40_000 } else { 3 }]
        };
        let sent: Vec<_> = (0..60)
            .map(|i| comm.start().send(&message(i, rank), to, (i % 2) as u32))
            .collect::<Result<_, _>>()?;
        let mut room = vec![0u32; 40_000];
        // First all messages with an odd number, by tag; then the others, with any tag.
        for i in (1..60).step_by(2).chain((0..60).step_by(2)) {
            let tag = (i % 2 == 1).then_some(1);
            let received = comm.recv(&mut room, from, tag)?;
            assert_eq!(room[..received.count], message(i, from));
        }
        wait_all(sent)
    });
}

#[test]
fn receives_from_any_rank_work_next_to_collectives() {
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
fn unexpected_messages_wait_for_their_receives() {
    ranks(|comm| {
        let peer = (comm.rank() + 2) % RANKS;
        // More than the credit.
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
fn long_messages_fail_the_receive_other_types_the_group() {
    // To the same node and to another one, short and long.
    for (to, count) in [(1, 5), (2, 5), (1, 50_000), (2, 50_000)] {
        ranks(|comm| {
            if comm.rank() == 0 {
                comm.send(&vec![0u64; count], to, 9)?;
                comm.send(&[7u64], to, 9)?;
            } else if comm.rank() == to {
                let (failure, ranks, message) = failure(comm.recv(&mut [0u64; 4], None, 9));
                assert_eq!((failure, ranks), (FailureKind::Truncated, vec![0, to]), "{message}");
                let bytes = 8 * count;
                let sent =
                    format!("rank 0 sent {bytes} bytes of u64 with tag 9, but the receive of rank {to}");
                assert!(message.starts_with(&sent), "{message}");
                assert!(message.contains("accepts at most 32 bytes of u64"), "{message}");
                let mut next = [0u64];
                comm.recv(&mut next, 0, 9)?;
                assert_eq!(next, [7]);
            }
            comm.barrier()
        });
    }
    ranks(|comm| {
        if comm.rank() == 0 {
            // Small messages have been sent before the receiver detects the mismatch.
            let _ = comm.send(&[0u64], 2, 9);
        } else if comm.rank() == 2 {
            let (failure, ranks, message) = failure(comm.recv(&mut [0u32], None, 9));
            assert_eq!((failure, ranks), (FailureKind::Mismatch, vec![0, 2]), "{message}");
            assert!(message.contains("accepts at most 4 bytes of u32"), "{message}");
        }
        failure(comm.barrier());
        Ok(())
    });
}

#[test]
fn probes_synchronous_sends_and_cancelled_receives_work() {
    ranks(|comm| {
        let (rank, left, right) = (comm.rank(), (comm.rank() + 3) % RANKS, (comm.rank() + 1) % RANKS);
        assert_eq!(comm.iprobe(None, 5)?, None);
        comm.barrier()?;
        let sent = comm.start().ssend(&vec![rank as u16; 10 * rank], right, 5)?;
        let found = Probed { source: left, tag: 5, bytes: 20 * left };
        assert_eq!(comm.probe(None, None)?, found);
        assert_eq!(comm.iprobe(left, 5)?, Some(found));
        assert!(!sent.is_done()? || comm.iprobe(left, 5)?.is_some());
        // One receive without a message, and one with.
        let (mut nothing, mut data) = ([0u16; 30], vec![0u16; 10 * left]);
        assert_eq!(comm.start().recv(&mut nothing, left, 6)?.cancel()?, None);
        let received = comm.start().recv(&mut data, left, 5)?.cancel()?;
        assert_eq!(received, Some(Received { source: left, tag: 5, count: 10 * left }));
        assert!(data.iter().all(|element| *element == left as u16));
        sent.wait()?;
        let e = comm.start().barrier()?.cancel().unwrap_err().to_string();
        assert!(e.contains("only a receive can be cancelled"), "{e}");
        Ok(())
    });
}

#[test]
fn a_lost_or_late_rank_is_named_to_its_peers() {
    for lost in [1, 3] {
        ranks(|comm| {
            if comm.rank() == lost {
                return comm.send(&[5u8], 0, 1);
            }
            if comm.rank() > 0 {
                return Ok(());
            }
            let mut got = [0u8];
            // A message that the rank sent before it left is received.
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
fn a_nonexistent_rank_is_reported_and_harmless() {
    ranks(|comm| {
        let text = |result: Result<(), Error>| result.unwrap_err().to_string();
        let e = text(comm.send(&[1], 9, 0));
        assert_eq!(e, format!("rank {}: send: there is no rank 9; the ranks are 0 to 3", comm.rank()));
        assert!(text(comm.recv(&mut [1], 9, 0).map(drop)).contains("recv: there is no rank 9"));
        comm.barrier()
    });
}
