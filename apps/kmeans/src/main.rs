//! `cool-kmeans`: the command around the library of the same name.

use cool_kmeans::commands;
use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::run(&commands::CommandLine::from_arguments(std::env::args_os())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // In one piece: whoever ends the job at the first failure must not cut it.
            let line = format!("cool-kmeans: {error}\n");
            eprint!("{line}");
            ExitCode::FAILURE
        }
    }
}
