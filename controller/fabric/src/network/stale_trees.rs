//! Graceful restart (as RFC 4724 for BGP): entries of an earlier controller are stale, but
//! retained. This file matches the trees that switches hold with the groups that agents still use.
//! A tree stays unchanged until its group and the network around it are known. It is removed if no
//! agent claims it in time.

use super::Network;
use super::multicast_groups::{AdoptedGroup, GroupTrees};
use crate::api::{GroupRequest, TreeScope};
use crate::intent::addresses;
use crate::trees::{GroupTree, TieBreak, scopes};
use cool_collective::Layout;
use cool_machine::Time;
use cool_topology::{DatapathId, Link, Port};
use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tracing::info;

/// Trees of an earlier controller.
#[derive(Debug, Default)]
pub(crate) struct StaleTrees {
    /// Ports at each switch, by the tree's number.
    trees: BTreeMap<u32, BTreeMap<DatapathId, BTreeSet<u32>>>,
    /// When unclaimed trees are removed, counted from the first switch.
    until: Option<Time>,
    /// Adopted groups with trees that do not follow the network yet.
    adopted: BTreeSet<u64>,
}

impl StaleTrees {
    /// Returns when unclaimed trees are removed; `None` before the first switch.
    pub(crate) fn until(&self) -> Option<Time> {
        self.until
    }
}

impl Network {
    /// Records the trees that a new switch holds. Returns those that it must retain.
    pub(crate) fn retain_stale(
        &mut self,
        now: Time,
        switch: DatapathId,
        trees: BTreeMap<u32, BTreeSet<u32>>,
    ) -> Arc<BTreeSet<u32>> {
        let until = *self.stale_trees.until.get_or_insert(now + self.config.stale_time);
        let mut kept = BTreeSet::new();
        for (number, ports) in trees {
            let adopted =
                self.multicast.owner(number).is_some_and(|id| self.stale_trees.adopted.contains(&id));
            if adopted || (now < until && self.multicast.owner(number).is_none()) {
                self.stale_trees.trees.entry(number).or_default().insert(switch, ports);
                self.multicast.reserve(number, None);
                kept.insert(number);
            }
        }
        Arc::new(kept)
    }

    /// Adopts a group that agents still use. Its trees follow the network as soon as that is known.
    pub(crate) fn adopt(&mut self, request: GroupRequest, trees: &[(TreeScope, IpAddr)]) {
        let id = request.id;
        if self.sharing.set_of(id).is_some() {
            return;
        }
        let number = |(scope, address): &(TreeScope, IpAddr)| Some((*scope, addresses::number(*address)?));
        let mut trees: Vec<(TreeScope, u32)> = trees.iter().filter_map(number).collect();
        let shared = self.sharing.of_members(&request.members);
        let shares = |set: &u64| trees.iter().all(|(_, number)| self.multicast.owner(*number) == Some(*set));
        if let Some(set) = shared.filter(|set| !trees.is_empty() && shares(set)) {
            info!(group = id, set, "group taken over; it shares the trees of another");
            return self.sharing.join(id, set);
        }
        trees.retain(|(_, number)| self.multicast.owner(*number).is_none());
        for (_, number) in &trees {
            self.multicast.reserve(*number, Some(id));
        }
        info!(group = id, trees = trees.len(), "group taken over");
        self.sharing.begin(id, &request.members);
        let adopted = Some(AdoptedGroup { request, trees });
        self.multicast.insert(id, GroupTrees { adopted, ..GroupTrees::default() }, None);
        self.stale_trees.adopted.insert(id);
    }

    /// Releases an adopted group before its trees follow the network.
    pub(crate) fn disown(&mut self, adopted: &AdoptedGroup) {
        self.stale_trees.adopted.remove(&adopted.request.id);
        for (_, number) in &adopted.trees {
            self.multicast.disown(*number);
            self.drop_stale(*number);
        }
    }

    /// Lets adopted groups follow the network once their neighborhood is known, and removes
    /// unclaimed trees. Returns when to call it again.
    pub(crate) fn follow_stale(&mut self, now: Time) -> Option<Time> {
        let until = self.stale_trees.until?;
        let over = until <= now;
        let settled = self.switches.is_settled();
        for id in self.stale_trees.adopted.clone() {
            let adopted = self.multicast.group(id).and_then(|group| group.adopted.as_ref());
            let graph = self.discovery.graph();
            let located = adopted.is_some_and(|a| a.request.members.iter().all(|m| graph.host(m).is_some()));
            if over || (settled && located && self.changes.links.is_empty() && self.changes.nodes.is_empty())
            {
                self.follow_adopted(id);
            }
        }
        if over {
            let unasked: Vec<u32> = self
                .stale_trees
                .trees
                .keys()
                .copied()
                .filter(|n| self.multicast.owner(*n).is_none())
                .collect();
            for number in unasked {
                self.drop_stale(number);
            }
        }
        (!over).then_some(until)
    }

    fn follow_adopted(&mut self, id: u64) {
        self.stale_trees.adopted.remove(&id);
        let Some(AdoptedGroup { request, trees }) = self.multicast.take_adopted(id) else {
            return;
        };
        let graph = self.discovery.graph();
        let rack = |name: &String| Some((name.clone(), self.racks.number(graph.host(name)?.switch)?));
        let racks: BTreeMap<String, u32> = request.members.iter().filter_map(rack).collect();
        let members: BTreeMap<TreeScope, Vec<String>> = scopes(&request, &racks).into_iter().collect();
        let mut followed: Vec<GroupTree> = Vec::new();
        for (scope, number) in trees {
            let stripe = followed.iter().filter(|tree| tree.scope == scope).count();
            let most = if scope == TreeScope::All { Layout::MOST_STRIPES as usize } else { 1 };
            let Some(members) = members.get(&scope).filter(|_| stripe < most).cloned() else {
                self.multicast.disown(number);
                self.drop_stale(number);
                continue;
            };
            let held =
                self.stale_trees.trees.get(&number).map(|ports| self.links_of(ports)).unwrap_or_default();
            let (graph, tie_break) = (self.discovery.graph(), TieBreak { group: id, stripe });
            followed.push(GroupTree::adopt(&self.adjacency, graph, scope, number, members, tie_break, held));
        }
        for number in self.add_trees(id, followed) {
            self.release_stale(number);
        }
    }

    /// Returns the links between switches of which both ends are among these ports.
    fn links_of(&self, ports: &BTreeMap<DatapathId, BTreeSet<u32>>) -> BTreeSet<Link> {
        let held = |port: Port| ports.get(&port.switch).is_some_and(|ports| ports.contains(&port.number));
        let all = ports.iter().flat_map(|(s, ports)| ports.iter().map(|n| Port { switch: *s, number: *n }));
        let linked = all.filter_map(|port| Some((port, self.discovery.graph().peer(port)?)));
        linked.filter(|(_, peer)| held(*peer)).map(|(port, peer)| Link::new(port, peer)).collect()
    }

    /// Removes an unclaimed tree, and releases its number.
    fn drop_stale(&mut self, number: u32) {
        self.release_stale(number);
        self.multicast.free(number);
    }

    /// Stops retaining a stale tree: switches must hold exactly its desired entries from now on.
    fn release_stale(&mut self, number: u32) {
        for switch in self.stale_trees.trees.remove(&number).unwrap_or_default().into_keys() {
            if self.switches.release_tree(switch, number) {
                self.intent.touch(switch);
            }
        }
    }
}
