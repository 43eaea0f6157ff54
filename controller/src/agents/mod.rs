//! The agents' sessions: who is here, what each node offers, and the way to tell it something. Who is away, and which nodes are
//! gone for it, is in [`absence`] and [`attendance`].
//!
//! What agents say back is read by [`crate::service`] and handed to [`crate::jobs`].

pub mod absence;
pub mod attendance;
pub mod session;
pub mod traces;

use cool_proto::control::{Register, Registered};
use cool_proto::{VersionError, check_version, features};
use cool_topology::{Key, MacAddr};
use cool_types::{NODE_NAME_MAX, NODE_NAME_RULE, check_node_name};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

pub use session::{Gone, Session};

/// Messages that an agent has still to get; one that leaves more unread, or for which more has happened while it was away, is
/// given up.
pub const OUTBOX: usize = 4096;
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
    pub ip: IpAddr,
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
    /// The version of the contract that it speaks.
    pub version: u32,
    /// What it can beyond the version: bits of [`features`].
    pub features: u64,
    /// Its own key, for the agents of its groups.
    pub key: Option<Key>,
}

impl Agent {
    /// Whether it can all of these.
    pub fn has(&self, features: u64) -> bool {
        self.features & features == features
    }
}

/// Why an agent is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// It speaks another version.
    #[error("agent {name:?} {why}")]
    Version {
        /// The node's name.
        name: String,
        /// What it speaks.
        why: VersionError,
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

impl TryFrom<Register> for Agent {
    type Error = AdmitError;

    fn try_from(register: Register) -> Result<Agent, AdmitError> {
        let name = register.name;
        if let Err(why) = check_version(register.version) {
            return Err(AdmitError::Version { name, why });
        }
        let bad = |field, value: &dyn ToString, need| AdmitError::Bad {
            name: name.chars().take(NODE_NAME_MAX).collect(),
            field,
            value: value.to_string().chars().take(NODE_NAME_MAX).collect(),
            need,
        };
        check_node_name(&name).map_err(|_| bad("name", &name, NODE_NAME_RULE))?;
        let ip = register
            .ip
            .parse()
            .map_err(|_| bad("IP address", &register.ip, "an IPv4 or IPv6 address is needed"))?;
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
        let key = register.key.map(|secret| <[u8; 32]>::try_from(secret.value).map(Key::from)).transpose();
        let key = key.map_err(|bytes| bad("key of bytes", &bytes.len(), "32 are needed"))?;
        if register.features & features::TAGS != 0 && key.is_none() {
            return Err(bad("features", &register.features, "tags need a key"));
        }
        let Register { version, incarnation, mtu, slots, features, .. } = register;
        Ok(Agent {
            name,
            incarnation,
            ip,
            mac,
            mtu,
            udp_port,
            tcp_port,
            slots,
            probe_port,
            version,
            features,
            key,
        })
    }
}

/// Whose session a registration is of.
#[derive(Debug)]
pub enum Admitted {
    /// Another one, that begins.
    New(Arc<Session>),
    /// One that goes on, and how many of the controller's messages have come.
    Back(Arc<Session>, u64),
    /// None yet: an agent that is away, or that was given up, has the name, and will not come back.
    Former(Arc<Session>),
}

/// All agents whose nodes are there.
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

    /// Finds or begins the session of an agent that registers, and says that it comes back to `claimed`.
    ///
    /// # Errors
    /// If the name is in use, or the controller is shutting down.
    pub fn admit(
        &self,
        agent: Agent,
        claimed: Option<cool_proto::control::Session>,
    ) -> Result<Admitted, AdmitError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(AdmitError::Closed);
        }
        if let Some(session) = state.sessions.get(&agent.name) {
            let own = |claimed: &cool_proto::control::Session| {
                (claimed.controller, claimed.node) == (self.controller, session.number)
                    && session.agent == agent
                    && !session.has_ended()
            };
            return match claimed.filter(own) {
                Some(claimed) => Ok(Admitted::Back(session.clone(), claimed.received)),
                None if session.is_away() || session.has_ended() => Ok(Admitted::Former(session.clone())),
                None => Err(AdmitError::Taken { name: agent.name }),
            };
        }
        state.last += 1;
        let lldp_key = self.lldp_key.derive(format!("{} {}", state.last, agent.name).as_bytes());
        let session = Arc::new(Session::new(state.last, agent, lldp_key));
        state.sessions.insert(session.agent.name.clone(), session.clone());
        Ok(Admitted::New(session))
    }

    /// What the agent of a session is told first.
    pub fn registered(&self, session: &Session) -> Registered {
        Registered {
            // One that both speak.
            version: session.agent.version,
            node: session.number,
            lldp_interval_ms: self.lldp_interval_ms,
            lldp_key: session.lldp_key.bytes().to_vec(),
            controller: self.controller,
            features: features::ALL,
            resumed: None,
        }
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

    /// Admits no more, and ends all connections in order: what has come is dealt with, and each agent knows how much that was.
    pub async fn stop(&self) {
        self.state.lock().closed = true;
        for session in self.all() {
            session.stop().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::control::{Acknowledged, controller_message::Body};
    use tokio_stream::StreamExt;

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
            ..Register::default()
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
        assert!(refusal(Register { ip: "10.0.0".into(), ..register("h1") }).contains("\"10.0.0\""));
        assert!(Agent::try_from(Register { ip: "fd00::1".into(), ..register("h1") }).is_ok());
        assert!(refusal(Register { mac: "x".into(), ..register("h1") }).contains("MAC"));
        assert!(refusal(Register { mtu: 68, ..register("h1") }).contains("576"));
        assert!(refusal(Register { udp_port: 0, ..register("h1") }).contains("UDP port"));
        assert!(refusal(Register { tcp_port: 65536, ..register("h1") }).contains("TCP port"));
        assert!(refusal(Register { features: features::TAGS, ..register("h1") }).contains("a key"));
        assert!(refusal(Register { probe_port: 0, ..register("h1") }).contains("probe port"));
    }

    fn agents() -> Agents {
        Agents::new(1000, [7; 32].into(), 1)
    }

    fn new(agents: &Agents, agent: &Agent) -> Arc<Session> {
        match agents.admit(agent.clone(), None) {
            Ok(Admitted::New(session)) => session,
            other => panic!("{other:?}"),
        }
    }

    fn claim(node: u32, received: u64) -> Option<cool_proto::control::Session> {
        Some(cool_proto::control::Session { controller: 1, node, received })
    }

    fn kill() -> Body {
        Body::Kill(cool_proto::control::Kill { job: 1 })
    }

    #[tokio::test]
    async fn a_name_belongs_to_one_session_until_it_is_removed() {
        let (agents, agent) = (agents(), Agent::try_from(register("h1")).unwrap());
        let first = new(&agents, &agent);
        let second = agents.admit(agent.clone(), None).unwrap_err();
        assert!(second.to_string().contains("\"h1\" is already connected"), "{second}");
        agents.remove(&first);
        let again = new(&agents, &agent);
        agents.remove(&first);
        assert_eq!(agents.get("h1").map(|s| s.number), Some(again.number));
        agents.stop().await;
        assert_eq!(agents.admit(agent, None).unwrap_err(), AdmitError::Closed);
    }

    #[tokio::test]
    async fn an_agent_comes_back_to_its_session_and_another_one_does_not() {
        let (agents, agent) = (agents(), Agent::try_from(register("h1")).unwrap());
        let session = new(&agents, &agent);
        let (connection, mut outgoing) = session.connect(None, agents.registered(&session)).await.unwrap();
        session.send(kill()).unwrap();
        let mut heard = async || outgoing.next().await.and_then(|m| m.unwrap().body);
        assert!(matches!(heard().await, Some(Body::Registered(Registered { resumed: None, .. }))));
        assert_eq!(heard().await, Some(kill()));
        session.receive(1);
        // The connection still stands, as far as is known here; the agent knows better.
        let Ok(Admitted::Back(back, 0)) = agents.admit(agent.clone(), claim(session.number, 0)) else {
            panic!("not back")
        };
        assert!(matches!(agents.admit(agent.clone(), claim(99, 0)), Err(AdmitError::Taken { .. })));
        let resuming = tokio::spawn({
            let registered = agents.registered(&session);
            async move { back.connect(Some(0), registered).await }
        });
        assert!(!session.closed(&connection).await);
        assert!(!session.disconnect(&connection), "the session has another connection");
        drop(connection);
        let (connection, mut outgoing) = resuming.await.unwrap().unwrap();
        let mut heard = async || outgoing.next().await.and_then(|m| m.unwrap().body);
        assert!(matches!(heard().await, Some(Body::Registered(Registered { resumed: Some(1), .. }))));
        assert_eq!(heard().await, Some(kill()));
        assert!(session.disconnect(&connection) && session.is_away());
        let later = Agent { incarnation: 2, ..agent };
        assert!(matches!(agents.admit(later, claim(session.number, 1)), Ok(Admitted::Former(_))));
    }

    #[tokio::test]
    async fn an_agent_that_takes_nothing_is_given_up() {
        let (agents, agent) = (agents(), Agent::try_from(register("h1")).unwrap());
        let session = new(&agents, &agent);
        let (connection, outgoing) = session.connect(None, agents.registered(&session)).await.unwrap();
        (0..OUTBOX).for_each(|_| session.send(kill()).unwrap());
        assert_eq!(session.send(kill()), Err(Gone("h1".into())));
        assert!(session.closed(&connection).await);
        assert_eq!(outgoing.fold(0, |count, _| count + 1).await, OUTBOX + 1);
    }

    #[tokio::test]
    async fn a_controller_that_stops_says_how_much_it_has_got() {
        let (agents, agent) = (agents(), Agent::try_from(register("h1")).unwrap());
        let session = new(&agents, &agent);
        let (connection, outgoing) = session.connect(None, agents.registered(&session)).await.unwrap();
        session.receive(1);
        session.send(kill()).unwrap();
        let stopped = tokio::spawn(async move { agents.stop().await });
        assert!(!session.closed(&connection).await);
        session.receive(1);
        drop(connection);
        let said: Vec<Body> = outgoing.filter_map(|m| m.unwrap().body).collect().await;
        let last = Acknowledged { received: 2, last: true };
        assert_eq!(said[1..], [kill(), Body::Acknowledged(last)]);
        stopped.await.unwrap();
    }
}
