//! Index from links and nodes to the trees that use them, by which the trees affected by a change
//! of the network are found.

use crate::trees::GroupTree;
use cool_topology::Link;
use std::collections::{BTreeMap, BTreeSet};

/// Numbers of trees by link and by node.
#[derive(Debug, Default)]
pub(crate) struct ReverseIndex {
    by_link: BTreeMap<Link, BTreeSet<u32>>,
    by_node: BTreeMap<String, BTreeSet<u32>>,
    links: BTreeMap<u32, BTreeSet<Link>>,
    /// Trees that do not connect all their members.
    partitioned: BTreeSet<u32>,
}

impl ReverseIndex {
    /// Updates the entries of a tree.
    pub(crate) fn update(&mut self, tree: &GroupTree) {
        let number = tree.number;
        let links = tree.links();
        self.unlink(number, &links);
        for link in &links {
            self.by_link.entry(*link).or_default().insert(number);
        }
        if self.links.insert(number, links).is_none() {
            for node in tree.members() {
                self.by_node.entry(node.clone()).or_default().insert(number);
            }
        }
        match tree.is_whole() {
            true => self.partitioned.remove(&number),
            false => self.partitioned.insert(number),
        };
    }

    /// Removes a tree.
    pub(crate) fn forget(&mut self, tree: &GroupTree) {
        self.unlink(tree.number, &BTreeSet::new());
        self.links.remove(&tree.number);
        self.partitioned.remove(&tree.number);
        for node in tree.members() {
            remove(&mut self.by_node, node, tree.number);
        }
    }

    /// Removes all links of a tree except these.
    fn unlink(&mut self, number: u32, but: &BTreeSet<Link>) {
        for link in self.links.get(&number).into_iter().flatten().filter(|link| !but.contains(link)) {
            remove(&mut self.by_link, link, number);
        }
    }

    /// Returns the trees that use a link.
    pub(crate) fn of_link(&self, link: Link) -> impl Iterator<Item = u32> + '_ {
        self.by_link.get(&link).into_iter().flatten().copied()
    }

    /// Returns the trees of which a node is a member.
    pub(crate) fn of_node(&self, node: &str) -> impl Iterator<Item = u32> + '_ {
        self.by_node.get(node).into_iter().flatten().copied()
    }

    /// Returns the trees that do not connect all their members.
    pub(crate) fn partitioned(&self) -> impl Iterator<Item = u32> + '_ {
        self.partitioned.iter().copied()
    }

    /// Returns all trees.
    pub(crate) fn all(&self) -> BTreeSet<u32> {
        self.links.keys().copied().collect()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_link.is_empty()
            && self.by_node.is_empty()
            && self.links.is_empty()
            && self.partitioned.is_empty()
    }
}

fn remove<K: Ord>(trees: &mut BTreeMap<K, BTreeSet<u32>>, key: &K, number: u32) {
    if let Some(numbers) = trees.get_mut(key) {
        numbers.remove(&number);
        if numbers.is_empty() {
            trees.remove(key);
        }
    }
}
