//! Shared memory between a rank and its agent: a sealed memfd that both map.
//!
//! The seals keep the size fixed, so that no side can make the other fault by cutting the file
//! short. Access is by bounds-checked copies on raw pointers, never by references made here: the other
//! process may write at any time, which references do not allow. Who may touch which bytes when is
//! the protocol's matter (`local.proto`): during a call the agent, else the rank. A side that does
//! not keep to it spoils its own data and nothing else. A rank that knows that no call uses some bytes
//! may look at them by their address; if its agent falls silent in a call that writes some, it cuts these off from it
//! first ([`Region::detach`]).

#![allow(unsafe_code, reason = "shared memory is reached by raw pointers; every block says why it is sound")]

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MremapFlags, mremap_fixed};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// The seals without which an agent maps nothing.
const REQUIRED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// The filesystem of ordinary memfds. One on huge pages can have seals too, but faults when the
/// pages run out.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Why there is no region.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The system gave no memory.
    #[error("cannot share {bytes} bytes of memory: {source}")]
    System {
        /// How many were asked for.
        bytes: u64,
        /// What the system said.
        source: std::io::Error,
    },
    /// The descriptor is no memfd with its size sealed.
    #[error("the descriptor is not a memfd sealed against shrinking and growing")]
    NotSealed,
    /// The descriptor has another size than the frame that came with it.
    #[error("the descriptor has {actual} bytes, but its frame says {claimed}")]
    WrongSize {
        /// What the frame says.
        claimed: u64,
        /// What the file has.
        actual: u64,
    },
    /// Nobody needs a region of no bytes.
    #[error("a region needs at least one byte")]
    Empty,
    /// A range is not in the region.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
}

/// A byte range does not lie in its region.
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

/// A mapped region of shared memory.
#[derive(Debug)]
pub struct Region {
    map: MmapRaw,
    file: OwnedFd,
}

impl Region {
    /// A new region of zeros, sealed, to be shared with [`Region::descriptor`].
    ///
    /// # Errors
    /// If `bytes` is 0 or the system has not that much.
    pub fn create(bytes: u64) -> Result<Region, RegionError> {
        if bytes == 0 {
            return Err(RegionError::Empty);
        }
        let system = |e: rustix::io::Errno| RegionError::System { bytes, source: e.into() };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("cool", flags).map_err(system)?;
        rustix::fs::ftruncate(&file, bytes).map_err(system)?;
        rustix::fs::fcntl_add_seals(&file, REQUIRED | SealFlags::SEAL).map_err(system)?;
        Region::map(file, bytes)
    }

    /// Maps a region that another process shared as `file`, and said to have `bytes` bytes.
    ///
    /// # Errors
    /// If the file could shrink under us, has another size, or cannot be mapped.
    pub fn open(file: OwnedFd, bytes: u64) -> Result<Region, RegionError> {
        if bytes == 0 {
            return Err(RegionError::Empty);
        }
        // A file that knows no seals answers with an error: it is not sealed.
        let seals = rustix::fs::fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
        let kind = rustix::fs::fstatfs(&file).map_err(|e| RegionError::System { bytes, source: e.into() })?;
        if !seals.contains(REQUIRED) || kind.f_type as u64 != TMPFS_MAGIC {
            return Err(RegionError::NotSealed);
        }
        let stat = rustix::fs::fstat(&file).map_err(|e| RegionError::System { bytes, source: e.into() })?;
        let actual = u64::try_from(stat.st_size).unwrap_or(0);
        if actual != bytes {
            return Err(RegionError::WrongSize { claimed: bytes, actual });
        }
        Region::map(file, bytes)
    }

    fn map(file: OwnedFd, bytes: u64) -> Result<Region, RegionError> {
        let error = |source| RegionError::System { bytes, source };
        let len = usize::try_from(bytes)
            .map_err(|_| error(std::io::Error::from(std::io::ErrorKind::OutOfMemory)))?;
        let map = MmapOptions::new().len(len).map_raw(&file).map_err(error)?;
        Ok(Region { map, file })
    }

    /// The descriptor to send with `Map`.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Bytes in the region; never 0.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Copies `data` into the region.
    ///
    /// # Errors
    /// If it does not fit there; then nothing is copied.
    pub fn copy_in(&self, offset: u64, data: &[u8]) -> Result<(), OutOfBounds> {
        let start = self.check(offset, data.len() as u64)?;
        // SAFETY: `check` found start..start+data.len() within the mapping, which lives as long as
        // self and cannot shrink (sealed). `data` does not overlap the bytes there: references into the mapping
        // are made only by who got its `address`, for bytes that no call uses, and calls copy other bytes.
        // Bytes have no invalid values, so a race with the other side can only mix up bytes that the
        // protocol already leaves undefined.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.map.as_mut_ptr().add(start), data.len()) }
        Ok(())
    }

    /// Copies bytes of the region to `data`.
    ///
    /// # Errors
    /// If the region does not have them; then nothing is copied.
    pub fn copy_out(&self, offset: u64, data: &mut [u8]) -> Result<(), OutOfBounds> {
        let start = self.check(offset, data.len() as u64)?;
        // SAFETY: as in `copy_in`, with source and destination exchanged.
        unsafe {
            std::ptr::copy_nonoverlapping(self.map.as_ptr().add(start), data.as_mut_ptr(), data.len());
        }
        Ok(())
    }

    /// Copies bytes of the region to the end of `data`.
    ///
    /// # Errors
    /// If the region does not have them; then nothing is copied.
    pub fn append_to(&self, offset: u64, len: usize, data: &mut Vec<u8>) -> Result<(), OutOfBounds> {
        let start = self.check(offset, len as u64)?;
        data.reserve(len);
        // SAFETY: as in `copy_out`; there is room for `len` bytes behind those of `data`, which are bytes once copied.
        unsafe {
            let end = data.as_mut_ptr().add(data.len());
            std::ptr::copy_nonoverlapping(self.map.as_ptr().add(start), end, len);
            data.set_len(data.len() + len);
        }
        Ok(())
    }

    /// Writes `head`, and `len` bytes from `offset` on, to a socket that need not take all of it: how many it took, of
    /// both together. Does not block.
    ///
    /// # Errors
    /// If the region does not have them, or the system says so.
    pub fn send(&self, socket: BorrowedFd<'_>, head: &[u8], offset: u64, len: u64) -> io::Result<usize> {
        let start = self.check(offset, len).map_err(io::Error::other)?;
        let mut parts = [
            part(head.as_ptr().cast_mut(), head.len()),
            // SAFETY: as in `copy_in`.
            part(unsafe { self.map.as_mut_ptr().add(start) }, len as usize),
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
    /// If the region does not have room for them, or the system says so.
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
            part(unsafe { self.map.as_mut_ptr().add(start) }, len as usize),
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
    /// If the region does not have them.
    pub fn address(&self, offset: u64, len: u64) -> Result<NonNull<u8>, OutOfBounds> {
        let start = self.check(offset, len)?;
        // SAFETY: as in `copy_in`; no mapping is at address 0.
        Ok(unsafe { NonNull::new_unchecked(self.map.as_mut_ptr().add(start)) })
    }

    /// Puts memory of this process alone, with the same bytes, in the place of the pages from `offset` on that hold
    /// `len` bytes: what the other side writes there from now on, nobody sees here.
    ///
    /// Nobody else in this process may write to these pages meanwhile, or it may be lost.
    ///
    /// # Errors
    /// If `offset` is no multiple of [`page_size`], the region does not have the bytes, or the system has not that much
    /// memory; then they are shared as before.
    pub fn detach(&self, offset: u64, len: u64) -> Result<(), RegionError> {
        let start = self.check(offset, len)?;
        let error = |source| RegionError::System { bytes: len, source };
        if !offset.is_multiple_of(page_size()) {
            return Err(error(io::ErrorKind::InvalidInput.into()));
        }
        // The system maps whole pages, the last one of a region too, whose bytes behind the end are zeros.
        let Some(len) = usize::try_from(len.next_multiple_of(page_size())).ok().filter(|len| *len > 0) else {
            return Ok(());
        };
        // SAFETY: as in `copy_in`.
        let here = unsafe { self.map.as_mut_ptr().add(start) };
        let own = MmapRaw::from(MmapOptions::new().len(len).map_anon().map_err(error)?);
        // SAFETY: both mappings have these pages, and are not the same.
        unsafe { std::ptr::copy_nonoverlapping(here, own.as_mut_ptr(), len) };
        let flags = MremapFlags::MAYMOVE;
        // SAFETY: `own` is forgotten once it has moved to where shared pages were, in one step for all who look
        // there; all addresses stay valid, and self unmaps them as before.
        unsafe { mremap_fixed(own.as_mut_ptr().cast(), len, len, flags, here.cast()) }
            .map_err(|e| error(e.into()))?;
        std::mem::forget(own);
        Ok(())
    }

    /// Whether a range lies in the region; its start as an index.
    fn check(&self, offset: u64, len: u64) -> Result<usize, OutOfBounds> {
        match offset.checked_add(len) {
            // At most the mapping's length, hence a usize.
            Some(end) if end <= self.len() => Ok(offset as usize),
            _ => Err(OutOfBounds { offset, len, region: self.len() }),
        }
    }

    /// Whether `len` bytes from `offset` lie in the region.
    ///
    /// # Errors
    /// If they do not.
    pub fn contains(&self, offset: u64, len: u64) -> Result<(), OutOfBounds> {
        self.check(offset, len).map(|_| ())
    }
}

/// Bytes of a page of memory, the least that [`Region::detach`] can exchange.
pub fn page_size() -> u64 {
    // SAFETY: it only reads a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
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
    use std::os::unix::net::UnixStream;

    fn duplicate(region: &Region) -> OwnedFd {
        region.descriptor().try_clone_to_owned().unwrap()
    }

    #[test]
    fn what_one_side_writes_the_other_reads() {
        let ours = Region::create(10_000).unwrap();
        let theirs = Region::open(duplicate(&ours), 10_000).unwrap();
        ours.copy_in(9_995, b"hello").unwrap();
        let mut heard = [0; 5];
        theirs.copy_out(9_995, &mut heard).unwrap();
        assert_eq!(&heard, b"hello");
        let mut heard = b"oh, ".to_vec();
        theirs.append_to(9_995, 5, &mut heard).unwrap();
        assert_eq!(heard, b"oh, hello");
    }

    #[test]
    fn ranges_outside_are_refused_and_touch_nothing() {
        let region = Region::create(100).unwrap();
        for (offset, len) in [(100, 1), (0, 101), (u64::MAX, 1), (u64::MAX, 0), (96, 5)] {
            let mut data = vec![7; len];
            assert_eq!(region.copy_in(offset, &data).unwrap_err().offset, offset);
            region.copy_out(offset, &mut data).unwrap_err();
        }
        region.copy_in(100, &[]).unwrap();
        let mut all = [1; 100];
        region.copy_out(0, &mut all).unwrap();
        assert_eq!(all, [0; 100]);
    }

    #[test]
    fn a_socket_takes_a_head_and_a_part_of_a_region_and_gives_a_part_and_what_follows() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let region = Region::create(10).unwrap();
        region.copy_in(2, b"middle").unwrap();
        assert_eq!(region.send(theirs.as_fd(), b"head ", 2, 6).unwrap(), 11);
        let mut came = [0; 11];
        ours.read_exact(&mut came).unwrap();
        assert_eq!(&came, b"head middle");
        ours.write_all(b"centretail").unwrap();
        let mut tail = [0; 9];
        assert_eq!(region.receive(theirs.as_fd(), 2, 6, &mut tail).unwrap(), 10);
        let mut all = [0; 10];
        region.copy_out(0, &mut all).unwrap();
        assert_eq!((&all, &tail[..5]), (b"\0\0centre\0\0", &b"tail\0"[..]));
        let nothing = region.receive(theirs.as_fd(), 0, 10, &mut tail).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_socket_gets_no_byte_outside_of_a_region() {
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let region = Region::create(10).unwrap();
        region.send(theirs.as_fd(), b"head", 5, 6).unwrap_err();
        region.receive(theirs.as_fd(), u64::MAX, 2, &mut []).unwrap_err();
    }

    #[test]
    fn a_file_that_could_shrink_is_refused() {
        let mut plain = tempfile::tempfile().unwrap();
        plain.write_all(&[0; 64]).unwrap();
        assert!(matches!(Region::open(plain.into(), 64), Err(RegionError::NotSealed)));

        let half = rustix::fs::memfd_create("half", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&half, 64).unwrap();
        rustix::fs::fcntl_add_seals(&half, SealFlags::GROW).unwrap();
        assert!(matches!(Region::open(half, 64), Err(RegionError::NotSealed)));
    }

    #[test]
    fn a_size_that_is_not_the_files_is_refused() {
        let region = Region::create(4096).unwrap();
        let e = Region::open(duplicate(&region), 8192).unwrap_err();
        assert!(matches!(e, RegionError::WrongSize { claimed: 8192, actual: 4096 }), "{e}");
        assert!(matches!(Region::create(0), Err(RegionError::Empty)));
        assert!(matches!(Region::open(duplicate(&region), 0), Err(RegionError::Empty)));
    }

    fn read<const N: usize>(region: &Region, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        region.copy_out(offset, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_the_other_side_writes_is_not_seen_in_detached_pages_and_is_in_all_others() {
        let page = page_size();
        let bytes = 3 * page + 10;
        let ours = Region::create(bytes).unwrap();
        let theirs = Region::open(duplicate(&ours), bytes).unwrap();
        // The second page, and a part of the last.
        for (offset, len) in [(page, page), (3 * page, 10)] {
            theirs.copy_in(offset + 2, b"before").unwrap();
            let address = ours.address(offset, len).unwrap();
            ours.detach(offset, len).unwrap();
            theirs.copy_in(offset + 2, b"behind").unwrap();
            assert_eq!((&read(&ours, offset + 2), ours.address(offset, len).unwrap()), (b"before", address));
            ours.copy_in(offset + 2, b"mine..").unwrap();
            assert_eq!(&read(&theirs, offset + 2), b"behind");
        }
        for offset in [page - 6, 2 * page] {
            theirs.copy_in(offset, b"shared").unwrap();
            assert_eq!(&read(&ours, offset), b"shared");
        }
    }

    #[test]
    fn only_whole_pages_of_the_region_are_detached() {
        let region = Region::create(2 * page_size()).unwrap();
        assert!(matches!(region.detach(64, 1), Err(RegionError::System { .. })));
        assert!(matches!(region.detach(page_size(), page_size() + 1), Err(RegionError::OutOfBounds(_))));
        region.detach(page_size(), 0).unwrap();
    }

    #[test]
    fn memory_that_does_not_exist_is_an_error() {
        assert!(matches!(Region::create(u64::MAX), Err(RegionError::System { .. })));
    }
}
