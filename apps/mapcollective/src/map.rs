//! The map stage: tasks on threads, one for each partition, whose tables are merged within the rank.

use crate::cost::LinkBytes;
use crate::error::Error;
use crate::job::Job;
use crate::partitions::Partitions;
use crate::report::StageKind;
use crate::table::Table;
use crate::threads;
use crate::tree::{MergeForest, MergeNode};
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What the partitions of a rank were mapped to, merged as far as can be without those of other ranks.
#[derive(Debug)]
pub struct Mapped<T> {
    pub(crate) empty: T,
    pub(crate) forest: MergeForest<T>,
}

impl<T: Table> Mapped<T> {
    /// A table that this rank has made in its own way, with threads of its own.
    ///
    /// # Panics
    /// If the order of merges matters in such tables: only [`Job::map`] keeps it.
    pub fn whole(table: T) -> Self {
        assert!(T::ANY_ORDER, "made without partitions, it has no place in their order");
        let mapped = Self::new(table.empty(), 1);
        mapped.forest.insert(mapped.forest.root(), table);
        mapped
    }

    /// Nothing yet.
    pub(crate) fn new(empty: T, leaves: usize) -> Self {
        Self { empty, forest: MergeForest::new(leaves) }
    }
}

impl Job<'_> {
    /// Maps each partition that this rank holds by `task`, which adds keys and values to a table; tables begin as
    /// `empty`. The rank's threads take partitions one by one, so that uneven ones keep none of them waiting. If a task
    /// fails, at any rank, all ranks fail.
    ///
    /// # Errors
    /// A task's error, or that ranks are lost.
    pub fn map<P: Send, T: Table + Sync, E: From<Error> + Display + Send>(
        &self,
        partitions: &mut Partitions<P>,
        empty: &T,
        task: impl Fn(&mut P, &mut T) -> Result<(), E> + Sync,
    ) -> Result<Mapped<T>, E> {
        let start = Instant::now();
        let mapped = Mapped::new(empty.empty(), partitions.count());
        let forest = &mapped.forest;
        // Tables that nobody adds to at the moment: of tables that merge in any order, threads need no more than one each.
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
