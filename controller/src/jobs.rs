//! The running jobs: their numbers, the slots they use, and the way of events to them.
//!
//! What a job does is [`crate::job`]'s; where its ranks go is decided by [`crate::allocate`].

use crate::agents::{Agents, Session, lock};
use crate::allocate::{AllocateError, Host, Placement, Request, allocate};
use crate::groups::{Groups, Place};
use crate::job::{Caller, Event, Job, Limits, Post, Ranks, Resumed};
use crate::network::Network;
use cool_proto::control::{JobEvent, JobSpec, job_event, job_spec};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, mpsc, watch};
use tracing::{Instrument, debug, info, info_span};

/// Events that wait for a job; further ones wait at their agents.
const MAILBOX: usize = 1024;

/// Why a job is not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The request names no program.
    #[error("no program to run is named")]
    NoProgram,
    /// The placement is not one of the contract's.
    #[error("placement {0} is unknown; it is 0 (racked) or 1 (interleaved)")]
    Placement(i32),
    /// There is no room.
    #[error("{error}{}", unlocated_note(.unlocated))]
    Allocate {
        /// What is lacking.
        error: AllocateError,
        /// Nodes that have registered but are not found on the network.
        unlocated: Vec<String>,
    },
    /// The controller is about to end.
    #[error("the controller is shutting down")]
    Closed,
}

fn unlocated_note(nodes: &[String]) -> String {
    match nodes {
        [] => String::new(),
        nodes => format!("; registered, but not found by LLDP: {}", nodes.join(", ")),
    }
}

/// All running jobs.
pub struct Jobs {
    network: Arc<dyn Network>,
    agents: Arc<Agents>,
    groups: Arc<Groups>,
    limits: Limits,
    state: Mutex<State>,
    closing: watch::Sender<bool>,
    /// A job has ended.
    ended: Notify,
}

#[derive(Default)]
struct State {
    /// The last job; its number is not used again.
    last: u64,
    running: BTreeMap<u64, Entry>,
}

struct Entry {
    group: u64,
    mailbox: mpsc::Sender<Post>,
    /// Slots used, by session.
    slots: BTreeMap<u32, u32>,
    /// To a job of an earlier life of the controller, whose caller is to come back.
    attend: Option<mpsc::Sender<Caller>>,
}

/// Why nobody can attend a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttendError {
    /// It has ended, or its nodes have not come back yet.
    #[error("no job {0} runs here, or its nodes have not come back yet")]
    NoJob(u64),
    /// Whoever started it listens.
    #[error("somebody else attends job {0}")]
    Attended(u64),
}

/// Where what concerns a resumed job arrives.
pub struct Inlets {
    /// What sessions say.
    pub mailbox: mpsc::Receiver<Post>,
    /// Callers who come back.
    pub callers: mpsc::Receiver<Caller>,
}

impl Jobs {
    /// No jobs yet.
    pub fn new(network: Arc<dyn Network>, agents: Arc<Agents>, groups: Arc<Groups>, limits: Limits) -> Jobs {
        let (closing, _) = watch::channel(false);
        Jobs { network, agents, groups, limits, state: Mutex::default(), closing, ended: Notify::new() }
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
        let request = Request { ranks: spec.ranks, per_node: spec.ranks_per_node, placement };

        let mut state = lock(&self.state);
        if *self.closing.borrow() {
            return Err(SubmitError::Closed);
        }
        let places = self.place(&state, request)?;
        state.last += 1;
        let (id, group) = (state.last, self.groups.number());
        let (sender, mailbox) = mpsc::channel(MAILBOX);
        let mut slots = BTreeMap::new();
        for place in &places {
            *slots.entry(place.session.number).or_insert(0) += 1;
        }
        state.running.insert(id, Entry { group, mailbox: sender, slots, attend: None });
        drop(state);

        info!(job = id, group, ranks = places.len(), program = spec.program, "job starts");
        let job = Job {
            id,
            group,
            spec,
            places,
            mailbox,
            caller,
            caller_listens: true,
            resumed: None,
            closing: self.closing.subscribe(),
            network: self.network.clone(),
            groups: self.groups.clone(),
            limits: self.limits,
        };
        tokio::spawn(self.clone().run(job).instrument(info_span!("job", id, group)));
        Ok(())
    }

    /// A job of an earlier life of the controller: its number is taken, and what concerns it is kept until it
    /// is resumed. `None` if the number is in use.
    pub fn reserve(&self, id: u64, group: u64) -> Option<Inlets> {
        let mut state = lock(&self.state);
        state.last = state.last.max(id);
        if *self.closing.borrow() || state.running.contains_key(&id) {
            return None;
        }
        let (sender, mailbox) = mpsc::channel(MAILBOX);
        let (attend, callers) = mpsc::channel(1);
        let entry = Entry { group, mailbox: sender, slots: BTreeMap::new(), attend: Some(attend) };
        state.running.insert(id, entry);
        Some(Inlets { mailbox, callers })
    }

    /// A session has so many ranks of a reserved job.
    pub fn occupy(&self, id: u64, session: &Session, ranks: u32) {
        if let Some(entry) = lock(&self.state).running.get_mut(&id) {
            entry.slots.insert(session.number, ranks);
        }
    }

    /// A reserved job will not be resumed.
    pub fn forget(&self, id: u64) {
        lock(&self.state).running.remove(&id);
        self.ended.notify_waiters();
    }

    /// Resumes a reserved job whose nodes have all come back.
    pub fn resume(self: &Arc<Jobs>, id: u64, group: u64, places: Vec<Place>, inlets: Inlets, ranks: Ranks) {
        info!(job = id, group, ranks = places.len(), "job goes on");
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
            closing: self.closing.subscribe(),
            network: self.network.clone(),
            groups: self.groups.clone(),
            limits: self.limits,
        };
        tokio::spawn(self.clone().run(job).instrument(info_span!("job", id, group)));
    }

    /// Lets `caller` listen to a job that was, or will be, resumed.
    ///
    /// # Errors
    /// If there is no such job, or somebody listens.
    pub fn attend(&self, job: u64, caller: Caller) -> Result<(), AttendError> {
        let state = lock(&self.state);
        let entry = state.running.get(&job).ok_or(AttendError::NoJob(job))?;
        let attend = entry.attend.as_ref().ok_or(AttendError::Attended(job))?;
        attend.try_send(caller).map_err(|_| AttendError::Attended(job))
    }

    async fn run(self: Arc<Jobs>, mut job: Job) {
        let finished = job.run().await;
        lock(&self.state).running.remove(&job.id);
        self.ended.notify_waiters();
        info!(code = finished.code, rank = finished.rank, reason = finished.reason, "job finished");
        let event = JobEvent { body: Some(job_event::Body::Finished(finished)) };
        // A caller that is gone needs no answer.
        let _ = job.caller.send_timeout(Ok(event), self.limits.caller).await;
    }

    /// Finds a place for each rank.
    fn place(&self, state: &State, request: Request) -> Result<Vec<Place>, SubmitError> {
        let (mut hosts, mut sessions, mut unlocated) = (Vec::new(), Vec::new(), Vec::new());
        for node in &self.network.topology().nodes {
            let Some(session) = self.agents.get(&node.name) else { continue };
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
        let places = allocate(&hosts, request).map_err(|error| SubmitError::Allocate { error, unlocated })?;
        let place = |host: usize| Place { session: sessions[host].clone(), rack: hosts[host].rack };
        Ok(places.into_iter().map(place).collect())
    }

    /// Passes on what an agent says of a job. Waits while the job is behind: a job is never behind for
    /// longer than [`Limits::caller`].
    pub async fn post(&self, session: &Session, job: u64, event: Event) {
        let mailbox = lock(&self.state).running.get(&job).map(|e| e.mailbox.clone());
        deliver(mailbox, session, event).await;
    }

    /// The way to the job whose world group this is.
    pub fn mailbox_of_group(&self, group: u64) -> Option<mpsc::Sender<Post>> {
        lock(&self.state).running.values().find(|e| e.group == group).map(|e| e.mailbox.clone())
    }

    /// Tells the jobs on a node that its session has ended.
    pub async fn node_left(&self, session: &Session, reason: &str) {
        let on_node = |e: &&Entry| e.slots.contains_key(&session.number);
        let mailboxes: Vec<_> =
            lock(&self.state).running.values().filter(on_node).map(|e| e.mailbox.clone()).collect();
        for mailbox in mailboxes {
            deliver(Some(mailbox), session, Event::Left(reason.to_owned())).await;
        }
    }

    /// Ends all jobs and starts no more; returns when they have ended.
    pub async fn close(&self) {
        self.closing.send_replace(true);
        loop {
            let ended = self.ended.notified();
            if lock(&self.state).running.is_empty() {
                return;
            }
            ended.await;
        }
    }
}

/// Gives an event of a session to whom it concerns.
pub async fn deliver(mailbox: Option<mpsc::Sender<Post>>, session: &Session, event: Event) {
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
