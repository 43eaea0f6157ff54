//! The work that the driver has not completed yet, and the memory that it uses.
//!
//! Work reads and writes the memory of calls. A rank may reuse the memory of a call once it has the
//! reply. Therefore, if a call fails while work is in progress on its memory, the tracker holds
//! back the reply until that work has completed. (A call that succeeds has no work left.) So a
//! call's buffers are never accessed after its reply.

use crate::failure::{CallFailure, CallStats};
use crate::ids::WorkId;
use std::collections::BTreeMap;

/// The result of a call.
type CallResult = Result<CallStats, CallFailure>;

#[derive(Debug)]
struct TrackedWork {
    group: u64,
    /// The calls that own the memory in use.
    tokens: [Option<u64>; 2],
}

/// A call with memory in use.
#[derive(Debug, Default)]
struct PinnedMemory {
    /// The number of work items that use it.
    items: usize,
    /// The reply to send after the last of them.
    answer: Option<CallResult>,
}

#[derive(Debug, Default)]
pub(crate) struct WorkTracker {
    open: BTreeMap<WorkId, TrackedWork>,
    pinned: BTreeMap<u64, PinnedMemory>,
}

impl WorkTracker {
    /// Records that work of a group has started on the memory of some calls.
    pub(crate) fn track(&mut self, id: WorkId, group: u64, tokens: [Option<u64>; 2]) {
        for token in tokens.into_iter().flatten() {
            self.pinned.entry(token).or_default().items += 1;
        }
        self.open.insert(id, TrackedWork { group, tokens });
    }

    /// Records that work has completed. Returns its group, and the replies that can be sent now.
    pub(crate) fn finish(&mut self, id: WorkId) -> Option<(u64, Vec<(u64, CallResult)>)> {
        let TrackedWork { group, tokens } = self.open.remove(&id)?;
        let mut answers = Vec::new();
        for token in tokens.into_iter().flatten() {
            let Some(pinned) = self.pinned.get_mut(&token) else { continue };
            pinned.items -= 1;
            if pinned.items == 0 {
                let answer = self.pinned.remove(&token).and_then(|pinned| pinned.answer);
                answers.extend(answer.map(|answer| (token, answer)));
            }
        }
        Some((group, answers))
    }

    /// Records that a call has ended. Returns the result if the reply can be sent now, or `None` if
    /// work uses the call's memory; [`WorkTracker::finish`] then returns the result later.
    pub(crate) fn complete(&mut self, token: u64, answer: CallResult) -> Option<CallResult> {
        match self.pinned.get_mut(&token) {
            None => Some(answer),
            Some(pinned) => {
                pinned.answer = Some(answer);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_answered_when_the_last_work_on_its_memory_is_done() {
        let mut work_tracker = WorkTracker::default();
        work_tracker.track(WorkId(1), 7, [Some(10), Some(11)]);
        work_tracker.track(WorkId(2), 7, [Some(10), None]);
        let done = || Ok(CallStats::default());
        assert_eq!(work_tracker.complete(12, done()), Some(done()));
        assert_eq!((work_tracker.complete(10, done()), work_tracker.complete(11, done())), (None, None));
        assert_eq!(work_tracker.finish(WorkId(1)), Some((7, vec![(11, done())])));
        assert_eq!(work_tracker.finish(WorkId(2)), Some((7, vec![(10, done())])));
        assert_eq!(work_tracker.finish(WorkId(2)), None);
        assert_eq!(work_tracker.complete(10, done()), Some(done()));
    }
}
