//! The running jobs: their numbers, the slots they use, and the way of events to them.
//!
//! What a job does is [`crate::jobs::job`]'s; where its ranks go is decided by [`mod@crate::jobs::allocate`].

pub mod allocate;
pub mod control;
pub mod follower;
pub mod job;

use crate::agents::{Agents, Session};
use cool_fabric::Fabric;
use crate::groups::{Groups, Place};
use crate::jobs::allocate::{AllocateError, AllocationRequest, Host, Placement, allocate, natural};
use crate::jobs::control::{ControlRequest, JobControl};
use crate::jobs::follower::{CallerArrival, Follower};
use crate::jobs::job::{Job, Limits, Post, Ranks, SessionEvent, is_set};
use cool_proto::control::{JobSpec, JobView, Submitted, job_event, job_spec, job_view};
use cool_proto::job_ids;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tracing::{Instrument, debug, info, info_span};

/// Events that wait for a job; further ones wait at their agents.
const MAILBOX: usize = 1024;

/// Orders that wait for a job, and callers.
const ORDERS: usize = 16;
const ARRIVALS: usize = 4;

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
    #[error("--racks: no node of rack {} is ready; `cool topology` shows the racks", list(.0))]
    Racks(Vec<u32>),
    /// The user has jobs enough.
    #[error("user {user} has {max} jobs, as many as one may (--jobs-per-user of the controller)")]
    JobsOfUser {
        /// Who.
        user: String,
        /// The limit.
        max: u32,
    },
    /// There is no room.
    #[error("{error}{}{}", unlocated_note(.unlocated), outdated_note(.outdated))]
    Allocate {
        /// What is lacking.
        error: AllocateError,
        /// Nodes that have registered but are not found on the network.
        unlocated: Vec<String>,
        /// Nodes whose agents lack a feature that the job needs.
        outdated: Vec<String>,
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

fn list<T: ToString>(numbers: &[T]) -> String {
    numbers.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

fn unlocated_note(nodes: &[String]) -> String {
    match nodes {
        [] => String::new(),
        nodes => format!("; registered, but not found by LLDP: {}", nodes.join(", ")),
    }
}

fn outdated_note(nodes: &[String]) -> String {
    match nodes {
        [] => String::new(),
        nodes => format!("; agents of an earlier release run no job as its user: {}", nodes.join(", ")),
    }
}

/// All running jobs.
pub struct Jobs {
    network: Arc<dyn Fabric>,
    agents: Arc<Agents>,
    groups: Arc<Groups>,
    limits: Limits,
    /// Jobs that one user may have at once.
    per_user: watch::Receiver<u32>,
    state: Mutex<State>,
    handed_over: watch::Sender<bool>,
    /// Since when the controller hears anybody.
    hearing: watch::Receiver<Option<Instant>>,
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
    /// Those that are over, while their callers are still to hear that: whose they were, and the way to them.
    over: BTreeMap<u64, (String, mpsc::Sender<CallerArrival>)>,
}

struct Entry {
    group: u64,
    /// Whose it is; empty if nobody has said so yet.
    user: String,
    mailbox: mpsc::Sender<Post>,
    /// Slots used, by session.
    slots: BTreeMap<u32, u32>,
    orders: mpsc::Sender<ControlRequest>,
    /// Callers who come back.
    arrivals: mpsc::Sender<CallerArrival>,
    /// What others may know of it.
    view: JobView,
    state: watch::Receiver<job_view::State>,
    since: Instant,
}

/// Why nothing can be done with a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// It has ended, or its nodes have not come back yet.
    #[error("no job {short} runs here, or its nodes have not come back yet", short = job_ids::short(*.0))]
    NoJob(u64),
    /// Several jobs of several lives of the controller end with this number.
    #[error("several jobs are meant by {0}: {list}; give the whole number", list = list(.1))]
    Several(u64, Vec<u64>),
    /// Earlier orders wait.
    #[error("job {short} has not taken note of earlier orders yet; try again", short = job_ids::short(*.0))]
    Busy(u64),
    /// No such signal.
    #[error("there is no signal {0}; signals are {first} to {last}", first = SIGNALS.start(), last = SIGNALS.end())]
    Signal(i32),
}

/// Where what concerns a resumed job arrives.
pub struct Inlets {
    /// What sessions say.
    pub mailbox: mpsc::Receiver<Post>,
    /// Callers who come back.
    pub arrivals: mpsc::Receiver<CallerArrival>,
    /// What operators want.
    pub orders: mpsc::Receiver<ControlRequest>,
    /// How far the job is, for whoever asks.
    pub state: watch::Sender<job_view::State>,
}

impl Jobs {
    /// No jobs yet; the first will have the number after `last`. `hearing` says since when the controller hears anybody.
    pub fn new(
        network: Arc<dyn Fabric>,
        agents: Arc<Agents>,
        groups: Arc<Groups>,
        (limits, per_user): (Limits, watch::Receiver<u32>),
        last: u64,
        hearing: watch::Receiver<Option<Instant>>,
    ) -> Jobs {
        let (state, handed_over) = (Mutex::new(State { last, ..State::default() }), watch::Sender::default());
        let ended = Notify::new();
        Jobs { network, agents, groups, limits, per_user, state, handed_over, hearing, ended }
    }

    /// Places a job and starts it, and returns its number; whoever asks for it hears of it until it has finished, and may go
    /// and come back. It runs where agents have the `needed` [features](cool_proto::features).
    ///
    /// # Errors
    /// If the request makes no sense or there is no room for it.
    pub fn submit(self: &Arc<Jobs>, arrival: CallerArrival, needed: u64) -> Result<u64, SubmitError> {
        let spec = arrival.spec.clone();
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
        let max = *self.per_user.borrow();
        if state.running.values().filter(|entry| entry.user == spec.user).count() >= max as usize {
            return Err(SubmitError::JobsOfUser { user: spec.user, max });
        }
        let places = self.place(&state, within, request, needed)?;
        state.last += 1;
        let (id, group) = (state.last, self.groups.number());
        let (mut entry, inlets) = Entry::new(id, group, job_view::State::Forming);
        for place in &places {
            *entry.slots.entry(place.session.number).or_insert(0) += 1;
        }
        entry.user.clone_from(&spec.user);
        entry.view.spec = Some(shown(spec.clone()));
        entry.view.nodes = nodes(&places);
        state.running.insert(id, entry);
        drop(state);

        info!(job = id, group, ranks = places.len(), program = spec.program, "job starts");
        let mut follower = self.follower(inlets.arrivals);
        follower.tell(job_event::Body::Submitted(Submitted { job: id }));
        follower.receive(arrival);
        let job = Job {
            id,
            group,
            spec,
            places,
            mailbox: inlets.mailbox,
            follower,
            resumed: None,
            control: JobControl::new(inlets.orders),
            handed_over: self.handed_over.subscribe(),
            state: inlets.state,
            network: self.network.clone(),
            groups: self.groups.clone(),
            limits: self.limits,
        };
        tokio::spawn(self.clone().run(job).instrument(info_span!("job", id, group)));
        Ok(id)
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

    /// A session has `ranks` ranks of a reserved job, which is this user's.
    pub fn occupy(&self, id: u64, session: &Session, ranks: u32, user: &str) {
        if let Some(entry) = self.state.lock().running.get_mut(&id) {
            entry.slots.insert(session.number, ranks);
            entry.user = user.to_owned();
        }
    }

    /// Whose a job is that runs, or was; empty if nobody has said so yet.
    pub fn user(&self, id: u64) -> Option<String> {
        let state = self.state.lock();
        let running = state.running.get(&id).map(|entry| &entry.user);
        running.or_else(|| state.over.get(&id).map(|(user, _)| user)).cloned()
    }

    /// The whole number of a job that runs, of these users, by that or by a short one.
    ///
    /// # Errors
    /// If there is none, or there are several.
    pub fn number(&self, said: u64, of: impl Fn(&str) -> bool) -> Result<u64, JobError> {
        let state = self.state.lock();
        if state.running.contains_key(&said) {
            return Ok(said);
        }
        let meant = |(id, entry): &(&u64, &Entry)| job_ids::short(**id) == said && of(&entry.user);
        let meant: Vec<u64> = state.running.iter().filter(meant).map(|(id, _)| *id).collect();
        match meant[..] {
            [] => Err(JobError::NoJob(said)),
            [id] => Ok(id),
            _ => Err(JobError::Several(said, meant)),
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
        let job = Job {
            id,
            group,
            spec: JobSpec::default(),
            places,
            mailbox: inlets.mailbox,
            follower: self.follower(inlets.arrivals),
            resumed: Some(ranks),
            control: JobControl::new(inlets.orders),
            handed_over: self.handed_over.subscribe(),
            state: inlets.state,
            network: self.network.clone(),
            groups: self.groups.clone(),
            limits: self.limits,
        };
        tokio::spawn(self.clone().run(job).instrument(info_span!("job", id, group)));
    }

    fn follower(&self, arrivals: mpsc::Receiver<CallerArrival>) -> Follower {
        Follower::new(arrivals, self.limits.caller, self.hearing.clone())
    }

    /// Lets whoever started a job follow it again, in the place of whoever does so; also one that will be resumed, or is over.
    ///
    /// # Errors
    /// If there is no such job, or many come at once.
    pub fn attend(&self, job: u64, arrival: CallerArrival) -> Result<(), JobError> {
        let mut state = self.state.lock();
        let view = shown(arrival.spec.clone());
        let running = state.running.get(&job).map(|entry| &entry.arrivals);
        let arrivals = running.or_else(|| state.over.get(&job).map(|(_, arrivals)| arrivals));
        arrivals.ok_or(JobError::NoJob(job))?.try_send(arrival).map_err(|_| JobError::Busy(job))?;
        if let Some(entry) = state.running.get_mut(&job) {
            // Agents of before do not say whose jobs they have.
            if entry.user.is_empty() {
                entry.user.clone_from(&view.user);
            }
            entry.view.spec = Some(view);
        }
        Ok(())
    }

    /// The jobs that run, of these users.
    pub fn list(&self, of: impl Fn(&str) -> bool) -> Vec<JobView> {
        let view = |entry: &Entry| JobView {
            state: (*entry.state.borrow()).into(),
            running_ms: u64::try_from(entry.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            ..entry.view.clone()
        };
        self.state.lock().running.values().filter(|entry| of(&entry.user)).map(view).collect()
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
        {
            let mut state = self.state.lock();
            if let Some(entry) = state.running.remove(&job.id) {
                state.over.insert(job.id, (entry.user, entry.arrivals));
            }
        }
        self.ended.notify_waiters();
        match finished {
            Some(finished) => {
                info!(code = finished.code, rank = finished.rank, reason = finished.reason, "job finished");
                job.follower.tell(job_event::Body::Finished(finished));
                tokio::select! {
                    // Its caller may have lost the connection on which it was told, and come back.
                    () = job.follower.bid_farewell() => {}
                    () = is_set(&mut job.handed_over) => job.follower.hand_over().await,
                }
            }
            None => {
                info!("job is handed over");
                job.follower.hand_over().await;
            }
        }
        self.state.lock().over.remove(&job.id);
        self.ended.notify_waiters();
    }

    /// Finds a place for each rank.
    fn place(
        &self,
        state: &State,
        within: Within,
        request: AllocationRequest,
        needed: u64,
    ) -> Result<Vec<Place>, SubmitError> {
        let (mut hosts, mut sessions) = (Vec::new(), Vec::new());
        let (mut unlocated, mut outdated) = (Vec::new(), Vec::new());
        for node in &self.network.topology().nodes {
            let Some(session) = self.agents.get(&node.name).filter(|session| !session.is_away()) else {
                continue;
            };
            let Some(location) = node.location else {
                unlocated.push(node.name.clone());
                continue;
            };
            if !session.agent.has(needed) {
                outdated.push(node.name.clone());
                continue;
            }
            let slots = session.agent.slots;
            let used: u32 = state.running.values().filter_map(|e| e.slots.get(&session.number)).sum();
            let free = slots.saturating_sub(used);
            hosts.push(Host { name: node.name.clone(), rack: location.rack, slots, free });
            sessions.push(session);
        }
        within.check(&hosts)?;
        let (hosts, sessions): (Vec<_>, Vec<_>) =
            hosts.into_iter().zip(sessions).filter(|(host, _)| within.allows(host)).unzip();
        let places = allocate(&hosts, request).map_err(|error| SubmitError::Allocate {
            error,
            unlocated,
            outdated,
        })?;
        let place = |host: usize| Place { session: sessions[host].clone(), rack: hosts[host].rack };
        Ok(places.into_iter().map(place).collect())
    }

    /// Passes on what an agent says of a job, which never waits for whoever follows it.
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
        self.until(|state| state.over.is_empty() && state.running.values().all(|entry| !followed(&entry)))
            .await;
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
        let (arrivals, arriving) = mpsc::channel(ARRIVALS);
        let (shown, state) = watch::channel(state);
        let entry = Entry {
            group,
            user: String::new(),
            mailbox: sender,
            slots: BTreeMap::new(),
            orders,
            arrivals,
            view: JobView { job, group, ..JobView::default() },
            state,
            since: Instant::now(),
        };
        (entry, Inlets { mailbox, arrivals: arriving, orders: ordered, state: shown })
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
