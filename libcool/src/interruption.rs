//! Interruption of calls that wait, for languages whose runtime must handle signals meanwhile.

use crate::error::Error;
use std::cell::Cell;
use std::time::Duration;

/// Maximum time between two checks in a call that may be interrupted.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Returns whether the call in which this thread waits must end.
#[doc(hidden)]
pub type InterruptCheck = fn() -> bool;

thread_local! {
    /// The check of this thread, while it executes [`interruptible`].
    static CHECK: Cell<Option<InterruptCheck>> = const { Cell::new(None) };
}

/// Restores the check of an outer [`interruptible`].
struct Restore(Option<InterruptCheck>);

impl Drop for Restore {
    fn drop(&mut self) {
        CHECK.set(self.0);
    }
}

/// Executes `body`. While this thread waits in a call there, it calls `check` several times per
/// second, and the call returns [`Error::Interrupted`] once that returns `true`.
#[doc(hidden)]
pub fn interruptible<R>(check: InterruptCheck, body: impl FnOnce() -> R) -> R {
    let _restore = Restore(CHECK.replace(Some(check)));
    body()
}

/// Returns whether the calls of this thread may be interrupted.
pub(crate) fn is_possible() -> bool {
    CHECK.get().is_some()
}

/// Returns an error if the call in which this thread waits must end.
pub(crate) fn check(rank: usize, operation: &'static str) -> Result<(), Error> {
    match CHECK.get() {
        Some(check) if check() => Err(Error::Interrupted { rank, operation }),
        _ => Ok(()),
    }
}
