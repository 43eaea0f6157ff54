//! Mapped memory that somebody else may write to at any time: another process that shares it, or another thread.
//!
//! Access is by bounds-checked copies on raw pointers, never by references made here, which would not allow that. Who may
//! touch which bytes when is for those who have the memory to agree on; who does not keep to it spoils these bytes and nothing
//! else. Sockets take bytes from here and put them here without a copy in between.

#![allow(
    unsafe_code,
    reason = "memory that others change is reached by raw pointers; every block says why it is sound"
)]

use memmap2::{Advice, MmapMut, MmapOptions, MmapRaw};
use rustix::mm::{Advice as Advise, MapFlags, ProtFlags, madvise, mmap};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::time::Duration;

/// Bytes of a huge page. From this size on such pages, where the system has them (transparent huge pages), are worth it: to
/// have and to give back 4 KiB at a time takes longer than to copy as much.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes that the system is requested to put into huge pages at a time: where it has none, not much is tried in vain.
const COLLAPSE_STEP_BYTES: usize = 16 << 20;

/// The most processor time that as many bytes are worth, which is what faults for small pages cost where they are slow: 4
/// microseconds for 4 KiB. Huge pages take longer where memory has to be moved first to make room for one, and in a guest
/// whose host has taken back what was free; then small ones, of which a system always has some at hand, are better.
const COLLAPSE_TIME_MAX: Duration = Duration::from_millis(16);

/// A byte range does not lie in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset}..{offset}+{len} are not all in a region of {region} bytes")]
pub struct OutOfBounds {
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range.
    pub len: u64,
    /// Length of the region.
    pub region: u64,
}

/// A mapping of this process.
#[derive(Debug)]
pub struct Pages {
    map: MmapRaw,
    /// Where in the mapping the memory begins.
    start: usize,
    len: usize,
}

impl Pages {
    /// The first `len` bytes of a file, as all who map them have them. Those of a large one begin at a multiple of a huge page:
    /// only so can they be in huge pages.
    ///
    /// # Errors
    /// If `len` is 0 or the system cannot map as much.
    pub(crate) fn from_file(file: impl AsFd, len: usize) -> io::Result<Pages> {
        if len < HUGE_PAGE_BYTES {
            let map = MmapOptions::new().len(len).map_raw(&file.as_fd())?;
            return Ok(Pages { map, start: 0, len });
        }
        // Addresses of which the file takes a part.
        let room = len.checked_add(HUGE_PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let map = MmapRaw::from(MmapOptions::new().len(room).no_reserve_swap().map_anon()?);
        let start = map.as_ptr().addr().next_multiple_of(HUGE_PAGE_BYTES) - map.as_ptr().addr();
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the addresses lie within `map`, whose memory nobody has used; with it they are unmapped.
        unsafe { mmap(map.as_mut_ptr().add(start).cast(), len, access, flags, file, 0) }?;
        Ok(Pages { map, start, len })
    }

    /// New memory of this process alone, of zeros, which take place only once they are touched.
    ///
    /// # Errors
    /// If `bytes` is 0 or the system has not that much.
    pub fn zeros(bytes: usize) -> io::Result<Pages> {
        let map = MmapMut::map_anon(bytes)?;
        if bytes >= HUGE_PAGE_BYTES {
            // A system without them goes on with small ones.
            let _ = map.advise(Advice::HugePage);
        }
        Ok(Pages { map: map.into(), start: 0, len: bytes })
    }

    /// Has the bytes of a file that are about to be used, and those beside them, in huge pages, as far as the system can do
    /// that and they are large. What they are stays as it is, for all who map them. Most systems do not do it by themselves for
    /// memory that is shared (`shmem_enabled`), but when requested to (MADV_COLLAPSE, since Linux 6.1).
    ///
    /// # Errors
    /// If it does not have them.
    pub fn use_huge_pages(&self, offset: u64, len: u64) -> Result<(), OutOfBounds> {
        let from = self.check(offset, len)?;
        let to = (from + len as usize).next_multiple_of(HUGE_PAGE_BYTES).min(self.len / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES);
        let from = from / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        if len < HUGE_PAGE_BYTES as u64 || from >= to {
            return Ok(());
        }
        for part in (from..to).step_by(COLLAPSE_STEP_BYTES) {
            let began = thread_cpu_time();
            let collapsed = self.collapse(part, COLLAPSE_STEP_BYTES.min(to - part));
            if collapsed.is_err() || thread_cpu_time().saturating_sub(began) > COLLAPSE_TIME_MAX {
                // The rest has small ones, which are slower and nothing else.
                break;
            }
        }
        Ok(())
    }

    /// Puts bytes that begin and end at huge pages of a file into such.
    fn collapse(&self, start: usize, len: usize) -> io::Result<()> {
        for page in (start..start + len).step_by(HUGE_PAGE_BYTES) {
            // The system passes over those of which there is nothing yet.
            // SAFETY: the byte is the mapping's, and stays as it is.
            unsafe { madvise(self.base().add(page).cast(), 1, Advise::LinuxPopulateWrite) }?;
        }
        // SAFETY: the bytes are the mapping's, and stay as they are.
        let done = unsafe { libc::madvise(self.base().add(start).cast(), len, libc::MADV_COLLAPSE) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Its first byte.
    fn base(&self) -> *mut u8 {
        // SAFETY: `start` lies within the mapping.
        unsafe { self.map.as_mut_ptr().add(self.start) }
    }

    /// Number of bytes; never 0.
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Copies `data` to `offset`.
    ///
    /// # Errors
    /// If it does not fit there; then nothing is copied.
    pub fn copy_in(&self, offset: u64, data: &[u8]) -> Result<(), OutOfBounds> {
        let start = self.check(offset, data.len() as u64)?;
        // SAFETY: `check` found start..start+data.len() within the mapping, which lives as long as
        // self and cannot shrink (a region's file is sealed). `data` does not overlap the bytes there: references into the mapping
        // are made only by who got its `address`, for bytes that no call uses, and calls copy other bytes.
        // Bytes have no invalid values, so a race with the other side can only mix up bytes that the
        // protocol already leaves undefined.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.base().add(start), data.len()) }
        Ok(())
    }

    /// Copies bytes from `offset` on to `data`.
    ///
    /// # Errors
    /// If it does not have them; then nothing is copied.
    pub fn copy_out(&self, offset: u64, data: &mut [u8]) -> Result<(), OutOfBounds> {
        let start = self.check(offset, data.len() as u64)?;
        // SAFETY: as in `copy_in`, with source and destination exchanged.
        unsafe {
            std::ptr::copy_nonoverlapping(self.base().add(start), data.as_mut_ptr(), data.len());
        }
        Ok(())
    }

    /// Copies `len` bytes from `offset` on to the end of `data`.
    ///
    /// # Errors
    /// If it does not have them; then nothing is copied.
    pub fn append_to(&self, offset: u64, len: usize, data: &mut Vec<u8>) -> Result<(), OutOfBounds> {
        let start = self.check(offset, len as u64)?;
        data.reserve(len);
        // SAFETY: as in `copy_out`; there is room for `len` bytes behind those of `data`, which are bytes once copied.
        unsafe {
            let end = data.as_mut_ptr().add(data.len());
            std::ptr::copy_nonoverlapping(self.base().add(start), end, len);
            data.set_len(data.len() + len);
        }
        Ok(())
    }

    /// Copies `len` bytes from `offset` on to `at` of `to`, which may be the same memory, or other pages of the same file.
    ///
    /// # Errors
    /// If one of the two does not have them; then nothing is copied.
    pub fn copy_to(&self, offset: u64, to: &Pages, at: u64, len: u64) -> Result<(), OutOfBounds> {
        let (from, into) = (self.check(offset, len)?, to.check(at, len)?);
        // SAFETY: as in `copy_in`, of both; `copy` allows them to overlap. A length in a mapping is a usize.
        unsafe { std::ptr::copy(self.base().add(from), to.base().add(into), len as usize) }
        Ok(())
    }

    /// Writes `head`, and `len` bytes from `offset` on, to a socket that need not take all of it: how many it took, of
    /// both together. Does not block.
    ///
    /// # Errors
    /// If it does not have them, or the system says so.
    pub fn send(&self, socket: BorrowedFd<'_>, head: &[u8], offset: u64, len: u64) -> io::Result<usize> {
        let start = self.check(offset, len).map_err(io::Error::other)?;
        let mut parts = [
            part(head.as_ptr().cast_mut(), head.len()),
            // SAFETY: as in `copy_in`.
            part(unsafe { self.base().add(start) }, len as usize),
        ];
        let message = message(&mut parts);
        // SAFETY: the descriptor is borrowed, so it is open. Both parts can be read as far as they say, one a slice, the
        // other as `check` found, and live until the call is over; the system reads no more, and changes nothing.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, FLAGS) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Reads from a socket what it has: up to `len` bytes to `offset`, and what follows into `tail`; how many, of both
    /// together. Does not block.
    ///
    /// # Errors
    /// If it does not have room for them, or the system says so.
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
        // SAFETY: as in `send`; both parts can be written as far as they say.
        let came = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, FLAGS) };
        usize::try_from(came).map_err(|_| io::Error::last_os_error())
    }

    /// Where `len` bytes from `offset` on lie in this process.
    ///
    /// # Errors
    /// If it does not have them.
    pub fn address(&self, offset: u64, len: u64) -> Result<NonNull<u8>, OutOfBounds> {
        let start = self.check(offset, len)?;
        // SAFETY: as in `copy_in`; no mapping is at address 0.
        Ok(unsafe { NonNull::new_unchecked(self.base().add(start)) })
    }

    /// Whether a range lies in it; its start as an index.
    fn check(&self, offset: u64, len: u64) -> Result<usize, OutOfBounds> {
        match offset.checked_add(len) {
            // At most the mapping's length, hence a usize.
            Some(end) if end <= self.len() => Ok(offset as usize),
            _ => Err(OutOfBounds { offset, len, region: self.len() }),
        }
    }

    /// Whether it has `len` bytes from `offset` on.
    ///
    /// # Errors
    /// If it has not.
    pub fn contains(&self, offset: u64, len: u64) -> Result<(), OutOfBounds> {
        self.check(offset, len).map(|_| ())
    }
}

/// What this thread has taken of a processor, whatever else runs beside it.
fn thread_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// A socket that is gone is an error and no signal.
const FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

fn part(at: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: at.cast(), iov_len: len }
}

/// A message of these parts, which are to live as long as it is used.
fn message(parts: &mut [libc::iovec; 2]) -> libc::msghdr {
    // SAFETY: the structure is made of numbers and pointers, for which zero is a value: no address, nothing beside.
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
    fn large_files_begin_at_huge_pages_and_what_they_hold_stays_when_these_are_asked_for() {
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
    fn a_socket_takes_a_head_and_a_part_of_pages_and_gives_a_part_and_what_follows() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let pages = Pages::zeros(10).unwrap();
        pages.copy_in(2, b"middle").unwrap();
        assert_eq!(pages.send(theirs.as_fd(), b"head ", 2, 6).unwrap(), 11);
        let mut came = [0; 11];
        ours.read_exact(&mut came).unwrap();
        assert_eq!(&came, b"head middle");
        ours.write_all(b"centretail").unwrap();
        let mut tail = [0; 9];
        assert_eq!(pages.receive(theirs.as_fd(), 2, 6, &mut tail).unwrap(), 10);
        let mut all = [0; 10];
        pages.copy_out(0, &mut all).unwrap();
        assert_eq!((&all, &tail[..5]), (b"\0\0centre\0\0", &b"tail\0"[..]));
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
    fn bytes_are_copied_between_pages_and_within_them_even_if_they_overlap() {
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
