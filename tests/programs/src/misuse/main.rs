//! Test cases for the bounds between users: calls of libcool that do not match or that a test
//! interrupts, and attacks of a user on agents and on the controller. A few cases are correct
//! calls.
//!
//!     cool run -n 4 -- cool-misuse CASE
//!
//! Attacks end after a number of seconds and print their counts as JSON.

mod agent_attacks;
mod controller_attacks;

use agent_attacks::{FrameFlood, RegionHoarder};
use clap::{Parser, Subcommand};
use controller_attacks::{ConnectionHoarder, LongJob, SignalFlood};
use cool::{Comm, Error, Op, Operation};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Cases of wrong and hostile programs of a user
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    case: Case,
}

#[derive(Subcommand)]
enum Case {
    /// Rank 2 broadcasts an array of another length
    OtherSize,
    /// Rank 2 broadcasts while the others call allreduce
    OtherOperation,
    /// Prints the sum of all ranks' numbers, a correct call
    Sum,
    /// Calls barriers until one fails
    Barriers,
    /// Broadcasts on 20 communicators, then calls barriers until one fails
    Duplicates,
    /// Broadcasts a text of 1 MiB by a plan, a correct call
    Broadcast { plan: String, text: String },
    /// Rank 2 joins the third barrier late
    Late,
    /// Sends frames to the agent without waiting for it
    FloodFrames(FrameFlood),
    /// Enlists many ranks, each of which shares as many regions as the agent accepts
    HoardRegions(RegionHoarder),
    /// Submits a job with arguments of this length, which must be refused
    LongJob(LongJob),
    /// Sends signals to a job of the user as fast as the controller accepts them
    FloodSignals(SignalFlood),
    /// Opens connections to the controller and sends nothing
    HoardConnections(ConnectionHoarder),
}

fn main() -> ExitCode {
    match run(Options::parse().case) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn run(case: Case) -> Result<(), Box<dyn std::error::Error>> {
    match case {
        Case::FloodFrames(attack) => attack.run(),
        Case::HoardRegions(attack) => attack.run(),
        Case::LongJob(attack) => attack.run(),
        Case::FloodSignals(attack) => attack.run(),
        Case::HoardConnections(attack) => attack.run(),
        calls => call(&Comm::world()?, calls),
    }
}

/// Raises the number of descriptors that this process may have to the maximum.
fn raise_descriptor_limit() -> Result<(), Errno> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
}

/// Executes the cases that use libcool.
fn call(comm: &Comm, case: Case) -> Result<(), Box<dyn std::error::Error>> {
    match case {
        Case::OtherSize => {
            let mut data = vec![0u8; if comm.rank() == 2 { 4000 } else { 5000 }];
            comm.bcast(&mut data, 0)?;
        }
        Case::OtherOperation => {
            let mut sum = [0.0f64; 10];
            if comm.rank() == 2 {
                comm.bcast(&mut sum, 0)?;
            } else {
                comm.allreduce(&[1.0; 10], &mut sum, Op::Sum)?;
            }
        }
        Case::Sum => {
            let mut sum = [0u64];
            comm.allreduce(&[comm.rank() as u64 + 1], &mut sum, Op::Sum)?;
            println!("rank {} of {}: {}", comm.rank(), comm.size(), sum[0]);
        }
        Case::Barriers => call_barriers_until_failure(comm)?,
        Case::Duplicates => {
            let duplicates = (0..20).map(|_| comm.dup()).collect::<Result<Vec<_>, _>>()?;
            for (i, duplicate) in duplicates.iter().enumerate() {
                let mut data = vec![if comm.rank() == 0 { i as u8 } else { 0xff }; 200_000];
                duplicate.bcast(&mut data, 0)?;
                assert!(data.iter().all(|byte| *byte == i as u8), "data of communicator {i}");
            }
            call_barriers_until_failure(comm)?;
        }
        Case::Broadcast { plan, text } => {
            comm.set_plan(Operation::Bcast, &plan)?;
            let whole = text.repeat((1 << 20) / text.len());
            let mut data = if comm.rank() == 0 { whole.clone().into_bytes() } else { vec![0; whole.len()] };
            comm.bcast(&mut data, 0)?;
            assert_eq!(data, whole.as_bytes());
            println!("rank {} received it", comm.rank());
        }
        Case::Late => {
            for call in 0..5 {
                // This must be longer than the delays of ranks on a busy machine.
                if (call, comm.rank()) == (2, 2) {
                    std::thread::sleep(Duration::from_secs(2));
                }
                comm.barrier()?;
            }
        }
        _ => return Err("this case is an attack without libcool".into()),
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
