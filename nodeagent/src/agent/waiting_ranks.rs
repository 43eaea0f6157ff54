//! Ranks of this node that wait for an answer of the controller, and what it was asked.

use cool_proto::control::agent_message::Body;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The answer to a rank, or why there is none.
pub(super) type WaitResult<R> = Result<R, String>;

/// A rank that waits.
#[derive(Debug)]
struct WaitingRank<R> {
    /// Its number among all who have waited: another one may come by the same name.
    ticket: u64,
    answer: oneshot::Sender<WaitResult<R>>,
    /// What a controller was asked for it, for another one.
    request: Option<Body>,
}

type WaitingByRank<K, R> = BTreeMap<(K, u32), WaitingRank<R>>;

/// Who waits, by what all of a group wait for together and rank.
#[derive(Debug)]
pub(super) struct WaitingRanks<K, R> {
    ranks: Mutex<WaitingByRank<K, R>>,
    tickets: AtomicU64,
}

impl<K, R> Default for WaitingRanks<K, R> {
    fn default() -> WaitingRanks<K, R> {
        WaitingRanks { ranks: Mutex::default(), tickets: AtomicU64::new(1) }
    }
}

impl<K: Ord + Clone, R> WaitingRanks<K, R> {
    /// A rank begins to wait, by a ticket; `None` if one of its name does already.
    pub(super) fn register(&self, at: &(K, u32)) -> Option<(u64, oneshot::Receiver<WaitResult<R>>)> {
        let mut ranks = self.ranks();
        let Entry::Vacant(vacant) = ranks.entry(at.clone()) else { return None };
        let (answer, answered) = oneshot::channel();
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        vacant.insert(WaitingRank { ticket, answer, request: None });
        Some((ticket, answered))
    }

    /// A controller is being asked this for a rank, if it still waits.
    pub(super) fn record_request(&self, at: &(K, u32), request: &Body) {
        if let Some(waiter) = self.ranks().get_mut(at) {
            waiter.request = Some(request.clone());
        }
    }

    /// All that was asked and not answered.
    pub(super) fn requests(&self) -> Vec<Body> {
        self.ranks().values().filter_map(|waiter| waiter.request.clone()).collect()
    }

    /// Waits for the answer to a rank that has begun to.
    pub(super) async fn wait(
        &self,
        at: &(K, u32),
        answered: oneshot::Receiver<WaitResult<R>>,
        wait_limit: Duration,
    ) -> WaitResult<R> {
        match timeout(wait_limit, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err("it waits no longer".to_owned()),
            Err(_) => {
                self.unregister(at);
                Err(format!("the controller has not answered within {wait_limit:?}"))
            }
        }
    }

    /// A rank waits no longer; whether it did.
    pub(super) fn unregister(&self, at: &(K, u32)) -> bool {
        self.ranks().remove(at).is_some()
    }

    /// Those who are to be answered: one rank, or all that wait for the same, and of these those who have the tickets, if any are
    /// named.
    pub(super) fn take(
        &self,
        key: &K,
        rank: Option<u32>,
        tickets: &[u64],
    ) -> Vec<(u32, oneshot::Sender<WaitResult<R>>)> {
        let mut ranks = self.ranks();
        let same = |(at, waiter): &(&(K, u32), &WaitingRank<R>)| {
            let named = tickets.is_empty() || tickets.contains(&waiter.ticket);
            at.0 == *key && rank.is_none_or(|rank| rank == at.1) && named
        };
        let concerned: Vec<_> = ranks.iter().filter(same).map(|(at, _)| at.clone()).collect();
        concerned.into_iter().filter_map(|at| Some((at.1, ranks.remove(&at)?.answer))).collect()
    }

    /// Nobody will answer.
    pub(super) fn give_up(&self, why: &str) {
        for (_, waiter) in std::mem::take(&mut *self.ranks()) {
            // Who does not wait any more need not know.
            let _ = waiter.answer.send(Err(why.to_owned()));
        }
    }

    // A panic elsewhere leaves the table whole: every change to it is one insert or remove.
    fn ranks(&self) -> MutexGuard<'_, WaitingByRank<K, R>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranks that are answered.
    fn ranks(taken: Vec<(u32, oneshot::Sender<WaitResult<()>>)>) -> Vec<u32> {
        taken.into_iter().map(|(rank, _)| rank).collect()
    }

    #[test]
    fn what_became_of_some_is_not_told_to_others_who_wait_under_the_same_key() {
        let waiters = WaitingRanks::default();
        let first = waiters.register(&("k", 0)).unwrap().0;
        assert!(waiters.register(&("k", 0)).is_none());
        // Its process is killed and started again, and another one comes, before it is known that the first waited in vain.
        assert!(waiters.unregister(&("k", 0)));
        let again = waiters.register(&("k", 0)).unwrap().0;
        let other = waiters.register(&("k", 1)).unwrap().0;
        assert!(ranks(waiters.take(&"k", None, &[first])).is_empty());
        assert_eq!(ranks(waiters.take(&"k", None, &[again, other])), [0, 1]);
    }

    #[test]
    fn an_answer_without_tickets_is_for_all_or_for_its_rank() {
        let waiters = WaitingRanks::default();
        let _waiting: Vec<_> = (0..3).map(|rank| waiters.register(&("k", rank)).unwrap()).collect();
        assert_eq!(ranks(waiters.take(&"k", Some(1), &[])), [1]);
        assert!(ranks(waiters.take(&"other", None, &[])).is_empty());
        assert_eq!(ranks(waiters.take(&"k", None, &[])), [0, 2]);
    }
}
