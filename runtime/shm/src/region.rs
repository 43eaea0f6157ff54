//! Memory that a rank shares with the agent of its node: a sealed memfd that both map.
//!
//! The seals fix the size, because otherwise one side could truncate the file and make the other
//! side fault. The protocol (`local.proto`) decides which side may access which bytes: the agent
//! during a call, otherwise the rank. A side that violates this corrupts only its own data.
//!
//! A rank may access bytes that no call uses through their address. If the agent stops responding
//! during a call that writes to such bytes, the rank must first disconnect them from the agent
//! ([`Region::detach`]).

#![allow(unsafe_code, reason = "pages of a region are replaced; each block explains why that is sound")]

use crate::pages::{OutOfBounds, Pages};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MremapFlags, mremap_fixed};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The seals that an agent requires before it maps a file.
const REQUIRED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// The filesystem of ordinary memfds. A memfd on hugetlbfs can be sealed too, but accesses fault
/// when the system runs out of huge pages.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// The reasons why a region cannot be created, mapped or detached.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The system cannot provide the memory.
    #[error("cannot share {bytes} bytes of memory: {source}")]
    System {
        /// Number of bytes requested.
        bytes: u64,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// The descriptor is not a memfd with a sealed size.
    #[error("the descriptor is not a memfd sealed against shrinking and growing")]
    NotSealed,
    /// The size of the file differs from the size in the frame that carried the descriptor.
    #[error("the descriptor has {actual} bytes, but its frame states {claimed}")]
    WrongSize {
        /// Size in the frame, in bytes.
        claimed: u64,
        /// Size of the file, in bytes.
        actual: u64,
    },
    /// A region must contain at least one byte.
    #[error("a region needs at least one byte")]
    Empty,
    /// A byte range lies outside the region.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
}

/// A mapped region of shared memory.
#[derive(Debug)]
pub struct Region {
    pages: Pages,
    file: OwnedFd,
}

impl Region {
    /// Creates a zero-filled, sealed region. Send [`Region::descriptor`] to share it.
    ///
    /// # Errors
    /// Returns an error if `bytes` is 0 or the system does not have enough memory.
    pub fn create(bytes: u64) -> Result<Region, RegionError> {
        if bytes == 0 {
            return Err(RegionError::Empty);
        }
        let system = |e: rustix::io::Errno| RegionError::System { bytes, source: e.into() };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Systems can require that such a file is not executable (`vm.memfd_noexec`). Linux before
        // 6.3 rejects the flag.
        let file = rustix::fs::memfd_create("cool", flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create("cool", flags))
            .map_err(system)?;
        rustix::fs::ftruncate(&file, bytes).map_err(system)?;
        rustix::fs::fcntl_add_seals(&file, REQUIRED | SealFlags::SEAL).map_err(system)?;
        Ok(Region { pages: map(&file, bytes)?, file })
    }

    /// Maps a region of `bytes` bytes that another process shared as `file`.
    ///
    /// # Errors
    /// Returns an error if the file could shrink or grow, has another size, or cannot be mapped.
    pub fn open(file: OwnedFd, bytes: u64) -> Result<Region, RegionError> {
        Ok(Region { pages: Region::open_pages(&file, bytes)?, file })
    }

    /// Maps a region like [`Region::open`] without keeping its file. A process that maps the
    /// regions of many others would otherwise run out of descriptors.
    ///
    /// # Errors
    /// Returns the errors of [`Region::open`].
    pub fn open_pages(file: impl AsFd, bytes: u64) -> Result<Pages, RegionError> {
        if bytes == 0 {
            return Err(RegionError::Empty);
        }
        // A file that does not support seals returns an error, which means that it is not sealed.
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
        map(file, bytes)
    }

    /// Returns the descriptor to send with a `Map` frame.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Replaces the pages that contain `len` bytes from `offset` with private copies.
    ///
    /// The addresses stay valid, and the bytes keep their values. Later writes of the other side
    /// are not visible in this process. No other thread may write to these pages during the call,
    /// because such a write may be lost.
    ///
    /// # Errors
    /// Returns an error if `offset` is not a multiple of [`page_size`], the range lies outside the
    /// region, or the system does not have enough memory. The pages remain shared then.
    pub fn detach(&self, offset: u64, len: u64) -> Result<(), RegionError> {
        let here = self.address(offset, len)?.as_ptr();
        let error = |source| RegionError::System { bytes: len, source };
        if !offset.is_multiple_of(page_size()) {
            return Err(error(io::ErrorKind::InvalidInput.into()));
        }
        // The system maps whole pages, including the last page of a region; the bytes after its end
        // are zeros.
        let Some(len) = usize::try_from(len.next_multiple_of(page_size())).ok().filter(|len| *len > 0) else {
            return Ok(());
        };
        let own = MmapRaw::from(MmapOptions::new().len(len).map_anon().map_err(error)?);
        // SAFETY: both mappings contain `len` bytes and are distinct.
        unsafe { std::ptr::copy_nonoverlapping(here, own.as_mut_ptr(), len) };
        let flags = MremapFlags::MAYMOVE;
        // SAFETY: the move replaces the shared pages atomically for all threads that read them. All
        // addresses stay valid, self unmaps them as before, and `own` is forgotten because its
        // memory has moved.
        unsafe { mremap_fixed(own.as_mut_ptr().cast(), len, len, flags, here.cast()) }
            .map_err(|e| error(e.into()))?;
        std::mem::forget(own);
        Ok(())
    }
}

impl Deref for Region {
    type Target = Pages;

    fn deref(&self) -> &Pages {
        &self.pages
    }
}

fn map(file: impl AsFd, bytes: u64) -> Result<Pages, RegionError> {
    let error = |source| RegionError::System { bytes, source };
    let len = usize::try_from(bytes).map_err(|_| error(io::Error::from(io::ErrorKind::OutOfMemory)))?;
    Pages::from_file(file, len).map_err(error)
}

/// Returns the size of a memory page in bytes, which is the granularity of [`Region::detach`].
pub fn page_size() -> u64 {
    // SAFETY: the call only reads a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn duplicate(region: &Region) -> OwnedFd {
        region.descriptor().try_clone_to_owned().unwrap()
    }

    #[test]
    fn both_sides_see_the_same_bytes() {
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
    fn only_detached_pages_hide_writes_of_the_other_side() {
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
