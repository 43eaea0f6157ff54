//! Memory shared with the agent, from which calls allocate.
//!
//! Regions grow with demand and are reused, so repeated calls map nothing. The caller notifies the
//! agent of regions. A block may be registered memory (compare `ncclCommRegister` and RDMA): the
//! program uses it as an array, and a call on that array, which is found by its address, uses the
//! block directly.

use cool_proto::local::Slice;
use cool_shm::pages::OutOfBounds;
use cool_shm::region::{Region, RegionError, page_size};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Alignment of blocks in bytes, for the agent's vector instructions.
const ALIGN: u64 = 64;

/// Size of the first region in bytes, so that small calls share one.
const FIRST_REGION: u64 = 64 << 10;

/// An unused region is kept up to this size in bytes, or while calls need at least an eighth of it.
const KEPT_REGION: u64 = 256 << 20;

/// A large region is unmapped only after more than this many consecutive calls that need less than
/// an eighth of it. Programs execute barriers and exchange lengths between large calls, and mapping
/// a gibibyte costs more than sending it.
const SMALLER_CALLS: u32 = 64;

/// Regions and their free parts.
#[derive(Debug, Default)]
pub(super) struct SharedMemoryAllocator {
    regions: Arc<Mutex<RegionTable>>,
    /// Registered memory, by its address in this process.
    registered: Mutex<BTreeMap<usize, RegisteredArray>>,
}

#[derive(Debug, Default)]
struct RegionTable {
    next: u32,
    regions: BTreeMap<u32, FreeParts>,
    /// Number of consecutive calls for which a region was too large.
    smaller_calls: u32,
}

/// The free parts of a region: their lengths, by offset. Adjacent parts are merged.
#[derive(Debug)]
struct FreeParts {
    region: Arc<Region>,
    parts: BTreeMap<u64, u64>,
    /// Bytes from this offset on have never been used.
    fresh: u64,
}

/// A used part of a region. Dropping it frees the part.
#[derive(Debug)]
pub(crate) struct SharedBlock {
    table: Arc<Mutex<RegionTable>>,
    number: u32,
    region: Arc<Region>,
    offset: u64,
    len: u64,
    /// Bytes from this offset of the region on have never been used.
    fresh: u64,
}

/// Memory that the program uses as an array.
#[derive(Debug)]
struct RegisteredArray {
    /// Requested length. The rest of the block's last page is unused.
    bytes: u64,
    block: Weak<SharedBlock>,
}

/// A range of registered memory that a call uses in place.
#[derive(Debug)]
pub(super) struct RegisteredRange {
    /// Held until the call is complete, so that the memory is not reused even if the program frees
    /// it.
    block: Arc<SharedBlock>,
    /// Offset of the range in the block.
    within: u64,
    bytes: u64,
    /// Whether the range begins at a page boundary of the block, and ends at one or at the end of
    /// the array.
    whole_pages: bool,
}

/// The memory of a call.
#[derive(Debug)]
pub(super) struct CallMemory {
    /// Memory for copied data.
    pub(super) block: SharedBlock,
    /// Input in the program's memory. The agent only reads it.
    pub(super) _input: Option<RegisteredRange>,
    /// Output in the program's memory.
    pub(super) output: Option<RegisteredRange>,
}

/// A change that the agent must be notified of before a new block is used.
#[derive(Debug)]
pub(super) enum RegionUpdate {
    /// This region is now shared.
    Map(u32, Arc<Region>),
    /// This region is no longer shared.
    Unmap(u32),
}

impl SharedMemoryAllocator {
    /// Allocates a block of at least `bytes` bytes. Returns it with the changes to send to the
    /// agent.
    pub(super) fn take(&self, bytes: u64) -> Result<(SharedBlock, Vec<RegionUpdate>), RegionError> {
        self.take_aligned(bytes, ALIGN)
    }

    /// Allocates a block for [`SharedMemoryAllocator::register`], in whole pages, so that no other
    /// block shares a page with it.
    pub(super) fn take_pages(&self, bytes: u64) -> Result<(SharedBlock, Vec<RegionUpdate>), RegionError> {
        self.take_aligned(bytes, page_size())
    }

    /// Allocates a block with an offset and length that are multiples of `align`.
    fn take_aligned(&self, bytes: u64, align: u64) -> Result<(SharedBlock, Vec<RegionUpdate>), RegionError> {
        let len = bytes
            .max(1)
            .checked_next_multiple_of(align)
            .ok_or(RegionError::System { bytes, source: std::io::ErrorKind::OutOfMemory.into() })?;
        let mut regions = lock(&self.regions);
        let mut updates: Vec<RegionUpdate> =
            regions.drop_large(len).into_iter().map(RegionUpdate::Unmap).collect();
        let fitting = regions
            .regions
            .iter_mut()
            .find_map(|(number, free)| Some((*number, Arc::clone(&free.region), free.take(len, align)?)));
        let block = |(number, region, (offset, fresh))| {
            let table = Arc::clone(&self.regions);
            SharedBlock { table, number, region, offset, len, fresh }
        };
        if let Some(found) = fitting {
            return Ok((block(found), updates));
        }
        // A new region is as large as all existing ones together, which keeps their number small.
        // Pages that are never touched cost nothing.
        let all: u64 = regions.regions.values().map(|free| free.region.len()).sum();
        let size = len.max(all).max(FIRST_REGION);
        let region = Arc::new(Region::create(size.checked_next_power_of_two().unwrap_or(len))?);
        let number = regions.next;
        regions.next = regions.next.wrapping_add(1);
        let parts = BTreeMap::from([(0, region.len())]);
        let mut free = FreeParts { parts, region: Arc::clone(&region), fresh: 0 };
        let taken = free.take(len, align).unwrap_or((0, 0));
        regions.regions.insert(number, free);
        updates.push(RegionUpdate::Map(number, Arc::clone(&region)));
        Ok((block((number, region, taken)), updates))
    }

    /// Registers `bytes` bytes of a block as memory of the program, and returns their address. The
    /// program may access them while no call uses them.
    pub(super) fn register(
        &self,
        block: SharedBlock,
        bytes: u64,
    ) -> Result<(NonNull<u8>, Arc<SharedBlock>), OutOfBounds> {
        let at = block.address()?;
        let block = Arc::new(block);
        let mut registered = lock(&self.registered);
        registered.retain(|_, registration| registration.block.strong_count() > 0);
        registered.insert(at.addr().get(), RegisteredArray { bytes, block: Arc::downgrade(&block) });
        Ok((at, block))
    }

    /// Returns the input of a call, if all of it is registered memory.
    pub(super) fn input(&self, bytes: &[u8]) -> Option<RegisteredRange> {
        self.find(bytes.as_ptr().addr(), bytes.len())
    }

    /// Returns the output of a call, if all of it is registered memory that can be disconnected
    /// from the agent ([`RegisteredRange::detach`]) without affecting adjacent data of the program.
    pub(super) fn output(&self, bytes: &[u8]) -> Option<RegisteredRange> {
        self.input(bytes).filter(|registered| registered.whole_pages)
    }

    fn find(&self, at: usize, len: usize) -> Option<RegisteredRange> {
        let (start, all, block) = {
            let registered = lock(&self.registered);
            let (start, found) = registered.range(..=at).next_back()?;
            (*start, found.bytes, found.block.upgrade()?)
        };
        let (within, bytes) = ((at - start) as u64, len as u64);
        let end = within + bytes;
        let page = page_size();
        let whole_pages = within.is_multiple_of(page) && (end.is_multiple_of(page) || end == all);
        (end <= all).then_some(RegisteredRange { block, within, bytes, whole_pages })
    }
}

impl RegisteredRange {
    /// Returns the location of the range, as the agent identifies it.
    pub(super) fn slice(&self) -> Slice {
        self.block.slice(self.within, self.bytes)
    }

    /// Prevents an agent that stopped responding during a call from later changing the output of
    /// the call. Must only be used for outputs.
    pub(super) fn detach(&self) -> Result<(), RegionError> {
        self.block.region.detach(self.block.offset + self.within, self.bytes)
    }
}

impl RegionTable {
    /// Removes large unused regions, if much less memory was needed for a while. Returns their
    /// numbers.
    fn drop_large(&mut self, needed: u64) -> Vec<u32> {
        let large = |bytes: u64| bytes > KEPT_REGION && bytes / 8 > needed;
        let unused =
            |free: &FreeParts| large(free.region.len()) && free.parts.get(&0) == Some(&free.region.len());
        let dropped: Vec<u32> = self.regions.iter().filter(|(_, f)| unused(f)).map(|(n, _)| *n).collect();
        self.smaller_calls = if dropped.is_empty() { 0 } else { self.smaller_calls + 1 };
        if self.smaller_calls <= SMALLER_CALLS {
            return Vec::new();
        }
        dropped.iter().for_each(|number| drop(self.regions.remove(number)));
        dropped
    }
}

impl FreeParts {
    /// Takes `len` bytes, aligned to `align`, from the first part that has room. Returns their
    /// offset and the offset from which they have never been used.
    fn take(&mut self, len: u64, align: u64) -> Option<(u64, u64)> {
        let (start, end, offset) = self.parts.iter().find_map(|(start, free)| {
            let (end, offset) = (start + free, start.next_multiple_of(align));
            (offset.checked_add(len)? <= end).then_some((*start, end, offset))
        })?;
        self.parts.remove(&start);
        for (start, end) in [(start, offset), (offset + len, end)] {
            if start < end {
                self.parts.insert(start, end - start);
            }
        }
        let fresh = self.fresh.clamp(offset, offset + len);
        self.fresh = self.fresh.max(offset + len);
        Some((offset, fresh))
    }

    fn give(&mut self, mut offset: u64, mut len: u64) {
        if let Some((before, free)) = self.parts.range(..offset).next_back().map(|(o, f)| (*o, *f))
            && before + free == offset
        {
            (offset, len) = (before, len + free);
        }
        if let Some(free) = self.parts.remove(&(offset + len)) {
            len += free;
        }
        self.parts.insert(offset, len);
    }
}

impl SharedBlock {
    /// Returns the address of the block in this process.
    fn address(&self) -> Result<NonNull<u8>, OutOfBounds> {
        self.region.address(self.offset, self.len)
    }

    /// Allocates memory for the bytes of the block that were never used, in huge pages if possible.
    /// May take as long as filling them. Otherwise the agent would touch the pages of an output
    /// first, and would be ended if the system had no memory for them.
    pub(super) fn prepare(&self) -> Result<(), RegionError> {
        let bytes = self.offset + self.len - self.fresh;
        self.region.use_huge_pages(self.fresh, bytes)?;
        self.region.populate(self.fresh, bytes).map_err(|source| {
            if let Some(free) = lock(&self.table).regions.get_mut(&self.number) {
                free.fresh = free.fresh.min(self.fresh);
            }
            RegionError::System { bytes, source }
        })
    }

    /// Returns the location of a range of the block, as the agent identifies it.
    pub(super) fn slice(&self, within: u64, bytes: u64) -> Slice {
        Slice { region: self.number, offset: self.offset + within, bytes }
    }

    pub(super) fn copy_in(&self, within: u64, data: &[u8]) -> Result<(), OutOfBounds> {
        self.region.copy_in(self.offset + within, data)
    }

    pub(super) fn copy_out(&self, within: u64, data: &mut [u8]) -> Result<(), OutOfBounds> {
        self.region.copy_out(self.offset + within, data)
    }
}

impl Drop for SharedBlock {
    fn drop(&mut self) {
        if let Some(free) = lock(&self.table).regions.get_mut(&self.number) {
            free.give(self.offset, self.len);
        }
    }
}

/// Returns the offset at which the next part of a block may begin.
pub(super) fn aligned(at: u64) -> u64 {
    at.next_multiple_of(ALIGN)
}

/// Locks a table. Every change to it is complete when the lock is released, so a panic elsewhere is
/// harmless.
fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn freed_memory_is_reused() {
        let allocator = SharedMemoryAllocator::default();
        let (first, updates) = allocator.take(100).unwrap();
        assert!(matches!(updates[..], [RegionUpdate::Map(0, _)]));
        let at = first.slice(0, 1);
        drop(first);
        let (again, updates) = allocator.take(FIRST_REGION).unwrap();
        assert!(updates.is_empty());
        assert_eq!((at.region, again.slice(0, 1)), (0, at));
    }

    #[test]
    fn large_regions_are_kept_while_calls_are_large() {
        let allocator = SharedMemoryAllocator::default();
        drop(allocator.take(KEPT_REGION + 1).unwrap());
        assert!(allocator.take(KEPT_REGION).unwrap().1.is_empty());
        for _ in 0..SMALLER_CALLS {
            assert!(allocator.take(1).unwrap().1.is_empty());
        }
        let (_block, updates) = allocator.take(1).unwrap();
        assert!(matches!(updates[..], [RegionUpdate::Unmap(0), RegionUpdate::Map(1, _)]), "{updates:?}");
    }

    fn register(allocator: &SharedMemoryAllocator, bytes: u64) -> (usize, Arc<SharedBlock>) {
        let (at, block) = allocator.register(allocator.take_pages(bytes).unwrap().0, bytes).unwrap();
        (at.addr().get(), block)
    }

    #[test]
    fn registered_memory_is_found_by_address_until_it_is_freed() {
        let allocator = SharedMemoryAllocator::default();
        let ((first, block), (second, other)) = (register(&allocator, 128), register(&allocator, 64));
        let found = |at, len| allocator.find(at, len).map(|found| found.slice());
        assert_eq!(found(second, 64), Some(other.slice(0, 64)));
        assert_eq!(found(first + 100, 28), Some(block.slice(100, 28)));
        assert_eq!(found(second + 1, 64), None);
        drop(block);
        assert_eq!(found(first, 128), None);
        // The freed block is reused for a smaller one.
        let (third, _block) = register(&allocator, 64);
        assert_eq!((third, found(first, 128)), (first, None));
        assert_eq!(found(second, 8), Some(other.slice(0, 8)));
    }

    #[test]
    fn outputs_in_registered_memory_must_be_whole_pages() {
        let allocator = SharedMemoryAllocator::default();
        let page = page_size() as usize;
        let (start, _block) = register(&allocator, 3 * page as u64 + 100);
        let whole = |at: usize, len: usize| allocator.find(start + at, len).unwrap().whole_pages;
        assert!(whole(0, 3 * page + 100) && whole(0, page) && whole(page, 2 * page + 100) && whole(0, 0));
        assert!(!whole(8, page - 8) && !whole(0, page + 8) && !whole(page, 100) && !whole(8, 3 * page + 92));
    }

    #[test]
    fn nothing_shares_a_page_with_registered_memory() {
        let allocator = SharedMemoryAllocator::default();
        let page = page_size();
        let before = allocator.take(10).unwrap().0;
        let (_, registered) = register(&allocator, 10);
        let after = allocator.take(10).unwrap().0;
        assert_eq!((registered.offset % page, registered.len), (0, page));
        for other in [before, after] {
            assert_ne!(other.offset / page, registered.offset / page);
        }
    }

    #[test]
    fn memory_that_does_not_exist_is_an_error() {
        assert!(SharedMemoryAllocator::default().take(u64::MAX).is_err());
        assert!(SharedMemoryAllocator::default().take(1 << 60).is_err());
    }

    proptest! {
        #[test]
        fn used_blocks_never_overlap_and_are_all_freed(
            steps in prop::collection::vec((0u64..200_000, any::<prop::sample::Index>(), 0..4), 1..60)
        ) {
            let allocator = SharedMemoryAllocator::default();
            let mut blocks: Vec<SharedBlock> = Vec::new();
            for (bytes, which, take) in steps {
                match take {
                    0 | 1 if !blocks.is_empty() => drop(blocks.swap_remove(which.index(blocks.len()))),
                    3 => blocks.push(allocator.take_pages(bytes).unwrap().0),
                    _ => blocks.push(allocator.take(bytes).unwrap().0),
                }
                let mut taken: Vec<_> = blocks.iter().map(|b| (b.number, b.offset, b.len)).collect();
                taken.sort_unstable();
                for pair in taken.windows(2) {
                    prop_assert!(pair[0].0 != pair[1].0 || pair[0].1 + pair[0].2 <= pair[1].1);
                }
            }
            drop(blocks);
            for free in lock(&allocator.regions).regions.values() {
                prop_assert_eq!(&free.parts, &BTreeMap::from([(0, free.region.len())]));
            }
        }
    }
}
