//! What the edges of an agent share: its engine, and which groups have which ranks here. The sockets
//! are left to [`crate::local`], what the controller wants to [`crate::control`].

use crate::engine::{CallRequest, EngineHandle, GroupError, GroupSpec};
use cool_collective::{Layout, Rank};
use cool_proto::local::{Failure, Place, Stats};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One node's agent: its engine and its groups. Clones are the same agent.
#[derive(Clone, Debug)]
pub struct Agent {
    node: Arc<str>,
    engine: EngineHandle,
    groups: Arc<Mutex<BTreeMap<u64, Group>>>,
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
    /// The agent of the node called `node`, without groups.
    pub fn new(node: &str, engine: EngineHandle) -> Agent {
        Agent { node: node.into(), engine, groups: Arc::default() }
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

    /// The controller that made the groups will not release them: each is released as soon as no rank of
    /// this node uses it.
    pub(crate) fn orphan_groups(&self) {
        let mut unused = Vec::new();
        for (id, group) in self.groups().iter_mut() {
            group.orphan = true;
            if group.present == 0 {
                unused.push(*id);
            }
        }
        unused.into_iter().for_each(|id| self.release_group(id));
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
        Ok(Group { places: places.collect(), local, came: BTreeSet::new(), present: 0, orphan: false })
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
        self.agent.engine.call(request)
    }

    /// The rank is gone. Those who wait for it are told why.
    pub(crate) fn leave(self, why: String) {
        self.agent.engine.lose_rank(self.group, self.rank, why);
        let unused = match self.agent.groups().get_mut(&self.group) {
            Some(group) => {
                group.present -= 1;
                group.orphan && group.present == 0
            }
            None => false,
        };
        if unused {
            self.agent.release_group(self.group);
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
    use std::net::Ipv4Addr;

    async fn agent_with_group() -> Agent {
        let config = EngineConfig { node: "h1".into(), ip: Ipv4Addr::LOCALHOST, udp_port: 0, tcp_port: 0 };
        let agent = Agent::new("h1", EngineHandle::start(config).unwrap());
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
            uplink_bytes_per_second: 0,
        };
        agent.make_group(spec).await.unwrap();
        agent
    }

    #[tokio::test]
    async fn a_group_without_its_controller_stays_until_its_last_rank_leaves() {
        let agent = agent_with_group().await;
        let (first, second) = (agent.attach(1, 0).unwrap(), agent.attach(1, 1).unwrap());
        agent.orphan_groups();
        first.leave("done".into());
        assert!(matches!(agent.attach(1, 0), Err(AttachError::Twice { .. })));
        second.leave("done".into());
        assert!(matches!(agent.attach(1, 0), Err(AttachError::NoGroup { .. })));
    }

    #[tokio::test]
    async fn a_group_that_no_rank_uses_goes_with_its_controller() {
        let agent = agent_with_group().await;
        agent.orphan_groups();
        assert!(matches!(agent.attach(1, 0), Err(AttachError::NoGroup { .. })));
    }
}
