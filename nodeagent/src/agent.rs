//! What the edges of an agent share: its engine, which groups have which ranks here, and who waits for a group.
//! The sockets are left to [`crate::local`], what the controller wants to [`crate::control`].

mod attachment;
mod groups;
mod quick;
mod recovery;
mod rendezvous;
mod waiting_ranks;

use crate::engine::{EngineHandle, EngineTrace, GroupSpec, MakeGroupError};
use crate::metrics::AgentMetrics;
use crate::rank_calls::RankCalls;
pub(crate) use attachment::Attachment;
use cool_proto::control::agent_message::Body;
use cool_types::Key;
pub(crate) use groups::{Abilities, RankAttachError};
use groups::{CallSharing, GroupTable, RankGroup};
pub(crate) use recovery::RecoveryResult;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use waiting_ranks::WaitingRanks;

/// How much longer than a process wants to wait for others the controller may take to answer: making the group
/// takes a while.
const CONTROLLER_MARGIN: Duration = Duration::from_secs(30);

/// Why a rank leaves that never attached.
const PROCESS_ENDED: &str = "its process has gone";

/// One node's agent: its engine and its groups. Clones are the same agent.
#[derive(Clone, Debug)]
pub struct Agent {
    node: Arc<str>,
    engine: EngineHandle,
    metrics: Arc<AgentMetrics>,
    groups: Arc<GroupTable>,
    /// Who waits for a group, by its key.
    enlisted: Arc<WaitingRanks<String, Attachment>>,
    /// Who waits for the other survivors, by their group.
    recovering: Arc<WaitingRanks<u64, RecoveryResult>>,
    /// To the controller.
    events: mpsc::Sender<Body>,
}

impl Agent {
    /// The agent of the node called `node`, without groups. What it has to say to the controller goes to
    /// `events`.
    pub fn new(node: &str, engine: EngineHandle, events: mpsc::Sender<Body>) -> Agent {
        let node: Arc<str> = node.into();
        let metrics = AgentMetrics::new(engine.traffic(), engine.refusals());
        Agent {
            groups: Arc::new(GroupTable::new(node.clone(), metrics.retransmit_counter())),
            node,
            metrics: Arc::new(metrics),
            engine,
            enlisted: Arc::default(),
            recovering: Arc::default(),
            events,
        }
    }

    /// The engine's thread: a rank's session that runs there reaches the engine without waking another.
    pub(crate) fn runtime(&self) -> &tokio::runtime::Handle {
        self.engine.runtime()
    }

    /// Waits for the end of its engine, after which it is of no use: its ranks' sessions have ended with it.
    pub async fn engine_ended(&self) {
        self.engine.ended().await;
    }

    /// Comes back when its engine has dealt with all that it was asked before, or has ended.
    pub async fn engine_answers(&self) {
        // Whether there is such a group does not matter.
        self.engine.lost_ranks(0).await;
    }

    /// What it has done.
    pub fn metrics(&self) -> &AgentMetrics {
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

    /// Which of the node's agents it is: of two the later one has the larger number.
    pub fn incarnation(&self) -> u64 {
        self.engine.incarnation()
    }

    /// Its own key, for the agents of its groups.
    pub fn key(&self) -> &Key {
        self.engine.key()
    }

    /// Makes a group; its ranks can attach when this returns.
    ///
    /// # Errors
    /// If it exists, makes no sense, or its trees cannot be joined.
    pub async fn make_group(&self, spec: GroupSpec) -> Result<(), MakeGroupError> {
        let group = RankGroup::new(&spec, &self.node)?;
        let id = spec.id;
        self.engine.make_group(spec).await?;
        self.groups.insert(id, group);
        Ok(())
    }

    /// Forgets a group; calls still running on it fail.
    pub fn release_group(&self, group: u64) {
        self.groups.remove(group);
        self.rank_calls().end(group);
        self.engine.release_group(group);
    }

    /// What the latest calls cost that the agent carried out; see [`EngineHandle::trace`].
    pub(crate) async fn trace(&self, last: usize, group: Option<u64>) -> Option<EngineTrace> {
        self.engine.trace(last, group).await
    }

    /// The calls that its ranks carry out themselves.
    pub(crate) fn rank_calls(&self) -> &Arc<RankCalls> {
        self.metrics.rank_calls()
    }

    /// Lets a rank of this node take part.
    pub(crate) fn attach(&self, group: u64, rank: u32) -> Result<Attachment, RankAttachError> {
        let places = self.groups.attach(group, rank)?;
        Ok(Attachment::new(self.clone(), group, rank, places))
    }

    /// How a rank that has attached carries out calls with the others of its group, if it does; see [`GroupTable::segment`] and
    /// [`GroupTable::quick`].
    fn share(&self, group: u64, rank: u32, abilities: Abilities) -> Option<CallSharing> {
        let share = |sharing: &CallSharing| {
            self.engine.share(group, Arc::clone(&sharing.segment));
            self.rank_calls().share((group, sharing.epoch), sharing.size, &sharing.segment);
        };
        let Some(arrival) = self.groups.quick((group, rank), abilities, self.engine.runtime()) else {
            return self.groups.segment(group, abilities.segment).inspect(share);
        };
        arrival.sharing.iter().for_each(share);
        // Then: what follows is told in the segment.
        arrival.able.into_iter().for_each(|able| self.engine.quick(group, able));
        arrival.sharing
    }

    /// The ranks that have attached to a group and not left it, if any: all that have come if one is there.
    pub(crate) fn attached(&self, group: u64) -> Vec<u32> {
        self.groups.attached(group)
    }

    /// Processes of this user, and of no other, may be ranks of a group.
    pub fn set_owner(&self, group: u64, user: u32) {
        self.groups.set_owner(group, user);
    }

    /// The groups of a user whose ranks came by themselves.
    pub(crate) fn enlisted_of(&self, user: u32) -> usize {
        self.groups.enlisted_of(user)
    }

    /// Whether processes of a user may be ranks of a group; of one that there is not, too, which they are then told.
    pub(crate) fn may_use(&self, group: u64, user: u32) -> bool {
        self.groups.may_use(group, user)
    }

    /// Tells the controller. Nobody listens any more only when the agent ends.
    async fn report(&self, event: Body) {
        let _ = self.events.send(event).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{EngineConfig, MemberSpec};
    use std::net::Ipv4Addr;

    async fn agent_with_group() -> Agent {
        let config = EngineConfig::on_loopback("h1");
        let agent = Agent::new("h1", EngineHandle::start(config).unwrap(), mpsc::channel(1).0);
        let (udp_port, tcp_port) = agent.ports();
        let member = |rank| MemberSpec {
            rank,
            node: "h1".into(),
            incarnation: agent.incarnation(),
            rack: 3,
            ip: Ipv4Addr::LOCALHOST.into(),
            udp_port,
            tcp_port,
            key: None,
        };
        let spec = GroupSpec {
            id: 1,
            epoch: 1,
            members: vec![member(0), member(1)],
            chunk_bytes: 1400,
            ..GroupSpec::default()
        };
        agent.make_group(spec).await.unwrap();
        agent
    }

    #[tokio::test]
    async fn a_rank_attaches_once_and_a_group_stays_until_it_is_released() {
        let agent = agent_with_group().await;
        let (first, second) = (agent.attach(1, 0).unwrap(), agent.attach(1, 1).unwrap());
        first.leave("done".into()).await;
        assert_eq!(agent.attached(1), [0, 1]);
        second.leave("done".into()).await;
        assert!(agent.attached(1).is_empty());
        assert!(matches!(agent.attach(1, 0), Err(RankAttachError::Twice { .. })));
        agent.release_group(1);
        assert!(matches!(agent.attach(1, 0), Err(RankAttachError::NoGroup { .. })));
    }
}
