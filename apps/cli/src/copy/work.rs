//! Work in threads beside the rank: what others wait for, and a copy on its way to its place.

use super::fault::Fault;
use super::said::Said;
use super::target::Target;
use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How often a rank says that it still works, so that the others go on waiting.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// Work in a thread of its own, which the calling thread looks after.
pub(super) struct Work<T>(Receiver<T>, Option<T>);

impl<T: Send + 'static> Work<T> {
    pub(super) fn start(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<Work<T>> {
        let (give, taken) = channel();
        // Nobody may want the result any more.
        thread::Builder::new().name(name.into()).spawn(move || drop(give.send(work())))?;
        Ok(Work(taken, None))
    }

    /// Whether it is done; waits a while for it.
    pub(super) fn is_done(&mut self) -> bool {
        if self.1.is_none() {
            self.1 = self.0.recv_timeout(TICK).ok();
        }
        self.1.is_some()
    }

    /// What came of it, once it is done; nothing if its thread has panicked.
    pub(super) fn take(self) -> Option<T> {
        self.1.or_else(|| self.0.recv().ok())
    }
}

/// A copy that is brought to its place while the rank does something else, as serving others. It says itself how that ended.
pub(super) struct Placing(Work<Placed>);

/// How it ended.
pub(super) struct Placed {
    pub(super) outcome: Result<(), Fault>,
    /// Whether it has said so.
    pub(super) told: bool,
}

impl Placing {
    /// Of a copy that is whole, of a rank that began then.
    pub(super) fn of(target: Target, began: Instant) -> Result<Placing, Fault> {
        let dest = target.dest().to_owned();
        Placing::start(began, move || target.finish()).map_err(Fault::at(&dest))
    }

    /// Of a rank that began then.
    pub(super) fn start(
        began: Instant,
        place: impl FnOnce() -> Result<(), Fault> + Send + 'static,
    ) -> io::Result<Placing> {
        let work = Work::start("place", move || {
            let outcome = place();
            let told = Said::ended(began, outcome.as_ref().err()).say().is_ok();
            Placed { outcome, told }
        });
        work.map(Placing)
    }

    /// Waits for its end; nothing if its thread has panicked.
    pub(super) fn end(self) -> Option<Placed> {
        self.0.take()
    }
}
