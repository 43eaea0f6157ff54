//! A group as its agents know it: nodes with names and addresses, trees, chains. It never changes.

use super::api::{GroupError, GroupSpec, MemberSpec, TreeScope};
use cool_collective::{Layout, Place, Rank, Scope};
use cool_transport::{Chain, Hop};
use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::Arc;

/// The longest payload of a packet: a UDP datagram over IPv4 without its headers and ours.
const CHUNK_MAX: u32 = 65_507 - cool_transport::packet::DATA_HEADER as u32;

/// A node of a group.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) udp: SocketAddrV4,
    pub(super) tcp: SocketAddrV4,
}

/// Where a tree is reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree {
    pub(super) address: SocketAddrV4,
    /// 0 if unknown.
    pub(super) bytes_per_second: u64,
}

#[derive(Debug)]
pub(super) struct Members {
    pub(super) id: u64,
    pub(super) epoch: u32,
    pub(super) layout: Layout,
    /// By their indices in the layout.
    pub(super) nodes: Vec<Node>,
    /// This node.
    pub(super) me: usize,
    pub(super) chunk_bytes: u32,
    trees: BTreeMap<Scope, Tree>,
    host_bytes_per_second: u64,
    /// What the slowest level was given or measured to carry, by which plans are picked.
    expected: u64,
    chains: BTreeMap<(Scope, usize), Arc<Chain>>,
}

impl Members {
    /// The group of `spec` as the node `me` sees it.
    pub(super) fn new(spec: &GroupSpec, me: &str) -> Result<Members, GroupError> {
        let invalid = |reason: String| GroupError::Invalid { group: spec.id, reason };
        let first = first_members(&spec.members).map_err(invalid)?;
        if !(1..=CHUNK_MAX).contains(&spec.chunk_bytes) {
            let reason = format!("chunks of {} bytes; 1 to {CHUNK_MAX} fit a packet", spec.chunk_bytes);
            return Err(invalid(reason));
        }
        let number: BTreeMap<&str, u32> = first.keys().copied().zip(0..).collect();
        let places: Vec<Place> =
            spec.members.iter().map(|m| Place { rack: m.rack, node: number[m.node.as_str()] }).collect();
        let layout = Layout::new(&places).map_err(|e| invalid(e.to_string()))?;
        let member_of = |node| &spec.members[layout.node_leader(node).0 as usize];
        let nodes: Vec<Node> = (0..layout.nodes())
            .map(member_of)
            .map(|m| Node { name: m.node.clone(), udp: m.udp(), tcp: m.tcp() })
            .collect();
        let me = nodes
            .iter()
            .position(|n| n.name == me)
            .ok_or_else(|| invalid(format!("it has no rank on this node, {me}")))?;
        let mut trees = BTreeMap::new();
        for tree in &spec.trees {
            let scope = match tree.scope {
                TreeScope::All => Scope::All,
                TreeScope::Leaders => Scope::Leaders,
                TreeScope::Rack(rack) => {
                    let member = spec.members.iter().find(|m| m.rack == rack);
                    let member = member
                        .ok_or_else(|| invalid(format!("a tree is for rack {rack}, where no rank is")))?;
                    Scope::Rack(layout.rack_of(Rank(member.rank)))
                }
            };
            if !tree.address.is_multicast() {
                return Err(invalid(format!("the tree address {} is not a multicast address", tree.address)));
            }
            let address = SocketAddrV4::new(tree.address, tree.port);
            if trees.insert(scope, Tree { address, bytes_per_second: tree.bytes_per_second }).is_some() {
                return Err(invalid(format!("two trees are for {:?}", tree.scope)));
            }
        }
        Ok(Members {
            id: spec.id,
            epoch: spec.epoch,
            layout,
            nodes,
            me,
            chunk_bytes: spec.chunk_bytes,
            trees,
            host_bytes_per_second: spec.host_bytes_per_second,
            expected: spec.cost_model.rack.bytes_per_second.min(spec.cost_model.center.bytes_per_second),
            chains: BTreeMap::new(),
        })
    }

    /// The trees that reach this node.
    pub(super) fn my_trees(&self) -> Vec<SocketAddrV4> {
        let reaches_me = |scope: Scope| self.layout.nodes_of(scope).contains(&self.me);
        self.trees.iter().filter(|(scope, _)| reaches_me(**scope)).map(|(_, tree)| tree.address).collect()
    }

    pub(super) fn tree(&self, scope: Scope) -> Option<Tree> {
        self.trees.get(&scope).copied()
    }

    /// The tree of this node's rack.
    pub(super) fn rack_tree(&self) -> Option<SocketAddrV4> {
        self.tree(Scope::Rack(self.layout.rack_of_node(self.me))).map(|tree| tree.address)
    }

    /// What this node may send over a tree, or to the chain where there is none; `None` if unknown.
    pub(super) fn rate(&self, scope: Scope) -> Option<u64> {
        let tree = self.tree(scope).map_or(0, |t| t.bytes_per_second);
        [tree, self.host_bytes_per_second].into_iter().filter(|r| *r > 0).min()
    }

    /// Whether a rate is what paths were given or measured to carry, and not only that of a port before a slower path.
    pub(super) fn is_sure(&self, rate: u64) -> bool {
        rate - rate / 5 <= self.expected
    }

    /// The ranks of this node.
    pub(super) fn my_ranks(&self) -> &[Rank] {
        self.layout.ranks_of_node(self.me)
    }

    /// The node of a rank, if the rank exists.
    pub(super) fn node_of(&self, rank: u32) -> Option<usize> {
        ((rank as usize) < self.layout.size()).then(|| self.layout.node_of(Rank(rank)))
    }

    /// All other nodes.
    pub(super) fn others(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().enumerate().filter(|(index, _)| *index != self.me).map(|(_, node)| node)
    }

    /// The ranks of a node, by its name.
    pub(super) fn ranks_of(&self, name: &str) -> Vec<u32> {
        let node = self.nodes.iter().position(|n| n.name == name);
        node.map_or(Vec::new(), |node| self.layout.ranks_of_node(node).iter().map(|r| r.0).collect())
    }

    /// The chain behind a multicast from a node of a tree.
    pub(super) fn chain(&mut self, scope: Scope, source: usize) -> Arc<Chain> {
        let layout = &self.layout;
        let chain = self.chains.entry((scope, source)).or_insert_with(|| {
            // There are no more nodes than ranks, and no more ranks than fit.
            let hop = |node| Hop { node: node as u16, rack: layout.rack_of_node(node) as u16 };
            let hops = layout.chain(scope, source).into_iter().map(hop).collect();
            Chain::new(hops).expect("a layout's chain names each node once and enters each rack once")
        });
        Arc::clone(chain)
    }
}

/// The first member of each node, after checking that the members agree with each other.
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
        if (same.rack, same.udp(), same.tcp()) != (member.rack, member.udp(), member.tcp()) {
            let node = &member.node;
            return Err(format!(
                "node {node} is in two racks or at two addresses (ranks {} and {rank})",
                same.rank
            ));
        }
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::TreeSpec;
    use cool_collective::CostModel;
    use std::net::Ipv4Addr;

    fn spec() -> GroupSpec {
        let member = |rank, node: &str, rack| MemberSpec {
            rank,
            node: node.to_owned(),
            rack,
            ip: Ipv4Addr::new(10, 0, 0, node.as_bytes()[1]),
            udp_port: 1,
            tcp_port: 2,
        };
        let tree = |scope, last| TreeSpec {
            scope,
            address: Ipv4Addr::new(239, 192, 0, last),
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
        }
    }

    #[test]
    fn nodes_stand_in_chain_order_and_know_their_trees() {
        let mut members = Members::new(&spec(), "h3").unwrap();
        assert_eq!(members.nodes.iter().map(|n| n.name.as_str()).collect::<Vec<_>>(), ["h1", "h3"]);
        assert_eq!((members.me, members.my_ranks()), (1, &[Rank(0), Rank(2)][..]));
        assert_eq!(members.my_trees().len(), 2);
        assert_eq!(Members::new(&spec(), "h1").unwrap().my_trees().len(), 1);
        assert_eq!(members.rate(Scope::All), Some(50));
        let expected = spec().cost_model.rack.bytes_per_second;
        assert!(members.is_sure(expected) && !members.is_sure(2 * expected));
        assert_eq!(members.rack_tree().map(|tree| *tree.ip()), Some(Ipv4Addr::new(239, 192, 0, 2)));
        assert_eq!(members.chain(Scope::All, 1).node(0), 1);
    }

    #[test]
    fn a_group_that_contradicts_itself_is_refused_in_words() {
        let error = |change: fn(&mut GroupSpec)| {
            let mut spec = spec();
            change(&mut spec);
            Members::new(&spec, "h1").unwrap_err().to_string()
        };
        assert!(error(|s| s.members[2].rack = 4).contains("node h3 is in two racks"));
        assert!(error(|s| s.members[1].rank = 5).contains("rank 5 stands where rank 1"));
        assert!(error(|s| s.chunk_bytes = 0).contains("chunks of 0 bytes"));
        assert!(error(|s| s.trees[0].address = Ipv4Addr::LOCALHOST).contains("not a multicast address"));
        assert!(error(|s| s.trees[1].scope = TreeScope::Rack(5)).contains("rack 5"));
        assert!(error(|s| s.members.clear()).contains("at least one rank"));
        assert!(Members::new(&spec(), "h2").unwrap_err().to_string().contains("no rank on this node, h2"));
    }
}
