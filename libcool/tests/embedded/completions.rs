//! Completion queues.

use cool::embedded::{Embedded, run};
use cool::{Comm, CompletionQueue, Error, FailureKind, Op};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn ranks(ranks: usize, body: impl Fn(&Comm) -> Result<(), Error> + Sync) {
    let how = Embedded { ranks, ranks_per_node: 2, racks: 2 };
    for (rank, result) in run(how, |comm| body(&comm)).unwrap().into_iter().enumerate() {
        result.unwrap_or_else(|e| panic!("rank {rank}: {e}"));
    }
}

#[test]
fn one_thread_gets_completions_of_many_communicators() {
    ranks(3, |comm| {
        let comms = [comm.dup()?, comm.dup()?, comm.dup()?];
        let mut sums = vec![vec![0u64; 5_000]; 90];
        let (first, more) = sums.split_at_mut(60);
        let queue = CompletionQueue::new();
        std::thread::scope(|scope| -> Result<(), Error> {
            let waits = scope.spawn(|| {
                let mut seen: Vec<usize> = Vec::new();
                while seen.len() < 90 {
                    let done = queue.next(PATIENCE).expect("the call that is added next");
                    done.result.unwrap();
                    seen.push(done.token);
                }
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..90));
            });
            for (i, sum) in first.iter_mut().chain(more).enumerate() {
                let call = comms[i % 3].start().allreduce(&vec![i as u64; 5_000], sum, Op::Sum)?;
                queue.add(call, i)?;
            }
            waits.join().unwrap();
            Ok(())
        })?;
        assert!(queue.is_empty() && queue.next(Duration::ZERO).is_none());
        drop(queue);
        assert!(sums.iter().enumerate().all(|(i, sum)| *sum == vec![3 * i as u64; 5_000]));
        Ok(())
    });
}

#[test]
fn a_queue_returns_messages_and_errors_within_the_timeout() {
    ranks(2, |comm| {
        comm.set_timeout(PATIENCE);
        let (other, mine, mut sum, mut room) = (comm.dup()?, [0u64; 3], [0u64; 3], [0u8; 5]);
        let queue = CompletionQueue::new();
        queue.add(other.start().recv(&mut room, None, None)?, "message")?;
        assert!(queue.next(Duration::from_millis(1)).is_none());
        comm.barrier()?;
        other.start().send(&[1u8, 2], 1 - comm.rank(), 9)?.wait()?;
        let came = queue.next(PATIENCE).expect("a message");
        let received = came.result?;
        assert_eq!(
            (came.token, received.source, received.tag, received.count),
            ("message", 1 - comm.rank(), 9, 2)
        );

        let length = 2 + comm.rank();
        queue.add(comm.start().allreduce(&mine[..length], &mut sum[..length], Op::Sum)?, "sum")?;
        let failed = queue.next(PATIENCE).expect("a failure");
        let e = failed.result.unwrap_err();
        assert!(matches!(e, Error::Collective { failure: FailureKind::Mismatch, .. }), "{e}");
        // A call that is complete before it is added is returned, too.
        let failing = comm.start().barrier()?;
        while !failing.is_done()? {}
        queue.add(failing, "late")?;
        assert_eq!(queue.next(PATIENCE).map(|done| (done.token, done.result.is_err())), Some(("late", true)));
        Ok(())
    });
}

#[test]
fn a_closed_queue_returns_completions_and_wakes_waiters() {
    ranks(2, |comm| {
        let mut room = [0u8; 1];
        let queue = CompletionQueue::new();
        queue.add(comm.start().recv(&mut room, None, Some(7))?, "never")?;
        std::thread::scope(|scope| -> Result<(), Error> {
            let waits = scope.spawn(|| {
                std::iter::from_fn(|| queue.next(Duration::MAX)).map(|done| done.token).collect::<Vec<_>>()
            });
            let barrier = comm.start().barrier()?;
            while !barrier.is_done()? {}
            queue.add(barrier, "barrier")?;
            queue.close();
            assert_eq!(waits.join().unwrap(), ["barrier"]);
            Ok(())
        })?;
        assert!(queue.is_closed() && queue.next(Duration::MAX).is_none() && queue.len() == 1);
        comm.barrier()
    });
}
