//! The order in which partial results are merged: a binary tree over a job's partitions. Its shape
//! depends only on their number. A [`MergeForest`] holds the tables that have not met yet.
//!
//! A node of the tree represents a run of partitions. When the tables of a node's two children meet
//! at a rank, they are merged into the node's table. They meet at the rank that has mapped both, at
//! the first rank of a node of the network, or finally at the owner of the keys. Therefore numbers
//! are summed in the same grouping regardless of where their partitions are.

use crate::error::Malformed;
use crate::table::Table;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A node of the tree. It represents the existing partitions from `index << level` to before
/// `(index + 1) << level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MergeNode {
    pub(crate) level: u8,
    pub(crate) index: u32,
}

impl MergeNode {
    /// Returns the node of a single partition.
    pub(crate) fn leaf(partition: usize) -> MergeNode {
        MergeNode { level: 0, index: partition as u32 }
    }

    fn parent(self) -> MergeNode {
        MergeNode { level: self.level + 1, index: self.index / 2 }
    }

    fn sibling(self) -> MergeNode {
        MergeNode { level: self.level, index: self.index ^ 1 }
    }
}

/// The tables of nodes of the tree that have no partition in common.
#[derive(Debug)]
pub(crate) struct MergeForest<T> {
    leaves: usize,
    tables: Mutex<BTreeMap<MergeNode, T>>,
}

/// The next step for a table at its node.
enum MergeStep<T> {
    /// The table was stored at its node, because the sibling's table is missing or the node is the
    /// root.
    Placed,
    /// There is no sibling, so this table is also that of the parent.
    Promoted(T),
    /// The table must be merged with `other`, which is the earlier one if `before` is true, into
    /// the table of the node `at`.
    Merges { table: T, other: T, before: bool, at: MergeNode },
}

impl<T: Table> MergeForest<T> {
    pub(crate) fn new(leaves: usize) -> MergeForest<T> {
        MergeForest { leaves, tables: Mutex::default() }
    }

    pub(crate) fn leaves(&self) -> usize {
        self.leaves
    }

    /// Returns the root, which represents all partitions.
    pub(crate) fn root(&self) -> MergeNode {
        let level = self.leaves.max(1).next_power_of_two().trailing_zeros() as u8;
        MergeNode { level, index: 0 }
    }

    /// Returns whether the node belongs to this tree. Received nodes must be checked, because they
    /// may be arbitrary.
    pub(crate) fn has(&self, node: MergeNode) -> bool {
        let first = u64::from(node.index).checked_shl(u32::from(node.level)).unwrap_or(u64::MAX);
        node.level <= self.root().level && (first < self.leaves as u64 || node == self.root())
    }

    /// Adds the table of a node, and merges it with others as far as possible. Threads may call
    /// this concurrently. They do not wait for each other's merges, which take place outside of the
    /// lock.
    pub(crate) fn insert(&self, mut at: MergeNode, mut table: T) {
        loop {
            match self.meet(at, table) {
                MergeStep::Placed => return,
                MergeStep::Promoted(same) => (at, table) = (at.parent(), same),
                MergeStep::Merges { table: later, mut other, before: true, at: up } => {
                    other.merge(later);
                    (at, table) = (up, other);
                }
                MergeStep::Merges { table: mut first, other, before: false, at: up } => {
                    first.merge(other);
                    (at, table) = (up, first);
                }
            }
        }
    }

    /// Removes the table with which a table must be merged. If there is none, stores the table at
    /// its node, or returns it for the parent if the node has no sibling.
    fn meet(&self, at: MergeNode, table: T) -> MergeStep<T> {
        let mut tables = self.lock();
        // Two tables of the same node occur only if tables can be merged in any order.
        if let Some(other) = tables.remove(&at) {
            return MergeStep::Merges { table, other, before: true, at };
        }
        if at.level < self.root().level {
            let sibling = at.sibling();
            if !self.has(sibling) {
                return MergeStep::Promoted(table);
            }
            if let Some(other) = tables.remove(&sibling) {
                return MergeStep::Merges { table, other, before: sibling < at, at: at.parent() };
            }
        }
        tables.insert(at, table);
        MergeStep::Placed
    }

    /// Adds a serialized table of a node, as [`MergeForest::insert`] does. `empty` must have the
    /// same shape.
    pub(crate) fn insert_bytes(&self, at: MergeNode, empty: &T, bytes: &[u8]) -> Result<(), Malformed> {
        let known = T::ANY_ORDER.then(|| self.lock().remove(&at)).flatten();
        let mut table = known.unwrap_or_else(|| empty.empty());
        table.merge_bytes(bytes)?;
        self.insert(at, table);
        Ok(())
    }

    /// Returns the number of keys with values, summed over the tables.
    pub(crate) fn rows(&self) -> usize {
        self.lock().values().map(Table::len).sum()
    }

    /// Returns all tables by their nodes.
    pub(crate) fn into_tables(self) -> BTreeMap<MergeNode, T> {
        self.tables.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the table of all partitions, or an error if partitions are missing. Without tables,
    /// returns an empty table.
    pub(crate) fn into_root(self, empty: &T) -> Result<T, Malformed> {
        let root = self.root();
        let mut tables = self.into_tables();
        let whole = tables.remove(&root);
        if tables.is_empty() {
            Ok(whole.unwrap_or_else(|| empty.empty()))
        } else {
            Err(Malformed::Partitions)
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<MergeNode, T>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Keyed, List};
    use proptest::prelude::*;

    /// Returns the partitions in the order and grouping of their merges.
    fn grouped(leaves: usize, order: &[usize], places: usize) -> String {
        let leaf = |i: usize| {
            let mut table = Keyed::new();
            table.add(0u8, Grouping(i.to_string()));
            table
        };
        let owner = MergeForest::new(leaves);
        for place in 0..places {
            let here = MergeForest::new(leaves);
            for i in order.iter().filter(|i| *i % places == place) {
                here.insert(MergeNode::leaf(*i), leaf(*i));
            }
            for (node, table) in here.into_tables() {
                owner.insert(node, table);
            }
        }
        let table = owner.into_root(&Keyed::new()).expect("all are there");
        table.get(&0).map(|value| value.0.clone()).unwrap_or_default()
    }

    /// Records the grouping of its merges.
    #[derive(Debug, serde::Serialize, serde::Deserialize)]
    struct Grouping(String);

    impl crate::Value for Grouping {
        const ANY_ORDER: bool = false;

        fn merge(&mut self, later: Self) {
            self.0 = format!("({}{})", self.0, later.0);
        }
    }

    #[test]
    fn the_tree_is_balanced_and_in_order() {
        assert_eq!(grouped(5, &[0, 1, 2, 3, 4], 1), "(((01)(23))4)");
        assert_eq!(grouped(1, &[0], 1), "0");
        assert_eq!(grouped(0, &[], 1), "");
    }

    proptest! {
        #[test]
        fn merges_have_one_grouping_in_any_order_and_place(
            order in (1usize..40).prop_flat_map(|n| Just((0..n).collect::<Vec<_>>()).prop_shuffle()),
            places in 1usize..9,
        ) {
            let plain: Vec<usize> = (0..order.len()).collect();
            prop_assert_eq!(grouped(order.len(), &order, places), grouped(order.len(), &plain, 1));
        }
    }

    #[test]
    fn a_missing_partition_is_detected() {
        let forest = MergeForest::new(3);
        let mut table = Keyed::new();
        table.add(1u8, List(vec![1u8]));
        forest.insert(MergeNode::leaf(2), table);
        assert_eq!(forest.into_root(&Keyed::new()).unwrap_err(), Malformed::Partitions);
    }

    #[test]
    fn nodes_that_are_not_in_the_tree_are_known() {
        let forest = MergeForest::<Keyed<u8, List<u8>>>::new(5);
        let has = |level, index| forest.has(MergeNode { level, index });
        assert!(has(0, 4) && has(3, 0) && has(2, 1));
        assert!(!has(0, 5) && !has(4, 0) && !has(255, 0) && !has(3, 1) && !has(0, u32::MAX));
    }
}
