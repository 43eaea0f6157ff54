//! What the controller does for groups elsewhere: ranks come, their group is made when all have, and released when no
//! node uses it.

use crate::agent::Agent;
use crate::engine::{GroupError, GroupSpec, MemberSpec};
use cool_collective::CostModel;
use cool_collective::planner::Level;
use cool_collective::timing::Costs;
use cool_machine::{Duration, Time};
use cool_proto::control::agent_message::Body;
use cool_proto::control::{Enlist, GroupUnused, Mustered, Withdraw};
use cool_transport::muster::{Failed, Member, Musters};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

/// Payload of a datagram: loopback takes large ones.
const CHUNK_BYTES: u32 = 16 << 10;

/// No member waits longer than this for the others, whatever it asks for.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// A node of the cluster.
pub(super) struct Node {
    pub(super) agent: Agent,
    pub(super) rack: u32,
}

/// Who makes the groups.
pub(super) struct Registrar {
    nodes: Vec<Node>,
    origin: Instant,
    state: Mutex<State>,
    came: Notify,
}

struct State {
    /// By the number of the node.
    waiting: Musters<usize>,
    /// The nodes that use each group.
    used: BTreeMap<u64, BTreeSet<usize>>,
    last: u64,
}

impl Registrar {
    /// One for these nodes, after the groups up to `last`.
    pub(super) fn new(nodes: Vec<Node>, last: u64) -> Registrar {
        let state = State { waiting: Musters::default(), used: BTreeMap::new(), last };
        Registrar { nodes, origin: Instant::now(), state: Mutex::new(state), came: Notify::new() }
    }

    /// Makes a group whose ranks are on these nodes.
    pub(super) async fn make(&self, id: u64, nodes: &[usize]) -> Result<(), GroupError> {
        let member = |(rank, node): (u32, &usize)| {
            let Node { agent, rack } = &self.nodes[*node];
            let (udp_port, tcp_port) = agent.ports();
            let node = agent.node().to_owned();
            MemberSpec { rank, node, rack: *rack, ip: Ipv4Addr::LOCALHOST, udp_port, tcp_port }
        };
        let members: Vec<MemberSpec> = (0..).zip(nodes).map(member).collect();
        for node in nodes.iter().collect::<BTreeSet<_>>() {
            let spec = GroupSpec {
                id,
                epoch: 1,
                members: members.clone(),
                trees: Vec::new(),
                chunk_bytes: CHUNK_BYTES,
                host_bytes_per_second: 0,
                cost_model: loopback(),
            };
            self.nodes[*node].agent.make_group(spec).await?;
        }
        Ok(())
    }

    /// Does what a node's agent asks for, until it ends.
    pub(super) async fn serve(self: Arc<Registrar>, node: usize, mut queue: mpsc::Receiver<Body>) {
        while let Some(body) = queue.recv().await {
            match body {
                Body::Enlist(enlist) => self.enlist(node, enlist).await,
                Body::Withdraw(Withdraw { key, rank }) => {
                    let failed = self.state().waiting.withdraw(&key, rank, |place| *place == node);
                    failed.into_iter().for_each(|failed| self.fail(failed));
                }
                Body::Unused(GroupUnused { group }) => self.unused(node, group),
                // Of jobs and their groups, of which there are none.
                _ => {}
            }
        }
    }

    /// Gives up those who wait for too long. Does not end.
    pub(super) async fn watch(&self) {
        loop {
            let deadline = self.state().waiting.deadline();
            match deadline {
                None => self.came.notified().await,
                Some(deadline) => tokio::select! {
                    () = sleep_until(self.origin + Duration::from_nanos(deadline.as_nanos())) => {}
                    () = self.came.notified() => {}
                },
            }
            let failed = self.state().waiting.overdue(self.now());
            failed.into_iter().for_each(|failed| self.fail(failed));
        }
    }

    async fn enlist(&self, node: usize, enlist: Enlist) {
        let Enlist { key, rank, size, timeout_ms } = enlist;
        let deadline = self.now() + Duration::from_millis(timeout_ms).min(LONGEST);
        let complete =
            self.state().waiting.enlist(Member { key: key.clone(), rank, size, place: node, deadline });
        match complete {
            Ok(None) => self.came.notify_one(),
            Ok(Some(places)) => {
                let users: BTreeSet<usize> = places.iter().copied().collect();
                let id = {
                    let mut state = self.state();
                    state.last += 1;
                    let id = state.last;
                    state.used.insert(id, users.clone());
                    id
                };
                let (group, reason) = match self.make(id, &places).await {
                    Ok(()) => (id, String::new()),
                    Err(e) => {
                        self.state().used.remove(&id);
                        users.iter().for_each(|user| self.nodes[*user].agent.release_group(id));
                        (0, e.to_string())
                    }
                };
                for user in users {
                    let mustered = Mustered { key: key.clone(), group, reason: reason.clone(), rank: None };
                    self.nodes[user].agent.mustered(mustered);
                }
            }
            Err(refusal) => {
                let mustered = Mustered { key, group: 0, reason: refusal.to_string(), rank: Some(rank) };
                self.nodes[node].agent.mustered(mustered);
            }
        }
    }

    fn unused(&self, node: usize, group: u64) {
        let users: Vec<usize> = {
            let mut state = self.state();
            let Some(users) = state.used.get_mut(&group) else { return };
            users.remove(&node);
            if !users.is_empty() {
                return;
            }
            state.used.remove(&group);
            (0..self.nodes.len()).collect()
        };
        // The others do not know it.
        users.into_iter().for_each(|user| self.nodes[user].agent.release_group(group));
    }

    fn fail(&self, failed: Failed<usize>) {
        let Failed { key, places, reason } = failed;
        for node in places.into_iter().collect::<BTreeSet<_>>() {
            let mustered = Mustered { key: key.clone(), group: 0, reason: reason.clone(), rank: None };
            self.nodes[node].agent.mustered(mustered);
        }
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The state, even after a panic: every change to it is whole.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What loopback costs, roughly: nothing is far, and a rack is as near as a node.
fn loopback() -> CostModel {
    let level = Level { latency: Duration::from_micros(20), bytes_per_second: 2_000_000_000 };
    let costs = Costs { mtu: 1 << 16, ..Costs::default() };
    CostModel { costs, rack: level, center: level, lanes: 1, burst: 0 }
}
