//! `cool`: the command around the library of the same crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    cool_cli::run()
}
