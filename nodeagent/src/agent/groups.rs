//! The groups with ranks on this node: which ranks may attach, which have attached, and when a
//! group can be released.

use super::attachment::Abilities;
use super::quick::server::{QuickGroup, QuickServer, QuickSockets};
use crate::datagram_faults::DatagramFaults;
use crate::engine::{GroupSpec, MakeGroupError};
use crate::shared_segment::SharedSegment;
use cool_collective::{Layout, Rank};
use cool_proto::local::{self, Place};
use cool_shm::segment::RANKS_MAX;
use cool_types::rank_list;
use prometheus_client::metrics::counter::Counter;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tracing::warn;

/// A group from the point of view of its ranks.
#[derive(Debug)]
pub(super) struct RankGroup {
    places: Arc<[Place]>,
    epoch: u32,
    /// The ranks of this node.
    local: BTreeSet<u32>,
    /// The ranks that have attached. They are kept when they leave, because a rank must not attach
    /// twice.
    joined: BTreeSet<u32>,
    /// The number of ranks that have attached and not left.
    present: usize,
    /// Whether the ranks requested the group themselves, so that it is released when all of them
    /// have left.
    enlisted: bool,
    /// The user of the group; `None` until the user is known, so that no process may attach.
    owner: Option<u32>,
    /// Whether a proof of its trees has ended.
    is_proven: bool,
    sharing: SegmentSharing,
}

/// How an attached rank executes calls together with others.
#[derive(Debug)]
pub(super) struct CallSharing {
    /// The epoch of the group.
    pub(super) epoch: u32,
    pub(super) size: usize,
    pub(super) segment: Arc<SharedSegment>,
    /// For calls with ranks of other nodes: how the leaders of nodes reach each other, and, for a
    /// leader, its socket.
    pub(super) quick: Option<(local::Quick, Option<OwnedFd>)>,
}

/// How the ranks of a group execute calls themselves, if they do.
#[derive(Debug)]
enum SegmentSharing {
    /// They do not: they are on several nodes and cannot use datagrams, there is only one rank or
    /// too many, one rank is not able to, or the node has not enough memory.
    No,
    /// They may share a segment on this node, which is made when the first rank attaches.
    Possible,
    /// They share this segment, until a rank attaches that is not able to.
    In(Arc<SharedSegment>),
    /// They may use datagrams between nodes, but no rank of this node has attached yet. The result
    /// of opening the sockets is `None` before they are opened.
    Quick(QuickGroup, Option<io::Result<QuickSockets>>),
    /// They use datagrams, which this server supports, until a rank attaches that is not able to.
    Served(QuickServer),
}

/// The effect of an attaching rank on quick calls.
#[derive(Debug)]
pub(super) struct QuickArrival {
    /// How the rank takes part in quick calls; `None` if it does not.
    pub(super) sharing: Option<CallSharing>,
    /// Whether all ranks of this node are able to take part, if that is known now.
    pub(super) able: Option<bool>,
}

/// The reasons why a rank may not attach.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RankAttachError {
    #[error("node {node} knows no group {group}; it was released, or COOL_GROUP is wrong")]
    NoGroup { node: Arc<str>, group: u64 },
    #[error("rank {rank} of group {group} is not on node {node}, which has {}; is COOL_RANK wrong?", rank_list(.local.iter().copied()))]
    NotHere { node: Arc<str>, group: u64, rank: u32, local: BTreeSet<u32> },
    #[error("rank {rank} of group {group} has attached before; a rank attaches once")]
    Twice { group: u64, rank: u32 },
    #[error("group {group} is not one of user {user}, as whom this process runs")]
    OtherUser { group: u64, user: u32 },
}

/// The groups of this node.
#[derive(Debug)]
pub(super) struct GroupTable {
    node: Arc<str>,
    /// Counts the retransmitted messages of quick calls.
    answered: Counter,
    /// The datagrams of quick calls that do not arrive at this node.
    faults: Arc<DatagramFaults>,
    groups: Mutex<BTreeMap<u64, RankGroup>>,
    /// Notified when a group was removed.
    removed: Notify,
}

/// The consequence of a rank leaving its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaveOutcome {
    /// The group has been released before, so nothing must be reported.
    Released,
    /// The controller must be informed. `unused` is whether this node has no rank left in the
    /// group.
    Tell { unused: bool },
}

impl GroupTable {
    pub(super) fn new(node: Arc<str>, answered: Counter, faults: Arc<DatagramFaults>) -> GroupTable {
        GroupTable { node, answered, faults, groups: Mutex::default(), removed: Notify::new() }
    }

    /// Returns the record of datagrams that do not arrive at this node.
    pub(super) fn datagram_faults(&self) -> &DatagramFaults {
        &self.faults
    }

    /// Adds a group that the engine has made.
    pub(super) fn insert(&self, id: u64, group: RankGroup) {
        self.lock().insert(id, group);
    }

    pub(super) fn remove(&self, group: u64) {
        self.lock().remove(&group);
        self.removed.notify_waiters();
    }

    /// Waits until there is no group.
    pub(super) async fn ended(&self) {
        loop {
            let removed = self.removed.notified();
            if self.lock().is_empty() {
                return;
            }
            removed.await;
        }
    }

    /// Records that a rank of this node has attached. Returns the nodes and racks of all ranks of
    /// the group. If `user` is given, it must be the group's user.
    ///
    /// The check and the change use the table under one lock, because the group may be added at any
    /// time.
    pub(super) fn attach(
        &self,
        group: u64,
        rank: u32,
        user: Option<u32>,
    ) -> Result<Arc<[Place]>, RankAttachError> {
        let (mut groups, node) = (self.lock(), &self.node);
        let known = groups.get_mut(&group).ok_or(RankAttachError::NoGroup { node: node.clone(), group })?;
        user.map_or(Ok(()), |user| known.check_user(group, user))?;
        if !known.local.contains(&rank) {
            return Err(RankAttachError::NotHere {
                node: node.clone(),
                group,
                rank,
                local: known.local.clone(),
            });
        }
        if !known.joined.insert(rank) {
            return Err(RankAttachError::Twice { group, rank });
        }
        known.present += 1;
        Ok(known.places.clone())
    }

    /// Returns the segment in which an attached rank executes calls together with the others of its
    /// group, or `None` if the agent executes them. `can` states whether the rank is able to. If
    /// one rank of the group is not able to, none does.
    pub(super) fn segment(&self, group: u64, can: bool) -> Option<CallSharing> {
        let mut groups = self.lock();
        let known = groups.get_mut(&group)?;
        if !can {
            if let SegmentSharing::In(segment) = std::mem::replace(&mut known.sharing, SegmentSharing::No) {
                segment.segment().decline();
            }
        } else if matches!(known.sharing, SegmentSharing::Possible) {
            known.sharing = match SharedSegment::for_group(known.places.len()) {
                Ok(segment) => SegmentSharing::In(Arc::new(segment)),
                Err(e) => {
                    warn!(group, "ranks execute calls through their agent, without a segment: {e}");
                    SegmentSharing::No
                }
            };
        }
        match &known.sharing {
            SegmentSharing::In(segment) => Some(known.sharing_in(segment, None)),
            SegmentSharing::No
            | SegmentSharing::Possible
            | SegmentSharing::Quick(..)
            | SegmentSharing::Served(_) => None,
        }
    }

    /// Returns how an attached rank takes part in quick calls, or `None` if the ranks of its group
    /// do not use them. If the rank is not able to, no rank of the group takes part.
    pub(super) fn quick(
        &self,
        (group, rank): (u64, u32),
        abilities: Abilities,
        runtime: &Handle,
    ) -> Option<QuickArrival> {
        let mut groups = self.lock();
        let known = groups.get_mut(&group)?;
        if let SegmentSharing::Quick(quick, sockets) = &mut known.sharing {
            let records = (self.answered.clone(), Arc::clone(&self.faults));
            let sockets = sockets.take().unwrap_or_else(|| quick.open());
            let started = sockets.and_then(|sockets| QuickServer::start(quick, sockets, runtime, records));
            known.sharing = match started {
                Ok(server) => SegmentSharing::Served(server),
                Err(e) => {
                    warn!(
                        group,
                        "ranks execute calls through their agents, without sockets of their own: {e}"
                    );
                    known.sharing = SegmentSharing::No;
                    return Some(QuickArrival { sharing: None, able: Some(false) });
                }
            };
        }
        let SegmentSharing::Served(server) = &mut known.sharing else { return None };
        let admitted = server.admit(rank, abilities);
        let segment = Arc::clone(server.segment());
        let sharing = admitted.map(|quick| known.sharing_in(&segment, Some(quick)));
        let able = sharing.is_some();
        if !able {
            known.sharing = SegmentSharing::No;
        }
        let is_known = !able || known.joined.len() == known.local.len();
        Some(QuickArrival { sharing, able: is_known.then_some(able) })
    }

    /// Records the end of a proof of a group's trees. If the first one, which ends before any rank
    /// attaches, withdraws the tree over all nodes, the ranks execute no quick calls. Later ones
    /// change nothing, because some ranks may have attached, and all must execute the same calls.
    /// Returns the sockets for quick calls if they are not needed, which the caller should close
    /// where it may wait.
    pub(super) fn conclude_tree_proof(
        &self,
        group: u64,
        withdrawn: &BTreeSet<IpAddr>,
    ) -> Option<QuickSockets> {
        let mut groups = self.lock();
        let known = groups.get_mut(&group)?;
        let is_first = !std::mem::replace(&mut known.is_proven, true);
        let SegmentSharing::Quick(quick, sockets) = &mut known.sharing else { return None };
        if !is_first || !withdrawn.contains(&quick.tree().into()) {
            return None;
        }
        let sockets = sockets.take();
        known.sharing = SegmentSharing::No;
        sockets?.ok()
    }

    /// Records that an attached rank has left.
    pub(super) fn leave(&self, group: u64) -> LeaveOutcome {
        let mut groups = self.lock();
        let Some(known) = groups.get_mut(&group) else { return LeaveOutcome::Released };
        known.present -= 1;
        LeaveOutcome::Tell { unused: known.present == 0 && known.enlisted }
    }

    /// Returns the ranks that have attached to a group, including those that have left. Returns an
    /// empty list if all of them have left.
    pub(super) fn attached(&self, group: u64) -> Vec<u32> {
        let groups = self.lock();
        let known = groups.get(&group).filter(|group| group.present > 0);
        known.map(|group| group.joined.iter().copied().collect()).unwrap_or_default()
    }

    /// Returns the local ranks of a group that have not attached, and whether these are all of its
    /// local ranks. Returns `None` if the group is unknown.
    pub(super) fn absent(&self, group: u64) -> Option<(Vec<u32>, bool)> {
        let groups = self.lock();
        let known = groups.get(&group)?;
        Some((known.local.difference(&known.joined).copied().collect(), known.joined.is_empty()))
    }

    /// Returns whether a rank is a local rank of a group and has not attached.
    pub(super) fn is_absent(&self, group: u64, rank: u32) -> bool {
        self.lock()
            .get(&group)
            .is_some_and(|known| known.local.contains(&rank) && !known.joined.contains(&rank))
    }

    /// Marks a group as requested by its ranks. It is released when all of them have left.
    pub(super) fn release_when_unused(&self, group: u64) {
        if let Some(known) = self.lock().get_mut(&group) {
            known.enlisted = true;
        }
    }

    /// Checks that the processes of a user may be ranks of a group. They may not be of an unknown
    /// group, which could be added before the caller uses the result.
    pub(super) fn check_user(&self, group: u64, user: u32) -> Result<(), RankAttachError> {
        let no_group = || RankAttachError::NoGroup { node: self.node.clone(), group };
        self.lock().get(&group).ok_or_else(no_group)?.check_user(group, user)
    }

    pub(super) fn set_owner(&self, group: u64, user: u32) {
        if let Some(known) = self.lock().get_mut(&group) {
            known.owner = Some(user);
        }
    }

    // A panic elsewhere leaves the table consistent, because every change is one insertion or
    // removal.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, RankGroup>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RankGroup {
    fn check_user(&self, group: u64, user: u32) -> Result<(), RankAttachError> {
        if self.owner == Some(user) { Ok(()) } else { Err(RankAttachError::OtherUser { group, user }) }
    }

    fn sharing_in(
        &self,
        segment: &Arc<SharedSegment>,
        quick: Option<(local::Quick, Option<OwnedFd>)>,
    ) -> CallSharing {
        CallSharing { epoch: self.epoch, size: self.places.len(), segment: Arc::clone(segment), quick }
    }

    /// Returns whether sockets must be opened before ranks attach.
    pub(super) fn needs_sockets(&self) -> bool {
        matches!(self.sharing, SegmentSharing::Quick(..))
    }

    /// Opens the sockets that ranks need; see [`QuickGroup::open`].
    pub(super) fn open_sockets(&mut self) {
        if let SegmentSharing::Quick(quick, sockets) = &mut self.sharing {
            *sockets = Some(quick.open());
        }
    }

    pub(super) fn new(spec: &GroupSpec, node: &str) -> Result<RankGroup, MakeGroupError> {
        let invalid = |reason| cool_engine::GroupError::Invalid { group: spec.id, reason };
        let mut numbers = BTreeMap::new();
        let mut places = Vec::with_capacity(spec.members.len());
        for member in &spec.members {
            let next = numbers.len() as u32;
            let number = *numbers.entry(member.node.as_str()).or_insert(next);
            places.push(cool_collective::RankPlace { rack: member.rack, node: number });
        }
        let layout = Layout::new(&places).map_err(|e| invalid(e.to_string()))?;
        let local: BTreeSet<u32> =
            (0u32..).zip(&spec.members).filter(|(_, m)| m.node == node).map(|(rank, _)| rank).collect();
        let places = (0u32..).zip(&spec.members).map(|(rank, member)| Place {
            node: layout.node_of(Rank(rank)) as u32,
            rack: member.rack,
            name: member.node.clone(),
        });
        let together = local.len() == spec.members.len() && (2..=RANKS_MAX).contains(&local.len());
        Ok(RankGroup {
            places: places.collect(),
            epoch: spec.epoch,
            local,
            sharing: match QuickGroup::from_spec(spec, node) {
                Some(quick) => SegmentSharing::Quick(quick, None),
                None if together => SegmentSharing::Possible,
                None => SegmentSharing::No,
            },
            joined: BTreeSet::new(),
            present: 0,
            enlisted: false,
            owner: None,
            is_proven: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::MemberSpec;
    use cool_engine::{TreeScope, TreeSpec};
    use cool_transport::tagged::{GroupKey, Protection};
    use std::net::Ipv4Addr;

    const TREE: Ipv4Addr = Ipv4Addr::new(239, 192, 0, 1);

    fn quick_group() -> RankGroup {
        let member = |rank: u32| MemberSpec {
            rank,
            node: format!("h{rank}"),
            incarnation: 0,
            rack: 0,
            ip: Ipv4Addr::LOCALHOST.into(),
            udp_port: 1,
            tcp_port: 2,
            key: None,
        };
        let tree = TreeSpec { scope: TreeScope::All, address: TREE.into(), port: 5, bytes_per_second: 0 };
        let spec = GroupSpec {
            id: 1,
            epoch: 1,
            members: vec![member(0), member(1)],
            trees: vec![tree],
            keyed: Some(GroupKey { key: [9; 32].into(), protection: Protection::Tagged }),
            quick: true,
            ..GroupSpec::default()
        };
        RankGroup::new(&spec, "h0").unwrap()
    }

    #[test]
    fn only_the_first_proof_decides_about_quick_calls() {
        let (proven, failed) = (BTreeSet::new(), BTreeSet::from([TREE.into()]));
        for (first, later, quick) in [(&proven, &failed, true), (&failed, &proven, false)] {
            let groups = GroupTable::new("h0".into(), Counter::default(), Arc::default());
            groups.insert(1, quick_group());
            for withdrawn in [first, later] {
                groups.conclude_tree_proof(1, withdrawn);
                assert_eq!(groups.lock()[&1].needs_sockets(), quick, "{first:?}, then {later:?}");
            }
        }
    }
}
