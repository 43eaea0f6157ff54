//! What the edges of an agent share: its engine, which groups have which ranks here, and who waits for a group.
//! The sockets are left to [`crate::local`], what the controller wants to [`crate::control`].

mod pending;
mod recovery;

use crate::engine::{CallRequest, EngineHandle, GroupError, GroupSpec, Trace, TransferRequest};
use crate::metrics::Metrics;
use cool_collective::{Layout, Rank};
use cool_proto::control::agent_message::Body;
use cool_proto::control::{Enlist, Enlisted, RanksLeft, Withdraw};
use cool_proto::local::{Failure, Place, Stats};
use pending::Waiting;
pub(crate) use recovery::Recovery;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// How much longer than a process wants to wait for others the controller may take to answer: making the group
/// takes a while.
const GRACE: Duration = Duration::from_secs(30);

/// Why a rank leaves that never attached.
const GONE: &str = "its process has gone";

/// One node's agent: its engine and its groups. Clones are the same agent.
#[derive(Clone, Debug)]
pub struct Agent {
    node: Arc<str>,
    engine: EngineHandle,
    metrics: Arc<Metrics>,
    groups: Arc<Mutex<BTreeMap<u64, Group>>>,
    /// Who waits for a group, by its key.
    waiting: Arc<Waiting<String, Attachment>>,
    /// Who waits for the other survivors, by their group.
    recovering: Arc<Waiting<u64, Recovery>>,
    /// To the controller.
    events: mpsc::Sender<Body>,
}

/// A group as ranks see it.
#[derive(Debug)]
struct Group {
    places: Arc<[Place]>,
    /// Ranks of this node.
    local: BTreeSet<u32>,
    /// Those that have come; they stay in when they leave, since a rank that left cannot come back.
    came: BTreeSet<u32>,
    /// How many of them have not left.
    present: usize,
    /// Nobody will release it.
    orphan: bool,
    /// Its ranks came by themselves: it is released when all of them have left.
    enlisted: bool,
    /// The user of the processes that came by themselves, unless the agent's own.
    owner: Option<u32>,
}

/// Why a rank may not attach.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AttachError {
    #[error("node {node} knows no group {group}; it was released, or COOL_GROUP is wrong")]
    NoGroup { node: Arc<str>, group: u64 },
    #[error("rank {rank} of group {group} is not on node {node}, which has {}; is COOL_RANK wrong?", list(.local))]
    NotHere { node: Arc<str>, group: u64, rank: u32, local: BTreeSet<u32> },
    #[error("rank {rank} of group {group} has attached before; a rank attaches once")]
    Twice { group: u64, rank: u32 },
}

impl Agent {
    /// The engine's thread: a rank's session that runs there reaches the engine without waking another.
    pub(crate) fn runtime(&self) -> &tokio::runtime::Handle {
        self.engine.runtime()
    }

    /// The agent of the node called `node`, without groups. What it has to say to the controller goes to
    /// `events`.
    pub fn new(node: &str, engine: EngineHandle, events: mpsc::Sender<Body>) -> Agent {
        Agent {
            node: node.into(),
            engine,
            metrics: Arc::default(),
            groups: Arc::default(),
            waiting: Arc::default(),
            recovering: Arc::default(),
            events,
        }
    }

    /// What it has done.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The engine's UDP and TCP ports.
    pub fn ports(&self) -> (u16, u16) {
        (self.engine.udp_port(), self.engine.tcp_port())
    }

    /// Makes a group; its ranks can attach when this returns.
    ///
    /// # Errors
    /// If it exists, makes no sense, or its trees cannot be joined.
    pub async fn make_group(&self, spec: GroupSpec) -> Result<(), GroupError> {
        let group = Group::new(&spec, &self.node)?;
        let id = spec.id;
        self.engine.make_group(spec).await?;
        self.groups().insert(id, group);
        Ok(())
    }

    /// Forgets a group; calls still running on it fail.
    pub fn release_group(&self, group: u64) {
        self.groups().remove(&group);
        self.engine.release_group(group);
    }

    /// What the latest calls cost; see [`EngineHandle::trace`].
    pub(crate) async fn trace(&self, last: usize, group: Option<u64>) -> Option<Trace> {
        self.engine.trace(last, group).await
    }

    /// Lets a rank of this node take part.
    pub(crate) fn attach(&self, group: u64, rank: u32) -> Result<Attachment, AttachError> {
        let mut groups = self.groups();
        let node = &self.node;
        let known = groups.get_mut(&group).ok_or(AttachError::NoGroup { node: node.clone(), group })?;
        if !known.local.contains(&rank) {
            return Err(AttachError::NotHere { node: node.clone(), group, rank, local: known.local.clone() });
        }
        if !known.came.insert(rank) {
            return Err(AttachError::Twice { group, rank });
        }
        known.present += 1;
        Ok(Attachment { agent: self.clone(), group, rank, places: known.places.clone() })
    }

    /// A group is one of this user's.
    pub(crate) fn give(&self, group: u64, user: u32) {
        if let Some(known) = self.groups().get_mut(&group) {
            known.owner = Some(user);
        }
    }

    /// Whose a group is, if not the agent's own user's.
    pub(crate) fn owner(&self, group: u64) -> Option<u32> {
        self.groups().get(&group)?.owner
    }

    /// Lets a process of this node be a rank of a new group, with those who give the same key. May be dropped
    /// only after [`Agent::withdraw`].
    pub(crate) async fn enlist(&self, enlist: Enlist) -> Result<Attachment, String> {
        let at = (enlist.key.clone(), enlist.rank);
        let patience = Duration::from_millis(enlist.timeout_ms).saturating_add(GRACE);
        let Some(answered) = self.waiting.begin(&at) else {
            return Err(format!("two processes say that they are rank {} of {}", at.1, at.0));
        };
        self.tell(Body::Enlist(enlist)).await;
        self.waiting.answer(&at, answered, patience).await
    }

    /// A process that waited is gone.
    pub(crate) async fn withdraw(&self, key: String, rank: u32) {
        if self.waiting.end(&(key.clone(), rank)) {
            self.tell(Body::Withdraw(Withdraw { key, rank })).await;
        }
    }

    /// The controller has made a group for processes that waited, or will not.
    pub(crate) fn enlisted(&self, enlisted: Enlisted) {
        let Enlisted { key, group, reason, rank } = enlisted;
        let concerned = self.waiting.take(&key, rank);
        if let Some(known) = self.groups().get_mut(&group) {
            known.enlisted = true;
        }
        for (rank, waits) in concerned {
            let answer = if group == 0 {
                Err(reason.clone())
            } else {
                self.attach(group, rank).map_err(|e| e.to_string())
            };
            if let Err(Ok(attachment)) = waits.send(answer) {
                // Not here: whoever calls this may be the one who takes what is told to the controller.
                tokio::spawn(attachment.leave(GONE.to_owned()));
            }
        }
        self.left_before(group);
    }

    /// Ranks that have gone since they were counted among those who have come leave a new group.
    fn left_before(&self, group: u64) {
        let (ranks, unused): (Vec<u32>, bool) = match self.groups().get(&group) {
            Some(known) => (known.local.difference(&known.came).copied().collect(), known.came.is_empty()),
            None => return,
        };
        ranks.iter().for_each(|rank| self.engine.lose_rank(group, *rank, GONE.to_owned()));
        if !ranks.is_empty() {
            let agent = self.clone();
            tokio::spawn(async move { agent.tell(Body::Left(RanksLeft { group, ranks, unused })).await });
        }
    }

    /// Nobody will make the groups that processes wait for, or say who is left of theirs.
    pub(crate) fn give_up_waiting(&self, why: &str) {
        self.recovering.give_up(why);
        self.waiting.give_up(why);
    }

    /// Tells the controller. Nobody listens any more only when the agent ends.
    async fn tell(&self, event: Body) {
        let _ = self.events.send(event).await;
    }

    /// The controller that made the groups may never release them: each but those to `keep` is released as
    /// soon as no rank of this node uses it.
    pub(crate) fn orphan_groups(&self, keep: impl Fn(u64) -> bool) {
        let mut unused = Vec::new();
        for (id, group) in self.groups().iter_mut().filter(|(id, _)| !keep(**id)) {
            group.orphan = true;
            if group.present == 0 {
                unused.push(*id);
            }
        }
        unused.into_iter().for_each(|id| self.release_group(id));
    }

    /// A controller is there again, and releases what it was told that this node has.
    pub(crate) fn adopt_groups(&self) {
        self.groups().values_mut().for_each(|group| group.orphan = false);
    }

    /// The ranks that have attached to a group and not left it, if any: all that have come if one is there.
    pub(crate) fn attached(&self, group: u64) -> Vec<u32> {
        let groups = self.groups();
        let known = groups.get(&group).filter(|group| group.present > 0);
        known.map(|group| group.came.iter().copied().collect()).unwrap_or_default()
    }

    // A panic elsewhere leaves the table whole: every change to it is one insert or remove.
    fn groups(&self) -> MutexGuard<'_, BTreeMap<u64, Group>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Group {
    fn new(spec: &GroupSpec, node: &str) -> Result<Group, GroupError> {
        let invalid = |reason| GroupError::Invalid { group: spec.id, reason };
        let mut numbers = BTreeMap::new();
        let mut places = Vec::with_capacity(spec.members.len());
        for member in &spec.members {
            let next = numbers.len() as u32;
            let number = *numbers.entry(member.node.as_str()).or_insert(next);
            places.push(cool_collective::Place { rack: member.rack, node: number });
        }
        let layout = Layout::new(&places).map_err(|e| invalid(e.to_string()))?;
        let local =
            (0u32..).zip(&spec.members).filter(|(_, m)| m.node == node).map(|(rank, _)| rank).collect();
        let places = (0u32..).zip(&spec.members).map(|(rank, member)| Place {
            node: layout.node_of(Rank(rank)) as u32,
            rack: member.rack,
            name: member.node.clone(),
        });
        Ok(Group {
            places: places.collect(),
            local,
            came: BTreeSet::new(),
            present: 0,
            orphan: false,
            enlisted: false,
            owner: None,
        })
    }
}

/// A rank that takes part, until [`Attachment::leave`].
#[derive(Debug)]
pub(crate) struct Attachment {
    agent: Agent,
    group: u64,
    rank: u32,
    places: Arc<[Place]>,
}

impl Attachment {
    pub(crate) fn group(&self) -> u64 {
        self.group
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }

    /// Starts a call; see [`EngineHandle::call`].
    pub(crate) fn call(
        &self,
        request: CallRequest,
    ) -> impl Future<Output = Result<Stats, Failure>> + Send + use<> {
        let (operation, metrics) = (request.operation, self.agent.metrics.clone());
        let called = self.agent.engine.call(request);
        async move {
            let result = called.await;
            metrics.called(operation, &result);
            result
        }
    }

    /// Starts to send or receive a message; see [`EngineHandle::transfer`].
    pub(crate) fn transfer(
        &self,
        request: TransferRequest,
    ) -> impl Future<Output = Result<Stats, Failure>> + Send + use<> {
        self.agent.engine.transfer(request)
    }

    /// Lets every call of the group fail, at all ranks.
    pub(crate) fn revoke(&self) {
        self.agent.engine.revoke(self.group, self.rank);
    }

    /// The rank is gone. Those who wait for it are told why.
    pub(crate) async fn leave(self, why: String) {
        let Attachment { agent, group, rank, .. } = self;
        agent.engine.lose_rank(group, rank, why);
        let (orphan, unused) = match agent.groups().get_mut(&group) {
            Some(known) => {
                known.present -= 1;
                let unused = known.present == 0;
                (unused && known.orphan, unused && known.enlisted)
            }
            // It was released.
            None => return,
        };
        if orphan {
            agent.release_group(group);
        } else {
            agent.tell(Body::Left(RanksLeft { group, ranks: vec![rank], unused })).await;
        }
    }
}

fn list(ranks: &BTreeSet<u32>) -> String {
    match ranks.len() {
        0 => "no ranks of it".into(),
        _ => format!("ranks {}", ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{EngineConfig, MemberSpec};
    use cool_collective::CostModel;
    use std::net::Ipv4Addr;

    async fn agent_with_group() -> Agent {
        let config = EngineConfig::on_loopback("h1");
        let agent = Agent::new("h1", EngineHandle::start(config).unwrap(), mpsc::channel(1).0);
        let (udp_port, tcp_port) = agent.ports();
        let member = |rank| MemberSpec {
            rank,
            node: "h1".into(),
            rack: 3,
            ip: Ipv4Addr::LOCALHOST,
            udp_port,
            tcp_port,
        };
        let spec = GroupSpec {
            id: 1,
            epoch: 1,
            members: vec![member(0), member(1)],
            trees: Vec::new(),
            chunk_bytes: 1400,
            host_bytes_per_second: 0,
            cost_model: CostModel::default(),
        };
        agent.make_group(spec).await.unwrap();
        agent
    }

    #[tokio::test]
    async fn a_group_without_its_controller_stays_until_its_last_rank_leaves() {
        let agent = agent_with_group().await;
        let (first, second) = (agent.attach(1, 0).unwrap(), agent.attach(1, 1).unwrap());
        agent.orphan_groups(|_| false);
        first.leave("done".into()).await;
        assert!(matches!(agent.attach(1, 0), Err(AttachError::Twice { .. })));
        second.leave("done".into()).await;
        assert!(matches!(agent.attach(1, 0), Err(AttachError::NoGroup { .. })));
    }

    #[tokio::test]
    async fn a_group_that_no_rank_uses_goes_with_its_controller() {
        let agent = agent_with_group().await;
        agent.orphan_groups(|group| group == 1);
        agent.adopt_groups();
        assert!(agent.attach(1, 0).is_ok());
        let agent = agent_with_group().await;
        agent.orphan_groups(|_| false);
        assert!(matches!(agent.attach(1, 0), Err(AttachError::NoGroup { .. })));
    }
}
