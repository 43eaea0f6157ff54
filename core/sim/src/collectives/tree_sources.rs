//! Source-specific trees, from which a node receives only the sources that it has joined.

use super::cluster::{SimulatedCluster, ip};
use crate::network::Destination;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// The source-specific trees of all groups.
#[derive(Debug, Default)]
pub(super) struct SourceTrees {
    /// The network's number of each tree with each of its sources.
    numbers: BTreeMap<(SocketAddr, IpAddr), usize>,
    /// The nodes that have joined a tree with a source, even if the network has forgotten that.
    joined: BTreeSet<(SocketAddr, IpAddr, u16)>,
    /// See [`SimulatedCluster::unproven_sources`].
    unproven: Vec<(u16, Vec<String>)>,
}

impl SimulatedCluster {
    /// Returns the nodes that have reported that their multicasts over source-specific trees do not
    /// arrive, each with the names of the nodes at which they do not.
    pub fn unproven_sources(&self) -> &[(u16, Vec<String>)] {
        &self.source_trees.unproven
    }

    /// Lets the network forget which sources a node has joined, which the node does not notice.
    pub fn forget_sources(&mut self, node: u16) {
        for tree in self.source_trees.numbers.values() {
            self.net.leave_tree(*tree, node);
        }
    }

    pub(super) fn on_source_probed(&mut self, node: u16, missing: Vec<String>) {
        if !missing.is_empty() {
            self.source_trees.unproven.push((node, missing));
        }
    }

    pub(super) fn join_source(&mut self, node: u16, tree: SocketAddr, source: IpAddr) {
        let is_new = self.source_trees.joined.insert((tree, source, node));
        if is_new && !self.deaf.contains(&(tree, node)) {
            let net = &mut self.net;
            let number = self.source_trees.numbers.entry((tree, source));
            let number = *number.or_insert_with(|| net.add_tree([]));
            net.join_tree(number, node);
        }
    }

    pub(super) fn leave_source(&mut self, tree: SocketAddr, source: IpAddr, node: u16) {
        self.source_trees.joined.remove(&(tree, source, node));
        if let Some(number) = self.source_trees.numbers.get(&(tree, source)) {
            self.net.leave_tree(*number, node);
        }
    }

    /// Returns where the multicasts of a node to a source-specific tree arrive; nowhere until a
    /// node has joined the source.
    pub(super) fn source_destination(&self, tree: SocketAddr, node: u16) -> Option<Destination> {
        self.source_trees.numbers.get(&(tree, ip(node))).map(|number| Destination::Tree(*number))
    }
}
