//! A job from its submission to its end, as its caller sees it.

use crate::error::Error;
use clap::ValueEnum;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{
    AttendRequest, CancelRequest, Group, JobEvent, JobSpec, Output, SignalRequest, job_event::Body, job_spec,
};
use std::error::Error as _;
use std::future::poll_fn;
use std::num::NonZeroU32;
use std::task::Poll;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, interval, sleep_until};
use tonic::transport::Channel;
use tonic::{Code, Streaming};

/// How long a controller that is there again may take to go on with the job; it gives jobs up after 30 s itself.
const COME_BACK_WITHIN: Duration = Duration::from_secs(60);
const TRY_EVERY: Duration = Duration::from_millis(200);
/// How long a cancelled job may take to end: the controller gives its ranks 10 s.
const END_WITHIN: Duration = Duration::from_secs(20);

/// SIGUSR1 and SIGUSR2 go to the ranks.
const PASSED_ON: [i32; 2] = [10, 12];

/// In which order ranks are given to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Placement {
    /// Neighbouring ranks share a rack
    Racked,
    /// Neighbouring ranks are in different racks
    Interleaved,
}

impl From<Placement> for job_spec::Placement {
    fn from(placement: Placement) -> job_spec::Placement {
        match placement {
            Placement::Racked => job_spec::Placement::Racked,
            Placement::Interleaved => job_spec::Placement::Interleaved,
        }
    }
}

/// How many ranks a job has, and where they go.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Ranks {
    /// Number of ranks [default: one on each node]
    #[arg(short = 'n', long, value_name = "N")]
    ranks: Option<NonZeroU32>,

    /// Ranks on each node used [default: spread over as many nodes as possible]
    #[arg(long, value_name = "K")]
    ranks_per_node: Option<NonZeroU32>,

    /// In which order ranks are given to nodes
    #[arg(long, value_enum, default_value = "racked")]
    placement: Placement,
}

impl Ranks {
    /// A job of these ranks that its caller owns, and so far of no program.
    pub(crate) fn spec(self) -> JobSpec {
        JobSpec {
            ranks: self.ranks.map_or(0, NonZeroU32::get),
            ranks_per_node: self.ranks_per_node.map_or(0, NonZeroU32::get),
            placement: job_spec::Placement::from(self.placement).into(),
            user: user(),
            ..JobSpec::default()
        }
    }
}

/// What a caller hears of its job.
pub(crate) enum Heard {
    /// The ranks are being started; this is their group.
    Started(Group),
    /// A line of a rank.
    Line(Output),
}

/// Runs a job to its end. An error of `hear`, or dropping the future, cancels it; so does Ctrl-C, which then waits for
/// its end. SIGUSR1 and SIGUSR2 are passed on to the ranks.
pub(crate) async fn run(
    client: ControllerClient<Channel>,
    spec: JobSpec,
    hear: impl FnMut(Heard) -> Result<(), Error>,
) -> Result<(), Error> {
    let signals = Signals::new().map_err(Error::Runtime)?;
    let mut job =
        FollowedJob { client, spec, number: 0, started: Instant::now(), signals, interrupted: None };
    let ended = job.follow(hear).await;
    match job.interrupted {
        Some((signal, _)) => Err(Error::Interrupted { signal, ended: job.number > 0 && has_ended(&ended) }),
        None => ended,
    }
}

/// Whether the controller has said that the job is over.
fn has_ended(outcome: &Result<(), Error>) -> bool {
    matches!(outcome, Ok(()) | Err(Error::Failed { .. }))
}

/// A job that its caller follows.
struct FollowedJob {
    client: ControllerClient<Channel>,
    spec: JobSpec,
    /// 0 until it is started.
    number: u64,
    started: Instant,
    signals: Signals,
    /// By which signal, and until when to wait for the job's end.
    interrupted: Option<(i32, Instant)>,
}

impl FollowedJob {
    async fn follow(&mut self, mut hear: impl FnMut(Heard) -> Result<(), Error>) -> Result<(), Error> {
        let mut events = self.client.run(self.spec.clone()).await?.into_inner();
        loop {
            let until = self.interrupted.map(|(_, until)| until);
            let event = tokio::select! {
                event = events.message() => event,
                signal = self.signals.next() => {
                    self.take(signal).await?;
                    continue;
                }
                () = at(until) => return Err(Error::Unfinished(self.number)),
            };
            let event = match event {
                Ok(Some(event)) => event,
                Ok(None) => return Err(Error::Unfinished(self.number)),
                Err(status) => {
                    let stops = status.code() == Code::Unavailable && status.source().is_none();
                    let why = if stops { Error::Stopped } else { status.into() };
                    events = self.come_back(why).await?;
                    continue;
                }
            };
            match event.body {
                Some(Body::Started(started)) => {
                    (self.number, self.started) = (started.job, Instant::now());
                    hear(Heard::Started(started.group.unwrap_or_default()))?;
                }
                Some(Body::Output(output)) => hear(Heard::Line(output))?,
                Some(Body::Finished(finished)) if finished.code == 0 => return Ok(()),
                Some(Body::Finished(finished)) => return Err(Error::Failed { job: self.number, finished }),
                // How each rank ended is summed up at the end.
                Some(Body::Exited(_)) | None => {}
            }
        }
    }

    /// Passes a signal on, or lets the job be cancelled; an error if there is nothing to wait for.
    async fn take(&mut self, signal: i32) -> Result<(), Error> {
        let job = self.number;
        if PASSED_ON.contains(&signal) {
            if job > 0 {
                self.client.signal(SignalRequest { job, signal }).await?;
            }
            return Ok(());
        }
        let again = self.interrupted.is_some();
        self.interrupted = Some((signal, Instant::now() + END_WITHIN));
        if again || job == 0 {
            return Err(Error::Unfinished(job));
        }
        eprintln!("cool: ending job {job}; once more to leave it at once");
        let user = format!("{}, who started it", user());
        self.client.cancel(CancelRequest { job, user }).await?;
        Ok(())
    }

    /// Comes back to a job whose controller is gone, once another one runs and has taken it over.
    async fn come_back(&mut self, why: Error) -> Result<Streaming<JobEvent>, Error> {
        let job = self.number;
        if job == 0 || self.interrupted.is_some() || !matches!(why, Error::Lost(_) | Error::Stopped) {
            return Err(why);
        }
        eprintln!("cool: {why}; job {job} goes on, waiting for a controller");
        // The job goes on for as long as there is no controller, and so does this.
        let mut until = None;
        let mut tries = interval(TRY_EVERY);
        loop {
            tokio::select! {
                _ = tries.tick() => {}
                signal = self.signals.next() => {
                    self.interrupted = (!PASSED_ON.contains(&signal)).then(|| (signal, Instant::now()));
                    if self.interrupted.is_some() {
                        return Err(why);
                    }
                }
                () = at(until) => return Err(why),
            }
            let request = AttendRequest { job, spec: Some(self.rest()) };
            match self.client.attend(request).await.map_err(Error::from) {
                Ok(events) => return Ok(events.into_inner()),
                Err(Error::Lost(_)) => until = None,
                Err(_) => until = until.or_else(|| Some(Instant::now() + COME_BACK_WITHIN)),
            }
        }
    }

    /// What was asked for, with the time that is left.
    fn rest(&self) -> JobSpec {
        let gone = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let time_limit_ms = match self.spec.time_limit_ms {
            0 => 0,
            limit => limit.saturating_sub(gone).max(1),
        };
        JobSpec { time_limit_ms, ..self.spec.clone() }
    }
}

async fn at(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// The signals that mean something to whoever runs a job.
struct Signals {
    listeners: Vec<(i32, Signal)>,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let kinds = kinds.into_iter().chain(PASSED_ON.map(SignalKind::from_raw));
        let listeners = kinds.map(|kind| Ok((kind.as_raw_value(), signal(kind)?)));
        Ok(Signals { listeners: listeners.collect::<std::io::Result<_>>()? })
    }

    /// The next one. May be dropped and called again.
    async fn next(&mut self) -> i32 {
        poll_fn(|context| {
            for (number, listener) in &mut self.listeners {
                if listener.poll_recv(context).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Who runs this command, for others to read.
pub(crate) fn user() -> String {
    let name = ["USER", "LOGNAME"].into_iter().find_map(|variable| std::env::var(variable).ok());
    name.unwrap_or_else(|| format!("user {}", rustix::process::getuid().as_raw()))
}
