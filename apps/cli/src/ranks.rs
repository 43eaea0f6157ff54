//! The commands of ranks and of the join server: `cool` starts its own program as the ranks of its
//! jobs, and as the join server of `cool up`.
//!
//! They are not part of the command line, so that help and suggestions do not show them. Each takes
//! one argument, which must be its task as JSON.

use crate::bench::rank::run_bench_rank;
use crate::error::Error;
use crate::up;
use std::ffi::OsString;

/// A rank of `cool bench`.
pub(crate) const BENCH_RANK: &str = "bench-rank";
/// A rank of `cool copy`.
pub(crate) const COPY_RANK: &str = "copy-rank";
/// A rank of `cool copy --stream`.
pub(crate) const STREAM_RANK: &str = "copy-stream-rank";
/// A rank of `cool ls` and the other requests to stores.
pub(crate) const STORE_RANK: &str = "store-rank";

/// The join server of `cool up`.
pub(crate) const JOIN_SERVER: &str = "join-server";

/// Runs as a rank or join server if the arguments, without the program's name, are one of these
/// commands and its task. Otherwise returns `None`.
pub(crate) fn run(arguments: &[OsString]) -> Option<Result<(), Error>> {
    let [command, task] = arguments else { return None };
    let task = || task.to_str().ok_or_else(|| Error::NotUtf8(task.display().to_string()));
    let failed = |error: cool_copy::RankError| Error::Rank(error.to_string());
    Some(match command.to_str()? {
        BENCH_RANK => task().and_then(|task| run_bench_rank(task).map_err(|e| Error::Rank(e.to_string()))),
        COPY_RANK => task().and_then(|task| cool_copy::run_copy_rank(task).map_err(failed)),
        STREAM_RANK => task().and_then(|task| cool_copy::run_stream_rank(task).map_err(failed)),
        STORE_RANK => task().and_then(|task| cool_copy::run_store_rank(task).map_err(failed)),
        JOIN_SERVER => task().and_then(up::run_join_server),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_commands_of_ranks_run_as_ranks() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        for line in [&["copy", "a"][..], &["copy-rank"], &["run", "copy-rank", "x"], &[]] {
            assert!(run(&words(line)).is_none(), "{line:?}");
        }
        let error = run(&words(&["copy-rank", "no task"])).unwrap().unwrap_err().to_string();
        assert!(error.starts_with("the argument is not a task"), "{error}");
    }
}
