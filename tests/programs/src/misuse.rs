//! Uses libcool as it should not be used, or waits to be disturbed, so that tests can see what users are told; or only
//! shows that ranks have found each other.
//!
//!     cool run -n 4 -- cool-misuse other-size|other-operation|barriers|duplicates|late|sum|tell PLAN TEXT

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
        "barriers" => barriers_until_disturbed(&comm)?,
        "duplicates" => {
            let duplicates = (0..20).map(|_| comm.dup()).collect::<Result<Vec<_>, _>>()?;
            for (i, duplicate) in duplicates.iter().enumerate() {
                let mut data = vec![if comm.rank() == 0 { i as u8 } else { 0xff }; 200_000];
                duplicate.bcast(&mut data, 0)?;
                assert!(data.iter().all(|byte| *byte == i as u8), "of communicator {i}");
            }
            barriers_until_disturbed(&comm)?;
        }
        "tell" => {
            let [plan, text] = [2, 3].map(|at| std::env::args().nth(at).unwrap_or_default());
            comm.set_plan(Operation::Bcast, &plan)?;
            let whole = text.repeat((1 << 20) / text.len());
            let mut data = if comm.rank() == 0 { whole.clone().into_bytes() } else { vec![0; whole.len()] };
            comm.bcast(&mut data, 0)?;
            assert_eq!(data, whole.as_bytes());
            println!("rank {} heard it", comm.rank());
        }
        "late" => {
            for call in 0..5 {
                // Longer than ranks are late by chance, on a machine that is busy.
                if (call, comm.rank()) == (2, 2) {
                    std::thread::sleep(Duration::from_secs(2));
                }
                comm.barrier()?;
            }
        }
        other => {
            return Err(format!(
                "no such case: '{other}'; expected other-size, other-operation, barriers, duplicates, late, sum or tell"
            )
            .into());
        }
    }
    Ok(())
}

/// Says when it runs, then goes on until a call fails.
fn barriers_until_disturbed(comm: &Comm) -> Result<(), Error> {
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
