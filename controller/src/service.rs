//! The gRPC service for agents and tools. It passes messages to and from [`AgentRegistry`],
//! [`JobRegistry`] and [`GroupRegistry`].

use crate::abbreviation::{LOGGED_BYTES_MAX, REASON_BYTES_MAX, abbreviate, shorten};
use crate::access::CallerIdentity;
use crate::agents::grace_timers::NodeLost;
use crate::agents::presence::AgentPresence;
use crate::agents::registered_agent::parse_neighbor;
use crate::agents::session::{ConnectError, ControllerMessages, SessionConnection};
use crate::agents::traces::Traces;
use crate::agents::{Admission, AdmitError, AgentRegistry, RegisteredAgent, Session, SessionEvent};
use crate::costs::prober::Prober;
use crate::flooding::FloodingMonitor;
use crate::graceful_restart::GroupRecovery;
use crate::groups::membership_driver::MembershipDriver;
use crate::groups::queriers::Queriers;
use crate::groups::{FIRST_EPOCH, GroupRegistry, outsiders};
use crate::jobs::caller_event_stream::CallerArrival;
use crate::jobs::control::ControlRequest;
use crate::jobs::{JobError, JobRegistry, SubmitError, deliver};
use crate::leadership::state_store::StateStore;
use crate::pages::doctor::Doctor;
use cool_fabric::Fabric;
use cool_fabric::{FabricError, NodeRegistration};
use cool_proto::control::controller_server::Controller;
use cool_proto::control::{
    self, Acknowledged, AgentMessage, AttendRequest, CancelRequest, Cancelled, DiagnoseRequest, Diagnosis,
    DrainRequest, Drained, Group, GroupFailed, GroupReady, GroupsRequest, Held, JobEvent, JobList, JobSpec,
    JobsRequest, Leave, NeighborChanged, RanksLeft, Register, SignalRequest, Signalled, Topology,
    TopologyRequest, TraceEvent, TraceRequest, TreesSilent, agent_message::Body,
};
use cool_proto::{delivery, features};
use cool_tls::Role;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::{Instrument, info, info_span, warn};

/// Name under which later runs find the drained nodes.
pub(crate) const DRAIN_FILE: &str = "drained";
/// How long an agent may take to register.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of events waiting for a tool's connection.
const EVENT_QUEUE_CAPACITY: usize = 16;

/// The service. Clones share their state.
#[derive(Clone)]
pub struct Service {
    /// The network.
    pub network: Arc<dyn Fabric>,
    /// All agents with a session.
    pub agents: Arc<AgentRegistry>,
    /// Which agents are connected.
    pub presence: Arc<AgentPresence>,
    /// The groups in use.
    pub groups: Arc<GroupRegistry>,
    /// The running jobs.
    pub jobs: Arc<JobRegistry>,
    /// Groups formed by rendezvous or recovery.
    pub membership_driver: Arc<MembershipDriver>,
    /// Groups and jobs of an earlier controller.
    pub group_recovery: Arc<GroupRecovery>,
    /// Measures the network.
    pub prober: Arc<Prober>,
    /// The queriers of multicast groups on networks without OpenFlow.
    pub queriers: Arc<Queriers>,
    /// Examines whether the network floods multicasts.
    pub flooding: Arc<FloodingMonitor>,
    /// Collects traces of calls.
    pub traces: Arc<Traces>,
    /// Examines the deployment.
    pub doctor: Arc<Doctor>,
    /// Whether to reject agents with certificates that do not name a node.
    pub only_bound_certificates: bool,
    /// State for later runs.
    pub store: StateStore,
    /// Held while the drained nodes change and are saved, so that the saved state is the latest.
    pub drain_order: Arc<tokio::sync::Mutex<()>>,
}

/// How a connection of an agent ended.
enum AgentConnectionEnd {
    /// The node is lost.
    NodeLost(&'static str),
    /// Another connection replaced it, or the controller is shutting down.
    Replaced,
    /// The connection broke, and the agent may reconnect.
    Broken(String),
}

#[tonic::async_trait]
impl Controller for Service {
    type JoinStream = ControllerMessages;
    type RunStream = ReceiverStream<Result<JobEvent, Status>>;

    async fn join(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::JoinStream>, Status> {
        let caller = CallerIdentity::from_request(&request, Role::Agent)?;
        let mut inbound = request.into_inner();
        let mut register = registration(&mut inbound).await?;
        let (held, claimed) = (std::mem::take(&mut register.held), register.session.take());
        let agent = RegisteredAgent::try_from(register)?;
        let name = agent.name.clone();
        let permitted = caller.check_node(&name, agent.ip, self.only_bound_certificates);
        caller.audit("join", &name, &permitted);
        permitted?;
        let admitted = self.admit(agent, claimed).await.inspect_err(|why| warn!(%why, "agent refused"))?;
        // The connection must now be ended properly, even if this call is dropped.
        let (answer, admission) = oneshot::channel();
        let span = info_span!("agent", node = name);
        tokio::spawn(self.clone().serve_agent(admitted, held, inbound, answer).instrument(span));
        Ok(Response::new(admission.await.map_err(|_| Status::internal("the agent's session has ended"))??))
    }

    async fn get_topology(&self, request: Request<TopologyRequest>) -> Result<Response<Topology>, Status> {
        CallerIdentity::from_request(&request, Role::Tool)?;
        let observation = self.network.observation().await.map_err(fabric_status)?;
        Ok(Response::new(self.topology(&self.network.topology(), observation)))
    }

    async fn list_groups(
        &self,
        request: Request<GroupsRequest>,
    ) -> Result<Response<cool_proto::control::Groups>, Status> {
        let caller = CallerIdentity::from_request(&request, Role::Tool)?;
        let mut groups: Vec<Group> = self.groups.list(&*self.network).await;
        // Only agents know the users of groups that do not belong to a job.
        let seen = |group: &Group| self.jobs.user(group.job).is_some_and(|user| caller.may_access(&user));
        groups.retain(|group| caller.name().is_none() || seen(group));
        Ok(Response::new(cool_proto::control::Groups { groups, outsiders: outsiders(&*self.network) }))
    }

    async fn diagnose(&self, request: Request<DiagnoseRequest>) -> Result<Response<Diagnosis>, Status> {
        CallerIdentity::from_request(&request, Role::Tool)?.check_operator("cool doctor")?;
        Ok(Response::new(self.doctor.examine().await))
    }

    async fn run(&self, request: Request<JobSpec>) -> Result<Response<Self::RunStream>, Status> {
        let caller = CallerIdentity::from_request(&request, Role::Tool)?;
        let (sender, events) = mpsc::channel(EVENT_QUEUE_CAPACITY);
        let mut spec = request.into_inner();
        let program = abbreviate(&spec.program, LOGGED_BYTES_MAX).into_owned();
        let submitted = caller.acting_user(&spec.user).and_then(|user| {
            spec.user = user;
            // A user's job must run as that user, so agents must support this. Jobs of operators
            // may also run on agents of earlier releases.
            let needed = if caller.name().is_some() { features::USERS } else { 0 };
            Ok(self.jobs.submit(CallerArrival { sender, spec, numbered: false }, needed)?)
        });
        let about = submitted.as_ref().map_or(program.clone(), |job| format!("job {job}: {program}"));
        caller.audit("run", &about, &submitted);
        submitted.map(|_| Response::new(ReceiverStream::new(events)))
    }

    type AttendStream = ReceiverStream<Result<JobEvent, Status>>;

    async fn attend(&self, request: Request<AttendRequest>) -> Result<Response<Self::AttendStream>, Status> {
        let caller = CallerIdentity::from_request(&request, Role::Tool)?;
        let (sender, events) = mpsc::channel(EVENT_QUEUE_CAPACITY);
        let AttendRequest { job, spec, numbered } = request.into_inner();
        let mut spec = spec.unwrap_or_default();
        let attended = self.check_job(&caller, job).and_then(|()| {
            spec.user = caller.acting_user(&spec.user)?;
            Ok(self.jobs.attend(job, CallerArrival { sender, spec, numbered })?)
        });
        caller.audit("attend", &format!("job {job}"), &attended);
        attended.map(|()| Response::new(ReceiverStream::new(events)))
    }

    async fn list_jobs(&self, request: Request<JobsRequest>) -> Result<Response<JobList>, Status> {
        let caller = CallerIdentity::from_request(&request, Role::Tool)?;
        Ok(Response::new(JobList { jobs: self.jobs.list(|user| caller.may_access(user)) }))
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<Cancelled>, Status> {
        let caller = CallerIdentity::from_request(&request, Role::Tool)?;
        let CancelRequest { job, user } = request.into_inner();
        let mut by = caller.name().map_or(user, str::to_owned);
        shorten(&mut by, LOGGED_BYTES_MAX);
        let result = self.request(&caller, job, ControlRequest::Cancel(by));
        caller.audit("cancel", &format!("job {job}"), &result);
        result.map(|()| Response::new(Cancelled {}))
    }

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<Drained>, Status> {
        let caller = CallerIdentity::from_request(&request, Role::Tool)?;
        let DrainRequest { end, wait, nodes } = request.into_inner();
        let about = if nodes.is_empty() { "all jobs".to_owned() } else { nodes.join(", ") };
        let about = abbreviate(&about, LOGGED_BYTES_MAX);
        let permitted = caller.check_operator("cool drain").and_then(|()| self.check_nodes(&nodes, end));
        caller.audit(if end { "drain --end" } else { "drain" }, &about, &permitted);
        permitted?;
        let saved = {
            let _order = self.drain_order.lock().await;
            let drained = self.jobs.drain(&nodes, end);
            self.store.save(DRAIN_FILE, &drained.to_text()).await
        };
        saved.map_err(|why| Status::unavailable(format!("done, but not for the next controller: {why}")))?;
        if wait {
            self.jobs.wait_until_idle(&nodes).await;
        }
        Ok(Response::new(Drained { nodes }))
    }

    type TraceStream = ReceiverStream<Result<TraceEvent, Status>>;

    async fn trace(&self, request: Request<TraceRequest>) -> Result<Response<Self::TraceStream>, Status> {
        CallerIdentity::from_request(&request, Role::Tool)?.check_operator("cool trace")?;
        let (sender, events) = mpsc::channel(EVENT_QUEUE_CAPACITY);
        let started = self.traces.start(request.into_inner(), sender);
        started.map_err(|busy| Status::resource_exhausted(busy.to_string()))?;
        Ok(Response::new(ReceiverStream::new(events)))
    }

    async fn signal(&self, request: Request<SignalRequest>) -> Result<Response<Signalled>, Status> {
        let caller = CallerIdentity::from_request(&request, Role::Tool)?;
        let SignalRequest { job, signal } = request.into_inner();
        let result = self.request(&caller, job, ControlRequest::Signal(signal));
        caller.audit("signal", &format!("job {job}: signal {signal}"), &result);
        result.map(|()| Response::new(Signalled {}))
    }
}

/// Reads the first message of an agent, which must be its registration.
async fn registration(inbound: &mut Streaming<AgentMessage>) -> Result<Register, Status> {
    let first = timeout(REGISTRATION_TIMEOUT, inbound.message()).await.map_err(|_| {
        Status::deadline_exceeded(format!("the agent did not register within {REGISTRATION_TIMEOUT:?}"))
    })??;
    match first.and_then(|m| m.body) {
        Some(Body::Register(register)) => Ok(register),
        _ => Err(Status::invalid_argument("an agent's first message must be its registration")),
    }
}

impl Service {
    /// Checks that all nodes to be drained exist.
    fn check_nodes(&self, nodes: &[String], end: bool) -> Result<(), Status> {
        let network = self.network.topology();
        match nodes.iter().find(|node| network.node(node).is_none()) {
            Some(node) if !end => {
                let node = abbreviate(node, LOGGED_BYTES_MAX);
                let why = format!("there is no node {node}; `cool topology` lists the nodes");
                Err(Status::invalid_argument(why))
            }
            _ => Ok(()),
        }
    }

    /// Checks whether the caller may control a job.
    fn check_job(&self, caller: &CallerIdentity, job: u64) -> Result<(), Status> {
        // A job that has ended is reported as such to any caller.
        self.jobs.user(job).map_or(Ok(()), |user| caller.check_job(job, &user))
    }

    fn request(&self, caller: &CallerIdentity, job: u64, request: ControlRequest) -> Result<(), Status> {
        let job = self.jobs.full_id(job, |user| caller.may_access(user))?;
        self.check_job(caller, job)?;
        Ok(self.jobs.request(job, request)?)
    }

    /// Returns the session for an agent that registers. If the name belongs to a session that
    /// cannot be resumed, that session is ended first.
    async fn admit(
        &self,
        agent: RegisteredAgent,
        claimed: Option<control::Session>,
    ) -> Result<Admission, AdmitError> {
        let admitted = self.agents.admit(agent.clone(), claimed)?;
        let Admission::Superseded(former) = admitted else { return Ok(admitted) };
        let why = "its agent was restarted, or has lost its session";
        // Continue even if this call is dropped.
        let (service, lost) = (self.clone(), former.clone());
        let ended = tokio::spawn(async move { service.lose_node(&lost, why).await });
        if ended.await.is_err() {
            warn!(node = former.agent.name, "ending its former session failed");
        }
        self.agents.admit(agent, claimed)
    }

    /// Serves one connection of an agent's session.
    async fn serve_agent(
        self,
        admitted: Admission,
        held: Vec<Held>,
        inbound: Streaming<AgentMessage>,
        answer: oneshot::Sender<Result<ControllerMessages, Status>>,
    ) {
        let attached = match &admitted {
            Admission::New(session) => self.begin(session).await.map(|attached| (session, attached)),
            Admission::Resumed(session, received) => {
                let attached = session.connect(Some(*received), self.agents.registered(session)).await;
                if let Err(why @ ConnectError::Unacknowledgeable(_)) = &attached {
                    self.lose_node(session, &why.to_string()).await;
                }
                attached.map_err(Status::from).map(|attached| (session, attached))
            }
            Admission::Superseded(former) => {
                Err(AdmitError::Taken { name: former.agent.name.clone() }.into())
            }
        };
        let (session, (connection, outgoing)) = match attached {
            Ok(attached) => attached,
            Err(why) => {
                warn!(why = why.message(), "agent refused");
                // If the call was dropped, the response is not needed.
                let _ = answer.send(Err(why));
                return;
            }
        };
        let _ = answer.send(Ok(outgoing));
        let away = self.presence.away_for(&session.agent.name);
        self.presence.connected(&session.agent.name);
        if let Admission::New(_) = admitted {
            info!(ip = %session.agent.ip, slots = session.agent.slots, "agent joined");
            self.group_recovery.record_held_groups(session, self.agents.controller(), held).await;
        } else {
            info!(away_seconds = away.map(|away| away.as_secs_f64()), "agent reconnected");
        }
        match self.read(session, &connection, inbound).await {
            AgentConnectionEnd::NodeLost(reason) => self.lose_node(session, reason).await,
            AgentConnectionEnd::Replaced => {}
            AgentConnectionEnd::Broken(reason) => {
                if session.disconnect(&connection) {
                    warn!(reason, "agent disconnected; its node keeps its flows, groups and jobs");
                    self.presence.disconnected(&session.agent.name);
                }
            }
        }
    }

    /// Starts a session and registers its node in the network.
    async fn begin(&self, session: &Arc<Session>) -> Result<(SessionConnection, ControllerMessages), Status> {
        let RegisteredAgent { name, ip, mac, rack, neighbor, .. } = session.agent.clone();
        let lldp_key = session.lldp_key.clone();
        let registration = NodeRegistration { name, ip, mac, lldp_key, rack, neighbor };
        if let Err(why) = self.network.register(registration).await {
            session.end();
            self.agents.remove(session);
            return Err(fabric_status(why));
        }
        Ok(session.connect(None, self.agents.registered(session)).await?)
    }

    /// Processes an agent's messages until the connection ends.
    async fn read(
        &self,
        session: &Arc<Session>,
        connection: &SessionConnection,
        mut inbound: Streaming<AgentMessage>,
    ) -> AgentConnectionEnd {
        loop {
            let message = tokio::select! {
                ended = session.closed(connection) => {
                    return if ended { AgentConnectionEnd::NodeLost("the controller ended its session") } else { AgentConnectionEnd::Replaced };
                }
                message = inbound.message() => message,
            };
            let message = match message {
                Ok(Some(message)) => message,
                Ok(None) => return AgentConnectionEnd::Broken("the agent closed it".to_owned()),
                Err(status) => return AgentConnectionEnd::Broken(status.message().to_owned()),
            };
            let bytes = delivery::bytes(&message);
            match message.body {
                Some(Body::Acknowledged(Acknowledged { received, .. })) => {
                    if let Err(why) = session.acknowledge(received) {
                        warn!(%why, "agent acknowledged messages that it was not sent");
                        return AgentConnectionEnd::NodeLost(
                            "its agent acknowledged messages that it was not sent",
                        );
                    }
                }
                Some(Body::Leave(Leave {})) => return AgentConnectionEnd::NodeLost("its agent has left"),
                body => {
                    session.receive(bytes);
                    match body {
                        Some(body) => self.receive(session, body).await,
                        None => warn!("unknown kind of message; the agent may be newer than the controller"),
                    }
                }
            }
        }
    }

    /// Waits for disconnected nodes to be lost. Never returns.
    pub async fn watch(self) {
        loop {
            let NodeLost { node, why } = self.presence.lost_node(&*self.network).await;
            if let Some(session) = self.agents.get(&node)
                && (session.end_if_away() || session.has_ended())
            {
                self.lose_node(&session, &why.to_string()).await;
            }
        }
    }

    /// Ends the session of a lost node and reports the loss everywhere.
    async fn lose_node(&self, session: &Session, reason: &str) {
        let notify = async {
            let name = &session.agent.name;
            warn!(node = name, reason, "node lost");
            // The name must stay in use until nothing refers to the old session.
            if let Err(why) = self.network.unregister(name).await {
                warn!(node = name, %why, "cannot unregister the node");
            }
            self.presence.removed(name);
            self.agents.remove(session);
            self.queriers.remove(session);
            self.group_recovery.node_lost(session);
            self.jobs.node_lost(session, reason).await;
            self.membership_driver.node_lost(session, reason);
        };
        session.finish(notify).await;
    }

    async fn receive(&self, session: &Arc<Session>, body: Body) {
        let jobs = &self.jobs;
        match body {
            Body::Register(_) | Body::Acknowledged(_) | Body::Leave(_) => {
                warn!("unexpected message; ignored")
            }
            Body::GroupReady(GroupReady { group, epoch }) => {
                for member in self.groups.on_group_made(group, session) {
                    self.deliver_to_group(&member, group, SessionEvent::Ready(epoch)).await;
                }
            }
            Body::TreesProbed(report) => {
                for member in self.groups.on_trees_probed(session, &report) {
                    self.deliver_to_group(&member, report.group, SessionEvent::Ready(FIRST_EPOCH)).await;
                }
            }
            Body::TreesSilent(TreesSilent { group }) => self.groups.on_tree_silent(session, group),
            Body::GroupFailed(GroupFailed { group, mut reason }) => {
                shorten(&mut reason, REASON_BYTES_MAX);
                self.deliver_to_group(session, group, SessionEvent::GroupFailed(reason)).await;
            }
            Body::Left(left) => {
                self.membership_driver.ranks_left(session, &left);
                if let RanksLeft { group, unused: true, .. } = left {
                    self.deliver_to_group(session, group, SessionEvent::Unused).await;
                }
            }
            Body::Recover(recover) => self.membership_driver.recover(session, recover),
            Body::Enlist(enlist) => self.membership_driver.enlist(session, enlist),
            Body::Withdraw(withdraw) => self.membership_driver.withdraw(session, &withdraw),
            Body::Output(output) => {
                jobs.deliver_to_job(session, output.job, SessionEvent::Output(output)).await
            }
            Body::Exited(mut exited) => {
                // It may contain the name of the program, once for each rank.
                shorten(&mut exited.error, REASON_BYTES_MAX);
                jobs.deliver_to_job(session, exited.job, SessionEvent::Exited(exited)).await
            }
            Body::Probed(probed) => self.prober.receive(session, probed),
            Body::Traced(traced) => self.traces.receive(session, traced).await,
            Body::Examined(examined) => self.doctor.receive(session, examined),
            Body::NeighborChanged(NeighborChanged { neighbor }) => match parse_neighbor(neighbor) {
                Ok(neighbor) => {
                    if let Err(why) = self.network.set_neighbor(&session.agent.name, neighbor).await {
                        warn!(%why, "cannot record the node's switch");
                    }
                }
                Err(why) => warn!(why, "the agent reports an invalid switch; ignored"),
            },
            Body::FloodingReport(report) => self.flooding.receive(session, report),
            Body::QuerierChanged(report) => {
                if self.queriers.record(session, &report) {
                    self.groups.retry_multicast();
                    self.flooding.on_network_change();
                }
            }
            Body::Held(further) => {
                self.group_recovery.record_held_groups(session, self.agents.controller(), further.held).await;
            }
        }
    }

    /// Delivers an agent's message about a group.
    async fn deliver_to_group(&self, session: &Session, group: u64, event: SessionEvent) {
        match self.jobs.mailbox_of_group(group) {
            Some(mailbox) => deliver(Some(mailbox), session, event).await,
            None => self.membership_driver.group_event(session, group, event),
        }
    }
}

impl From<ConnectError> for Status {
    fn from(error: ConnectError) -> Status {
        Status::aborted(error.to_string())
    }
}

impl From<AdmitError> for Status {
    fn from(error: AdmitError) -> Status {
        let text = error.to_string();
        match error {
            AdmitError::Version { .. } => Status::failed_precondition(text),
            AdmitError::Invalid { .. } => Status::invalid_argument(text),
            AdmitError::Taken { .. } => Status::already_exists(text),
            AdmitError::Closed => Status::unavailable(text),
        }
    }
}

impl From<SubmitError> for Status {
    fn from(error: SubmitError) -> Status {
        let text = error.to_string();
        match error {
            SubmitError::NoProgram
            | SubmitError::Command(_)
            | SubmitError::Placement(_)
            | SubmitError::Hosts { .. }
            | SubmitError::Racks(_) => Status::invalid_argument(text),
            SubmitError::Allocate { .. } | SubmitError::JobsOfUser { .. } => Status::resource_exhausted(text),
            SubmitError::Drained | SubmitError::Closed => Status::unavailable(text),
        }
    }
}

impl From<JobError> for Status {
    fn from(error: JobError) -> Status {
        match error {
            JobError::NoJob(_) => Status::not_found(error.to_string()),
            JobError::Ended { .. } => Status::failed_precondition(error.to_string()),
            JobError::Several(..) => Status::invalid_argument(error.to_string()),
            JobError::Busy(_) => Status::resource_exhausted(error.to_string()),
            JobError::Signal(_) | JobError::Command(_) => Status::invalid_argument(error.to_string()),
        }
    }
}

/// Returns the gRPC status that reports an error of the fabric.
fn fabric_status(error: FabricError) -> Status {
    let text = error.to_string();
    match error {
        FabricError::AddressTaken { .. } => Status::already_exists(text),
        FabricError::BadRegistration { .. } => Status::invalid_argument(text),
        FabricError::Stopped => Status::unavailable(text),
        _ => Status::failed_precondition(text),
    }
}
