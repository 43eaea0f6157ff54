//! Groups that are created at run time.

use cool::embedded::{Embedded, run};
use cool::{Comm, Error, FailureKind, Op, Operation};
use std::time::Duration;

fn ranks(ranks: usize, body: impl Fn(&Comm) -> Result<(), Error> + Sync) {
    let how = Embedded { ranks, ranks_per_node: 2, racks: 2 };
    for (rank, result) in run(how, |comm| body(&comm)).unwrap().into_iter().enumerate() {
        result.unwrap_or_else(|e| panic!("rank {rank}: {e}"));
    }
}

/// Returns the ranks of the parent that are in a group, in the order of the group.
fn members(group: &Comm, parents_rank: usize) -> Result<Vec<u64>, Error> {
    let mut all = vec![0; group.size()];
    group.allgather(&[parents_rank as u64], &mut all)?;
    Ok(all)
}

#[test]
fn ranks_of_one_color_form_a_group_in_the_order_of_their_keys() {
    ranks(7, |comm| {
        let rank = comm.rank();
        let color = (rank != 3).then_some(rank as u64 % 2);
        let part = comm.split(color, if rank == 5 { -9 } else { 0 })?;
        match (&part, rank) {
            (None, 3) => {}
            (Some(part), _) if rank % 2 == 0 => assert_eq!(members(part, rank)?, [0, 2, 4, 6]),
            (Some(part), _) => assert_eq!(members(part, rank)?, [5, 1]),
            (None, _) => panic!("rank {rank} is in no group"),
        }
        // Calls of both groups run concurrently.
        if let Some(part) = part {
            for round in 0..20u64 {
                let (mut within, mut over_all) = ([0], [0]);
                let first = part.start().allreduce(&[round], &mut within, Op::Sum)?;
                let second = comm.start().allreduce(&[round], &mut over_all, Op::Sum)?;
                second.wait()?;
                first.wait()?;
                assert_eq!((within[0], over_all[0]), (round * part.size() as u64, round * 7));
            }
        } else {
            for round in 0..20u64 {
                comm.allreduce(&[round], &mut [0], Op::Sum)?;
            }
        }
        comm.barrier()
    });
}

#[test]
fn subsets_and_copies_are_groups_of_their_own() {
    ranks(5, |comm| {
        let rank = comm.rank();
        comm.set_plan(Operation::Allgather, "flat:ring")?;
        let copy = comm.dup()?;
        assert_eq!(members(&copy, rank)?, [0, 1, 2, 3, 4]);
        assert_eq!(copy.last_plan(), "flat:ring");
        assert_ne!(copy.group(), comm.group());
        match comm.subset(&[4, 0, 3])? {
            Some(subset) => assert_eq!(members(&subset, rank)?, [4, 0, 3]),
            None => assert!([1, 2].contains(&rank)),
        }
        let wrong = |ranks: &[usize]| match comm.subset(ranks) {
            Err(e @ Error::Argument { .. }) => e.to_string(),
            other => panic!("{other:?}"),
        };
        assert!(wrong(&[5]).contains("there is no rank 5"));
        assert!(wrong(&[1, 0, 1]).contains("rank 1 is listed twice"));
        comm.barrier()
    });
}

#[test]
fn many_groups_are_created_split_and_released() {
    ranks(4, |comm| {
        let mut kept = Vec::new();
        for round in 0..12 {
            let half = comm.split(Some(comm.rank() as u64 / 2), 0)?.unwrap();
            let alone = half.split(Some(half.rank() as u64), 0)?.unwrap();
            assert_eq!((half.size(), alone.size()), (2, 1));
            alone.barrier()?;
            if round % 3 == 0 {
                kept.push(half);
            }
        }
        kept.iter().try_for_each(Comm::barrier)
    });
}

#[test]
fn a_rank_that_does_not_join_a_new_group_is_named() {
    let begun = std::sync::Barrier::new(3);
    ranks(3, |comm| {
        begun.wait();
        if comm.rank() == 2 {
            // Takes part in the first step of split, but not in the second one.
            comm.allgather(&[1i64, 0, 0], &mut [0i64; 9])?;
        } else {
            // Both calls begin within the timeout, even on a busy machine.
            comm.set_timeout(Duration::from_secs(5));
            let e = comm.split(Some(0), 0).unwrap_err().to_string();
            let text = format!("rank {}: split: the agent at", comm.rank());
            assert!(e.starts_with(&text) && e.contains("rank 2 of part 0 of group 1"), "{e}");
            assert!(e.contains("did not join in time"), "{e}");
        }
        comm.set_timeout(Duration::from_secs(60));
        comm.barrier()
    });
}

#[test]
fn the_death_of_a_rank_affects_only_its_groups() {
    let told = std::sync::Barrier::new(4);
    ranks(4, |comm| {
        let pair = comm.split(Some(comm.rank() as u64 % 2), 0)?.unwrap();
        if comm.rank() == 3 {
            // Rank 3 leaves its pair, as a rank that died would.
            drop(pair);
        } else if comm.rank() == 1 {
            let e = pair.barrier().unwrap_err();
            assert!(
                matches!(&e, Error::Collective { failure: FailureKind::Lost, ranks, .. } if *ranks == [1]),
                "{e}"
            );
        } else {
            pair.barrier()?;
        }
        comm.barrier()?;
        told.wait();
        Ok(())
    });
}
