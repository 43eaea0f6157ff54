//! A rank of the series of faults (`bench/faults.py`): calls every operation in turn, with lengths drawn from a seed,
//! and checks what it gets. When a call fails it says so, shrinks the group with the others that are left, and goes on
//! with them, until the job is ended.
//!
//!     cool run --survive -n 16 -- cool-faults --events /tmp/faults.sock --seed 7
//!     cool run -n 16 -- cool-faults --steps 100 --seed 7
//!     cool run -n 16 -- cool-faults --seconds 60 --pause 20 --seed 7
//!
//! What happens goes to a datagram socket as JSON, at times of the clock that all namespaces of a machine share. With
//! `--steps` it ends after that number of steps, with `--seconds` after that time, and nothing may fail (`bench/day.py`).

mod calls;

use calls::{Calls, Stop};
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

/// Calls after which a group counts as one that works: each operation once.
const WORKS_AFTER: u64 = calls::ALL;

/// A rank of the series of faults.
#[derive(Parser)]
struct Options {
    /// Where to say what happens
    #[arg(long, value_name = "SOCKET", required_unless_present_any = ["steps", "seconds"])]
    events: Option<PathBuf>,

    /// End after this number of steps
    #[arg(long, conflicts_with = "events")]
    steps: Option<u64>,

    /// End after this time, and say how many steps there were and how long the longest took
    #[arg(long, conflicts_with_all = ["events", "steps"])]
    seconds: Option<u64>,

    /// How long a rank computes between steps
    #[arg(long, value_name = "MS", default_value = "0")]
    pause: u64,

    /// What operations, lengths and roots are drawn from
    #[arg(long)]
    seed: u64,

    /// How long a call may make no progress
    #[arg(long, value_name = "MS", default_value = "60000")]
    timeout: u64,

    /// How long survivors wait for each other
    #[arg(long, value_name = "MS", default_value = "5000")]
    meeting: u64,

    /// The longest message, in bytes
    #[arg(long, default_value = "1048576")]
    bytes: usize,
}

/// Where a rank says what happens to it.
struct Reporter {
    socket: UnixDatagram,
    /// In the world, by which it is known whatever groups it comes into.
    rank: usize,
}

impl Reporter {
    fn say(&self, event: &str, more: Value) -> io::Result<()> {
        let now = clock_gettime(ClockId::Monotonic);
        let at = now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9;
        let said = json!({ "event": event, "rank": self.rank, "at": at, "more": more });
        self.socket.send(said.to_string().as_bytes()).map(drop)
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
        let reporter = Reporter { socket, rank: comm.rank() };
        let node = comm.place(comm.rank()).map(|place| place.name.clone());
        reporter.say("joined", json!({ "node": node, "pid": std::process::id() }))?;
        return survive(comm, options, &reporter);
    }
    let mut calls = Calls::new(&comm, options.seed, options.bytes);
    match options.seconds {
        None => {
            while options.steps.is_some_and(|steps| calls.made() < steps) {
                calls.make().map_err(|stop| why(&stop, &calls))?;
            }
        }
        Some(seconds) => make_for(Duration::from_secs(seconds), &comm, &mut calls, options)?,
    }
    Ok(())
}

/// Makes steps until the time is over by the clock of the first rank, and tells of them.
fn make_for(
    time: Duration,
    comm: &Comm,
    calls: &mut Calls<'_>,
    options: &Options,
) -> Result<(), Box<dyn std::error::Error>> {
    let began = Instant::now();
    let mut longest = Duration::ZERO;
    let mut over = [0u8];
    while over == [0] {
        for _ in 0..calls::ALL {
            thread::sleep(Duration::from_millis(options.pause));
            let step = Instant::now();
            calls.make().map_err(|stop| why(&stop, calls))?;
            longest = longest.max(step.elapsed());
        }
        over = [u8::from(began.elapsed() >= time)];
        comm.bcast(&mut over, 0)?;
    }
    println!("{}", json!({ "rank": comm.rank(), "steps": calls.made(), "longest_s": longest.as_secs_f64() }));
    Ok(())
}

/// What went wrong, and in which operations.
fn why(stop: &Stop, calls: &Calls<'_>) -> String {
    match stop {
        Stop::Failed(error) => error.to_string(),
        Stop::Wrong(text) => format!("wrong bytes: {:?}: {text}", calls.operations()),
    }
}

/// Goes on until the rank is one that the others have lost.
fn survive(mut comm: Comm, options: &Options, reporter: &Reporter) -> Result<(), Box<dyn std::error::Error>> {
    for generation in 0u64.. {
        comm.set_timeout(Duration::from_millis(options.timeout));
        let mut calls = Calls::new(&comm, options.seed ^ generation << 32, options.bytes);
        let stop = loop {
            if let Err(stop) = calls.make() {
                break stop;
            }
            if calls.made() == WORKS_AFTER {
                reporter.say("works", json!({ "group": comm.group() }))?;
            }
        };
        let error = match stop {
            Stop::Failed(error) => error,
            Stop::Wrong(text) => {
                reporter
                    .say("wrong", json!({ "message": text, "group": comm.group(), "call": calls.made() }))?;
                return Err(text.into());
            }
        };
        reporter.say("failed", told(&error, &comm, &calls))?;
        if !error.is_loss() {
            return Ok(());
        }
        comm.set_timeout(Duration::from_millis(options.meeting));
        comm = match comm.shrink() {
            Ok(rest) => rest,
            Err(error) => return Ok(reporter.say("out", json!({ "message": error.to_string() }))?),
        };
        reporter.say("shrunk", json!({ "gone": comm.gone(), "group": comm.group() }))?;
    }
    Ok(())
}

/// What is to be known of a call that failed.
fn told(error: &Error, comm: &Comm, calls: &Calls<'_>) -> Value {
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
