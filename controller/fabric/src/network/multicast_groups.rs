//! The groups in use and their trees: whose each tree is, what uses which link, which trees have changed, and which
//! callers wait. Whoever changes a tree does it here, so that index and changes cannot be forgotten. Of groups that
//! [share](super::tree_sharing) their trees, one stands here for all.

use super::deadlines::Deadlines;
use super::stale_trees::AdoptedGroup;
use crate::api::TreeGrant;
use crate::call::CallReply;
use crate::trees::reverse_index::ReverseIndex;
use crate::trees::{GroupTree, TreeNumbers};
use cool_machine::Time;
use cool_topology::{DatapathId, Link};
use std::collections::{BTreeMap, BTreeSet};

/// A group in use.
#[derive(Default)]
pub(crate) struct GroupTrees {
    pub(crate) trees: Vec<GroupTree>,
    /// Switches that had no room for a tree, which was left out.
    pub(crate) without: BTreeSet<DatapathId>,
    /// Who waits for the switches.
    pub(crate) caller: Option<CallReply<Vec<TreeGrant>>>,
    /// Made by an earlier controller, and not followed yet.
    pub(crate) adopted: Option<AdoptedGroup>,
}

impl GroupTrees {
    /// Whether switches have all its trees, so that another group can have them, too.
    pub(crate) fn is_settled(&self) -> bool {
        self.caller.is_none() && self.adopted.is_none() && self.without.is_empty()
    }
}

/// All groups and trees.
#[derive(Default)]
pub(crate) struct MulticastGroups {
    groups: BTreeMap<u64, GroupTrees>,
    /// The group of each tree, by the tree's number.
    owners: BTreeMap<u32, u64>,
    ids: TreeNumbers,
    index: ReverseIndex,
    /// Trees whose desired state is to be computed anew.
    changed: BTreeSet<u32>,
    /// Trees that may be better now, and when to look at all.
    improvable: BTreeSet<u32>,
    improve_at: Option<Time>,
    /// How long callers wait.
    callers: Deadlines<u64>,
    revision: u64,
}

impl MulticastGroups {
    /// Counts the changes that a snapshot of the network shows.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// A group in use.
    pub(crate) fn group(&self, id: u64) -> Option<&GroupTrees> {
        self.groups.get(&id)
    }

    /// The group of a tree.
    pub(crate) fn owner(&self, number: u32) -> Option<u64> {
        self.owners.get(&number).copied()
    }

    /// The tree of a number.
    pub(crate) fn tree(&self, number: u32) -> Option<&GroupTree> {
        let group = self.groups.get(self.owners.get(&number)?)?;
        group.trees.iter().find(|tree| tree.number == number)
    }

    /// NetworkChanges a tree by `edit`, which says whether its desired state is another now.
    pub(crate) fn edit(&mut self, number: u32, edit: impl FnOnce(&mut GroupTree) -> bool) {
        let group = self.owners.get(&number).and_then(|id| self.groups.get_mut(id));
        let tree = group.and_then(|group| group.trees.iter_mut().find(|tree| tree.number == number));
        if let Some(tree) = tree {
            if edit(tree) {
                self.changed.insert(number);
            }
            self.index.note(tree);
        }
    }

    /// Adds a group; its caller is answered by `until`.
    pub(crate) fn insert(&mut self, id: u64, group: GroupTrees, until: Option<Time>) {
        if let Some(until) = until {
            self.callers.set(id, until);
        }
        self.revision += u64::from(!group.without.is_empty());
        self.groups.insert(id, group);
    }

    /// Gives a group trees; returns their numbers.
    pub(crate) fn grow(&mut self, id: u64, trees: Vec<GroupTree>) -> Vec<u32> {
        let numbers: Vec<u32> = trees.iter().map(|tree| tree.number).collect();
        for tree in &trees {
            self.owners.insert(tree.number, id);
            self.index.note(tree);
            self.changed.insert(tree.number);
        }
        if let Some(group) = self.groups.get_mut(&id) {
            group.trees = trees;
        }
        numbers
    }

    /// Removes a group; its trees' numbers are free.
    pub(crate) fn remove(&mut self, id: u64) -> Option<GroupTrees> {
        let group = self.groups.remove(&id)?;
        // There may be room now for what had to be cut off others.
        self.improvable.extend(self.index.partitioned());
        self.callers.clear(id);
        self.revision += u64::from(!group.without.is_empty());
        for tree in &group.trees {
            self.owners.remove(&tree.number);
            self.ids.give_back(tree.number);
            self.index.forget(tree);
            self.changed.insert(tree.number);
        }
        Some(group)
    }

    /// A number for a new tree, if there is one.
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        self.ids.take()
    }

    /// A number is in use by a tree of an earlier controller; if it is known, of this group.
    pub(crate) fn reserve(&mut self, number: u32, owner: Option<u64>) {
        self.ids.reserve(number);
        if let Some(owner) = owner {
            self.owners.insert(number, owner);
        }
    }

    /// A reserved number has no group any more.
    pub(crate) fn disown(&mut self, number: u32) {
        self.owners.remove(&number);
    }

    /// A number is free again.
    pub(crate) fn free(&mut self, number: u32) {
        self.ids.give_back(number);
    }

    /// The trees whose desired state is to be computed anew.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<u32> {
        core::mem::take(&mut self.changed)
    }

    /// Whether a tree's desired state is to be computed anew.
    pub(crate) fn is_changed(&self, number: u32) -> bool {
        self.changed.contains(&number)
    }

    /// Whether some tree's desired state is to be computed anew.
    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The trees that use a link.
    pub(crate) fn of_link(&self, link: Link) -> impl Iterator<Item = u32> + '_ {
        self.index.of_link(link)
    }

    /// The trees of which a node is a member.
    pub(crate) fn of_node(&self, node: &str) -> impl Iterator<Item = u32> + '_ {
        self.index.of_node(node)
    }

    /// The trees that do not connect all their members.
    pub(crate) fn partitioned(&self) -> impl Iterator<Item = u32> + '_ {
        self.index.partitioned()
    }

    /// The network has become better: all trees are looked at anew at this time, if it does not become better again.
    pub(crate) fn improve_at(&mut self, at: Time) {
        self.improve_at = Some(at);
    }

    /// A tree to be looked at anew.
    pub(crate) fn next_improvable(&mut self, now: Time) -> Option<u32> {
        if self.improve_at.take_if(|at| *at <= now).is_some() {
            self.improvable = self.index.all();
        }
        self.improvable.pop_first()
    }

    /// When to go on looking at trees.
    pub(crate) fn improving(&self, now: Time) -> Option<Time> {
        if self.improvable.is_empty() { self.improve_at } else { Some(now) }
    }

    /// Takes the caller that waits for a group.
    pub(crate) fn take_caller(&mut self, id: u64) -> Option<CallReply<Vec<TreeGrant>>> {
        self.callers.clear(id);
        self.groups.get_mut(&id)?.caller.take()
    }

    /// A group whose caller has waited for too long.
    pub(crate) fn overdue(&mut self, now: Time) -> Option<u64> {
        self.callers.expired(now)
    }

    /// When a caller will have waited for too long.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.callers.next()
    }

    /// Takes what is known of a group that an earlier controller made.
    pub(crate) fn take_adopted(&mut self, id: u64) -> Option<AdoptedGroup> {
        self.groups.get_mut(&id)?.adopted.take()
    }

    /// Switches that had no room for trees, and how many groups do without.
    pub(crate) fn without(&self) -> BTreeMap<DatapathId, usize> {
        let mut counts = BTreeMap::new();
        for switch in self.groups.values().flat_map(|group| &group.without) {
            *counts.entry(*switch).or_default() += 1;
        }
        counts
    }

    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.ids.in_use()
    }

    /// Whether nothing is left of any group.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let known = self.groups.len() + self.owners.len() + self.changed.len() + self.in_use();
        known == 0 && self.index.is_empty() && self.callers.is_empty()
    }
}
