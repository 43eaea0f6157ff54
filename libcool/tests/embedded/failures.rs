//! Every failure names the rank, the operation and the reason. No call waits forever.

use cool::embedded::{Embedded, run};
use cool::{Comm, Error, FailureKind, Op, Operation};
use std::sync::Barrier;
use std::time::Duration;

fn two() -> Embedded {
    Embedded { ranks: 2, ranks_per_node: 1, racks: 2 }
}

/// Two ranks on nodes of their own, for which agents execute calls, and two ranks on one node,
/// which execute them themselves.
fn two_apart_and_together() -> [Embedded; 2] {
    [1, 2].map(|ranks_per_node| Embedded { ranks_per_node, ..two() })
}

/// Returns the message of an error about arguments. The call must not have reached other ranks.
fn argument(result: Result<(), Error>) -> String {
    match result {
        Err(e @ Error::Argument { .. }) => e.to_string(),
        other => panic!("{other:?} instead of an error about arguments"),
    }
}

/// Returns the kind and the ranks of a failed collective.
fn failure(result: Result<(), Error>) -> (FailureKind, Vec<usize>, String) {
    match result {
        Err(ref e @ Error::Collective { failure, ref ranks, .. }) => (failure, ranks.clone(), e.to_string()),
        other => panic!("{other:?} instead of a failed collective"),
    }
}

/// The messages themselves are tested next to the checks (src/call/collective/checks).
#[test]
fn wrong_arguments_are_reported_and_harmless() {
    let results = run(two(), |comm| {
        let (rank, mut three) = (comm.rank(), [0u8; 3]);
        let e = argument(comm.reduce(&[1u8; 2], &mut three, Op::Sum, rank));
        let text = "recv has 3 elements, but send has 2; they must have the same length";
        assert_eq!(e, format!("rank {rank}: reduce: {text}"));
        let e = argument(comm.gatherv(&[1u8], &mut three, &[1], 0));
        let text = "counts has 1 numbers, but must have 2, one for each rank";
        assert_eq!(e, format!("rank {rank}: gatherv: {text}"));
        // Nothing was sent, so the group still works.
        comm.barrier()
    });
    results.unwrap().into_iter().for_each(|r| r.unwrap());
}

#[test]
fn an_unsuitable_plan_is_reported_at_once_and_harmless() {
    let results = run(two(), |comm| {
        let rank = comm.rank();
        let e = argument(comm.set_plan(Operation::Bcast, "cool-q"));
        assert!(
            e.starts_with(&format!("rank {rank}: set_plan: there is no plan \"cool-q\"; there are: ")),
            "{e}"
        );
        let e = argument(comm.set_plan(Operation::Scan, "multicast"));
        assert!(e.contains("plan multicast cannot run scan") && e.contains("these can: cool-p-p"), "{e}");
        let e = argument(comm.set_plan(Operation::Bcast, &"rack:ring,".repeat(1_000)));
        assert!(e.contains("a text of 10000 bytes is no plan"), "{e}");
        comm.bcast(&mut [1u8], 0)
    });
    results.unwrap().into_iter().for_each(|r| r.unwrap());
}

/// Runs mismatching calls of two ranks, and checks that at least one of them gets an error with the
/// calls of both. A rank that completes its part early may wait for a message that is never sent,
/// until the group fails.
fn disagree(called: [&str; 2], call: impl Fn(&Comm) -> Result<(), Error> + Sync) {
    for how in two_apart_and_together() {
        let results = run(how.clone(), |comm| {
            call(&comm).and_then(|()| comm.recv(&mut [0u8], 1 - comm.rank(), None).map(drop))
        });
        let failures: Vec<_> = results.unwrap().into_iter().map(failure).collect();
        let named = |text: &str, rank: usize| text.contains(&format!("rank {rank} called {}", called[rank]));
        let names_both = |(failure, _, text): &(FailureKind, Vec<usize>, String)| {
            *failure == FailureKind::Mismatch && named(text, 0) && named(text, 1)
        };
        assert!(failures.iter().any(names_both), "{how:?}: {failures:?}");
    }
}

#[test]
fn ranks_with_different_sizes_get_an_error() {
    disagree(["bcast of 10 u8 from rank 0", "bcast of 11 u8 from rank 0"], |comm| {
        comm.bcast(&mut vec![0u8; 10 + comm.rank()], 0)
    });
}

#[test]
fn ranks_with_different_roots_get_an_error() {
    disagree(["bcast of 10 u8 from rank 0", "bcast of 10 u8 from rank 1"], |comm| {
        comm.bcast(&mut [0u8; 10], comm.rank())
    });
}

#[test]
fn ranks_with_different_operations_get_an_error() {
    disagree(["bcast of 1 u64 from rank 0", "allreduce of 1 u64 by sum"], |comm| match comm.rank() {
        0 => comm.bcast(&mut [0u64], 0),
        _ => comm.allreduce(&[1u64], &mut [0], Op::Sum),
    });
}

#[test]
fn a_late_mismatching_rank_gets_an_error() {
    let through = Barrier::new(2);
    disagree(["bcast of 1 u64 from rank 0", "allreduce of 1 u64 by sum"], |comm| {
        comm.barrier()?;
        match comm.rank() {
            0 => {
                let result = comm.bcast(&mut [0u64], 0);
                through.wait();
                result
            }
            _ => {
                through.wait();
                comm.allreduce(&[1u64], &mut [0], Op::Sum)
            }
        }
    });
}

#[test]
fn ranks_with_different_reductions_get_an_error() {
    disagree(["allreduce of 1 u64 by sum", "allreduce of 1 u64 by max"], |comm| {
        comm.allreduce(&[1u64], &mut [0], if comm.rank() == 0 { Op::Sum } else { Op::Max })
    });
}

#[test]
fn ranks_with_different_plans_or_counts_get_an_error() {
    let called =
        ["bcast of 10 u8 from rank 0 with plan cool-b-r", "bcast of 10 u8 from rank 0 with plan flat:chain"];
    disagree(called, |comm| {
        comm.set_plan(Operation::Bcast, if comm.rank() == 0 { "cool-b-r" } else { "flat:chain" })?;
        comm.bcast(&mut [0u8; 10], 0)
    });
    disagree(["gather of 1, 2 u8 to rank 0", "gather of 2, 1 u8 to rank 0"], |comm| {
        let counts = if comm.rank() == 0 { [1, 2] } else { [2, 1] };
        comm.gatherv(&vec![0u8; counts[comm.rank()]], &mut [0; 3], &counts, 0)
    });
}

#[test]
fn a_rank_that_leaves_is_named_to_waiting_ranks() {
    for ranks_per_node in [1, 3] {
        let results = run(Embedded { ranks: 3, ranks_per_node, racks: 2 }, |comm| match comm.rank() {
            1 => None,
            _ => Some(comm.allreduce(&[1], &mut [0], Op::Sum)),
        });
        for result in results.unwrap().into_iter().flatten() {
            let (failure, ranks, text) = failure(result);
            assert_eq!((failure, ranks), (FailureKind::Lost, vec![1]), "{text}");
        }
    }
}

#[test]
fn a_rank_that_does_not_join_is_named_after_the_timeout() {
    for how in two_apart_and_together() {
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        let release = std::sync::Mutex::new(Some(release));
        let results = run(how, |comm| {
            if comm.rank() == 1 {
                // Returns when rank 0 has its error.
                let _ = wait.lock().unwrap().recv();
                return None;
            }
            comm.set_timeout(Duration::from_millis(300));
            let result = comm.barrier();
            release.lock().unwrap().take();
            Some(result)
        });
        let result = results.unwrap().into_iter().flatten().next().unwrap();
        let (failure, ranks, text) = failure(result);
        assert_eq!((failure, ranks), (FailureKind::Timeout, vec![1]), "{text}");
        assert!(text.contains("barrier") && text.contains("300ms"), "{text}");
    }
}

#[test]
fn ranks_wait_for_a_rank_that_joins_late() {
    for how in two_apart_and_together() {
        let results = run(how, |comm| {
            let mut sum = [0];
            if comm.rank() == 1 {
                // Long enough for the agent to be notified.
                std::thread::sleep(Duration::from_millis(150));
            }
            comm.allreduce(&[comm.rank() as u64 + 1], &mut sum, Op::Sum).map(|()| sum[0])
        });
        for result in results.unwrap() {
            assert_eq!(result.unwrap(), 3);
        }
    }
}

#[test]
fn a_call_that_only_some_ranks_start_is_executed_by_agents() {
    for how in two_apart_and_together() {
        let results = run(how, |comm| {
            let mut sum = [0];
            for mine in 1..4 {
                match comm.rank() {
                    0 => comm.start().allreduce(&[mine], &mut sum, Op::Sum)?.wait()?,
                    _ => comm.allreduce(&[mine], &mut sum, Op::Sum)?,
                }
                assert_eq!(sum[0], 2 * mine);
            }
            comm.allreduce(&[1], &mut sum, Op::Sum).map(|()| sum[0])
        });
        for result in results.unwrap() {
            assert_eq!(result.unwrap(), 2);
        }
    }
}

#[test]
fn after_a_failure_every_later_call_fails() {
    for how in two_apart_and_together() {
        let results = run(how, |comm| {
            let first = comm.allreduce(&vec![0u8; 10 + comm.rank()], &mut vec![0; 10 + comm.rank()], Op::Sum);
            (first, comm.barrier(), comm.bcast(&mut [0u8], 0))
        });
        for (first, second, third) in results.unwrap() {
            failure(first);
            failure(second);
            failure(third);
        }
    }
}

#[test]
fn the_panic_of_a_rank_reaches_the_caller_when_all_have_ended() {
    let ended = std::sync::atomic::AtomicUsize::new(0);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        run(two(), |comm: Comm| {
            assert_ne!(comm.rank(), 1, "rank 1 has a bug");
            comm.barrier().unwrap_err();
            ended.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        })
    }));
    let panic = outcome.expect_err("a panic");
    assert!(panic.downcast_ref::<String>().is_some_and(|text| text.contains("rank 1 has a bug")));
    assert_eq!(ended.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn an_embedded_run_without_ranks_is_refused() {
    let e = run(Embedded { ranks: 0, ..two() }, |_| ()).unwrap_err();
    assert!(e.to_string().contains("at least one rank"), "{e}");
}
