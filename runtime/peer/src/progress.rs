//! The progress of a member, and the threads that wait for it.

use cool_swarm::Member;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The progress of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerProgress {
    /// Number of bytes of the content that are not stored yet.
    pub lacking: u64,
    /// Number of bytes of blocks that were sent.
    pub sent: u64,
    /// Whether no new block has arrived for a long time although some are missing.
    pub starved: bool,
    /// Number of late members that may be missing blocks or are still preparing, except those that
    /// have been silent for 20 s.
    pub guests: usize,
    /// Whether a reachable member may be missing blocks.
    pub wanted: bool,
    /// Whether no other member is reachable, and everything that arrived is stored.
    pub alone: bool,
    /// Number of members that sent wrong bytes of generations that they had checked
    /// ([`crate::SwarmPeer::expelled`]).
    pub expelled: usize,
    /// Whether the member has ended.
    pub ended: bool,
}

impl PeerProgress {
    /// Returns whether all bytes of the content are stored.
    pub fn is_whole(&self) -> bool {
        self.lacking == 0
    }
}

/// The progress of a member, shared with the threads that wait for it.
#[derive(Debug, Default)]
pub(crate) struct ProgressBoard {
    progress: Mutex<PeerProgress>,
    changed: Condvar,
    expelled: Mutex<BTreeSet<Member>>,
    memory_peak: AtomicUsize,
}

impl ProgressBoard {
    fn lock(&self) -> MutexGuard<'_, PeerProgress> {
        // The numbers are right even if a thread panicked while it held the lock.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the progress and wakes the waiting threads, but only if `differs` returns true.
    pub(crate) fn change_if(
        &self,
        differs: impl FnOnce(&PeerProgress) -> bool,
        change: impl FnOnce(&mut PeerProgress),
    ) {
        let mut progress = self.lock();
        if differs(&progress) {
            change(&mut progress);
            self.changed.notify_all();
        }
    }

    /// Records the number of bytes of blocks that are held in memory now.
    pub(crate) fn record_memory(&self, bytes: usize) {
        self.memory_peak.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Returns the greatest number of bytes of blocks that were held in memory so far.
    pub(crate) fn memory_peak(&self) -> usize {
        self.memory_peak.load(Ordering::Relaxed)
    }

    pub(crate) fn expel(&self, member: Member) {
        let mut expelled = self.expelled.lock().unwrap_or_else(PoisonError::into_inner);
        expelled.insert(member);
        self.change(|progress| progress.expelled = expelled.len());
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut PeerProgress)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Returns the progress.
    pub(crate) fn progress(&self) -> PeerProgress {
        *self.lock()
    }

    /// Returns the members that sent wrong bytes of generations that they had checked.
    pub(crate) fn expelled(&self) -> BTreeSet<Member> {
        self.expelled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until `is_so` returns true, the member has ended, or the time has passed. Returns the
    /// progress at that point.
    pub(crate) fn wait_until(
        &self,
        is_so: impl Fn(&PeerProgress) -> bool,
        at_most: Duration,
    ) -> PeerProgress {
        let waits = |progress: &mut PeerProgress| !is_so(progress) && !progress.ended;
        let waited = self.changed.wait_timeout_while(self.lock(), at_most, waits);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
