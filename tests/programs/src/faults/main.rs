//! A rank of the series of faults (`bench/faults.py`): calls every operation in turn, with lengths
//! drawn from a seed, and checks the results. When a call fails because a rank was lost, it reports
//! the error, shrinks the group to the remaining ranks, and continues with them until the job ends.
//!
//!     cool run --survive -n 16 -- cool-faults --events /tmp/faults.sock --seed 7
//!     cool run -n 16 -- cool-faults --steps 100 --seed 7
//!     cool run -n 16 -- cool-faults --seconds 60 --pause 20 --seed 7
//!
//! It sends events as JSON to a datagram socket, with times of the monotonic clock, because all
//! network namespaces of a machine share that clock. With `--steps` or `--seconds` it ends after
//! that number of steps or that time, and no call may fail (`bench/day.py`).

mod calls;

use calls::{CallSeries, StepFailure};
use clap::Parser;
use cool::{Comm, Error};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// Number of steps after which a group is reported as working: each operation was called once.
const WORKING_AFTER_STEPS: u64 = calls::KIND_COUNT;

/// A rank of the series of faults
#[derive(Parser)]
struct Options {
    /// Datagram socket to which events are sent
    #[arg(long, value_name = "SOCKET", required_unless_present_any = ["steps", "seconds"])]
    events: Option<PathBuf>,

    /// End after this number of steps
    #[arg(long, conflicts_with = "events")]
    steps: Option<u64>,

    /// End after this time, and print the number of steps and the duration of the longest
    #[arg(long, conflicts_with_all = ["events", "steps"])]
    seconds: Option<u64>,

    /// Time that a rank computes between steps
    #[arg(long, value_name = "MS", default_value = "0")]
    pause: u64,

    /// Seed from which operations, lengths and roots are drawn; it must be the same for all ranks
    #[arg(long)]
    seed: u64,

    /// Maximum time that a call may make no progress
    #[arg(long, value_name = "MS", default_value = "60000")]
    timeout: u64,

    /// Maximum time that surviving ranks wait for each other
    #[arg(long, value_name = "MS", default_value = "5000")]
    meeting: u64,

    /// Length of the longest message, in bytes
    #[arg(long, default_value = "1048576")]
    bytes: usize,
}

/// Sends the events of a rank.
struct EventReporter {
    socket: UnixDatagram,
    /// Rank in the world, which identifies the process in every group.
    rank: usize,
}

impl EventReporter {
    /// Sends an event with the current time.
    fn send(&self, event: &str, more: Value) -> io::Result<()> {
        let now = clock_gettime(ClockId::Monotonic);
        let at = now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9;
        let message = json!({ "event": event, "rank": self.rank, "at": at, "more": more });
        self.socket.send(message.to_string().as_bytes()).map(drop)
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let comm = Comm::world()?;
    comm.set_timeout(Duration::from_millis(options.timeout));
    if let Some(events) = &options.events {
        let socket = UnixDatagram::unbound()?;
        socket.connect(events)?;
        let reporter = EventReporter { socket, rank: comm.rank() };
        let node = comm.place(comm.rank()).map(|place| place.name.clone());
        reporter.send("joined", json!({ "node": node, "pid": std::process::id() }))?;
        return survive(comm, options, &reporter);
    }
    let mut calls = CallSeries::new(&comm, options.seed, options.bytes);
    match options.seconds {
        None => {
            while options.steps.is_some_and(|steps| calls.completed() < steps) {
                calls.run_step().map_err(|failure| failure_text(&failure, &calls))?;
            }
        }
        Some(seconds) => run_for(Duration::from_secs(seconds), &comm, &mut calls, options)?,
    }
    Ok(())
}

/// Executes steps until the time has elapsed on the clock of rank 0, and prints their number. Rank
/// 0 decides for all ranks, because all must execute the same number of steps.
fn run_for(
    time: Duration,
    comm: &Comm,
    calls: &mut CallSeries<'_>,
    options: &Options,
) -> Result<(), Box<dyn std::error::Error>> {
    let began = Instant::now();
    let mut longest = Duration::ZERO;
    let mut over = [0u8];
    while over == [0] {
        for _ in 0..calls::KIND_COUNT {
            thread::sleep(Duration::from_millis(options.pause));
            let step = Instant::now();
            calls.run_step().map_err(|failure| failure_text(&failure, calls))?;
            longest = longest.max(step.elapsed());
        }
        over = [u8::from(began.elapsed() >= time)];
        comm.bcast(&mut over, 0)?;
    }
    println!(
        "{}",
        json!({ "rank": comm.rank(), "steps": calls.completed(), "longest_s": longest.as_secs_f64() })
    );
    Ok(())
}

/// Returns the reason of a failure. For a wrong result, it names the operations of the step.
fn failure_text(failure: &StepFailure, calls: &CallSeries<'_>) -> String {
    match failure {
        StepFailure::Failed(error) => error.to_string(),
        StepFailure::WrongResult(text) => format!("wrong bytes: {:?}: {text}", calls.operations()),
    }
}

/// Continues after each loss with the remaining ranks. Returns when the others have lost this rank,
/// or when a call fails for another reason.
///
/// # Errors
/// Returns an error if a result is wrong or an event cannot be sent.
fn survive(
    mut comm: Comm,
    options: &Options,
    reporter: &EventReporter,
) -> Result<(), Box<dyn std::error::Error>> {
    for generation in 0u64.. {
        comm.set_timeout(Duration::from_millis(options.timeout));
        let mut calls = CallSeries::new(&comm, options.seed ^ generation << 32, options.bytes);
        let failure = loop {
            if let Err(failure) = calls.run_step() {
                break failure;
            }
            if calls.completed() == WORKING_AFTER_STEPS {
                reporter.send("works", json!({ "group": comm.group() }))?;
            }
        };
        let error = match failure {
            StepFailure::Failed(error) => error,
            StepFailure::WrongResult(text) => {
                reporter.send(
                    "wrong",
                    json!({ "message": text, "group": comm.group(), "call": calls.completed() }),
                )?;
                return Err(text.into());
            }
        };
        reporter.send("failed", error_details(&error, &comm, &calls))?;
        if !error.is_loss() {
            return Ok(());
        }
        comm.set_timeout(Duration::from_millis(options.meeting));
        comm = match comm.shrink() {
            Ok(rest) => rest,
            Err(error) => return Ok(reporter.send("out", json!({ "message": error.to_string() }))?),
        };
        reporter.send("shrunk", json!({ "gone": comm.gone(), "group": comm.group() }))?;
    }
    Ok(())
}

/// Returns the details of a failed call for an event.
fn error_details(error: &Error, comm: &Comm, calls: &CallSeries<'_>) -> Value {
    let (kind, operation, ranks) = match error {
        Error::Collective { failure, operation, ranks, .. } => {
            (format!("{failure:?}"), *operation, ranks.as_slice())
        }
        Error::Agent { doing, .. } | Error::Refused { doing, .. } => ("Agent".to_owned(), *doing, &[][..]),
        _ => ("Other".to_owned(), "", &[][..]),
    };
    json!({ "kind": kind, "operation": operation, "ranks": ranks, "message": error.to_string(),
        "called": calls.operations(), "group": comm.group() })
}
