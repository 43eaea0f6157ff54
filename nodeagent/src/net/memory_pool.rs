//! Working memory of earlier calls, for reuse. The system would map, clear and unmap the pages of
//! each call anew, which took a fifth of the engine's time for calls of 1 MiB on fast links.

use crate::engine::SharedSlice;
use std::collections::VecDeque;
use std::ops::RangeInclusive;

/// The lengths of memory that is kept, in bytes. Shorter memory is on the heap, and longer memory
/// takes so long to transfer that mapping it does not matter.
const POOLED_BYTES: RangeInclusive<u64> = 128 << 10..=4 << 20;
/// The maximum number of bytes that the pool holds.
const POOL_BYTES_MAX: u64 = 16 << 20;
/// The number of bytes that are cleared at once.
const CLEARED_BYTES: usize = 64 << 10;

/// Memory that was freed, the oldest first. A slice of which a clone exists elsewhere, such as in
/// work that is still in progress, is not reused.
#[derive(Debug, Default)]
pub(super) struct MemoryPool {
    free: VecDeque<SharedSlice>,
    bytes: u64,
}

impl MemoryPool {
    /// Keeps memory for reuse, if its length permits. The oldest memory is returned to the system
    /// if there is too much.
    pub(super) fn keep(&mut self, memory: SharedSlice) {
        if !POOLED_BYTES.contains(&memory.bytes()) {
            return;
        }
        self.bytes += memory.bytes();
        self.free.push_back(memory);
        while self.bytes > POOL_BYTES_MAX {
            self.bytes -= self.free.pop_front().map_or(self.bytes, |oldest| oldest.bytes());
        }
    }

    /// Returns memory of exactly this length that is filled with zeros, because it may have
    /// belonged to another user. Returns `None` if the pool has none.
    pub(super) fn take(&mut self, bytes: u64) -> Option<SharedSlice> {
        let fits = |memory: &SharedSlice| memory.bytes() == bytes && memory.is_unshared();
        let memory = self.free.remove(self.free.iter().rposition(fits)?)?;
        self.bytes -= bytes;
        for offset in (0..bytes).step_by(CLEARED_BYTES) {
            memory.write(offset, &[0; CLEARED_BYTES][..CLEARED_BYTES.min((bytes - offset) as usize)]);
        }
        Some(memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::zeros;

    const BYTES: u64 = 128 << 10;

    #[test]
    fn memory_is_reused_without_its_content() {
        let mut pool = MemoryPool::default();
        let memory = zeros(BYTES + 1).unwrap();
        memory.write(BYTES - 3, b"mine");
        pool.keep(memory);
        assert!(pool.take(BYTES).is_none(), "the length differs");
        let reused = pool.take(BYTES + 1).unwrap();
        let mut content = [7; 4];
        reused.read(BYTES - 3, &mut content);
        assert_eq!(content, [0; 4]);
        assert!(pool.take(BYTES + 1).is_none(), "it was taken");
    }

    #[test]
    fn memory_in_use_elsewhere_is_not_reused() {
        let mut pool = MemoryPool::default();
        let memory = zeros(BYTES).unwrap();
        let part = memory.part(0, 1);
        pool.keep(memory);
        assert!(pool.take(BYTES).is_none());
        drop(part);
        assert!(pool.take(BYTES).is_some());
    }

    #[test]
    fn the_pool_is_bounded_and_keeps_the_latest_memory() {
        let mut pool = MemoryPool::default();
        pool.keep(zeros(BYTES).unwrap());
        pool.keep(zeros(*POOLED_BYTES.end() + 1).unwrap());
        pool.keep(zeros(10).unwrap());
        assert_eq!(pool.bytes, BYTES);
        for _ in 0..10 {
            pool.keep(zeros(*POOLED_BYTES.end()).unwrap());
        }
        assert_eq!(pool.bytes, POOL_BYTES_MAX);
        assert!(pool.take(BYTES).is_none() && pool.take(*POOLED_BYTES.end()).is_some());
    }
}
