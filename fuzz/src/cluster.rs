//! A controller in this process, on a network that locates nodes at once, with callers and agents
//! that are connected to it without sockets. Time is that of tokio, which tests pause.

use cool_controller::costs::ConfiguredRates;
use cool_controller::groups::group_keys::GroupKeys;
use cool_controller::leadership::state_store::StateStore;
use cool_controller::request_limits::LimitedController;
use cool_controller::server::{ServerConfig, assemble};
use cool_controller::service::Service;
use cool_controller::timeouts::Timeouts;
use cool_daemon::listen::Client;
use cool_fabric::{
    DatapathId, Fabric, FabricError, GroupRequest, LldpNeighbor, Location, NodeRegistration, NodeView, Port,
    TopologySnapshot, TreeGrant, TreeScope,
};
use cool_proto::CONTROL_MESSAGE_BYTES_MAX;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{
    Acknowledged, AgentMessage, ControllerMessage, Register, Registered, Secret, Session, agent_message,
    controller_message,
};
use cool_proto::features;
use cool_tls::{Identity, Role};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Status, Streaming};

/// Timeouts of the controller. They differ, so that sequences can meet each one alone.
pub(crate) const TIMEOUTS: Timeouts = Timeouts {
    group_ready: Duration::from_secs(15),
    end: Duration::from_secs(10),
    unread: Duration::from_secs(35),
    caller: Duration::from_secs(25),
    agent: Duration::from_secs(40),
};

/// Maximum number of jobs per user.
pub(crate) const JOBS_PER_USER: u32 = 4;

/// Slots of each node.
pub(crate) const SLOTS: u32 = 3;

/// Time that the controller gets for its reaction. Time is paused, so that this takes none.
const REACTION: Duration = Duration::from_millis(1);

/// A network in which a node is located as soon as it registers.
#[derive(Default)]
struct LocatedNodes {
    snapshot: watch::Sender<Arc<TopologySnapshot>>,
    groups: Mutex<BTreeMap<u64, ()>>,
}

impl LocatedNodes {
    fn change_nodes(&self, change: impl FnOnce(&mut Vec<NodeView>)) {
        self.snapshot.send_modify(|snapshot| change(&mut Arc::make_mut(snapshot).nodes));
    }

    fn with_groups<T>(&self, with: impl FnOnce(&mut BTreeMap<u64, ()>) -> T) -> T {
        with(&mut self.groups.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[tonic::async_trait]
impl Fabric for LocatedNodes {
    async fn register(&self, node: NodeRegistration) -> Result<(), FabricError> {
        let NodeRegistration { name, ip, mac, .. } = node;
        let rack = u32::from(mac.0 & 1);
        let port = Port { switch: DatapathId(rack.into()), number: 1 };
        let location = Some(Location { port: Some(port), rack, bytes_per_second: 0 });
        self.change_nodes(|nodes| {
            nodes.retain(|node| node.name != name);
            nodes.push(NodeView { name, ip, mac, location });
            nodes.sort_by(|a, b| a.name.cmp(&b.name));
        });
        Ok(())
    }

    async fn set_neighbor(&self, _: &str, _: Option<LldpNeighbor>) -> Result<(), FabricError> {
        Ok(())
    }

    async fn unregister(&self, name: &str) -> Result<(), FabricError> {
        self.change_nodes(|nodes| nodes.retain(|node| node.name != name));
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
        self.with_groups(|groups| groups.insert(group.id, ()));
        Ok(Vec::new())
    }

    async fn adopt_group(&self, group: GroupRequest, _: Vec<(TreeScope, IpAddr)>) -> Result<(), FabricError> {
        self.with_groups(|groups| groups.insert(group.id, ()));
        Ok(())
    }

    async fn trees(&self, id: u64) -> Result<Vec<TreeGrant>, FabricError> {
        match self.with_groups(|groups| groups.contains_key(&id)) {
            true => Ok(Vec::new()),
            false => Err(FabricError::NoSuchGroup { id }),
        }
    }

    async fn release_group(&self, id: u64) -> Result<(), FabricError> {
        match self.with_groups(|groups| groups.remove(&id)) {
            Some(()) => Ok(()),
            None => Err(FabricError::NoSuchGroup { id }),
        }
    }
}

/// Adds the identity of a caller to its requests, as a connection with a certificate does.
#[derive(Clone, Debug)]
pub(crate) struct CallerIdentity(Client);

impl Interceptor for CallerIdentity {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.extensions_mut().insert(self.0.clone());
        Ok(request)
    }
}

/// A client of the controller in this process.
pub(crate) type LocalClient =
    ControllerClient<InterceptedService<LimitedController<Service>, CallerIdentity>>;

/// A controller in this process.
pub(crate) struct Cluster {
    pub(crate) service: Service,
    network: Arc<LocatedNodes>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    /// Keeps the number of jobs per user.
    _jobs_per_user: watch::Sender<u32>,
}

impl Cluster {
    /// Starts a controller on the current runtime.
    pub(crate) async fn start() -> Cluster {
        let network = Arc::new(LocatedNodes::default());
        let (jobs_per_user, per_user) = watch::channel(JOBS_PER_USER);
        let config = ServerConfig {
            lldp_interval: Duration::from_secs(1),
            lldp_key: [7; 32].into(),
            keys: GroupKeys {
                secret: [8; 32].into(),
                required: false,
                mesh_nodes: 2,
                connections_per_hop: 1,
            },
            timeouts: TIMEOUTS,
            jobs_per_user: per_user,
            configured_rates: ConfiguredRates::default(),
            generation: 2,
            only_bound_certificates: false,
            credentials: None,
            querier_patience: Duration::MAX,
            flooding_quiet_time: None,
            store: StateStore::Volatile,
        };
        let service = assemble(&config, network.clone()).await;
        let tasks = vec![
            tokio::spawn(service.prober.clone().run(service.groups.busy())),
            tokio::spawn(service.membership_driver.clone().watch()),
            tokio::spawn(service.clone().watch()),
        ];
        Cluster { service, network, tasks, _jobs_per_user: jobs_per_user }
    }

    /// Returns a client with a certificate for this role, and for this node or user if one is
    /// given.
    pub(crate) fn client(&self, role: Role, name: Option<&str>) -> LocalClient {
        let name = name.map(str::to_owned);
        let identity = Identity { role, name, addresses: Vec::new(), datapaths: Vec::new() };
        let client = Client { address: (Ipv4Addr::LOCALHOST, 1).into(), identity: Some(identity) };
        let service = LimitedController::new(self.service.clone());
        // Agents decode messages up to this size.
        ControllerClient::with_interceptor(service, CallerIdentity(client))
            .max_decoding_message_size(CONTROL_MESSAGE_BYTES_MAX)
    }

    /// Returns the number of groups that have trees.
    pub(crate) fn groups_in_network(&self) -> usize {
        self.network.with_groups(|groups| groups.len())
    }

    /// Checks that no task of the controller has ended.
    pub(crate) fn check_tasks(&self) {
        assert!(self.tasks.iter().all(|task| !task.is_finished()), "a task of the controller has ended");
    }
}

/// Lets the controller execute everything that it can do now.
pub(crate) async fn react() {
    tokio::time::sleep(REACTION).await;
}

/// Returns the output of a future that needs only reactions of the controller, or `None` if it
/// waits for something else.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> Option<T> {
    timeout(REACTION, future).await.ok()
}

/// The agent's end of a session.
pub(crate) struct FakeAgent {
    to: mpsc::Sender<AgentMessage>,
    from: Streaming<ControllerMessage>,
    /// The session, with the number of messages received in it.
    pub(crate) session: Session,
    pub(crate) registered: Registered,
}

impl FakeAgent {
    /// Joins the cluster, or resumes the session in the registration.
    pub(crate) async fn join(cluster: &Cluster, register: Register) -> Result<FakeAgent, Status> {
        let claimed = register.session;
        let (to, messages) = mpsc::channel(1024);
        let register = AgentMessage { body: Some(agent_message::Body::Register(register)) };
        to.try_send(register).map_err(|_| Status::internal("no room for the registration"))?;
        let mut client = cluster.client(Role::Agent, None);
        let mut from = client.join(ReceiverStream::new(messages)).await?.into_inner();
        let first = soon(from.message()).await.transpose()?.flatten().and_then(|message| message.body);
        let Some(controller_message::Body::Registered(registered)) = first else {
            return Err(Status::internal(format!("{first:?} instead of Registered")));
        };
        let resumed = claimed.filter(|_| registered.resumed.is_some());
        let received = resumed.map_or(0, |session| session.received);
        let session = Session { controller: registered.controller, node: registered.node, received };
        Ok(FakeAgent { to, from, session, registered })
    }

    /// Returns the next message of the controller that has arrived. `Err` states that the session
    /// or the connection has ended.
    pub(crate) async fn receive(&mut self) -> Result<Option<controller_message::Body>, ()> {
        match soon(self.from.message()).await {
            None => Ok(None),
            Some(Ok(Some(message))) => {
                let body = message.body;
                let counts = !matches!(body, Some(controller_message::Body::Acknowledged(_)));
                self.session.received += u64::from(counts);
                Ok(body)
            }
            Some(Ok(None)) => Err(()),
            Some(Err(status)) => {
                assert_ne!(
                    status.code(),
                    tonic::Code::OutOfRange,
                    "the agent cannot decode a message: {status}"
                );
                Err(())
            }
        }
    }

    /// Sends a message, unless too many are waiting.
    pub(crate) fn send(&self, body: agent_message::Body) {
        // A full queue is that of an agent that waits for the controller to read.
        let _ = self.to.try_send(AgentMessage { body: Some(body) });
    }

    /// Acknowledges all messages so far.
    pub(crate) fn acknowledge(&self) {
        let received = self.session.received;
        self.send(agent_message::Body::Acknowledged(Acknowledged { received, last: false }));
    }
}

/// Returns the registration of node h`number`.
pub(crate) fn registration(number: u8) -> Register {
    Register {
        version: cool_proto::VERSION,
        name: format!("h{number}"),
        ip: format!("10.0.0.{}", number + 1),
        mac: format!("{:02x}:00:00:00:00:{number:02x}", 2 + number % 2 * 4),
        mtu: 1500,
        udp_port: 7420,
        tcp_port: 7420,
        slots: SLOTS,
        probe_port: 7421,
        incarnation: 1,
        features: features::ALL,
        key: Some(Secret { value: vec![number; 32] }),
        ..Register::default()
    }
}
