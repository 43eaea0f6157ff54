//! The running jobs: their numbers, the slots they use, and the way of events to them.
//!
//! What a job does is [`crate::jobs::job`]'s; where its ranks go is decided by [`mod@crate::jobs::allocate`].

pub mod allocate;
pub mod control;
pub mod job;

use crate::agents::{Agents, Session};
use crate::fabric::Fabric;
use crate::groups::{Groups, Place};
use crate::jobs::allocate::{AllocateError, AllocationRequest, Host, Placement, allocate, natural};
use crate::jobs::control::{ControlRequest, JobControl};
use crate::jobs::job::{Caller, Job, Limits, Post, Ranks, Resumed, SessionEvent};
use cool_proto::control::{JobEvent, JobSpec, JobView, job_event, job_spec, job_view};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tonic::Status;
use tracing::{Instrument, debug, info, info_span};

/// Events that wait for a job; further ones wait at their agents.
const MAILBOX: usize = 1024;

/// Orders that wait for a job.
const ORDERS: usize = 16;

/// Signals that can be passed on: Linux has 64.
const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;

/// Why a job is not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The request names no program.
    #[error("no program to run is named")]
    NoProgram,
    /// The placement is not one of the contract's.
    #[error("placement {0} is unknown; it is 0 (racked) or 1 (interleaved)")]
    Placement(i32),
    /// Nodes are named on which nothing can run.
    #[error("--hosts: no node {} is ready; those are {}", .unknown.join(", "), .ready.join(", "))]
    Hosts {
        /// Those.
        unknown: Vec<String>,
        /// Where ranks could run.
        ready: Vec<String>,
    },
    /// Racks are named that have no nodes.
    #[error("--racks: no node of rack {} is ready; `cool topology` shows the racks", numbers(.0))]
    Racks(Vec<u32>),
    /// There is no room.
    #[error("{error}{}", unlocated_note(.unlocated))]
    Allocate {
        /// What is lacking.
        error: AllocateError,
        /// Nodes that have registered but are not found on the network.
        unlocated: Vec<String>,
    },
    /// Nothing is started any more.
    #[error(
        "the controller is drained: it starts no jobs until `cool drain --end`, or until it is restarted"
    )]
    Drained,
    /// The controller is about to end.
    #[error("the controller stops; ask the next one")]
    Closed,
}

fn numbers(racks: &[u32]) -> String {
    racks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

fn unlocated_note(nodes: &[String]) -> String {
    match nodes {
        [] => String::new(),
        nodes => format!("; registered, but not found by LLDP: {}", nodes.join(", ")),
    }
}

/// All running jobs.
pub struct Jobs {
    network: Arc<dyn Fabric>,
    agents: Arc<Agents>,
    groups: Arc<Groups>,
    limits: Limits,
    state: Mutex<State>,
    handed_over: watch::Sender<bool>,
    /// A job has ended.
    ended: Notify,
}

#[derive(Default)]
struct State {
    /// The last job; its number is not used again.
    last: u64,
    /// Nothing is started any more: the operator wants it, or the controller stops.
    drained: bool,
    closed: bool,
    running: BTreeMap<u64, Entry>,
}

struct Entry {
    group: u64,
    mailbox: mpsc::Sender<Post>,
    /// Slots used, by session.
    slots: BTreeMap<u32, u32>,
    orders: mpsc::Sender<ControlRequest>,
    /// To a job of an earlier controller, whose caller is to come back.
    attend: Option<mpsc::Sender<(Caller, JobSpec)>>,
    /// What others may know of it.
    view: JobView,
    state: watch::Receiver<job_view::State>,
    since: Instant,
}

/// Why nothing can be done with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// It has ended, or its nodes have not come back yet.
    #[error("no job {0} runs here, or its nodes have not come back yet")]
    NoJob(u64),
    /// Whoever started it listens.
    #[error("somebody else attends job {0}")]
    Attended(u64),
    /// Earlier orders wait.
    #[error("job {0} has not taken note of earlier orders yet; try again")]
    Busy(u64),
    /// No such signal.
    #[error("there is no signal {0}; signals are {first} to {last}", first = SIGNALS.start(), last = SIGNALS.end())]
    Signal(i32),
}

/// Where what concerns a resumed job arrives.
pub struct Inlets {
    /// What sessions say.
    pub mailbox: mpsc::Receiver<Post>,
    /// Callers who come back, and what they asked for.
    pub callers: mpsc::Receiver<(Caller, JobSpec)>,
    /// What operators want.
    pub orders: mpsc::Receiver<ControlRequest>,
    /// How far the job is, for whoever asks.
    pub state: watch::Sender<job_view::State>,
}

impl Jobs {
    /// No jobs yet.
    pub fn new(network: Arc<dyn Fabric>, agents: Arc<Agents>, groups: Arc<Groups>, limits: Limits) -> Jobs {
        let (state, handed_over) = (Mutex::default(), watch::Sender::default());
        Jobs { network, agents, groups, limits, state, handed_over, ended: Notify::new() }
    }

    /// Places a job and starts it; it speaks to `caller` until it has finished, and ends if `caller` closes.
    ///
    /// # Errors
    /// If the request makes no sense or there is no room for it.
    pub fn submit(self: &Arc<Jobs>, spec: JobSpec, caller: Caller) -> Result<(), SubmitError> {
        if spec.program.is_empty() {
            return Err(SubmitError::NoProgram);
        }
        let placement = match job_spec::Placement::try_from(spec.placement) {
            Ok(job_spec::Placement::Racked) => Placement::Racked,
            Ok(job_spec::Placement::Interleaved) => Placement::Interleaved,
            Err(_) => return Err(SubmitError::Placement(spec.placement)),
        };
        let request = AllocationRequest { ranks: spec.ranks, per_node: spec.ranks_per_node, placement };
        let within = Within { hosts: &spec.hosts, racks: &spec.racks };

        let mut state = self.state.lock();
        if state.closed {
            return Err(SubmitError::Closed);
        }
        if state.drained {
            return Err(SubmitError::Drained);
        }
        let places = self.place(&state, within, request)?;
        state.last += 1;
        let (id, group) = (state.last, self.groups.number());
        let (mut entry, inlets) = Entry::new(id, group, job_view::State::Forming);
        for place in &places {
            *entry.slots.entry(place.session.number).or_insert(0) += 1;
        }
        entry.attend = None;
        entry.view.spec = Some(shown(spec.clone()));
        entry.view.nodes = nodes(&places);
        state.running.insert(id, entry);
        drop(state);

        info!(job = id, group, ranks = places.len(), program = spec.program, "job starts");
        let job = Job {
            id,
            group,
            spec,
            places,
            mailbox: inlets.mailbox,
            caller,
            caller_listens: true,
            resumed: None,
            control: JobControl::new(inlets.orders),
            handed_over: self.handed_over.subscribe(),
            state: inlets.state,
            network: self.network.clone(),
            groups: self.groups.clone(),
            limits: self.limits,
        };
        tokio::spawn(self.clone().run(job).instrument(info_span!("job", id, group)));
        Ok(())
    }

    /// A job of an earlier controller: its number is taken, and what concerns it is kept until it
    /// is resumed. `None` if the number is in use.
    pub fn reserve(&self, id: u64, group: u64) -> Option<Inlets> {
        let mut state = self.state.lock();
        state.last = state.last.max(id);
        if state.closed || state.running.contains_key(&id) {
            return None;
        }
        let (entry, inlets) = Entry::new(id, group, job_view::State::Awaited);
        state.running.insert(id, entry);
        Some(inlets)
    }

    /// A session has `ranks` ranks of a reserved job.
    pub fn occupy(&self, id: u64, session: &Session, ranks: u32) {
        if let Some(entry) = self.state.lock().running.get_mut(&id) {
            entry.slots.insert(session.number, ranks);
        }
    }

    /// A reserved job will not be resumed.
    pub fn forget(&self, id: u64) {
        self.state.lock().running.remove(&id);
        self.ended.notify_waiters();
    }

    /// Resumes a reserved job whose nodes have all come back.
    pub fn resume(self: &Arc<Jobs>, id: u64, group: u64, places: Vec<Place>, inlets: Inlets, ranks: Ranks) {
        info!(job = id, group, ranks = places.len(), "job goes on");
        if let Some(entry) = self.state.lock().running.get_mut(&id) {
            entry.view.nodes = nodes(&places);
        }
        // Nobody listens at this one: the caller is to come back.
        let (caller, _) = mpsc::channel(1);
        let job = Job {
            id,
            group,
            spec: JobSpec::default(),
            places,
            mailbox: inlets.mailbox,
            caller,
            caller_listens: false,
            resumed: Some(Resumed { callers: inlets.callers, ranks }),
            control: JobControl::new(inlets.orders),
            handed_over: self.handed_over.subscribe(),
            state: inlets.state,
            network: self.network.clone(),
            groups: self.groups.clone(),
            limits: self.limits,
        };
        tokio::spawn(self.clone().run(job).instrument(info_span!("job", id, group)));
    }

    /// Lets `caller`, who asked for `spec`, listen to a job that was, or will be, resumed.
    ///
    /// # Errors
    /// If there is no such job, or somebody listens.
    pub fn attend(&self, job: u64, caller: Caller, spec: JobSpec) -> Result<(), JobError> {
        let mut state = self.state.lock();
        let entry = state.running.get_mut(&job).ok_or(JobError::NoJob(job))?;
        let attend = entry.attend.as_ref().ok_or(JobError::Attended(job))?;
        let view = shown(spec.clone());
        attend.try_send((caller, spec)).map_err(|_| JobError::Attended(job))?;
        entry.view.spec = Some(view);
        Ok(())
    }

    /// The jobs that run.
    pub fn list(&self) -> Vec<JobView> {
        let view = |entry: &Entry| JobView {
            state: (*entry.state.borrow()).into(),
            running_ms: u64::try_from(entry.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            ..entry.view.clone()
        };
        self.state.lock().running.values().map(view).collect()
    }

    /// Gives a job an order.
    ///
    /// # Errors
    /// If there is no such job or signal, or the job is behind.
    pub fn order(&self, job: u64, order: ControlRequest) -> Result<(), JobError> {
        if let ControlRequest::Signal(signal) = order
            && !SIGNALS.contains(&signal)
        {
            return Err(JobError::Signal(signal));
        }
        let state = self.state.lock();
        let entry = state.running.get(&job).ok_or(JobError::NoJob(job))?;
        info!(job, ?order, "ordered");
        entry.orders.try_send(order).map_err(|_| JobError::Busy(job))
    }

    async fn run(self: Arc<Jobs>, mut job: Job) {
        let finished = job.run().await;
        self.state.lock().running.remove(&job.id);
        self.ended.notify_waiters();
        let Some(finished) = finished else {
            info!("job is handed over");
            // Whoever started it comes back to the next controller.
            let stops = Err(Status::unavailable("the controller stops"));
            return drop(job.caller.send_timeout(stops, self.limits.caller).await);
        };
        info!(code = finished.code, rank = finished.rank, reason = finished.reason, "job finished");
        let event = JobEvent { body: Some(job_event::Body::Finished(finished)) };
        // A caller that is gone needs no answer.
        let _ = job.caller.send_timeout(Ok(event), self.limits.caller).await;
    }

    /// Finds a place for each rank.
    fn place(
        &self,
        state: &State,
        within: Within,
        request: AllocationRequest,
    ) -> Result<Vec<Place>, SubmitError> {
        let (mut hosts, mut sessions, mut unlocated) = (Vec::new(), Vec::new(), Vec::new());
        for node in &self.network.topology().nodes {
            let Some(session) = self.agents.get(&node.name).filter(|session| !session.is_away()) else {
                continue;
            };
            let Some(location) = node.location else {
                unlocated.push(node.name.clone());
                continue;
            };
            let slots = session.agent.slots;
            let used: u32 = state.running.values().filter_map(|e| e.slots.get(&session.number)).sum();
            let free = slots.saturating_sub(used);
            hosts.push(Host { name: node.name.clone(), rack: location.rack, slots, free });
            sessions.push(session);
        }
        within.check(&hosts)?;
        let (hosts, sessions): (Vec<_>, Vec<_>) =
            hosts.into_iter().zip(sessions).filter(|(host, _)| within.allows(host)).unzip();
        let places = allocate(&hosts, request).map_err(|error| SubmitError::Allocate { error, unlocated })?;
        let place = |host: usize| Place { session: sessions[host].clone(), rack: hosts[host].rack };
        Ok(places.into_iter().map(place).collect())
    }

    /// Passes on what an agent says of a job. Waits while the job is behind: a job is never behind for
    /// longer than [`Limits::caller`].
    pub async fn post(&self, session: &Session, job: u64, event: SessionEvent) {
        let mailbox = self.state.lock().running.get(&job).map(|e| e.mailbox.clone());
        deliver(mailbox, session, event).await;
    }

    /// The way to the job whose world group this is.
    pub fn mailbox_of_group(&self, group: u64) -> Option<mpsc::Sender<Post>> {
        self.state.lock().running.values().find(|e| e.group == group).map(|e| e.mailbox.clone())
    }

    /// Tells the jobs on a node that its session has ended.
    pub async fn node_left(&self, session: &Session, reason: &str) {
        let on_node = |e: &&Entry| e.slots.contains_key(&session.number);
        let mailboxes: Vec<_> =
            self.state.lock().running.values().filter(on_node).map(|e| e.mailbox.clone()).collect();
        for mailbox in mailboxes {
            deliver(Some(mailbox), session, SessionEvent::Left(reason.to_owned())).await;
        }
    }

    /// Starts no more jobs, or does so again.
    pub fn drain(&self, drained: bool) {
        info!(drained, "ordered");
        self.state.lock().drained = drained;
    }

    /// Waits until no job runs.
    pub async fn over(&self) {
        self.until(|state| state.running.is_empty()).await;
    }

    /// The controller stops: starts no more, and waits for those that are being started.
    pub async fn settle(&self) {
        self.state.lock().closed = true;
        let running = |entry: &Entry| entry.state.clone();
        let states: Vec<_> = self.state.lock().running.values().map(running).collect();
        for mut state in states {
            // One whose job has ended says nothing any more.
            let _ = state.wait_for(|state| *state != job_view::State::Forming).await;
        }
    }

    /// The controller stops: when callers have been told all that has come, they hear no more, and ranks run on.
    pub async fn hand_over(&self) {
        let followed = |entry: &&Entry| *entry.state.borrow() != job_view::State::Awaited;
        let mailboxes: Vec<_> =
            self.state.lock().running.values().filter(followed).map(|entry| entry.mailbox.clone()).collect();
        for mailbox in mailboxes {
            // All the room is free when all has been taken; one whose job has ended has none.
            drop(mailbox.reserve_many(MAILBOX).await);
        }
        self.handed_over.send_replace(true);
        self.until(|state| state.running.values().all(|entry| !followed(&entry))).await;
    }

    async fn until(&self, condition: impl Fn(&State) -> bool) {
        loop {
            let ended = self.ended.notified();
            if condition(&self.state.lock()) {
                return;
            }
            ended.await;
        }
    }
}

impl Entry {
    /// A job with nothing on any node yet, and what its life needs.
    fn new(job: u64, group: u64, state: job_view::State) -> (Entry, Inlets) {
        let (sender, mailbox) = mpsc::channel(MAILBOX);
        let (orders, ordered) = mpsc::channel(ORDERS);
        let (attend, callers) = mpsc::channel(1);
        let (shown, state) = watch::channel(state);
        let entry = Entry {
            group,
            mailbox: sender,
            slots: BTreeMap::new(),
            orders,
            attend: Some(attend),
            view: JobView { job, group, ..JobView::default() },
            state,
            since: Instant::now(),
        };
        (entry, Inlets { mailbox, callers, orders: ordered, state: shown })
    }
}

/// Where a job may run; nothing said: anywhere.
#[derive(Clone, Copy)]
struct Within<'a> {
    hosts: &'a [String],
    racks: &'a [u32],
}

impl Within<'_> {
    fn allows(&self, host: &Host) -> bool {
        (self.hosts.is_empty() || self.hosts.contains(&host.name))
            && (self.racks.is_empty() || self.racks.contains(&host.rack))
    }

    /// Whether everything that is named is there.
    fn check(&self, ready: &[Host]) -> Result<(), SubmitError> {
        let (names, racks): (BTreeSet<_>, BTreeSet<_>) =
            ready.iter().map(|host| (host.name.as_str(), host.rack)).unzip();
        let unknown: Vec<_> = self.hosts.iter().filter(|h| !names.contains(h.as_str())).cloned().collect();
        if !unknown.is_empty() {
            let mut ready: Vec<String> = names.into_iter().map(str::to_owned).collect();
            ready.sort_by(|a, b| natural(a, b));
            return Err(SubmitError::Hosts { unknown, ready });
        }
        let empty: Vec<u32> = self.racks.iter().filter(|rack| !racks.contains(rack)).copied().collect();
        if empty.is_empty() { Ok(()) } else { Err(SubmitError::Racks(empty)) }
    }
}

/// What others may see of a request: variables may be secret.
fn shown(spec: JobSpec) -> JobSpec {
    JobSpec { env: HashMap::new(), ..spec }
}

fn nodes(places: &[Place]) -> Vec<String> {
    places.iter().map(|place| place.session.agent.name.clone()).collect()
}

/// Gives an event of a session to whom it concerns.
pub async fn deliver(mailbox: Option<mpsc::Sender<Post>>, session: &Session, event: SessionEvent) {
    let post = Post { from: session.number, event };
    let undelivered = match mailbox {
        Some(mailbox) => mailbox.send(post).await.err().map(|e| e.0),
        None => Some(post),
    };
    if let Some(Post { event, .. }) = undelivered {
        // Usual when a job has just ended: its ranks' last words come late.
        debug!(node = session.agent.name, ?event, "for a job or group that is over");
    }
}
