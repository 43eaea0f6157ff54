//! Mapped memory that another process or thread may write to at any time.
//!
//! All accesses are bounds-checked copies through raw pointers. This module never creates
//! references into a mapping, because Rust forbids references to memory that changes concurrently.
//! The protocols of the callers decide when a process may access which bytes; a process that
//! violates them corrupts those bytes and nothing else. Sockets can send from and receive into a
//! mapping without an intermediate copy.

#![allow(
    unsafe_code,
    reason = "memory that other processes change is accessed by raw pointers; each block explains why that is sound"
)]

use crate::region::page_size;
use memmap2::{Advice, MmapMut, MmapOptions, MmapRaw};
use rustix::io::Errno;
use rustix::mm::{Advice as Advise, MapFlags, ProtFlags, madvise, mmap};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::time::Duration;

/// Size of a huge page, in bytes.
///
/// Mappings of at least this size should use transparent huge pages where the system supports them,
/// because allocating and freeing memory in units of 4 KiB takes longer than copying as much.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes that are collapsed into huge pages per system call.
///
/// The step bounds the time that is wasted if the system has no huge pages available.
const COLLAPSE_STEP_BYTES: usize = 16 << 20;

/// CPU time after which [`Pages::use_huge_pages`] stops, for each step of [`COLLAPSE_STEP_BYTES`].
///
/// This is the cost of faulting in the same bytes as small pages on a slow system (4 microseconds
/// for each 4 KiB). Collapsing takes longer if the kernel must first move memory, or if the host of
/// a guest reclaimed free memory. Small pages are the better choice then, because they are always
/// available.
const COLLAPSE_TIME_MAX: Duration = Duration::from_millis(16);

/// A byte range lies outside its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset}..{offset}+{len} are not all in a region of {region} bytes")]
pub struct OutOfBounds {
    /// Offset of the first byte of the range.
    pub offset: u64,
    /// Length of the range, in bytes.
    pub len: u64,
    /// Length of the memory, in bytes.
    pub region: u64,
}

/// A memory mapping of this process.
#[derive(Debug)]
pub struct Pages {
    map: MmapRaw,
    /// Offset within `map` at which the memory begins.
    start: usize,
    len: usize,
}

impl Pages {
    /// Maps the first `len` bytes of a file, shared with all processes that map it.
    ///
    /// A mapping of at least [`HUGE_PAGE_BYTES`] begins at a multiple of that size, because only
    /// aligned memory can be placed in huge pages.
    ///
    /// # Errors
    /// Returns an error if `len` is 0 or the system cannot map that many bytes.
    pub(crate) fn from_file(file: impl AsFd, len: usize) -> io::Result<Pages> {
        if len < HUGE_PAGE_BYTES {
            let map = MmapOptions::new().len(len).map_raw(&file.as_fd())?;
            return Ok(Pages { map, start: 0, len });
        }
        // Reserve more addresses than the file needs, so that an aligned range exists among them.
        let room = len.checked_add(HUGE_PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let map = MmapRaw::from(MmapOptions::new().len(room).no_reserve_swap().map_anon()?);
        let start = map.as_ptr().addr().next_multiple_of(HUGE_PAGE_BYTES) - map.as_ptr().addr();
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the range lies within `map`, which no other code uses yet; dropping `map` unmaps
        // it.
        unsafe { mmap(map.as_mut_ptr().add(start).cast(), len, access, flags, file, 0) }?;
        Ok(Pages { map, start, len })
    }

    /// Returns private zero-filled memory. The system allocates a page when it is first touched.
    ///
    /// # Errors
    /// Returns an error if `bytes` is 0 or the system does not have enough memory.
    pub fn zeros(bytes: usize) -> io::Result<Pages> {
        let map = MmapMut::map_anon(bytes)?;
        if bytes >= HUGE_PAGE_BYTES {
            // A system without huge pages uses small ones, so a failure is harmless.
            let _ = map.advise(Advice::HugePage);
        }
        Ok(Pages { map: map.into(), start: 0, len: bytes })
    }

    /// Places the given bytes and the rest of their huge pages in huge pages, if the system can.
    ///
    /// The content does not change for any process that maps the file. The call is needed because
    /// most systems do not use huge pages for shared memory unless a program requests them
    /// (`shmem_enabled`; `MADV_COLLAPSE`, since Linux 6.1). Ranges shorter than a huge page are
    /// left unchanged.
    ///
    /// # Errors
    /// Returns an error if the range lies outside the mapping. A system that cannot provide huge
    /// pages is not an error.
    pub fn use_huge_pages(&self, offset: u64, len: u64) -> Result<(), OutOfBounds> {
        let from = self.check(offset, len)?;
        let to = (from + len as usize)
            .next_multiple_of(HUGE_PAGE_BYTES)
            .min(self.len / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES);
        let from = from / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        if len < HUGE_PAGE_BYTES as u64 || from >= to {
            return Ok(());
        }
        for part in (from..to).step_by(COLLAPSE_STEP_BYTES) {
            let began = thread_cpu_time();
            let collapsed = self.collapse(part, COLLAPSE_STEP_BYTES.min(to - part));
            if collapsed.is_err() || thread_cpu_time().saturating_sub(began) > COLLAPSE_TIME_MAX {
                // The remaining bytes stay in small pages, which are only slower.
                break;
            }
        }
        Ok(())
    }

    /// Allocates all memory of a range now.
    ///
    /// A file in memory gets its memory when a page is first touched. If the system has none left,
    /// the process that touches the page is ended by a signal, or a system call that touches it
    /// fails. After this call, no process that maps the file touches a missing page, and the memory
    /// counts as used by this process.
    ///
    /// # Errors
    /// Returns an error if the range lies outside the mapping, or if the system does not have the
    /// memory. A system that cannot allocate memory in advance (before Linux 5.14) is not an error.
    pub fn populate(&self, offset: u64, len: u64) -> io::Result<()> {
        let start = self.check(offset, len).map_err(io::Error::other)?;
        let first = start - start % page_size() as usize;
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the bytes belong to the mapping, which begins at a page boundary, and their
        // values do not change.
        let populated = unsafe {
            let from = self.base().add(first).cast();
            madvise(from, start + len as usize - first, Advise::LinuxPopulateWrite)
        };
        match populated {
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(Errno::FAULT) => Err(io::ErrorKind::OutOfMemory.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Collapses a range that begins and ends at huge-page boundaries of the file.
    fn collapse(&self, start: usize, len: usize) -> io::Result<()> {
        for page in (start..start + len).step_by(HUGE_PAGE_BYTES) {
            // The kernel skips huge pages without any allocated memory, so one byte of each is
            // populated first. SAFETY: the byte belongs to the mapping, and its value does not
            // change.
            unsafe { madvise(self.base().add(page).cast(), 1, Advise::LinuxPopulateWrite) }?;
        }
        // SAFETY: the bytes belong to the mapping, and their values do not change.
        let done = unsafe { libc::madvise(self.base().add(start).cast(), len, libc::MADV_COLLAPSE) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Returns the address of the first byte.
    fn base(&self) -> *mut u8 {
        // SAFETY: `start` lies within the mapping.
        unsafe { self.map.as_mut_ptr().add(self.start) }
    }

    /// Returns the length in bytes, which is never 0.
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Copies `data` to `offset`.
    ///
    /// # Errors
    /// Returns an error if `data` does not fit at that offset; nothing is copied then.
    pub fn copy_in(&self, offset: u64, data: &[u8]) -> Result<(), OutOfBounds> {
        let start = self.check(offset, data.len() as u64)?;
        // SAFETY: `check` returned start..start+data.len() within the mapping, which lives as long
        // as self and cannot shrink because a region's file is sealed. `data` does not overlap
        // these bytes: references into the mapping are created only from `address`, for bytes that
        // no call uses, and calls copy other bytes. Every byte value is valid, so a race with
        // another process can only mix up bytes that the protocol leaves undefined anyway.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.base().add(start), data.len()) }
        Ok(())
    }

    /// Fills `data` with the bytes that begin at `offset`.
    ///
    /// # Errors
    /// Returns an error if the range lies outside the mapping; nothing is copied then.
    pub fn copy_out(&self, offset: u64, data: &mut [u8]) -> Result<(), OutOfBounds> {
        let start = self.check(offset, data.len() as u64)?;
        // SAFETY: as in `copy_in`, with source and destination exchanged.
        unsafe {
            std::ptr::copy_nonoverlapping(self.base().add(start), data.as_mut_ptr(), data.len());
        }
        Ok(())
    }

    /// Appends `len` bytes that begin at `offset` to `data`.
    ///
    /// # Errors
    /// Returns an error if the range lies outside the mapping; nothing is copied then.
    pub fn append_to(&self, offset: u64, len: usize, data: &mut Vec<u8>) -> Result<(), OutOfBounds> {
        let start = self.check(offset, len as u64)?;
        data.reserve(len);
        // SAFETY: as in `copy_out`. `reserve` made room for `len` bytes after those of `data`, and
        // the copy initializes all of them before `set_len`.
        unsafe {
            let end = data.as_mut_ptr().add(data.len());
            std::ptr::copy_nonoverlapping(self.base().add(start), end, len);
            data.set_len(data.len() + len);
        }
        Ok(())
    }

    /// Copies `len` bytes from `offset` to offset `at` of `to`, which may be the same memory or
    /// another mapping of the same file. The ranges may overlap.
    ///
    /// # Errors
    /// Returns an error if either range lies outside its mapping; nothing is copied then.
    pub fn copy_to(&self, offset: u64, to: &Pages, at: u64, len: u64) -> Result<(), OutOfBounds> {
        let (from, into) = (self.check(offset, len)?, to.check(at, len)?);
        // SAFETY: as in `copy_in`, for both ranges; `copy` permits overlap. `check` returned, so
        // `len` fits a usize.
        unsafe { std::ptr::copy(self.base().add(from), to.base().add(into), len as usize) }
        Ok(())
    }

    /// Sends `head`, followed by `len` bytes that begin at `offset`, to a socket without blocking.
    ///
    /// Returns how many bytes of both together the socket accepted, which may be fewer than all.
    ///
    /// # Errors
    /// Returns an error if the range lies outside the mapping, or `sendmsg(2)` fails.
    pub fn send(&self, socket: BorrowedFd<'_>, head: &[u8], offset: u64, len: u64) -> io::Result<usize> {
        let start = self.check(offset, len).map_err(io::Error::other)?;
        let mut parts = [
            part(head.as_ptr().cast_mut(), head.len()),
            // SAFETY: as in `copy_in`.
            part(unsafe { self.base().add(start) }, len as usize),
        ];
        let message = message(&mut parts);
        // SAFETY: the descriptor is borrowed, hence open. Both parts are readable for their whole
        // length (one is a slice, the other was checked) and live until the call returns. The
        // kernel only reads them.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, FLAGS) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Receives up to `len` bytes to `offset`, and any further bytes into `tail`, without blocking.
    ///
    /// Returns how many bytes of both together arrived.
    ///
    /// # Errors
    /// Returns an error if the range lies outside the mapping, or `recvmsg(2)` fails. The kind is
    /// `WouldBlock` if no bytes are available.
    pub fn receive(
        &self,
        socket: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        tail: &mut [u8],
    ) -> io::Result<usize> {
        let start = self.check(offset, len).map_err(io::Error::other)?;
        let mut parts = [
            // SAFETY: as in `copy_in`.
            part(unsafe { self.base().add(start) }, len as usize),
            part(tail.as_mut_ptr(), tail.len()),
        ];
        let mut message = message(&mut parts);
        // SAFETY: as in `send`; both parts are writable for their whole length.
        let came = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, FLAGS) };
        usize::try_from(came).map_err(|_| io::Error::last_os_error())
    }

    /// Returns the address in this process of the `len` bytes that begin at `offset`. It is valid
    /// as long as the mapping exists.
    ///
    /// # Errors
    /// Returns an error if the range lies outside the mapping.
    pub fn address(&self, offset: u64, len: u64) -> Result<NonNull<u8>, OutOfBounds> {
        let start = self.check(offset, len)?;
        // SAFETY: as in `copy_in`; no mapping begins at address 0.
        Ok(unsafe { NonNull::new_unchecked(self.base().add(start)) })
    }

    /// Returns the start of a range as an index, if the range lies within the mapping.
    fn check(&self, offset: u64, len: u64) -> Result<usize, OutOfBounds> {
        match offset.checked_add(len) {
            // The end is at most the length of the mapping, so the offset fits a usize.
            Some(end) if end <= self.len() => Ok(offset as usize),
            _ => Err(OutOfBounds { offset, len, region: self.len() }),
        }
    }

    /// Checks that the mapping contains `len` bytes that begin at `offset`.
    ///
    /// # Errors
    /// Returns an error if it does not.
    pub fn contains(&self, offset: u64, len: u64) -> Result<(), OutOfBounds> {
        self.check(offset, len).map(|_| ())
    }
}

/// Returns the CPU time of this thread, which other threads and processes do not affect.
fn thread_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Flags of sendmsg(2) and recvmsg(2): a call must not block, and a closed socket must cause an
/// error and not a signal.
const FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

fn part(at: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: at.cast(), iov_len: len }
}

/// Returns a message header for these parts. The caller must keep the parts alive as long as it
/// uses the header.
fn message(parts: &mut [libc::iovec; 2]) -> libc::msghdr {
    // SAFETY: the structure contains only integers and pointers, for which zero is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn ranges_outside_are_refused_and_touch_nothing() {
        let pages = Pages::zeros(100).unwrap();
        for (offset, len) in [(100, 1), (0, 101), (u64::MAX, 1), (u64::MAX, 0), (96, 5)] {
            let mut data = vec![7; len];
            assert_eq!(pages.copy_in(offset, &data).unwrap_err().offset, offset);
            pages.copy_out(offset, &mut data).unwrap_err();
        }
        pages.copy_in(100, &[]).unwrap();
        let mut all = [1; 100];
        pages.copy_out(0, &mut all).unwrap();
        assert_eq!(all, [0; 100]);
    }

    #[test]
    fn huge_pages_preserve_the_content_of_large_files() {
        let bytes = 3 * HUGE_PAGE_BYTES + 10_000;
        let file = rustix::fs::memfd_create("large", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, bytes as u64).unwrap();
        let [ours, theirs] = [(); 2].map(|()| Pages::from_file(&file, bytes).unwrap());
        let places = [10, HUGE_PAGE_BYTES as u64 - 3, 2 * HUGE_PAGE_BYTES as u64, bytes as u64 - 6];
        places.iter().for_each(|place| theirs.copy_in(*place, b"before").unwrap());
        ours.use_huge_pages(HUGE_PAGE_BYTES as u64, bytes as u64 - HUGE_PAGE_BYTES as u64).unwrap();
        ours.use_huge_pages(0, bytes as u64).unwrap();
        for place in places {
            let mut data = [0; 6];
            ours.copy_out(place, &mut data).unwrap();
            assert_eq!(&data, b"before");
        }
        assert!(ours.base().addr().is_multiple_of(HUGE_PAGE_BYTES) && ours.len() == bytes as u64);
        ours.use_huge_pages(1, bytes as u64).unwrap_err();
    }

    #[test]
    fn missing_memory_is_an_error_before_it_is_touched() {
        let bytes = page_size() as usize;
        let file = rustix::fs::memfd_create("half", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, bytes as u64).unwrap();
        // Accesses to the second page of the mapping would end the process, as they would in a file
        // for whose pages the system has no memory.
        let pages = Pages::from_file(&file, 2 * bytes).unwrap();
        pages.populate(10, bytes as u64 - 10).unwrap();
        pages.populate(0, 0).unwrap();
        let missing = pages.populate(10, bytes as u64).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::OutOfMemory);
        pages.populate(0, 2 * bytes as u64 + 1).unwrap_err();
    }

    #[test]
    fn sockets_send_from_and_receive_into_pages() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let pages = Pages::zeros(10).unwrap();
        pages.copy_in(2, b"middle").unwrap();
        assert_eq!(pages.send(theirs.as_fd(), b"head ", 2, 6).unwrap(), 11);
        let mut came = [0; 11];
        ours.read_exact(&mut came).unwrap();
        assert_eq!(&came, b"head middle");
        ours.write_all(b"centertail").unwrap();
        let mut tail = [0; 9];
        assert_eq!(pages.receive(theirs.as_fd(), 2, 6, &mut tail).unwrap(), 10);
        let mut all = [0; 10];
        pages.copy_out(0, &mut all).unwrap();
        assert_eq!((&all, &tail[..5]), (b"\0\0center\0\0", &b"tail\0"[..]));
        let nothing = pages.receive(theirs.as_fd(), 0, 10, &mut tail).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_socket_gets_no_byte_outside_of_pages() {
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let pages = Pages::zeros(10).unwrap();
        pages.send(theirs.as_fd(), b"head", 5, 6).unwrap_err();
        pages.receive(theirs.as_fd(), u64::MAX, 2, &mut []).unwrap_err();
    }

    #[test]
    fn copies_between_and_within_pages_may_overlap() {
        let (from, to) = (Pages::zeros(10).unwrap(), Pages::zeros(20).unwrap());
        from.copy_in(0, b"0123456789").unwrap();
        from.copy_to(2, &to, 15, 5).unwrap();
        from.copy_to(0, &from, 1, 9).unwrap();
        let (mut all, mut copied) = ([0; 10], [0; 5]);
        from.copy_out(0, &mut all).unwrap();
        to.copy_out(15, &mut copied).unwrap();
        assert_eq!((&all, &copied), (b"0012345678", b"23456"));
        from.copy_to(6, &to, 0, 5).unwrap_err();
        from.copy_to(0, &to, 16, 5).unwrap_err();
        to.copy_to(20, &from, 10, 0).unwrap();
    }
}
