//! The agents' sessions: who is connected, what each node offers, and the way to tell it something.
//!
//! What agents say back is read by [`crate::service`] and handed to [`crate::jobs`].

pub mod traces;

use cool_proto::control::{ControllerMessage, Register, Registered, controller_message::Body};
use cool_topology::{Key, MacAddr};
use cool_types::{NODE_NAME_MAX, NODE_NAME_RULE, check_node_name};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{Notify, mpsc};

/// Messages that wait for an agent; one that leaves more unread is not working.
pub const OUTBOX: usize = 256;
/// What every IPv4 network carries (RFC 791).
const SMALLEST_MTU: u32 = 576;

/// A node as its agent registers it, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// The node's name.
    pub name: String,
    /// Which of the node's agents it is: of two the later one has the larger number.
    pub incarnation: u64,
    /// On the data network.
    pub ip: Ipv4Addr,
    /// Of the data interface.
    pub mac: MacAddr,
    /// Of the data interface, bytes.
    pub mtu: u32,
    /// Multicast and repair.
    pub udp_port: u16,
    /// Unicast steps.
    pub tcp_port: u16,
    /// Ranks it takes at once.
    pub slots: u32,
    /// Where it answers probes, TCP.
    pub probe_port: u16,
}

/// Why an agent is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// It speaks another version.
    #[error(
        "agent {name:?} speaks version {theirs} of the contract, this controller {ours}; install the same release of both"
    )]
    Version {
        /// The node's name.
        name: String,
        /// The agent's.
        theirs: u32,
        /// The controller's.
        ours: u32,
    },
    /// A value that cannot be.
    #[error("agent {name:?} registers {field} {value:?}: {need}")]
    Bad {
        /// The node's name.
        name: String,
        /// Which value.
        field: &'static str,
        /// What it is.
        value: String,
        /// What it should be.
        need: &'static str,
    },
    /// The name is in use.
    #[error(
        "an agent named {name:?} is already connected; give each node its own --name, or stop the other agent"
    )]
    Taken {
        /// The name.
        name: String,
    },
    /// The controller is about to end.
    #[error("the controller is shutting down")]
    Closed,
}

/// A message cannot reach an agent: its session has ended, or it does not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent of node {0} is gone")]
pub struct Gone(pub String);

impl TryFrom<Register> for Agent {
    type Error = AdmitError;

    fn try_from(register: Register) -> Result<Agent, AdmitError> {
        let name = register.name;
        if register.version != cool_proto::VERSION {
            return Err(AdmitError::Version { name, theirs: register.version, ours: cool_proto::VERSION });
        }
        let bad = |field, value: &dyn ToString, need| AdmitError::Bad {
            name: name.chars().take(NODE_NAME_MAX).collect(),
            field,
            value: value.to_string().chars().take(NODE_NAME_MAX).collect(),
            need,
        };
        check_node_name(&name).map_err(|_| bad("name", &name, NODE_NAME_RULE))?;
        let ip =
            register.ip.parse().map_err(|_| bad("IP address", &register.ip, "an IPv4 address is needed"))?;
        let mac =
            register.mac.parse().map_err(|_| bad("MAC address", &register.mac, "as in 02:00:00:00:00:01"))?;
        if register.mtu < SMALLEST_MTU {
            return Err(bad("MTU", &register.mtu, "at least 576 bytes are needed"));
        }
        if register.slots == 0 {
            return Err(bad("slots", &0, "a node takes at least one rank"));
        }
        let port = |field, value: u32| match u16::try_from(value) {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(bad(field, &value, "a port is 1 to 65535")),
        };
        let udp_port = port("UDP port", register.udp_port)?;
        let tcp_port = port("TCP port", register.tcp_port)?;
        let probe_port = port("probe port", register.probe_port)?;
        let Register { incarnation, mtu, slots, .. } = register;
        Ok(Agent { name, incarnation, ip, mac, mtu, udp_port, tcp_port, slots, probe_port })
    }
}

/// A connected agent.
#[derive(Debug)]
pub struct Session {
    /// Never used twice.
    pub number: u32,
    /// What it offers.
    pub agent: Agent,
    /// What proves the node's LLDP during this session.
    pub lldp_key: Key,
    /// `None` once ended.
    outbox: Mutex<Option<mpsc::Sender<ControllerMessage>>>,
    ended: Notify,
    /// Whether the survivors of a group have gone on without a rank of the node, since a job was last started on it.
    left_behind: AtomicBool,
}

impl Session {
    /// Sends a message, without waiting. An agent that leaves [`OUTBOX`] messages unread is hung up on.
    ///
    /// # Errors
    /// If the agent is gone.
    pub fn send(&self, body: Body) -> Result<(), Gone> {
        let mut outbox = self.outbox.lock();
        let message = ControllerMessage { body: Some(body) };
        if outbox.as_ref().is_some_and(|o| o.try_send(message).is_ok()) {
            return Ok(());
        }
        *outbox = None;
        self.ended.notify_one();
        Err(Gone(self.agent.name.clone()))
    }

    /// Ends the session: the agent is hung up on when it has read what was sent.
    pub fn end(&self) {
        *self.outbox.lock() = None;
        self.ended.notify_one();
    }

    /// Says whether others have gone on without a rank of the node, whose end is then no failure of theirs.
    pub fn set_left_behind(&self, left_behind: bool) {
        self.left_behind.store(left_behind, Ordering::Relaxed);
    }

    /// Whether others have gone on without a rank of the node.
    pub fn is_left_behind(&self) -> bool {
        self.left_behind.load(Ordering::Relaxed)
    }

    /// Whether nothing can be sent any more.
    pub fn has_ended(&self) -> bool {
        self.outbox.lock().is_none()
    }

    /// Resolves when this side has ended the session. For the one task that reads from the agent.
    pub async fn ended(&self) {
        self.ended.notified().await;
    }
}

/// All connected agents.
#[derive(Debug)]
pub struct Agents {
    lldp_interval_ms: u32,
    lldp_key: Key,
    /// Which run of the controller this is.
    controller: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: u32,
    sessions: BTreeMap<String, Arc<Session>>,
    closed: bool,
}

impl Agents {
    /// No agents yet; each will be told to announce its node this often, to prove it by a key of its own that
    /// is derived from `lldp_key`, and which run of the controller this is.
    pub fn new(lldp_interval_ms: u32, lldp_key: Key, controller: u64) -> Agents {
        Agents { lldp_interval_ms, lldp_key, controller, state: Mutex::default() }
    }

    /// Which run of the controller this is.
    pub fn controller(&self) -> u64 {
        self.controller
    }

    /// Takes an agent in and tells it so; `outbox` leads to it.
    ///
    /// # Errors
    /// If the name is in use, or the controller is shutting down.
    pub fn admit(
        &self,
        agent: Agent,
        outbox: mpsc::Sender<ControllerMessage>,
    ) -> Result<Arc<Session>, AdmitError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(AdmitError::Closed);
        }
        if state.sessions.contains_key(&agent.name) {
            return Err(AdmitError::Taken { name: agent.name });
        }
        state.last += 1;
        let (number, outbox, ended) = (state.last, Mutex::new(Some(outbox)), Notify::new());
        let lldp_key = self.lldp_key.derive(format!("{number} {}", agent.name).as_bytes());
        let left_behind = AtomicBool::new(false);
        let session = Arc::new(Session { number, agent, lldp_key, outbox, ended, left_behind });
        let registered = Registered {
            version: cool_proto::VERSION,
            node: number,
            lldp_interval_ms: self.lldp_interval_ms,
            lldp_key: session.lldp_key.bytes().to_vec(),
            controller: self.controller,
        };
        // First of all messages: nobody else knows the session yet. If the agent is gone already, its
        // reader will notice.
        let _ = session.send(Body::Registered(registered));
        state.sessions.insert(session.agent.name.clone(), session.clone());
        Ok(session)
    }

    /// Forgets a session.
    pub fn remove(&self, session: &Session) {
        session.end();
        let mut state = self.state.lock();
        if state.sessions.get(&session.agent.name).is_some_and(|s| s.number == session.number) {
            state.sessions.remove(&session.agent.name);
        }
    }

    /// The session of a node.
    pub fn get(&self, name: &str) -> Option<Arc<Session>> {
        self.state.lock().sessions.get(name).cloned()
    }

    /// All sessions, by the names of their nodes.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.state.lock().sessions.values().cloned().collect()
    }

    /// Ends all sessions and admits no more.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.sessions.values().for_each(|s| s.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(name: &str) -> Register {
        Register {
            version: cool_proto::VERSION,
            name: name.into(),
            ip: "10.0.0.1".into(),
            mac: "02:00:00:00:00:01".into(),
            mtu: 1500,
            udp_port: 7420,
            tcp_port: 7420,
            slots: 2,
            held: Vec::new(),
            probe_port: 7421,
            incarnation: 1,
        }
    }

    fn refusal(register: Register) -> String {
        Agent::try_from(register).unwrap_err().to_string()
    }

    #[test]
    fn a_registration_is_refused_for_what_is_wrong_with_it() {
        assert!(Agent::try_from(register("h1")).is_ok());
        let r = refusal(Register { version: 99, ..register("h1") });
        assert!(r.contains("\"h1\"") && r.contains("version 99"), "{r}");
        assert!(refusal(register("h 1")).contains("registers name"));
        assert!(refusal(register("")).contains("registers name"));
        assert!(refusal(Register { ip: "fe80::1".into(), ..register("h1") }).contains("\"fe80::1\""));
        assert!(refusal(Register { mac: "x".into(), ..register("h1") }).contains("MAC"));
        assert!(refusal(Register { mtu: 68, ..register("h1") }).contains("576"));
        assert!(refusal(Register { udp_port: 0, ..register("h1") }).contains("UDP port"));
        assert!(refusal(Register { tcp_port: 65536, ..register("h1") }).contains("TCP port"));
        assert!(refusal(Register { probe_port: 0, ..register("h1") }).contains("probe port"));
    }

    #[test]
    fn a_name_belongs_to_one_session_until_it_is_removed() {
        let agents = Agents::new(1000, [7; 32].into(), 1);
        let agent = Agent::try_from(register("h1")).unwrap();
        let (outbox, _inbox) = mpsc::channel(1);
        let first = agents.admit(agent.clone(), outbox.clone()).unwrap();
        let second = agents.admit(agent.clone(), outbox.clone()).unwrap_err();
        assert!(second.to_string().contains("\"h1\" is already connected"), "{second}");
        agents.remove(&first);
        let again = agents.admit(agent.clone(), outbox.clone()).unwrap();
        agents.remove(&first);
        assert_eq!(agents.get("h1").map(|s| s.number), Some(again.number));
        agents.close();
        assert_eq!(agents.admit(agent, outbox).unwrap_err(), AdmitError::Closed);
    }

    #[tokio::test]
    async fn an_agent_that_does_not_read_is_hung_up_on() {
        let agents = Agents::new(1000, [7; 32].into(), 1);
        let (outbox, mut inbox) = mpsc::channel(2);
        let session = agents.admit(Agent::try_from(register("h1")).unwrap(), outbox).unwrap();
        let message = || Body::Kill(cool_proto::control::Kill { job: 1 });
        assert_eq!(session.send(message()), Ok(()));
        assert_eq!(session.send(message()), Err(Gone("h1".into())));
        session.ended().await;
        assert!(matches!(inbox.recv().await, Some(ControllerMessage { body: Some(Body::Registered(_)) })));
        assert!(matches!(inbox.recv().await, Some(ControllerMessage { body: Some(Body::Kill(_)) })));
        assert!(inbox.recv().await.is_none());
    }
}
