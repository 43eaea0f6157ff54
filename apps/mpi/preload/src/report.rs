//! Messages to the user, on the standard error stream.

use std::io::Write;

/// Says something to the user, in one write: all ranks of a program often share one standard error.
pub(crate) fn report(words: &str) {
    // Whoever cannot hear it cannot be told that either.
    let _ = std::io::stderr().write_all(format!("cool-mpi: {words}\n").as_bytes());
}
