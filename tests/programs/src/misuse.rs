//! Test cases for libcool: calls that do not match, and calls that a test interrupts, so that tests
//! can check the errors that users see; and a few correct calls.
//!
//!     cool run -n 4 -- cool-misuse CASE
//!
//! CASE is `other-size`, `other-operation`, `barriers`, `duplicates`, `late`, `sum`, or
//! `broadcast PLAN TEXT`.

use cool::{Comm, Error, Op, Operation};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let case = std::env::args().nth(1).unwrap_or_default();
    match run(&case) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn run(case: &str) -> Result<(), Box<dyn std::error::Error>> {
    let comm = Comm::world()?;
    match case {
        "other-size" => {
            let mut data = vec![0u8; if comm.rank() == 2 { 4000 } else { 5000 }];
            comm.bcast(&mut data, 0)?;
        }
        "other-operation" => {
            let mut sum = [0.0f64; 10];
            if comm.rank() == 2 {
                comm.bcast(&mut sum, 0)?;
            } else {
                comm.allreduce(&[1.0; 10], &mut sum, Op::Sum)?;
            }
        }
        "sum" => {
            let mut sum = [0u64];
            comm.allreduce(&[comm.rank() as u64 + 1], &mut sum, Op::Sum)?;
            println!("rank {} of {}: {}", comm.rank(), comm.size(), sum[0]);
        }
        "barriers" => call_barriers_until_failure(&comm)?,
        "duplicates" => {
            let duplicates = (0..20).map(|_| comm.dup()).collect::<Result<Vec<_>, _>>()?;
            for (i, duplicate) in duplicates.iter().enumerate() {
                let mut data = vec![if comm.rank() == 0 { i as u8 } else { 0xff }; 200_000];
                duplicate.bcast(&mut data, 0)?;
                assert!(data.iter().all(|byte| *byte == i as u8), "data of communicator {i}");
            }
            call_barriers_until_failure(&comm)?;
        }
        "broadcast" => {
            let [plan, text] = [2, 3].map(|at| std::env::args().nth(at).unwrap_or_default());
            comm.set_plan(Operation::Bcast, &plan)?;
            let whole = text.repeat((1 << 20) / text.len());
            let mut data = if comm.rank() == 0 { whole.clone().into_bytes() } else { vec![0; whole.len()] };
            comm.bcast(&mut data, 0)?;
            assert_eq!(data, whole.as_bytes());
            println!("rank {} received it", comm.rank());
        }
        "late" => {
            for call in 0..5 {
                // This must be longer than the delays of ranks on a busy machine.
                if (call, comm.rank()) == (2, 2) {
                    std::thread::sleep(Duration::from_secs(2));
                }
                comm.barrier()?;
            }
        }
        other => {
            return Err(format!(
                "unknown case '{other}'; expected other-size, other-operation, barriers, duplicates, late, sum or broadcast"
            )
            .into());
        }
    }
    Ok(())
}

/// Prints `started` as soon as all ranks have joined, then calls barriers until one fails.
fn call_barriers_until_failure(comm: &Comm) -> Result<(), Error> {
    comm.barrier()?;
    if comm.rank() == 0 {
        println!("started");
        if let Err(e) = std::io::stdout().flush() {
            eprintln!("standard output: {e}");
        }
    }
    loop {
        comm.barrier()?;
    }
}
