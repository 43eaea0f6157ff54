//! Ranks of this node that wait for an answer of the controller, and what it was asked.

use cool_proto::control::agent_message::Body;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The answer to a rank, or why there is none.
pub(super) type Answer<R> = Result<R, String>;

/// A rank that waits.
#[derive(Debug)]
struct Waiter<R> {
    answer: oneshot::Sender<Answer<R>>,
    /// What a controller was asked for it, for another one.
    asked: Option<Body>,
}

type WaitersByRank<K, R> = BTreeMap<(K, u32), Waiter<R>>;

/// Who waits, by what all of a group wait for together and rank.
#[derive(Debug)]
pub(super) struct Waiters<K, R> {
    ranks: Mutex<WaitersByRank<K, R>>,
}

impl<K, R> Default for Waiters<K, R> {
    fn default() -> Waiters<K, R> {
        Waiters { ranks: Mutex::default() }
    }
}

impl<K: Ord + Clone, R> Waiters<K, R> {
    /// A rank begins to wait; `None` if one of its name does already.
    pub(super) fn begin(&self, at: &(K, u32)) -> Option<oneshot::Receiver<Answer<R>>> {
        let mut ranks = self.ranks();
        let Entry::Vacant(vacant) = ranks.entry(at.clone()) else { return None };
        let (answer, answered) = oneshot::channel();
        vacant.insert(Waiter { answer, asked: None });
        Some(answered)
    }

    /// A controller is being asked this for a rank, if it still waits.
    pub(super) fn asked(&self, at: &(K, u32), request: &Body) {
        if let Some(waiter) = self.ranks().get_mut(at) {
            waiter.asked = Some(request.clone());
        }
    }

    /// All that was asked and not answered.
    pub(super) fn requests(&self) -> Vec<Body> {
        self.ranks().values().filter_map(|waiter| waiter.asked.clone()).collect()
    }

    /// Waits for the answer to a rank that has begun to.
    pub(super) async fn answer(
        &self,
        at: &(K, u32),
        answered: oneshot::Receiver<Answer<R>>,
        patience: Duration,
    ) -> Answer<R> {
        match timeout(patience, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err("it waits no longer".to_owned()),
            Err(_) => {
                self.end(at);
                Err(format!("the controller has not answered within {patience:?}"))
            }
        }
    }

    /// A rank waits no longer; whether it did.
    pub(super) fn end(&self, at: &(K, u32)) -> bool {
        self.ranks().remove(at).is_some()
    }

    /// Those who are to be answered: one rank, or all that wait for the same.
    pub(super) fn take(&self, key: &K, rank: Option<u32>) -> Vec<(u32, oneshot::Sender<Answer<R>>)> {
        let mut ranks = self.ranks();
        let same = |at: &(K, u32)| at.0 == *key && rank.is_none_or(|rank| rank == at.1);
        let concerned: Vec<_> = ranks.keys().filter(|at| same(at)).cloned().collect();
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
    fn ranks(&self) -> MutexGuard<'_, WaitersByRank<K, R>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
