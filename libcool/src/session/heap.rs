//! Memory shared with the agent, from which calls take what they need while they are under way.
//!
//! Regions grow with the need and are kept, so that repeated calls map nothing. How regions are told to the
//! agent is left to the caller. A block may be registered memory (`ncclCommRegister`, RDMA): the program has it as an
//! array, and a call on that array, found by its address, is one on the block.

use cool_proto::local::Slice;
use cool_proto::region::{OutOfBounds, Region, RegionError};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Blocks begin at multiples of this, so that the agent's vector units like them.
const ALIGN: u64 = 64;

/// The first region's size, so that small calls share one.
const FIRST_REGION: u64 = 64 << 10;

/// A region that is not in use is kept up to this size, or as long as calls are nearly as large.
const KEEP: u64 = 256 << 20;

/// A large region is unmapped only after more than this many calls in a row that need less than an eighth of it: between
/// large calls programs wait in barriers and exchange lengths, and to map a gibibyte anew costs more than to send it.
const SPARED: u32 = 64;

/// Regions and which parts of them are free.
#[derive(Debug, Default)]
pub(super) struct Heap {
    regions: Arc<Mutex<Regions>>,
    /// Registered memory, by its address in this process.
    registered: Mutex<BTreeMap<usize, Weak<Block>>>,
}

#[derive(Debug, Default)]
struct Regions {
    next: u32,
    regions: BTreeMap<u32, Free>,
    /// Calls in a row for which a region was too large.
    spared: u32,
}

/// A region's free parts: their lengths by where they begin. Neighbours are one.
#[derive(Debug)]
struct Free {
    region: Arc<Region>,
    parts: BTreeMap<u64, u64>,
}

/// A part of a region in use; free again when dropped.
#[derive(Debug)]
pub(crate) struct Block {
    heap: Arc<Mutex<Regions>>,
    number: u32,
    region: Arc<Region>,
    offset: u64,
    len: u64,
}

/// The memory of a call.
#[derive(Debug)]
pub(super) struct Memory {
    /// Of what is copied.
    pub(super) block: Block,
    /// Registered blocks that it uses: nobody else gets them before it is done, though the program may have given them back.
    pub(super) registered: Vec<Arc<Block>>,
}

/// What the agent is to be told before a new block is used.
#[derive(Debug)]
pub(super) enum RegionUpdate {
    /// This region is shared from now on.
    Map(u32, Arc<Region>),
    /// This region is shared no more.
    Unmap(u32),
}

impl Heap {
    /// A block of at least `bytes` bytes, and what to tell the agent of it.
    pub(super) fn take(&self, bytes: u64) -> Result<(Block, Vec<RegionUpdate>), RegionError> {
        let len = bytes
            .max(1)
            .checked_next_multiple_of(ALIGN)
            .ok_or(RegionError::System { bytes, source: std::io::ErrorKind::OutOfMemory.into() })?;
        let mut regions = lock(&self.regions);
        let mut updates: Vec<RegionUpdate> =
            regions.drop_large(len).into_iter().map(RegionUpdate::Unmap).collect();
        let fitting = regions
            .regions
            .iter_mut()
            .find_map(|(number, free)| Some((*number, Arc::clone(&free.region), free.take(len)?)));
        let block =
            |(number, region, offset)| Block { heap: Arc::clone(&self.regions), number, region, offset, len };
        if let Some(found) = fitting {
            return Ok((block(found), updates));
        }
        // As large as all together: their number stays small. Pages that are never touched cost nothing.
        let all: u64 = regions.regions.values().map(|free| free.region.len()).sum();
        let size = len.max(all).max(FIRST_REGION);
        let region = Arc::new(Region::create(size.checked_next_power_of_two().unwrap_or(len))?);
        let number = regions.next;
        regions.next = regions.next.wrapping_add(1);
        let mut free = Free { parts: BTreeMap::from([(0, region.len())]), region: Arc::clone(&region) };
        let offset = free.take(len).unwrap_or(0);
        regions.regions.insert(number, free);
        updates.push(RegionUpdate::Map(number, Arc::clone(&region)));
        Ok((block((number, region, offset)), updates))
    }

    /// Gives a block to the program as registered memory, to read and write while no call uses it; its address.
    pub(super) fn register(&self, block: Block) -> Result<(NonNull<u8>, Arc<Block>), OutOfBounds> {
        let at = block.address()?;
        let block = Arc::new(block);
        let mut registered = lock(&self.registered);
        registered.retain(|_, block| block.strong_count() > 0);
        registered.insert(at.addr().get(), Arc::downgrade(&block));
        Ok((at, block))
    }

    /// The registered block that holds all these bytes, and where in it they begin.
    pub(super) fn registration(&self, bytes: &[u8]) -> Option<(Arc<Block>, u64)> {
        self.registration_at(bytes.as_ptr().addr(), bytes.len())
    }

    fn registration_at(&self, at: usize, len: usize) -> Option<(Arc<Block>, u64)> {
        let (start, block) = {
            let registered = lock(&self.registered);
            let (start, block) = registered.range(..=at).next_back()?;
            (*start, block.upgrade()?)
        };
        let within = (at - start) as u64;
        (within + len as u64 <= block.len).then_some((block, within))
    }

    /// Keeps the agent from changing what the program has.
    pub(super) fn detach(&self) -> Result<(), RegionError> {
        let blocks: Vec<Arc<Block>> = lock(&self.registered).values().filter_map(Weak::upgrade).collect();
        let regions: BTreeMap<u32, &Region> = blocks.iter().map(|b| (b.number, &*b.region)).collect();
        regions.into_values().try_for_each(Region::detach)
    }
}

impl Regions {
    /// Forgets large regions that nothing uses, once so much less has been needed for a while; which.
    fn drop_large(&mut self, needed: u64) -> Vec<u32> {
        let large = |bytes: u64| bytes > KEEP && bytes / 8 > needed;
        let unused = |free: &Free| large(free.region.len()) && free.parts.get(&0) == Some(&free.region.len());
        let dropped: Vec<u32> = self.regions.iter().filter(|(_, f)| unused(f)).map(|(n, _)| *n).collect();
        self.spared = if dropped.is_empty() { 0 } else { self.spared + 1 };
        if self.spared <= SPARED {
            return Vec::new();
        }
        dropped.iter().for_each(|number| drop(self.regions.remove(number)));
        dropped
    }
}

impl Free {
    /// Takes the first part that is long enough.
    fn take(&mut self, len: u64) -> Option<u64> {
        let (offset, free) = self.parts.iter().find(|(_, free)| **free >= len).map(|(o, f)| (*o, *f))?;
        self.parts.remove(&offset);
        if free > len {
            self.parts.insert(offset + len, free - len);
        }
        Some(offset)
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

impl Block {
    /// Where it lies in this process.
    fn address(&self) -> Result<NonNull<u8>, OutOfBounds> {
        self.region.address(self.offset, self.len)
    }

    /// A part of it, as the agent knows it.
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

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(free) = lock(&self.heap).regions.get_mut(&self.number) {
            free.give(self.offset, self.len);
        }
    }
}

/// Where the next part of a block may begin.
pub(super) fn aligned(at: u64) -> u64 {
    at.next_multiple_of(ALIGN)
}

/// Every change to the table is whole before the lock is given back, so a panic elsewhere spoils nothing.
fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_given_back_is_used_again() {
        let heap = Heap::default();
        let (first, updates) = heap.take(100).unwrap();
        assert!(matches!(updates[..], [RegionUpdate::Map(0, _)]));
        let at = first.slice(0, 1);
        drop(first);
        let (again, updates) = heap.take(FIRST_REGION).unwrap();
        assert!(updates.is_empty());
        assert_eq!((at.region, again.slice(0, 1)), (0, at));
    }

    #[test]
    fn large_regions_are_kept_while_calls_are_large() {
        let heap = Heap::default();
        drop(heap.take(KEEP + 1).unwrap());
        assert!(heap.take(KEEP).unwrap().1.is_empty());
        for _ in 0..SPARED {
            assert!(heap.take(1).unwrap().1.is_empty());
        }
        let (_block, updates) = heap.take(1).unwrap();
        assert!(matches!(updates[..], [RegionUpdate::Unmap(0), RegionUpdate::Map(1, _)]), "{updates:?}");
    }

    #[test]
    fn registered_memory_is_found_by_its_address_as_long_as_the_program_has_it() {
        let heap = Heap::default();
        let register = |bytes| heap.register(heap.take(bytes).unwrap().0).unwrap().1;
        let (first, second) = (register(128), register(64));
        let bytes =
            |block: &Block, within: usize, len: usize| (block.address().unwrap().addr().get() + within, len);
        let found = |(at, len)| heap.registration_at(at, len).map(|(block, within)| block.offset + within);
        assert_eq!(found(bytes(&second, 0, 64)), Some(second.offset));
        assert_eq!(found(bytes(&first, 100, 28)), Some(first.offset + 100));
        assert_eq!(found(bytes(&second, 1, 64)), None);
        let at = bytes(&first, 0, 128);
        drop(first);
        assert_eq!(found(at), None);
        // Its place is used again, for something smaller.
        let _third = register(64);
        assert_eq!(found(at), None);
        assert_eq!(found(bytes(&second, 0, 8)), Some(second.offset));
    }

    #[test]
    fn memory_that_does_not_exist_is_an_error() {
        assert!(Heap::default().take(u64::MAX).is_err());
        assert!(Heap::default().take(1 << 60).is_err());
    }

    proptest! {
        #[test]
        fn blocks_in_use_never_overlap_and_all_comes_back(
            steps in prop::collection::vec((0u64..200_000, any::<prop::sample::Index>(), any::<bool>()), 1..60)
        ) {
            let heap = Heap::default();
            let mut blocks: Vec<Block> = Vec::new();
            for (bytes, which, take) in steps {
                if take || blocks.is_empty() {
                    blocks.push(heap.take(bytes).unwrap().0);
                } else {
                    blocks.swap_remove(which.index(blocks.len()));
                }
                let mut taken: Vec<_> = blocks.iter().map(|b| (b.number, b.offset, b.len)).collect();
                taken.sort_unstable();
                for pair in taken.windows(2) {
                    prop_assert!(pair[0].0 != pair[1].0 || pair[0].1 + pair[0].2 <= pair[1].1);
                }
            }
            drop(blocks);
            for free in lock(&heap.regions).regions.values() {
                prop_assert_eq!(&free.parts, &BTreeMap::from([(0, free.region.len())]));
            }
        }
    }
}
