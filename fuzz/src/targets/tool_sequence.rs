//! Sequences of calls of tools, as two users and an operator, and of messages of agents: jobs are
//! submitted, attended, signaled and canceled, nodes drained, agents join, fall silent, return, and
//! report ranks, groups and nonsense, while time passes.
//!
//! No user may see or change another user's job, an operator's calls must always work, and no call
//! of a user may end the session of a node. Afterwards each job must end once it is canceled, and
//! all slots, groups and requests must be free again.
//!
//! Each step of an input has three bytes: its kind and two arguments.

#[cfg(test)]
use crate::tool_seeds::seeds;
use crate::cluster::{Cluster, FakeAgent, JOBS_PER_USER, LocalClient, SLOTS, TIMEOUTS, react, registration, soon};
use cool_controller::jobs::control::ControlRequest;
use cool_proto::control::{
    AttendRequest, CancelRequest, DiagnoseRequest, DrainRequest, Enlist, Examined, Exited, Group, GroupFailed,
    GroupReady, GroupsRequest, Held, JobEvent, JobSpec, JobsRequest, Leave, Member, Output, Probed, RanksLeft,
    Recover, Register, SignalRequest, TopologyRequest, TraceEvent, TraceRequest, Traced, Withdraw,
    agent_message, controller_message, job_event,
};
use cool_proto::job_request::TOOL_REQUEST_BYTES_MAX;
use cool_tls::Role;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

/// Maximum number of steps of an input.
const STEPS_MAX: usize = 64;

/// The callers: two users, and an operator.
const CALLERS: [Option<&str>; 3] = [Some("ann"), Some("bob"), None];
const OPERATOR: usize = 2;

/// Number of nodes.
const NODES: u8 = 3;

/// Number of signals in a burst: more than the messages that an agent may leave unacknowledged.
const BURST: u32 = 5000;

/// Kinds of steps.
const KINDS: u8 = 24;

/// A job that a sequence has submitted.
struct SubmittedJob {
    id: u64,
    /// Index of the caller that submitted it.
    owner: usize,
    events: Option<Streaming<JobEvent>>,
}

/// The state of a node's agent.
enum NodeAgent {
    /// It has no session, or has lost it.
    Absent,
    Connected(ConnectedAgent),
    /// Its connection broke at this time.
    Away { register: Register, since: Instant, held: HeldState },
}

struct ConnectedAgent {
    agent: FakeAgent,
    held: HeldState,
    incarnation: u64,
}

/// What an agent keeps while it is disconnected.
#[derive(Default)]
struct HeldState {
    /// Ranks that were launched and have not ended.
    running: BTreeSet<(u64, u32)>,
    /// Groups that the agent has received.
    groups: BTreeSet<u64>,
}

struct Sequence {
    cluster: Cluster,
    clients: [LocalClient; 3],
    jobs: Vec<SubmittedJob>,
    agents: [NodeAgent; NODES as usize],
    traces: Vec<Streaming<TraceEvent>>,
    incarnation: u64,
}

/// Returns the program that a caller's jobs execute. No other user may ever receive its name.
fn program(caller: usize) -> String {
    format!("program-of-{}", CALLERS[caller].unwrap_or("operator"))
}

impl Sequence {
    async fn start() -> Sequence {
        let cluster = Cluster::start().await;
        let clients = CALLERS.map(|name| cluster.client(Role::Tool, name));
        let agents = [const { NodeAgent::Absent }; NODES as usize];
        let mut sequence =
            Sequence { cluster, clients, jobs: Vec::new(), agents, traces: Vec::new(), incarnation: 1 };
        for node in 0..NODES {
            sequence.join(node, Vec::new()).await;
        }
        sequence
    }

    /// Checks that an answer to a caller contains nothing about jobs of others.
    fn check_privacy(caller: usize, answer: &impl std::fmt::Debug) {
        if caller == OPERATOR {
            return;
        }
        let text = format!("{answer:?}");
        for other in (0..CALLERS.len()).filter(|other| *other != caller) {
            assert!(!text.contains(&program(other)), "{:?} received {text}", CALLERS[caller]);
        }
    }

    async fn step(&mut self, [kind, a, b]: [u8; 3]) {
        let caller = usize::from(a) % CALLERS.len();
        match kind % KINDS {
            0 | 1 => self.submit(caller, a, b).await,
            2 => self.attend(caller, b).await,
            3 => {
                if let Some(job) = self.job_index(b) {
                    self.jobs[job].events = None;
                }
            }
            4 => {
                let id = self.job_id(b, a);
                let request = CancelRequest { job: id, user: "operator".into() };
                let result = self.clients[caller].cancel(request).await.map(|_| ());
                self.check_control(caller, id, &result);
            }
            5 => self.signal(caller, a, b).await,
            6 => self.list(caller).await,
            7 => self.drain(caller, a, b).await,
            8 => {
                let diagnosed = self.clients[caller].diagnose(DiagnoseRequest {}).await;
                assert_eq!(diagnosed.is_ok(), caller == OPERATOR, "{diagnosed:?}");
            }
            9 => self.trace(caller).await,
            10 => drop(self.traces.pop()),
            11 => self.read_events(b).await,
            12 => self.join(a % NODES, held(b)).await,
            13 => {
                if let Some(connected) = self.connected(a) {
                    connected.agent.send(agent_message::Body::Leave(Leave {}));
                    react().await;
                    self.agents[usize::from(a % NODES)] = NodeAgent::Absent;
                }
            }
            14 => self.break_connection(a),
            15 => self.reconnect(a).await,
            16..=18 => self.receive_messages(a, b).await,
            19 => self.exit_rank(a, b),
            20 => self.print(a, b),
            21 => self.send_nonsense(a, b),
            22 => tokio::time::sleep(Duration::from_millis(u64::from(b) * 250)).await,
            _ => {
                if let Some(connected) = self.connected(a) {
                    connected.agent.acknowledge();
                }
            }
        }
        react().await;
    }

    fn job_index(&self, which: u8) -> Option<usize> {
        usize::from(which).checked_rem(self.jobs.len())
    }

    /// Returns the id of a job, in its short form for some arguments, or another number.
    fn job_id(&self, which: u8, form: u8) -> u64 {
        match self.job_index(which) {
            Some(index) if form < 200 => self.jobs[index].id,
            Some(index) if form < 230 => cool_proto::job_ids::short(self.jobs[index].id),
            _ => u64::from(which),
        }
    }

    async fn submit(&mut self, caller: usize, a: u8, b: u8) {
        let node = |number: u8| format!("h{}", number % NODES);
        // The operator may act for other users, who then own the job.
        let owner = if caller == OPERATOR && a & 0x40 != 0 { 1 } else { caller };
        let mut spec = JobSpec {
            ranks: u32::from(b % 8),
            ranks_per_node: u32::from(b / 8 % 3),
            program: program(owner),
            survive: b & 0x40 != 0,
            time_limit_ms: if b & 0x80 != 0 { 20_000 } else { 0 },
            user: CALLERS[caller].unwrap_or("root").into(),
            hosts: if a >= 128 { vec![node(a), node(b)] } else { Vec::new() },
            ..JobSpec::default()
        };
        match a {
            // Commands that are about as long as a request may be, and longer.
            253 => spec.args = vec!["x".repeat(TOOL_REQUEST_BYTES_MAX - 4096)],
            254 => spec.args = vec!["x".repeat(TOOL_REQUEST_BYTES_MAX + 1)],
            255 => spec.placement = i32::from(b),
            _ => {}
        }
        // Users act for themselves, whatever they claim.
        if a & 0x40 != 0 {
            spec.user = "bob".into();
        }
        let submitted = self.clients[caller].run(spec).await;
        Self::check_privacy(caller, &submitted.as_ref().map(|_| ()));
        let Ok(events) = submitted else { return };
        let mut events = events.into_inner();
        let Some(Ok(Some(JobEvent { body: Some(job_event::Body::Submitted(job)) }))) = soon(events.message()).await
        else {
            panic!("the first event of a job is not that it was submitted")
        };
        self.jobs.push(SubmittedJob { id: job.job, owner, events: Some(events) });
    }

    async fn attend(&mut self, caller: usize, b: u8) {
        let Some(index) = self.job_index(b) else { return };
        let SubmittedJob { id, owner, .. } = self.jobs[index];
        let named = if caller == OPERATOR { owner } else { caller };
        let spec = JobSpec { program: program(named), user: "bob".into(), ..JobSpec::default() };
        let request = AttendRequest { job: id, spec: Some(spec), numbered: b & 1 != 0 };
        let attended = self.clients[caller].attend(request).await;
        match attended {
            Ok(events) => {
                assert!(caller == OPERATOR || caller == owner, "{:?} attends job {id}", CALLERS[caller]);
                self.jobs[index].events = Some(events.into_inner());
            }
            Err(status) => Self::check_privacy(caller, &status),
        }
    }

    /// Checks the result of a request that concerns a job.
    fn check_control(&self, caller: usize, id: u64, result: &Result<(), Status>) {
        Self::check_privacy(caller, result);
        if let (Ok(()), Some(job)) = (result, self.jobs.iter().find(|job| job.id == id)) {
            let may = caller == OPERATOR || caller == job.owner;
            assert!(may, "{:?} controls job {id} of {:?}", CALLERS[caller], CALLERS[job.owner]);
        }
    }

    async fn signal(&mut self, caller: usize, a: u8, b: u8) {
        let id = self.job_id(b, a);
        let signal = i32::from(b % 70) - 2;
        let result = self.clients[caller].signal(SignalRequest { job: id, signal }).await.map(|_| ());
        self.check_control(caller, id, &result);
        if result.is_ok() && a >= 128 {
            for count in 0..BURST {
                // The service forwards permitted requests like this.
                let _ = self.cluster.service.jobs.request(id, ControlRequest::Signal(signal));
                if count % 8 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    async fn list(&mut self, caller: usize) {
        let jobs = self.clients[caller].list_jobs(JobsRequest {}).await.expect("everyone may list jobs");
        Self::check_privacy(caller, jobs.get_ref());
        let jobs = jobs.into_inner().jobs;
        let groups = self.clients[caller].list_groups(GroupsRequest {}).await.expect("everyone may list groups");
        for group in groups.into_inner().groups {
            assert!(group.key.is_none(), "keys are no part of a list");
            if caller != OPERATOR {
                assert!(jobs.iter().any(|job| job.job == group.job), "{group:?}");
            }
        }
        let topology = self.clients[caller].get_topology(TopologyRequest {}).await.expect("everyone may see it");
        Self::check_privacy(caller, topology.get_ref());
        // Of each user, at most JOBS_PER_USER jobs run at once.
        for owner in 0..CALLERS.len() {
            let of_owner = |job: &&cool_proto::control::JobView| {
                self.jobs.iter().any(|known| known.id == job.job && known.owner == owner)
            };
            let running = jobs.iter().filter(of_owner).count();
            assert!(running <= JOBS_PER_USER as usize || owner == OPERATOR, "{running} jobs of a user");
        }
    }

    async fn drain(&mut self, caller: usize, a: u8, b: u8) {
        let nodes = if b & 2 != 0 { vec![format!("h{}", a / 3 % (NODES + 1))] } else { Vec::new() };
        let request = DrainRequest { end: b & 1 != 0, wait: false, nodes };
        let drained = self.clients[caller].drain(request).await;
        if let Err(status) = drained {
            let may = caller == OPERATOR;
            assert_eq!(status.code() != Code::PermissionDenied, may, "{status:?}");
        } else {
            assert_eq!(caller, OPERATOR, "only operators drain nodes");
        }
    }

    async fn trace(&mut self, caller: usize) {
        match self.clients[caller].trace(TraceRequest::default()).await {
            Ok(events) => {
                assert_eq!(caller, OPERATOR, "only operators request traces");
                self.traces.push(events.into_inner());
            }
            Err(status) => match caller {
                OPERATOR => assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}"),
                _ => assert_eq!(status.code(), Code::PermissionDenied, "{status:?}"),
            },
        }
    }

    /// Reads the events of a job that have arrived.
    async fn read_events(&mut self, which: u8) {
        let Some(index) = self.job_index(which) else { return };
        let job = &mut self.jobs[index];
        let Some(events) = &mut job.events else { return };
        while let Some(event) = soon(events.message()).await {
            let Ok(Some(event)) = event else {
                job.events = None;
                return;
            };
            if let Some(job_event::Body::Finished(finished)) = event.body {
                let other = [0, 1].into_iter().find(|caller| *caller != job.owner);
                let by_other = |other: usize| {
                    job.owner != OPERATOR && finished.reason == format!("canceled by {}", CALLERS[other].unwrap_or(""))
                };
                assert!(!other.is_some_and(by_other), "{finished:?} of a job of {:?}", CALLERS[job.owner]);
            }
        }
    }

    fn connected(&mut self, which: u8) -> Option<&mut ConnectedAgent> {
        match &mut self.agents[usize::from(which % NODES)] {
            NodeAgent::Connected(connected) => Some(connected),
            _ => None,
        }
    }

    /// Lets a new agent of a node join, if the node has none.
    async fn join(&mut self, node: u8, held: Vec<Held>) {
        if matches!(self.agents[usize::from(node)], NodeAgent::Connected(_)) {
            return;
        }
        self.incarnation += 1;
        let register = Register { incarnation: self.incarnation, held, ..registration(node) };
        let joined = FakeAgent::join(&self.cluster, register).await;
        if let Ok(agent) = joined {
            let incarnation = self.incarnation;
            self.agents[usize::from(node)] =
                NodeAgent::Connected(ConnectedAgent { agent, held: HeldState::default(), incarnation });
        }
    }

    fn break_connection(&mut self, which: u8) {
        let node = which % NODES;
        let slot = &mut self.agents[usize::from(node)];
        if let NodeAgent::Connected(ConnectedAgent { agent, held, incarnation }) = slot {
            let session = Some(agent.session);
            let register = Register { session, incarnation: *incarnation, ..registration(node) };
            let held = std::mem::take(held);
            *slot = NodeAgent::Away { register, since: Instant::now(), held };
        }
    }

    /// Lets a disconnected agent return. Its session must continue unless it was away too long.
    async fn reconnect(&mut self, which: u8) {
        let slot = usize::from(which % NODES);
        let NodeAgent::Away { register, since, held } = &mut self.agents[slot] else { return };
        let (incarnation, in_time) = (register.incarnation, since.elapsed() < TIMEOUTS.agent);
        let held = std::mem::take(held);
        let joined = FakeAgent::join(&self.cluster, register.clone()).await;
        self.agents[slot] = match joined {
            Ok(agent) => {
                let resumed = agent.registered.resumed.is_some();
                assert!(resumed || !in_time, "node h{slot} lost its session although it returned in time");
                let held = if resumed { held } else { HeldState::default() };
                NodeAgent::Connected(ConnectedAgent { agent, held, incarnation })
            }
            Err(status) => {
                assert!(!in_time, "node h{slot} cannot return: {status}");
                NodeAgent::Absent
            }
        };
    }

    /// Lets an agent handle up to `most` messages, as an agent should.
    async fn receive_messages(&mut self, which: u8, most: u8) {
        for _ in 0..most {
            let Some(connected) = self.connected(which) else { return };
            match connected.agent.receive().await {
                Ok(Some(body)) => connected.handle(body),
                Ok(None) => break,
                Err(()) => {
                    self.agents[usize::from(which % NODES)] = NodeAgent::Absent;
                    return;
                }
            }
        }
        if let Some(connected) = self.connected(which) {
            connected.agent.acknowledge();
        }
    }

    fn exit_rank(&mut self, a: u8, b: u8) {
        let Some(connected) = self.connected(a) else { return };
        if let Some((job, rank)) = connected.held.running.pop_first() {
            let (code, signal) = if b < 128 { (i32::from(b % 3), 0) } else { (-1, i32::from(b % 32)) };
            let exited = Exited { job, rank, code, signal, ..Exited::default() };
            connected.agent.send(agent_message::Body::Exited(exited));
        }
    }

    fn print(&mut self, a: u8, b: u8) {
        let Some(connected) = self.connected(a) else { return };
        let Some((job, rank)) = connected.held.running.first().copied() else { return };
        // Some lines are long, so that callers that do not read have ranks held.
        let bytes = if b >= 128 { 200_000 } else { usize::from(b) };
        let output = Output { job, rank, line: vec![b'x'; bytes], number: u64::from(b), ..Output::default() };
        connected.agent.send(agent_message::Body::Output(output));
    }

    /// Lets an agent send what no agent should.
    fn send_nonsense(&mut self, a: u8, b: u8) {
        let id = self.job_id(b, a);
        let Some(connected) = self.connected(a) else { return };
        let rank = [0, 1, 2, u32::MAX][usize::from(b % 4)];
        let group = if a >= 128 { connected.held.groups.first().copied().unwrap_or(id) } else { id };
        let number = [0, 1, u64::MAX, u64::MAX / 2][usize::from(b / 4 % 4)];
        let text = || format!("{number} of {}", "x".repeat(usize::from(b)));
        let body = match a / 3 % 14 {
            0 => agent_message::Body::Exited(Exited { job: id, rank, code: i32::MIN, signal: i32::MAX, ..Exited::default() }),
            1 => agent_message::Body::Exited(Exited { job: id, rank, error: text(), ..Exited::default() }),
            2 => agent_message::Body::GroupReady(GroupReady { group, epoch: rank }),
            3 => agent_message::Body::GroupFailed(GroupFailed { group, reason: text() }),
            4 => agent_message::Body::Left(RanksLeft { group, ranks: vec![rank, 0], unused: b & 1 != 0 }),
            5 => agent_message::Body::Recover(Recover {
                group,
                rank,
                timeout_ms: number,
                agree: (b & 64 != 0).then_some(number),
                misses: vec![rank, 1],
            }),
            6 => agent_message::Body::Withdraw(Withdraw { key: "key".into(), rank }),
            7 => agent_message::Body::Probed(Probed { id: number, latency_ns: number, bytes_per_second: number, burst: number, failure: String::new() }),
            8 => agent_message::Body::Traced(Traced { id: number, records: Vec::new(), end: b & 1 != 0 }),
            9 => agent_message::Body::Examined(Examined { id: number, clock_us: i64::MIN, faults: vec![text()], offload_fault: text(), bond_fault: text() }),
            10 => agent_message::Body::Output(Output { job: id, rank, line: vec![b; 9], number, ..Output::default() }),
            11 => agent_message::Body::Held(cool_proto::control::HeldGroups { held: held(b) }),
            // Ranks that another launcher has started.
            _ => agent_message::Body::Enlist(Enlist {
                key: "key".into(),
                rank: u32::from(b % 4),
                size: if b >= 250 { u32::MAX } else { 2 },
                timeout_ms: [5_000, 0, u64::MAX, 60_000][usize::from(b / 4 % 4)],
                ticket: u64::from(b),
            }),
        };
        connected.agent.send(body);
    }

    /// Ends everything, and checks that nothing remains.
    async fn finish(&mut self) {
        self.cluster.check_tasks();
        let mut operator = self.clients[OPERATOR].clone();
        // The operator ends each job, also those that wait for nodes.
        let jobs = operator.list_jobs(JobsRequest {}).await.expect("operators may list jobs").into_inner().jobs;
        for job in jobs {
            let canceled = operator.cancel(CancelRequest { job: job.job, user: String::new() }).await;
            canceled.unwrap_or_else(|status| panic!("an operator cannot cancel job {}: {status}", job.job));
            react().await;
        }
        for node in 0..NODES {
            if let Some(connected) = self.connected(node) {
                connected.agent.send(agent_message::Body::Leave(Leave {}));
                react().await;
            }
            self.agents[usize::from(node)] = NodeAgent::Absent;
        }
        self.jobs.clear();
        self.traces.clear();
        // Nodes that do not return are lost, and callers that do not return are no longer expected.
        // Neither time elapses while the controller is isolated, so an agent joins meanwhile.
        self.join(0, Vec::new()).await;
        tokio::time::sleep(TIMEOUTS.agent + TIMEOUTS.caller + TIMEOUTS.end + TIMEOUTS.group_ready).await;
        self.receive_messages(0, u8::MAX).await;
        let jobs = operator.list_jobs(JobsRequest {}).await.expect("operators may list jobs").into_inner().jobs;
        assert!(jobs.is_empty(), "jobs that were canceled have not ended: {jobs:?}");
        let groups = operator.list_groups(GroupsRequest {}).await.expect("operators may list groups");
        let groups = groups.into_inner().groups;
        assert!(groups.is_empty(), "groups remain: {groups:?}");
        assert_eq!(self.cluster.service.groups.busy().borrow().len(), 0, "groups are still in use");
        assert_eq!(self.cluster.groups_in_network(), 0, "trees remain");
        // All slots are free.
        operator.drain(DrainRequest { end: true, ..DrainRequest::default() }).await.expect("an operator may drain");
        for node in 0..NODES {
            let request = DrainRequest { end: true, wait: false, nodes: vec![format!("h{node}")] };
            operator.drain(request).await.expect("an operator may end a drain");
            self.join(node, Vec::new()).await;
        }
        assert_eq!(self.cluster.service.agents.all().len(), usize::from(NODES), "every node may join again");
        let all = JobSpec { ranks: SLOTS * u32::from(NODES), program: "program".into(), ..JobSpec::default() };
        let all = operator.run(all).await;
        assert!(all.is_ok(), "slots are still in use: {all:?}");
        let mut traces = Vec::new();
        for _ in 0..8 {
            traces.push(operator.trace(TraceRequest::default()).await.expect("no earlier trace is open"));
        }
        operator.diagnose(DiagnoseRequest {}).await.expect("an operator may diagnose the cluster");
        self.cluster.check_tasks();
    }
}

impl ConnectedAgent {
    fn handle(&mut self, body: controller_message::Body) {
        let ready = |group, epoch| agent_message::Body::GroupReady(GroupReady { group, epoch });
        match body {
            controller_message::Body::Group(group) => {
                self.held.groups.insert(group.id);
                self.agent.send(ready(group.id, group.epoch));
            }
            controller_message::Body::Description(description) => {
                let mut held = Held { description, ..Held::default() };
                let group = cool_proto::description::WireGroup::from_held(&mut held).ok().flatten();
                let group = group.and_then(|group| group.group().ok()).expect("a valid description");
                self.held.groups.insert(group.id);
                self.agent.send(ready(group.id, group.epoch));
            }
            controller_message::Body::Release(release) => drop(self.held.groups.remove(&release.group)),
            controller_message::Body::Launch(launch) => {
                self.held.running.extend(launch.ranks.iter().map(|rank| (launch.job, *rank)));
            }
            controller_message::Body::Kill(kill) => {
                let (killed, running) = self.held.running.iter().partition(|(job, _)| *job == kill.job);
                self.held.running = running;
                let killed: BTreeSet<(u64, u32)> = killed;
                for (job, rank) in killed {
                    let exited = Exited { job, rank, code: -1, signal: 9, ..Exited::default() };
                    self.agent.send(agent_message::Body::Exited(exited));
                }
            }
            controller_message::Body::Probe(probe) => {
                let (latency_ns, bytes_per_second) = (1000, 1_000_000);
                let probed = Probed { id: probe.id, latency_ns, bytes_per_second, ..Probed::default() };
                self.agent.send(agent_message::Body::Probed(probed));
            }
            controller_message::Body::Trace(request) => {
                let traced = Traced { id: request.id, records: Vec::new(), end: true };
                self.agent.send(agent_message::Body::Traced(traced));
            }
            controller_message::Body::Examine(examine) => {
                let examined = Examined { id: examine.id, ..Examined::default() };
                self.agent.send(agent_message::Body::Examined(examined));
            }
            _ => {}
        }
    }
}

/// Returns groups that an agent holds from an earlier controller.
fn held(b: u8) -> Vec<Held> {
    if b < 192 {
        return Vec::new();
    }
    let id = [1, 2, u64::MAX, u64::MAX - 1][usize::from(b % 4)];
    let job = [0, 3, id, 1][usize::from(b / 4 % 4)];
    let member = |node: u8| Member { rank: u32::from(node), node: format!("h{node}"), ..Member::default() };
    let members = (0..=b / 16 % 2).map(member).collect();
    let group = Group { id, epoch: 1, job, members, ..Group::default() };
    vec![Held {
        group: Some(group),
        controller: 1,
        ranks: vec![0, u32::from(b % 3)],
        exited: vec![Exited { rank: 1, signal: 9, ..Exited::default() }],
        user: "ann".into(),
        ..Held::default()
    }]
}

pub(crate) fn check(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let mut sequence = Sequence::start().await;
        for step in bytes.as_chunks::<3>().0.iter().take(STEPS_MAX) {
            sequence.step(*step).await;
        }
        sequence.finish().await;
    });
}

/// Checks that the seeds start jobs, because otherwise most of their steps would have no effect.
#[test]
fn the_jobs_of_seeds_run() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let mut sequence = Sequence::start().await;
        for step in seeds()[0].as_chunks::<3>().0.iter().take(7) {
            sequence.step(*step).await;
        }
        let running: usize = (0..NODES).filter_map(|node| Some(sequence.connected(node)?.held.running.len())).sum();
        assert_eq!(running, 3);
    });
}

target!(300);
