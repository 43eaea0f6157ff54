//! What an earlier life of the controller left behind: trees that switches hold, and groups that agents
//! still use. Both find each other here: trees stay as they are until their group is known and the
//! network around it is, and go if nobody has asked for them after a while.

use super::{Group, Network};
use crate::fabric::api::{GroupRequest, TreeScope};
use crate::fabric::intent;
use crate::fabric::trees::{GroupTree, TieBreak, scopes};
use cool_collective::Layout;
use cool_machine::Time;
use cool_topology::{DatapathId, Link, Port};
use core::net::Ipv4Addr;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tracing::info;

/// Trees of an earlier life.
#[derive(Debug, Default)]
pub(crate) struct Former {
    /// By number: the ports at each switch that has a part of it.
    trees: BTreeMap<u32, BTreeMap<DatapathId, BTreeSet<u32>>>,
    /// When those that nobody has asked for go; counted from the first thing that happens.
    until: Option<Time>,
    /// Groups that are not followed yet.
    adopted: BTreeSet<u64>,
}

/// A group that agents still use.
#[derive(Debug)]
pub(crate) struct Adopted {
    request: GroupRequest,
    trees: Vec<(TreeScope, u32)>,
}

impl Network {
    /// A switch has come that holds these trees; returns those that it keeps for now.
    pub(crate) fn keep_former(
        &mut self,
        now: Time,
        switch: DatapathId,
        trees: BTreeMap<u32, BTreeSet<u32>>,
    ) -> Arc<BTreeSet<u32>> {
        let until = *self.former.until.get_or_insert(now + self.config.takeover);
        let mut kept = BTreeSet::new();
        for (number, ports) in trees {
            let adopted = self.owners.get(&number).is_some_and(|id| self.former.adopted.contains(id));
            if adopted || (now < until && !self.owners.contains_key(&number)) {
                self.former.trees.entry(number).or_default().insert(switch, ports);
                self.numbers.reserve(number);
                kept.insert(number);
            }
        }
        Arc::new(kept)
    }

    /// A group that agents still use: its trees stay, and follow the network as soon as that is known.
    pub(crate) fn adopt(&mut self, request: GroupRequest, trees: &[(TreeScope, Ipv4Addr)]) {
        let id = request.id;
        if self.groups.contains_key(&id) {
            return;
        }
        let number = |(scope, address): &(TreeScope, Ipv4Addr)| Some((*scope, intent::number(*address)?));
        let mut trees: Vec<(TreeScope, u32)> = trees.iter().filter_map(number).collect();
        trees.retain(|(_, number)| !self.owners.contains_key(number));
        for (_, number) in &trees {
            self.numbers.reserve(*number);
            self.owners.insert(*number, id);
        }
        info!(group = id, trees = trees.len(), "group taken over");
        let adopted = Some(Adopted { request, trees });
        self.groups.insert(id, Group { adopted, ..Group::default() });
        self.former.adopted.insert(id);
    }

    /// An adopted group is released before it was followed.
    pub(crate) fn disown(&mut self, adopted: &Adopted) {
        self.former.adopted.remove(&adopted.request.id);
        for (_, number) in &adopted.trees {
            self.owners.remove(number);
            self.drop_former(*number);
        }
    }

    /// Follows adopted groups whose surroundings are known, and gives up what nobody has asked for; returns
    /// when to look again.
    pub(crate) fn take_over(&mut self, now: Time) -> Option<Time> {
        let until = self.former.until?;
        let over = until <= now;
        let settled = self.settling.is_empty();
        for id in self.former.adopted.clone() {
            let adopted = self.groups.get(&id).and_then(|group| group.adopted.as_ref());
            let graph = self.discovery.graph();
            let located = adopted.is_some_and(|a| a.request.members.iter().all(|m| graph.host(m).is_some()));
            if over || (settled && located && self.changes.links.is_empty() && self.changes.nodes.is_empty())
            {
                self.follow_adopted(id);
            }
        }
        if over {
            let unasked: Vec<u32> =
                self.former.trees.keys().copied().filter(|n| !self.owners.contains_key(n)).collect();
            for number in unasked {
                self.drop_former(number);
            }
        }
        (!over).then_some(until)
    }

    fn follow_adopted(&mut self, id: u64) {
        self.former.adopted.remove(&id);
        let Some(Adopted { request, trees }) = self.groups.get_mut(&id).and_then(|g| g.adopted.take()) else {
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
                self.owners.remove(&number);
                self.drop_former(number);
                continue;
            };
            let held = self.former.trees.get(&number).map(|ports| self.links_of(ports)).unwrap_or_default();
            let (graph, tie_break) = (self.discovery.graph(), TieBreak { group: id, stripe });
            followed.push(GroupTree::adopt(&self.index, graph, scope, number, members, tie_break, held));
        }
        let numbers: Vec<u32> = followed.iter().map(|tree| tree.number).collect();
        self.grow(id, followed);
        for number in numbers {
            self.release_former(number);
        }
    }

    /// The links between switches of which both ends are such ports.
    fn links_of(&self, ports: &BTreeMap<DatapathId, BTreeSet<u32>>) -> BTreeSet<Link> {
        let held = |port: Port| ports.get(&port.switch).is_some_and(|ports| ports.contains(&port.number));
        let all = ports.iter().flat_map(|(s, ports)| ports.iter().map(|n| Port { switch: *s, number: *n }));
        let linked = all.filter_map(|port| Some((port, self.discovery.graph().peer(port)?)));
        linked.filter(|(_, peer)| held(*peer)).map(|(port, peer)| Link::new(port, peer)).collect()
    }

    /// Nobody uses a tree of an earlier life: it goes, and its number is free.
    fn drop_former(&mut self, number: u32) {
        self.release_former(number);
        self.numbers.give_back(number);
    }

    /// What switches hold of a tree is from now on what is wanted of it.
    fn release_former(&mut self, number: u32) {
        for switch in self.former.trees.remove(&number).unwrap_or_default().into_keys() {
            if let Some(state) = self.switches.get_mut(&switch) {
                Arc::make_mut(&mut state.former).remove(&number);
                self.news.insert(switch);
            }
        }
    }
}
