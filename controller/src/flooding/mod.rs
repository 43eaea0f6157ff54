//! Examines whether a network without OpenFlow switches floods multicasts to nodes that have not
//! joined their address.
//!
//! From time to time one node multicasts probes to an address that another node has joined, and
//! other nodes listen to the address without joining it. `examiner` decides when and how, and
//! `rounds` which nodes. Nodes that cannot listen, because they have no permission for raw
//! sockets, are no obstacle.

mod examiner;
mod rounds;

use crate::agents::{AgentRegistry, Session};
use crate::groups::queriers::Queriers;
use crate::natural_order::natural;
use cool_daemon::clock::Clock;
use cool_fabric::{Fabric, Key, TopologySnapshot, examination_address};
use cool_machine::{Duration, Machine, Poll, Time};
use cool_proto::control::controller_message::Body;
use cool_proto::control::{FloodingReport, FloodingRole, FloodingState, FloodingTask};
use cool_proto::features;
use cool_topology::flooding_probe::NONCE_BYTES;
use cool_types::name_list;
use examiner::{FloodingExaminer, FloodingInput, FloodingOutput, FloodingVerdict, NodeRole, RoleReport};
use parking_lot::Mutex;
use rounds::ExaminedNode;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Notify;
use tracing::{debug, info, warn};

/// Time for which nodes and network must not have changed before an examination. Bridges of Linux
/// flood for ten seconds after they have heard the first querier, because hosts answer within this
/// time by default (RFC 3376, 8.3).
pub const QUIET_TIME: Duration = Duration::from_secs(15);

/// The result of the latest examination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FloodedNodes {
    /// Number of nodes that have listened. 0: it is not known whether the network floods.
    pub listeners: usize,
    /// Names of those nodes that multicasts have reached, in natural order.
    pub reached: Vec<String>,
}

/// Lets nodes examine the network, and has the result.
pub struct FloodingMonitor {
    clock: Clock,
    network: Arc<dyn Fabric>,
    agents: Arc<AgentRegistry>,
    queriers: Arc<Queriers>,
    /// Secret from which the random numbers in probes are derived.
    secret: Key,
    /// `None`: the network is never examined.
    state: Option<Mutex<MonitorState>>,
    changed: Notify,
}

struct MonitorState {
    examiner: FloodingExaminer,
    /// The nodes that can take part, by the number of the session.
    sessions: BTreeMap<u32, Arc<Session>>,
    /// Whether there may be other nodes now.
    is_stale: bool,
}

impl FloodingMonitor {
    /// Returns a monitor without a result. Nodes begin an examination when nothing has changed for
    /// `quiet`, which is usually [`QUIET_TIME`]; with `None`, they never do. `secret` must be new
    /// for each run, and `generation` should be.
    pub fn new(
        network: Arc<dyn Fabric>,
        agents: Arc<AgentRegistry>,
        queriers: Arc<Queriers>,
        (secret, generation): (Key, u64),
        quiet: Option<Duration>,
    ) -> FloodingMonitor {
        let state = quiet.map(|quiet| {
            let examiner = FloodingExaminer::new(quiet, generation);
            Mutex::new(MonitorState { examiner, sessions: BTreeMap::new(), is_stale: true })
        });
        FloodingMonitor {
            clock: Clock::start(),
            network,
            agents,
            queriers,
            secret,
            state,
            changed: Notify::new(),
        }
    }

    /// Handles a node's report on its role.
    pub fn receive(&self, session: &Session, report: FloodingReport) {
        let role_report = match (report.state(), u8::try_from(report.train)) {
            (FloodingState::Ready, _) => RoleReport::Ready,
            (FloodingState::Unable, _) => RoleReport::Unable,
            (FloodingState::Heard, Ok(train)) => RoleReport::Heard(train),
            // The agent may be newer than the controller.
            (FloodingState::Heard, Err(_)) | (FloodingState::Unknown, _) => return,
        };
        let (node, number) = (session.number, report.number);
        self.handle(FloodingInput::Report { node, number, report: role_report });
    }

    /// Forgets the result, because the network has changed, and lets nodes examine it again.
    pub fn on_network_change(&self) {
        self.handle(FloodingInput::NetworkChanged);
    }

    fn handle(&self, input: FloodingInput<'_>) {
        if let Some(state) = &self.state {
            let mut state = state.lock();
            // Another node may have become querier.
            state.is_stale |= matches!(input, FloodingInput::NetworkChanged);
            state.examiner.handle(self.clock.now(), input);
            self.changed.notify_one();
        }
    }

    /// Returns the result of the latest examination.
    pub fn flooded_nodes(&self) -> FloodedNodes {
        let Some(state) = &self.state else { return FloodedNodes::default() };
        let state = state.lock();
        state.examiner.verdict().map_or_else(FloodedNodes::default, |verdict| state.flooded_nodes(verdict))
    }

    /// Lets nodes examine the network when that is due. Returns when the network no longer exists.
    pub async fn run(self: Arc<FloodingMonitor>) {
        let Some(state) = &self.state else { return };
        let mut network = self.network.watch();
        loop {
            let deadline = {
                let (mut state, now) = (state.lock(), self.clock.now());
                if std::mem::take(&mut state.is_stale) {
                    self.update_nodes(now, &mut state, &network.borrow_and_update());
                }
                self.perform(now, &mut state)
            };
            tokio::select! {
                () = self.clock.wait(deadline) => {}
                () = self.changed.notified() => {}
                changed = network.changed() => match changed {
                    Ok(()) => state.lock().is_stale = true,
                    Err(_) => return,
                }
            }
        }
    }

    /// Finds the nodes that can take part.
    fn update_nodes(&self, now: Time, state: &mut MonitorState, network: &TopologySnapshot) {
        state.sessions.clear();
        let mut nodes = Vec::new();
        // OpenFlow switches carry only the multicasts that the controller has installed.
        let located = network.nodes.iter().filter(|_| network.switches.is_empty());
        for node in located.filter(|node| network.reported_racks.contains_key(&node.name)) {
            let (Some(session), Some(location)) = (self.agents.get(&node.name), node.location) else {
                continue;
            };
            let first = state.sessions.values().next();
            let is_alike = first.is_none_or(|first| first.agent.ip.is_ipv6() == session.agent.ip.is_ipv6());
            if session.agent.has(features::FLOODING_CHECKS) && is_alike {
                // Switches forward all multicasts to a node that queries from an address.
                let is_router = session.agent.ip.is_ipv6() && self.queriers.is_appointed(session.number);
                nodes.push(ExaminedNode {
                    rack: location.rack,
                    number: session.number,
                    may_listen: !is_router,
                });
                state.sessions.insert(session.number, session);
            }
        }
        nodes.sort_unstable();
        state.examiner.handle(now, FloodingInput::Nodes(&nodes));
    }

    /// Performs the current actions of the examiner. Returns when it must be polled again.
    fn perform(&self, now: Time, state: &mut MonitorState) -> Option<Time> {
        loop {
            match state.examiner.poll(now) {
                Poll::Output(FloodingOutput::Assign { node, number, role }) => {
                    if let Some(session) = state.sessions.get(&node) {
                        // If the session has ended, the node is removed soon.
                        let _ = session.send(Body::FloodingTask(self.task(state, session, number, role)));
                    }
                }
                Poll::Output(FloodingOutput::Concluded(verdict)) => state.log(verdict.as_ref()),
                Poll::Idle(deadline) => return deadline,
            }
        }
    }

    fn task(&self, state: &MonitorState, session: &Session, number: u64, role: NodeRole) -> FloodingTask {
        let (role, train) = match role {
            NodeRole::None => (FloodingRole::None, 0),
            NodeRole::Member => (FloodingRole::Member, 0),
            NodeRole::Listener => (FloodingRole::Listener, 0),
            NodeRole::Sender(train) => (FloodingRole::Sender, train),
        };
        let nonce = self.secret.tag(&number.to_be_bytes());
        FloodingTask {
            number,
            role: role.into(),
            address: examination_address(session.agent.ip, number).to_string(),
            // Firewalls permit this port, because the node receives multicasts of groups there.
            port: state.sessions.values().map(|session| session.agent.udp_port).min().unwrap_or(0).into(),
            bytes: state.sessions.values().map(|session| session.agent.mtu).min().unwrap_or(0),
            nonce: nonce[..NONCE_BYTES].to_vec(),
            train: train.into(),
        }
    }
}

impl MonitorState {
    fn flooded_nodes(&self, verdict: &FloodingVerdict) -> FloodedNodes {
        let names = verdict.reached.iter().filter_map(|node| self.sessions.get(node));
        let mut reached: Vec<String> = names.map(|session| session.agent.name.clone()).collect();
        reached.sort_by(|a, b| natural(a, b));
        FloodedNodes { listeners: verdict.listeners.len(), reached }
    }

    fn log(&self, verdict: Option<&FloodingVerdict>) {
        match verdict.map(|verdict| self.flooded_nodes(verdict)) {
            Some(FloodedNodes { listeners, reached }) if reached.is_empty() => {
                info!(listeners, "multicasts reach only the nodes that have joined their address");
            }
            Some(FloodedNodes { listeners, reached }) => {
                let nodes = name_list(&reached);
                warn!(
                    listeners,
                    nodes, "the network floods: multicasts reach nodes that have not joined their address"
                );
            }
            // This is repeated where switches deliver no multicast.
            None => debug!("an examination of whether the network floods multicasts had no result"),
        }
    }
}
