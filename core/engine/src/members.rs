//! A group from the point of view of an agent: nodes with names and addresses, trees, and chains.
//! Only the engine's numbers of the nodes are set after creation.

use crate::api::{GroupError, GroupSpec, MemberSpec, TreeScope};
use crate::ids::NodeId;
use crate::link_share::LinkShare;
use cool_collective::{Layout, MulticastScope, Rank, RankPlace, Stripe};
use cool_transport::tagged::Protection;
use cool_transport::unicast::handshake::agent_key;
use cool_transport::unicast::{AgentId, MessageName};
use cool_transport::{Chain, Hop};
use cool_types::{Key, is_source_specific, name_list, rank_list, wire};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Maximum payload of a packet, in bytes: that of a UDP datagram over IPv4, minus the packet's
/// header.
const CHUNK_MAX: u32 = 65_507 - cool_transport::packet::DATA_HEADER as u32;

/// A node of a group.
#[derive(Debug)]
pub(crate) struct MemberNode {
    pub(crate) name: String,
    /// The incarnation of its agent.
    pub(crate) incarnation: u64,
    pub(crate) udp: SocketAddr,
    pub(crate) tcp: SocketAddr,
    /// The key with which the agent proves its identity, if it has one.
    pub(crate) key: Option<Key>,
    /// The node's number in the engine.
    pub(crate) id: NodeId,
}

/// A multicast tree of the group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberTree {
    pub(crate) address: SocketAddr,
    /// Its rate; 0 if unknown.
    pub(crate) bytes_per_second: u64,
}

/// A tree that nodes join together with a source, and that reaches this node.
#[derive(Clone, Debug)]
pub(crate) struct SourceSpecificTree {
    /// Its index among all trees of the group.
    pub(crate) index: u32,
    pub(crate) scope: MulticastScope,
    pub(crate) address: SocketAddr,
    pub(crate) nodes: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) id: u64,
    pub(crate) epoch: u32,
    pub(crate) layout: Layout,
    /// The nodes, by their indices in the layout.
    pub(crate) nodes: Vec<MemberNode>,
    /// The index of this node.
    pub(crate) me: usize,
    pub(crate) chunk_bytes: u32,
    /// How the group's datagrams are protected.
    pub(crate) protection: Option<Protection>,
    /// Whether agents connect only when one has a message for the other or waits for it.
    pub(crate) on_demand: bool,
    /// Whether agents test that datagrams arrive before ranks execute quick calls.
    pub(crate) probe_quick: bool,
    /// Number of parallel TCP connections between two agents.
    pub(crate) connections_per_hop: u8,
    group_key: Option<Key>,
    /// The trees by scope. If there are several over all nodes, they share no link between
    /// switches.
    trees: BTreeMap<MulticastScope, Vec<MemberTree>>,
    /// The scopes with trees that are not used, because some node receives nothing from them.
    withdrawn: BTreeSet<MulticastScope>,
    /// The nodes of which multicasts over source-specific trees arrive: this node once all others
    /// have received its probes, and others once their data has arrived here.
    sources: BTreeSet<(MulticastScope, usize)>,
    host_bytes_per_second: u64,
    /// The rate of the slowest network level, as configured or measured, by which plans are chosen.
    slowest_level_bytes_per_second: u64,
    /// The indices of the other nodes.
    by_id: BTreeMap<NodeId, usize>,
}

impl Members {
    /// Returns the group of `spec` as the agent `me` sees it.
    pub(crate) fn new(spec: &GroupSpec, me: &AgentId) -> Result<Members, GroupError> {
        let invalid = |reason: String| GroupError::Invalid { group: spec.id, reason };
        let first = first_members(&spec.members).map_err(invalid)?;
        let tag = spec.keyed.as_ref().map_or(0, |keyed| keyed.protection.tag_bytes() as u32);
        let most = CHUNK_MAX - tag;
        if !(1..=most).contains(&spec.chunk_bytes) {
            let reason = format!("chunks of {} bytes; 1 to {most} fit a packet", spec.chunk_bytes);
            return Err(invalid(reason));
        }
        check_addresses(spec).map_err(invalid)?;
        let number: BTreeMap<&str, u32> = first.keys().copied().zip(0..).collect();
        let places: Vec<RankPlace> =
            spec.members.iter().map(|m| RankPlace { rack: m.rack, node: number[m.node.as_str()] }).collect();
        let layout = Layout::new(&places).map_err(|e| invalid(e.to_string()))?;
        let member_of = |node| &spec.members[layout.node_leader(node).0 as usize];
        let nodes: Vec<MemberNode> = (0..layout.nodes())
            .map(member_of)
            .map(|m| MemberNode {
                name: m.node.clone(),
                incarnation: m.incarnation,
                udp: m.udp(),
                tcp: m.tcp(),
                key: m.key.clone(),
                id: NodeId(0),
            })
            .collect();
        let node = &me.node;
        let place = nodes.iter().position(|n| n.name == *node);
        let place = place.ok_or_else(|| invalid(format!("it has no rank on this node, {node}")))?;
        if nodes[place].incarnation != me.incarnation {
            return Err(invalid(format!(
                "it belongs to another agent of this node, {node}, than the running one"
            )));
        }
        let mut trees: BTreeMap<MulticastScope, Vec<MemberTree>> = BTreeMap::new();
        for tree in &spec.trees {
            let scope = match tree.scope {
                TreeScope::All => MulticastScope::All,
                TreeScope::Leaders => MulticastScope::Leaders,
                TreeScope::Rack(rack) => {
                    let member = spec.members.iter().find(|m| m.rack == rack);
                    let member = member.ok_or_else(|| {
                        invalid(format!("it has a tree for rack {rack}, which has no rank"))
                    })?;
                    MulticastScope::Rack(layout.rack_of(Rank(member.rank)))
                }
            };
            if !tree.address.is_multicast() {
                return Err(invalid(format!("the tree address {} is not a multicast address", tree.address)));
            }
            let address = SocketAddr::new(tree.address, tree.port);
            let may_be_striped = scope == MulticastScope::All && !is_source_specific(tree.address);
            let most = if may_be_striped { Layout::MOST_STRIPES as usize } else { 1 };
            let alike = trees.entry(scope).or_default();
            if alike.len() == most {
                return Err(invalid(format!("more than {most} trees are for {:?}", tree.scope)));
            }
            alike.push(MemberTree { address, bytes_per_second: tree.bytes_per_second });
        }
        let layout = match trees.get(&MulticastScope::All) {
            Some(trees) => layout.with_stripes(trees.len() as u32),
            None => layout.without_tree(),
        };
        let cost = &spec.cost_model;
        Ok(Members {
            id: spec.id,
            epoch: spec.epoch,
            layout,
            nodes,
            me: place,
            chunk_bytes: spec.chunk_bytes,
            protection: spec.keyed.as_ref().map(|keyed| keyed.protection),
            on_demand: spec.on_demand,
            probe_quick: spec.probe_quick,
            connections_per_hop: spec.connections_per_hop,
            group_key: spec.keyed.as_ref().filter(|_| spec.on_demand).map(|keyed| keyed.key.clone()),
            trees,
            withdrawn: BTreeSet::new(),
            sources: BTreeSet::new(),
            host_bytes_per_second: spec.host_bytes_per_second,
            slowest_level_bytes_per_second: cost.rack.bytes_per_second.min(cost.core.bytes_per_second),
            by_id: BTreeMap::new(),
        })
    }

    /// Returns the key with which the agent of a node proves its identity in this group, if it has
    /// no key of its own.
    pub(crate) fn group_key_of(&self, node: usize) -> Option<Key> {
        let MemberNode { name, incarnation, key: None, .. } = &self.nodes[node] else { return None };
        let who = AgentId { node: name.clone(), incarnation: *incarnation };
        self.group_key.as_ref().map(|key| agent_key(key, &who))
    }

    /// Returns whether the agent of a node must prove its identity.
    pub(crate) fn must_prove(&self, node: usize) -> bool {
        self.nodes[node].key.is_some() || self.group_key.is_some()
    }

    /// Returns the addresses of the trees over this node, including the withdrawn ones.
    pub(crate) fn my_trees(&self) -> Vec<SocketAddr> {
        self.my_indexed_trees().into_iter().map(|(_, address, _)| address).collect()
    }

    /// Returns the trees over this node, including the withdrawn ones, each with its index among
    /// all trees of the group, its address and its nodes.
    pub(crate) fn my_indexed_trees(&self) -> Vec<(u32, SocketAddr, Vec<usize>)> {
        let trees =
            self.indexed_trees().map(|(index, scope, address)| (index, address, self.layout.nodes_of(scope)));
        trees.filter(|(_, _, nodes)| nodes.contains(&self.me)).collect()
    }

    fn indexed_trees(&self) -> impl Iterator<Item = (u32, MulticastScope, SocketAddr)> {
        let trees =
            self.trees.iter().flat_map(|(scope, trees)| trees.iter().map(|tree| (*scope, tree.address)));
        (0u32..).zip(trees).map(|(index, (scope, address))| (index, scope, address))
    }

    /// Returns the source-specific trees over this node.
    pub(crate) fn source_specific_trees(&self) -> impl Iterator<Item = SourceSpecificTree> {
        let trees = self.indexed_trees().filter(|(.., address)| is_source_specific(address.ip()));
        let trees = trees.map(|(index, scope, address)| {
            let nodes = self.layout.nodes_of(scope);
            SourceSpecificTree { index, scope, address, nodes }
        });
        trees.filter(|tree| tree.nodes.contains(&self.me))
    }

    /// Returns whether nodes join the tree for a scope together with a source.
    pub(crate) fn is_source_specific(&self, scope: MulticastScope) -> bool {
        self.trees.get(&scope).into_iter().flatten().any(|tree| is_source_specific(tree.address.ip()))
    }

    /// Records that multicasts of a node arrive over the tree for a scope.
    pub(crate) fn record_source(&mut self, scope: MulticastScope, source: usize) {
        if self.is_source_specific(scope) {
            self.sources.insert((scope, source));
        }
    }

    /// Records that a node does not multicast over the tree for a scope.
    pub(crate) fn forget_source(&mut self, scope: MulticastScope, source: usize) {
        self.sources.remove(&(scope, source));
    }

    /// Sets the trees that new streams must not use, by their addresses; they use all others. If
    /// there are several trees over the same nodes, none of them is used.
    pub(crate) fn set_withdrawn_trees(&mut self, addresses: &BTreeSet<IpAddr>) {
        let is_withdrawn = |trees: &[MemberTree]| trees.iter().any(|t| addresses.contains(&t.address.ip()));
        self.withdrawn =
            self.trees.iter().filter(|(_, trees)| is_withdrawn(trees)).map(|(scope, _)| *scope).collect();
    }

    /// Returns the addresses of the withdrawn trees over this node.
    pub(crate) fn my_withdrawn_trees(&self) -> Vec<SocketAddr> {
        let scopes = self.withdrawn.iter().filter(|scope| self.layout.nodes_of(**scope).contains(&self.me));
        let trees = scopes.filter_map(|scope| self.trees.get(scope)).flatten();
        trees.map(|tree| tree.address).collect()
    }

    /// Returns whether there is a tree for a scope that may be used.
    pub(crate) fn has_tree(&self, scope: MulticastScope) -> bool {
        !self.trees(scope).is_empty()
    }

    /// Returns whether a node uses the tree for a scope, as far as this node knows. Nodes may know
    /// different sources of source-specific trees, because each receiver notices in each stream
    /// whether chunks arrive over the tree.
    pub(crate) fn is_source(&self, scope: MulticastScope, node: usize) -> bool {
        self.has_tree(scope) && (!self.is_source_specific(scope) || self.sources.contains(&(scope, node)))
    }

    /// Returns the trees for a scope that may be used.
    pub(crate) fn trees(&self, scope: MulticastScope) -> &[MemberTree] {
        let trees = self.trees.get(&scope).filter(|_| !self.withdrawn.contains(&scope));
        trees.map_or(&[], Vec::as_slice)
    }

    /// Returns the tree over which a stripe of a message is sent.
    pub(crate) fn tree(&self, scope: MulticastScope, stripe: Stripe) -> Option<MemberTree> {
        self.trees(scope).get(stripe.index as usize).copied()
    }

    /// Returns the address of the tree of this node's rack, if this node may multicast over it.
    pub(crate) fn rack_tree(&self) -> Option<SocketAddr> {
        let rack = MulticastScope::Rack(self.layout.rack_of_node(self.me));
        self.trees(rack).first().filter(|_| self.is_source(rack, self.me)).map(|tree| tree.address)
    }

    /// Returns the share of this node's link to which a stream is entitled next to its
    /// `concurrent_senders` - 1 peers, with the rates of its tree and of the link, if known.
    pub(crate) fn share(&self, scope: MulticastScope, stripe: Stripe, concurrent_senders: u32) -> LinkShare {
        let known = |rate: u64| Some(rate).filter(|rate| *rate > 0);
        let tree = self.tree(scope, stripe).and_then(|tree| known(tree.bytes_per_second));
        let on_tree = stripe.on_tree(concurrent_senders, self.layout.stripes(scope));
        let host = known(self.host_bytes_per_second);
        let verified = tree.into_iter().chain(host).min().is_some_and(|rate| self.is_verified(rate));
        LinkShare { tree: tree.map(|rate| rate / on_tree), host, verified, concurrent_senders, stripe }
    }

    /// Returns whether the slowest network level carries a rate, within 20 %. If not, the rate may
    /// only be that of a port in front of a slower path.
    fn is_verified(&self, rate: u64) -> bool {
        rate - rate / 5 <= self.slowest_level_bytes_per_second
    }

    /// Returns the ranks of this node.
    pub(crate) fn my_ranks(&self) -> &[Rank] {
        self.layout.ranks_of_node(self.me)
    }

    /// Returns the node of a rank, if the rank exists.
    pub(crate) fn node_of(&self, rank: u32) -> Option<usize> {
        ((rank as usize) < self.layout.size()).then(|| self.layout.node_of(Rank(rank)))
    }

    /// Returns the node of a rank, if it exists and is not this node.
    pub(crate) fn other_node_of(&self, rank: u32) -> Option<usize> {
        self.node_of(rank).filter(|node| *node != self.me)
    }

    /// Returns whether `node` is another node of the group and has the address `from`. The number
    /// of the sender in a packet must be checked so, because each member can write any number.
    pub(crate) fn is_other_node(&self, node: usize, from: SocketAddr) -> bool {
        node != self.me && self.nodes.get(node).is_some_and(|member| member.udp == from)
    }

    /// Returns the indices of all other nodes.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.nodes.len()).filter(move |node| *node != me)
    }

    /// Sets the engine's number of a node.
    pub(crate) fn set_number(&mut self, node: usize, id: NodeId) {
        self.nodes[node].id = id;
        self.by_id.insert(id, node);
    }

    /// Returns the index of a node in the group.
    pub(crate) fn node_index(&self, id: NodeId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// Returns the ranks of the node with an index.
    pub(crate) fn ranks_of(&self, node: usize) -> impl Iterator<Item = u32> + '_ {
        self.layout.ranks_of_node(node).iter().map(|rank| rank.0)
    }

    /// Returns the bytes that each packet takes for its tag, and for an IP header that is longer
    /// than that of IPv4.
    pub(crate) fn extra_packet_bytes(&self) -> u32 {
        let tag = self.protection.map_or(0, |protection| protection.tag_bytes() as u64);
        // The sum is much smaller than a packet.
        (tag + wire::beyond_ipv4(&self.nodes[self.me].udp.ip())) as u32
    }

    /// Returns the group's number and epoch, by which messages name it.
    pub(crate) fn id_and_epoch(&self) -> (u64, u32) {
        (self.id, self.epoch)
    }

    /// Returns the name of a message of this group.
    pub(crate) fn message(&self, call: u64, transfer: u32, from: u32, to: u32) -> MessageName {
        MessageName { group: self.id, epoch: self.epoch, call, transfer, from, to }
    }

    /// Returns ranks with their nodes, as text.
    pub(crate) fn describe_ranks(&self, ranks: &[u32]) -> String {
        let nodes: BTreeSet<&str> = ranks
            .iter()
            .filter_map(|rank| self.node_of(*rank))
            .map(|node| self.nodes[node].name.as_str())
            .collect();
        let nodes: Vec<&str> = nodes.into_iter().collect();
        format!("{} on {}", rank_list(ranks.iter().copied()), name_list(&nodes))
    }

    /// Returns the chain behind a multicast from a node.
    pub(crate) fn chain(&self, scope: MulticastScope, source: usize) -> Arc<Chain> {
        let layout = &self.layout;
        // There are no more nodes than ranks, and no more ranks than fit a `u16`.
        let hop = |node| Hop { node: node as u16, rack: layout.rack_of_node(node) as u16 };
        let hops = layout.chain(scope, source).into_iter().map(hop).collect();
        Chain::new(hops).expect("a layout's chain names each node once and enters each rack once")
    }
}

/// Returns the first member of each node, after checking that the members are consistent.
fn first_members(members: &[MemberSpec]) -> Result<BTreeMap<&str, &MemberSpec>, String> {
    if members.len() > usize::from(u16::MAX) {
        return Err(format!("{} ranks are too many; at most {} fit", members.len(), u16::MAX));
    }
    let mut first: BTreeMap<&str, &MemberSpec> = BTreeMap::new();
    for (rank, member) in (0u32..).zip(members) {
        if member.rank != rank {
            return Err(format!("rank {} stands where rank {rank} should be", member.rank));
        }
        let same = *first.entry(&member.node).or_insert(member);
        let place = |m: &MemberSpec| (m.rack, m.udp(), m.tcp(), m.incarnation);
        if place(same) != place(member) {
            let node = &member.node;
            return Err(format!(
                "node {node} is in two racks, at two addresses or has two agents (ranks {} and {rank})",
                same.rank
            ));
        }
    }
    Ok(first)
}

/// Checks that all nodes and trees use the same version of IP, because one version must reach all
/// of them.
fn check_addresses(spec: &GroupSpec) -> Result<(), String> {
    let Some(first) = spec.members.first().map(|member| member.ip) else { return Ok(()) };
    let addresses = spec.members.iter().map(|member| member.ip);
    match addresses
        .chain(spec.trees.iter().map(|tree| tree.address))
        .find(|ip| ip.is_ipv6() != first.is_ipv6())
    {
        Some(other) => {
            Err(format!("the addresses {first} and {other} in it are of different versions of IP"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TreeSpec;
    use crate::link_share::LinkUsage;
    use cool_collective::CostModel;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn spec() -> GroupSpec {
        let member = |rank, node: &str, rack| MemberSpec {
            rank,
            node: node.to_owned(),
            incarnation: 0,
            rack,
            ip: [10, 0, 0, node.as_bytes()[1]].into(),
            udp_port: 1,
            tcp_port: 2,
            key: None,
        };
        let tree = |scope, last| TreeSpec {
            scope,
            address: [239, 192, 0, last].into(),
            port: 5,
            bytes_per_second: 100,
        };
        GroupSpec {
            id: 7,
            epoch: 1,
            members: vec![member(0, "h3", 9), member(1, "h1", 4), member(2, "h3", 9)],
            trees: vec![tree(TreeScope::All, 1), tree(TreeScope::Rack(9), 2)],
            chunk_bytes: 100,
            host_bytes_per_second: 50,
            cost_model: CostModel::default(),
            keyed: None,
            on_demand: false,
            quick: false,
            probe_quick: false,
            quick_datagram_bytes: 0,
            connections_per_hop: 0,
        }
    }

    fn agent(node: &str) -> AgentId {
        AgentId { node: node.to_owned(), incarnation: 0 }
    }

    /// Returns the rate of a stripe, in bytes per second, while the node sends nothing else.
    fn alone(members: &Members, (index, of): (u32, u32), concurrent_senders: u32) -> Option<u64> {
        members
            .share(MulticastScope::All, Stripe { index, of }, concurrent_senders)
            .ceiling(&LinkUsage::default())
    }

    #[test]
    fn nodes_stand_in_chain_order_and_know_their_trees() {
        let members = Members::new(&spec(), &agent("h3")).unwrap();
        assert_eq!(members.nodes.iter().map(|n| n.name.as_str()).collect::<Vec<_>>(), ["h1", "h3"]);
        assert_eq!((members.me, members.my_ranks()), (1, &[Rank(0), Rank(2)][..]));
        assert_eq!(members.my_trees().len(), 2);
        assert_eq!(Members::new(&spec(), &agent("h1")).unwrap().my_trees().len(), 1);
        assert_eq!([1, 5].map(|senders| alone(&members, (0, 1), senders)), [Some(50), Some(10)]);
        let expected = spec().cost_model.rack.bytes_per_second;
        assert!(members.is_verified(expected) && !members.is_verified(2 * expected));
        assert_eq!(members.rack_tree().map(|tree| tree.ip()), Some([239, 192, 0, 2].into()));
        assert_eq!(members.chain(MulticastScope::All, 1).node(0), 1);
    }

    #[test]
    fn each_of_several_trees_carries_a_stripe_at_its_own_rate() {
        let mut spec = spec();
        spec.trees.push(TreeSpec {
            address: [239, 192, 0, 9].into(),
            bytes_per_second: 20,
            ..spec.trees[0].clone()
        });
        let members = Members::new(&spec, &agent("h1")).unwrap();
        assert_eq!((members.my_trees().len(), members.layout.stripes(MulticastScope::All)), (2, 2));
        assert_eq!(
            [(0, 1), (0, 2), (1, 2)].map(|part| alone(&members, part, 1)),
            [Some(50), Some(25), Some(20)]
        );
        // Of four senders of whole messages, each tree carries two; of four senders of stripes,
        // each tree carries all four.
        assert_eq!([(1, 1), (1, 2)].map(|part| alone(&members, part, 4)), [Some(10), Some(5)]);
        let second = Stripe { index: 1, of: 2 };
        assert_eq!(
            members.tree(MulticastScope::All, second).map(|tree| tree.address.ip()),
            Some([239, 192, 0, 9].into())
        );
    }

    #[test]
    fn a_group_that_contradicts_itself_is_refused_in_words() {
        let error = |change: fn(&mut GroupSpec)| {
            let mut spec = spec();
            change(&mut spec);
            Members::new(&spec, &agent("h1")).unwrap_err().to_string()
        };
        assert!(error(|s| s.members[2].rack = 4).contains("node h3 is in two racks"));
        assert!(
            error(|s| s.members[2].incarnation = 4)
                .contains("node h3 is in two racks, at two addresses or has two")
        );
        assert!(error(|s| s.members[1].incarnation = 4).contains("another agent of this node, h1"));
        assert!(error(|s| s.members[1].rank = 5).contains("rank 5 stands where rank 1"));
        assert!(error(|s| s.chunk_bytes = 0).contains("chunks of 0 bytes"));
        assert!(
            error(|s| s.trees[0].address = Ipv4Addr::LOCALHOST.into()).contains("not a multicast address")
        );
        assert!(error(|s| s.members[1].ip = Ipv6Addr::LOCALHOST.into()).contains("different versions of IP"));
        assert!(error(|s| s.trees[1].scope = TreeScope::Rack(5)).contains("rack 5"));
        assert!(error(|s| s.trees.push(s.trees[1].clone())).contains("more than 1 trees are for Rack(9)"));
        assert!(
            error(|s| s.trees[0].address = Ipv6Addr::new(0xff18, 0, 0, 0, 0, 0, 0, 1).into())
                .contains("10.0.0.51 and ff18::1 in it")
        );
        assert!(error(|s| s.members.clear()).contains("at least one rank"));
        assert!(
            Members::new(&spec(), &agent("h2")).unwrap_err().to_string().contains("no rank on this node, h2")
        );
    }
}
