//! Execution of jobs in the tests.

use cool::embedded::Embedded;
use cool_map::{Error, Job, Options};
use std::fmt::Debug;

/// The number of ranks and threads of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) ranks: usize,
    pub(crate) ranks_per_node: usize,
    pub(crate) threads: usize,
}

/// One to eight ranks, on separate or shared nodes.
pub(crate) const SPREADS: [Spread; 6] = [
    Spread { ranks: 1, ranks_per_node: 1, threads: 1 },
    Spread { ranks: 2, ranks_per_node: 1, threads: 3 },
    Spread { ranks: 3, ranks_per_node: 3, threads: 1 },
    Spread { ranks: 5, ranks_per_node: 2, threads: 2 },
    Spread { ranks: 7, ranks_per_node: 1, threads: 1 },
    Spread { ranks: 8, ranks_per_node: 4, threads: 2 },
];

/// Runs a program on embedded ranks. Returns the result of each rank, in order.
pub(crate) fn each_rank<T: Send>(
    spread: Spread,
    program: impl Fn(&Job<'_>) -> Result<T, Error> + Sync,
) -> Vec<T> {
    let how = Embedded { ranks: spread.ranks, ranks_per_node: spread.ranks_per_node, racks: 2 };
    let options = Options { threads: spread.threads, part: 4 << 10, ..Options::default() };
    let results = cool::embedded::run(how, |comm| cool_map::run(comm, options, &program));
    results.expect("agents start").into_iter().map(|result| result.expect("the job runs")).collect()
}

/// Runs a program on embedded ranks. Returns the result, which must be the same at all ranks.
pub(crate) fn all_ranks<T: Send + Debug + PartialEq>(
    spread: Spread,
    program: impl Fn(&Job<'_>) -> Result<T, Error> + Sync,
) -> T {
    let mut results = each_rank(spread, program);
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{results:?}");
    results.swap_remove(0)
}
