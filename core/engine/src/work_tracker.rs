//! Work that was given out to the driver and is not done, and whose memory it uses.
//!
//! Work reads and writes the memory of calls. Once a call is answered its rank may do with its memory what it likes, so
//! the answer to a call that fails meanwhile is held back until no work uses the call's memory. (A call that succeeds has no
//! work left.) A call's buffers are therefore never read or written after its answer.

use crate::failure::{CallFailure, CallStats};
use crate::ids::WorkId;
use std::collections::BTreeMap;

/// How a call ended.
type CallResult = Result<CallStats, CallFailure>;

#[derive(Debug)]
struct TrackedWork {
    group: u64,
    /// The calls whose memory it uses.
    tokens: [Option<u64>; 2],
}

/// A call whose memory is in use.
#[derive(Debug, Default)]
struct PinnedMemory {
    /// By how many works.
    work_tracker: usize,
    /// What it is to be answered then.
    answer: Option<CallResult>,
}

#[derive(Debug, Default)]
pub(crate) struct WorkTracker {
    open: BTreeMap<WorkId, TrackedWork>,
    pinned: BTreeMap<u64, PinnedMemory>,
}

impl WorkTracker {
    /// Work of a group begins, on the memory of some calls.
    pub(crate) fn track(&mut self, id: WorkId, group: u64, tokens: [Option<u64>; 2]) {
        for token in tokens.into_iter().flatten() {
            self.pinned.entry(token).or_default().work_tracker += 1;
        }
        self.open.insert(id, TrackedWork { group, tokens });
    }

    /// Work is done: of which group, and who can be answered now.
    pub(crate) fn finish(&mut self, id: WorkId) -> Option<(u64, Vec<(u64, CallResult)>)> {
        let TrackedWork { group, tokens } = self.open.remove(&id)?;
        let mut answers = Vec::new();
        for token in tokens.into_iter().flatten() {
            let Some(pinned) = self.pinned.get_mut(&token) else { continue };
            pinned.work_tracker -= 1;
            if pinned.work_tracker == 0 {
                let answer = self.pinned.remove(&token).and_then(|pinned| pinned.answer);
                answers.extend(answer.map(|answer| (token, answer)));
            }
        }
        Some((group, answers))
    }

    /// A call has ended: its answer, unless work uses its memory; then it comes when that is done.
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
