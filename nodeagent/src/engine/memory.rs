//! The memory from which calls read their inputs and to which they write their outputs. It may be
//! shared with a rank's process or belong to this process; [`RankMemory`] hides the difference.

use crate::local::RegionPermit;
use cool_shm::pages::Pages;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Handle;

/// Payloads of at least this many bytes are written directly from memory to a socket. Shorter ones
/// are first copied behind their header, because writing a single buffer saves more time than
/// avoiding the copy.
const ZERO_COPY_MIN_BYTES: u64 = 32 * 1024;

/// Memory that a rank and its agent share. The methods copy bytes instead of returning slices,
/// because the other side may change shared memory at any time.
pub trait RankMemory: Send + Sync {
    /// Returns the size in bytes, which never changes.
    fn bytes(&self) -> u64;

    /// Copies bytes from `offset` on out of the memory. The range must lie within
    /// [`RankMemory::bytes`].
    fn read(&self, offset: u64, into: &mut [u8]);

    /// Copies bytes into the memory at `offset`. The range must lie within [`RankMemory::bytes`].
    fn write(&self, offset: u64, from: &[u8]);

    /// Appends a copy of the bytes from `offset` on to a vector. The range must lie within
    /// [`RankMemory::bytes`].
    fn append(&self, offset: u64, bytes: usize, to: &mut Vec<u8>) {
        let head = to.len();
        to.resize(head + bytes, 0);
        self.read(offset, &mut to[head..]);
    }

    /// Returns the memory's pages, if sockets can read from and write to them directly.
    fn pages(&self) -> Option<&Pages> {
        None
    }
}

/// A range of a [`RankMemory`].
#[derive(Clone)]
pub struct SharedSlice {
    memory: Arc<dyn RankMemory>,
    offset: u64,
    bytes: u64,
}

/// The error of a range that lies outside its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset}..+{bytes} lie outside the shared region of {region} bytes")]
pub struct OutsideRegion {
    /// The first byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Size of the memory.
    pub region: u64,
}

impl SharedSlice {
    /// Returns the `bytes` bytes of `memory` that start at `offset`.
    ///
    /// # Errors
    /// Returns an error if they lie outside the memory.
    pub fn new(memory: Arc<dyn RankMemory>, offset: u64, bytes: u64) -> Result<SharedSlice, OutsideRegion> {
        let region = memory.bytes();
        match offset.checked_add(bytes) {
            Some(end) if end <= region => Ok(SharedSlice { memory, offset, bytes }),
            _ => Err(OutsideRegion { offset, bytes, region }),
        }
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies bytes from `offset` on out of this slice.
    ///
    /// # Panics
    /// Panics if they lie outside the slice.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        self.check(offset, into.len());
        self.memory.read(self.offset + offset, into);
    }

    /// Copies bytes into this slice at `offset`.
    ///
    /// # Panics
    /// Panics if they lie outside the slice.
    pub fn write(&self, offset: u64, from: &[u8]) {
        self.check(offset, from.len());
        self.memory.write(self.offset + offset, from);
    }

    /// Appends a copy of the bytes from `offset` on to a vector.
    ///
    /// # Panics
    /// Panics if they lie outside the slice.
    pub(crate) fn append(&self, offset: u64, bytes: usize, to: &mut Vec<u8>) {
        self.check(offset, bytes);
        self.memory.append(self.offset + offset, bytes, to);
    }

    /// Returns whether no other slice of the same memory exists.
    pub(crate) fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.memory) == 1
    }

    /// Returns whether sockets can read from and write to the slice directly.
    pub(crate) fn is_mapped(&self) -> bool {
        self.memory.pages().is_some()
    }

    /// Returns whether the slice is long enough that avoiding a copy saves time.
    pub(crate) fn is_long(&self) -> bool {
        self.bytes >= ZERO_COPY_MIN_BYTES
    }

    /// Writes `head` and then this slice to a non-blocking socket. Returns how many bytes the
    /// socket accepted, or `None` if it cannot read from this memory directly.
    pub(crate) fn send(&self, socket: BorrowedFd<'_>, head: &[u8]) -> Option<io::Result<usize>> {
        self.memory.pages().map(|pages| pages.send(socket, head, self.offset, self.bytes))
    }

    /// Reads from a non-blocking socket into this slice, and further bytes into `tail`. Returns how
    /// many bytes were read, or `None` if the socket cannot write to this memory directly.
    pub(crate) fn receive(&self, socket: BorrowedFd<'_>, tail: &mut [u8]) -> Option<io::Result<usize>> {
        self.memory.pages().map(|pages| pages.receive(socket, self.offset, self.bytes, tail))
    }

    /// Copies all bytes of `from`, which must have the same length, in one operation. Returns
    /// false, without copying, if one of the slices is not in mapped pages.
    pub(crate) fn copy_from(&self, from: &SharedSlice) -> bool {
        let Some((source, target)) = from.memory.pages().zip(self.memory.pages()) else { return false };
        source.copy_to(from.offset, target, self.offset, self.bytes).expect(WITHIN);
        true
    }

    /// Returns a part of this slice.
    ///
    /// # Panics
    /// Panics if it lies outside the slice.
    pub(crate) fn part(&self, offset: u64, bytes: u64) -> SharedSlice {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "part outside its slice");
        SharedSlice { memory: Arc::clone(&self.memory), offset: self.offset + offset, bytes }
    }

    fn check(&self, offset: u64, bytes: usize) {
        let inside = offset.checked_add(bytes as u64).is_some_and(|end| end <= self.bytes);
        assert!(inside, "{offset}..+{bytes} outside a slice of {} bytes", self.bytes);
    }
}

impl fmt::Debug for SharedSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedSlice({}..+{})", self.offset, self.bytes)
    }
}

/// The invariant of slices, as the message of a panic.
const WITHIN: &str = "slices lie within their memory";

/// Working memory of at least this size is mapped, because the system then provides pages of zeros
/// only when they are touched.
const PAGED: u64 = 128 * 1024;

/// Mappings of at least this many bytes are unmapped by another thread, because unmapping them
/// takes longer than a turn of the engine should.
const LONG_TO_UNMAP: u64 = 1024 * 1024;

/// Memory in whole pages: a rank's region that is shared with this process, or the engine's own
/// working memory.
pub(crate) struct Mapping(Option<MappedPages>);

/// The pages, which are unmapped before the permit of a region is returned.
struct MappedPages {
    pages: Pages,
    _permit: Option<RegionPermit>,
}

impl Mapping {
    /// Returns a rank's region as memory of calls. The region counts as its user's until all calls
    /// that use it have ended.
    pub(crate) fn from_region(pages: Pages, permit: RegionPermit) -> Mapping {
        Mapping(Some(MappedPages { pages, _permit: Some(permit) }))
    }

    fn mapped(&self) -> &Pages {
        match &self.0 {
            Some(mapped) => &mapped.pages,
            None => unreachable!("it is taken when dropped"),
        }
    }
}

impl RankMemory for Mapping {
    fn bytes(&self) -> u64 {
        self.mapped().len()
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.mapped().copy_out(offset, into).expect(WITHIN);
    }

    fn write(&self, offset: u64, from: &[u8]) {
        self.mapped().copy_in(offset, from).expect(WITHIN);
    }

    fn append(&self, offset: u64, bytes: usize, to: &mut Vec<u8>) {
        self.mapped().append_to(offset, bytes, to).expect(WITHIN);
    }

    fn pages(&self) -> Option<&Pages> {
        Some(self.mapped())
    }
}

impl Drop for Mapping {
    /// Lets another thread unmap a large region, because unmapping a gibibyte takes tens of
    /// milliseconds.
    fn drop(&mut self) {
        let Some(mapped) = self.0.take() else { return };
        if mapped.pages.len() >= LONG_TO_UNMAP
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn_blocking(move || drop(mapped));
        }
    }
}

/// Short memory on this process's heap.
struct HeapMemory(Mutex<Vec<u8>>);

impl HeapMemory {
    /// Returns a slice with these bytes.
    fn slice(bytes: Vec<u8>) -> SharedSlice {
        let len = bytes.len() as u64;
        SharedSlice { memory: Arc::new(HeapMemory(Mutex::new(bytes))), offset: 0, bytes: len }
    }

    // A panic elsewhere breaks no invariant, because any bytes are valid. So the poisoning of the
    // lock can be ignored.
    fn with<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns a slice of zeros, or `None` if there is not enough memory.
pub(crate) fn zeros(bytes: u64) -> Option<SharedSlice> {
    let len = usize::try_from(bytes).ok()?;
    if bytes >= PAGED
        && let Ok(pages) = Pages::zeros(len)
    {
        let own = Mapping(Some(MappedPages { pages, _permit: None }));
        return Some(SharedSlice { memory: Arc::new(own), offset: 0, bytes });
    }
    // The heap grows without a further mapping, of which a process can have only a limited number.
    let mut heap = Vec::new();
    heap.try_reserve_exact(len).ok()?;
    heap.resize(len, 0);
    Some(HeapMemory::slice(heap))
}

impl RankMemory for HeapMemory {
    fn bytes(&self) -> u64 {
        self.with(|m| m.len() as u64)
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let at = offset as usize;
        self.with(|m| into.copy_from_slice(&m[at..at + into.len()]));
    }

    fn write(&self, offset: u64, from: &[u8]) {
        let at = offset as usize;
        self.with(|m| m[at..at + from.len()].copy_from_slice(from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_outside_its_memory_is_refused_in_words() {
        let memory = Arc::new(HeapMemory(Mutex::new(vec![0; 10])));
        assert!(SharedSlice::new(memory.clone(), 4, 6).is_ok());
        let e = SharedSlice::new(memory.clone(), 4, 7).unwrap_err();
        assert!(e.to_string().contains("region of 10 bytes"), "{e}");
        assert!(SharedSlice::new(memory, u64::MAX, 2).is_err());
    }

    #[test]
    fn working_memory_is_zeros_and_too_much_is_none() {
        for bytes in [0, 10, PAGED + 1] {
            let zeros = super::zeros(bytes).unwrap();
            let mut out = vec![7; bytes as usize];
            zeros.read(0, &mut out);
            assert!(zeros.bytes() == bytes && out.iter().all(|byte| *byte == 0));
        }
        assert!(super::zeros(1 << 60).is_none());
    }

    #[test]
    fn pages_are_copied_at_once_and_other_memory_is_not() {
        let [from, to] = [(); 2].map(|()| super::zeros(2 * PAGED).unwrap());
        from.write(PAGED, b"bytes");
        assert!(to.part(3, 5).copy_from(&from.part(PAGED, 5)));
        let mut out = [0; 5];
        to.read(3, &mut out);
        assert_eq!(&out, b"bytes");
        assert!(!to.part(0, 2).copy_from(&HeapMemory::slice(vec![1, 2])));
    }

    #[test]
    fn a_part_reads_and_writes_its_slice() {
        let whole = HeapMemory::slice(vec![1, 2, 3, 4]);
        let part = whole.part(1, 2);
        part.write(1, &[9]);
        let mut out = [0; 4];
        whole.read(0, &mut out);
        assert_eq!((out, part.bytes()), ([1, 2, 9, 4], 2));
    }
}
