//! Calls that are started and waited for later: many at the same time, in any order, as futures,
//! and dropped.

use cool::embedded::{Embedded, run};
use cool::{Comm, Error, FailureKind, Op, Pending, wait_all};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

fn ranks(ranks: usize, body: impl Fn(&Comm) -> Result<(), Error> + Sync) {
    let how = Embedded { ranks, ranks_per_node: 2, racks: 2 };
    for (rank, result) in run(how, |comm| body(&comm)).unwrap().into_iter().enumerate() {
        result.unwrap_or_else(|e| panic!("rank {rank}: {e}"));
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A minimal executor.
fn block_on<R>(future: impl Future<Output = R>) -> R {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(result) => return result,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Starts one small and one large sum, in turn.
fn start_many<'a>(comm: &Comm, results: &'a mut [Vec<u64>]) -> Result<Vec<Pending<'a>>, Error> {
    let start = |(i, result): (usize, &'a mut Vec<u64>)| {
        let mine = vec![(comm.rank() + i) as u64; result.len()];
        // `mine` is dropped here, long before the call is complete.
        comm.start().allreduce(&mine, result, Op::Sum)
    };
    results.iter_mut().enumerate().map(start).collect()
}

fn space() -> Vec<Vec<u64>> {
    (0..40).map(|i| vec![0; if i % 2 == 0 { 3 } else { 20_000 }]).collect()
}

fn check(comm: &Comm, results: &[Vec<u64>]) {
    let ranks: usize = (0..comm.size()).sum();
    for (i, result) in results.iter().enumerate() {
        assert!(result.iter().all(|r| *r == (ranks + i * comm.size()) as u64), "call {i}");
    }
}

#[test]
fn many_calls_are_under_way_and_are_waited_for_in_any_order() {
    ranks(5, |comm| {
        let mut results = space();
        wait_all(start_many(comm, &mut results)?.into_iter().rev())?;
        check(comm, &results);
        assert_eq!(comm.stats().calls, 40);
        Ok(())
    });
}

#[test]
fn calls_are_futures_for_any_executor() {
    ranks(4, |comm| {
        let mut results = space();
        let calls = start_many(comm, &mut results)?;
        block_on(async {
            for call in calls {
                call.await?;
            }
            comm.start().barrier()?.await
        })?;
        check(comm, &results);
        // Waiting and awaiting threads must not hinder each other.
        comm.barrier()
    });
}

#[test]
fn a_started_call_reports_whether_it_is_complete() {
    ranks(2, |comm| {
        let mut message = vec![comm.rank() as u8; 100_000];
        let call = comm.start().bcast(&mut message, 0)?;
        while !call.is_done()? {
            std::thread::yield_now();
        }
        call.wait()?;
        assert!(message.iter().all(|m| *m == 0));
        Ok(())
    });
}

#[test]
fn short_waits_return_the_result_once_complete() {
    ranks(3, |comm| {
        let (mut sum, mut average, mut came) = (vec![0u64; 50_000], [0f32; 3], [0u8; 4]);
        let mut calls = vec![
            comm.start().allreduce(&vec![1; 50_000], &mut sum, Op::Sum)?,
            comm.start().allreduce(&[comm.rank() as f32; 3], &mut average, Op::Average)?,
        ];
        let before = (comm.rank() + 2) % 3;
        let mut message = comm.start().recv(&mut came, before, 7)?;
        assert!(!message.wait_for(Duration::from_micros(200))?, "nobody has sent before the barrier");
        comm.barrier()?;
        let mut sent = comm.start().send(&[comm.rank() as u8; 2], (comm.rank() + 1) % 3, 7)?;
        for call in calls.iter_mut().chain([&mut message, &mut sent]) {
            while !call.wait_for(Duration::from_micros(200))? {}
            assert!(call.wait_for(Duration::ZERO)? && call.is_done()?);
        }
        let received = message.received()?;
        assert_eq!((received.source, received.tag, received.count), (before, 7, 2));
        wait_all(calls.into_iter().chain([sent]))?;
        assert_eq!((average, came), ([1.0; 3], [before as u8, before as u8, 0, 0]));
        assert!(sum.iter().all(|s| *s == 3));
        Ok(())
    });
}

#[test]
fn a_failed_call_is_reported_by_a_short_wait() {
    ranks(3, |comm| {
        comm.set_timeout(Duration::from_secs(20));
        let (mine, mut sum) = ([0u64; 3], [0u64; 3]);
        let length = 2 + comm.rank() % 2;
        let mut call = comm.start().allreduce(&mine[..length], &mut sum[..length], Op::Sum)?;
        let e = loop {
            match call.wait_for(Duration::from_micros(200)) {
                Ok(false) => {}
                Ok(true) => panic!("it cannot succeed"),
                Err(e) => break e,
            }
        };
        assert!(matches!(e, Error::Collective { failure: FailureKind::Mismatch, .. }), "{e}");
        assert!(call.wait_for(Duration::ZERO)?, "nothing is left to wait for");
        Ok(())
    });
}

#[test]
fn a_call_that_is_left_alone_is_done_all_the_same() {
    ranks(3, |comm| {
        for round in 0..200 {
            let mut sum = vec![0u64; 5_000];
            let call = comm.start().allreduce(&vec![round; 5_000], &mut sum, Op::Sum)?;
            if comm.rank() == 1 {
                drop(call);
            } else {
                call.wait()?;
                assert!(sum.iter().all(|s| *s == 3 * round));
            }
        }
        comm.barrier()
    });
}

#[test]
fn calls_of_a_rank_that_has_left_are_done_all_the_same() {
    for _ in 0..20 {
        ranks(3, |comm| {
            let mut sums = vec![vec![0u64; 5_000]; 50];
            let started = sums.iter_mut().map(|sum| comm.start().allreduce(&[1; 5_000], sum, Op::Sum));
            let calls = started.collect::<Result<Vec<_>, _>>()?;
            if comm.rank() == 1 {
                return Ok(());
            }
            wait_all(calls)?;
            assert!(sums.iter().flatten().all(|s| *s == 3));
            Ok(())
        });
    }
}

#[test]
fn threads_wait_for_calls_that_others_started() {
    ranks(2, |comm| {
        let mut results = space();
        let calls = start_many(comm, &mut results)?;
        std::thread::scope(|scope| {
            let waits: Vec<_> = calls.into_iter().map(|call| scope.spawn(|| call.wait())).collect();
            waits.into_iter().try_for_each(|wait| wait.join().unwrap())
        })?;
        check(comm, &results);
        Ok(())
    });
}

#[test]
fn a_call_with_a_short_time_fails_in_time() {
    let told = std::sync::Barrier::new(2);
    ranks(2, |comm| {
        if comm.rank() == 0 {
            let e = comm.start().timeout(Duration::from_millis(50)).barrier()?.wait().unwrap_err();
            assert!(
                matches!(&e, Error::Collective { failure: FailureKind::Timeout, ranks, .. } if *ranks == [1]),
                "{e}"
            );
        }
        told.wait();
        Ok(())
    });
}

#[test]
fn a_start_waits_for_room_and_is_refused_after_its_timeout() {
    let refused = std::sync::Barrier::new(2);
    ranks(2, |comm| {
        let mut calls = Vec::new();
        if comm.rank() == 0 {
            // Rank 1 joins last, so nothing is complete before.
            for _ in 0..1024 {
                calls.push(comm.start().barrier()?);
            }
            let e = comm.start().timeout(Duration::from_millis(20)).barrier().unwrap_err().to_string();
            assert!(e.contains("1024 calls are pending, and none was completed within 20ms"), "{e}");
        }
        refused.wait();
        // Rank 0 starts the 1025th call, for which it waits until rank 1 has joined the first one.
        while calls.len() < 1100 {
            calls.push(comm.start().barrier()?);
        }
        wait_all(calls)
    });
}

/// A program may be able to complete its receives only after a call in which it waits.
#[test]
fn a_late_rank_completes_calls_of_a_rank_with_1024_receives() {
    ranks(2, |comm| {
        let mut places = vec![[0u8]; 1024];
        let mut receives = Vec::new();
        if comm.rank() == 0 {
            for (place, tag) in places.iter_mut().zip(0..) {
                receives.push(comm.start().recv(place, 1, tag)?);
            }
        } else {
            // Long enough for rank 0 to involve its agent.
            std::thread::sleep(Duration::from_millis(150));
        }
        comm.barrier()?;
        for turn in 1..5u64 {
            let (mut data, mut sum) = ([if comm.rank() == 1 { turn } else { 0 }; 3], [0]);
            comm.bcast(&mut data, 1)?;
            assert_eq!(data, [turn; 3]);
            comm.allreduce(&[turn], &mut sum, Op::Sum)?;
            assert_eq!(sum, [2 * turn]);
        }
        for tag in (0..1024).filter(|_| comm.rank() == 1) {
            comm.send(&[1u8], 0, tag)?;
        }
        wait_all(receives)
    });
}

#[test]
fn ranks_may_wait_in_a_call_that_others_start() {
    const LONG: usize = 50_000;
    ranks(2, |comm| {
        let root = comm.rank() == 0;
        comm.barrier()?;
        for (turn, length) in (1..40u64).zip([1, 1000, LONG].into_iter().cycle()) {
            let (mut first, mut second) = (vec![u64::from(root) * turn; length], vec![0; length]);
            second.fill(if root { turn + 100 } else { 0 });
            // The root returns without waiting for the other rank.
            let started = match (root, turn % 4) {
                (true, 0 | 1) | (false, 2 | 3) => {
                    comm.bcast(&mut first, 0)?;
                    None
                }
                _ => Some(comm.start().bcast(&mut first, 0)?),
            };
            comm.bcast(&mut second, 0)?;
            assert!(second.iter().all(|found| *found == turn + 100), "turn {turn}");
            started.map_or(Ok(()), Pending::wait)?;
            assert!(first.iter().all(|found| *found == turn), "turn {turn}");
        }
        comm.barrier()?;
        assert_eq!(comm.last_plan(), "segment", "later calls are executed in the segment");
        Ok(())
    });
}

#[test]
fn a_rank_may_wait_in_calls_that_another_started_long_before() {
    let all_started = std::sync::Barrier::new(2);
    ranks(2, |comm| {
        let mut sums = vec![[0u64]; 1024];
        if comm.rank() == 0 {
            let started: Vec<_> = (1..)
                .zip(&mut sums)
                .map(|(turn, sum)| comm.start().allreduce(&[turn], sum, Op::Sum))
                .collect::<Result<_, Error>>()?;
            all_started.wait();
            wait_all(started)?;
        } else {
            all_started.wait();
            for (turn, sum) in (1..).zip(&mut sums) {
                comm.allreduce(&[turn], sum, Op::Sum)?;
            }
        }
        assert!((1..).zip(&sums).all(|(turn, sum)| *sum == [2 * turn]), "{sums:?}");
        Ok(())
    });
}

#[test]
fn a_root_may_be_10000_calls_ahead_of_a_rank_that_waits() {
    let all_complete = std::sync::Barrier::new(2);
    ranks(2, |comm| {
        if comm.rank() == 0 {
            for turn in 0..10_000u64 {
                comm.start().bcast(&mut [turn], 0)?.wait()?;
            }
            all_complete.wait();
        } else {
            all_complete.wait();
            for turn in 0..10_000 {
                let mut found = [u64::MAX];
                comm.bcast(&mut found, 0)?;
                assert_eq!(found, [turn]);
            }
        }
        Ok(())
    });
}

#[test]
fn in_place_results_equal_those_of_two_arrays() {
    ranks(5, |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        let mine: Vec<u32> = (0..size * 7).map(|i| (rank * 100 + i) as u32).collect();
        let (mut apart, mut data) = (vec![0; mine.len()], mine.clone());
        comm.allreduce(&mine, &mut apart, Op::Sum)?;
        comm.allreduce_in_place(&mut data, Op::Sum)?;
        assert_eq!(apart, data, "allreduce");

        let mut data = mine.clone();
        comm.reduce_in_place(&mut data, Op::Sum, 1)?;
        assert_eq!(data, if rank == 1 { apart.clone() } else { mine.clone() }, "reduce");

        let mut data = mine.clone();
        comm.scan(&mine, &mut apart, Op::Max)?;
        comm.scan_in_place(&mut data, Op::Max)?;
        assert_eq!(apart, data, "scan");

        let mut data = mine.clone();
        comm.exscan(&mine, &mut apart, Op::Sum)?;
        comm.exscan_in_place(&mut data, Op::Sum)?;
        assert_eq!(data, if rank == 0 { mine.clone() } else { apart.clone() }, "exscan");

        let mut data = mine.clone();
        comm.alltoall(&mine, &mut apart)?;
        comm.alltoall_in_place(&mut data)?;
        assert_eq!(apart, data, "alltoall");

        let mut data = mine.clone();
        comm.allgather(&mine[rank * 7..][..7], &mut apart)?;
        comm.allgather_in_place(&mut data)?;
        assert_eq!(apart, data, "allgather");
        Ok(())
    });
}
