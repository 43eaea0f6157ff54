//! Communicators that are others of the same group: the same rank, calls and state, with other wishes for calls by them.

#![allow(unsafe_code, reason = "who lends arrays promises what the compiler cannot see")]

use super::Comm;
use std::sync::Arc;
use std::time::Duration;

impl Comm {
    /// This communicator again, whose calls fail when they make no progress for this long, whatever
    /// [`Comm::set_timeout`] says; so do groups that are made by it. Nothing is sent; the rank has left the group when all
    /// such are dropped.
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

    /// This communicator again, whose started calls use arrays of [`Comm::alloc`] where they are, as calls do that wait:
    /// without a copy when they start and when they are done.
    ///
    /// # Safety
    /// For each call that is started by it: until it is known to be done, nobody writes to what it sends, and nobody reads
    /// or writes what it receives into. It is known to be done once its result or error was told by
    /// [`Pending`](crate::Pending) or a [`CompletionQueue`](crate::CompletionQueue). Of one that is dropped before that, or
    /// forgotten, it is never known.
    #[must_use]
    pub unsafe fn lending(&self) -> Comm {
        Comm { inner: Arc::clone(&self.inner), timeout: self.timeout, lends: true }
    }

    /// How long calls by it may make no progress.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout.unwrap_or_else(|| self.inner.state().timeout)
    }
}
