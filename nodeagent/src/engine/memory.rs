//! The memory in which calls find and leave their data. Whose it is (shared with a rank's process, or
//! this process's heap) is the matter of those who implement [`RankMemory`].

use cool_shm::pages::Pages;
use cool_shm::region::Region;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Handle;

/// Payloads of at least this many bytes are written straight from memory to a socket. Of shorter ones, to have head and
/// payload in one buffer is worth more than to do without a copy.
const DIRECT_BYTES: u64 = 32 * 1024;

/// Bytes that a rank and its agent both reach. Copies in and out instead of slices, because the other
/// side may change shared memory at any time.
pub trait RankMemory: Send + Sync {
    /// Its size in bytes; never changes.
    fn bytes(&self) -> u64;

    /// Copies out the bytes from `offset` on. The range lies within [`RankMemory::bytes`].
    fn read(&self, offset: u64, into: &mut [u8]);

    /// Copies in bytes at `offset`. The range lies within [`RankMemory::bytes`].
    fn write(&self, offset: u64, from: &[u8]);

    /// Copies out bytes from `offset` on, behind what is there. The range lies within [`RankMemory::bytes`].
    fn append(&self, offset: u64, bytes: usize, to: &mut Vec<u8>) {
        let head = to.len();
        to.resize(head + bytes, 0);
        self.read(offset, &mut to[head..]);
    }

    /// The pages that it is, if sockets can take from it and put into it by themselves.
    fn pages(&self) -> Option<&Pages> {
        None
    }
}

/// A part of a [`RankMemory`].
#[derive(Clone)]
pub struct SharedSlice {
    memory: Arc<dyn RankMemory>,
    offset: u64,
    bytes: u64,
}

/// A slice that its memory does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset}..+{bytes} lie outside the shared region of {region} bytes")]
pub struct OutsideRegion {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Size of the memory.
    pub region: u64,
}

impl SharedSlice {
    /// `bytes` bytes of `memory` from `offset` on.
    ///
    /// # Errors
    /// If the memory does not hold them.
    pub fn new(memory: Arc<dyn RankMemory>, offset: u64, bytes: u64) -> Result<SharedSlice, OutsideRegion> {
        let region = memory.bytes();
        match offset.checked_add(bytes) {
            Some(end) if end <= region => Ok(SharedSlice { memory, offset, bytes }),
            _ => Err(OutsideRegion { offset, bytes, region }),
        }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies out the bytes from `offset` of this slice on.
    ///
    /// # Panics
    /// If they lie outside the slice.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        self.check(offset, into.len());
        self.memory.read(self.offset + offset, into);
    }

    /// Copies in bytes at `offset` of this slice.
    ///
    /// # Panics
    /// If they lie outside the slice.
    pub fn write(&self, offset: u64, from: &[u8]) {
        self.check(offset, from.len());
        self.memory.write(self.offset + offset, from);
    }

    /// Copies out bytes from `offset` of this slice on, behind what is there.
    ///
    /// # Panics
    /// If they lie outside the slice.
    pub(crate) fn append(&self, offset: u64, bytes: usize, to: &mut Vec<u8>) {
        self.check(offset, bytes);
        self.memory.append(self.offset + offset, bytes, to);
    }

    /// Whether sockets can take from it and put into it by themselves.
    pub(crate) fn is_mapped(&self) -> bool {
        self.memory.pages().is_some()
    }

    /// Whether it is worth to do without a copy.
    pub(crate) fn is_long(&self) -> bool {
        self.bytes >= DIRECT_BYTES
    }

    /// Writes `head` and then this slice to a socket that does not block and need not take all of it: how many bytes it
    /// took. `None` if it cannot take them from here.
    pub(crate) fn send(&self, socket: BorrowedFd<'_>, head: &[u8]) -> Option<io::Result<usize>> {
        self.memory.pages().map(|pages| pages.send(socket, head, self.offset, self.bytes))
    }

    /// Reads from a socket what it has: into this slice, and what follows into `tail`. `None` if it cannot put it here.
    pub(crate) fn receive(&self, socket: BorrowedFd<'_>, tail: &mut [u8]) -> Option<io::Result<usize>> {
        self.memory.pages().map(|pages| pages.receive(socket, self.offset, self.bytes, tail))
    }

    /// Copies all bytes of `from`, which has as many, in one go; whether both are such that this can be done.
    pub(crate) fn copy_from(&self, from: &SharedSlice) -> bool {
        let Some((source, target)) = from.memory.pages().zip(self.memory.pages()) else { return false };
        source.copy_to(from.offset, target, self.offset, self.bytes).expect(WITHIN);
        true
    }

    /// The part of this slice from `offset` on.
    ///
    /// # Panics
    /// If it lies outside the slice.
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

/// What slices are made for.
const WITHIN: &str = "slices lie within their memory";

/// From this many bytes on, working memory is asked of the system, which gives zeros page by page as they are touched.
const PAGED: u64 = 128 * 1024;

/// To give back a mapping of at least this many bytes takes as long as a turn of the engine may.
const LONG_TO_UNMAP: u64 = 1024 * 1024;

/// Memory of whole pages: a rank's, which it shares with this process, or the engine's own working memory.
pub(crate) struct Mapping(Option<MappedPages>);

enum MappedPages {
    Shared(Region),
    Own(Pages),
}

impl Mapping {
    /// A rank's region.
    pub(crate) fn from_region(region: Region) -> Mapping {
        Mapping(Some(MappedPages::Shared(region)))
    }

    fn mapped(&self) -> &Pages {
        match &self.0 {
            Some(MappedPages::Shared(region)) => region,
            Some(MappedPages::Own(pages)) => pages,
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
    /// The engine's thread has another one unmap what is large: a gibibyte takes tens of milliseconds.
    fn drop(&mut self) {
        let Some(mapped) = self.0.take() else { return };
        let bytes = match &mapped {
            MappedPages::Shared(region) => region.len(),
            MappedPages::Own(pages) => pages.len(),
        };
        if bytes >= LONG_TO_UNMAP
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn_blocking(move || drop(mapped));
        }
    }
}

/// Short memory, on this process's heap.
struct HeapMemory(Mutex<Vec<u8>>);

impl HeapMemory {
    /// A slice that holds `bytes`.
    fn slice(bytes: Vec<u8>) -> SharedSlice {
        let len = bytes.len() as u64;
        SharedSlice { memory: Arc::new(HeapMemory(Mutex::new(bytes))), offset: 0, bytes: len }
    }

    // A panic elsewhere leaves bytes, not a broken invariant: the lock's poison means nothing here.
    fn with<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A slice of zeros; `None` if there is not as much memory.
pub(crate) fn zeros(bytes: u64) -> Option<SharedSlice> {
    let len = usize::try_from(bytes).ok()?;
    if bytes < PAGED {
        return Some(HeapMemory::slice(vec![0; len]));
    }
    let own = Mapping(Some(MappedPages::Own(Pages::zeros(len).ok()?)));
    Some(SharedSlice { memory: Arc::new(own), offset: 0, bytes })
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
