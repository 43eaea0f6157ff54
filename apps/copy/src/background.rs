//! Work of a rank in a thread of its own.

use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// Interval at which a busy rank calls a collective, so that the calls of the other ranks do not
/// time out.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// A function that runs in its own thread, and its result once it has returned.
pub(crate) struct BackgroundTask<T>(Receiver<T>, Option<T>);

impl<T: Send + 'static> BackgroundTask<T> {
    /// Starts the function in a thread of this name.
    pub(crate) fn start(
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<BackgroundTask<T>> {
        let (sender, receiver) = channel();
        // Sending fails only if the receiver was dropped. The result is then not needed.
        thread::Builder::new().name(name.into()).spawn(move || drop(sender.send(work())))?;
        Ok(BackgroundTask(receiver, None))
    }

    /// Waits at most for [`TICK`], and returns whether there is a result.
    pub(crate) fn is_done(&mut self) -> bool {
        if self.1.is_none() {
            self.1 = self.0.recv_timeout(TICK).ok();
        }
        self.1.is_some()
    }

    /// Waits for the result, and returns it; `None` if the thread has panicked.
    pub(crate) fn wait(self) -> Option<T> {
        self.1.or_else(|| self.0.recv().ok())
    }
}
