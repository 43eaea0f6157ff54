//! Groups of the same nodes in the same order (a communicator and its duplicates, say) have the same trees: however many there are,
//! switches hold the entries of one.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Who shares what with whom. A set of trees has the number of the group that it was made for, and outlives that.
#[derive(Debug, Default)]
pub(crate) struct TreeSharing {
    /// The set of trees of each group.
    sets: BTreeMap<u64, u64>,
    users: BTreeMap<u64, TreeSetUsers>,
    /// The set that is shared by further groups of these nodes.
    shared: BTreeMap<Arc<[String]>, u64>,
}

#[derive(Debug)]
struct TreeSetUsers {
    members: Arc<[String]>,
    groups: BTreeSet<u64>,
}

impl TreeSharing {
    /// The set of trees that a group uses; none if it is not known.
    pub(crate) fn set_of(&self, group: u64) -> Option<u64> {
        self.sets.get(&group).copied()
    }

    /// The set of trees for groups of these members.
    pub(crate) fn of_members(&self, members: &[String]) -> Option<u64> {
        self.shared.get(members).copied()
    }

    /// Trees are made for a group. Others share them, unless there are some for these members.
    pub(crate) fn begin(&mut self, group: u64, members: &[String]) {
        let members: Arc<[String]> = members.into();
        self.shared.entry(Arc::clone(&members)).or_insert(group);
        self.sets.insert(group, group);
        self.users.insert(group, TreeSetUsers { members, groups: BTreeSet::from([group]) });
    }

    /// A group uses the trees of a set.
    pub(crate) fn join(&mut self, group: u64, set: u64) {
        if let Some(users) = self.users.get_mut(&set) {
            users.groups.insert(group);
            self.sets.insert(group, set);
        }
    }

    /// A group is released; its set if nobody uses that any more.
    pub(crate) fn leave(&mut self, group: u64) -> Option<u64> {
        let set = self.sets.remove(&group)?;
        let Entry::Occupied(mut users) = self.users.entry(set) else { return None };
        users.get_mut().groups.remove(&group);
        if !users.get().groups.is_empty() {
            return None;
        }
        let TreeSetUsers { members, .. } = users.remove();
        if self.shared.get(&members) == Some(&set) {
            self.shared.remove(&members);
        }
        Some(set)
    }

    /// Whether nothing is known of any group.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.users.is_empty() && self.shared.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_trees_lasts_until_its_last_group_is_released_whichever_that_is() {
        let members = |names: &str| names.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (pair, swapped) = (members("a b"), members("b a"));
        let mut sharing = TreeSharing::default();
        sharing.begin(1, &pair);
        assert_eq!((sharing.of_members(&pair), sharing.of_members(&swapped)), (Some(1), None));
        sharing.join(2, 1);
        sharing.begin(3, &swapped);
        // Made while the first set could not be shared: it is nobody else's.
        sharing.begin(4, &pair);
        assert_eq!((sharing.set_of(2), sharing.of_members(&pair)), (Some(1), Some(1)));
        assert_eq!((sharing.leave(1), sharing.leave(1), sharing.leave(4)), (None, None, Some(4)));
        assert_eq!(sharing.of_members(&pair), Some(1));
        assert_eq!((sharing.leave(2), sharing.leave(3)), (Some(1), Some(3)));
        assert!(sharing.is_empty());
    }
}
