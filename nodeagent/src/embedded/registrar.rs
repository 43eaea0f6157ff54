//! What the controller does for groups elsewhere: ranks come, their group is made when all have, and released when no
//! node uses it.

use crate::agent::Agent;
use crate::engine::{GroupError, GroupSpec, MemberSpec};
use cool_collective::CostModel;
use cool_collective::planner::LinkCost;
use cool_collective::timing::Costs;
use cool_machine::{Duration, Time};
use cool_membership::{Failed, Member, Met, Purpose, Recovery, Rendezvous, Survivor, refusal};
use cool_proto::control::agent_message::Body;
use cool_proto::control::{Enlist, Mustered, RanksLeft, Recover, Recovered, Withdraw};
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
    waiting: Rendezvous<usize>,
    survivors: Recovery<usize>,
    groups: BTreeMap<u64, Made>,
    last: u64,
}

/// A group that is there.
struct Made {
    /// The node of each rank.
    places: Vec<usize>,
    /// The nodes that use it.
    used: BTreeSet<usize>,
}

impl Registrar {
    /// One for these nodes, after the groups up to `last`.
    pub(super) fn new(nodes: Vec<Node>, last: u64) -> Registrar {
        let state = State {
            waiting: Rendezvous::default(),
            survivors: Recovery::default(),
            groups: BTreeMap::new(),
            last,
        };
        Registrar { nodes, origin: Instant::now(), state: Mutex::new(state), came: Notify::new() }
    }

    /// Makes a group whose ranks are on these nodes.
    pub(super) async fn make(&self, id: u64, nodes: &[usize]) -> Result<(), GroupError> {
        let made = Made { places: nodes.to_vec(), used: nodes.iter().copied().collect() };
        self.state().groups.insert(id, made);
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
                Body::Left(RanksLeft { group, ranks, unused }) => {
                    for rank in ranks {
                        self.left(node, group, rank).await;
                    }
                    if unused {
                        self.unused(node, group);
                    }
                }
                Body::Recover(recover) => self.recover(node, recover).await,
                // Of jobs and their groups, of which there are none.
                _ => {}
            }
        }
    }

    /// Gives up those who wait for too long. Does not end.
    pub(super) async fn watch(&self) {
        loop {
            let deadline = {
                let state = self.state();
                [state.waiting.deadline(), state.survivors.deadline()].into_iter().flatten().min()
            };
            match deadline {
                None => self.came.notified().await,
                Some(deadline) => tokio::select! {
                    () = sleep_until(self.origin + Duration::from_nanos(deadline.as_nanos())) => {}
                    () = self.came.notified() => {}
                },
            }
            let failed = self.state().waiting.overdue(self.now());
            failed.into_iter().for_each(|failed| self.fail(failed));
            let met = self.state().survivors.overdue(self.now());
            for met in met {
                self.met(met).await;
            }
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
                let (group, reason) = self.make_next(&places).await;
                for user in places.into_iter().collect::<BTreeSet<_>>() {
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

    /// Makes a group with the next number: its number, or why there is none.
    async fn make_next(&self, places: &[usize]) -> (u64, String) {
        let id = {
            let mut state = self.state();
            state.last += 1;
            state.last
        };
        match self.make(id, places).await {
            Ok(()) => (id, String::new()),
            Err(e) => {
                self.release(id);
                (0, e.to_string())
            }
        }
    }

    /// A rank meets the other survivors of its group.
    async fn recover(&self, node: usize, recover: Recover) {
        let Recover { group, rank, timeout_ms, agree, misses } = recover;
        let deadline = self.now() + Duration::from_millis(timeout_ms).min(LONGEST);
        let came = {
            let mut state = self.state();
            let State { survivors, groups, .. } = &mut *state;
            let size = groups.get(&group).map_or(0, |made| made.places.len() as u32);
            let purpose = agree.map_or(Purpose::Shrink, Purpose::Agree);
            survivors.come(Survivor { group: (group, size), rank, purpose, place: node, deadline, misses })
        };
        match came {
            Ok(None) => self.came.notify_one(),
            Ok(Some(met)) => self.met(met).await,
            Err(refusal) => self.refuse(node, (group, rank), &refusal),
        }
    }

    fn refuse(&self, node: usize, (group, rank): (u64, u32), refusal: &refusal::Recover) {
        let failure = refusal.to_string();
        let refused = Recovered { group, failure, rank: Some(rank), ..Recovered::default() };
        self.nodes[node].agent.recovered(&refused);
    }

    async fn left(&self, node: usize, group: u64, rank: u32) {
        let met = {
            let mut state = self.state();
            let State { survivors, groups, .. } = &mut *state;
            let Some(made) = groups.get(&group).filter(|made| made.places.get(rank as usize) == Some(&node))
            else {
                return;
            };
            survivors.lose((group, made.places.len() as u32), rank)
        };
        if let Some(met) = met {
            self.met(met).await;
        }
    }

    /// Tells survivors what they have agreed on, and makes the group that they want.
    async fn met(&self, met: Met<usize>) {
        let Met { group, purpose, came, gone, cut_off } = met;
        for (rank, node) in cut_off {
            self.refuse(node, (group, rank), &refusal::Recover::Gone { group, rank });
        }
        let places: Vec<usize> = came.into_values().collect();
        let (flags, (new_group, failure)) = match purpose {
            Purpose::Agree(flags) => (flags, (0, String::new())),
            Purpose::Shrink => (0, self.make_next(&places).await),
        };
        let recovered = Recovered { group, gone, flags, new_group, failure, rank: None };
        for node in places.into_iter().collect::<BTreeSet<_>>() {
            self.nodes[node].agent.recovered(&recovered);
        }
    }

    fn unused(&self, node: usize, group: u64) {
        let over = match self.state().groups.get_mut(&group) {
            Some(made) => {
                made.used.remove(&node);
                made.used.is_empty()
            }
            None => false,
        };
        if over {
            self.release(group);
        }
    }

    /// Forgets a group, everywhere.
    fn release(&self, group: u64) {
        {
            let mut state = self.state();
            let State { survivors, groups, .. } = &mut *state;
            groups.remove(&group);
            // Who waits there is in the group, so that it is used.
            survivors.retain(|id| groups.contains_key(&id));
        }
        self.nodes.iter().for_each(|node| node.agent.release_group(group));
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
    let level = LinkCost { latency: Duration::from_micros(20), bytes_per_second: 2_000_000_000 };
    let costs = Costs { mtu: 1 << 16, ..Costs::default() };
    CostModel { costs, rack: level, core: level, ecmp_paths: 1, burst: 0 }
}
