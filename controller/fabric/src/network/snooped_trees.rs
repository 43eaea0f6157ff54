//! Trees on networks without OpenFlow switches. Each is only a multicast address, which the nodes
//! join: switches with IGMP or MLD snooping (RFC 4541) and multicast routers forward its packets to
//! the nodes that have joined. Nothing shows that they do, so the nodes must prove it.

use super::Network;
use super::tree_sharing::TreeSharing;
use crate::api::{GroupRequest, MulticastModel, TreeGrant, TreeScope};
use crate::intent::addresses::IpVersion;
use crate::trees::scopes;
use cool_types::is_source_specific;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tracing::warn;

/// The trees of all groups on networks without OpenFlow switches.
#[derive(Debug, Default)]
pub(crate) struct SnoopedTrees {
    /// Which groups share which sets of trees.
    sharing: TreeSharing,
    sets: BTreeMap<u64, Vec<SnoopedTree>>,
}

#[derive(Debug)]
struct SnoopedTree {
    scope: TreeScope,
    number: u32,
    address: IpAddr,
}

impl SnoopedTrees {
    /// Returns whether a group with this id exists.
    pub(super) fn has(&self, id: u64) -> bool {
        self.sharing.set_of(id).is_some() || self.sets.contains_key(&id)
    }

    /// Removes a group. Returns the numbers of the trees that no other group uses, or `None` if
    /// there is no such group.
    pub(super) fn release(&mut self, id: u64) -> Option<Vec<u32>> {
        self.sharing.set_of(id)?;
        let trees = self.sharing.leave(id).and_then(|set| self.sets.remove(&set)).unwrap_or_default();
        Some(trees.into_iter().map(|tree| tree.number).collect())
    }

    /// Returns the number of trees in all sets.
    fn in_use(&self) -> usize {
        self.sets.values().map(Vec::len).sum()
    }
}

impl Network {
    /// Makes the trees of a group of which the racks of all members are known. Groups of the same
    /// members share trees.
    pub(super) fn create_snooped(
        &mut self,
        request: &GroupRequest,
        racks: &BTreeMap<String, u32>,
    ) -> Vec<TreeGrant> {
        let id = request.id;
        match self.snooped.sharing.of_members(&request.members) {
            Some(set) => self.snooped.sharing.join(id, set),
            None => {
                let trees = self.new_snooped_trees(request, racks);
                self.snooped.sharing.begin(id, &request.members);
                self.snooped.sets.insert(id, trees);
            }
        }
        self.snooped_grants(id).unwrap_or_default()
    }

    fn new_snooped_trees(
        &mut self,
        request: &GroupRequest,
        racks: &BTreeMap<String, u32>,
    ) -> Vec<SnoopedTree> {
        let mut trees = Vec::new();
        let first = request.members.first().and_then(|name| self.nodes.get(name));
        let Some(version) = first.map(|node| IpVersion::from_ip(node.ip)) else { return trees };
        let (in_use, max) = (self.snooped.in_use(), self.config.max_snooped_trees as usize);
        for (scope, _) in scopes(request, racks) {
            // Trees over all nodes take precedence, because the others only speed up repair and
            // operations in three steps.
            let max = if scope == TreeScope::All { max } else { max / 2 };
            if in_use + trees.len() >= max {
                warn!(
                    group = request.id,
                    ?scope,
                    "tree left out: --max-trees multicast addresses are in use"
                );
                continue;
            }
            let Some(number) = self.multicast.allocate() else { break };
            let address = match self.config.multicast {
                MulticastModel::Asm => version.address(number),
                MulticastModel::Ssm => version.source_specific_address(number),
            };
            trees.push(SnoopedTree { scope, number, address });
        }
        trees
    }

    /// Returns the trees of a group, or `None` if there is no such group without OpenFlow switches.
    pub(super) fn snooped_grants(&self, id: u64) -> Option<Vec<TreeGrant>> {
        let trees = self.snooped.sets.get(&self.snooped.sharing.set_of(id)?)?;
        let grant = |tree: &SnoopedTree| TreeGrant {
            scope: tree.scope,
            address: tree.address,
            port: self.config.multicast_port,
            bytes_per_second: self.config.host_bytes_per_second.unwrap_or(0),
            links: Vec::new(),
            nodes: Vec::new(),
            needs_proof: !is_source_specific(tree.address),
        };
        Some(trees.iter().map(grant).collect())
    }
}
