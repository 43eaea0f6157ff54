//! The memory to which the engine refers by identifiers: ranks' buffers from a request to its
//! reply, and the engine's own memory.

use crate::engine::{SharedSlice, zeros};
use cool_engine::{MemoryId, MemoryRange};
use std::collections::BTreeMap;

/// The memory by the identifiers that the engine and the driver use. A clone of a slice keeps its
/// memory alive.
#[derive(Debug, Default)]
pub(super) struct MemoryTable {
    by_id: BTreeMap<MemoryId, SharedSlice>,
    /// The memory of each open request, by its token.
    of_token: BTreeMap<u64, Vec<MemoryId>>,
    last: u64,
}

impl MemoryTable {
    /// Registers a buffer of a request. Returns the range by which the engine refers to it.
    pub(super) fn register(&mut self, token: u64, buffer: SharedSlice) -> MemoryRange {
        self.last += 1;
        let memory = MemoryId::Registered(self.last);
        let len = buffer.bytes();
        self.by_id.insert(memory, buffer);
        self.of_token.entry(token).or_default().push(memory);
        MemoryRange { memory, offset: 0, len }
    }

    /// Removes the buffers of a request, because they belong to its rank alone again.
    pub(super) fn forget(&mut self, token: u64) {
        for memory in self.of_token.remove(&token).unwrap_or_default() {
            self.by_id.remove(&memory);
        }
    }

    /// Allocates memory that is filled with zeros. Returns false if there is not enough memory.
    pub(super) fn allocate(&mut self, memory: MemoryId, bytes: u64) -> bool {
        let zeros = zeros(bytes);
        let made = zeros.is_some();
        self.by_id.extend(zeros.map(|zeros| (memory, zeros)));
        made
    }

    pub(super) fn free(&mut self, memory: MemoryId) {
        self.by_id.remove(&memory);
    }

    /// Returns the bytes of a range, or `None` if the range is empty or its memory could not be
    /// allocated.
    pub(super) fn get(&self, range: MemoryRange) -> Option<SharedSlice> {
        if range.len == 0 {
            return None;
        }
        self.by_id.get(&range.memory).map(|memory| memory.part(range.offset, range.len))
    }

    /// Copies bytes to a range of memory. Does nothing if this memory does not exist.
    pub(super) fn store(&self, bytes: &[u8], to: MemoryRange) {
        if let Some(memory) = self.by_id.get(&to.memory) {
            memory.write(to.offset, bytes);
        }
    }
}
