//! Names of bytes that the engine itself never touches: its driver resolves the names and moves the
//! bytes.

/// A piece of memory, as the engine and its driver name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryId {
    /// A rank's buffer (registered memory, in the terms of RDMA). The driver numbers it; the name
    /// is valid until the request that it belongs to has its reply.
    Registered(u64),
    /// Working memory of a call, or a bounce buffer. The engine numbers it; the name is valid from
    /// [`Output::Allocate`](crate::Output::Allocate) to [`Output::Free`](crate::Output::Free).
    Own(u64),
}

/// A range of bytes in a piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// The memory.
    pub memory: MemoryId,
    /// The first byte.
    pub offset: u64,
    /// Number of bytes. An empty range may name memory that does not exist.
    pub len: u64,
}

impl MemoryRange {
    /// The empty range.
    pub const EMPTY: MemoryRange = MemoryRange { memory: MemoryId::Own(0), offset: 0, len: 0 };

    /// Returns the `len` bytes of this range that start at its byte `offset`.
    ///
    /// # Panics
    /// Panics if they lie outside this range, because the engine must check all lengths that it
    /// receives before it names bytes.
    pub fn part(self, offset: u64, len: u64) -> MemoryRange {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len),
            "{offset}..+{len} outside {self:?}"
        );
        MemoryRange { memory: self.memory, offset: self.offset + offset, len }
    }
}
