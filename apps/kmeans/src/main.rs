//! The program `cool-kmeans`, a wrapper of the library of the same name.

use cool_kmeans::commands;
use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::run(&commands::CommandLine::from_arguments(std::env::args_os())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The line is printed by a single write, because it must not be cut if the launcher
            // kills the job at the first failure.
            let line = format!("cool-kmeans: {error}\n");
            eprint!("{line}");
            ExitCode::FAILURE
        }
    }
}
