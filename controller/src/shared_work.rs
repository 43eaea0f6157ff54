//! Work that is done once for all callers that request it at the same time, so that the load does
//! not depend on their number.

use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Mutex;

/// The latest result of some work.
#[derive(Debug)]
pub(crate) struct SharedWork<T> {
    /// Number of times that the work has begun.
    begun: AtomicU64,
    /// The latest result, and the number of its work.
    latest: Mutex<Option<(u64, T)>>,
}

impl<T> Default for SharedWork<T> {
    fn default() -> SharedWork<T> {
        SharedWork { begun: AtomicU64::default(), latest: Mutex::default() }
    }
}

impl<T: Clone> SharedWork<T> {
    /// Returns a result of work that has begun after this call. Callers that wait for the same work
    /// share its result.
    pub(crate) async fn result(&self, work: impl Future<Output = T>) -> T {
        let begun_before = self.begun.load(Ordering::SeqCst);
        let mut latest = self.latest.lock().await;
        if let Some((number, result)) = &*latest
            && *number > begun_before
        {
            return result.clone();
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let result = work.await;
        *latest = Some((number, result.clone()));
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use tokio::task::yield_now;

    #[tokio::test]
    async fn callers_that_wait_together_share_the_next_result() {
        let (shared, executions) = (SharedWork::default(), Cell::new(0));
        let request = || {
            shared.result(async {
                executions.set(executions.get() + 1);
                let number = executions.get();
                yield_now().await;
                number
            })
        };
        // The second and later ones come after the first work has begun.
        let results = tokio::join!(request(), request(), request(), request());
        assert_eq!(results, (1, 2, 2, 2));
        assert_eq!(request().await, 3);
    }
}
