//! An error at one rank must end the whole job with the message of that rank.

use cool::embedded::Embedded;
use cool_map::{Checkpoint, Error, Job, Keyed, Options, Partitions, Progress, Sum};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The error type of a program.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("no page {0}")]
    Page(usize),
    #[error(transparent)]
    Job(#[from] Error),
}

fn errors(options: Options<'_>, program: impl Fn(&Job<'_>) -> Result<(), Failed> + Sync) -> Vec<String> {
    let results = cool::embedded::run(Embedded::default(), |comm| cool_map::run(comm, options, &program));
    results
        .expect("agents start")
        .into_iter()
        .map(|result| result.expect_err("refused").to_string())
        .collect()
}

#[test]
fn a_partition_that_does_not_load_fails_every_rank() {
    let messages = errors(Options::default(), |job| {
        job.deal(&mut Partitions::new(8), |page| if page == 5 { Err(Failed::Page(page)) } else { Ok(()) })
    });
    assert_eq!(messages, ["rank 2: no page 5", "rank 2: no page 5", "no page 5", "rank 2: no page 5"]);
}

#[test]
fn a_failing_task_fails_every_rank_and_stops_its_own_rank() {
    let begun = AtomicUsize::new(0);
    let messages = errors(Options { threads: 1, ..Options::default() }, |job| {
        let mut pages = Partitions::new(400);
        job.deal(&mut pages, Ok::<_, Error>)?;
        job.map(&mut pages, &Keyed::<u8, Sum<u8>>::new(), |page, _| {
            begun.fetch_add(usize::from(*page < 100), Ordering::Relaxed);
            if *page == 7 { Err(Failed::Page(*page)) } else { Ok(()) }
        })
        .map(drop)
    });
    assert_eq!(messages, ["no page 7", "rank 0: no page 7", "rank 0: no page 7", "rank 0: no page 7"]);
    assert_eq!(begun.into_inner(), 8);
}

#[test]
fn a_checkpoint_that_cannot_be_written_fails_every_rank() {
    let file = Checkpoint { path: "/no/checkpoint".into(), run: String::new(), resume: false };
    let messages = errors(Options::default(), |job| {
        let mut progress = Progress::new();
        progress.keep_in(file.clone());
        let first = || Ok::<_, Error>(1u8);
        job.iterate(&mut progress, first, |_, done| done == 3, |state, _| Ok(state + 1))?;
        Ok(())
    });
    assert!(
        messages[0].starts_with("/no/checkpoint: ") && messages[3].starts_with("rank 0: /no/checkpoint: "),
        "{messages:?}"
    );
}
