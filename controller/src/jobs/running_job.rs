//! One job from start to end: forms its group, runs its ranks, and releases the group. The first
//! failure ends the job, unless the job is to survive lost ranks.
//!
//! [`crate::jobs`] keeps the list of jobs and delivers their events, and [`crate::jobs::control`]
//! handles requests to end a job.

use crate::agents::{Session, SessionEvent, SessionMessage};
use crate::groups::{FIRST_EPOCH, GroupRegistry, MemberPlace, by_node};
use crate::jobs::caller_event_stream::{CallerEvent, CallerEventStream};
use crate::jobs::control::JobControl;
use crate::jobs::job_failure::JobFailure;
use crate::timeouts::Timeouts;
use cool_fabric::Fabric;
use cool_proto::control::{
    Exited, Finished, Group, JobSpec, Kill, Launch, Output, Started, controller_message::Body, job_event,
    job_view::State,
};
use cool_proto::job_ids;
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{info, warn};

/// Returns a signal's number and name as in "signal 11 (SIGSEGV)".
fn signal_name(signal: i32) -> String {
    ExitStatus::from_raw(signal).to_string().replacen("signal: ", "signal ", 1)
}

/// Why a job ends early, or why this controller stops running it.
#[derive(Debug)]
pub(crate) enum JobInterruption {
    /// The job fails.
    Failed(JobFailure),
    /// The next controller continues the job.
    HandedOver,
}

impl From<JobFailure> for JobInterruption {
    fn from(failure: JobFailure) -> JobInterruption {
        JobInterruption::Failed(failure)
    }
}

/// A job from its allocation to its end.
pub struct RunningJob {
    /// Id of the job.
    pub id: u64,
    /// Id of its world group.
    pub group: u64,
    /// The request.
    pub spec: JobSpec,
    /// Place of each rank.
    pub places: Vec<MemberPlace>,
    /// Messages from sessions.
    pub mailbox: mpsc::Receiver<SessionMessage>,
    /// Queue of events for its caller.
    pub(crate) event_stream: CallerEventStream,
    /// State of its ranks, if an earlier controller started the job.
    pub resumed: Option<ResumedRanks>,
    /// Requests and the time limit.
    pub control: JobControl,
    /// Becomes true when the controller is shutting down and all received messages have been
    /// processed.
    pub handed_over: watch::Receiver<bool>,
    /// State of the job, as reported to tools.
    pub state: watch::Sender<State>,
    /// The network.
    pub network: Arc<dyn Fabric>,
    /// The groups in use.
    pub groups: Arc<GroupRegistry>,
    /// How long the job waits for agents, ranks and its caller.
    pub timeouts: Timeouts,
    /// Ranks that did not end in time.
    pub unended: BTreeSet<u32>,
}

/// The ranks of a resumed job.
#[derive(Debug, Default)]
pub struct ResumedRanks {
    /// Running ranks.
    pub running: BTreeSet<u32>,
    /// Exits of the other ranks, each with the session that reported it.
    pub exited: Vec<(u32, Exited)>,
}

/// Progress of the job: the agents and ranks for which it waits, and the ranks that have ended.
#[derive(Default)]
struct RankStates {
    /// Sessions that are not ready for the group.
    unready: BTreeSet<u32>,
    /// Running ranks.
    running: BTreeSet<u32>,
    /// The first loss, in a job that survives it.
    lost: Option<JobFailure>,
    /// Number of ranks that have exited successfully.
    ended: usize,
}

impl RunningJob {
    /// Runs the job to its end. Returns its result for the caller, or `None` if the next controller
    /// continues it.
    pub async fn run(&mut self) -> Option<Finished> {
        let mut progress = RankStates::default();
        let outcome = match self.resumed.take() {
            None => self.form_and_run(&mut progress).await,
            Some(ranks) => self.resume(ranks, &mut progress).await,
        };
        let finished = match outcome {
            Ok(()) => Finished::default(),
            Err(JobInterruption::HandedOver) => return None,
            Err(JobInterruption::Failed(JobFailure { code, rank, reason })) => {
                info!(reason, "job fails");
                self.state.send_replace(State::Ending);
                self.control.disable();
                let mut handed_over = self.handed_over.clone();
                tokio::select! {
                    () = self.terminate_ranks(&mut progress) => {}
                    // Agents report the exits to the next controller.
                    () = is_set(&mut handed_over) => return None,
                }
                self.unended = std::mem::take(&mut progress.running);
                let reason = reason + &self.unended_note();
                Finished { code, rank, reason }
            }
        };
        self.groups.release(&*self.network, self.group, &self.places).await;
        Some(finished)
    }

    async fn form_and_run(&mut self, progress: &mut RankStates) -> Result<(), JobInterruption> {
        let group = self.form(progress).await?;
        self.launch(progress)?;
        self.set_running();
        let group = group.without_keys();
        self.event_stream.queue_event(job_event::Body::Started(Started { job: self.id, group: Some(group) }));
        self.watch(progress).await
    }

    /// Marks the job as running and starts its time limit.
    fn set_running(&mut self) {
        self.state.send_replace(State::Running);
        self.control.start_time_limit(Duration::from_millis(self.spec.time_limit_ms));
    }

    /// Waits for all ranks to exit.
    async fn watch(&mut self, progress: &mut RankStates) -> Result<(), JobInterruption> {
        while !progress.running.is_empty() {
            let message = self.next().await?;
            self.record(message, progress)?;
        }
        match progress.lost.take() {
            Some(lost) if progress.ended == 0 => Err(lost.into()),
            _ => Ok(()),
        }
    }

    /// Continues a job of an earlier controller. Its caller must reconnect first, because only the
    /// caller knows the request.
    async fn resume(
        &mut self,
        ranks: ResumedRanks,
        progress: &mut RankStates,
    ) -> Result<(), JobInterruption> {
        progress.running = ranks.running;
        let mut messages = Vec::new();
        self.spec = loop {
            tokio::select! {
                stopped = self.control.wait_for_end(self.id, &self.places) => return Err(stopped.into()),
                () = is_set(&mut self.handed_over) => return Err(JobInterruption::HandedOver),
                spec = self.event_stream.wait_for_caller() => match spec {
                    Some(spec) => break spec,
                    None => return Err(self.caller_lost().into()),
                },
                Some(message) = self.mailbox.recv() => match message.event {
                    SessionEvent::Output(output) if self.runs_on(output.rank, message.from) => {
                        self.event_stream.queue_event(job_event::Body::Output(output));
                    }
                    _ => messages.push(message),
                },
            }
        };
        self.set_running();
        let exited: BTreeSet<u32> = ranks.exited.iter().map(|(_, exited)| exited.rank).collect();
        let all = 0..self.places.len() as u32;
        if let Some(rank) = all.clone().find(|r| !progress.running.contains(r) && !exited.contains(r)) {
            return Err(JobFailure::new(format!(
                "rank {rank} had not been started by the previous controller"
            ))
            .into());
        }
        progress.running.extend(&exited);
        let ended = |(from, exited)| SessionMessage { from, event: SessionEvent::Exited(exited) };
        for message in ranks.exited.into_iter().map(ended).chain(messages) {
            self.record(message, progress)?;
        }
        self.watch(progress).await
    }

    /// Forms the group and waits until all members are ready.
    async fn form(&mut self, progress: &mut RankStates) -> Result<Group, JobInterruption> {
        let made = self.groups.form(&*self.network, self.group, self.id, &self.places).await;
        let group = made.map_err(JobFailure::new)?;
        progress.unready.extend(by_node(&self.places).into_keys());
        let deadline = Instant::now() + self.timeouts.group_ready;
        while !progress.unready.is_empty() {
            let Ok(message) = timeout_at(deadline, self.next()).await else {
                return Err(self.not_ready(&progress.unready).into());
            };
            self.record(message?, progress)?;
        }
        // Trees may have been withdrawn.
        Ok(self.groups.description(self.group).unwrap_or(group))
    }

    fn not_ready(&self, unready: &BTreeSet<u32>) -> JobFailure {
        let (nodes, waited) = (self.names(unready), self.timeouts.group_ready);
        JobFailure::new(format!(
            "group {}: not ready on {nodes} within {waited:?}; check the logs of the agents there",
            job_ids::short(self.group)
        ))
    }

    /// Starts the ranks.
    fn launch(&self, progress: &mut RankStates) -> Result<(), JobFailure> {
        for (session, ranks) in by_node(&self.places).into_values() {
            let launch = Launch {
                job: self.id,
                group: self.group,
                ranks: ranks.clone(),
                size: self.places.len() as u32,
                program: self.spec.program.clone(),
                args: self.spec.args.clone(),
                env: self.spec.env.clone(),
                workdir: self.spec.workdir.clone(),
                user: self.spec.user.clone(),
                partial_lines: self.spec.partial_lines,
            };
            session.set_excluded(false);
            session.send(Body::Launch(launch)).map_err(|e| JobFailure::new(e.to_string()))?;
            progress.running.extend(ranks);
        }
        Ok(())
    }

    /// Returns the next message of a session, or the reason to stop.
    async fn next(&mut self) -> Result<SessionMessage, JobInterruption> {
        loop {
            let failure = tokio::select! {
                stopped = self.control.wait_for_end(self.id, &self.places) => stopped,
                () = is_set(&mut self.handed_over) => return Err(JobInterruption::HandedOver),
                reaction = self.event_stream.next_event() => match reaction {
                    CallerEvent::CallerLost => self.caller_lost(),
                    CallerEvent::Hold(held) => {
                        self.hold(held);
                        continue;
                    }
                },
                message = self.mailbox.recv() => match message {
                    Some(message) => return Ok(message),
                    None => JobFailure::new("the controller dropped the job"),
                },
            };
            return Err(failure.into());
        }
    }

    fn caller_lost(&self) -> JobFailure {
        JobFailure::new(format!("its caller has not reconnected within {:?}", self.timeouts.caller))
    }

    /// Makes ranks block when they print, or lets them continue.
    fn hold(&self, held: bool) {
        for (session, _) in by_node(&self.places).into_values() {
            // If the session has ended, its ranks are lost too.
            session.send_hold(self.id, held);
        }
    }

    /// Processes a message of a session and forwards the caller's events.
    fn record(&mut self, message: SessionMessage, progress: &mut RankStates) -> Result<(), JobFailure> {
        let SessionMessage { from, event } = message;
        match event {
            SessionEvent::Ready(_) | SessionEvent::GroupFailed(_) if !self.has_session(from) => {
                warn!(session = from, "an agent reported the group of a job on other nodes");
                Ok(())
            }
            SessionEvent::Ready(FIRST_EPOCH) => {
                progress.unready.remove(&from);
                Ok(())
            }
            SessionEvent::Ready(epoch) => {
                warn!(
                    node = self.names(&[from].into()),
                    epoch, "ready in an epoch that the group does not have"
                );
                Ok(())
            }
            SessionEvent::GroupFailed(reason) => {
                progress.unready.remove(&from);
                let node = self.names(&[from].into());
                Err(JobFailure::new(format!(
                    "group {} failed on {node}: {reason}",
                    job_ids::short(self.group)
                )))
            }
            SessionEvent::Output(output) if self.runs_on(output.rank, from) => {
                self.event_stream.queue_event(job_event::Body::Output(output));
                Ok(())
            }
            SessionEvent::Exited(exited) if self.runs_on(exited.rank, from) => {
                // Count the exit of a rank once, even if its agent reports it twice.
                if !progress.running.remove(&exited.rank) {
                    return Ok(());
                }
                let failure = self.failure_of(&exited);
                progress.ended += usize::from(failure.is_none());
                let excluded = self.places[exited.rank as usize].session.is_excluded();
                let survived = self.spec.survive && (exited.signal != 0 || excluded);
                self.event_stream.queue_event(job_event::Body::Exited(exited));
                match failure {
                    Some(failure) if survived => survive(failure, progress),
                    Some(failure) => return Err(failure),
                    None => {}
                }
                Ok(())
            }
            SessionEvent::Output(Output { rank, .. }) | SessionEvent::Exited(Exited { rank, .. }) => {
                warn!(node = self.names(&[from].into()), rank, "an agent reported a rank of another node");
                Ok(())
            }
            SessionEvent::NodeLost(reason) => self.node_lost(from, &reason, progress),
            // The group of a job is released when its ranks have exited.
            SessionEvent::Unused => Ok(()),
        }
    }

    fn node_lost(&self, from: u32, reason: &str, progress: &mut RankStates) -> Result<(), JobFailure> {
        let lost: Vec<u32> =
            progress.running.iter().copied().filter(|rank| self.runs_on(*rank, from)).collect();
        progress.running.retain(|rank| !lost.contains(rank));
        if !progress.unready.remove(&from) && lost.is_empty() {
            return Ok(());
        }
        let node = self.names(&[from].into());
        let reason = format!("node {node} was lost: {reason}");
        let failure = JobFailure { rank: lost.first().copied(), ..JobFailure::new(reason) };
        if !self.spec.survive || lost.is_empty() {
            return Err(failure);
        }
        survive(failure, progress);
        Ok(())
    }

    fn failure_of(&self, exited: &Exited) -> Option<JobFailure> {
        let (rank, node) = (exited.rank, &self.places[exited.rank as usize].session.agent.name);
        let (code, outcome) = match exited {
            Exited { error, code, .. } if !error.is_empty() => ((*code).max(1), format!(": {error}")),
            Exited { signal, .. } if *signal != 0 => {
                (128_i32.saturating_add(*signal), format!(" was killed by {}", signal_name(*signal)))
            }
            Exited { code: 0, .. } => return None,
            Exited { code, .. } => (*code, format!(" exited with status {code}")),
        };
        Some(JobFailure { code, rank: Some(rank), reason: format!("rank {rank} on {node}{outcome}") })
    }

    /// Kills all running ranks and waits for their exit. Meanwhile, the caller receives the output
    /// of the ranks, which is held at the nodes if the caller is slower than they are.
    async fn terminate_ranks(&mut self, progress: &mut RankStates) {
        for (session, ranks) in by_node(&self.places).into_values() {
            if ranks.iter().any(|rank| progress.running.contains(rank)) {
                // If the session has ended, this job is informed separately.
                let _ = session.send(Body::Kill(Kill { job: self.id }));
            }
        }
        let mut deadline = self.end_deadline();
        let mut caller_lost = false;
        while !progress.running.is_empty() {
            let message = tokio::select! {
                event = self.event_stream.next_event(), if !caller_lost => {
                    match event {
                        CallerEvent::CallerLost => caller_lost = true,
                        CallerEvent::Hold(held) => self.hold(held),
                    }
                    deadline = self.end_deadline();
                    continue;
                }
                message = self.mailbox.recv() => message,
                () = sleep_until(deadline) => None,
            };
            let Some(message) = message else {
                warn!(ranks = ?progress.running, "their agents have not reported the end of these ranks");
                return;
            };
            // Ignore further failures, because they follow from the first one.
            let _ = self.record(message, progress);
        }
    }

    /// Returns the time until which ranks that have been terminated now must have exited. If their
    /// output is held, their agents report it and their exits later.
    fn end_deadline(&self) -> Instant {
        let held = if self.event_stream.is_held() { self.timeouts.unread } else { Duration::ZERO };
        Instant::now() + self.timeouts.end + held
    }

    /// Returns the ranks that did not end in time, by session.
    pub(crate) fn unended_ranks(&self) -> Vec<(Arc<Session>, BTreeSet<u32>)> {
        let unended =
            |ranks: Vec<u32>| ranks.into_iter().filter(|rank| self.unended.contains(rank)).collect();
        let by_node = by_node(&self.places).into_values().map(|(session, ranks)| (session, unended(ranks)));
        by_node.filter(|(_, ranks): &(_, BTreeSet<u32>)| !ranks.is_empty()).collect()
    }

    fn unended_note(&self) -> String {
        let sessions: BTreeSet<u32> =
            self.unended_ranks().iter().map(|(session, _)| session.number).collect();
        if sessions.is_empty() {
            return String::new();
        }
        let (nodes, within) = (self.names(&sessions), self.timeouts.end);
        format!("; ranks on {nodes} have not ended within {within:?} (`cool topology` lists them)")
    }

    fn has_session(&self, session: u32) -> bool {
        self.places.iter().any(|place| place.session.number == session)
    }

    fn runs_on(&self, rank: u32, session: u32) -> bool {
        self.places.get(rank as usize).is_some_and(|p| p.session.number == session)
    }

    /// Returns the names of the nodes of these sessions.
    fn names(&self, sessions: &BTreeSet<u32>) -> String {
        let name = |(session, _): (Arc<Session>, Vec<u32>)| session.agent.name.clone();
        let nodes = by_node(&self.places).into_iter().filter(|(number, _)| sessions.contains(number));
        nodes.map(|(_, node)| name(node)).collect::<Vec<_>>().join(", ")
    }
}

/// Waits until a flag is true.
pub(crate) async fn is_set(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|set| *set).await.is_err() {
        std::future::pending().await
    }
}

/// Continues the job without the lost ranks. Keeps the first loss as the reason if no rank remains.
fn survive(failure: JobFailure, progress: &mut RankStates) {
    info!(reason = failure.reason, "job continues");
    progress.lost.get_or_insert(failure);
}
