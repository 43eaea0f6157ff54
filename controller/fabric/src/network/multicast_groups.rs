//! The groups in use and their trees: owners, links, changes and waiting callers. All changes of
//! trees pass through this type, so that its index is always up to date. Of several groups that
//! [share](super::tree_sharing) trees, only one is recorded here.

use super::deadlines::Deadlines;
use crate::api::{GroupRequest, TreeGrant, TreeScope};
use crate::request::RequestReply;
use crate::trees::reverse_index::ReverseIndex;
use crate::trees::{GroupTree, TreeNumbers};
use cool_machine::Time;
use cool_topology::{DatapathId, Link};
use std::collections::{BTreeMap, BTreeSet};

/// The trees of a group in use.
#[derive(Default)]
pub(crate) struct GroupTrees {
    pub(crate) trees: Vec<GroupTree>,
    /// Switches that had no room for one of its trees, which was left out.
    pub(crate) without: BTreeSet<DatapathId>,
    /// The caller that waits for the switches.
    pub(crate) caller: Option<RequestReply<Vec<TreeGrant>>>,
    /// Set if an earlier controller made the group and its trees do not follow the network yet.
    pub(crate) adopted: Option<AdoptedGroup>,
}

/// A group of an earlier controller that agents still use.
#[derive(Debug)]
pub(crate) struct AdoptedGroup {
    pub(crate) request: GroupRequest,
    /// Scope and number of each tree.
    pub(crate) trees: Vec<(TreeScope, u32)>,
}

impl GroupTrees {
    /// Returns whether the switches have all its trees, so that another group can share them.
    pub(crate) fn is_settled(&self) -> bool {
        self.caller.is_none() && self.adopted.is_none() && self.without.is_empty()
    }
}

/// All groups and trees.
#[derive(Default)]
pub(crate) struct MulticastGroups {
    groups: BTreeMap<u64, GroupTrees>,
    /// Group of each tree, by the tree's number.
    owners: BTreeMap<u32, u64>,
    ids: TreeNumbers,
    index: ReverseIndex,
    /// Trees with a desired state that must be computed anew.
    changed: BTreeSet<u32>,
    /// Trees that may be improved now, and the time at which all trees become improvable.
    improvable: BTreeSet<u32>,
    improve_at: Option<Time>,
    /// Time until which the caller of each group waits.
    callers: Deadlines<u64>,
    revision: u64,
}

impl MulticastGroups {
    /// Returns the number of changes so far that are visible in a snapshot of the network.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns a group in use.
    pub(crate) fn group(&self, id: u64) -> Option<&GroupTrees> {
        self.groups.get(&id)
    }

    /// Returns the group of a tree.
    pub(crate) fn owner(&self, number: u32) -> Option<u64> {
        self.owners.get(&number).copied()
    }

    /// Returns the tree with a number.
    pub(crate) fn tree(&self, number: u32) -> Option<&GroupTree> {
        let group = self.groups.get(self.owners.get(&number)?)?;
        group.trees.iter().find(|tree| tree.number == number)
    }

    /// Changes a tree by `edit`, which must return whether the desired state has changed.
    pub(crate) fn edit(&mut self, number: u32, edit: impl FnOnce(&mut GroupTree) -> bool) {
        let group = self.owners.get(&number).and_then(|id| self.groups.get_mut(id));
        let tree = group.and_then(|group| group.trees.iter_mut().find(|tree| tree.number == number));
        if let Some(tree) = tree {
            if edit(tree) {
                self.changed.insert(number);
            }
            self.index.update(tree);
        }
    }

    /// Adds a group. Its caller must be answered by `until`.
    pub(crate) fn insert(&mut self, id: u64, group: GroupTrees, until: Option<Time>) {
        if let Some(until) = until {
            self.callers.set(id, until);
        }
        self.revision += u64::from(!group.without.is_empty());
        self.groups.insert(id, group);
    }

    /// Gives trees to a group. Returns their numbers.
    pub(crate) fn add_trees(&mut self, id: u64, trees: Vec<GroupTree>) -> Vec<u32> {
        let numbers: Vec<u32> = trees.iter().map(|tree| tree.number).collect();
        for tree in &trees {
            self.owners.insert(tree.number, id);
            self.index.update(tree);
            self.changed.insert(tree.number);
        }
        if let Some(group) = self.groups.get_mut(&id) {
            group.trees = trees;
        }
        numbers
    }

    /// Removes a group, and releases the numbers of its trees.
    pub(crate) fn remove(&mut self, id: u64) -> Option<GroupTrees> {
        let group = self.groups.remove(&id)?;
        // There may be room now for members that other trees had to leave out.
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

    /// Allocates a number for a new tree.
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        self.ids.take()
    }

    /// Reserves the number of a tree of an earlier controller, for this group if it is known.
    pub(crate) fn reserve(&mut self, number: u32, owner: Option<u64>) {
        self.ids.reserve(number);
        if let Some(owner) = owner {
            self.owners.insert(number, owner);
        }
    }

    /// Records that a reserved number belongs to no group.
    pub(crate) fn disown(&mut self, number: u32) {
        self.owners.remove(&number);
    }

    /// Releases a number.
    pub(crate) fn free(&mut self, number: u32) {
        self.ids.give_back(number);
    }

    /// Returns the trees for which the desired state must be computed anew.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<u32> {
        core::mem::take(&mut self.changed)
    }

    /// Returns whether the desired state of a tree must be computed anew.
    pub(crate) fn is_changed(&self, number: u32) -> bool {
        self.changed.contains(&number)
    }

    /// Returns whether the desired state of any tree must be computed anew.
    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Returns the trees that use a link.
    pub(crate) fn of_link(&self, link: Link) -> impl Iterator<Item = u32> + '_ {
        self.index.of_link(link)
    }

    /// Returns the trees of which a node is a member.
    pub(crate) fn of_node(&self, node: &str) -> impl Iterator<Item = u32> + '_ {
        self.index.of_node(node)
    }

    /// Returns the trees that do not connect all their members.
    pub(crate) fn partitioned(&self) -> impl Iterator<Item = u32> + '_ {
        self.index.partitioned()
    }

    /// Schedules the improvement of all trees after the network has improved. A later call moves
    /// the time.
    pub(crate) fn improve_at(&mut self, at: Time) {
        self.improve_at = Some(at);
    }

    /// Returns the next tree to improve.
    pub(crate) fn next_improvable(&mut self, now: Time) -> Option<u32> {
        if self.improve_at.take_if(|at| *at <= now).is_some() {
            self.improvable = self.index.all();
        }
        self.improvable.pop_first()
    }

    /// Returns when to continue improving trees.
    pub(crate) fn improving(&self, now: Time) -> Option<Time> {
        if self.improvable.is_empty() { self.improve_at } else { Some(now) }
    }

    /// Returns the caller that waits for a group, and removes it.
    pub(crate) fn take_caller(&mut self, id: u64) -> Option<RequestReply<Vec<TreeGrant>>> {
        self.callers.clear(id);
        self.groups.get_mut(&id)?.caller.take()
    }

    /// Returns a group for which the caller has waited too long.
    pub(crate) fn overdue(&mut self, now: Time) -> Option<u64> {
        self.callers.expired(now)
    }

    /// Returns when the next caller will have waited too long.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.callers.next()
    }

    /// Returns the description of an adopted group, and removes it.
    pub(crate) fn take_adopted(&mut self, id: u64) -> Option<AdoptedGroup> {
        self.groups.get_mut(&id)?.adopted.take()
    }

    /// Returns the switches that had no room for trees, each with the number of groups concerned.
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

    /// Returns whether no group is left.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let known = self.groups.len() + self.owners.len() + self.changed.len() + self.in_use();
        known == 0 && self.index.is_empty() && self.callers.is_empty()
    }
}
