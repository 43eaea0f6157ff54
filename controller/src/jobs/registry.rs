//! All running jobs: their ids, the slots that they use, and the delivery of events to them.
//!
//! [`crate::jobs::running_job`] runs a job, and [`mod@crate::jobs::allocation`] assigns its ranks
//! to nodes.

use crate::abbreviation::{LOGGED_BYTES_MAX, abbreviate};
use crate::agents::{AgentRegistry, Session, SessionEvent, SessionMessage};
use crate::groups::{GroupRegistry, MemberPlace};
use crate::jobs::allocation::{AllocationRequest, CandidateNode, RankPlacement, allocate};
use crate::jobs::caller_event_stream::{CallerArrival, CallerEventStream};
use crate::jobs::control::{self, ControlRequest, JobControl};
use crate::jobs::drain_state::DrainState;
use crate::jobs::errors::{JobError, SIGNALS, SubmitError, UnusableNodes};
use crate::jobs::job_summary::summary;
use crate::jobs::lingering_ranks::LingeringRanks;
use crate::jobs::node_filter::NodeFilter;
use crate::jobs::running_job::{ResumedRanks, RunningJob, is_set};
use crate::timeouts::Timeouts;
use cool_fabric::Fabric;
use cool_proto::control::{JobSpec, JobView, Submitted, job_event, job_spec, job_view};
use cool_proto::job_ids;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tracing::{Instrument, debug, info, info_span};

/// Maximum number of events waiting for a job. Further ones wait at their agents.
const MAILBOX_CAPACITY: usize = 1024;

/// Maximum number of ended jobs whose reasons are kept.
const ENDED_MAX: usize = 1024;

/// Maximum number of requests and of callers waiting for a job.
const MAX_REQUESTS: usize = 16;
const MAX_ARRIVALS: usize = 4;

/// All running jobs.
pub struct JobRegistry {
    network: Arc<dyn Fabric>,
    agents: Arc<AgentRegistry>,
    groups: Arc<GroupRegistry>,
    timeouts: Timeouts,
    /// Maximum number of jobs per user.
    per_user: watch::Receiver<u32>,
    state: Mutex<JobTable>,
    handed_over: watch::Sender<bool>,
    /// Time since which the controller has been connected to any agent or switch.
    connected_since: watch::Receiver<Option<Instant>>,
    /// Signals the end of a job.
    ended: Notify,
}

#[derive(Default)]
struct JobTable {
    /// The last id that was used. Ids are never reused.
    last: u64,
    /// The nodes that operators have drained.
    drained: DrainState,
    /// Whether no more jobs are started, because the controller is shutting down.
    closed: bool,
    running: BTreeMap<u64, JobEntry>,
    /// Jobs that have ended but whose callers have not received all events: user and channel for
    /// reconnecting callers.
    over: BTreeMap<u64, (String, mpsc::Sender<CallerArrival>)>,
    /// The last jobs that have ended, oldest first, for callers that return too late.
    ended: VecDeque<EndedJob>,
    /// Ranks of ended jobs that agents have not reported as ended.
    lingering: LingeringRanks,
}

/// A job that has ended and whose events are no longer kept.
struct EndedJob {
    id: u64,
    user: String,
    /// Reason of its end. Empty if it was successful.
    reason: String,
}

impl JobTable {
    fn ended(&self, id: u64) -> Option<&EndedJob> {
        self.ended.iter().find(|job| job.id == id)
    }

    fn record_end(&mut self, ended: EndedJob) {
        self.ended.push_back(ended);
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
    }
}

struct JobEntry {
    group: u64,
    /// User of the job. Empty if not known yet.
    user: String,
    mailbox: mpsc::Sender<SessionMessage>,
    /// Slots used, by session number.
    slots: BTreeMap<u32, u32>,
    requests: mpsc::Sender<ControlRequest>,
    /// Channel for reconnecting callers.
    arrivals: mpsc::Sender<CallerArrival>,
    /// Information about the job for tools.
    view: JobView,
    state: watch::Receiver<job_view::State>,
    since: Instant,
}

/// Channels to a job.
pub struct JobChannels {
    /// Messages from sessions.
    pub mailbox: mpsc::Receiver<SessionMessage>,
    /// Callers that reconnect.
    pub arrivals: mpsc::Receiver<CallerArrival>,
    /// Requests of operators and users.
    pub requests: mpsc::Receiver<ControlRequest>,
    /// The job's state, as reported to tools.
    pub state: watch::Sender<job_view::State>,
}

impl JobRegistry {
    /// Returns an empty registry. The first job gets the id after `last`. `connected_since` must
    /// contain the time since which the controller has been connected to any agent or switch.
    pub fn new(
        network: Arc<dyn Fabric>,
        agents: Arc<AgentRegistry>,
        groups: Arc<GroupRegistry>,
        (timeouts, per_user): (Timeouts, watch::Receiver<u32>),
        last: u64,
        connected_since: watch::Receiver<Option<Instant>>,
    ) -> JobRegistry {
        let state = Mutex::new(JobTable { last, ..JobTable::default() });
        let (handed_over, ended) = (watch::Sender::default(), Notify::new());
        JobRegistry {
            network,
            agents,
            groups,
            timeouts,
            per_user,
            state,
            handed_over,
            connected_since,
            ended,
        }
    }

    /// Allocates and starts a job, and returns its id. The caller receives its events until the job
    /// has ended, and may reconnect. The job runs only on nodes with agents that support the
    /// `needed` [features](cool_proto::features).
    ///
    /// # Errors
    /// Returns an error if the request is invalid or there is no room for it.
    pub fn submit(self: &Arc<JobRegistry>, arrival: CallerArrival, needed: u64) -> Result<u64, SubmitError> {
        let spec = arrival.spec.clone();
        if spec.program.is_empty() {
            return Err(SubmitError::NoProgram);
        }
        spec.check_command()?;
        let placement = match job_spec::Placement::try_from(spec.placement) {
            Ok(job_spec::Placement::Racked) => RankPlacement::Racked,
            Ok(job_spec::Placement::Interleaved) => RankPlacement::Interleaved,
            Err(_) => return Err(SubmitError::Placement(spec.placement)),
        };
        let request = AllocationRequest { ranks: spec.ranks, per_node: spec.ranks_per_node, placement };
        let filter = NodeFilter { nodes: &spec.hosts, racks: &spec.racks };

        let mut state = self.state.lock();
        if state.closed {
            return Err(SubmitError::Closed);
        }
        if state.drained.cluster {
            return Err(SubmitError::Drained);
        }
        let max = *self.per_user.borrow();
        if state.running.values().filter(|entry| entry.user == spec.user).count() >= max as usize {
            return Err(SubmitError::JobsOfUser { user: spec.user, max });
        }
        let places = self.place(&state, filter, request, needed)?;
        state.last += 1;
        let (id, group) = (state.last, self.groups.next_id());
        let (mut entry, channels) = JobEntry::new(id, group, job_view::State::Forming);
        for place in &places {
            *entry.slots.entry(place.session.number).or_insert(0) += 1;
        }
        entry.user.clone_from(&spec.user);
        entry.view.spec = Some(summary(&spec));
        entry.view.nodes = nodes(&places);
        state.running.insert(id, entry);
        drop(state);

        info!(job = id, group, ranks = places.len(), program = %abbreviate(&spec.program, LOGGED_BYTES_MAX), "job starts");
        let mut event_stream = self.event_stream(channels.arrivals);
        event_stream.queue_event(job_event::Body::Submitted(Submitted { job: id }));
        event_stream.receive(arrival);
        let job = RunningJob {
            id,
            group,
            spec,
            places,
            mailbox: channels.mailbox,
            event_stream,
            resumed: None,
            control: JobControl::new(channels.requests),
            handed_over: self.handed_over.subscribe(),
            state: channels.state,
            network: self.network.clone(),
            groups: self.groups.clone(),
            timeouts: self.timeouts,
            unended: BTreeSet::new(),
        };
        tokio::spawn(self.clone().run(job).instrument(info_span!("job", id, group)));
        Ok(id)
    }

    /// Reserves the id of a job of an earlier controller. Events for the job are kept until it is
    /// resumed. Returns `None` if the id is in use.
    pub fn reserve(&self, id: u64, group: u64) -> Option<JobChannels> {
        let mut state = self.state.lock();
        state.last = state.last.max(id);
        if state.closed || state.running.contains_key(&id) {
            return None;
        }
        let (entry, channels) = JobEntry::new(id, group, job_view::State::Awaited);
        state.running.insert(id, entry);
        Some(channels)
    }

    /// Records that a session has `ranks` ranks of a reserved job of `user`. If agents report
    /// different users, the first one counts.
    pub fn occupy(&self, id: u64, session: &Session, ranks: u32, user: &str) {
        if let Some(entry) = self.state.lock().running.get_mut(&id) {
            entry.slots.insert(session.number, ranks);
            if entry.user.is_empty() {
                user.clone_into(&mut entry.user);
            }
        }
    }

    /// Returns the user of a job that is running or has just ended. The name is empty if it is not
    /// known yet.
    pub fn user(&self, id: u64) -> Option<String> {
        let state = self.state.lock();
        let running = state.running.get(&id).map(|entry| &entry.user);
        let over = || state.over.get(&id).map(|(user, _)| user);
        running.or_else(over).or_else(|| state.ended(id).map(|job| &job.user)).cloned()
    }

    /// Returns the full id of a running job, given by its full or short id, among those of visible
    /// users.
    ///
    /// # Errors
    /// Returns an error if no job or several jobs match.
    pub fn full_id(&self, id_or_short: u64, is_visible: impl Fn(&str) -> bool) -> Result<u64, JobError> {
        let state = self.state.lock();
        if state.running.contains_key(&id_or_short) {
            return Ok(id_or_short);
        }
        let matches =
            |(id, entry): &(&u64, &JobEntry)| job_ids::short(**id) == id_or_short && is_visible(&entry.user);
        let matches: Vec<u64> = state.running.iter().filter(matches).map(|(id, _)| *id).collect();
        match matches[..] {
            [] => Err(JobError::NoJob(id_or_short)),
            [id] => Ok(id),
            _ => Err(JobError::Several(id_or_short, matches)),
        }
    }

    /// Drops a reserved job, which will not be resumed.
    pub fn forget(&self, id: u64) {
        self.state.lock().running.remove(&id);
        self.ended.notify_waiters();
    }

    /// Resumes a reserved job after all of its nodes have reconnected.
    pub fn resume(
        self: &Arc<JobRegistry>,
        id: u64,
        group: u64,
        places: Vec<MemberPlace>,
        channels: JobChannels,
        ranks: ResumedRanks,
    ) {
        info!(job = id, group, ranks = places.len(), "job resumed");
        if let Some(entry) = self.state.lock().running.get_mut(&id) {
            entry.view.nodes = nodes(&places);
        }
        let job = RunningJob {
            id,
            group,
            spec: JobSpec::default(),
            places,
            mailbox: channels.mailbox,
            event_stream: self.event_stream(channels.arrivals),
            resumed: Some(ranks),
            control: JobControl::new(channels.requests),
            handed_over: self.handed_over.subscribe(),
            state: channels.state,
            network: self.network.clone(),
            groups: self.groups.clone(),
            timeouts: self.timeouts,
            unended: BTreeSet::new(),
        };
        tokio::spawn(self.clone().run(job).instrument(info_span!("job", id, group)));
    }

    fn event_stream(&self, arrivals: mpsc::Receiver<CallerArrival>) -> CallerEventStream {
        CallerEventStream::new(arrivals, self.timeouts.caller, self.connected_since.clone())
    }

    /// Connects a caller to a job, which may also be reserved or have just ended. The new caller
    /// replaces any other.
    ///
    /// # Errors
    /// Returns an error if there is no such job or it has ended, if its command is too long, or if
    /// too many callers connect at once.
    pub fn attend(&self, job: u64, arrival: CallerArrival) -> Result<(), JobError> {
        arrival.spec.check_command()?;
        let mut state = self.state.lock();
        let view = summary(&arrival.spec);
        let running = state.running.get(&job).map(|entry| &entry.arrivals);
        let arrivals = running.or_else(|| state.over.get(&job).map(|(_, arrivals)| arrivals));
        let ended = || match state.ended(job) {
            Some(EndedJob { reason, .. }) => JobError::Ended { job, reason: reason.clone() },
            None => JobError::NoJob(job),
        };
        arrivals.ok_or_else(ended)?.try_send(arrival).map_err(|_| JobError::Busy(job))?;
        if let Some(entry) = state.running.get_mut(&job) {
            // Agents of earlier releases do not report the users of jobs.
            if entry.user.is_empty() {
                entry.user.clone_from(&view.user);
            }
            entry.view.spec = Some(view);
        }
        Ok(())
    }

    /// Returns all running jobs of visible users.
    pub fn list(&self, is_visible: impl Fn(&str) -> bool) -> Vec<JobView> {
        let view = |entry: &JobEntry| JobView {
            state: (*entry.state.borrow()).into(),
            running_ms: u64::try_from(entry.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            ..entry.view.clone()
        };
        self.state.lock().running.values().filter(|entry| is_visible(&entry.user)).map(view).collect()
    }

    /// Sends a request to a job.
    ///
    /// # Errors
    /// Returns an error if the job or signal does not exist, or if too many signals are waiting.
    pub fn request(&self, job: u64, request: ControlRequest) -> Result<(), JobError> {
        if let ControlRequest::Signal(signal) = request
            && !SIGNALS.contains(&signal)
        {
            return Err(JobError::Signal(signal));
        }
        let state = self.state.lock();
        let entry = state.running.get(&job).ok_or(JobError::NoJob(job))?;
        debug!(job, ?request, "ordered");
        control::enqueue(&entry.requests, job, request)
    }

    async fn run(self: Arc<JobRegistry>, mut job: RunningJob) {
        let finished = job.run().await;
        let mut ended = finished.as_ref().map(|finished| EndedJob {
            id: job.id,
            user: String::new(),
            reason: finished.reason.clone(),
        });
        {
            let mut state = self.state.lock();
            for (session, ranks) in job.unended_ranks() {
                state.lingering.add(&session, job.id, ranks);
            }
            while let Ok(SessionMessage { from, event }) = job.mailbox.try_recv() {
                if let SessionEvent::Exited(exited) = event {
                    state.lingering.ended(from, job.id, exited.rank);
                }
            }
            if let Some(entry) = state.running.remove(&job.id) {
                ended.iter_mut().for_each(|ended| ended.user.clone_from(&entry.user));
                state.over.insert(job.id, (entry.user, entry.arrivals));
            }
        }
        self.ended.notify_waiters();
        match finished {
            Some(finished) => {
                info!(code = finished.code, rank = finished.rank, reason = finished.reason, "job finished");
                job.event_stream.queue_event(job_event::Body::Finished(finished));
                tokio::select! {
                    // The caller may have disconnected before it received the end, and reconnect.
                    () = job.event_stream.deliver_remaining() => {}
                    () = is_set(&mut job.handed_over) => job.event_stream.hand_over().await,
                }
            }
            None => {
                info!("job handed over");
                job.event_stream.hand_over().await;
            }
        }
        {
            let mut state = self.state.lock();
            state.over.remove(&job.id);
            ended.into_iter().for_each(|ended| state.record_end(ended));
        }
        self.ended.notify_waiters();
    }

    /// Allocates a place for each rank.
    fn place(
        &self,
        state: &JobTable,
        filter: NodeFilter,
        request: AllocationRequest,
        needed: u64,
    ) -> Result<Vec<MemberPlace>, SubmitError> {
        let (mut hosts, mut sessions) = (Vec::new(), Vec::new());
        let mut unusable = Box::<UnusableNodes>::default();
        for node in &self.network.topology().nodes {
            let Some(session) = self.agents.get(&node.name) else { continue };
            if session.is_away() {
                unusable.disconnected.push(node.name.clone());
                continue;
            }
            let Some(location) = node.location else {
                unusable.unlocated.push(node.name.clone());
                continue;
            };
            if state.drained.nodes.contains(&node.name) {
                unusable.drained.push(node.name.clone());
                continue;
            }
            if !session.agent.has(needed) {
                unusable.outdated.push(node.name.clone());
                continue;
            }
            let slots = session.agent.slots;
            let used: u32 = state.running.values().filter_map(|e| e.slots.get(&session.number)).sum();
            let free = slots.saturating_sub(used + state.lingering.on_session(session.number));
            hosts.push(CandidateNode { name: node.name.clone(), rack: location.rack, slots, free });
            sessions.push(session);
        }
        filter.check(&hosts, &unusable.drained)?;
        let (hosts, sessions): (Vec<_>, Vec<_>) =
            hosts.into_iter().zip(sessions).filter(|(host, _)| filter.allows(host)).unzip();
        let places = allocate(&hosts, request).map_err(|error| SubmitError::Allocate { error, unusable })?;
        let place = |host: usize| MemberPlace { session: sessions[host].clone(), rack: hosts[host].rack };
        Ok(places.into_iter().map(place).collect())
    }

    /// Delivers an event of an agent to a job. The job never waits for its caller, so this does not
    /// block for long.
    pub async fn deliver_to_job(&self, session: &Session, job: u64, event: SessionEvent) {
        let exited = match &event {
            SessionEvent::Exited(exited) => Some(exited.rank),
            _ => None,
        };
        let mailbox = self.state.lock().running.get(&job).map(|e| e.mailbox.clone());
        deliver(mailbox, session, event).await;
        if let Some(rank) = exited {
            let mut state = self.state.lock();
            if !state.running.contains_key(&job) {
                state.lingering.ended(session.number, job, rank);
            }
        }
    }

    /// Returns the mailbox of the job with this world group.
    pub fn mailbox_of_group(&self, group: u64) -> Option<mpsc::Sender<SessionMessage>> {
        self.state.lock().running.values().find(|e| e.group == group).map(|e| e.mailbox.clone())
    }

    /// Reports the loss of a node to all jobs on it.
    pub async fn node_lost(&self, session: &Session, reason: &str) {
        self.state.lock().lingering.session_ended(session.number);
        let on_node = |e: &&JobEntry| e.slots.contains_key(&session.number);
        let mailboxes: Vec<_> =
            self.state.lock().running.values().filter(on_node).map(|e| e.mailbox.clone()).collect();
        for mailbox in mailboxes {
            deliver(Some(mailbox), session, SessionEvent::NodeLost(reason.to_owned())).await;
        }
    }

    /// Stops or resumes starting jobs, on these nodes or everywhere. Returns the drained nodes.
    pub fn drain(&self, nodes: &[String], end: bool) -> DrainState {
        info!(?nodes, end, "ordered");
        let mut state = self.state.lock();
        state.drained.apply(nodes, end);
        state.drained.clone()
    }

    /// Continues with the nodes that were drained in an earlier run.
    pub fn restore_drain(&self, drained: DrainState) {
        info!(?drained, "drained by an earlier run");
        self.state.lock().drained = drained;
    }

    /// Returns warnings about drained nodes, which an operator may forget, and about ranks that
    /// could not be ended.
    pub fn warnings(&self) -> Vec<String> {
        let state = self.state.lock();
        let drained = state.drained.nodes.iter().map(|node| {
            format!("node {node} is drained: no job starts there until `cool drain --end {node}`")
        });
        drained.chain(state.lingering.warnings()).collect()
    }

    /// Waits until no job is running on any of these nodes, or anywhere if none is named.
    pub async fn wait_until_idle(&self, nodes: &[String]) {
        // The nodes of a job that is not resumed yet are unknown.
        let may_use = |entry: &JobEntry| {
            let awaited = *entry.state.borrow() == job_view::State::Awaited;
            nodes.is_empty() || awaited || entry.view.nodes.iter().any(|node| nodes.contains(node))
        };
        self.wait_until(|state| !state.running.values().any(may_use)).await;
    }

    /// Stops starting jobs and waits for those that are being formed, because the controller is
    /// shutting down.
    pub async fn settle(&self) {
        self.state.lock().closed = true;
        let running = |entry: &JobEntry| entry.state.clone();
        let states: Vec<_> = self.state.lock().running.values().map(running).collect();
        for mut state in states {
            // The sender is dropped when the job ends.
            let _ = state.wait_for(|state| *state != job_view::State::Forming).await;
        }
    }

    /// Hands all jobs over to the next controller: callers receive all events so far, and ranks
    /// continue to run.
    pub async fn hand_over(&self) {
        let followed = |entry: &&JobEntry| *entry.state.borrow() != job_view::State::Awaited;
        let mailboxes: Vec<_> =
            self.state.lock().running.values().filter(followed).map(|entry| entry.mailbox.clone()).collect();
        for mailbox in mailboxes {
            // All capacity is free once all events have been processed. A job that has ended has
            // closed its mailbox.
            drop(mailbox.reserve_many(MAILBOX_CAPACITY).await);
        }
        self.handed_over.send_replace(true);
        self.wait_until(|state| {
            state.over.is_empty() && state.running.values().all(|entry| !followed(&entry))
        })
        .await;
    }

    async fn wait_until(&self, condition: impl Fn(&JobTable) -> bool) {
        loop {
            let ended = self.ended.notified();
            if condition(&self.state.lock()) {
                return;
            }
            ended.await;
        }
    }
}

impl JobEntry {
    /// Returns the entry of a new job, and its channels.
    fn new(job: u64, group: u64, state: job_view::State) -> (JobEntry, JobChannels) {
        let (sender, mailbox) = mpsc::channel(MAILBOX_CAPACITY);
        let (requests, requested) = mpsc::channel(MAX_REQUESTS);
        let (arrivals, arriving) = mpsc::channel(MAX_ARRIVALS);
        let (shown, state) = watch::channel(state);
        let entry = JobEntry {
            group,
            user: String::new(),
            mailbox: sender,
            slots: BTreeMap::new(),
            requests,
            arrivals,
            view: JobView { job, group, ..JobView::default() },
            state,
            since: Instant::now(),
        };
        (entry, JobChannels { mailbox, arrivals: arriving, requests: requested, state: shown })
    }
}

fn nodes(places: &[MemberPlace]) -> Vec<String> {
    places.iter().map(|place| place.session.agent.name.clone()).collect()
}

/// Delivers an event of a session to a mailbox.
pub async fn deliver(mailbox: Option<mpsc::Sender<SessionMessage>>, session: &Session, event: SessionEvent) {
    let message = SessionMessage { from: session.number, event };
    let undelivered = match mailbox {
        Some(mailbox) => mailbox.send(message).await.err().map(|e| e.0),
        None => Some(message),
    };
    if let Some(SessionMessage { event, .. }) = undelivered {
        // This is normal shortly after the end of a job.
        debug!(node = session.agent.name, ?event, "event for a job or group that has ended");
    }
}
