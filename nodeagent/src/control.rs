//! The agent's session with the controller: registers, does what it is told, and comes back when the connection breaks.
//! Without a controller, groups and ranks that are there go on: the session outlives its connections. Another controller
//! than the one that it is with is told what is still here. What the agent is told to do is done in `commands`.

mod commands;
mod group_spec;
mod holdings;
mod outbox;

use crate::agent::Agent;
use crate::interface::Interface;
use crate::launcher::JobLauncher;
use crate::node_inventory::NodeInventory;
use crate::output_backlog::OutputBacklog;
use cool_proto::CONTROL_MESSAGE_BYTES_MAX;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{
    Acknowledged, ControllerMessage, Examined, Held, Leave, Probed, Register, Secret, Session, agent_message,
    controller_message::Body,
};
use cool_proto::delivery::{self, AcknowledgementError};
use cool_tls::{AddressError, Connector, Credentials};
use outbox::ControllerOutbox;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tracing::warn;

/// The controller answers a connection, a registration, and takes an answer of ours, within this.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How soon to come back to a controller that is away; doubled each time, up to the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often a silent session is tried.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// How long it may be silent then.
const PONG_WITHIN: Duration = Duration::from_secs(3);

/// Why processes do not get the group that they wait for.
const AWAY: &str = "this node's agent has no session with the controller; start it, then try again";

/// Why there will be no session with this controller.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The address makes no sense.
    #[error("--controller: {0}")]
    Address(#[from] AddressError),
    /// The controller does not want this agent.
    #[error("the controller at {address} refused this agent: {reason}")]
    Refused {
        /// The controller.
        address: String,
        /// What it said.
        reason: String,
    },
}

/// Where a node registers, and what it says of itself beside what the engine knows.
#[derive(Clone, Debug)]
pub struct AgentRegistration {
    /// The controller's address, `https://HOST:PORT`; of several, with commas between them, one serves.
    pub controller: String,
    /// How the connection is secured, if it is.
    pub credentials: Option<Credentials>,
    /// The data interface.
    pub interface: Interface,
    /// Ranks the node takes at once.
    pub slots: u32,
    /// Where probes are answered.
    pub probe_port: u16,
    /// What the agent can: bits of [`cool_proto::features`].
    pub features: u64,
}

/// Checks the addresses of the controller, so that a wrong one is reported before anything else starts.
///
/// # Errors
/// Returns an error if an address is malformed, or does not fit the credentials.
pub fn check_address(controller: &str, credentials: Option<&Credentials>) -> Result<(), ControlError> {
    Connector::to(controller, credentials.cloned())?;
    Ok(())
}

/// Serves the controller until the agent is `leaving`: then it says so.
///
/// # Errors
/// If the address makes no sense, or the controller refuses the agent and no other has taken it in before: then it has no ranks.
pub async fn run(
    agent: &Agent,
    registration: &AgentRegistration,
    launcher: &mut JobLauncher,
    events: &mut mpsc::Receiver<agent_message::Body>,
    leaving: watch::Receiver<bool>,
) -> Result<(), ControlError> {
    let (address, connector) = Connector::to(&registration.controller, registration.credentials.clone())?;
    let endpoint = endpoint(address);
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
        pause: SHORTEST_PAUSE,
    };
    let mut reported = None;
    loop {
        let end = control.connect(&endpoint, &connector).await;
        control.silent.send_replace(false);
        control.launcher.hold_none();
        match end {
            ConnectionEnd::Left => return Ok(()),
            ConnectionEnd::Refused(reason) if control.latest.is_none() => {
                return Err(ControlError::Refused { address: registration.controller.clone(), reason });
            }
            // As in an upgrade, or when there are two controllers: ranks go on meanwhile.
            ConnectionEnd::Refused(reason) | ConnectionEnd::Broken(reason) => {
                // Said once, not at every try.
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
    /// Come back later.
    Broken(String),
    /// The controller does not want this agent.
    Refused(String),
    /// The controller knows that the agent leaves.
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
    /// Whether the agent is to end.
    leaving: watch::Receiver<bool>,
    /// The one task that announces the node by LLDP. It lasts as long as the session, and so does its key: by it switches
    /// know that the node is there while its controller does not hear it otherwise.
    announcer: JoinSet<()>,
    /// While a controller may be taking the node in with another key.
    silent: watch::Sender<bool>,
    /// For a controller that takes over from another.
    inventory: NodeInventory,
    /// Parts of that for which the registration under way had no room.
    further: VecDeque<Vec<Held>>,
    /// What is to be said in the session.
    outbox: ControllerOutbox,
    /// What has happened while there was no connection.
    backlog: OutputBacklog,
    /// The probe under way.
    probe: JoinSet<Probed>,
    /// Examinations of the node under way.
    examinations: JoinSet<Examined>,
    /// By which life of the controller the agent was taken in, and as which node.
    session: Option<(u64, u32)>,
    /// The latest life of a controller that has taken the agent in: an earlier one leads no more, and may not know it.
    latest: Option<u64>,
    /// Before the next try.
    pause: Duration,
}

impl ControlSession<'_> {
    /// One connection, from its beginning to its end.
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

    /// Registers; the controller is the first to say something, and that is where the session stands.
    async fn register(
        &mut self,
        mut client: ControllerClient<Channel>,
    ) -> Result<Streaming<ControllerMessage>, ConnectionEnd> {
        self.silent.send_replace(true);
        self.further = holdings::parts(self.held());
        let held = self.further.pop_front().unwrap_or_default();
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
        Ok(inbound)
    }

    /// Does the next thing: what the controller says, or telling it what happens here.
    async fn step(&mut self, inbound: &mut Streaming<ControllerMessage>) -> Result<(), ConnectionEnd> {
        let (events, probe, examinations) = (&mut *self.events, &mut self.probe, &mut self.examinations);
        let (outbox, backlog) = (&self.outbox, &mut self.backlog);
        // Room first: what is taken from the events cannot be put back.
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
            () = leave_requested(&mut self.leaving) => {
                self.outbox.send(agent_message::Body::Leave(Leave {}));
                Err(farewell(inbound).await)
            }
        }
    }

    /// What the controller says. All but acknowledgements are messages of the session, and count.
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

    /// Something has happened here.
    fn record_event(&mut self, event: &agent_message::Body) {
        self.inventory.record_exit(event);
        self.agent.record_request(event);
        self.report_absent_rank(event);
    }

    /// Says something that the controller has asked for, and waits until most of what was said before is on its way.
    async fn reply(&self, body: agent_message::Body) -> Result<(), ConnectionEnd> {
        self.outbox.send(body);
        timeout(ANSWER_TIMEOUT, self.outbox.room()).await.map_err(|_| {
            ConnectionEnd::Broken(format!("it has read nothing for {} s", ANSWER_TIMEOUT.as_secs()))
        })
    }

    /// A rank that has ended may never have come to its group.
    fn report_absent_rank(&self, event: &agent_message::Body) {
        let agent_message::Body::Exited(exited) = event else { return };
        let Some(group) = self.inventory.group_of(exited.job) else { return };
        let (agent, rank) = (self.agent.clone(), exited.rank);
        // Not here, where what it says to the controller is taken.
        tokio::spawn(async move { agent.rank_never_attached(group, rank).await });
    }

    /// What a refused call means.
    fn refusal(&self, status: Status) -> ConnectionEnd {
        match status.code() {
            // After a broken connection, the name may still be held by ourselves.
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
            features: self.registration.features,
            key: Some(Secret { value: self.agent.key().bytes().to_vec() }),
            session: self.session.map(|(controller, node)| Session {
                controller,
                node,
                received: self.outbox.received(),
            }),
        }
    }

    /// What another controller has to know. Ranks run for it until it is told of their ends, in turn with what they printed.
    fn held(&self) -> Vec<Held> {
        let mut untold = self.outbox.exits();
        untold.extend(self.backlog.events().filter_map(outbox::exit));
        self.inventory.report(|group| self.agent.attached(group), &untold)
    }

    /// Waits until the next try; returns whether there is to be one. What happens meanwhile is kept for the controller, output
    /// as far as there is room, so that ranks need not wait.
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
                // Whoever never had a controller waits for none.
                self.agent.give_up_waiting(AWAY);
            }
            if !self.backlog.keep(event) {
                warn!(
                    "too much has happened without the controller: it will be told only of what is still here"
                );
                self.begin_anew();
            }
        }
    }

    /// The session is over, and another begins with the next registration. What no controller has acknowledged of the output goes
    /// to the next one: lines have numbers, so that nobody hears any twice.
    fn begin_anew(&mut self) {
        self.backlog.put_back(self.outbox.begin_session());
        self.session = None;
        self.probe = JoinSet::new();
        self.examinations = JoinSet::new();
    }
}

/// The agent is to end.
async fn leave_requested(leaving: &mut watch::Receiver<bool>) {
    if leaving.wait_for(|leaving| *leaving).await.is_err() {
        std::future::pending().await
    }
}

/// Waits until the controller has got all that was said, and ends the connection.
async fn farewell(inbound: &mut Streaming<ControllerMessage>) -> ConnectionEnd {
    let read = async { while let Ok(Some(_)) = inbound.message().await {} };
    if timeout(ANSWER_TIMEOUT, read).await.is_err() {
        warn!("the controller has not taken note that this agent leaves");
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

/// An error with its causes: tonic's own text is only "transport error".
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
