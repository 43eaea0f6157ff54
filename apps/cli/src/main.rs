//! The program `cool`. Its code is in the library of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    cool_cli::run()
}
