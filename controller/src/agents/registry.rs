//! The sessions of all agents, by node name.

use super::registered_agent::{AdmitError, RegisteredAgent};
use super::session::Session;
use cool_proto::control::Registered;
use cool_proto::features;
use cool_topology::Key;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The session to which a registration belongs.
#[derive(Debug)]
pub enum Admission {
    /// A new session.
    New(Arc<Session>),
    /// An existing session, and the number of the controller's messages that the agent has
    /// received.
    Resumed(Arc<Session>, u64),
    /// No session yet: the name belongs to the session of an earlier agent, which cannot be resumed
    /// and must be ended first.
    Superseded(Arc<Session>),
}

/// The sessions of all agents.
#[derive(Debug)]
pub struct AgentRegistry {
    lldp_interval_ms: u32,
    lldp_key: Key,
    /// Identifies this run of the controller.
    controller: u64,
    state: Mutex<RegistryState>,
}

#[derive(Debug, Default)]
struct RegistryState {
    last: u32,
    sessions: BTreeMap<String, Arc<Session>>,
    closed: bool,
}

impl AgentRegistry {
    /// Returns an empty registry. Each agent will be instructed to announce its node at this
    /// interval, authenticated by a key that is derived from `lldp_key`. `controller` identifies
    /// this run of the controller.
    pub fn new(lldp_interval_ms: u32, lldp_key: Key, controller: u64) -> AgentRegistry {
        AgentRegistry { lldp_interval_ms, lldp_key, controller, state: Mutex::default() }
    }

    /// Returns the number of this run of the controller.
    pub fn controller(&self) -> u64 {
        self.controller
    }

    /// Returns the session of an agent that registers. `claimed` is the session that the agent
    /// wants to resume.
    ///
    /// # Errors
    /// Returns an error if the name is in use, or if the controller is shutting down.
    pub fn admit(
        &self,
        agent: RegisteredAgent,
        claimed: Option<cool_proto::control::Session>,
    ) -> Result<Admission, AdmitError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(AdmitError::Closed);
        }
        if let Some(session) = state.sessions.get(&agent.name) {
            let own = |claimed: &cool_proto::control::Session| {
                (claimed.controller, claimed.node) == (self.controller, session.number)
                    && session.agent.is_same_run(&agent)
                    && !session.has_ended()
            };
            return match claimed.filter(own) {
                Some(claimed) => Ok(Admission::Resumed(session.clone(), claimed.received)),
                None if session.is_away() || session.has_ended() => {
                    Ok(Admission::Superseded(session.clone()))
                }
                None => Err(AdmitError::Taken { name: agent.name }),
            };
        }
        state.last += 1;
        let lldp_key = self.lldp_key.derive(format!("{} {}", state.last, agent.name).as_bytes());
        let session = Arc::new(Session::new(state.last, agent, lldp_key));
        state.sessions.insert(session.agent.name.clone(), session.clone());
        Ok(Admission::New(session))
    }

    /// Returns the first message to the agent of a session.
    pub fn registered(&self, session: &Session) -> Registered {
        Registered {
            // The agent's version, because the controller supports it too.
            version: session.agent.version,
            node: session.number,
            lldp_interval_ms: self.lldp_interval_ms,
            lldp_key: session.lldp_key.bytes().to_vec(),
            controller: self.controller,
            features: features::ALL,
            resumed: None,
        }
    }

    /// Removes and ends a session.
    pub fn remove(&self, session: &Session) {
        session.end();
        let mut state = self.state.lock();
        if state.sessions.get(&session.agent.name).is_some_and(|s| s.number == session.number) {
            state.sessions.remove(&session.agent.name);
        }
    }

    /// Returns the session of a node.
    pub fn get(&self, name: &str) -> Option<Arc<Session>> {
        self.state.lock().sessions.get(name).cloned()
    }

    /// Returns all sessions, ordered by node name.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.state.lock().sessions.values().cloned().collect()
    }

    /// Admits no more agents and closes all connections. Messages that have arrived are processed
    /// first, and each agent is informed how many these were.
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
    use crate::agents::registered_agent::tests::register;
    use crate::agents::session::{MAX_UNACKNOWLEDGED, UndeliverableError};
    use cool_fabric::LldpNeighbor;
    use cool_proto::CONTROL_MESSAGE_BYTES_MAX;
    use cool_proto::control::{Acknowledged, Launch, controller_message::Body};
    use tokio_stream::StreamExt;

    fn agents() -> AgentRegistry {
        AgentRegistry::new(1000, [7; 32].into(), 1)
    }

    fn new(agents: &AgentRegistry, agent: &RegisteredAgent) -> Arc<Session> {
        match agents.admit(agent.clone(), None) {
            Ok(Admission::New(session)) => session,
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
        let (agents, agent) = (agents(), RegisteredAgent::try_from(register("h1")).unwrap());
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
    async fn an_agent_resumes_its_session_and_another_does_not() {
        let (agents, agent) = (agents(), RegisteredAgent::try_from(register("h1")).unwrap());
        let session = new(&agents, &agent);
        let (connection, mut outgoing) = session.connect(None, agents.registered(&session)).await.unwrap();
        session.send(kill()).unwrap();
        let mut receive = async || outgoing.next().await.and_then(|m| m.unwrap().body);
        assert!(matches!(receive().await, Some(Body::Registered(Registered { resumed: None, .. }))));
        assert_eq!(receive().await, Some(kill()));
        session.receive(1);
        // The controller still considers the agent connected, but the agent has already detected
        // the end of the connection.
        let neighbor = LldpNeighbor { chassis: "leaf1".into(), port: "3".into(), system_name: None };
        let with_neighbor = RegisteredAgent { neighbor: Some(neighbor), ..agent.clone() };
        let Ok(Admission::Resumed(resumed, 0)) = agents.admit(with_neighbor, claim(session.number, 0)) else {
            panic!("not resumed")
        };
        assert!(matches!(agents.admit(agent.clone(), claim(99, 0)), Err(AdmitError::Taken { .. })));
        let resuming = tokio::spawn({
            let registered = agents.registered(&session);
            async move { resumed.connect(Some(0), registered).await }
        });
        assert!(!session.closed(&connection).await);
        assert!(!session.disconnect(&connection), "the session has another connection");
        drop(connection);
        let (connection, mut outgoing) = resuming.await.unwrap().unwrap();
        let mut receive = async || outgoing.next().await.and_then(|m| m.unwrap().body);
        assert!(matches!(receive().await, Some(Body::Registered(Registered { resumed: Some(1), .. }))));
        assert_eq!(receive().await, Some(kill()));
        assert!(session.disconnect(&connection) && session.is_away());
        let later = RegisteredAgent { incarnation: 2, ..agent };
        assert!(matches!(agents.admit(later, claim(session.number, 1)), Ok(Admission::Superseded(_))));
    }

    #[tokio::test]
    async fn an_agent_that_reads_nothing_loses_its_session() {
        let (agents, agent) = (agents(), RegisteredAgent::try_from(register("h1")).unwrap());
        let session = new(&agents, &agent);
        let (connection, outgoing) = session.connect(None, agents.registered(&session)).await.unwrap();
        (0..MAX_UNACKNOWLEDGED).for_each(|_| session.send(kill()).unwrap());
        assert_eq!(session.send(kill()), Err(UndeliverableError::SessionEnded("h1".into())));
        assert!(session.closed(&connection).await);
        assert_eq!(outgoing.fold(0, |count, _| count + 1).await, MAX_UNACKNOWLEDGED + 1);
    }

    #[tokio::test]
    async fn a_message_that_an_agent_cannot_decode_is_not_sent() {
        let (agents, agent) = (agents(), RegisteredAgent::try_from(register("h1")).unwrap());
        let session = new(&agents, &agent);
        let (_connection, mut outgoing) = session.connect(None, agents.registered(&session)).await.unwrap();
        let launch = Launch { program: "x".repeat(CONTROL_MESSAGE_BYTES_MAX), ..Launch::default() };
        let refused = session.send(Body::Launch(launch)).unwrap_err();
        assert!(matches!(refused, UndeliverableError::TooLong { .. }), "{refused}");
        session.send(kill()).unwrap();
        let mut receive = async || outgoing.next().await.and_then(|m| m.unwrap().body);
        assert!(matches!(receive().await, Some(Body::Registered(_))));
        assert_eq!(receive().await, Some(kill()));
    }

    #[tokio::test]
    async fn a_user_that_sends_signals_ends_no_session() {
        let (agents, agent) = (agents(), RegisteredAgent::try_from(register("h1")).unwrap());
        let session = new(&agents, &agent);
        let (connection, _outgoing) = session.connect(None, agents.registered(&session)).await.unwrap();
        assert!(session.disconnect(&connection) && session.is_away());
        (0..2 * MAX_UNACKNOWLEDGED).for_each(|_| session.send_signal(1, 10));
        session.send(kill()).unwrap();
        assert!(!session.has_ended());
    }

    #[tokio::test]
    async fn a_stopping_controller_reports_how_much_it_received() {
        let (agents, agent) = (agents(), RegisteredAgent::try_from(register("h1")).unwrap());
        let session = new(&agents, &agent);
        let (connection, outgoing) = session.connect(None, agents.registered(&session)).await.unwrap();
        session.receive(1);
        session.send(kill()).unwrap();
        let stopped = tokio::spawn(async move { agents.stop().await });
        assert!(!session.closed(&connection).await);
        session.receive(1);
        drop(connection);
        let sent: Vec<Body> = outgoing.filter_map(|m| m.unwrap().body).collect().await;
        let last = Acknowledged { received: 2, last: true };
        assert_eq!(sent[1..], [kill(), Body::Acknowledged(last)]);
        stopped.await.unwrap();
    }
}
