//! The ranks of this node that wait for an answer of the controller, with the requests that were
//! sent for them.

use cool_proto::control::agent_message::Body;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The answer to a rank, or the reason why there is none.
pub(super) type WaitResult<R> = Result<R, String>;

/// A rank that waits for the controller's answer.
#[derive(Debug)]
struct WaitingRank<R> {
    /// The number of this wait, because another process may wait later as the same rank.
    ticket: u64,
    answer: oneshot::Sender<WaitResult<R>>,
    /// The request that was sent to the controller, kept for the case that another controller takes
    /// over.
    request: Option<Body>,
}

type WaitingByRank<K, R> = BTreeMap<(K, u32), WaitingRank<R>>;

/// The waiting ranks, by the key that they wait under and their rank.
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
    /// Registers a rank. Returns its ticket and the receiver of its answer, or `None` if this rank
    /// is already waiting.
    pub(super) fn register(&self, at: &(K, u32)) -> Option<(u64, oneshot::Receiver<WaitResult<R>>)> {
        let mut ranks = self.ranks();
        let Entry::Vacant(vacant) = ranks.entry(at.clone()) else { return None };
        let (answer, answered) = oneshot::channel();
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        vacant.insert(WaitingRank { ticket, answer, request: None });
        Some((ticket, answered))
    }

    /// Records the request that is sent to the controller for a rank, if it is still waiting.
    pub(super) fn record_request(&self, at: &(K, u32), request: &Body) {
        if let Some(waiter) = self.ranks().get_mut(at) {
            waiter.request = Some(request.clone());
        }
    }

    /// Returns the requests that the controller has not answered.
    pub(super) fn requests(&self) -> Vec<Body> {
        self.ranks().values().filter_map(|waiter| waiter.request.clone()).collect()
    }

    /// Waits for the answer to a registered rank. After `wait_limit`, removes the rank and returns
    /// an error.
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

    /// Removes a rank. Returns whether it was waiting.
    pub(super) fn unregister(&self, at: &(K, u32)) -> bool {
        self.ranks().remove(at).is_some()
    }

    /// Removes the waiting ranks that an answer concerns, and returns them with the senders of
    /// their answers: one rank with this key, or all if `rank` is `None`. If there are tickets,
    /// only waits with these tickets are concerned.
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

    /// Answers all waits with an error.
    pub(super) fn give_up(&self, why: &str) {
        for (_, waiter) in std::mem::take(&mut *self.ranks()) {
            // The rank may have stopped waiting.
            let _ = waiter.answer.send(Err(why.to_owned()));
        }
    }

    // A panic elsewhere leaves the table consistent, because every change is one insertion or
    // removal.
    fn ranks(&self) -> MutexGuard<'_, WaitingByRank<K, R>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the answered ranks.
    fn ranks(taken: Vec<(u32, oneshot::Sender<WaitResult<()>>)>) -> Vec<u32> {
        taken.into_iter().map(|(rank, _)| rank).collect()
    }

    #[test]
    fn an_answer_with_tickets_reaches_only_those_waits() {
        let waiters = WaitingRanks::default();
        let first = waiters.register(&("k", 0)).unwrap().0;
        assert!(waiters.register(&("k", 0)).is_none());
        // The process is killed and started again, and another rank starts to wait, before the
        // controller's answer to the first wait arrives.
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
