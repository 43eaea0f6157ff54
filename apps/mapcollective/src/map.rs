//! The map stage: one task per partition on the rank's threads. The tables of the tasks are merged
//! within the rank.

use crate::error::Error;
use crate::job::Job;
use crate::link_load::LinkBytes;
use crate::merge_forest::{MergeForest, MergeNode};
use crate::partitions::Partitions;
use crate::report::StageKind;
use crate::table::Table;
use crate::threads;
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The results of mapping a rank's partitions, merged as far as possible without those of other
/// ranks.
#[derive(Debug)]
pub struct Mapped<T> {
    pub(crate) empty: T,
    pub(crate) forest: MergeForest<T>,
}

impl<T: Table> Mapped<T> {
    /// Wraps a table that this rank has computed without [`Job::map`].
    ///
    /// # Panics
    /// If the order of merges matters for such tables, because only [`Job::map`] knows the order.
    pub fn whole(table: T) -> Self {
        assert!(T::ANY_ORDER, "made without partitions, it has no place in their order");
        let mapped = Self::new(table.empty(), 1);
        mapped.forest.insert(mapped.forest.root(), table);
        mapped
    }

    /// Creates a result without tables in a job of `leaves` partitions.
    pub(crate) fn new(empty: T, leaves: usize) -> Self {
        Self { empty, forest: MergeForest::new(leaves) }
    }
}

impl Job<'_> {
    /// Maps each partition of this rank by `task`, which adds keys and values to a table that
    /// starts as `empty`. Threads take one partition at a time, so that no thread waits for a slow
    /// partition. If a task fails at any rank, all ranks fail.
    ///
    /// # Errors
    /// Returns a task's error, or an error if ranks are lost.
    pub fn map<P: Send, T: Table + Sync, E: From<Error> + Display + Send>(
        &self,
        partitions: &mut Partitions<P>,
        empty: &T,
        task: impl Fn(&mut P, &mut T) -> Result<(), E> + Sync,
    ) -> Result<Mapped<T>, E> {
        let start = Instant::now();
        let mapped = Mapped::new(empty.empty(), partitions.count());
        let forest = &mapped.forest;
        // Tables that no task is using. They are reused if tables can be merged in any order; there
        // is then at most one table per thread.
        let spare = Mutex::new(Vec::new());
        let lock = || spare.lock().unwrap_or_else(PoisonError::into_inner);
        let done = threads::try_map_mut(
            self.threads(),
            partitions.iter_mut().collect(),
            |_, (index, part)| -> Result<(), E> {
                let mut table = lock().pop().unwrap_or_else(|| empty.empty());
                task(part, &mut table)?;
                if T::ANY_ORDER {
                    lock().push(table);
                } else {
                    forest.insert(MergeNode::leaf(index), table);
                }
                Ok(())
            },
        );
        lock().drain(..).for_each(|table| forest.insert(forest.root(), table));
        self.agree(done)?;
        self.record_stage(StageKind::Map, start, mapped.forest.rows(), 0, LinkBytes::default());
        Ok(mapped)
    }
}
