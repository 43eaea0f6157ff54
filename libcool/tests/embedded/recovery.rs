//! Recovery after ranks are lost.

use cool::embedded::{Embedded, run};
use cool::{Comm, Error, FailureKind, Op};
use std::sync::Barrier;
use std::time::Duration;

const RANKS: usize = 6;

fn ranks(body: impl Fn(Comm) -> Result<(), Error> + Sync) {
    // With all ranks on one node, they execute calls themselves.
    for ranks_per_node in [2, RANKS] {
        let how = Embedded { ranks: RANKS, ranks_per_node, racks: 2 };
        for (rank, result) in run(how, &body).unwrap().into_iter().enumerate() {
            result.unwrap_or_else(|e| panic!("{ranks_per_node} ranks a node, rank {rank}: {e}"));
        }
    }
}

fn failure(result: Result<(), Error>) -> (FailureKind, Vec<usize>, String) {
    match result.unwrap_err() {
        Error::Collective { failure, ranks, message, .. } => (failure, ranks, message),
        e => panic!("another error: {e}"),
    }
}

fn sum(comm: &Comm, mine: u64) -> Result<u64, Error> {
    let mut all = [0];
    comm.allreduce(&[mine], &mut all, Op::Sum)?;
    Ok(all[0])
}

#[test]
fn survivors_get_a_working_group_and_agree_on_lost_ranks() {
    // A group that fails ends all its calls, so a rank leaves only once all have its call's result.
    let completed = Barrier::new(4);
    ranks(|comm| {
        let rank = comm.rank();
        if [1, 4].contains(&rank) {
            return Ok(());
        }
        assert!(sum(&comm, 1).unwrap_err().is_loss());
        let agreed = comm.agree(0b111 & !(1 << (rank / 2)))?;
        assert_eq!((agreed.flags, agreed.gone), (0, vec![1, 4]));
        let rest = comm.shrink()?;
        drop(comm);
        assert_eq!((rest.gone(), rest.size()), (&[1, 4][..], 4));
        assert_eq!(rest.rank(), [0, 2, 3, 5].iter().position(|r| *r == rank).unwrap());
        assert_eq!(sum(&rest, rank as u64)?, 10);
        completed.wait();
        // A second recovery.
        if rest.rank() == 0 {
            return Ok(());
        }
        let (kind, ranks, text) = failure(sum(&rest, 1).map(drop));
        assert_eq!((kind, ranks), (FailureKind::Lost, vec![0]), "{text}");
        let rest = rest.shrink()?;
        assert_eq!((rest.gone(), sum(&rest, rank as u64)?), (&[0][..], 10));
        Ok(())
    });
}

#[test]
fn waiting_ranks_continue_after_a_rank_is_lost() {
    ranks(|comm| {
        if comm.rank() == 3 {
            // Takes part in the first call of the others, and ends while they wait for it.
            comm.barrier()?;
            assert_eq!(comm.agree(5)?.flags, 5);
            return Ok(());
        }
        comm.barrier()?;
        assert_eq!(comm.agree(7)?.flags, 5);
        assert_eq!(comm.agree(7)?.gone, [3]);
        Ok(())
    });
}

#[test]
fn a_group_without_failures_can_be_shrunk_too() {
    ranks(|comm| {
        let same = comm.shrink()?;
        assert_eq!((same.gone().len(), same.rank(), same.size()), (0, comm.rank(), RANKS));
        assert_eq!((sum(&same, 1)?, sum(&comm, 1)?), (6, 6));
        Ok(())
    });
}

#[test]
fn a_rank_that_is_too_late_counts_as_lost() {
    let (begun, decided, told) = (Barrier::new(RANKS), Barrier::new(RANKS), Barrier::new(RANKS));
    ranks(|comm| {
        begun.wait();
        // The shortest timeout applies, which is that of rank 0. The other ranks call earlier, even
        // on a busy machine.
        comm.set_timeout(Duration::from_secs(if comm.rank() == 0 { 5 } else { 60 }));
        if comm.rank() == 5 {
            decided.wait();
            let e = comm.shrink().unwrap_err().to_string();
            assert!(e.starts_with("rank 5: shrink:") && e.contains("rank 5 counts as lost"), "{e}");
            told.wait();
            return Ok(());
        }
        let rest = comm.shrink()?;
        assert_eq!(rest.gone(), [5]);
        rest.set_timeout(Duration::from_secs(60));
        rest.barrier()?;
        decided.wait();
        told.wait();
        rest.barrier()
    });
}

#[test]
fn revoked_groups_fail_everywhere_and_name_the_rank() {
    ranks(|comm| {
        if comm.rank() == 2 {
            comm.revoke()?;
        }
        for result in [comm.barrier(), comm.barrier()] {
            let (failure, ranks, text) = failure(result);
            assert_eq!((failure, ranks), (FailureKind::Revoked, vec![2]), "{text}");
            let node = &comm.place(2).unwrap().name;
            assert!(text.starts_with(&format!("rank 2 on {node} has revoked group 1")), "{text}");
        }
        let rest = comm.shrink()?;
        assert_eq!(sum(&rest, 1)?, 6);
        Ok(())
    });
}

#[test]
fn survivors_with_different_calls_get_an_error_and_may_retry() {
    ranks(|comm| {
        let mismatch = |e: Error| {
            let e = e.to_string();
            assert!(e.contains("survivors of group 1 must make the same calls"), "{e}");
        };
        // The first call determines the kind of recovery, and the other rank gets an error.
        let rest = match comm.rank() {
            0 => comm.shrink().or_else(|e| {
                mismatch(e);
                comm.agree(0)?;
                comm.shrink()
            })?,
            _ => {
                comm.agree(0).map(drop).unwrap_or_else(mismatch);
                comm.shrink()?
            }
        };
        assert_eq!(rest.size(), RANKS);
        Ok(())
    });
}
