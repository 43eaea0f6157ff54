//! Resources of this process that all users of the node share, for example its connections and the
//! memory mappings that it makes for ranks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// An amount of a resource, of which each user may take at most half of what the other users have
/// left, so that there is always some left for another user.
#[derive(Clone, Debug)]
pub(crate) struct ResourcePool {
    total: u64,
    /// Maximum amount of one user.
    per_user: u64,
    /// The amount that each user has taken.
    taken: Arc<Mutex<BTreeMap<u32, u64>>>,
}

/// An amount that a user has taken from a pool. Dropping it returns the amount.
#[derive(Debug)]
pub(crate) struct ResourceShare {
    pool: ResourcePool,
    user: u32,
    amount: u64,
}

impl ResourcePool {
    pub(crate) fn new(total: u64, per_user: u64) -> ResourcePool {
        ResourcePool { total, per_user, taken: Arc::default() }
    }

    /// Returns the amount that all users share.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Takes an amount for a user. Returns the maximum of this user now if it is exceeded.
    pub(crate) fn take(&self, user: u32, amount: u64) -> Result<ResourceShare, u64> {
        self.with(|taken| {
            let others: u64 = taken.iter().filter(|(other, _)| **other != user).map(|(_, taken)| taken).sum();
            let most = self.per_user.min(self.total.saturating_sub(others) / 2);
            let own = taken.get(&user).copied().unwrap_or_default();
            match own.checked_add(amount) {
                Some(sum) if sum <= most => drop(taken.insert(user, sum)),
                _ => return Err(most),
            }
            Ok(ResourceShare { pool: self.clone(), user, amount })
        })
    }

    // Every change to the table is complete before the lock is released, so its poisoning can be
    // ignored.
    fn with<R>(&self, change: impl FnOnce(&mut BTreeMap<u32, u64>) -> R) -> R {
        change(&mut self.taken.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for ResourceShare {
    fn drop(&mut self) {
        self.pool.with(|taken| match taken.get_mut(&self.user) {
            Some(own) if *own > self.amount => *own -= self.amount,
            _ => drop(taken.remove(&self.user)),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes shares of 1 until the pool refuses.
    fn take_all(pool: &ResourcePool, user: u32) -> Vec<ResourceShare> {
        std::iter::from_fn(|| pool.take(user, 1).ok()).collect()
    }

    #[test]
    fn each_user_gets_half_of_what_others_leave() {
        let pool = ResourcePool::new(64, u64::MAX);
        let taken: Vec<Vec<ResourceShare>> = (0..5).map(|user| take_all(&pool, user)).collect();
        assert_eq!(taken.iter().map(Vec::len).collect::<Vec<_>>(), [32, 16, 8, 4, 2]);
        assert_eq!(pool.take(0, 1).unwrap_err(), 17);
    }

    #[test]
    fn a_returned_share_may_be_taken_again() {
        let pool = ResourcePool::new(64, 3);
        let mut shares = take_all(&pool, 1);
        assert_eq!(shares.len(), 3);
        assert!(pool.take(1, u64::MAX).is_err());
        shares.pop();
        assert!(pool.take(1, 2).is_err() && pool.take(1, 1).is_ok());
        drop(shares);
        assert!(pool.with(|taken| taken.is_empty()));
    }
}
