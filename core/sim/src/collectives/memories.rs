//! The memory of a node: buffers of its ranks, and memory that its engine has allocated. Memory
//! that does not exist, or was freed, cannot be read or written.

use cool_engine::testing::Buffer;
use cool_engine::{MemoryId, MemoryRange, Work, combine};
use std::collections::{BTreeMap, BTreeSet};

/// A range that an engine named although it does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MissingRange(pub(super) MemoryRange);

/// A range of a buffer. It remains valid while work on it is pending.
#[derive(Clone, Debug)]
struct Slice {
    named: MemoryRange,
    buffer: Buffer,
}

impl Slice {
    fn read<R>(&self, act: impl FnOnce(&mut [u8]) -> R) -> R {
        let (from, len) = (self.named.offset as usize, self.named.len as usize);
        self.buffer.with(|bytes| act(&mut bytes[from..][..len]))
    }

    fn write(&self, from: &[u8]) {
        self.read(|bytes| bytes.copy_from_slice(from));
    }

    fn bytes(&self) -> Vec<u8> {
        self.read(|bytes| bytes.to_vec())
    }
}

/// Work on memory that was started and has not completed.
#[derive(Debug)]
pub(super) struct OpenWork {
    work: Work,
    from: Slice,
    to: Slice,
}

#[derive(Debug, Default)]
pub(super) struct Memories {
    by_id: BTreeMap<MemoryId, Buffer>,
    /// Memory that could not be allocated and was not freed.
    missing: BTreeSet<MemoryId>,
    /// The buffers of each pending call.
    of_token: BTreeMap<u64, Vec<MemoryId>>,
    last: u64,
}

impl Memories {
    /// Registers a rank's buffer. It may be named until the call completes.
    pub(super) fn register(&mut self, token: u64, buffer: Buffer) -> MemoryRange {
        self.last += 1;
        let memory = MemoryId::Registered(self.last);
        let len = buffer.with(|bytes| bytes.len()) as u64;
        self.by_id.insert(memory, buffer);
        self.of_token.entry(token).or_default().push(memory);
        MemoryRange { memory, offset: 0, len }
    }

    /// Removes the memory of a completed call. It must not be named any more.
    pub(super) fn answered(&mut self, token: u64) {
        for memory in self.of_token.remove(&token).unwrap_or_default() {
            self.by_id.remove(&memory);
        }
    }

    /// Allocates memory filled with zeros.
    pub(super) fn allocate(&mut self, memory: MemoryId, bytes: u64) {
        self.by_id.insert(memory, Buffer::new(vec![0; bytes as usize]));
    }

    /// Records that memory could not be allocated. It can only be freed.
    pub(super) fn refuse(&mut self, memory: MemoryId) {
        self.missing.insert(memory);
    }

    pub(super) fn free(&mut self, memory: MemoryId) -> Result<(), MissingRange> {
        if self.missing.remove(&memory) {
            return Ok(());
        }
        let whole = MemoryRange { memory, offset: 0, len: 0 };
        self.by_id.remove(&memory).map(drop).ok_or(MissingRange(whole))
    }

    /// Returns the number of allocations that have not been freed.
    pub(super) fn allocated(&self) -> usize {
        self.by_id.keys().filter(|id| matches!(id, MemoryId::Own(_))).count() + self.missing.len()
    }

    fn slice(&self, range: MemoryRange) -> Result<Slice, MissingRange> {
        if range.len == 0 {
            return Ok(Slice { named: MemoryRange::EMPTY, buffer: Buffer::new(Vec::new()) });
        }
        let buffer = self.by_id.get(&range.memory).ok_or(MissingRange(range))?;
        let inside = range.offset + range.len <= buffer.with(|bytes| bytes.len()) as u64;
        inside.then(|| Slice { named: range, buffer: buffer.clone() }).ok_or(MissingRange(range))
    }

    /// Appends the bytes of a range to `into`.
    pub(super) fn read(&self, range: MemoryRange, into: &mut Vec<u8>) -> Result<(), MissingRange> {
        if range.len > 0 {
            self.slice(range)?.read(|bytes| into.extend_from_slice(bytes));
        }
        Ok(())
    }

    pub(super) fn write(&self, range: MemoryRange, from: &[u8]) -> Result<(), MissingRange> {
        if range.len > 0 {
            self.slice(range)?.write(from);
        }
        Ok(())
    }

    pub(super) fn copy(&self, from: MemoryRange, to: MemoryRange) -> Result<(), MissingRange> {
        self.write(to, &self.slice(from)?.bytes())
    }

    /// Starts a copy or reduction. The caller must later call [`Memories::finish`].
    pub(super) fn open(&self, work: Work) -> Result<OpenWork, MissingRange> {
        let (from, to) = match &work {
            Work::Copy { from, to } | Work::Reduce { from, to, .. } => (*from, *to),
            Work::Prepare(_) => (MemoryRange::EMPTY, MemoryRange::EMPTY),
        };
        Ok(OpenWork { from: self.slice(from)?, to: self.slice(to)?, work })
    }

    /// Executes work. Memory that the engine has freed in the meantime still exists here, but
    /// memory of a rank must still be registered.
    pub(super) fn finish(&self, open: OpenWork) -> Result<(), MissingRange> {
        for named in [open.from.named, open.to.named] {
            if matches!(named.memory, MemoryId::Registered(_)) && named.len > 0 {
                self.slice(named)?;
            }
        }
        let operand = open.from.bytes();
        match open.work {
            Work::Reduce { element, op, .. } => open.to.read(|to| combine(element, op, to, &operand)),
            Work::Copy { .. } | Work::Prepare(_) => open.to.write(&operand),
        }
        Ok(())
    }
}
