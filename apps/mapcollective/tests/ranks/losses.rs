//! Survivors must reach the same result regardless of when other ranks are lost, and a later run
//! must resume from a checkpoint.

use cool::embedded::Embedded;
use cool_map::{Checkpoint, Error, MapEvent, Options, Partitions, Progress, Rows};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const RANKS: usize = 6;
const PARTITIONS: usize = 17;
const ITERATIONS: usize = 4;

/// The loss of a rank before a stage of an iteration; iteration 0 is loading.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Loss {
    rank: usize,
    iteration: usize,
    stage: &'static str,
}

const STAGES: [&str; 5] = ["map", "in map", "regroup", "combine", "end"];

/// Executes a job of at most `most` iterations as one rank. Returns the bits of the final state, or
/// `None` if the rank is lost.
fn job(
    comm: cool::Comm,
    losses: &[Loss],
    options: Options<'_>,
    file: Option<&Checkpoint>,
    most: usize,
) -> Option<Vec<u64>> {
    let rank = comm.rank();
    let is_now = |iteration, stage: &str| {
        losses.iter().any(|l| (l.rank, l.iteration, l.stage) == (rank, iteration, stage))
    };
    // Panics, as if the rank's process had died.
    let dies = |iteration, stage: &str| assert!(!is_now(iteration, stage), "lost");
    let mut parts = Partitions::new(PARTITIONS);
    let mut progress = Progress::new();
    if let Some(file) = file {
        progress.keep_in(file.clone());
    }
    let program = |job: &cool_map::Job<'_>| -> Result<(), Error> {
        dies(0, "load");
        job.deal(&mut parts, |index| Ok::<_, Error>(index as f64))?;
        let first = || Ok(vec![1.0f64; 5]);
        job.iterate(
            &mut progress,
            first,
            |_, done| done >= most,
            |state, iteration| {
                dies(iteration + 1, "map");
                let mapped = job.map(&mut parts, &Rows::<f64>::new(5, 1), |part, out| {
                    dies(iteration + 1, "in map");
                    for (row, number) in state.iter().enumerate() {
                        out.add(row, &[(number * 0.37 + *part + row as f64).sqrt()]);
                    }
                    Ok::<_, Error>(())
                })?;
                dies(iteration + 1, "regroup");
                let mine = job.regroup(mapped)?;
                dies(iteration + 1, "combine");
                let all = job.combine(mine)?;
                dies(iteration + 1, "end");
                Ok(all.iter().map(|(_, sums)| sums[0]).collect())
            },
        )
        .map(drop)
    };
    let done = catch_unwind(AssertUnwindSafe(|| cool_map::run(comm, options, program)));
    match done {
        Err(_) => None,
        Ok(done) => {
            done.expect("the job runs");
            Some(progress.state().expect("a state").iter().map(|sum: &f64| sum.to_bits()).collect())
        }
    }
}

fn with(losses: &[Loss], options: Options<'_>, file: Option<&Checkpoint>, most: usize) -> Vec<Vec<u64>> {
    let how = Embedded { ranks: RANKS, ranks_per_node: 2, racks: 2 };
    let results = cool::embedded::run(how, |comm| job(comm, losses, options, file, most));
    results.expect("agents start").into_iter().flatten().collect()
}

fn undisturbed() -> Vec<u64> {
    let how = Embedded { ranks: 1, ranks_per_node: 1, racks: 1 };
    let options = Options::default();
    let results = cool::embedded::run(how, |comm| job(comm, &[], options, None, ITERATIONS));
    results.expect("agents start").remove(0).expect("not lost")
}

#[test]
fn a_loss_at_any_stage_gives_the_same_result() {
    let whole = undisturbed();
    let options = Options { threads: 2, ..Options::default() };
    let mut losses = vec![Loss { rank: 1, iteration: 0, stage: "load" }];
    losses.extend(STAGES.iter().zip([0, 3, 5, 0, 2]).map(|(stage, rank)| Loss { rank, iteration: 2, stage }));
    for loss in losses {
        let found = with(&[loss], options, None, ITERATIONS);
        assert_eq!(found.len(), RANKS - 1, "{loss:?}");
        assert!(found.iter().all(|one| *one == whole), "{loss:?}: {found:?} is not {whole:?}");
    }
}

#[test]
fn a_single_survivor_reaches_the_same_result() {
    let (sizes, whole) = (Mutex::new(Vec::new()), undisturbed());
    let watch = |event: &MapEvent<'_>| {
        if let MapEvent::Lost { left, .. } = event {
            sizes.lock().expect("no panic").push(*left);
        }
    };
    let options = Options { threads: 1, watch: Some(&watch), ..Options::default() };
    let at = |rank, iteration, stage| Loss { rank, iteration, stage };
    let losses =
        [at(0, 1, "regroup"), at(2, 1, "end"), at(3, 2, "map"), at(4, 3, "combine"), at(5, 4, "in map")];
    assert_eq!(with(&losses, options, None, ITERATIONS), [whole]);
    let sizes = sizes.lock().expect("no panic");
    assert!(sizes.is_sorted_by(|a, b| a > b) && sizes.last() == Some(&1), "{sizes:?}");
}

#[test]
fn only_partitions_of_lost_ranks_are_loaded_again() {
    let loads: [AtomicUsize; PARTITIONS] = std::array::from_fn(|_| AtomicUsize::new(0));
    let how = Embedded { ranks: 4, ranks_per_node: 1, racks: 1 };
    cool::embedded::run(how, |comm| {
        let lost = comm.rank() == 2;
        let mut parts = Partitions::new(PARTITIONS);
        let mut times = 0;
        cool_map::run(comm, Options::default(), |job| -> Result<(), Error> {
            // Rank 2 may leave before this rank has completed `deal`, which then fails.
            times += 1;
            job.deal(&mut parts, |index| {
                loads[index].fetch_add(1, Ordering::Relaxed);
                Ok::<_, Error>(())
            })?;
            if lost {
                return Ok(());
            }
            job.agree(Ok::<_, Error>(()))
        })
        .expect("the job runs");
        assert_eq!(times, if lost { 1 } else { 2 });
    })
    .expect("agents start");
    let loads: Vec<usize> = loads.iter().map(|n| n.load(Ordering::Relaxed)).collect();
    // Rank 2 of 4 held partitions 8 to 11.
    assert_eq!(loads, [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1, 1]);
}

fn checkpointed(directory: &Path, most: usize) -> Vec<Vec<u64>> {
    let file = Checkpoint { path: directory.join("run"), run: "test".into(), resume: true };
    with(&[], Options::default(), Some(&file), most)
}

#[test]
fn a_later_run_resumes_from_the_checkpoint() {
    let (directory, whole) = (tempfile::tempdir().expect("a directory"), undisturbed());
    checkpointed(directory.path(), 2);
    assert!(checkpointed(directory.path(), ITERATIONS).iter().all(|state| *state == whole));
    // Resumes from the final checkpoint, after which no iteration is left.
    assert!(checkpointed(directory.path(), ITERATIONS).iter().all(|state| *state == whole));
}
