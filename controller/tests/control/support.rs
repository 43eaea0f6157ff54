//! A controller over real gRPC, with a simulated network that locates nodes at once, and simulated
//! agents.

use cool_controller::costs::ConfiguredRates;
use cool_controller::groups::group_keys::GroupKeys;
use cool_controller::leadership::state_store::StateStore;
use cool_controller::server::{ServerConfig, serve};
use cool_controller::timeouts::Timeouts;
use cool_daemon::listen::ClientListener;
use cool_fabric::Fabric;
use cool_fabric::{
    DatapathId, FabricError, GroupRequest, LldpNeighbor, Location, NodeRegistration, NodeView, Port,
    RackSource, ReportedRack, TopologySnapshot, TreeGrant, TreeScope,
};
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{
    Acknowledged, AgentMessage, AttendRequest, CancelRequest, ControllerMessage, Exited, Finished, Group,
    GroupReady, GroupsRequest, Held, HoldOutput, JobEvent, JobSpec, JobView, JobsRequest, Launch, Leave,
    Measurements, Output, Probe, Probed, Register, Registered, Secret, Session, SignalRequest,
    TopologyRequest, TraceEvent, TraceRequest, agent_message, controller_message, job_event,
};
use cool_proto::description::WireGroup;
use cool_proto::features;
use cool_tls::make::{CertificateHolder, CertificateRequest, make};
use cool_tls::{Acceptor, CertificateDir, Connector, Credentials, Role};
use prost::bytes::Bytes;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

/// Time limit of every wait. A stall fails the test.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the output of a future. Fails the test if it takes too long.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(TEST_TIMEOUT, future).await.unwrap_or_else(|_| panic!("{what} does not come"))
}

/// A network of racks with two nodes each: h1 and h2 in rack 0, h3 and h4 in rack 1, and so on.
/// Nodes are located as soon as they register.
#[derive(Default)]
pub(crate) struct Racks {
    snapshot: watch::Sender<Arc<TopologySnapshot>>,
    groups: Mutex<Vec<u64>>,
    /// Whether trees must be proven.
    pub(crate) needs_proof: AtomicBool,
}

impl Racks {
    fn change(&self, change: impl FnOnce(&mut Vec<NodeView>)) {
        self.snapshot.send_modify(|snapshot| change(&mut Arc::make_mut(snapshot).nodes));
    }

    /// Returns the groups that have trees.
    pub(crate) fn groups(&self) -> Vec<u64> {
        self.groups.lock().unwrap().clone()
    }
}

#[tonic::async_trait]
impl Fabric for Racks {
    async fn register(&self, node: NodeRegistration) -> Result<(), FabricError> {
        let NodeRegistration { name, ip, mac, .. } = node;
        let rack = (name[1..].parse::<u32>().unwrap() - 1) / 2;
        let port = Port { switch: DatapathId(rack.into()), number: 1 };
        let location = Some(Location { port: Some(port), rack, bytes_per_second: 0 });
        self.change(|nodes| {
            nodes.push(NodeView { name, ip, mac, location });
            nodes.sort_by(|a, b| a.name.cmp(&b.name));
        });
        Ok(())
    }

    async fn set_neighbor(&self, node: &str, neighbor: Option<LldpNeighbor>) -> Result<(), FabricError> {
        let rack = ReportedRack { name: None, source: RackSource::Neighbor, neighbor };
        self.snapshot.send_modify(|snapshot| {
            Arc::make_mut(snapshot).reported_racks.insert(node.to_owned(), rack);
        });
        Ok(())
    }

    async fn unregister(&self, name: &str) -> Result<(), FabricError> {
        self.change(|nodes| nodes.retain(|n| n.name != name));
        Ok(())
    }

    fn topology(&self) -> Arc<TopologySnapshot> {
        self.snapshot.borrow().clone()
    }

    fn watch(&self) -> watch::Receiver<Arc<TopologySnapshot>> {
        self.snapshot.subscribe()
    }

    fn measurements(&self) -> cool_fabric::Measurements {
        cool_fabric::Measurements::default()
    }

    async fn observation(&self) -> Result<Option<cool_fabric::Observation>, FabricError> {
        Ok(None)
    }

    async fn create_group(&self, group: GroupRequest) -> Result<Vec<TreeGrant>, FabricError> {
        self.groups.lock().unwrap().push(group.id);
        let trees = self.trees(group.id).await?;
        let needs_proof = group.can_prove && self.needs_proof.load(Ordering::Relaxed);
        Ok(trees.into_iter().map(|tree| TreeGrant { needs_proof, ..tree }).collect())
    }

    async fn adopt_group(&self, group: GroupRequest, _: Vec<(TreeScope, IpAddr)>) -> Result<(), FabricError> {
        self.groups.lock().unwrap().push(group.id);
        Ok(())
    }

    async fn trees(&self, id: u64) -> Result<Vec<TreeGrant>, FabricError> {
        if !self.groups().contains(&id) {
            return Err(FabricError::NoSuchGroup { id });
        }
        let address = IpAddr::from([239, 192, 0, id as u8]);
        Ok(vec![TreeGrant {
            scope: TreeScope::All,
            address,
            port: 7420,
            bytes_per_second: 0,
            links: Vec::new(),
            nodes: Vec::new(),
            needs_proof: false,
        }])
    }

    async fn release_group(&self, id: u64) -> Result<(), FabricError> {
        self.groups.lock().unwrap().retain(|g| *g != id);
        Ok(())
    }
}

/// A running controller.
pub(crate) struct Controller {
    pub(crate) network: Arc<Racks>,
    address: SocketAddr,
    /// Certificates of agents, tools and the user ann, if the controller requires them.
    certificates: Option<TempDir>,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Controller {
    pub(crate) async fn start() -> Controller {
        Controller::with_timeouts(Timeouts::default()).await
    }

    pub(crate) async fn with_timeouts(timeouts: Timeouts) -> Controller {
        Controller::with(timeouts, None, StateStore::Volatile).await
    }

    /// Starts a controller that identifies callers by their certificates.
    pub(crate) async fn with_users() -> Controller {
        let directory = TempDir::new().unwrap();
        let request =
            CertificateRequest { holders: vec![CertificateHolder::user("ann")], days: 1, renew: false };
        make(directory.path(), &request).unwrap();
        Controller::with(Timeouts::default(), Some(directory), StateStore::Volatile).await
    }

    /// Starts a controller that keeps its state in this directory.
    pub(crate) async fn with_state(directory: &Path) -> Controller {
        Controller::with(Timeouts::default(), None, StateStore::Directory(directory.to_owned())).await
    }

    async fn with(timeouts: Timeouts, certificates: Option<TempDir>, store: StateStore) -> Controller {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let network = Arc::new(Racks::default());
        let (stop, stopped) = oneshot::channel();
        let config = ServerConfig {
            lldp_interval: Duration::from_millis(250),
            lldp_key: [7; 32].into(),
            keys: GroupKeys {
                secret: [8; 32].into(),
                required: false,
                mesh_nodes: 2,
                connections_per_hop: 8,
            },
            timeouts,
            jobs_per_user: watch::channel(64).1,
            configured_rates: ConfiguredRates::default(),
            generation: 2,
            only_bound_certificates: false,
            credentials: None,
            querier_patience: Duration::MAX,
            // Only nodes that their agents locate take part.
            flooding_quiet_time: Some(Duration::ZERO),
            store,
        };
        let directory =
            certificates.as_ref().map(|directory| CertificateDir::new(directory.path(), Role::Controller));
        let credentials = directory.map(|directory| Credentials::open(directory).unwrap());
        let listener = ClientListener::new(listener, Acceptor::new(credentials, &[Role::Agent, Role::Tool]));
        let server = tokio::spawn(serve(config, network.clone(), listener, None, async {
            stopped.await.unwrap();
        }));
        Controller { network, address, certificates, stop: Some(stop), server }
    }

    pub(crate) async fn client(&self) -> ControllerClient<Channel> {
        self.client_as(Role::Tool, "").await
    }

    /// Returns a client. If certificates are required, it uses those in this directory.
    pub(crate) async fn client_as(
        &self,
        role: Role,
        directory: impl AsRef<Path>,
    ) -> ControllerClient<Channel> {
        // Limits the data in flight to a client that does not read.
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        let endpoint = endpoint.initial_stream_window_size(65_535);
        let channel = match &self.certificates {
            Some(all) => {
                let directory = CertificateDir::new(all.path().join(directory), role);
                let credentials = Credentials::open(directory).unwrap();
                let (_, connector) = Connector::to(&self.address.to_string(), Some(credentials)).unwrap();
                endpoint.connect_with_connector(connector).await
            }
            None => endpoint.connect().await,
        };
        ControllerClient::new(channel.unwrap())
    }

    /// Starts a job. Returns its id, and a stream of its events.
    pub(crate) async fn run(&self, spec: JobSpec) -> Result<Streaming<JobEvent>, Status> {
        let mut events = self.client().await.run(spec).await?.into_inner();
        assert!(matches!(event(&mut events).await, job_event::Body::Submitted(_)));
        Ok(events)
    }

    /// Joins agents of these nodes and runs a job on them, up to the start of its ranks. Returns
    /// the job's events, its group and the agents.
    pub(crate) async fn start_job<const N: usize>(
        &self,
        nodes: [u8; N],
        spec: JobSpec,
    ) -> (Streaming<JobEvent>, Group, [FakeAgent; N]) {
        let mut agents = Vec::new();
        for node in nodes {
            agents.push(FakeAgent::join(self, node).await);
        }
        let events = self.run(spec).await.unwrap();
        let mut group = None;
        for agent in &mut agents {
            group = Some(agent.ready().await);
        }
        for agent in &mut agents {
            agent.launched().await;
        }
        let Ok(agents) = agents.try_into() else { unreachable!("one agent for each node") };
        (events, group.expect("a job runs on at least one node"), agents)
    }

    /// Connects to a job again.
    pub(crate) async fn attend(&self, job: u64) -> Result<Streaming<JobEvent>, Status> {
        Ok(self.client().await.attend(AttendRequest { job, spec: None, numbered: true }).await?.into_inner())
    }

    /// Returns the running jobs.
    pub(crate) async fn jobs(&self) -> Vec<JobView> {
        self.client().await.list_jobs(JobsRequest {}).await.unwrap().into_inner().jobs
    }

    pub(crate) async fn cancel(&self, job: u64) -> Result<(), Status> {
        self.client().await.cancel(CancelRequest { job, user: "ann".into() }).await.map(|_| ())
    }

    pub(crate) async fn signal(&self, job: u64, signal: i32) -> Result<(), Status> {
        self.client().await.signal(SignalRequest { job, signal }).await.map(|_| ())
    }

    /// Requests traces, which arrive on the stream.
    pub(crate) async fn trace(&self) -> Streaming<TraceEvent> {
        self.client().await.trace(TraceRequest::default()).await.unwrap().into_inner()
    }

    pub(crate) async fn groups(&self) -> Vec<Group> {
        self.client().await.list_groups(GroupsRequest {}).await.unwrap().into_inner().groups
    }

    /// Returns the results once no probe is pending.
    pub(crate) async fn probe_results(&self) -> Measurements {
        let mut client = self.client().await;
        let all = async {
            loop {
                let topology = client.get_topology(TopologyRequest {}).await.unwrap().into_inner();
                match topology.measurements.unwrap() {
                    found if found.pending == 0 => return found,
                    _ => tokio::task::yield_now().await,
                }
            }
        };
        soon("the end of all probes", all).await
    }

    /// Shuts the controller down.
    pub(crate) fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Waits until the controller has ended.
    pub(crate) async fn ended(self) {
        soon("the server's end", self.server).await.unwrap().unwrap();
    }
}

/// Returns the registration of node h`i`.
pub(crate) fn registration(i: u8) -> Register {
    Register {
        version: cool_proto::VERSION,
        name: format!("h{i}"),
        ip: format!("10.0.0.{i}"),
        mac: format!("02:00:00:00:00:{i:02x}"),
        mtu: 1500,
        udp_port: 7420,
        tcp_port: 7420,
        slots: 2,
        held: Vec::new(),
        probe_port: 7421,
        incarnation: 1,
        features: features::ALL,
        key: Some(Secret { value: vec![i; 32] }),
        ..Register::default()
    }
}

/// Returns the group in a description, as an agent holds it.
pub(crate) fn described(description: Bytes) -> Group {
    let group = WireGroup::from_held(&mut Held { description, ..Held::default() });
    group.unwrap().expect("a description").group().unwrap()
}

/// The agent's end of a session.
pub(crate) struct FakeAgent {
    pub(crate) to: mpsc::Sender<AgentMessage>,
    from: Streaming<ControllerMessage>,
    /// The session, with the number of received messages.
    session: Session,
}

impl FakeAgent {
    /// Joins as node h`i` with two slots.
    pub(crate) async fn join(controller: &Controller, i: u8) -> FakeAgent {
        let mut agent = FakeAgent::try_join(controller, registration(i)).await.unwrap();
        let registered = agent.registered().await;
        assert_eq!((registered.lldp_interval_ms, registered.resumed), (250, None));
        agent
    }

    /// Receives the confirmation of the registration.
    pub(crate) async fn registered(&mut self) -> Registered {
        let message = soon("an answer", self.from.message()).await.unwrap().and_then(|message| message.body);
        let Some(controller_message::Body::Registered(registered)) = message else {
            panic!("not registered: {message:?}")
        };
        (self.session.controller, self.session.node) = (registered.controller, registered.node);
        registered
    }

    /// Breaks the connection. Returns the session to resume.
    pub(crate) fn disconnect(self) -> Session {
        self.session
    }

    /// Resumes a session on a new connection.
    pub(crate) async fn reconnect(
        controller: &Controller,
        i: u8,
        session: Session,
    ) -> (FakeAgent, Registered) {
        let register = Register { session: Some(session), ..registration(i) };
        let mut agent = FakeAgent::try_join(controller, register).await.unwrap();
        agent.session = session;
        let registered = agent.registered().await;
        (agent, registered)
    }

    /// Leaves properly.
    pub(crate) async fn leave(mut self) {
        self.send(agent_message::Body::Leave(Leave {})).await;
        while soon("the end", self.from.message()).await.unwrap().is_some() {}
    }

    pub(crate) async fn try_join(controller: &Controller, register: Register) -> Result<FakeAgent, Status> {
        let (to, messages) = mpsc::channel(16);
        to.send(message(agent_message::Body::Register(register))).await.unwrap();
        let joined = controller.client_as(Role::Agent, "").await.join(ReceiverStream::new(messages)).await?;
        Ok(FakeAgent { to, from: joined.into_inner(), session: Session::default() })
    }

    /// Returns the next message that does not concern probes. Probes may arrive whenever no job is
    /// running.
    pub(crate) async fn receive(&mut self) -> controller_message::Body {
        loop {
            match self.receive_any().await {
                controller_message::Body::Probe(_) | controller_message::Body::StopProbe(_) => {}
                controller_message::Body::Acknowledged(Acknowledged { last: false, .. }) => {}
                other => return other,
            }
        }
    }

    async fn receive_any(&mut self) -> controller_message::Body {
        let message = soon("a message to the agent", self.from.message()).await.unwrap();
        let body = message.expect("the session ended").body.unwrap();
        let counts = !matches!(body, controller_message::Body::Acknowledged(_));
        self.session.received += u64::from(counts);
        body
    }

    /// Receives a request for a probe.
    pub(crate) async fn probe(&mut self) -> Probe {
        match self.receive_any().await {
            controller_message::Body::Probe(probe) => probe,
            other => panic!("not a probe: {other:?}"),
        }
    }

    /// Receives a request to stop the probe.
    pub(crate) async fn stopped(&mut self) {
        let message = self.receive_any().await;
        assert!(matches!(message, controller_message::Body::StopProbe(_)), "{message:?}");
    }

    /// Receives a request for a probe and reports a result.
    pub(crate) async fn probed(&mut self, latency_ns: u64, bytes_per_second: u64) {
        let id = self.probe().await.id;
        let probed = Probed { id, latency_ns, bytes_per_second, ..Probed::default() };
        self.send(agent_message::Body::Probed(probed)).await;
    }

    /// Receives the last acknowledgment of a controller that shuts down, and the end of the
    /// connection.
    pub(crate) async fn controller_stopped(&mut self) -> u64 {
        let message = self.receive().await;
        let controller_message::Body::Acknowledged(Acknowledged { received, last: true }) = message else {
            panic!("it does not stop: {message:?}")
        };
        self.session_ended().await;
        received
    }

    /// Waits until the controller has ended the session.
    pub(crate) async fn session_ended(&mut self) {
        assert_eq!(soon("the session's end", self.from.message()).await.unwrap(), None);
    }

    pub(crate) async fn send(&self, body: agent_message::Body) {
        self.to.send(message(body)).await.unwrap();
    }

    /// Receives a group without reporting that it is ready.
    pub(crate) async fn group(&mut self) -> Group {
        match self.receive().await {
            controller_message::Body::Group(group) => group,
            controller_message::Body::Description(description) => described(description),
            other => panic!("not a group: {other:?}"),
        }
    }

    /// Receives a group and reports that it is ready.
    pub(crate) async fn ready(&mut self) -> Group {
        let group = self.group().await;
        self.send(agent_message::Body::GroupReady(GroupReady { group: group.id, epoch: group.epoch })).await;
        group
    }

    pub(crate) async fn launched(&mut self) -> Launch {
        match self.receive().await {
            controller_message::Body::Launch(launch) => launch,
            other => panic!("not a launch: {other:?}"),
        }
    }

    pub(crate) async fn signalled(&mut self) -> SignalRequest {
        match self.receive().await {
            controller_message::Body::Signal(signal) => signal,
            other => panic!("not a signal: {other:?}"),
        }
    }

    /// Receives a request for a trace. Returns its number.
    pub(crate) async fn traced(&mut self) -> u64 {
        match self.receive().await {
            controller_message::Body::Trace(request) => request.id,
            other => panic!("not asked for a trace: {other:?}"),
        }
    }

    pub(crate) async fn killed(&mut self) {
        let message = self.receive().await;
        assert!(matches!(message, controller_message::Body::Kill(_)), "{message:?}");
    }

    pub(crate) async fn released(&mut self) {
        let message = self.receive().await;
        assert!(matches!(message, controller_message::Body::Release(_)), "{message:?}");
    }

    pub(crate) async fn exit(&self, job: u64, rank: u32, code: i32) {
        self.send(agent_message::Body::Exited(Exited { job, rank, code, ..Default::default() })).await;
    }

    /// Receives a request to block the ranks of a job when they print, or to let them continue.
    pub(crate) async fn held(&mut self) -> HoldOutput {
        match self.receive().await {
            controller_message::Body::Hold(hold) => hold,
            other => panic!("not told to hold: {other:?}"),
        }
    }

    pub(crate) async fn print(&self, job: u64, rank: u32, line: &str) {
        self.print_line(job, rank, 0, line).await;
    }

    pub(crate) async fn print_line(&self, job: u64, rank: u32, number: u64, line: &str) {
        let line = line.as_bytes().to_vec();
        self.send(agent_message::Body::Output(Output { job, rank, line, number, ..Output::default() })).await;
    }
}

fn message(body: agent_message::Body) -> AgentMessage {
    AgentMessage { body: Some(body) }
}

/// Returns a job with `ranks` ranks.
pub(crate) fn job(ranks: u32) -> JobSpec {
    JobSpec { ranks, program: "program".into(), ..Default::default() }
}

/// Returns the next event of a job.
pub(crate) async fn event(job: &mut Streaming<JobEvent>) -> job_event::Body {
    soon("a job event", job.message()).await.unwrap().expect("the job's events ended").body.unwrap()
}

/// Returns the result of a job and skips all earlier events.
pub(crate) async fn finished(job: &mut Streaming<JobEvent>) -> Finished {
    loop {
        if let job_event::Body::Finished(finished) = event(job).await {
            return finished;
        }
    }
}
