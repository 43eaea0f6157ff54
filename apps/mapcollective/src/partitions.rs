//! The partitions of a job's input, and their distribution over the ranks. Each rank keeps its
//! partitions in memory until the job ends.

use crate::error::Error;
use crate::job::Job;
use crate::link_load::share;
use crate::threads;
use cool::Op;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::Display;

/// The partitions that this rank holds. They must be created outside of the program that is passed
/// to [`run`](crate::run), because they have to survive the loss of ranks.
#[derive(Debug)]
pub struct Partitions<P> {
    count: usize,
    held: BTreeMap<usize, P>,
}

impl<P> Partitions<P> {
    /// Creates `count` partitions, numbered from 0, none of which is loaded. The count must not
    /// depend on the number of ranks or threads, because results depend on it where the order of
    /// merges matters. About 4 to 16 partitions per thread let fast threads take over work from
    /// slow ones.
    ///
    /// # Panics
    /// If there are 2^32 or more.
    pub fn new(count: usize) -> Self {
        assert!(u32::try_from(count).is_ok(), "{count} partitions");
        Self { count, held: BTreeMap::new() }
    }

    /// Returns the number of partitions on all ranks.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the partitions of this rank, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &P)> {
        self.held.iter().map(|(index, part)| (*index, part))
    }

    /// Returns the same partitions for modification.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut P)> {
        self.held.iter_mut().map(|(index, part)| (*index, part))
    }
}

impl Job<'_> {
    /// Distributes the partitions that no rank holds. In the first call, these are all partitions,
    /// and each rank receives consecutive ones, in nearly equal numbers. After a loss, these are
    /// the partitions of the lost ranks, and the ranks that hold the fewest receive them. Each rank
    /// calls `load` for its new partitions, on all its threads. All ranks must call this. If a
    /// partition cannot be loaded, all ranks return an error. If the call fails, a rank that has
    /// loaded its partitions keeps them, so that it need not load them again after a loss.
    ///
    /// # Errors
    /// If a partition cannot be loaded, or ranks are lost.
    pub fn deal<P: Send, E: From<Error> + Display + Send>(
        &self,
        partitions: &mut Partitions<P>,
        load: impl Fn(usize) -> Result<P, E> + Sync,
    ) -> Result<(), E> {
        let mut holders = vec![0u32; partitions.count];
        for index in partitions.held.keys() {
            holders[*index] = self.rank() as u32 + 1;
        }
        let holders = self.allreduce(&holders, Op::Max)?;
        let missing = assign_missing(&holders, self.size()).swap_remove(self.rank());
        let load = |_, index| load(index).map(|part| (index, part));
        let loaded = threads::try_map_mut(self.threads(), missing, load);
        self.agree(loaded.map(|loaded| partitions.held.extend(loaded)))
    }
}

/// Returns the partitions that each rank must load. `holders` contains, for each partition, 0 if no
/// rank holds it, and otherwise the rank plus 1.
fn assign_missing(holders: &[u32], ranks: usize) -> Vec<Vec<usize>> {
    let mut missing = (0..holders.len()).filter(|index| holders[*index] == 0);
    if holders.iter().all(|holder| *holder == 0) {
        return (0..ranks).map(|rank| share(holders.len(), ranks, rank).collect()).collect();
    }
    let mut held = vec![0usize; ranks];
    holders.iter().filter(|holder| **holder > 0).for_each(|holder| held[*holder as usize - 1] += 1);
    let mut fewest: BinaryHeap<_> =
        held.into_iter().enumerate().map(|(rank, n)| Reverse((n, rank))).collect();
    let mut more = vec![0usize; ranks];
    for _ in missing.clone() {
        if let Some(mut least) = fewest.peek_mut() {
            more[least.0.1] += 1;
            least.0.0 += 1;
        }
    }
    more.into_iter().map(|n| missing.by_ref().take(n).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_partition_is_held_once_and_evenly_and_none_moves(
            count in 0usize..60,
            lost in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
            ranks in 5usize..9,
        ) {
            let mut holders = vec![0u32; count];
            let mut left = ranks;
            let deal = |holders: &mut Vec<u32>, ranks: usize| {
                for (rank, indices) in assign_missing(holders, ranks).into_iter().enumerate() {
                    for index in indices {
                        assert_eq!(std::mem::replace(&mut holders[index], rank as u32 + 1), 0);
                    }
                }
                let loads: Vec<_> =
                    (1..=ranks as u32).map(|r| holders.iter().filter(|h| **h == r).count()).collect();
                assert!(holders.iter().all(|h| *h > 0));
                assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1, "{loads:?}");
            };
            deal(&mut holders, left);
            for index in lost {
                let lost_holder = index.index(left) as u32 + 1;
                for holder in &mut holders {
                    *holder = if *holder == lost_holder { 0 } else { *holder - u32::from(*holder > lost_holder) };
                }
                left -= 1;
                let before = holders.clone();
                deal(&mut holders, left);
                prop_assert!(before.iter().zip(&holders).all(|(b, h)| *b == 0 || b == h));
            }
        }
    }

    #[test]
    fn at_first_each_rank_has_a_run() {
        assert_eq!(assign_missing(&[0; 5], 2), [vec![0, 1], vec![2, 3, 4]]);
    }
}
