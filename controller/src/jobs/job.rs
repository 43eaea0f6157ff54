//! The life of one job: its group is formed, its ranks run, the first failure ends all (unless the
//! job is to survive what is lost), and whatever happens its group is released everywhere.
//!
//! Which jobs there are and how events find them is left to [`crate::jobs`], what ends one from outside to
//! [`crate::jobs::control`].

use crate::agents::Session;
use cool_fabric::Fabric;
use crate::groups::{FIRST_EPOCH, Groups, Place, by_node};
use crate::jobs::control::JobControl;
use crate::jobs::follower::{Follower, Reaction};
use cool_proto::control::{
    Exited, Finished, Group, HoldOutput, JobSpec, Kill, Launch, Output, Started, controller_message::Body,
    job_event, job_view::State,
};
use cool_proto::job_ids;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{info, warn};

/// How long a job waits for others, and how many there may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For all agents to be ready with the group.
    pub group_ready: Duration,
    /// For ranks that were told to end.
    pub end: Duration,
    /// For whoever started it, and is away, to come back.
    pub caller: Duration,
    /// For nodes to come back to a controller that was restarted.
    pub takeover: Duration,
    /// For an agent that is away to come back, before its node is gone.
    pub agent: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        let seconds = Duration::from_secs;
        Limits {
            group_ready: seconds(15),
            end: seconds(10),
            caller: seconds(60),
            takeover: seconds(30),
            agent: seconds(60),
        }
    }
}

/// Something an agent's session says to a job.
#[derive(Debug)]
pub struct Post {
    /// The session's number.
    pub from: u32,
    /// What it says.
    pub event: SessionEvent,
}

/// What a session says.
#[derive(Debug)]
pub enum SessionEvent {
    /// The agent is ready with the group, in this epoch.
    Ready(u32),
    /// The agent could not make the group, or lost it.
    GroupFailed(String),
    /// A line of a rank.
    Output(Output),
    /// A rank has ended.
    Exited(Exited),
    /// The session has ended, and why.
    Left(String),
    /// No rank of the node uses the group any more.
    Unused,
}

/// Why a job ends early, or its part under this controller does.
#[derive(Debug)]
pub(crate) enum Ending {
    /// It fails.
    Failed(JobFailure),
    /// Its ranks run on, for a controller that comes next.
    HandedOver,
}

impl From<JobFailure> for Ending {
    fn from(failure: JobFailure) -> Ending {
        Ending::Failed(failure)
    }
}

/// Why a job fails.
#[derive(Debug)]
pub(crate) struct JobFailure {
    pub(crate) code: i32,
    pub(crate) rank: Option<u32>,
    pub(crate) reason: String,
}

impl JobFailure {
    pub(crate) fn new(reason: impl Into<String>) -> JobFailure {
        JobFailure { code: 1, rank: None, reason: reason.into() }
    }
}

/// A job from its allocation to its end.
pub struct Job {
    /// Its number.
    pub id: u64,
    /// The number of its world group.
    pub group: u64,
    /// What was asked for.
    pub spec: JobSpec,
    /// Where each rank runs.
    pub places: Vec<Place>,
    /// From the sessions.
    pub mailbox: mpsc::Receiver<Post>,
    /// Who asked for it.
    pub(crate) follower: Follower,
    /// How its ranks are, if an earlier controller started it.
    pub resumed: Option<Ranks>,
    /// What may end it from outside.
    pub control: JobControl,
    /// True once the controller stops, and all that it heard has been passed on.
    pub handed_over: watch::Receiver<bool>,
    /// How far it is, for whoever asks.
    pub state: watch::Sender<State>,
    /// The network.
    pub network: Arc<dyn Fabric>,
    /// The groups in use.
    pub groups: Arc<Groups>,
    /// How long to wait.
    pub limits: Limits,
}

/// How the ranks of a resumed job are.
#[derive(Debug, Default)]
pub struct Ranks {
    /// Those that run.
    pub running: BTreeSet<u32>,
    /// How others ended, with the session that says so.
    pub exited: Vec<(u32, Exited)>,
}

/// Who is still to say something.
#[derive(Default)]
struct Awaited {
    /// Sessions that are not ready with the group.
    unready: BTreeSet<u32>,
    /// Ranks that run.
    running: BTreeSet<u32>,
    /// The first that was lost, in a job that survives it.
    lost: Option<JobFailure>,
    /// Ranks that have ended well.
    ended: usize,
}

impl Job {
    /// Runs the job to its end and returns what to tell the caller last; none if another controller is to go on.
    pub async fn run(&mut self) -> Option<Finished> {
        let mut awaited = Awaited::default();
        let outcome = match self.resumed.take() {
            None => self.form_and_run(&mut awaited).await,
            Some(ranks) => self.resume(ranks, &mut awaited).await,
        };
        let finished = match outcome {
            Ok(()) => Finished::default(),
            Err(Ending::HandedOver) => return None,
            Err(Ending::Failed(JobFailure { code, rank, reason })) => {
                info!(reason, "job fails");
                self.state.send_replace(State::Ending);
                self.control.ignore();
                let mut handed_over = self.handed_over.clone();
                tokio::select! {
                    () = self.end(&mut awaited) => {}
                    // Whoever comes next is told how its ranks ended.
                    () = is_set(&mut handed_over) => return None,
                }
                Finished { code, rank, reason }
            }
        };
        self.groups.release(&*self.network, self.group, &self.places).await;
        Some(finished)
    }

    async fn form_and_run(&mut self, awaited: &mut Awaited) -> Result<(), Ending> {
        let group = self.form(awaited).await?;
        self.launch(awaited)?;
        self.starts_to_run();
        let group = group.without_keys();
        self.follower.tell(job_event::Body::Started(Started { job: self.id, group: Some(group) }));
        self.watch(awaited).await
    }

    /// From here on time counts.
    fn starts_to_run(&mut self) {
        self.state.send_replace(State::Running);
        self.control.limit(Duration::from_millis(self.spec.time_limit_ms));
    }

    /// Waits for the ends of all ranks.
    async fn watch(&mut self, awaited: &mut Awaited) -> Result<(), Ending> {
        while !awaited.running.is_empty() {
            let post = self.next().await?;
            self.note(post, awaited)?;
        }
        match awaited.lost.take() {
            Some(lost) if awaited.ended == 0 => Err(lost.into()),
            _ => Ok(()),
        }
    }

    /// Goes on where an earlier controller was ended, when its caller has come back: only that knows what it asked for.
    async fn resume(&mut self, ranks: Ranks, awaited: &mut Awaited) -> Result<(), Ending> {
        awaited.running = ranks.running;
        let mut posts = Vec::new();
        self.spec = loop {
            tokio::select! {
                stopped = self.control.stop(self.id, &self.places) => return Err(stopped.into()),
                () = is_set(&mut self.handed_over) => return Err(Ending::HandedOver),
                came = self.follower.comes() => match came {
                    Some(spec) => break spec,
                    None => return Err(self.given_up().into()),
                },
                Some(post) = self.mailbox.recv() => match post.event {
                    SessionEvent::Output(output) if self.runs_on(output.rank, post.from) => {
                        self.follower.tell(job_event::Body::Output(output));
                    }
                    _ => posts.push(post),
                },
            }
        };
        self.starts_to_run();
        let exited: BTreeSet<u32> = ranks.exited.iter().map(|(_, exited)| exited.rank).collect();
        let all = 0..self.places.len() as u32;
        if let Some(rank) = all.clone().find(|r| !awaited.running.contains(r) && !exited.contains(r)) {
            return Err(JobFailure::new(format!("rank {rank} had not been started yet")).into());
        }
        awaited.running.extend(&exited);
        let ended = |(from, exited)| Post { from, event: SessionEvent::Exited(exited) };
        for post in ranks.exited.into_iter().map(ended).chain(posts) {
            self.note(post, awaited)?;
        }
        self.watch(awaited).await
    }

    /// Makes the group, in the network and at its members.
    async fn form(&mut self, awaited: &mut Awaited) -> Result<Group, Ending> {
        let made = self.groups.make(&*self.network, self.group, self.id, &self.places).await;
        let group = made.map_err(JobFailure::new)?;
        awaited.unready.extend(by_node(&self.places).into_keys());
        let deadline = Instant::now() + self.limits.group_ready;
        while !awaited.unready.is_empty() {
            let Ok(post) = timeout_at(deadline, self.next()).await else {
                return Err(self.not_ready(&awaited.unready).into());
            };
            self.note(post?, awaited)?;
        }
        Ok(group)
    }

    fn not_ready(&self, unready: &BTreeSet<u32>) -> JobFailure {
        let (nodes, waited) = (self.names(unready), self.limits.group_ready);
        JobFailure::new(format!(
            "group {}: not ready on {nodes} within {waited:?}; look at the logs of the agents there",
            job_ids::short(self.group)
        ))
    }

    /// Starts the ranks.
    fn launch(&self, awaited: &mut Awaited) -> Result<(), JobFailure> {
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
            };
            session.set_left_behind(false);
            session.send(Body::Launch(launch)).map_err(|e| JobFailure::new(e.to_string()))?;
            awaited.running.extend(ranks);
        }
        Ok(())
    }

    /// The next thing a session says, unless there is a reason to end first.
    async fn next(&mut self) -> Result<Post, Ending> {
        loop {
            let failure = tokio::select! {
                stopped = self.control.stop(self.id, &self.places) => stopped,
                () = is_set(&mut self.handed_over) => return Err(Ending::HandedOver),
                reaction = self.follower.follow() => match reaction {
                    Reaction::GivenUp => self.given_up(),
                    Reaction::Hold(held) => {
                        self.hold(held);
                        continue;
                    }
                },
                post = self.mailbox.recv() => match post {
                    Some(post) => return Ok(post),
                    None => JobFailure::new("the job was dropped"),
                },
            };
            return Err(failure.into());
        }
    }

    fn given_up(&self) -> JobFailure {
        JobFailure::new(format!("whoever started it has not come back within {:?}", self.limits.caller))
    }

    /// Lets the ranks wait when they print, or no more.
    fn hold(&self, held: bool) {
        for (session, _) in by_node(&self.places).into_values() {
            // If the agent is gone, so are its ranks.
            let _ = session.send(Body::Hold(HoldOutput { job: self.id, held }));
        }
    }

    /// Takes note of what a session says, and passes on what concerns the caller.
    fn note(&mut self, post: Post, awaited: &mut Awaited) -> Result<(), JobFailure> {
        let Post { from, event } = post;
        match event {
            SessionEvent::Ready(FIRST_EPOCH) => {
                awaited.unready.remove(&from);
                Ok(())
            }
            SessionEvent::Ready(epoch) => {
                warn!(node = self.names(&[from].into()), epoch, "ready in an epoch that the group is not in");
                Ok(())
            }
            SessionEvent::GroupFailed(reason) => {
                awaited.unready.remove(&from);
                let node = self.names(&[from].into());
                Err(JobFailure::new(format!(
                    "group {} failed on {node}: {reason}",
                    job_ids::short(self.group)
                )))
            }
            SessionEvent::Output(output) if self.runs_on(output.rank, from) => {
                self.follower.tell(job_event::Body::Output(output));
                Ok(())
            }
            SessionEvent::Exited(exited) if self.runs_on(exited.rank, from) => {
                // A rank ends once, also if its agent says so twice.
                if !awaited.running.remove(&exited.rank) {
                    return Ok(());
                }
                let failure = self.failure_of(&exited);
                awaited.ended += usize::from(failure.is_none());
                let behind = self.places[exited.rank as usize].session.is_left_behind();
                let survived = self.spec.survive && (exited.signal != 0 || behind);
                self.follower.tell(job_event::Body::Exited(exited));
                match failure {
                    Some(failure) if survived => survive(failure, awaited),
                    Some(failure) => return Err(failure),
                    None => {}
                }
                Ok(())
            }
            SessionEvent::Output(Output { rank, .. }) | SessionEvent::Exited(Exited { rank, .. }) => {
                warn!(
                    node = self.names(&[from].into()),
                    rank, "an agent speaks of a rank that is not its own"
                );
                Ok(())
            }
            SessionEvent::Left(reason) => self.node_left(from, &reason, awaited),
            // A job's group is released when its ranks have ended.
            SessionEvent::Unused => Ok(()),
        }
    }

    fn node_left(&self, from: u32, reason: &str, awaited: &mut Awaited) -> Result<(), JobFailure> {
        let lost: Vec<u32> =
            awaited.running.iter().copied().filter(|rank| self.runs_on(*rank, from)).collect();
        awaited.running.retain(|rank| !lost.contains(rank));
        if !awaited.unready.remove(&from) && lost.is_empty() {
            return Ok(());
        }
        let node = self.names(&[from].into());
        let reason = format!("node {node} was lost: {reason}");
        let failure = JobFailure { rank: lost.first().copied(), ..JobFailure::new(reason) };
        if !self.spec.survive || lost.is_empty() {
            return Err(failure);
        }
        survive(failure, awaited);
        Ok(())
    }

    fn failure_of(&self, exited: &Exited) -> Option<JobFailure> {
        let (rank, node) = (exited.rank, &self.places[exited.rank as usize].session.agent.name);
        let (code, what) = match exited {
            Exited { error, .. } if !error.is_empty() => (1, format!(": {error}")),
            Exited { signal, .. } if *signal != 0 => (128 + signal, format!(" was ended by signal {signal}")),
            Exited { code: 0, .. } => return None,
            Exited { code, .. } => (*code, format!(" exited with status {code}")),
        };
        Some(JobFailure { code, rank: Some(rank), reason: format!("rank {rank} on {node}{what}") })
    }

    /// Ends the ranks that run.
    async fn end(&mut self, awaited: &mut Awaited) {
        for (session, ranks) in by_node(&self.places).into_values() {
            if ranks.iter().any(|rank| awaited.running.contains(rank)) {
                // If the agent is gone, the session's end says so to this job too.
                let _ = session.send(Body::Kill(Kill { job: self.id }));
            }
        }
        let deadline = Instant::now() + self.limits.end;
        while !awaited.running.is_empty() {
            let post = tokio::select! {
                post = self.mailbox.recv() => post,
                () = sleep_until(deadline) => None,
            };
            let Some(post) = post else {
                warn!(ranks = ?awaited.running, "told to end, but their agents do not say that they have");
                return;
            };
            // The failure that ended the job came first; these follow from it.
            let _ = self.note(post, awaited);
        }
    }

    fn runs_on(&self, rank: u32, session: u32) -> bool {
        self.places.get(rank as usize).is_some_and(|p| p.session.number == session)
    }

    /// The names of the nodes of these sessions.
    fn names(&self, sessions: &BTreeSet<u32>) -> String {
        let of = |(session, _): (Arc<Session>, Vec<u32>)| session.agent.name.clone();
        let nodes = by_node(&self.places).into_iter().filter(|(number, _)| sessions.contains(number));
        nodes.map(|(_, node)| of(node)).collect::<Vec<_>>().join(", ")
    }
}

/// Waits until something is true.
pub(crate) async fn is_set(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|set| *set).await.is_err() {
        std::future::pending().await
    }
}

/// The job goes on without what is lost. Should nobody be left, that was why.
fn survive(failure: JobFailure, awaited: &mut Awaited) {
    info!(reason = failure.reason, "job goes on");
    awaited.lost.get_or_insert(failure);
}
