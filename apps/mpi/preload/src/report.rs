//! Messages to the user, on the standard error stream.

use std::io::Write;

/// Prints a message to the user. It must be a single write, because the ranks of a program often
/// share one standard error stream.
pub(crate) fn report(words: &str) {
    // An error is ignored, because there is no other way to report it.
    let _ = std::io::stderr().write_all(format!("cool-mpi: {words}\n").as_bytes());
}
