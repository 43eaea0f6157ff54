//! The memory to which the engine refers by identifiers: ranks' buffers from a request to its
//! reply, and the engine's own memory.

use super::memory_pool::MemoryPool;
use crate::engine::{SharedSlice, zeros};
use cool_engine::{MemoryId, MemoryRange};
use std::collections::BTreeMap;

/// The memory by the identifiers that the engine and the driver use. A clone of a slice keeps its
/// memory alive.
#[derive(Debug, Default)]
pub(super) struct MemoryTable {
    by_id: BTreeMap<MemoryId, SharedSlice>,
    /// The memory of each open request, by its token.
    of_token: BTreeMap<u64, RequestMemory>,
    last: u64,
    /// The engine's own memory that it has freed.
    pool: MemoryPool,
}

/// The memory of a request.
#[derive(Debug)]
struct RequestMemory {
    /// The group and the rank that made the request.
    source: (u64, u32),
    memories: Vec<MemoryId>,
}

impl MemoryTable {
    /// Registers a buffer of a request by a rank, `source`. Returns the range by which the engine
    /// refers to it.
    pub(super) fn register(&mut self, token: u64, source: (u64, u32), buffer: SharedSlice) -> MemoryRange {
        self.last += 1;
        let memory = MemoryId::Registered(self.last);
        let len = buffer.bytes();
        self.by_id.insert(memory, buffer);
        let request = self.of_token.entry(token).or_insert(RequestMemory { source, memories: Vec::new() });
        request.memories.push(memory);
        MemoryRange { memory, offset: 0, len }
    }

    /// Removes the buffers of a request, because they belong to its rank alone again.
    pub(super) fn forget(&mut self, token: u64) {
        for memory in self.of_token.remove(&token).into_iter().flat_map(|request| request.memories) {
            self.by_id.remove(&memory);
        }
    }

    /// Removes memory of a rank that the system cannot provide, so that it is not accessed again.
    /// Returns the group and the rank, or `None` if the memory belongs to no rank.
    pub(super) fn remove_missing(&mut self, memory: MemoryId) -> Option<(u64, u32)> {
        let request = self.of_token.values().find(|request| request.memories.contains(&memory))?;
        self.by_id.remove(&memory);
        Some(request.source)
    }

    /// Allocates memory that is filled with zeros. Returns false if there is not enough memory.
    pub(super) fn allocate(&mut self, memory: MemoryId, bytes: u64) -> bool {
        let zeros = self.pool.take(bytes).or_else(|| zeros(bytes));
        let made = zeros.is_some();
        self.by_id.extend(zeros.map(|zeros| (memory, zeros)));
        made
    }

    pub(super) fn free(&mut self, memory: MemoryId) {
        self.by_id.remove(&memory).into_iter().for_each(|freed| self.pool.keep(freed));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_memory_of_a_rank_is_removed_and_names_the_rank() {
        let mut table = MemoryTable::default();
        let [first, second] = [3, 4].map(|rank| {
            let buffer = zeros(10).unwrap();
            table.register(rank.into(), (7, rank), buffer)
        });
        assert_eq!(table.remove_missing(second.memory), Some((7, 4)));
        assert!(table.get(second).is_none() && table.get(first).is_some());
        // The engine may still store bytes there, until it knows that the call has failed.
        table.store(b"bytes", second);
        let own = MemoryRange { memory: MemoryId::Registered(9), offset: 0, len: 1 };
        assert!(table.allocate(own.memory, 1));
        assert_eq!(table.remove_missing(own.memory), None);
        assert!(table.get(own).is_some());
    }
}
