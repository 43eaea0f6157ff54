//! The state that the interfaces of an agent share: its engine, the groups and their ranks on this
//! node, and the ranks that wait for a group. [`crate::local`] handles the sockets, and
//! [`crate::control`] the commands of the controller.

mod attachment;
mod groups;
mod quick;
mod recovery;
mod rendezvous;
mod waiting_ranks;

use crate::engine::{EngineHandle, EngineTrace, GroupSpec, MakeGroupError};
use crate::metrics::AgentMetrics;
use crate::rank_calls::RankCalls;
pub(crate) use attachment::{Abilities, Attachment};
use cool_proto::control::{MissingProbes, ProveTrees, TreesProbed, agent_message::Body};
use cool_types::Key;
pub(crate) use groups::RankAttachError;
use groups::{CallSharing, GroupTable, RankGroup};
pub(crate) use recovery::RecoveryResult;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use waiting_ranks::WaitingRanks;

/// Added to the timeout that a process requests, because the controller still needs time to make
/// the group.
const CONTROLLER_MARGIN: Duration = Duration::from_secs(30);

/// Time without a controller after which an agent that must end does not wait for its groups.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// The reason that is reported for a rank if its process ended before the rank attached to its
/// group.
const PROCESS_ENDED: &str = "its process has ended";

/// The agent of one node: its engine and its groups. Clones are the same agent.
#[derive(Clone, Debug)]
pub struct Agent {
    node: Arc<str>,
    engine: EngineHandle,
    metrics: Arc<AgentMetrics>,
    groups: Arc<GroupTable>,
    /// The processes that wait for a group, by the key of the group.
    enlisted: Arc<WaitingRanks<String, Attachment>>,
    /// The ranks that wait for the other survivors of their group.
    recovering: Arc<WaitingRanks<u64, RecoveryResult>>,
    /// The channel of the events for the controller.
    events: mpsc::Sender<Body>,
    /// Whether a controller has accepted the agent and is connected.
    connected: Arc<watch::Sender<bool>>,
}

impl Agent {
    /// Returns the agent of the node called `node`, without any groups. It sends its events for the
    /// controller to `events`.
    pub fn new(node: &str, engine: EngineHandle, events: mpsc::Sender<Body>) -> Agent {
        let node: Arc<str> = node.into();
        let metrics = AgentMetrics::new(engine.traffic(), engine.refusals(), engine.dropped_datagrams());
        Agent {
            groups: Arc::new(GroupTable::new(
                node.clone(),
                metrics.retransmit_counter(),
                engine.datagram_faults(),
            )),
            node,
            metrics: Arc::new(metrics),
            engine,
            enlisted: Arc::default(),
            recovering: Arc::default(),
            events,
            connected: Arc::default(),
        }
    }

    /// Returns the runtime of the engine's thread. A rank's session should run there, because it
    /// then reaches the engine without waking another thread.
    pub(crate) fn runtime(&self) -> &tokio::runtime::Handle {
        self.engine.runtime()
    }

    /// Waits until the engine has ended. The caller must then end the agent, because the sessions
    /// of its ranks have ended too.
    pub async fn engine_ended(&self) {
        self.engine.ended().await;
    }

    /// Returns when the engine has handled all earlier requests, or has ended.
    pub async fn engine_answers(&self) {
        // Only the arrival of the reply matters; group 0 does not exist.
        self.engine.lost_ranks(0).await;
    }

    /// Records whether a controller has accepted the agent and is connected.
    pub(crate) fn set_connected(&self, connected: bool) {
        self.connected.send_replace(connected);
    }

    /// Waits until the node has no groups. Before that, ranks of other nodes may still need data of
    /// ranks that have ended here. Also returns when no controller has been connected for a minute,
    /// because only a controller can release the groups.
    pub async fn groups_ended(&self) {
        let mut connected = self.connected.subscribe();
        let abandoned = async {
            loop {
                // The sender is part of the agent, so it exists.
                let _ = connected.wait_for(|connected| !connected).await;
                if timeout(ABANDONED_AFTER, connected.wait_for(|connected| *connected)).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = self.groups.ended() => {}
            () = abandoned => {}
        }
    }

    /// Returns the agent's metrics.
    pub fn metrics(&self) -> &AgentMetrics {
        &self.metrics
    }

    /// Returns the node's name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the engine's UDP and TCP ports.
    pub fn ports(&self) -> (u16, u16) {
        (self.engine.udp_port(), self.engine.tcp_port())
    }

    /// Returns the agent's incarnation. Of two agents of a node, the later one has the larger
    /// incarnation.
    pub fn incarnation(&self) -> u64 {
        self.engine.incarnation()
    }

    /// Returns the agent's own key, which the agents of its groups need.
    pub fn key(&self) -> &Key {
        self.engine.key()
    }

    /// Makes a group. Its ranks can attach when this returns.
    ///
    /// # Errors
    /// Returns an error if the group exists, or if its description is inconsistent.
    pub async fn make_group(&self, spec: GroupSpec) -> Result<(), MakeGroupError> {
        let mut group = RankGroup::new(&spec, &self.node)?;
        let id = spec.id;
        self.engine.make_group(spec).await?;
        if group.needs_sockets() {
            let opened = tokio::task::spawn_blocking(move || {
                group.open_sockets();
                group
            });
            // The task fails only if the program ends.
            group = opened.await.map_err(|_| MakeGroupError::Stopped)?;
        }
        self.groups.insert(id, group);
        Ok(())
    }

    /// Proves that the trees of a group work, and reports the probes that do not arrive to the
    /// controller; see [`EngineHandle::prove_trees`]. Reports nothing if the group is released.
    pub(crate) async fn report_tree_proof(&self, request: ProveTrees) {
        let ProveTrees { group, number, time_ms } = request;
        let time_max = Duration::from_millis(time_ms.into());
        let Some((missing, received)) = self.engine.prove_trees(group, number, time_max).await else {
            return;
        };
        let of_tree = |missing: cool_engine::MissingProbes| MissingProbes {
            tree: missing.tree.to_string(),
            from: missing.from,
        };
        let missing = missing.into_iter().map(of_tree).collect();
        let received = u32::try_from(received).unwrap_or(u32::MAX);
        self.report(Body::TreesProbed(TreesProbed { group, number, missing, received })).await;
    }

    /// Returns the groups with trees from which this node receives nothing, as they are noticed;
    /// see [`EngineHandle::silent_trees`].
    pub(crate) fn silent_trees(&self) -> mpsc::Receiver<u64> {
        self.engine.silent_trees()
    }

    /// Concludes a proof. The group uses all trees but those with these addresses.
    pub(crate) fn conclude_tree_proof(&self, group: u64, withdrawn: BTreeSet<IpAddr>) {
        if let Some(sockets) = self.groups.conclude_tree_proof(group, &withdrawn) {
            // The system leaves a tree only while it has a lock that may be held for seconds.
            tokio::task::spawn_blocking(move || drop(sockets));
        }
        self.engine.conclude_tree_proof(group, withdrawn);
    }

    /// Releases a group. Its ranks' running calls fail.
    pub fn release_group(&self, group: u64) {
        self.groups.remove(group);
        self.rank_calls().end(group);
        self.engine.release_group(group);
    }

    /// Returns the records of the latest calls that the agent executed; see
    /// [`EngineHandle::trace`].
    pub(crate) async fn trace(&self, last: usize, group: Option<u64>) -> Option<EngineTrace> {
        self.engine.trace(last, group).await
    }

    /// Returns the calls that the ranks execute themselves.
    pub(crate) fn rank_calls(&self) -> &Arc<RankCalls> {
        self.metrics.rank_calls()
    }

    /// Attaches a rank of this node, whose process has requested its group, to this group. Returns
    /// an error if the group is unknown, or if the rank is not on this node or has attached before.
    pub(crate) fn attach(&self, group: u64, rank: u32) -> Result<Attachment, RankAttachError> {
        self.attachment(group, rank, None)
    }

    /// Attaches a rank of this node, which is a process of a user, to a group. Returns an error if
    /// the group is not one of this user too.
    pub(crate) fn attach_as(&self, user: u32, group: u64, rank: u32) -> Result<Attachment, RankAttachError> {
        self.attachment(group, rank, Some(user))
    }

    fn attachment(&self, group: u64, rank: u32, user: Option<u32>) -> Result<Attachment, RankAttachError> {
        let places = self.groups.attach(group, rank, user)?;
        Ok(Attachment::new(self.clone(), group, rank, places))
    }

    /// Returns how an attached rank executes calls together with the other ranks of its group, or
    /// `None` if the agent executes them; see [`GroupTable::segment`] and [`GroupTable::quick`].
    fn share(&self, group: u64, rank: u32, abilities: Abilities) -> Option<CallSharing> {
        let share = |sharing: &CallSharing| {
            self.engine.share(group, Arc::clone(&sharing.segment));
            self.rank_calls().share((group, sharing.epoch), sharing.size, &sharing.segment);
        };
        let Some(arrival) = self.groups.quick((group, rank), abilities, self.engine.runtime()) else {
            return self.groups.segment(group, abilities.segment).inspect(share);
        };
        arrival.sharing.iter().for_each(share);
        // The engine must receive the segment first, because it writes to the segment whether quick
        // calls are possible.
        arrival.able.into_iter().for_each(|able| self.engine.quick(group, able));
        arrival.sharing
    }

    /// Returns the ranks that have attached to a group, including those that have left. Returns an
    /// empty list if all of them have left.
    pub(crate) fn attached(&self, group: u64) -> Vec<u32> {
        self.groups.attached(group)
    }

    /// Returns the datagrams of quick calls that do not arrive at this node, each in words with a
    /// remedy.
    pub(crate) fn datagram_faults(&self) -> Vec<String> {
        self.groups.datagram_faults().texts()
    }

    /// Sets the user of a group. Only processes of this user may be its ranks.
    pub fn set_owner(&self, group: u64, user: u32) {
        self.groups.set_owner(group, user);
    }

    /// Checks that a group is one of a user.
    pub(crate) fn check_user(&self, group: u64, user: u32) -> Result<(), RankAttachError> {
        self.groups.check_user(group, user)
    }

    /// Reports an event to the controller. If the receiver has been dropped, so is the event,
    /// because the agent is ending.
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
