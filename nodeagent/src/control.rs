//! The agent's session with the controller: it registers, executes commands, and reconnects when
//! the connection breaks. Groups and ranks continue without a controller, because the session
//! outlives its connections. A new controller receives an inventory of the node. `commands`
//! executes the controller's commands.

mod commands;
mod group_spec;
mod inventory_parts;
mod outbox;

use crate::agent::Agent;
use crate::flooding_role::NodeFloodingRole;
use crate::interface::Interface;
use crate::launcher::JobLauncher;
use crate::lldp_receiver;
use crate::multicast_querier::NodeQuerier;
use crate::node_inventory::NodeInventory;
use crate::output_backlog::OutputBacklog;
use cool_proto::CONTROL_MESSAGE_BYTES_MAX;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{
    self as wire, Acknowledged, ControllerMessage, CpuCosts, Examined, Held, Leave, NeighborChanged, Probed,
    Register, Secret, Session, TreesSilent, agent_message, controller_message::Body,
};
use cool_proto::delivery::{self, AcknowledgementError};
use cool_tls::{AddressError, Connector, Credentials};
use cool_topology::LldpNeighbor;
use outbox::ControllerOutbox;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tracing::warn;

/// Maximum time for the controller to accept a connection or a registration, or to receive a
/// response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause before reconnecting, which doubles with each attempt up to the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Interval at which an idle connection is tested by an HTTP/2 ping.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Maximum time for the response to such a ping.
const PONG_WITHIN: Duration = Duration::from_secs(3);

/// The reason why processes do not get the group for which they wait.
const AWAY: &str = "this node's agent has no session with the controller; start it, then try again";

/// The reasons why there can be no session with this controller.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The address is malformed.
    #[error("--controller: {0}")]
    Address(#[from] AddressError),
    /// The controller refuses this agent.
    #[error("the controller at {address} refused this agent: {reason}")]
    Refused {
        /// The address of the controller.
        address: String,
        /// The controller's reason.
        reason: String,
    },
}

/// The information for registering a node, in addition to that of the engine.
#[derive(Clone, Debug)]
pub struct AgentRegistration {
    /// The controller's address, `https://HOST:PORT`. Of several addresses, separated by commas,
    /// the one of the leader is used.
    pub controller: String,
    /// The credentials for the connection, if it is secured.
    pub credentials: Option<Credentials>,
    /// The data interface.
    pub interface: Interface,
    /// The number of ranks that the node accepts at once.
    pub slots: u32,
    /// The TCP port for measurements by other agents.
    pub probe_port: u16,
    /// The name of the node's rack, if the operator has given one.
    pub rack: Option<String>,
    /// The agent's features, as bits of [`cool_proto::features`].
    pub features: u64,
    /// The costs of the agent's work, if they have been measured.
    pub cpu: Option<CpuCosts>,
}

/// Checks the addresses of the controller, so that a wrong one is reported before anything else
/// starts.
///
/// # Errors
/// Returns an error if an address is malformed, or does not fit the credentials.
pub fn check_address(controller: &str, credentials: Option<&Credentials>) -> Result<(), ControlError> {
    Connector::to(controller, credentials.cloned())?;
    Ok(())
}

/// Serves the controller until the agent is `leaving`, and then signs off.
///
/// # Errors
/// Returns an error if the address is malformed. Also returns an error if the controller refuses
/// the agent and no controller has accepted it before, because then the agent has no ranks to keep
/// running.
pub async fn run(
    agent: &Agent,
    registration: &AgentRegistration,
    launcher: &mut JobLauncher,
    events: &mut mpsc::Receiver<agent_message::Body>,
    leaving: watch::Receiver<bool>,
) -> Result<(), ControlError> {
    let (address, connector) = Connector::to(&registration.controller, registration.credentials.clone())?;
    let endpoint = endpoint(address);
    let (neighbor, _receiver) = lldp_receiver::start(&registration.interface);
    let mut control = ControlSession {
        agent,
        registration,
        launcher,
        events,
        leaving,
        announcer: JoinSet::new(),
        silent: watch::Sender::default(),
        inventory: NodeInventory::default(),
        further: VecDeque::new(),
        outbox: ControllerOutbox::default(),
        backlog: OutputBacklog::default(),
        probe: JoinSet::new(),
        examinations: JoinSet::new(),
        session: None,
        latest: None,
        neighbor,
        neighbor_offered: None,
        neighbor_reported: None,
        has_neighbor_reports: false,
        silent_trees: agent.silent_trees(),
        has_repeated_proofs: false,
        querier: NodeQuerier::start(&registration.interface),
        flooding_role: NodeFloodingRole::new(),
        pause: SHORTEST_PAUSE,
    };
    let mut reported = None;
    loop {
        let end = control.connect(&endpoint, &connector).await;
        control.silent.send_replace(false);
        agent.set_connected(false);
        control.launcher.suspend_holds();
        match end {
            ConnectionEnd::Left => return Ok(()),
            ConnectionEnd::Refused(reason) if control.latest.is_none() => {
                return Err(ControlError::Refused { address: registration.controller.clone(), reason });
            }
            // This happens during an upgrade, or with two controllers. Ranks keep running.
            ConnectionEnd::Refused(reason) | ConnectionEnd::Broken(reason) => {
                // Each reason is logged once, not at every attempt.
                if control.pause == SHORTEST_PAUSE || reported.as_ref() != Some(&reason) {
                    warn!(
                        "no connection to the controller at {}: {reason}; trying again",
                        registration.controller
                    );
                    reported = Some(reason);
                }
            }
        }
        if !control.wait().await {
            return Ok(());
        }
    }
}

/// How a connection ended.
enum ConnectionEnd {
    /// The agent must reconnect later.
    Broken(String),
    /// The controller refuses this agent.
    Refused(String),
    /// The agent has informed the controller that it leaves, or could not connect before it had to
    /// end.
    Left,
}

impl From<AcknowledgementError> for ConnectionEnd {
    fn from(miscounted: AcknowledgementError) -> ConnectionEnd {
        ConnectionEnd::Broken(miscounted.to_string())
    }
}

impl From<Status> for ConnectionEnd {
    fn from(status: Status) -> ConnectionEnd {
        ConnectionEnd::Broken(match std::error::Error::source(&status) {
            Some(cause) => chain(cause),
            None => status.message().to_owned(),
        })
    }
}

struct ControlSession<'a> {
    agent: &'a Agent,
    registration: &'a AgentRegistration,
    launcher: &'a mut JobLauncher,
    events: &'a mut mpsc::Receiver<agent_message::Body>,
    /// Whether the agent must end.
    leaving: watch::Receiver<bool>,
    /// The task that announces the node by LLDP. The task and its key last as long as the session,
    /// because the announcements show that the node is alive even while it is disconnected.
    announcer: JoinSet<()>,
    /// Stops the announcements while it is true, because another controller may be accepting the
    /// node, with another key.
    silent: watch::Sender<bool>,
    /// The inventory for a controller that takes over.
    inventory: NodeInventory,
    /// The parts of the inventory that did not fit into the current registration.
    further: VecDeque<Vec<Held>>,
    /// The messages that the agent sends in the session.
    outbox: ControllerOutbox,
    /// The events that occurred without a connection and have not been sent yet.
    backlog: OutputBacklog,
    /// The measurement in progress.
    probe: JoinSet<Probed>,
    /// The examinations in progress.
    examinations: JoinSet<Examined>,
    /// The incarnation of the controller that accepted the agent, and the number that it assigned
    /// to the node. `None` without a session.
    session: Option<(u64, u32)>,
    /// The latest incarnation of a controller that accepted the agent. A controller with an earlier
    /// incarnation does not lead any more, and may not have noticed.
    latest: Option<u64>,
    /// The switch port to which the node is connected, if its switch announces that by LLDP.
    neighbor: watch::Receiver<Option<LldpNeighbor>>,
    /// The neighbor in the current registration.
    neighbor_offered: Option<LldpNeighbor>,
    /// The neighbor that the controller knows in this session.
    neighbor_reported: Option<LldpNeighbor>,
    /// Whether the controller accepts reports of another neighbor.
    has_neighbor_reports: bool,
    /// The groups with trees from which this node receives nothing.
    silent_trees: mpsc::Receiver<u64>,
    /// Whether the controller accepts reports of such groups.
    has_repeated_proofs: bool,
    /// The querier of multicast groups that the node hears or is.
    querier: NodeQuerier,
    /// The node's role in an examination of whether the network floods.
    flooding_role: NodeFloodingRole,
    /// The pause before the next attempt.
    pause: Duration,
}

impl ControlSession<'_> {
    /// Connects to the controller, and serves the connection until it ends.
    async fn connect(&mut self, endpoint: &Endpoint, connector: &Connector) -> ConnectionEnd {
        let mut leaving = self.leaving.clone();
        let channel = tokio::select! {
            channel = endpoint.connect_with_connector(connector.clone()) => channel,
            () = leave_requested(&mut leaving) => return ConnectionEnd::Left,
        };
        match channel {
            Ok(channel) => {
                let client = ControllerClient::new(channel);
                self.serve_connection(client.max_decoding_message_size(CONTROL_MESSAGE_BYTES_MAX)).await
            }
            Err(error) => ConnectionEnd::Broken(chain(&error)),
        }
    }

    async fn serve_connection(&mut self, client: ControllerClient<Channel>) -> ConnectionEnd {
        let mut leaving = self.leaving.clone();
        let registered = tokio::select! {
            registered = self.register(client) => registered,
            () = leave_requested(&mut leaving) => return ConnectionEnd::Left,
        };
        match registered {
            Ok(mut inbound) => loop {
                if let Err(end) = self.step(&mut inbound).await {
                    return end;
                }
            },
            Err(end) => end,
        }
    }

    /// Registers the agent, and handles the controller's first message, which reports whether the
    /// session continues. Returns the stream of the following messages.
    async fn register(
        &mut self,
        mut client: ControllerClient<Channel>,
    ) -> Result<Streaming<ControllerMessage>, ConnectionEnd> {
        self.silent.send_replace(true);
        self.further = inventory_parts::parts(self.held());
        let held = self.further.pop_front().unwrap_or_default();
        self.neighbor_offered.clone_from(&self.neighbor.borrow());
        let outgoing = self.outbox.connect(self.registration(held));
        let answered = async {
            let mut inbound = client.join(outgoing).await?.into_inner();
            let first = inbound.message().await?.and_then(|message| message.body);
            Ok::<_, Status>((inbound, first))
        };
        let (inbound, first) = timeout(ANSWER_TIMEOUT, answered)
            .await
            .map_err(|_| {
                ConnectionEnd::Broken(format!("it has not answered within {} s", ANSWER_TIMEOUT.as_secs()))
            })?
            .map_err(|status| self.refusal(status))?;
        let Some(Body::Registered(registered)) = first else {
            return Err(ConnectionEnd::Broken("it has not answered the registration".into()));
        };
        self.registered(&registered)?;
        self.silent.send_replace(false);
        self.agent.set_connected(true);
        Ok(inbound)
    }

    /// Handles the next message of the controller, or sends it the next event.
    async fn step(&mut self, inbound: &mut Streaming<ControllerMessage>) -> Result<(), ConnectionEnd> {
        let (events, probe, examinations) = (&mut *self.events, &mut self.probe, &mut self.examinations);
        let (outbox, backlog) = (&self.outbox, &mut self.backlog);
        let (neighbor, known, querier) = (&mut self.neighbor, &self.neighbor_reported, &mut self.querier);
        let (silent_trees, flooding_role) = (&mut self.silent_trees, &mut self.flooding_role);
        let neighbor =
            async { neighbor.wait_for(|neighbor| neighbor != known).await.ok().map(|new| new.clone()) };
        // Wait for room first, because an event cannot be put back once it has been received.
        let event = async {
            outbox.room_for_events().await;
            match backlog.take() {
                Some(event) => Some((event, false)),
                None => events.recv().await.map(|event| (event, true)),
            }
        };
        tokio::select! {
            message = inbound.message() => {
                let message = message?.ok_or_else(|| ConnectionEnd::Broken("it ended the connection".into()))?;
                self.receive(message).await
            }
            Some((event, new)) = event => {
                if new {
                    self.record_event(&event);
                }
                self.outbox.send(event);
                Ok(())
            }
            Some(Ok(probed)) = probe.join_next() => self.reply(agent_message::Body::Probed(probed)).await,
            Some(Ok(examined)) = examinations.join_next() => {
                self.reply(agent_message::Body::Examined(examined)).await
            }
            Some(neighbor) = neighbor, if self.has_neighbor_reports => {
                self.neighbor_reported.clone_from(&neighbor);
                let neighbor = neighbor.map(neighbor_message);
                self.reply(agent_message::Body::NeighborChanged(NeighborChanged { neighbor })).await
            }
            Some(group) = silent_trees.recv(), if self.has_repeated_proofs => {
                self.reply(agent_message::Body::TreesSilent(TreesSilent { group })).await
            }
            querier = querier.next_report() => {
                self.reply(agent_message::Body::QuerierChanged(querier)).await
            }
            report = flooding_role.next_report() => {
                self.reply(agent_message::Body::FloodingReport(report)).await
            }
            () = leave_requested(&mut self.leaving) => {
                self.outbox.send(agent_message::Body::Leave(Leave {}));
                Err(farewell(inbound).await)
            }
        }
    }

    /// Handles a message of the controller. All messages except acknowledgements belong to the
    /// session and are counted.
    async fn receive(&mut self, message: ControllerMessage) -> Result<(), ConnectionEnd> {
        if let Some(Body::Acknowledged(Acknowledged { received, .. })) = message.body {
            return Ok(self.outbox.acknowledge(received)?);
        }
        self.outbox.receive(delivery::bytes(&message));
        match message.body {
            Some(body) => self.execute(body).await,
            None => {
                warn!("the controller sent a message of no known kind");
                Ok(())
            }
        }
    }

    /// Records an event of this node for the next controller, and reports a rank that has ended
    /// without attaching.
    fn record_event(&mut self, event: &agent_message::Body) {
        self.inventory.record_exit(event);
        self.agent.record_request(event);
        self.report_absent_rank(event);
    }

    /// Sends a response to the controller, and waits until the outbox has room. Returns an error if
    /// the controller reads nothing for too long.
    async fn reply(&self, body: agent_message::Body) -> Result<(), ConnectionEnd> {
        self.outbox.send(body);
        timeout(ANSWER_TIMEOUT, self.outbox.room()).await.map_err(|_| {
            ConnectionEnd::Broken(format!("it has read nothing for {} s", ANSWER_TIMEOUT.as_secs()))
        })
    }

    /// Reports a rank that has ended without attaching to its group.
    fn report_absent_rank(&self, event: &agent_message::Body) {
        let agent_message::Body::Exited(exited) = event else { return };
        let Some(group) = self.inventory.group_of(exited.job) else { return };
        let (agent, rank) = (self.agent.clone(), exited.rank);
        // This must be a task of its own, because the agent's events are received here.
        tokio::spawn(async move { agent.rank_never_attached(group, rank).await });
    }

    /// Returns how a connection must end after the controller has answered its registration with
    /// this status.
    fn refusal(&self, status: Status) -> ConnectionEnd {
        match status.code() {
            // After a broken connection, the controller may not have noticed the end of this
            // agent's previous connection, to which the name still belongs.
            Code::AlreadyExists if self.session.is_some() => status.into(),
            Code::AlreadyExists
            | Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::PermissionDenied => ConnectionEnd::Refused(status.message().to_owned()),
            _ => status.into(),
        }
    }

    fn registration(&self, held: Vec<Held>) -> Register {
        let (udp_port, tcp_port) = self.agent.ports();
        Register {
            version: cool_proto::VERSION,
            name: self.agent.node().to_owned(),
            incarnation: self.agent.incarnation(),
            ip: self.registration.interface.ip.to_string(),
            mac: self.registration.interface.mac.to_string(),
            mtu: self.registration.interface.mtu,
            udp_port: udp_port.into(),
            tcp_port: tcp_port.into(),
            slots: self.registration.slots,
            held,
            probe_port: self.registration.probe_port.into(),
            rack: self.registration.rack.clone().unwrap_or_default(),
            neighbor: self.neighbor_offered.clone().map(neighbor_message),
            features: self.registration.features,
            cpu: self.registration.cpu.clone(),
            key: Some(Secret { value: self.agent.key().bytes().to_vec() }),
            session: self.session.map(|(controller, node)| Session {
                controller,
                node,
                received: self.outbox.received(),
            }),
        }
    }

    /// Returns the inventory for another controller. Ranks count as running until their ends are
    /// reported, in order with their output.
    fn held(&self) -> Vec<Held> {
        let mut unreported = self.outbox.exits();
        unreported.extend(self.backlog.events().filter_map(outbox::exit));
        self.inventory.report(|group| self.agent.attached(group), &unreported)
    }

    /// Waits until the next attempt to connect. Returns false if the agent must end instead. Stores
    /// events meanwhile, so that ranks need not wait. Output beyond a limit is lost.
    async fn wait(&mut self) -> bool {
        let over = sleep(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        tokio::pin!(over);
        loop {
            let event = tokio::select! {
                () = &mut over => return true,
                () = leave_requested(&mut self.leaving) => return false,
                Some(event) = self.events.recv() => event,
            };
            self.record_event(&event);
            if self.session.is_none() {
                // Without any session, no controller will ever answer.
                self.agent.give_up_waiting(AWAY);
            }
            if !self.backlog.keep(event) {
                warn!(
                    "too many events without the controller: it will only receive an inventory of this node"
                );
                self.begin_anew();
            }
        }
    }

    /// Ends the session; another begins with the next registration. Output that no controller has
    /// acknowledged is sent to the next one. Lines are numbered, so that none is shown twice.
    fn begin_anew(&mut self) {
        self.backlog.put_back(self.outbox.begin_session());
        self.session = None;
        self.launcher.release_holds();
        self.probe = JoinSet::new();
        self.examinations = JoinSet::new();
        self.flooding_role.begin_session();
    }
}

fn neighbor_message(neighbor: LldpNeighbor) -> wire::LldpNeighbor {
    let LldpNeighbor { chassis, port, system_name } = neighbor;
    wire::LldpNeighbor { chassis, port, system_name: system_name.unwrap_or_default() }
}

/// Waits until the agent must end.
async fn leave_requested(leaving: &mut watch::Receiver<bool>) {
    if leaving.wait_for(|leaving| *leaving).await.is_err() {
        std::future::pending().await
    }
}

/// Waits until the controller ends the connection, which it does after it has received all
/// messages.
async fn farewell(inbound: &mut Streaming<ControllerMessage>) -> ConnectionEnd {
    let read = async { while let Ok(Some(_)) = inbound.message().await {} };
    if timeout(ANSWER_TIMEOUT, read).await.is_err() {
        warn!("the controller has not acknowledged that this agent leaves");
    }
    ConnectionEnd::Left
}

fn endpoint(address: http::Uri) -> Endpoint {
    Endpoint::from(address)
        .connect_timeout(ANSWER_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(PONG_WITHIN)
        .keep_alive_while_idle(true)
}

/// Returns an error with its causes, because tonic's own text is only "transport error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    text
}
