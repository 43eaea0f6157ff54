//! All groups in use: forms them, announces them to their members, and releases them.
//!
//! The [`Fabric`] installs their trees. [`crate::jobs`] and [`crate::groups::membership_driver`]
//! decide which ranks form a group.

use super::group_keys::{self, GroupKeys};
use super::group_parameters::FIRST_EPOCH;
use super::group_parameters::{announcement, decide_parameters, tree_message};
use super::member_place::{MemberPlace, by_node};
use super::tree_proofs::TreeProofs;
use crate::agents::Session;
use crate::costs::prober::Prober;
use cool_fabric::Fabric;
use cool_fabric::{FabricError, GroupRequest};
use cool_proto::control::{Group, ReleaseGroup, TreesProbed, controller_message::Body};
use cool_proto::features;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;
use tracing::warn;

/// The groups in use.
pub struct GroupRegistry {
    /// The last id that was used. Ids are never reused.
    last: AtomicU64,
    prober: Arc<Prober>,
    keys: GroupKeys,
    groups: Mutex<BTreeMap<u64, Group>>,
    tree_proofs: TreeProofs,
    /// Ids of all groups that are being formed, in use, or being released.
    busy: watch::Sender<BTreeSet<u64>>,
}

impl GroupRegistry {
    /// Returns an empty registry. The first group gets the id after `last`. `prober` provides the
    /// measured costs of the network.
    pub fn new(prober: Arc<Prober>, keys: GroupKeys, last: u64) -> GroupRegistry {
        GroupRegistry {
            last: AtomicU64::new(last),
            prober,
            keys,
            groups: Mutex::default(),
            tree_proofs: TreeProofs::new(last),
            busy: watch::Sender::default(),
        }
    }

    /// Returns the ids of all groups that are being formed, in use, or being released. While there
    /// is one, the network must not be probed.
    pub fn busy(&self) -> watch::Receiver<BTreeSet<u64>> {
        self.busy.subscribe()
    }

    /// Returns the id for a new group.
    pub fn next_id(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Adds a group that an earlier controller formed, as described to its members. Returns false
    /// if it is already known.
    pub fn adopt(&self, group: Group) -> bool {
        self.last.fetch_max(group.id, Ordering::Relaxed);
        match self.groups.lock().entry(group.id) {
            Entry::Occupied(_) => false,
            Entry::Vacant(vacant) => {
                self.busy.send_if_modified(|groups| groups.insert(group.id));
                self.prober.stop();
                vacant.insert(group);
                true
            }
        }
    }

    /// Returns whether a group is in use.
    pub fn has(&self, id: u64) -> bool {
        self.groups.lock().contains_key(&id)
    }

    /// Returns the size of a group and the rack of one of its ranks, if that rank is on this node.
    pub fn rank_on(&self, id: u64, rank: u32, node: &str) -> Option<(u32, u32)> {
        let groups = self.groups.lock();
        let members = &groups.get(&id)?.members;
        let member = members.get(rank as usize).filter(|member| member.node == node)?;
        Some((members.len() as u32, member.rack))
    }

    /// Returns all groups with ranks on a node, with their sizes and these ranks.
    pub fn on_node(&self, node: &str) -> Vec<((u64, u32), Vec<u32>)> {
        let ranks_on_node = |group: &Group| {
            let members = group.members.iter().filter(|member| member.node == node);
            ((group.id, group.members.len() as u32), members.map(|member| member.rank).collect())
        };
        let groups = self.groups.lock();
        groups.values().map(ranks_on_node).filter(|(_, ranks): &(_, Vec<u32>)| !ranks.is_empty()).collect()
    }

    /// Returns whether a node has ranks in a group.
    pub(crate) fn has_member(&self, group: u64, node: &str) -> bool {
        let groups = self.groups.lock();
        groups.get(&group).is_some_and(|group| group.members.iter().any(|member| member.node == node))
    }

    /// Removes a group that was not announced.
    pub fn remove(&self, id: u64) {
        self.groups.lock().remove(&id);
        self.busy.send_if_modified(|groups| groups.remove(&id));
    }

    /// Installs the trees of a group and announces it to its members, which report when they are
    /// ready.
    ///
    /// # Errors
    /// Returns a message if the group cannot be formed or the session of a member has ended.
    pub async fn form(
        &self,
        network: &dyn Fabric,
        id: u64,
        job: u64,
        places: &[MemberPlace],
    ) -> Result<Group, String> {
        let key = self.keys.key_for((id, FIRST_EPOCH), places).map_err(|error| error.to_string())?;
        self.busy.send_if_modified(|groups| groups.insert(id));
        self.prober.stop();
        let members = places.iter().map(|p| p.session.agent.name.clone()).collect();
        let can_prove = self.tree_proofs.can_prove(places);
        let can_join_sources = group_keys::all_have(places, features::TREE_SOURCES);
        let request = GroupRequest { id, members, can_prove, can_join_sources };
        let trees = match network.create_group(request).await {
            Ok(trees) => trees,
            Err(
                why @ (FabricError::NotLocated { .. }
                | FabricError::Partitioned { .. }
                | FabricError::Full { .. }
                | FabricError::Unacknowledged { .. }
                | FabricError::Refused { .. }),
            ) => {
                warn!(group = id, %why, "no multicast trees: the group uses chains");
                Vec::new()
            }
            Err(e) => return Err(e.to_string()),
        };
        self.tree_proofs.prepare(id, places, &trees);
        let measured = self.prober.measurements();
        let group = decide_parameters((id, job), places, &network.topology(), &measured, (trees, key));
        self.groups.lock().insert(id, group.clone());
        let announcement = announcement(&group, places);
        for (session, _) in by_node(places).values() {
            session.send(announcement.clone()).map_err(|e| e.to_string())?;
        }
        Ok(group)
    }

    /// Handles a node that has made a group. Returns the sessions of the nodes that are ready now.
    /// If the trees of the group must be proven, all its nodes become ready at once, mostly when
    /// [`on_trees_probed`](GroupRegistry::on_trees_probed) returns them.
    pub fn on_group_made(&self, id: u64, session: &Arc<Session>) -> Vec<Arc<Session>> {
        self.tree_proofs.on_group_made(id, session)
    }

    /// Handles a node's report on the trees of a group. Returns the sessions of all nodes of the
    /// group if they are ready now.
    pub fn on_trees_probed(&self, session: &Session, report: &TreesProbed) -> Vec<Arc<Session>> {
        self.tree_proofs.on_report(session, report)
    }

    /// Handles a node that receives nothing from a tree of a group.
    pub fn on_tree_silent(&self, session: &Session, group: u64) {
        self.tree_proofs.on_silence(session, group);
    }

    /// Continues the proofs of an adopted group's trees, some of which its nodes have withdrawn.
    pub fn resume_proofs(&self, group: &Group, places: &[MemberPlace], withdrawn: BTreeSet<IpAddr>) {
        let trees = group.trees.iter().filter_map(|tree| tree.address.parse().ok()).collect();
        self.tree_proofs.adopt(group.id, places, trees, withdrawn);
    }

    /// Lets groups in use prove their trees again when that is due. Never returns.
    pub async fn repeat_proofs(self: Arc<GroupRegistry>) {
        self.tree_proofs.run().await;
    }

    /// Returns the description of a group in use, without withdrawn trees.
    pub fn description(&self, id: u64) -> Option<Group> {
        let mut group = self.groups.lock().get(&id).cloned()?;
        group.trees.retain(|tree| !self.tree_proofs.is_withdrawn(id, &tree.address));
        Some(group)
    }

    /// Returns the nodes that have lately not received multicasts, each with the senders as text.
    pub fn unreached_by_multicast(&self) -> Vec<(String, String)> {
        self.tree_proofs.unreached()
    }

    /// Lets groups try multicast again on paths on which it has lately failed, because the network
    /// has changed.
    pub fn retry_multicast(&self) {
        self.tree_proofs.on_network_change();
    }

    /// Releases a group everywhere, even if it could not be formed completely.
    pub async fn release(&self, network: &dyn Fabric, id: u64, places: &[MemberPlace]) {
        self.groups.lock().remove(&id);
        self.tree_proofs.forget(id);
        for (session, _) in by_node(places).values() {
            // If the session has ended, there is no group to release.
            let _ = session.send(Body::Release(ReleaseGroup { group: id }));
        }
        match network.release_group(id).await {
            // The group was not created, or has no trees.
            Ok(()) | Err(FabricError::NoSuchGroup { .. }) => {}
            Err(e) => warn!(group = id, %e, "cannot release the group's trees"),
        }
        self.busy.send_if_modified(|groups| groups.remove(&id));
    }

    /// Returns all groups by id, with their current trees and without their keys.
    pub async fn list(&self, network: &dyn Fabric) -> Vec<Group> {
        let mut groups: Vec<Group> = self.groups.lock().values().cloned().map(Group::without_keys).collect();
        let topology = network.topology();
        for group in &mut groups {
            // A group that is being released has no trees any more.
            let trees = network.trees(group.id).await.unwrap_or_default();
            group.trees = trees.iter().map(|tree| tree_message(tree, &topology)).collect();
            group.trees.retain(|tree| !self.tree_proofs.is_withdrawn(group.id, &tree.address));
        }
        groups
    }
}
