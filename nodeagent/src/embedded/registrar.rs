//! Replaces the controller for groups: drives the membership service, makes groups at the agents of
//! this process, and releases them.

use crate::agent::Agent;
use crate::engine::{GroupKey, GroupSpec, MakeGroupError, MemberSpec};
use cool_collective::CostModel;
use cool_collective::planner::LinkCost;
use cool_collective::timing::AgentCosts;
use cool_machine::{Duration, Machine, Poll, Time};
use cool_membership::{self as membership, Input, Membership, Output, RecoveryPurpose};
use cool_proto::control::agent_message::Body;
use cool_proto::control::{Enlist, Enlisted, RanksLeft, Recover, Recovered, Withdraw};
use cool_transport::tagged::Protection;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

/// The payload of a datagram. Loopback allows large ones.
const CHUNK_BYTES: u32 = 16 << 10;

/// Maximum time for the agents of this process to make a group. They do not wait for other
/// processes.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// A node of the cluster.
pub(super) struct EmbeddedNode {
    pub(super) agent: Agent,
    pub(super) rack: u32,
}

/// The location of a rank.
#[derive(Clone)]
struct NodePlace {
    number: u32,
    node: Arc<EmbeddedNode>,
}

impl membership::RankLocation for NodePlace {
    fn node(&self) -> u32 {
        self.number
    }

    fn name(&self) -> &str {
        self.node.agent.node()
    }
}

/// Makes and releases groups.
pub(super) struct EmbeddedRegistrar {
    nodes: Vec<NodePlace>,
    origin: Instant,
    state: Mutex<RegistrarState>,
    /// Notified on a request, because it may change the next deadline.
    requested: Notify,
    /// Notified when a group was released.
    released: Notify,
}

struct RegistrarState {
    membership: Membership<NodePlace>,
    /// The group that exists from the start.
    first: u64,
    /// For each group, the node of each rank.
    groups: BTreeMap<u64, Vec<u32>>,
}

impl EmbeddedRegistrar {
    /// Returns a registrar for these nodes, after it has made the group `id` with a rank on each of
    /// `places`, which are indexes of nodes.
    pub(super) async fn start(
        nodes: Vec<EmbeddedNode>,
        (id, places): (u64, &[usize]),
    ) -> Result<Arc<EmbeddedRegistrar>, MakeGroupError> {
        let node = |(number, node)| NodePlace { number, node: Arc::new(node) };
        let nodes: Vec<NodePlace> = (0..).zip(nodes).map(node).collect();
        let mut last = id;
        let number = move || {
            last += 1;
            last
        };
        let membership = Membership::new(number, READY_WITHIN);
        let state = Mutex::new(RegistrarState { membership, first: id, groups: BTreeMap::new() });
        let (origin, requested, released) = (Instant::now(), Notify::new(), Notify::new());
        let registrar = Arc::new(EmbeddedRegistrar { nodes, origin, state, requested, released });
        let places: Vec<NodePlace> = places.iter().map(|node| registrar.nodes[*node].clone()).collect();
        registrar.make(id, &places).await?;
        let users = places.iter().map(|place| place.number).collect();
        registrar.handle(Input::Reserve(id));
        registrar.handle(Input::Resume { group: id, places, users });
        Ok(registrar)
    }

    /// Serves the requests of a node's agent until the agent ends.
    pub(super) async fn serve(self: Arc<EmbeddedRegistrar>, node: usize, mut queue: mpsc::Receiver<Body>) {
        let place = &self.nodes[node];
        while let Some(body) = queue.recv().await {
            match body {
                Body::Enlist(Enlist { key, rank, size, timeout_ms, ticket }) => {
                    let (place, timeout) = (place.clone(), Duration::from_millis(timeout_ms));
                    self.handle(Input::Enlist { place, key, rank, size, timeout, ticket });
                }
                Body::Withdraw(Withdraw { key, rank }) => {
                    self.handle(Input::Withdraw { node: place.number, key: &key, rank });
                }
                Body::Left(RanksLeft { group, mut ranks, unused }) => {
                    let size = self.size(group);
                    ranks.retain(|rank| self.is_on(place, (group, *rank)));
                    self.handle(Input::RanksLeft { group: (group, size), ranks: &ranks });
                    if unused {
                        self.handle(Input::Unused { group, node: place.number });
                    }
                }
                Body::Recover(Recover { group, rank, timeout_ms, agree, misses }) => {
                    self.handle(Input::Recover {
                        place: place.clone(),
                        group: (group, self.size(group)),
                        rank,
                        purpose: agree.map_or(RecoveryPurpose::Shrink, RecoveryPurpose::Agree),
                        timeout: Duration::from_millis(timeout_ms),
                        unreachable: misses,
                    });
                }
                // Other messages concern jobs and the controller, which do not exist here.
                _ => {}
            }
        }
    }

    /// Handles the deadlines of the membership service. It never returns.
    pub(super) async fn watch(self: Arc<EmbeddedRegistrar>) {
        loop {
            match self.poll() {
                None => self.requested.notified().await,
                Some(deadline) => tokio::select! {
                    () = sleep_until(self.origin + Duration::from_nanos(deadline.as_nanos())) => {}
                    () = self.requested.notified() => {}
                },
            }
        }
    }

    /// Hands an input to the membership service, and executes the outputs.
    fn handle(self: &Arc<EmbeddedRegistrar>, input: Input<'_, NodePlace>) {
        let now = self.now();
        self.state().membership.handle(now, input);
        self.poll();
        self.requested.notify_one();
    }

    /// Executes the outputs of the membership service. Returns when to poll it again.
    fn poll(self: &Arc<EmbeddedRegistrar>) -> Option<Time> {
        loop {
            let polled = self.state().membership.poll(self.now());
            match polled {
                Poll::Idle(deadline) => return deadline,
                Poll::Output(output) => self.execute(output),
            }
        }
    }

    fn execute(self: &Arc<EmbeddedRegistrar>, output: Output<NodePlace>) {
        match output {
            Output::Form { group, places } => drop(tokio::spawn(self.clone().form(group, places))),
            Output::Release { group, .. } => self.release(group),
            Output::Enlisted(place, membership::EnlistOutcome { key, group, reason, rank, tickets }) => {
                place.node.agent.enlisted(Enlisted { key, group, reason, rank, tickets });
            }
            Output::Recovered(place, recovered) => {
                let membership::RecoveryOutcome { group, lost, flags, new_group, failure, rank } = recovered;
                place.node.agent.recovered(&Recovered { group, gone: lost, flags, new_group, failure, rank });
            }
            // This output is not needed here.
            Output::Excluded(_) => {}
        }
    }

    async fn form(self: Arc<EmbeddedRegistrar>, group: u64, places: Vec<NodePlace>) {
        if let Err(e) = self.make(group, &places).await {
            self.handle(Input::FormFailed { group, reason: e.to_string(), lost: BTreeSet::new() });
        }
        self.handle(Input::Announced(group));
        places.iter().for_each(|place| self.handle(Input::Ready { group, node: place.number }));
    }

    /// Makes a group at all of its agents.
    async fn make(&self, id: u64, places: &[NodePlace]) -> Result<(), MakeGroupError> {
        self.state().groups.insert(id, places.iter().map(|place| place.number).collect());
        let member = |(rank, NodePlace { node, .. }): (u32, &NodePlace)| {
            let EmbeddedNode { agent, rack } = &**node;
            let (udp_port, tcp_port) = agent.ports();
            let (node, incarnation) = (agent.node().to_owned(), agent.incarnation());
            let (ip, key) = (Ipv4Addr::LOCALHOST.into(), Some(agent.key().clone()));
            MemberSpec { rank, node, incarnation, rack: *rack, ip, udp_port, tcp_port, key }
        };
        let members: Vec<MemberSpec> = (0..).zip(places).map(member).collect();
        let agents: BTreeMap<u32, &Agent> =
            places.iter().map(|place| (place.number, &place.node.agent)).collect();
        let secret = places.first().map(|place| place.node.agent.key());
        let keyed = secret.map(|secret| GroupKey {
            key: secret.derive(format!("group {id}").as_bytes()),
            protection: Protection::Tagged,
        });
        for agent in agents.into_values() {
            let spec = GroupSpec {
                id,
                epoch: 1,
                members: members.clone(),
                trees: Vec::new(),
                chunk_bytes: CHUNK_BYTES,
                host_bytes_per_second: 0,
                cost_model: loopback(),
                keyed: keyed.clone(),
                on_demand: false,
                quick: false,
                probe_quick: false,
                quick_datagram_bytes: 0,
                connections_per_hop: 0,
            };
            agent.make_group(spec).await?;
            // Ranks are threads of this process.
            agent.set_owner(id, rustix::process::geteuid().as_raw());
        }
        Ok(())
    }

    /// Releases a group at all agents.
    fn release(&self, group: u64) {
        {
            let mut state = self.state();
            let RegistrarState { membership, groups, .. } = &mut *state;
            groups.remove(&group);
            membership.handle(self.now(), Input::GroupsInUse(&groups.keys().copied().collect()));
        }
        self.nodes.iter().for_each(|place| place.node.agent.release_group(group));
        self.released.notify_waiters();
    }

    /// Waits until all groups except the first have been released.
    pub(super) async fn until_unused(&self) {
        loop {
            let mut released = std::pin::pin!(self.released.notified());
            // From here on, each release wakes this task.
            released.as_mut().enable();
            if self.is_unused() {
                return;
            }
            released.await;
        }
    }

    fn is_unused(&self) -> bool {
        let state = self.state();
        state.groups.keys().all(|group| *group == state.first)
    }

    fn size(&self, group: u64) -> u32 {
        self.state().groups.get(&group).map_or(0, |places| places.len() as u32)
    }

    fn is_on(&self, place: &NodePlace, (group, rank): (u64, u32)) -> bool {
        self.state().groups.get(&group).and_then(|places| places.get(rank as usize)) == Some(&place.number)
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns the state. A panic elsewhere leaves it consistent, because every change is complete.
    fn state(&self) -> MutexGuard<'_, RegistrarState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for EmbeddedRegistrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registrar").field("groups", &self.state().groups).finish_non_exhaustive()
    }
}

/// Returns the approximate costs of loopback, where all nodes are equally near.
fn loopback() -> CostModel {
    let level = LinkCost { latency: Duration::from_micros(20), bytes_per_second: 2_000_000_000 };
    let costs = AgentCosts { mtu: 1 << 16, ..AgentCosts::default() };
    CostModel { costs, rack: level, core: level, ecmp_paths: 1, burst: 0, unicast_plans: true }
}
