//! The agent's session with the controller: registers, does what it is told, and comes back when the
//! session breaks. Without a controller, groups and ranks that are there go on.
//! What it is told to do is done in `commands`.

mod commands;
mod group_spec;
mod outbox;

use crate::agent::Agent;
use crate::interface::Interface;
use crate::launcher::Launcher;
use crate::node_inventory::NodeInventory;
use crate::output_backlog::Backlog;
use cool_proto::CONTROL_MESSAGE_BYTES_MAX;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{AgentMessage, ControllerMessage, Examined, Probed, Register, agent_message};
use cool_tls::{AddressError, Connector, Role};
use outbox::{Outbox, Outgoing};
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tracing::warn;

/// The controller answers a connection, a registration, and takes an answer of ours, within this.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How soon to come back to a controller that is away; doubled each time, up to the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// How often a silent session is tried.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Why processes do not get the group that they wait for.
const AWAY: &str = "this node's agent has no session with the controller; start it, then try again";

/// Why there will be no session with this controller.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The address makes no sense, or the certificates cannot be used.
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
pub struct Registration {
    /// The controller's address, `https://HOST:PORT`.
    pub controller: String,
    /// How the connection is secured.
    pub tls: cool_tls::Options,
    /// The data interface.
    pub interface: Interface,
    /// Ranks the node takes at once.
    pub slots: u32,
    /// Where probes are answered.
    pub probe_port: u16,
}

/// Serves the controller until it refuses the agent; does not end otherwise.
///
/// # Errors
/// If the address makes no sense or the controller refuses the registration.
pub async fn run(
    agent: &Agent,
    registration: &Registration,
    launcher: &mut Launcher,
    events: &mut mpsc::Receiver<agent_message::Body>,
) -> Result<Infallible, ControlError> {
    let (address, connector) = registration.tls.connector(&registration.controller, Role::Agent)?;
    let endpoint = endpoint(address);
    let mut control = Control {
        agent,
        registration,
        launcher,
        events,
        announcer: JoinSet::new(),
        inventory: NodeInventory::default(),
        backlog: Backlog::default(),
        probe: JoinSet::new(),
        examinations: JoinSet::new(),
        joined: false,
        pause: SHORTEST_PAUSE,
    };
    let mut reported = None;
    loop {
        let end = control.session(&endpoint, &connector).await;
        control.announcer = JoinSet::new();
        agent.orphan_groups(|group| control.inventory.has_running(group));
        control.probe = JoinSet::new();
        agent.give_up_waiting(AWAY);
        match end {
            Err(End::Refused(reason)) => {
                return Err(ControlError::Refused { address: registration.controller.clone(), reason });
            }
            Err(End::Broken(reason)) => {
                // Said once, not at every try.
                if control.pause == SHORTEST_PAUSE || reported.as_ref() != Some(&reason) {
                    warn!(
                        "no session with the controller at {}: {reason}; trying again",
                        registration.controller
                    );
                    reported = Some(reason);
                }
            }
        }
        control.wait().await;
    }
}

/// How a session ended.
enum End {
    /// Come back later.
    Broken(String),
    /// Never come back.
    Refused(String),
}

impl From<Status> for End {
    fn from(status: Status) -> End {
        End::Broken(match std::error::Error::source(&status) {
            Some(cause) => chain(cause),
            None => status.message().to_owned(),
        })
    }
}

struct Control<'a> {
    agent: &'a Agent,
    registration: &'a Registration,
    launcher: &'a mut Launcher,
    events: &'a mut mpsc::Receiver<agent_message::Body>,
    /// The one task that announces the node by LLDP. It lasts as long as the session, and so does its key.
    announcer: JoinSet<()>,
    /// For a controller that takes over from another.
    inventory: NodeInventory,
    backlog: Backlog,
    /// The probe under way.
    probe: JoinSet<Probed>,
    /// Examinations of the node under way.
    examinations: JoinSet<Examined>,
    /// Whether the controller has ever taken this agent in.
    joined: bool,
    /// Before the next try.
    pause: Duration,
}

impl Control<'_> {
    /// One session, from connecting to its end.
    async fn session(&mut self, endpoint: &Endpoint, connector: &Connector) -> Result<Infallible, End> {
        let channel =
            endpoint.connect_with_connector(connector.clone()).await.map_err(|e| End::Broken(chain(&e)))?;
        let client = ControllerClient::new(channel).max_decoding_message_size(CONTROL_MESSAGE_BYTES_MAX);
        let (outbox, outgoing) = Outbox::open();
        let end = self.converse(client, &outbox.sender, outgoing).await;
        self.backlog.put_back(outbox.untaken());
        end
    }

    /// Registers, and does what the controller says while what happens here is told to it.
    async fn converse(
        &mut self,
        mut client: ControllerClient<Channel>,
        out: &mpsc::Sender<AgentMessage>,
        outgoing: Outgoing,
    ) -> Result<Infallible, End> {
        answer(out, agent_message::Body::Register(self.registration())).await?;
        let mut inbound = timeout(ANSWER_TIMEOUT, client.join(outgoing))
            .await
            .map_err(|_| End::Broken(format!("it has not answered within {} s", ANSWER_TIMEOUT.as_secs())))?
            .map_err(|status| self.unwelcome(status))?
            .into_inner();
        loop {
            let (events, probe, examinations) = (&mut *self.events, &mut self.probe, &mut self.examinations);
            let backlog = &mut self.backlog;
            // Room first: what is taken from the events cannot be put back.
            let event = async {
                let room = out.reserve().await.ok()?;
                Some((
                    room,
                    match backlog.take() {
                        Some(event) => event,
                        None => events.recv().await?,
                    },
                ))
            };
            tokio::select! {
                message = inbound.message() => match message? {
                    Some(ControllerMessage { body: Some(body) }) => self.obey(body, out).await?,
                    Some(ControllerMessage { body: None }) => warn!("the controller sent a message of no known kind"),
                    None => return Err(End::Broken("it ended the session".into())),
                },
                Some((room, event)) = event => {
                    self.inventory.note(&event);
                    self.note_absent(&event);
                    room.send(AgentMessage { body: Some(event) });
                }
                Some(Ok(probed)) = probe.join_next() => answer(out, agent_message::Body::Probed(probed)).await?,
                Some(Ok(examined)) = examinations.join_next() => {
                    answer(out, agent_message::Body::Examined(examined)).await?;
                }
            }
        }
    }

    /// A rank that has ended may never have come to its group.
    fn note_absent(&self, event: &agent_message::Body) {
        let agent_message::Body::Exited(exited) = event else { return };
        let Some(group) = self.inventory.group_of(exited.job) else { return };
        let (agent, rank) = (self.agent.clone(), exited.rank);
        // Not here, where what it says to the controller is taken.
        tokio::spawn(async move { agent.never_came(group, rank).await });
    }

    /// What a refused call means.
    fn unwelcome(&self, status: Status) -> End {
        match status.code() {
            // After a broken session, the name may still be held by ourselves.
            Code::AlreadyExists if self.joined => status.into(),
            Code::AlreadyExists
            | Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::PermissionDenied => End::Refused(status.message().to_owned()),
            _ => status.into(),
        }
    }

    fn registration(&self) -> Register {
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
            held: self.inventory.report(|group| self.agent.attached(group)),
            probe_port: self.registration.probe_port.into(),
        }
    }

    /// Waits until the next try. How ranks end meanwhile is remembered, and their output as far as there is
    /// room, so that they need not wait.
    async fn wait(&mut self) {
        let over = sleep(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        tokio::pin!(over);
        loop {
            let event = tokio::select! {
                () = &mut over => return,
                Some(event) = self.events.recv() => event,
            };
            if let Some(ended) = self.inventory.note(&event) {
                self.agent.orphan_groups(|group| group != ended);
            }
            match event {
                agent_message::Body::Output(_) => self.backlog.keep(event),
                agent_message::Body::Enlist(_) | agent_message::Body::Recover(_) => {
                    self.agent.give_up_waiting(AWAY);
                }
                _ => {}
            }
        }
    }
}

/// Sends a message of ours.
async fn answer(out: &mpsc::Sender<AgentMessage>, body: agent_message::Body) -> Result<(), End> {
    match timeout(ANSWER_TIMEOUT, out.send(AgentMessage { body: Some(body) })).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(End::Broken("it ended the session".into())),
        Err(_) => Err(End::Broken(format!("it has read nothing for {} s", ANSWER_TIMEOUT.as_secs()))),
    }
}

fn endpoint(address: http::Uri) -> Endpoint {
    Endpoint::from(address)
        .connect_timeout(ANSWER_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(ANSWER_TIMEOUT)
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
