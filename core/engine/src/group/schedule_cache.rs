//! The cache of a group's compiled schedules. Programs repeat the same few calls, so most schedules
//! are compiled only once.

use crate::call_signature::CallSignature;
use crate::program::CompiledSchedule;
use std::collections::VecDeque;
use std::sync::Arc;

/// Number of compiled schedules that a group keeps.
const SCHEDULES_MAX: usize = 32;

/// The schedules of the latest different calls, the oldest first.
#[derive(Debug, Default)]
pub(super) struct ScheduleCache {
    schedules: VecDeque<(CallSignature, Arc<CompiledSchedule>)>,
}

impl ScheduleCache {
    /// Returns the schedule of a call, or `None` if it is not in the cache.
    pub(super) fn find(&self, signature: &CallSignature) -> Option<Arc<CompiledSchedule>> {
        let known = self.schedules.iter().find(|(known, _)| known == signature);
        known.map(|(_, compiled)| Arc::clone(compiled))
    }

    /// Adds the schedule of a call, and removes the oldest one if the cache is full.
    pub(super) fn insert(&mut self, signature: CallSignature, compiled: Arc<CompiledSchedule>) {
        if self.schedules.len() >= SCHEDULES_MAX {
            self.schedules.pop_front();
        }
        self.schedules.push_back((signature, compiled));
    }
}
