//! The map stage: tasks on threads, one for each partition, whose tables are merged within the rank.

use crate::cost::LinkBytes;
use crate::error::Error;
use crate::job::Job;
use crate::partitions::Partitions;
use crate::report::StageKind;
use crate::table::Table;
use crate::tree::{Forest, Node};
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What the partitions of a rank were mapped to, merged as far as can be without those of other ranks.
#[derive(Debug)]
pub struct Mapped<T> {
    pub(crate) empty: T,
    pub(crate) forest: Forest<T>,
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
        Self { empty, forest: Forest::new(leaves) }
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
        let threads = self.threads().min(partitions.iter().count());
        let queue = Queue { parts: Mutex::new(Some(partitions.iter_mut())), mapped: &mapped, task: &task };
        let done = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(|| queue.work())).collect();
            let mine = queue.work();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            others.into_iter().map(join).fold(mine, Result::and)
        });
        self.agree(done)?;
        self.note(StageKind::Map, start, mapped.forest.rows(), 0, LinkBytes::default());
        Ok(mapped)
    }
}

/// The tasks that are left.
struct Queue<'q, I, T, F> {
    /// None once a task has failed.
    parts: Mutex<Option<I>>,
    mapped: &'q Mapped<T>,
    task: &'q F,
}

impl<'p, P: 'p, I: Iterator<Item = (usize, &'p mut P)>, T: Table, F> Queue<'_, I, T, F> {
    /// Does tasks until there are none.
    fn work<E>(&self) -> Result<(), E>
    where
        F: Fn(&mut P, &mut T) -> Result<(), E>,
    {
        let forest = &self.mapped.forest;
        let mut table = self.mapped.empty.empty();
        while let Some((index, part)) = self.next() {
            (self.task)(part, &mut table).inspect_err(|_| self.stop())?;
            if !T::ANY_ORDER {
                let empty = table.empty();
                forest.insert(Node::leaf(index), std::mem::replace(&mut table, empty));
            }
        }
        if T::ANY_ORDER {
            forest.insert(forest.root(), table);
        }
        Ok(())
    }

    fn next(&self) -> Option<(usize, &'p mut P)> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).as_mut()?.next()
    }

    fn stop(&self) {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
