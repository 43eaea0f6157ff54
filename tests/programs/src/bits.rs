//! Shows that sums of floating-point numbers have the same bits in every run. Calls every operation
//! that combines elements several times, each time with another rank first, and prints a hash of
//! the result of each rank.
//!
//!     cool run -n N -- cool-bits RUNS ELEMENTS [PLAN..]
//!
//! Each PLAN is forced for the operations that can use it; `default` lets COOL choose.

use cool::{Comm, Error, Op, Operation};
use std::process::ExitCode;
use std::time::Duration;

const OPERATIONS: [Operation; 5] =
    [Operation::Reduce, Operation::Allreduce, Operation::ReduceScatter, Operation::Scan, Operation::Exscan];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = || arguments.next().and_then(|text| text.parse::<usize>().ok());
    let (Some(runs), Some(elements)) = (number(), number()) else {
        return Err("expected cool-bits RUNS ELEMENTS [PLAN..]".into());
    };
    let plans: Vec<String> = arguments.collect();
    let comm = Comm::world()?;
    for operation in OPERATIONS {
        for plan in &plans {
            match comm.set_plan(operation, if plan == "default" { "" } else { plan }) {
                Ok(()) => {}
                // The plan cannot execute this operation.
                Err(Error::Argument { .. }) => continue,
                Err(e) => return Err(e.into()),
            }
            let first = bits(&comm, operation, elements, 0)?;
            for run in 1..runs {
                if bits(&comm, operation, elements, run)? != first {
                    return Err(format!(
                        "{operation} by {plan}: the bits of run {run} differ from those of run 0"
                    )
                    .into());
                }
            }
            println!("{operation} by {plan} ({}): {first:016x} {runs} times", comm.last_plan());
        }
    }
    Ok(())
}

/// Executes an operation once. Returns a hash of all bits of this rank's result.
fn bits(comm: &Comm, operation: Operation, elements: usize, run: usize) -> Result<u64, Error> {
    let (rank, size) = (comm.rank(), comm.size());
    // The magnitudes are very different, because each order of summation must round differently.
    let term = |i: usize| ((rank * 31 + i) as f32).sin() * 10f32.powi((rank % 7) as i32);
    let part = if operation == Operation::ReduceScatter { elements.div_ceil(size) } else { elements };
    let send: Vec<f32> =
        (0..if operation == Operation::ReduceScatter { part * size } else { part }).map(term).collect();
    let mut recv = vec![0.0; part];
    // In each run, another rank is first.
    std::thread::sleep(Duration::from_millis(((rank + 5 * run) % size) as u64));
    match operation {
        Operation::Reduce => comm.reduce(&send, &mut recv, Op::Sum, size / 2)?,
        Operation::ReduceScatter => comm.reduce_scatter(&send, &mut recv, Op::Sum)?,
        Operation::Scan => comm.scan(&send, &mut recv, Op::Sum)?,
        Operation::Exscan => comm.exscan(&send, &mut recv, Op::Sum)?,
        _ => comm.allreduce(&send, &mut recv, Op::Sum)?,
    }
    // FNV-1a.
    let bytes = recv.iter().flat_map(|x| x.to_bits().to_le_bytes());
    Ok(bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    }))
}
