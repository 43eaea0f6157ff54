//! Groups of the same nodes in the same order, for example a communicator and its duplicates, share
//! their trees, so that switches hold the entries of one group only.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Which groups share which sets of trees. A set has the number of the group that it was made for,
/// and may outlive that group.
#[derive(Debug, Default)]
pub(crate) struct TreeSharing {
    /// Set of trees of each group.
    sets: BTreeMap<u64, u64>,
    users: BTreeMap<u64, TreeSetUsers>,
    /// Set that further groups of these members share.
    shared: BTreeMap<Arc<[String]>, u64>,
}

#[derive(Debug)]
struct TreeSetUsers {
    members: Arc<[String]>,
    groups: BTreeSet<u64>,
}

impl TreeSharing {
    /// Returns the set of trees that a group uses.
    pub(crate) fn set_of(&self, group: u64) -> Option<u64> {
        self.sets.get(&group).copied()
    }

    /// Returns the set of trees that groups of these members share.
    pub(crate) fn of_members(&self, members: &[String]) -> Option<u64> {
        self.shared.get(members).copied()
    }

    /// Adds a set of trees for a group. Further groups share it unless an older set has the same
    /// members.
    pub(crate) fn begin(&mut self, group: u64, members: &[String]) {
        let members: Arc<[String]> = members.into();
        self.shared.entry(Arc::clone(&members)).or_insert(group);
        self.sets.insert(group, group);
        self.users.insert(group, TreeSetUsers { members, groups: BTreeSet::from([group]) });
    }

    /// Lets a group use an existing set.
    pub(crate) fn join(&mut self, group: u64, set: u64) {
        if let Some(users) = self.users.get_mut(&set) {
            users.groups.insert(group);
            self.sets.insert(group, set);
        }
    }

    /// Removes a group. Returns its set if no other group uses it.
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

    /// Returns whether no group is left.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.users.is_empty() && self.shared.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_trees_lasts_until_its_last_group_is_released() {
        let members = |names: &str| names.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (pair, swapped) = (members("a b"), members("b a"));
        let mut sharing = TreeSharing::default();
        sharing.begin(1, &pair);
        assert_eq!((sharing.of_members(&pair), sharing.of_members(&swapped)), (Some(1), None));
        sharing.join(2, 1);
        sharing.begin(3, &swapped);
        // Made while the first set could not be shared, so no other group uses it.
        sharing.begin(4, &pair);
        assert_eq!((sharing.set_of(2), sharing.of_members(&pair)), (Some(1), Some(1)));
        assert_eq!((sharing.leave(1), sharing.leave(1), sharing.leave(4)), (None, None, Some(4)));
        assert_eq!(sharing.of_members(&pair), Some(1));
        assert_eq!((sharing.leave(2), sharing.leave(3)), (Some(1), Some(3)));
        assert!(sharing.is_empty());
    }
}
