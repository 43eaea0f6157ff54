//! The gRPC service for agents and tools: messages to and from [`Agents`], [`Jobs`] and [`Groups`].

use crate::access::Asker;
use crate::agents::absence::Gone;
use crate::agents::attendance::Attendance;
use crate::agents::session::{AttachError, Connection, ControllerMessages};
use crate::agents::traces::Traces;
use crate::agents::{AdmitError, Admitted, Agent, Agents, Session};
use crate::costs::Measurements;
use crate::costs::prober::Prober;
use cool_fabric::Fabric;
use cool_fabric::{FabricError, HostView, NodeRegistration, TopologySnapshot};
use crate::groups::registrar::Registrar;
use crate::groups::{self, Groups, Place};
use crate::jobs::control::ControlRequest;
use crate::jobs::follower::CallerArrival;
use crate::jobs::job::SessionEvent;
use crate::jobs::{JobError, Jobs, SubmitError, deliver};
use crate::pages::doctor::Doctor;
use crate::restart::Takeover;
use cool_proto::control::controller_server::Controller;
use cool_proto::control::{
    self, Acknowledged, AgentMessage, AttendRequest, CancelRequest, Cancelled, DiagnoseRequest, Diagnosis,
    DrainRequest, Drained, Group, GroupFailed, GroupReady, GroupsRequest, Held, JobEvent, JobList, JobSpec,
    JobsRequest, Leave, Link, Node, Outsiders, RanksLeft, Register, SignalRequest, Signalled, Switch,
    Topology, TopologyRequest, TraceEvent, TraceRequest, agent_message::Body,
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

/// How long an agent may take to say who it is.
const REGISTER_WITHIN: Duration = Duration::from_secs(5);
/// Events that wait for the connection of whoever asks.
const CALLER_QUEUE: usize = 16;

/// The service; clones share everything.
#[derive(Clone)]
pub struct Service {
    /// The network.
    pub network: Arc<dyn Fabric>,
    /// The agents whose nodes are there.
    pub agents: Arc<Agents>,
    /// Which of them are away.
    pub attendance: Arc<Attendance>,
    /// The groups in use.
    pub groups: Arc<Groups>,
    /// The running jobs.
    pub jobs: Arc<Jobs>,
    /// Groups whose members come by themselves.
    pub registrar: Arc<Registrar>,
    /// What goes on from an earlier controller.
    pub takeover: Arc<Takeover>,
    /// Knows what the network costs.
    pub prober: Arc<Prober>,
    /// Asks what calls cost.
    pub traces: Arc<Traces>,
    /// Knows what is wrong.
    pub doctor: Arc<Doctor>,
    /// Whether agents are turned away whose certificates name no node.
    pub only_bound_certificates: bool,
}

/// How a connection of an agent ended.
enum End {
    /// And the node is gone.
    Gone(&'static str),
    /// The session has another one, or the controller stops.
    Replaced,
    /// The agent may come back.
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
        let asker = Asker::of(&request, Role::Agent)?;
        let mut inbound = request.into_inner();
        let mut register = registration(&mut inbound).await?;
        let (held, claimed) = (std::mem::take(&mut register.held), register.session.take());
        let agent = Agent::try_from(register)?;
        let name = agent.name.clone();
        let permitted = asker.check_node(&name, agent.ip, self.only_bound_certificates);
        asker.audit("join", &name, &permitted);
        permitted?;
        let admitted = self.admit(agent, claimed).await.inspect_err(|why| warn!(%why, "agent refused"))?;
        // From here on the connection must be ended in order, also if this call is dropped.
        let (answer, admission) = oneshot::channel();
        let span = info_span!("agent", node = name);
        tokio::spawn(self.clone().serve_agent(admitted, held, inbound, answer).instrument(span));
        Ok(Response::new(admission.await.map_err(|_| Status::internal("the agent's session was dropped"))??))
    }

    async fn get_topology(&self, request: Request<TopologyRequest>) -> Result<Response<Topology>, Status> {
        Asker::of(&request, Role::Tool)?;
        Ok(Response::new(self.topology(&self.network.topology())))
    }

    async fn list_groups(
        &self,
        request: Request<GroupsRequest>,
    ) -> Result<Response<cool_proto::control::Groups>, Status> {
        let asker = Asker::of(&request, Role::Tool)?;
        let mut groups: Vec<Group> = self.groups.list(&*self.network).await;
        // Whose groups are that processes came to by themselves, only agents know.
        let seen = |group: &Group| self.jobs.user(group.job).is_some_and(|user| asker.may(&user));
        groups.retain(|group| asker.name().is_none() || seen(group));
        Ok(Response::new(cool_proto::control::Groups { groups, outsiders: self.outsiders() }))
    }

    async fn diagnose(&self, request: Request<DiagnoseRequest>) -> Result<Response<Diagnosis>, Status> {
        Asker::of(&request, Role::Tool)?.check_operator("cool doctor")?;
        Ok(Response::new(self.doctor.examine().await))
    }

    async fn run(&self, request: Request<JobSpec>) -> Result<Response<Self::RunStream>, Status> {
        let asker = Asker::of(&request, Role::Tool)?;
        let (caller, events) = mpsc::channel(CALLER_QUEUE);
        let mut spec = request.into_inner();
        let program = spec.program.clone();
        let submitted = asker.in_whose_name(&spec.user).and_then(|user| {
            spec.user = user;
            // Who is known to be a user runs nothing as somebody else; for operators agents do what they did before.
            let needed = if asker.name().is_some() { features::USERS } else { 0 };
            Ok(self.jobs.submit(CallerArrival { caller, spec, numbered: false }, needed)?)
        });
        let about = submitted.as_ref().map_or(program.clone(), |job| format!("job {job}: {program}"));
        asker.audit("run", &about, &submitted);
        submitted.map(|_| Response::new(ReceiverStream::new(events)))
    }

    type AttendStream = ReceiverStream<Result<JobEvent, Status>>;

    async fn attend(&self, request: Request<AttendRequest>) -> Result<Response<Self::AttendStream>, Status> {
        let asker = Asker::of(&request, Role::Tool)?;
        let (caller, events) = mpsc::channel(CALLER_QUEUE);
        let AttendRequest { job, spec, numbered } = request.into_inner();
        let mut spec = spec.unwrap_or_default();
        let attended = self.check_job(&asker, job).and_then(|()| {
            spec.user = asker.in_whose_name(&spec.user)?;
            Ok(self.jobs.attend(job, CallerArrival { caller, spec, numbered })?)
        });
        asker.audit("attend", &format!("job {job}"), &attended);
        attended.map(|()| Response::new(ReceiverStream::new(events)))
    }

    async fn list_jobs(&self, request: Request<JobsRequest>) -> Result<Response<JobList>, Status> {
        let asker = Asker::of(&request, Role::Tool)?;
        Ok(Response::new(JobList { jobs: self.jobs.list(|user| asker.may(user)) }))
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<Cancelled>, Status> {
        let asker = Asker::of(&request, Role::Tool)?;
        let CancelRequest { job, user } = request.into_inner();
        let by = asker.name().map_or(user, str::to_owned);
        let ordered = self.order(&asker, job, ControlRequest::Cancel(by));
        asker.audit("cancel", &format!("job {job}"), &ordered);
        ordered.map(|()| Response::new(Cancelled {}))
    }

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<Drained>, Status> {
        let asker = Asker::of(&request, Role::Tool)?;
        let DrainRequest { end, wait } = request.into_inner();
        let permitted = asker.check_operator("cool drain");
        asker.audit(if end { "drain --end" } else { "drain" }, "all jobs", &permitted);
        permitted?;
        self.jobs.drain(!end);
        if wait {
            self.jobs.over().await;
        }
        Ok(Response::new(Drained {}))
    }

    type TraceStream = ReceiverStream<Result<TraceEvent, Status>>;

    async fn trace(&self, request: Request<TraceRequest>) -> Result<Response<Self::TraceStream>, Status> {
        Asker::of(&request, Role::Tool)?.check_operator("cool trace")?;
        let (asker, events) = mpsc::channel(CALLER_QUEUE);
        let asked = self.traces.ask(request.into_inner(), asker);
        asked.map_err(|busy| Status::resource_exhausted(busy.to_string()))?;
        Ok(Response::new(ReceiverStream::new(events)))
    }

    async fn signal(&self, request: Request<SignalRequest>) -> Result<Response<Signalled>, Status> {
        let asker = Asker::of(&request, Role::Tool)?;
        let SignalRequest { job, signal } = request.into_inner();
        let ordered = self.order(&asker, job, ControlRequest::Signal(signal));
        asker.audit("signal", &format!("job {job}: signal {signal}"), &ordered);
        ordered.map(|()| Response::new(Signalled {}))
    }
}

/// The first message of an agent.
async fn registration(inbound: &mut Streaming<AgentMessage>) -> Result<Register, Status> {
    let first = timeout(REGISTER_WITHIN, inbound.message()).await.map_err(|_| {
        Status::deadline_exceeded(format!("the agent has not registered within {REGISTER_WITHIN:?}"))
    })??;
    match first.and_then(|m| m.body) {
        Some(Body::Register(register)) => Ok(register),
        _ => Err(Status::invalid_argument("an agent's first message is its registration")),
    }
}

impl Service {
    /// Whether a job is the asker's to end.
    fn check_job(&self, asker: &Asker, job: u64) -> Result<(), Status> {
        // One that runs no more is named as such to whoever asks.
        self.jobs.user(job).map_or(Ok(()), |user| asker.check_job(job, &user))
    }

    fn order(&self, asker: &Asker, job: u64, order: ControlRequest) -> Result<(), Status> {
        let job = self.jobs.number(job, |user| asker.may(user))?;
        self.check_job(asker, job)?;
        Ok(self.jobs.order(job, order)?)
    }

    /// Finds or begins the session of an agent. One that has the name, and will not come back, is gone now.
    async fn admit(&self, agent: Agent, claimed: Option<control::Session>) -> Result<Admitted, AdmitError> {
        let admitted = self.agents.admit(agent.clone(), claimed)?;
        let Admitted::Former(former) = admitted else { return Ok(admitted) };
        let why = "its agent was started anew, or has lost its session";
        // Also if this call is dropped.
        let (service, gone) = (self.clone(), former.clone());
        let gone = tokio::spawn(async move { service.node_gone(&gone, why).await });
        if gone.await.is_err() {
            warn!(node = former.agent.name, "the end of its former session was dropped");
        }
        self.agents.admit(agent, claimed)
    }

    /// Serves one connection of an agent's session.
    async fn serve_agent(
        self,
        admitted: Admitted,
        held: Vec<Held>,
        inbound: Streaming<AgentMessage>,
        answer: oneshot::Sender<Result<ControllerMessages, Status>>,
    ) {
        let attached = match &admitted {
            Admitted::New(session) => self.begin(session).await.map(|attached| (session, attached)),
            Admitted::Back(session, received) => {
                let attached = session.connect(Some(*received), self.agents.registered(session)).await;
                if let Err(why @ AttachError::AcknowledgementError(_)) = &attached {
                    self.node_gone(session, &why.to_string()).await;
                }
                attached.map_err(Status::from).map(|attached| (session, attached))
            }
            Admitted::Former(former) => Err(AdmitError::Taken { name: former.agent.name.clone() }.into()),
        };
        let (session, (connection, outgoing)) = match attached {
            Ok(attached) => attached,
            Err(why) => {
                warn!(why = why.message(), "agent refused");
                // If the call was dropped, nobody needs the answer.
                let _ = answer.send(Err(why));
                return;
            }
        };
        let _ = answer.send(Ok(outgoing));
        let away = self.attendance.away_for(&session.agent.name);
        self.attendance.here(&session.agent.name);
        if let Admitted::New(_) = admitted {
            info!(ip = %session.agent.ip, slots = session.agent.slots, "agent joined");
            self.takeover.report(session, self.agents.controller(), held).await;
        } else {
            info!(away_seconds = away.map(|away| away.as_secs_f64()), "agent is back");
        }
        match self.read(session, &connection, inbound).await {
            End::Gone(reason) => self.node_gone(session, reason).await,
            End::Replaced => {}
            End::Broken(reason) => {
                if session.disconnect(&connection) {
                    warn!(reason, "agent is away; its node keeps what it has");
                    self.attendance.away(&session.agent.name);
                }
            }
        }
    }

    /// A session begins: its node is known from now on.
    async fn begin(&self, session: &Arc<Session>) -> Result<(Connection, ControllerMessages), Status> {
        let Agent { name, ip, mac, .. } = session.agent.clone();
        let lldp_key = session.lldp_key.clone();
        if let Err(why) = self.network.register(NodeRegistration { name, ip, mac, lldp_key }).await {
            session.end();
            self.agents.remove(session);
            return Err(fabric_status(why));
        }
        Ok(session.connect(None, self.agents.registered(session)).await?)
    }

    /// Does what an agent says, until the connection ends.
    async fn read(
        &self,
        session: &Arc<Session>,
        connection: &Connection,
        mut inbound: Streaming<AgentMessage>,
    ) -> End {
        loop {
            let message = tokio::select! {
                ended = session.closed(connection) => {
                    return if ended { End::Gone("the controller ended its session") } else { End::Replaced };
                }
                message = inbound.message() => message,
            };
            let message = match message {
                Ok(Some(message)) => message,
                Ok(None) => return End::Broken("it ended".to_owned()),
                Err(status) => return End::Broken(status.message().to_owned()),
            };
            let bytes = delivery::bytes(&message);
            match message.body {
                Some(Body::Acknowledged(Acknowledged { received, .. })) => {
                    if let Err(why) = session.acknowledge(received) {
                        warn!(%why, "agent miscounts");
                        return End::Gone("its agent has lost count of what it was told");
                    }
                }
                Some(Body::Leave(Leave {})) => return End::Gone("its agent has left"),
                body => {
                    session.receive(bytes);
                    match body {
                        Some(body) => self.hear(session, body).await,
                        None => warn!("a message of no known kind; is the agent newer?"),
                    }
                }
            }
        }
    }

    /// Waits for nodes to be gone whose agents are away. Never ends.
    pub async fn watch(self) {
        loop {
            let Gone { node, why } = self.attendance.gone(&*self.network).await;
            if let Some(session) = self.agents.get(&node)
                && (session.end_if_away() || session.has_ended())
            {
                self.node_gone(&session, &why.to_string()).await;
            }
        }
    }

    /// A node is gone, and all that it had.
    async fn node_gone(&self, session: &Session, reason: &str) {
        let tell = async {
            let name = &session.agent.name;
            warn!(node = name, reason, "node is gone");
            // The name is free only when nothing of the old session can touch the new one any more.
            if let Err(why) = self.network.unregister(name).await {
                warn!(node = name, %why, "the node is not unregistered");
            }
            self.attendance.left(name);
            self.agents.remove(session);
            self.takeover.node_left(session);
            self.jobs.node_left(session, reason).await;
            self.registrar.node_left(session, reason);
        };
        session.bury(tell).await;
    }

    async fn hear(&self, session: &Arc<Session>, body: Body) {
        let jobs = &self.jobs;
        match body {
            Body::Register(_) | Body::Acknowledged(_) | Body::Leave(_) => warn!("registers again; ignored"),
            Body::GroupReady(GroupReady { group, epoch }) => {
                self.post_to_group(session, group, SessionEvent::Ready(epoch)).await;
            }
            Body::GroupFailed(GroupFailed { group, reason }) => {
                self.post_to_group(session, group, SessionEvent::GroupFailed(reason)).await;
            }
            Body::Left(left) => {
                self.registrar.ranks_left(session, &left);
                if let RanksLeft { group, unused: true, .. } = left {
                    self.post_to_group(session, group, SessionEvent::Unused).await;
                }
            }
            Body::Recover(recover) => self.registrar.recover(session, recover),
            Body::Enlist(enlist) => self.registrar.enlist(session, enlist),
            Body::Withdraw(withdraw) => self.registrar.withdraw(session, &withdraw),
            Body::Output(output) => jobs.post(session, output.job, SessionEvent::Output(output)).await,
            Body::Exited(exited) => jobs.post(session, exited.job, SessionEvent::Exited(exited)).await,
            Body::Probed(probed) => self.prober.hear(session, probed),
            Body::Traced(traced) => self.traces.hear(session, traced).await,
            Body::Examined(examined) => self.doctor.hear(session, examined),
            Body::Held(further) => {
                self.takeover.report(session, self.agents.controller(), further.held).await;
            }
        }
    }

    /// Passes on what an agent says of a group.
    async fn post_to_group(&self, session: &Session, group: u64, event: SessionEvent) {
        match self.jobs.mailbox_of_group(group) {
            Some(mailbox) => deliver(Some(mailbox), session, event).await,
            None => self.registrar.group_event(session, group, event),
        }
    }

    /// The switches at which somebody sent into groups who may not.
    fn outsiders(&self) -> Vec<Outsiders> {
        let (network, measured) = (self.network.topology(), self.network.measurements());
        let of = |s: &cool_fabric::SwitchView| {
            let packets = measured.switches.get(&s.datapath_id).map_or(0, |load| load.nonmember_packets);
            Outsiders { datapath_id: s.datapath_id.0, name: s.name.clone(), packets }
        };
        network.switches.iter().map(of).filter(|outsiders| outsiders.packets > 0).collect()
    }

    fn topology(&self, network: &TopologySnapshot) -> Topology {
        let switch = |s: &cool_fabric::SwitchView| Switch {
            datapath_id: s.datapath_id.0,
            name: s.name.clone(),
            rack: s.rack.unwrap_or(0),
            tor: s.rack.is_some(),
            ports: s.ports,
        };
        let link = |l: &cool_fabric::LinkView| Link {
            a: l.a.switch.0,
            a_port: l.a.number,
            b: l.b.switch.0,
            b_port: l.b.number,
            bytes_per_second: l.bytes_per_second,
        };
        let node = |n: &cool_fabric::NodeView| {
            let session = self.agents.get(&n.name);
            Node {
                id: session.as_ref().map_or(0, |s| s.number),
                name: n.name.clone(),
                ip: n.ip.to_string(),
                mac: n.mac.to_string(),
                located: n.location.is_some(),
                datapath_id: n.location.map_or(0, |l| l.port.switch.0),
                port: n.location.map_or(0, |l| l.port.number),
                rack: n.location.map_or(0, |l| l.rack),
                slots: session.map_or(0, |s| s.agent.slots),
                bytes_per_second: n.location.map_or(0, |l| l.bytes_per_second),
                away_ms: self.attendance.away_for(&n.name).map(milliseconds),
            }
        };
        Topology {
            switches: network.switches.iter().map(switch).collect(),
            links: network.links.iter().map(link).collect(),
            nodes: network.nodes.iter().map(node).collect(),
            warnings: self
                .attendance
                .warnings()
                .into_iter()
                .chain(network.warnings.iter().cloned())
                .collect(),
            measurements: Some(self.measurements(network)),
            hosts: network.hosts.iter().map(host_message).collect(),
        }
    }

    fn measurements(&self, network: &TopologySnapshot) -> control::Measurements {
        let place = |n: &cool_fabric::NodeView| {
            Some(Place { session: self.agents.get(&n.name)?, rack: n.location?.rack })
        };
        let places: Vec<Place> = network.nodes.iter().filter_map(place).collect();
        let known = self.prober.measurements();
        control::Measurements {
            rack: Measurements::message(known.rack),
            core: Measurements::message(known.core),
            pending: u32::try_from(self.prober.pending()).unwrap_or(u32::MAX),
            cost_model: groups::text(&groups::cost_model(&places, network, &known)),
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn host_message(host: &HostView) -> control::Host {
    control::Host {
        mac: host.mac.to_string(),
        vlan: host.vlan.map(u32::from),
        addresses: host.addresses.iter().map(ToString::to_string).collect(),
        datapath_id: host.port.switch.0,
        port: host.port.number,
    }
}

impl From<AttachError> for Status {
    fn from(error: AttachError) -> Status {
        Status::aborted(error.to_string())
    }
}

impl From<AdmitError> for Status {
    fn from(error: AdmitError) -> Status {
        let text = error.to_string();
        match error {
            AdmitError::Version { .. } => Status::failed_precondition(text),
            AdmitError::Bad { .. } => Status::invalid_argument(text),
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
            JobError::Several(..) => Status::invalid_argument(error.to_string()),
            JobError::Busy(_) => Status::resource_exhausted(error.to_string()),
            JobError::Signal(_) => Status::invalid_argument(error.to_string()),
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
