//! A job from its submission to its end, as its caller sees it.

use crate::error::Error;
use clap::ValueEnum;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{
    AttendRequest, CancelRequest, Exited, Group, JobEvent, JobSpec, Output, SignalRequest, job_event::Body,
    job_spec,
};
use cool_proto::job_ids;
use std::collections::HashMap;
use std::error::Error as _;
use std::future::poll_fn;
use std::num::NonZeroU32;
use std::task::Poll;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, interval, sleep_until, timeout};
use tonic::transport::Channel;
use tonic::{Code, Streaming};

/// How long a controller that is there again may take to go on with the job; it gives jobs up after 30 s itself.
const COME_BACK_WITHIN: Duration = Duration::from_secs(60);
const TRY_EVERY: Duration = Duration::from_millis(200);
/// How long a cancelled job may take to end: the controller gives its ranks 10 s.
const END_WITHIN: Duration = Duration::from_secs(20);
/// How long it may take to tell the controller that nobody follows the job any more.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

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
#[derive(Clone, Debug, clap::Args)]
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

    /// Run the job as this user, by name or number: for operators, whose certificates name no user [default: you]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

impl Ranks {
    /// A job of these ranks that its caller owns, and so far of no program.
    pub(crate) fn spec(self) -> JobSpec {
        JobSpec {
            ranks: self.ranks.map_or(0, NonZeroU32::get),
            ranks_per_node: self.ranks_per_node.map_or(0, NonZeroU32::get),
            placement: job_spec::Placement::from(self.placement).into(),
            user: self.user.unwrap_or_else(user),
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

/// Runs a job to its end, whatever becomes of the connection and the controller. An error of `hear` cancels it; so does Ctrl-C, which
/// then waits for its end. SIGUSR1 and SIGUSR2 are passed on to the ranks.
pub(crate) async fn run(
    client: ControllerClient<Channel>,
    spec: JobSpec,
    hear: impl FnMut(Heard) -> Result<(), Error>,
) -> Result<(), Error> {
    let signals = Signals::new().map_err(Error::Runtime)?;
    let lines = LinesHeard::default();
    let mut job = FollowedJob { client, spec, number: 0, started: None, lines, signals, interrupted: None };
    let ended = job.follow(hear).await;
    if let Some((signal, _)) = job.interrupted {
        return Err(Error::Interrupted { signal, ended: job.number > 0 && has_ended(&ended) });
    }
    if job.number > 0 && !has_ended(&ended) {
        job.leave().await;
    }
    ended
}

/// Whether the controller has said that the job is over.
fn has_ended(outcome: &Result<(), Error>) -> bool {
    matches!(outcome, Ok(()) | Err(Error::Failed { .. }))
}

/// A job that its caller follows.
struct FollowedJob {
    client: ControllerClient<Channel>,
    spec: JobSpec,
    /// 0 until the controller has taken it on.
    number: u64,
    /// Since when its ranks run.
    started: Option<Instant>,
    lines: LinesHeard,
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
                // Of a controller that leads no more streams may end as if all were said.
                Ok(None) => {
                    events = self.come_back(Error::Unfinished(self.number)).await?;
                    continue;
                }
                Err(status) => {
                    let stops = status.code() == Code::Unavailable && status.source().is_none();
                    let why = if stops { Error::Stopped } else { status.into() };
                    events = self.come_back(why).await?;
                    continue;
                }
            };
            match event.body {
                Some(Body::Submitted(submitted)) => self.number = submitted.job,
                // Told again to whoever comes back.
                Some(Body::Started(_)) if self.started.is_some() => {}
                Some(Body::Started(started)) => {
                    (self.number, self.started) = (started.job, Some(Instant::now()));
                    hear(Heard::Started(started.group.unwrap_or_default()))?;
                }
                Some(Body::Output(output)) => match self.lines.hear(&output) {
                    Line::Known => {}
                    Line::New { lost } => {
                        say_lost(output.rank, lost);
                        hear(Heard::Line(output))?;
                    }
                },
                Some(Body::Finished(finished)) if finished.code == 0 => return Ok(()),
                Some(Body::Finished(finished)) => return Err(Error::Failed { job: self.number, finished }),
                // How each rank ended is summed up at the end.
                Some(Body::Exited(exited)) => say_lost(exited.rank, self.lines.lack(&exited)),
                None => {}
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
        eprintln!("cool: ending job {}; once more to leave it at once", job_ids::short(job));
        match self.cancel().await {
            // The connection is about to be found broken: it is cancelled on the next one.
            Ok(()) | Err(Error::Lost(_)) => Ok(()),
            Err(why) => Err(why),
        }
    }

    async fn cancel(&mut self) -> Result<(), Error> {
        let user = format!("{}, who started it", user());
        Ok(self.client.cancel(CancelRequest { job: self.number, user }).await.map(drop)?)
    }

    /// The job is to end, since it is not followed any more.
    async fn leave(&mut self) {
        let ended = timeout(LEAVE_WITHIN, self.cancel()).await;
        if !matches!(ended, Ok(Ok(()))) {
            let job = job_ids::short(self.number);
            eprintln!(
                "cool: job {job} could not be cancelled; it ends when the controller has missed this command for its grace time"
            );
        }
    }

    /// Comes back to a job after the connection broke: to the same controller, or to another one that has taken it over.
    async fn come_back(&mut self, why: Error) -> Result<Streaming<JobEvent>, Error> {
        let job = self.number;
        if job == 0 || !matches!(why, Error::Lost(_) | Error::Stopped | Error::Unfinished(_)) {
            return Err(why);
        }
        eprintln!("cool: {why}; job {} goes on, waiting for a controller", job_ids::short(job));
        // The job goes on for as long as there is no controller, and so does this.
        let mut until = None;
        let mut tries = interval(TRY_EVERY);
        loop {
            let interrupted = self.interrupted.map(|(_, until)| until);
            tokio::select! {
                _ = tries.tick() => {}
                signal = self.signals.next() => self.interrupt(signal, &why)?,
                () = at(until) => return Err(if self.started.is_some() { why } else { Error::NotStarted(job) }),
                () = at(interrupted) => return Err(why),
            }
            if self.interrupted.is_some() && self.cancel().await.is_err() {
                continue;
            }
            let request = AttendRequest { job, spec: Some(self.rest()), numbered: true };
            match self.client.attend(request).await.map_err(Error::from) {
                Ok(events) => return Ok(events.into_inner()),
                Err(Error::Lost(_)) => until = None,
                Err(_) => until = until.or_else(|| Some(Instant::now() + COME_BACK_WITHIN)),
            }
        }
    }

    /// A signal while there is no controller: the job is to end as soon as there is one, or it is left.
    fn interrupt(&mut self, signal: i32, why: &Error) -> Result<(), Error> {
        if PASSED_ON.contains(&signal) {
            return Ok(());
        }
        let again = self.interrupted.replace((signal, Instant::now() + END_WITHIN)).is_some();
        if again { Err(Error::Lost(why.to_string())) } else { Ok(()) }
    }

    /// What was asked for, with the time that is left.
    fn rest(&self) -> JobSpec {
        let gone = self.started.map_or(Duration::ZERO, |since| since.elapsed());
        let gone = u64::try_from(gone.as_millis()).unwrap_or(u64::MAX);
        let time_limit_ms = match self.spec.time_limit_ms {
            0 => 0,
            limit => limit.saturating_sub(gone).max(1),
        };
        JobSpec { time_limit_ms, ..self.spec.clone() }
    }
}

/// Which lines of each rank's streams have been heard. A line may come twice when the connection or the controller has been lost
/// meanwhile, and some may have been dropped: their numbers tell.
#[derive(Debug, Default)]
struct LinesHeard {
    /// By rank, and whether it is standard error.
    last: HashMap<(u32, bool), u64>,
}

/// What a line is.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    /// It has been heard.
    Known,
    /// It has not, nor have `lost` lines before it.
    New { lost: u64 },
}

impl LinesHeard {
    fn hear(&mut self, output: &Output) -> Line {
        if output.number == 0 {
            return Line::New { lost: 0 };
        }
        let last = self.last.entry((output.rank, output.stderr)).or_default();
        if output.number <= *last {
            return Line::Known;
        }
        let lost = output.number - *last - 1;
        *last = output.number;
        Line::New { lost }
    }

    /// How many lines of a rank that has ended will not come.
    fn lack(&mut self, exited: &Exited) -> u64 {
        let printed = [(false, exited.stdout_lines), (true, exited.stderr_lines)];
        let lacking = printed.map(|(stderr, printed)| {
            let last = self.last.entry((exited.rank, stderr)).or_default();
            let lacking = printed.saturating_sub(*last);
            *last += lacking;
            lacking
        });
        lacking.iter().sum()
    }
}

fn say_lost(rank: u32, lines: u64) {
    if lines > 0 {
        eprintln!("cool: {lines} lines of rank {rank} are lost");
    }
}

async fn at(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// The signals that mean something to whoever runs a job.
pub(crate) struct Signals {
    listeners: Vec<(i32, Signal)>,
}

impl Signals {
    pub(crate) fn new() -> std::io::Result<Signals> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let kinds = kinds.into_iter().chain(PASSED_ON.map(SignalKind::from_raw));
        let listeners = kinds.map(|kind| Ok((kind.as_raw_value(), signal(kind)?)));
        Ok(Signals { listeners: listeners.collect::<std::io::Result<_>>()? })
    }

    /// The next one by which the command is to end.
    pub(crate) async fn ending(&mut self) -> i32 {
        loop {
            let signal = self.next().await;
            if !PASSED_ON.contains(&signal) {
                return signal;
            }
        }
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

/// Where this program is: for jobs whose ranks are this program.
pub(crate) fn this_program() -> Result<String, Error> {
    let program = std::env::current_exe().map_err(|e| Error::Executable(e.to_string()))?.into_os_string();
    program.into_string().map_err(|p| Error::Executable(format!("{} is not UTF-8", p.display())))
}

/// Who runs this command, by its word: a name, or else a number.
pub(crate) fn user() -> String {
    let name = ["USER", "LOGNAME"].into_iter().find_map(|variable| std::env::var(variable).ok());
    name.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_come_twice_are_known_and_those_that_never_come_are_counted() {
        let mut heard = LinesHeard::default();
        let mut hear =
            |rank, stderr, number| heard.hear(&Output { rank, stderr, number, ..Output::default() });
        let new = |lost| Line::New { lost };
        assert_eq!([hear(0, false, 1), hear(0, false, 2), hear(0, true, 1)], [new(0), new(0), new(0)]);
        assert_eq!(
            [hear(0, false, 1), hear(0, false, 2), hear(0, false, 3)],
            [Line::Known, Line::Known, new(0)]
        );
        assert_eq!([hear(0, false, 7), hear(1, false, 2)], [new(3), new(1)]);
        // An agent that does not number them.
        assert_eq!([hear(0, false, 0), hear(0, false, 0)], [new(0), new(0)]);
        let exited = Exited { rank: 0, stdout_lines: 9, stderr_lines: 1, ..Exited::default() };
        assert_eq!([heard.lack(&exited), heard.lack(&exited)], [2, 0]);
    }
}
