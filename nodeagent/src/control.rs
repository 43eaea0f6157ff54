//! The agent's session with the controller: registers, does what it is told, and comes back when the
//! session breaks. Without a controller, groups and ranks that are there go on.

use crate::agent::Agent;
use crate::diagnostics;
use crate::engine::{GroupSpec, MemberSpec, TreeScope, TreeSpec};
use crate::interface::Interface;
use crate::launcher::Launcher;
use crate::node_inventory::{Backlog, NodeInventory};
use crate::{lldp, probe, traces};
use cool_collective::CostModel;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{
    AgentMessage, ControllerMessage, Examine, Examined, Group, GroupFailed, GroupReady, Kill, Member, Probe,
    Probed, Register, Registered, ReleaseGroup, SignalRequest, StopProbe, Tree, agent_message,
    controller_message::Body, tree::Scope,
};
use cool_tls::{AddressError, Connector, Role};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use tracing::{info, warn};

/// The controller answers a connection, a registration, and takes an answer of ours, within this.
const PATIENCE: Duration = Duration::from_secs(10);

/// How soon to come back to a controller that is away; doubled each time, up to the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// Examinations of the node at a time.
const MAX_EXAMINATIONS: usize = 4;

/// How often a silent session is tried.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The node is announced no more often than this, whatever the controller says.
const SHORTEST_LLDP_PERIOD: Duration = Duration::from_millis(100);

/// A message from the controller: a group of very many ranks is long.
const MAX_MESSAGE: usize = 64 << 20;

/// Why processes do not get the group that they wait for.
const AWAY: &str = "this node's agent has no session with the controller; start it, then try again";
/// Uplinks of a rack: a switch has no more ports.
const ECMP_PATHS_MAX: u32 = 65_535;

/// Messages under way to the controller.
const OUTBOX: usize = 256;

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

/// What the controller is told of this node, beside what the engine knows.
#[derive(Clone, Debug)]
pub struct Node {
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
    node: &Node,
    launcher: &mut Launcher,
    events: &mut mpsc::Receiver<agent_message::Body>,
) -> Result<Infallible, ControlError> {
    let (address, connector) = node.tls.connector(&node.controller, Role::Agent)?;
    let endpoint = endpoint(address);
    let mut control = Control {
        agent,
        node,
        launcher,
        events,
        announcer: JoinSet::new(),
        held: NodeInventory::default(),
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
        agent.orphan_groups(|group| control.held.has_running(group));
        control.probe = JoinSet::new();
        agent.give_up_waiting(AWAY);
        match end {
            Err(End::Refused(reason)) => {
                return Err(ControlError::Refused { address: node.controller.clone(), reason });
            }
            Err(End::Broken(reason)) => {
                // Said once, not at every try.
                if control.pause == SHORTEST_PAUSE || reported.as_ref() != Some(&reason) {
                    warn!("no session with the controller at {}: {reason}; trying again", node.controller);
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
    node: &'a Node,
    launcher: &'a mut Launcher,
    events: &'a mut mpsc::Receiver<agent_message::Body>,
    /// The one task that announces the node by LLDP. It lasts as long as the session, and so does its key.
    announcer: JoinSet<()>,
    /// For a controller that takes over from another.
    held: NodeInventory,
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
        let mut client = ControllerClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let (out, messages) = mpsc::channel(OUTBOX);
        answer(&out, agent_message::Body::Register(self.registration())).await?;
        let mut inbound = timeout(PATIENCE, client.join(ReceiverStream::new(messages)))
            .await
            .map_err(|_| End::Broken(format!("it has not answered within {} s", PATIENCE.as_secs())))?
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
                    Some(ControllerMessage { body: Some(body) }) => self.obey(body, &out).await?,
                    Some(ControllerMessage { body: None }) => warn!("the controller sent a message of no known kind"),
                    None => return Err(End::Broken("it ended the session".into())),
                },
                Some((room, event)) = event => {
                    self.held.note(&event);
                    self.note_absent(&event);
                    room.send(AgentMessage { body: Some(event) });
                }
                Some(Ok(probed)) = probe.join_next() => answer(&out, agent_message::Body::Probed(probed)).await?,
                Some(Ok(examined)) = examinations.join_next() => {
                    answer(&out, agent_message::Body::Examined(examined)).await?;
                }
            }
        }
    }

    /// A rank that has ended may never have come to its group.
    fn note_absent(&self, event: &agent_message::Body) {
        let agent_message::Body::Exited(exited) = event else { return };
        let Some(group) = self.held.group_of(exited.job) else { return };
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
            ip: self.node.interface.ip.to_string(),
            mac: self.node.interface.mac.to_string(),
            mtu: self.node.interface.mtu,
            udp_port: udp_port.into(),
            tcp_port: tcp_port.into(),
            slots: self.node.slots,
            held: self.held.report(|group| self.agent.attached(group)),
            probe_port: self.node.probe_port.into(),
        }
    }

    async fn obey(&mut self, body: Body, out: &mpsc::Sender<AgentMessage>) -> Result<(), End> {
        match body {
            Body::Registered(registered) => self.registered(&registered),
            Body::Group(group) => {
                let (id, epoch) = (group.id, group.epoch);
                self.held.made(group.clone());
                let made = match spec(group) {
                    Ok(spec) => self.agent.make_group(spec).await.map_err(|e| e.to_string()),
                    Err(reason) => Err(reason),
                };
                answer(
                    out,
                    match made {
                        Ok(()) => {
                            info!(group = id, epoch, "group made");
                            agent_message::Body::GroupReady(GroupReady { group: id, epoch })
                        }
                        Err(reason) => {
                            self.held.released(id);
                            warn!(group = id, epoch, "cannot make group: {reason}");
                            agent_message::Body::GroupFailed(GroupFailed { group: id, reason })
                        }
                    },
                )
                .await
            }
            Body::Release(ReleaseGroup { group }) => {
                info!(group, "group released");
                self.held.released(group);
                self.agent.release_group(group);
                Ok(())
            }
            Body::Launch(launch) => {
                self.held.started(&launch);
                self.launcher.launch(&launch);
                Ok(())
            }
            Body::Kill(Kill { job }) => {
                self.launcher.kill(job);
                Ok(())
            }
            Body::Signal(SignalRequest { job, signal }) => {
                self.launcher.signal(job, signal);
                Ok(())
            }
            Body::Trace(request) => {
                for piece in traces::answer(self.agent, &request).await {
                    answer(out, agent_message::Body::Traced(piece)).await?;
                }
                Ok(())
            }
            Body::Enlisted(enlisted) => {
                self.agent.enlisted(enlisted);
                Ok(())
            }
            Body::Recovered(recovered) => {
                self.agent.recovered(&recovered);
                Ok(())
            }
            Body::Probe(probe) => {
                self.probe = JoinSet::new();
                self.probe.spawn(probed(self.node.interface.clone(), probe));
                Ok(())
            }
            Body::StopProbe(StopProbe {}) => {
                self.probe = JoinSet::new();
                Ok(())
            }
            Body::Examine(Examine { id }) => {
                // Who asks more often gets no answer to some.
                if self.examinations.len() < MAX_EXAMINATIONS {
                    self.examinations.spawn(diagnostics::examined(id, self.node.interface.name.clone()));
                }
                Ok(())
            }
        }
    }

    fn registered(&mut self, registered: &Registered) -> Result<(), End> {
        if registered.version != cool_proto::VERSION {
            return Err(End::Refused(format!(
                "it speaks version {} of the contract, this agent {}; install the same release of both",
                registered.version,
                cool_proto::VERSION
            )));
        }
        info!(node = registered.node, "joined the controller at {}", self.node.controller);
        self.joined = true;
        self.pause = SHORTEST_PAUSE;
        let key: [u8; 32] = registered.lldp_key.as_slice().try_into().map_err(|_| {
            End::Refused(format!("its key for LLDP has {} bytes instead of 32", registered.lldp_key.len()))
        })?;
        self.held.joined(registered.controller);
        self.agent.adopt_groups();
        let lost = self.backlog.take_lost();
        if lost > 0 {
            warn!("{lost} lines of output were lost while the controller was away");
        }
        let period = Duration::from_millis(registered.lldp_interval_ms.into()).max(SHORTEST_LLDP_PERIOD);
        // Ends the one that there was.
        self.announcer = JoinSet::new();
        self.announcer.spawn(lldp::announce(
            self.agent.node().to_owned(),
            self.node.interface.clone(),
            key.into(),
            period,
        ));
        Ok(())
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
            if let Some(ended) = self.held.note(&event) {
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
    match timeout(PATIENCE, out.send(AgentMessage { body: Some(body) })).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(End::Broken("it ended the session".into())),
        Err(_) => Err(End::Broken(format!("it has read nothing for {} s", PATIENCE.as_secs()))),
    }
}

fn endpoint(address: http::Uri) -> Endpoint {
    Endpoint::from(address)
        .connect_timeout(PATIENCE)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(PATIENCE)
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

/// Measures what the controller asks for.
async fn probed(interface: Interface, Probe { id, ip, port }: Probe) -> Probed {
    let (address, port) = (ip.parse::<Ipv4Addr>(), u16::try_from(port));
    let found = match (address, port) {
        (Ok(ip), Ok(port)) => {
            let to = SocketAddrV4::new(ip, port);
            probe::measure(interface.ip, to, interface.mtu).await.map_err(|e| e.to_string())
        }
        _ => Err(format!("{ip} port {port:?} is no address")),
    };
    match found {
        Ok(found) => Probed {
            id,
            latency_ns: u64::try_from(found.latency.as_nanos()).unwrap_or(u64::MAX),
            bytes_per_second: found.bytes_per_second,
            burst: found.burst,
            failure: String::new(),
        },
        Err(failure) => Probed { id, failure, ..Probed::default() },
    }
}

/// A group in the engine's terms.
fn spec(group: Group) -> Result<GroupSpec, String> {
    let ip = |text: &str| text.parse::<Ipv4Addr>().map_err(|_| format!("{text:?} is no IPv4 address"));
    let port = |port: u32| u16::try_from(port).map_err(|_| format!("{port} is no port"));
    let member = |m: Member| {
        Ok::<_, String>(MemberSpec {
            ip: ip(&m.ip)?,
            udp_port: port(m.udp_port)?,
            tcp_port: port(m.tcp_port)?,
            rank: m.rank,
            node: m.node,
            rack: m.rack,
        })
    };
    let tree = |t: Tree| {
        let scope = match t.scope() {
            Scope::All => TreeScope::All,
            Scope::Leaders => TreeScope::Leaders,
            Scope::Rack => TreeScope::Rack(t.rack),
            Scope::Unspecified => return Err(format!("the tree {} has no known scope", t.address)),
        };
        let (address, port) = (ip(&t.address)?, port(t.port)?);
        Ok(TreeSpec { scope, address, port, bytes_per_second: t.bytes_per_second })
    };
    Ok(GroupSpec {
        id: group.id,
        epoch: group.epoch,
        members: group.members.into_iter().map(member).collect::<Result<_, _>>()?,
        trees: group.trees.into_iter().map(tree).collect::<Result<_, _>>()?,
        chunk_bytes: group.chunk_bytes,
        host_bytes_per_second: group.host_bytes_per_second,
        cost_model: cost_model(&group.cost_model)?,
    })
}

fn cost_model(text: &str) -> Result<CostModel, String> {
    let model: CostModel = serde_json::from_str(text).map_err(|e| format!("its cost model {text:?}: {e}"))?;
    match model.ecmp_paths {
        0..=ECMP_PATHS_MAX => Ok(model),
        paths => Err(format!(
            "its cost model has {paths} uplinks of a rack; at most {ECMP_PATHS_MAX} are possible"
        )),
    }
}
