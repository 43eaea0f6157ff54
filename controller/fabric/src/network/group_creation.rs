//! Makes groups: finds the trees that a group should have and for which the switches have room.

use super::Network;
use super::acknowledgments::AckWaiter;
use super::multicast_groups::GroupTrees;
use super::requests::answer;
use super::tree_grants;
use crate::api::{FabricError, GroupRequest, TreeGrant, TreeScope};
use crate::intent::tables::GROUPS;
use crate::intent::tables::RuleCounts;
use crate::request::RequestReply;
use crate::switch::capacity::TableExhausted;
use crate::trees::{GroupTree, TieBreak, scopes};
use cool_collective::Layout;
use cool_machine::Time;
use cool_topology::switch_adjacency::UNREACHABLE;
use cool_topology::{DatapathId, Link, Port, Tree};
use std::collections::{BTreeMap, BTreeSet};
use tracing::warn;

/// Maximum number of shapes of a tree that are tried until one has room in all switches.
const WAYS: usize = 8;

/// How a group can use multicast, with the rack of each member.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MulticastKind {
    /// Over trees that are installed in OpenFlow switches.
    Installed(BTreeMap<String, u32>),
    /// Over addresses that its nodes join.
    Snooped(BTreeMap<String, u32>),
    /// It uses none.
    None,
}

/// A tree that a group should have and for which the switches have room.
pub(super) struct PlannedTree {
    scope: TreeScope,
    members: Vec<String>,
    tie_break: TieBreak,
    pub(super) tree: Tree,
}

impl Network {
    /// Makes a group, either with the trees of another group of the same members, or with its own.
    pub(super) fn create_group(
        &mut self,
        now: Time,
        request: &GroupRequest,
        racks: &BTreeMap<String, u32>,
        reply: RequestReply<Vec<TreeGrant>>,
    ) {
        let id = request.id;
        let shared = self.sharing.of_members(&request.members);
        let shared = shared.and_then(|set| Some((set, self.multicast.group(set)?)));
        if let Some((set, group)) = shared.filter(|(_, group)| group.is_settled()) {
            let trees = tree_grants::grants(self, group);
            self.sharing.join(id, set);
            return self.answer_created(id, reply, trees);
        }
        let (trees, without) = match self.trees_with_room(request, racks) {
            Ok(made) => made,
            Err(error) => return answer(reply, Err(error)),
        };
        self.sharing.begin(id, &request.members);
        // A group on one node needs no tree, so no switch has to acknowledge anything.
        if trees.is_empty() {
            self.multicast.insert(id, GroupTrees::default(), None);
            return self.answer_created(id, reply, Vec::new());
        }
        let until = now + self.config.ack_timeout;
        let group = GroupTrees { without, caller: Some(reply), ..GroupTrees::default() };
        self.multicast.insert(id, group, Some(until));
        self.add_trees(id, trees);
    }

    pub(super) fn answer_created(
        &mut self,
        id: u64,
        reply: RequestReply<Vec<TreeGrant>>,
        trees: Vec<TreeGrant>,
    ) {
        // A caller that no longer waits would never release the group.
        if reply.send(Ok(trees)).is_err() {
            self.release(id);
        }
    }

    /// Returns how the group can use multicast, if it is a new one. Its nodes must be located and
    /// reach each other.
    pub(super) fn locate(&self, request: &GroupRequest) -> Result<MulticastKind, FabricError> {
        let id = request.id;
        // A set of trees may outlive the group from which it has its number.
        if self.sharing.set_of(id).is_some() || self.multicast.group(id).is_some() || self.snooped.has(id) {
            return Err(FabricError::GroupExists { id });
        }
        let Some(first) = request.members.first() else { return Err(FabricError::EmptyGroup { id }) };
        self.check_ip_versions(&request.members)?;
        if let Some(kind) = self.kind_without_switches(request) {
            return Ok(kind);
        }
        let graph = self.discovery.graph();
        let mut places: BTreeMap<&String, (Port, u32)> = BTreeMap::new();
        let mut unknown: BTreeSet<String> = BTreeSet::new();
        for name in &request.members {
            match graph.host(name).and_then(|port| Some((port, self.racks.number(port.switch)?))) {
                Some(place) => drop(places.insert(name, place)),
                None => drop(unknown.insert(name.clone())),
            }
        }
        if !unknown.is_empty() {
            return Err(FabricError::NotLocated { nodes: unknown.into_iter().collect() });
        }
        let apart = request.members.iter().find(|name| self.nodes.vlan(name) != self.nodes.vlan(first));
        if let Some(other) = apart {
            return Err(FabricError::Segments { one: first.clone(), other: other.clone() });
        }
        let from = places.get(first).and_then(|(port, _)| self.adjacency.position(port.switch));
        let distances = from.map(|from| self.adjacency.distances(from)).unwrap_or_default();
        let reached = |port: &Port| {
            self.adjacency
                .position(port.switch)
                .is_some_and(|at| distances.get(at).is_some_and(|d| *d != UNREACHABLE))
        };
        if let Some((to, _)) = places.iter().find(|(_, (port, _))| !reached(port)) {
            return Err(FabricError::Partitioned { from: first.clone(), to: (*to).clone() });
        }
        let racks = places.into_iter().map(|(name, (_, rack))| (name.clone(), rack)).collect();
        Ok(MulticastKind::Installed(racks))
    }

    /// Checks that all members use the same version of IP, because a tree carries only one.
    fn check_ip_versions(&self, members: &[String]) -> Result<(), FabricError> {
        let mut addresses = members.iter().filter_map(|name| Some((name, self.nodes.get(name)?.ip)));
        let Some((one, one_ip)) = addresses.next() else { return Ok(()) };
        match addresses.find(|(_, ip)| ip.is_ipv6() != one_ip.is_ipv6()) {
            Some((other, other_ip)) => {
                Err(FabricError::IpVersions { one: one.clone(), one_ip, other: other.clone(), other_ip })
            }
            None => Ok(()),
        }
    }

    /// Returns the trees for which there is room, and the switches that have no room for the
    /// others.
    fn trees_with_room(
        &mut self,
        request: &GroupRequest,
        racks: &BTreeMap<String, u32>,
    ) -> Result<(Vec<GroupTree>, BTreeSet<DatapathId>), FabricError> {
        let (planned, left_out) = self.plan_trees(request, racks);
        for (_, scope, error) in &left_out {
            warn!(group = request.id, ?scope, "tree left out: {error}");
        }
        let mut full: BTreeMap<DatapathId, FabricError> =
            left_out.into_iter().map(|(switch, _, error)| (switch, error)).collect();
        if planned.is_empty()
            && let Some((_, error)) = full.pop_first()
        {
            return Err(error);
        }
        let mut trees: Vec<GroupTree> = Vec::new();
        for PlannedTree { scope, members, tie_break, tree } in planned {
            let Some(number) = self.multicast.allocate() else {
                trees.iter().for_each(|tree| self.multicast.free(tree.number));
                return Err(FabricError::OutOfAddresses { limit: GROUPS.end - GROUPS.start });
            };
            trees.push(GroupTree::new(scope, number, members, tie_break, tree));
        }
        Ok((trees, full.into_keys().collect()))
    }

    /// Plans the trees of a group for which the switches have room. Also returns those for which
    /// they have none, each with a full switch.
    pub(super) fn plan_trees(
        &self,
        request: &GroupRequest,
        racks: &BTreeMap<String, u32>,
    ) -> (Vec<PlannedTree>, Vec<(DatapathId, TreeScope, FabricError)>) {
        let id = request.id;
        let (mut trees, mut full): (Vec<PlannedTree>, Vec<_>) = Default::default();
        // Entries that the trees so far will need.
        let mut taken: BTreeMap<DatapathId, RuleCounts> = BTreeMap::new();
        for (scope, stripe, members, best) in self.best_trees(request, racks) {
            // If the switches of one shape have no room, those of another may have some.
            let graph = self.discovery.graph();
            let tie_breaks = (id..).take(WAYS).map(|group| TieBreak { group, stripe });
            let others = tie_breaks
                .skip(1)
                .map(|tie_break| (tie_break, tie_break.tree(&self.adjacency, graph, &members)));
            let mut ways = core::iter::once((TieBreak { group: id, stripe }, best.clone())).chain(others);
            let stripes = trees.iter().filter(|other| other.scope == scope);
            let used: BTreeSet<Link> = stripes.flat_map(|other| other.tree.links.iter().copied()).collect();
            let fits = |tree: &Tree| tree.links.is_disjoint(&used) && self.full(tree, &taken).is_none();
            if let Some((tie_break, tree)) = ways.find(|(_, tree)| fits(tree)) {
                for (switch, ports) in tree.ports() {
                    let taken = taken.entry(switch).or_default();
                    (taken.groups, taken.flows) = (taken.groups + 1, taken.flows + ports.len());
                }
                trees.push(PlannedTree { scope, members, tie_break, tree });
            } else if let Some((switch, exhausted)) = self.full(&best, &taken) {
                let exhausted = exhausted.to_string();
                full.push((switch, scope, FabricError::Full { id, switch: self.name(switch), exhausted }));
            }
        }
        (trees, full)
    }

    /// Returns the trees that a group should have: for each its scope, its stripe, its nodes, and
    /// the best shape over them.
    fn best_trees(
        &self,
        request: &GroupRequest,
        racks: &BTreeMap<String, u32>,
    ) -> Vec<(TreeScope, usize, Vec<String>, Tree)> {
        let of_scope = |(scope, members): (TreeScope, Vec<String>)| {
            let best = if scope == TreeScope::All {
                self.stripes(request.id, &members)
            } else {
                let tie_break = TieBreak { group: request.id, stripe: 0 };
                vec![tie_break.tree(&self.adjacency, self.discovery.graph(), &members)]
            };
            let stripes = best.into_iter().enumerate();
            stripes.map(move |(stripe, tree)| (scope, stripe, members.clone(), tree))
        };
        scopes(request, racks).into_iter().flat_map(of_scope).collect()
    }

    /// Returns as many trees over all nodes of a group as are needed to fill a node's link, as far
    /// as rates are known and the trees share no link.
    fn stripes(&self, group: u64, members: &[String]) -> Vec<Tree> {
        let graph = self.discovery.graph();
        let rates = members.iter().filter_map(|name| Some(tree_grants::node_rate(self, graph.host(name)?)));
        let host = rates.min().unwrap_or(0);
        let disjoint = Tree::disjoint(&self.adjacency, graph, members.iter().map(String::as_str), group);
        let (mut stripes, mut sum) = (Vec::new(), 0u64);
        for tree in disjoint.take(Layout::MOST_STRIPES as usize) {
            let rate = tree.links.iter().map(|link| tree_grants::link_rate(self, *link)).min().unwrap_or(0);
            stripes.push(tree);
            sum = sum.saturating_add(rate);
            if rate == 0 || sum >= host {
                break;
            }
        }
        stripes
    }

    /// Returns a switch that has no room for a tree in addition to the entries in `taken`.
    fn full(
        &self,
        tree: &Tree,
        taken: &BTreeMap<DatapathId, RuleCounts>,
    ) -> Option<(DatapathId, TableExhausted)> {
        tree.ports().into_iter().find_map(|(switch, ports)| {
            let mut used = self.intent.rules(switch).unwrap_or_default();
            if let Some(taken) = taken.get(&switch) {
                (used.groups, used.flows) = (used.groups + taken.groups, used.flows + taken.flows);
            }
            let more = RuleCounts { groups: 1, flows: ports.len() };
            Some((switch, self.switches.get(switch)?.capacity.exhausted_by(used, more)?))
        })
    }

    /// Gives trees to a group. Returns their numbers.
    pub(crate) fn add_trees(&mut self, id: u64, trees: Vec<GroupTree>) -> Vec<u32> {
        let numbers = self.multicast.add_trees(id, trees);
        for number in &numbers {
            self.acknowledgments.touch(AckWaiter::Tree(*number));
        }
        numbers
    }
}
