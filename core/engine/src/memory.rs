//! Names of bytes that the engine never touches: its driver resolves them, and moves the bytes.

/// A memory, as engine and driver both call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryId {
    /// A rank's buffer (registered memory, as of RDMA): numbered by the driver, and named until the call or message that
    /// it came with is answered.
    Registered(u64),
    /// Working memory of a call or a bounce buffer: numbered by the engine, from [`Output::Allocate`](crate::Output::Allocate)
    /// to [`Output::Free`](crate::Output::Free).
    Own(u64),
}

/// Bytes of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// Which memory.
    pub memory: MemoryId,
    /// The first byte.
    pub offset: u64,
    /// Number of bytes. A range of none may name a memory that does not exist.
    pub len: u64,
}

impl MemoryRange {
    /// No bytes.
    pub const EMPTY: MemoryRange = MemoryRange { memory: MemoryId::Own(0), offset: 0, len: 0 };

    /// `len` bytes of this range, from its byte `offset` on.
    ///
    /// # Panics
    /// If they lie outside: the engine checks what it is told before it names bytes.
    pub fn part(self, offset: u64, len: u64) -> MemoryRange {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len),
            "{offset}..+{len} outside {self:?}"
        );
        MemoryRange { memory: self.memory, offset: self.offset + offset, len }
    }
}
