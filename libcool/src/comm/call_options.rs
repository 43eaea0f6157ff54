//! Options of calls: further handles of a communicator, with the same rank, calls and state, but
//! other options for the calls that are made through them.

#![allow(unsafe_code, reason = "the caller of `lending` guarantees what the compiler cannot verify")]

use super::Comm;
use std::sync::Arc;
use std::time::Duration;

impl Comm {
    /// Returns a handle of this communicator with another timeout: calls through it, and groups
    /// created through it, ignore [`Comm::set_timeout`].
    ///
    /// Nothing is sent. The rank leaves the group when all handles are dropped.
    ///
    /// ```
    /// # fn main() -> Result<(), cool::Error> {
    /// # cool::launch(|comm| -> Result<(), cool::Error> {
    /// comm.with_timeout(std::time::Duration::from_secs(30)).barrier()
    /// # })?.into_iter().collect()
    /// # }
    /// ```
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Comm {
        Comm { inner: Arc::clone(&self.inner), timeout: Some(timeout), lends: self.lends }
    }

    /// Returns a handle of this communicator for started calls that use arrays of [`Comm::alloc`]
    /// without a copy, as blocking calls do.
    ///
    /// # Safety
    /// Until a call that was started through the handle is known to be complete, no code may write
    /// to the memory that it sends, and no code may read or write the memory that it receives into.
    /// A call is known to be complete once its result or error was returned by
    /// [`Pending`](crate::Pending) or a [`CompletionQueue`](crate::CompletionQueue). A call whose
    /// `Pending` was dropped or forgotten before that is never known to be complete.
    #[must_use]
    pub unsafe fn lending(&self) -> Comm {
        Comm { inner: Arc::clone(&self.inner), timeout: self.timeout, lends: true }
    }

    /// Returns the timeout of calls through this handle.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout.unwrap_or_else(|| self.inner.state().timeout)
    }
}
