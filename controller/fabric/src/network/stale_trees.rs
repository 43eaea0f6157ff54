//! Graceful restart (RFC 4724 has the same for BGP): what an earlier controller left behind is stale, but retained. Trees
//! that switches hold and groups that agents still use find each other here: trees stay as they are until their group
//! is known and the network around it is, and go if nobody has asked for them after a while.

use super::Network;
use super::multicast_groups::GroupTrees;
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
    /// By number: the ports at each switch that has a part of it.
    trees: BTreeMap<u32, BTreeMap<DatapathId, BTreeSet<u32>>>,
    /// When those that nobody has asked for go; counted from the first thing that happens.
    until: Option<Time>,
    /// Groups that are not followed yet.
    adopted: BTreeSet<u64>,
}

/// A group that agents still use.
#[derive(Debug)]
pub(crate) struct AdoptedGroup {
    request: GroupRequest,
    trees: Vec<(TreeScope, u32)>,
}

impl StaleTrees {
    /// When what nobody has asked for goes; `None` before the first switch.
    pub(crate) fn until(&self) -> Option<Time> {
        self.until
    }
}

impl Network {
    /// A switch has come that holds these trees; returns those that it retains.
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

    /// A group that agents still use: its trees stay, and follow the network as soon as that is known.
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
            info!(group = id, set, "group taken over, with trees of another");
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

    /// An adopted group is released before it was followed.
    pub(crate) fn disown(&mut self, adopted: &AdoptedGroup) {
        self.stale_trees.adopted.remove(&adopted.request.id);
        for (_, number) in &adopted.trees {
            self.multicast.disown(*number);
            self.drop_stale(*number);
        }
    }

    /// Follows adopted groups whose surroundings are known, and gives up what nobody has asked for; returns
    /// when to look again.
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
            followed.push(GroupTree::adopt(&self.index, graph, scope, number, members, tie_break, held));
        }
        for number in self.grow(id, followed) {
            self.release_stale(number);
        }
    }

    /// The links between switches of which both ends are such ports.
    fn links_of(&self, ports: &BTreeMap<DatapathId, BTreeSet<u32>>) -> BTreeSet<Link> {
        let held = |port: Port| ports.get(&port.switch).is_some_and(|ports| ports.contains(&port.number));
        let all = ports.iter().flat_map(|(s, ports)| ports.iter().map(|n| Port { switch: *s, number: *n }));
        let linked = all.filter_map(|port| Some((port, self.discovery.graph().peer(port)?)));
        linked.filter(|(_, peer)| held(*peer)).map(|(port, peer)| Link::new(port, peer)).collect()
    }

    /// Nobody uses a stale tree: it goes, and its number is free.
    fn drop_stale(&mut self, number: u32) {
        self.release_stale(number);
        self.multicast.free(number);
    }

    /// What switches hold of a tree is from now on what is desired of it.
    fn release_stale(&mut self, number: u32) {
        for switch in self.stale_trees.trees.remove(&number).unwrap_or_default().into_keys() {
            if self.switches.release_tree(switch, number) {
                self.intent.touch(switch);
            }
        }
    }
}
