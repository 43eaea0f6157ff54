//! Follows a job from its submission to its end, for the command that runs it.

use crate::error::Error;
use crate::signals::{Signals, is_forwarded};
use clap::ValueEnum;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{
    AttendRequest, CancelRequest, Exited, Group, JobEvent, JobSpec, Output, SignalRequest, job_event::Body,
    job_spec,
};
use cool_proto::job_ids;
use std::collections::HashMap;
use std::error::Error as _;
use std::num::NonZeroU32;
use std::time::Duration;
use tokio::time::{Instant, interval, sleep_until, timeout};
use tonic::transport::Channel;
use tonic::{Code, Streaming};

/// Maximum time for a controller that is reachable again to resume the job. The controller itself
/// ends a job if its caller has not reconnected within `--agent-grace` (60 s by default).
const RESUME_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum time for a canceled job to end. The controller gives its ranks 10 s.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum time for canceling a job that the command leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The order in which ranks are assigned to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlacementOption {
    /// Consecutive ranks share a rack
    Racked,
    /// Consecutive ranks are in different racks
    Interleaved,
}

impl From<PlacementOption> for job_spec::Placement {
    fn from(order: PlacementOption) -> job_spec::Placement {
        match order {
            PlacementOption::Racked => job_spec::Placement::Racked,
            PlacementOption::Interleaved => job_spec::Placement::Interleaved,
        }
    }
}

/// How many ranks a job has, and where they run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct JobOptions {
    /// Number of ranks [default: one on each node]
    #[arg(short = 'n', long, alias = "np", value_name = "N", value_parser = positive)]
    ranks: Option<NonZeroU32>,

    /// Ranks on each node that is used [default: spread over as many nodes as possible]
    #[arg(long, short_alias = 'N', value_name = "K", value_parser = positive)]
    ranks_per_node: Option<NonZeroU32>,

    /// Order in which ranks are assigned to nodes
    #[arg(long, value_enum, default_value = "racked")]
    placement: PlacementOption,

    /// Run the job as this user (name or number); for operators only, because their certificates
    /// name no user [default: you]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

/// Parses a number from 1.
pub(crate) fn positive(text: &str) -> Result<NonZeroU32, String> {
    text.parse().map_err(|_| format!("{text:?} is not a whole number from 1 to {}", u32::MAX))
}

impl JobOptions {
    /// Returns a job of these ranks, without a program yet.
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

/// A report about a job while it runs.
pub(crate) enum JobUpdate {
    /// The ranks are being started; this is their group.
    Started(Group),
    /// A line of a rank's output.
    Line(Output),
}

/// Runs a job to its end, even if the connection or the controller is lost meanwhile. Ctrl-C
/// cancels the job and waits for its end; SIGUSR1 and SIGUSR2 are forwarded to the ranks.
///
/// # Errors
/// If the job fails. An error of `on_update` cancels the job.
pub(crate) async fn run(
    client: ControllerClient<Channel>,
    spec: JobSpec,
    on_update: impl FnMut(JobUpdate) -> Result<(), Error>,
) -> Result<(), Error> {
    let signals = Signals::new().map_err(Error::Runtime)?;
    let lines = ReceivedLines::default();
    let mut job = FollowedJob { client, spec, number: 0, started: None, lines, signals, interrupted: None };
    let ended = job.follow(on_update).await;
    if let Some((signal, _)) = job.interrupted {
        return Err(Error::Interrupted { signal, ended: job.number > 0 && has_ended(&ended) });
    }
    if job.number > 0 && !has_ended(&ended) {
        job.leave().await;
    }
    ended
}

/// Returns whether the controller has reported the end of the job.
fn has_ended(outcome: &Result<(), Error>) -> bool {
    matches!(outcome, Ok(()) | Err(Error::Failed { .. } | Error::EndedMeanwhile(_)))
}

/// A job that this command follows.
struct FollowedJob {
    client: ControllerClient<Channel>,
    spec: JobSpec,
    /// 0 until the controller has accepted the job.
    number: u64,
    /// Time at which its ranks started.
    started: Option<Instant>,
    lines: ReceivedLines,
    signals: Signals,
    /// The signal that canceled the job, and the time until which to wait for its end.
    interrupted: Option<(i32, Instant)>,
}

impl FollowedJob {
    async fn follow(
        &mut self,
        mut on_update: impl FnMut(JobUpdate) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.spec.check_command()?;
        let mut events = self.submit().await?;
        loop {
            let until = self.interrupted.map(|(_, until)| until);
            let event = tokio::select! {
                event = events.message() => event,
                signal = self.signals.next() => {
                    self.on_signal(signal).await?;
                    continue;
                }
                () = wait_until(until) => return Err(Error::Unfinished(self.number)),
            };
            let event = match event {
                Ok(Some(event)) => event,
                // A controller that is no longer the leader may close streams without an error.
                Ok(None) => {
                    events = self.resume(Error::Unfinished(self.number)).await?;
                    continue;
                }
                Err(status) => {
                    let stops = status.code() == Code::Unavailable && status.source().is_none();
                    let why = if stops { Error::Stopped } else { status.into() };
                    events = self.resume(why).await?;
                    continue;
                }
            };
            match event.body {
                Some(Body::Submitted(submitted)) => self.on_accepted(submitted.job).await?,
                // The event is repeated when the command resumes the job.
                Some(Body::Started(_)) if self.started.is_some() => {}
                Some(Body::Started(started)) => {
                    self.started = Some(Instant::now());
                    self.on_accepted(started.job).await?;
                    on_update(JobUpdate::Started(started.group.unwrap_or_default()))?;
                }
                Some(Body::Output(output)) => match self.lines.receive(&output) {
                    LineStatus::Duplicate => {}
                    LineStatus::New { lost } => {
                        report_lost_lines(output.rank, lost);
                        on_update(JobUpdate::Line(output))?;
                    }
                },
                Some(Body::Finished(finished)) if finished.code == 0 => return Ok(()),
                Some(Body::Finished(finished)) => return Err(Error::Failed { job: self.number, finished }),
                // The end of the job sums up how its ranks ended.
                Some(Body::Exited(exited)) => {
                    report_lost_lines(exited.rank, self.lines.missing(&exited));
                }
                None => {}
            }
        }
    }

    /// Submits the job. Returns its events.
    async fn submit(&mut self) -> Result<Streaming<JobEvent>, Error> {
        let (mut client, spec) = (self.client.clone(), self.spec.clone());
        let submitted = client.run(spec);
        tokio::pin!(submitted);
        loop {
            let until = self.interrupted.map(|(_, until)| until);
            tokio::select! {
                events = &mut submitted => return Ok(events?.into_inner()),
                signal = self.signals.next() => self.on_signal(signal).await?,
                () = wait_until(until) => return Err(Error::Unfinished(0)),
            }
        }
    }

    /// Records the number of the job. If a signal has arrived before, the job is canceled now,
    /// because without its number it would go on without this command.
    async fn on_accepted(&mut self, number: u64) -> Result<(), Error> {
        let is_new = self.number == 0;
        self.number = number;
        if is_new && self.interrupted.is_some() { self.end_interrupted().await } else { Ok(()) }
    }

    /// Forwards a signal, or cancels the job, as soon as it is accepted.
    ///
    /// # Errors
    /// If the command must not wait for the end of the job, because this is the second signal. Also
    /// if the request fails.
    async fn on_signal(&mut self, signal: i32) -> Result<(), Error> {
        let job = self.number;
        if is_forwarded(signal) {
            if job > 0 {
                self.client.signal(SignalRequest { job, signal }).await?;
            }
            return Ok(());
        }
        let again = self.interrupted.is_some();
        self.interrupted = Some((signal, Instant::now() + END_TIMEOUT));
        if again {
            return Err(Error::Unfinished(job));
        }
        if job > 0 { self.end_interrupted().await } else { Ok(()) }
    }

    /// Cancels the job because of a signal.
    async fn end_interrupted(&mut self) -> Result<(), Error> {
        let job = job_ids::short(self.number);
        eprintln!("cool: ending job {job}; press Ctrl-C again to leave it at once");
        match self.cancel().await {
            // `follow` detects that the connection is broken, and `resume` cancels the job on the
            // next one.
            Ok(()) | Err(Error::Lost(_)) => Ok(()),
            Err(why) => Err(why),
        }
    }

    async fn cancel(&mut self) -> Result<(), Error> {
        let user = format!("{}, who started it", user());
        Ok(self.client.cancel(CancelRequest { job: self.number, user }).await.map(drop)?)
    }

    /// Cancels the job, because this command stops following it.
    async fn leave(&mut self) {
        let ended = timeout(LEAVE_TIMEOUT, self.cancel()).await;
        if !matches!(ended, Ok(Ok(()))) {
            let job = job_ids::short(self.number);
            eprintln!(
                "cool: cannot cancel job {job}; the controller ends it after the grace time for a lost command"
            );
        }
    }

    /// Resumes a job after the connection broke, at the same controller or at another one that has
    /// taken over. Returns the error `why` if that is not possible.
    async fn resume(&mut self, why: Error) -> Result<Streaming<JobEvent>, Error> {
        let job = self.number;
        if job == 0 || !matches!(why, Error::Lost(_) | Error::Stopped | Error::Unfinished(_)) {
            return Err(why);
        }
        eprintln!("cool: {why}; job {} continues, waiting for a controller", job_ids::short(job));
        // There is no time limit while no controller is reachable, because the job continues
        // meanwhile.
        let mut until = None;
        let mut tries = interval(RETRY_INTERVAL);
        loop {
            let interrupted = self.interrupted.map(|(_, until)| until);
            tokio::select! {
                _ = tries.tick() => {}
                signal = self.signals.next() => self.on_signal_while_lost(signal, &why)?,
                () = wait_until(until) => {
                    return Err(if self.started.is_some() { why } else { Error::NotStarted(job) });
                }
                () = wait_until(interrupted) => return Err(why),
            }
            let canceled = match self.interrupted {
                Some(_) => self.cancel().await,
                None => Ok(()),
            };
            if matches!(canceled, Err(Error::Lost(_))) {
                continue;
            }
            let request = AttendRequest { job, spec: Some(self.remaining_spec()), numbered: true };
            match self.client.attend(request).await {
                // The job became known after it could not be canceled.
                Ok(_) if canceled.is_err() => {}
                Ok(events) => return Ok(events.into_inner()),
                // For example, this command was suspended for longer than the grace time.
                Err(status) if status.code() == Code::FailedPrecondition => {
                    return Err(Error::EndedMeanwhile(status.message().to_owned()));
                }
                Err(status) => match Error::from(status) {
                    Error::Lost(_) => until = None,
                    _ => until = until.or_else(|| Some(Instant::now() + RESUME_TIMEOUT)),
                },
            }
        }
    }

    /// Handles a signal while no controller is reachable: the first one cancels the job as soon as
    /// a controller is reachable, the second one leaves the job.
    fn on_signal_while_lost(&mut self, signal: i32, why: &Error) -> Result<(), Error> {
        if is_forwarded(signal) {
            return Ok(());
        }
        let again = self.interrupted.replace((signal, Instant::now() + END_TIMEOUT)).is_some();
        if again { Err(Error::Lost(why.to_string())) } else { Ok(()) }
    }

    /// Returns the job as it was submitted, with the rest of its time limit.
    fn remaining_spec(&self) -> JobSpec {
        let elapsed = self.started.map_or(Duration::ZERO, |since| since.elapsed());
        let elapsed = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let time_limit_ms = match self.spec.time_limit_ms {
            0 => 0,
            limit => limit.saturating_sub(elapsed).max(1),
        };
        JobSpec { time_limit_ms, ..self.spec.clone() }
    }
}

/// The lines of each rank's streams that have been received. After the connection or the controller
/// was lost, lines may arrive twice or be missing; their numbers show which.
#[derive(Debug, Default)]
struct ReceivedLines {
    /// The number of the last line, by rank and by whether the stream is standard error.
    last: HashMap<(u32, bool), u64>,
}

#[derive(Debug, PartialEq, Eq)]
enum LineStatus {
    /// The line was received before.
    Duplicate,
    /// The line is new, and `lost` lines before it are missing.
    New { lost: u64 },
}

impl ReceivedLines {
    /// Records a line, and returns its status.
    fn receive(&mut self, output: &Output) -> LineStatus {
        if output.number == 0 {
            return LineStatus::New { lost: 0 };
        }
        let last = self.last.entry((output.rank, output.stderr)).or_default();
        if output.number <= *last {
            return LineStatus::Duplicate;
        }
        let lost = output.number - *last - 1;
        *last = output.number;
        LineStatus::New { lost }
    }

    /// Returns how many lines of a rank that has ended are missing, and counts them as received.
    fn missing(&mut self, exited: &Exited) -> u64 {
        let printed = [(false, exited.stdout_lines), (true, exited.stderr_lines)];
        let missing = printed.map(|(stderr, printed)| {
            let last = self.last.entry((exited.rank, stderr)).or_default();
            let missing = printed.saturating_sub(*last);
            *last += missing;
            missing
        });
        missing.iter().sum()
    }
}

fn report_lost_lines(rank: u32, lines: u64) {
    if lines > 0 {
        eprintln!("cool: {lines} lines of rank {rank} are lost");
    }
}

/// Waits until an instant; forever without one.
async fn wait_until(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// Returns the path of this program, for jobs that run it as their ranks.
pub(crate) fn this_program() -> Result<String, Error> {
    let program = std::env::current_exe().map_err(|e| Error::Executable(e.to_string()))?.into_os_string();
    program.into_string().map_err(|p| Error::Executable(format!("{} is not UTF-8", p.display())))
}

/// Returns the user of this command according to its environment, or the user's number.
pub(crate) fn user() -> String {
    let name = ["USER", "LOGNAME"].into_iter().find_map(|variable| std::env::var(variable).ok());
    name.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_lines_are_recognized_and_lost_ones_are_counted() {
        let mut lines = ReceivedLines::default();
        let mut receive =
            |rank, stderr, number| lines.receive(&Output { rank, stderr, number, ..Output::default() });
        let new = |lost| LineStatus::New { lost };
        assert_eq!(
            [receive(0, false, 1), receive(0, false, 2), receive(0, true, 1)],
            [new(0), new(0), new(0)]
        );
        assert_eq!(
            [receive(0, false, 1), receive(0, false, 2), receive(0, false, 3)],
            [LineStatus::Duplicate, LineStatus::Duplicate, new(0)]
        );
        assert_eq!([receive(0, false, 7), receive(1, false, 2)], [new(3), new(1)]);
        // An agent that does not number its lines.
        assert_eq!([receive(0, false, 0), receive(0, false, 0)], [new(0), new(0)]);
        let exited = Exited { rank: 0, stdout_lines: 9, stderr_lines: 1, ..Exited::default() };
        assert_eq!([lines.missing(&exited), lines.missing(&exited)], [2, 0]);
    }

    #[test]
    fn a_number_of_ranks_starts_at_1() {
        assert_eq!(positive("3").map(NonZeroU32::get), Ok(3));
        for wrong in ["0", "-1", "x", ""] {
            assert!(positive(wrong).unwrap_err().contains("whole number from 1"), "{wrong}");
        }
    }
}
