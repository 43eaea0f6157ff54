//! The memories that the engine names: ranks' buffers, from a call to its answer, and the engine's own.

use crate::engine::{SharedSlice, zeros};
use cool_engine::{MemoryId, MemoryRange};
use std::collections::BTreeMap;

/// Memories by the names that engine and driver have for them. What has a clone of a slice keeps its memory.
#[derive(Debug, Default)]
pub(super) struct MemoryTable {
    by_id: BTreeMap<MemoryId, SharedSlice>,
    /// Of each call or message that is not answered, by its token.
    of_token: BTreeMap<u64, Vec<MemoryId>>,
    last: u64,
}

impl MemoryTable {
    /// Names a buffer of a call.
    pub(super) fn register(&mut self, token: u64, buffer: SharedSlice) -> MemoryRange {
        self.last += 1;
        let memory = MemoryId::Registered(self.last);
        let len = buffer.bytes();
        self.by_id.insert(memory, buffer);
        self.of_token.entry(token).or_default().push(memory);
        MemoryRange { memory, offset: 0, len }
    }

    /// A call is answered: its buffers are its rank's alone again.
    pub(super) fn forget(&mut self, token: u64) {
        for memory in self.of_token.remove(&token).unwrap_or_default() {
            self.by_id.remove(&memory);
        }
    }

    /// Makes a memory of zeros; whether there is as much.
    pub(super) fn allocate(&mut self, memory: MemoryId, bytes: u64) -> bool {
        let zeros = zeros(bytes);
        let made = zeros.is_some();
        self.by_id.extend(zeros.map(|zeros| (memory, zeros)));
        made
    }

    pub(super) fn free(&mut self, memory: MemoryId) {
        self.by_id.remove(&memory);
    }

    /// The bytes of a range; none if it is empty, or of memory that there was not enough for.
    pub(super) fn get(&self, range: MemoryRange) -> Option<SharedSlice> {
        if range.len == 0 {
            return None;
        }
        self.by_id.get(&range.memory).map(|memory| memory.part(range.offset, range.len))
    }

    /// Puts bytes to their place.
    pub(super) fn store(&self, bytes: &[u8], to: MemoryRange) {
        if let Some(memory) = self.by_id.get(&to.memory) {
            memory.write(to.offset, bytes);
        }
    }
}
