//! Memory shared with the agent, from which calls take what they need while they are under way.
//!
//! Regions grow with the need and are kept, so that repeated calls map nothing. How regions are told to the
//! agent is left to the caller.

use cool_proto::region::{OutOfBounds, Region, RegionError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Blocks begin at multiples of this, so that the agent's vector units like them.
const ALIGN: u64 = 64;

/// The first region's size, so that small calls share one.
const FIRST_REGION: u64 = 64 << 10;

/// A region that is not in use is kept up to this size, or as long as calls are nearly as large.
const KEEP: u64 = 256 << 20;

/// Regions and which parts of them are free.
#[derive(Debug, Default)]
pub(super) struct Heap {
    regions: Arc<Mutex<Regions>>,
}

#[derive(Debug, Default)]
struct Regions {
    next: u32,
    regions: BTreeMap<u32, Free>,
}

/// A region's free parts: their lengths by where they begin. Neighbours are one.
#[derive(Debug)]
struct Free {
    region: Arc<Region>,
    parts: BTreeMap<u64, u64>,
}

/// A part of a region in use; free again when dropped.
#[derive(Debug)]
pub(super) struct Block {
    heap: Arc<Mutex<Regions>>,
    number: u32,
    region: Arc<Region>,
    offset: u64,
    len: u64,
}

/// What the agent is to be told before a new block is used.
#[derive(Debug)]
pub(super) enum News {
    /// This region is shared from now on.
    Map(u32, Arc<Region>),
    /// This region is shared no more.
    Unmap(u32),
}

impl Heap {
    /// A block of at least so many bytes, and what to tell the agent of it.
    pub(super) fn take(&self, bytes: u64) -> Result<(Block, Vec<News>), RegionError> {
        let len = bytes
            .max(1)
            .checked_next_multiple_of(ALIGN)
            .ok_or(RegionError::System { bytes, source: std::io::ErrorKind::OutOfMemory.into() })?;
        let mut regions = lock(&self.regions);
        let mut news: Vec<News> = regions.drop_large(len).into_iter().map(News::Unmap).collect();
        let fitting = regions
            .regions
            .iter_mut()
            .find_map(|(number, free)| Some((*number, Arc::clone(&free.region), free.take(len)?)));
        let block =
            |(number, region, offset)| Block { heap: Arc::clone(&self.regions), number, region, offset, len };
        if let Some(found) = fitting {
            return Ok((block(found), news));
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
        news.push(News::Map(number, Arc::clone(&region)));
        Ok((block((number, region, offset)), news))
    }
}

impl Regions {
    /// Forgets large regions that nothing uses, now that so much less is needed; which.
    fn drop_large(&mut self, needed: u64) -> Vec<u32> {
        let large = |bytes: u64| bytes > KEEP && bytes / 8 > needed;
        let unused = |free: &Free| large(free.region.len()) && free.parts.get(&0) == Some(&free.region.len());
        let dropped: Vec<u32> = self.regions.iter().filter(|(_, f)| unused(f)).map(|(n, _)| *n).collect();
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
    /// The number of its region.
    pub(super) fn region(&self) -> u32 {
        self.number
    }

    /// Where in the region something within the block lies.
    pub(super) fn offset(&self, within: u64) -> u64 {
        self.offset + within
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
fn lock(regions: &Mutex<Regions>) -> MutexGuard<'_, Regions> {
    regions.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_given_back_is_used_again() {
        let heap = Heap::default();
        let (first, news) = heap.take(100).unwrap();
        assert!(matches!(news[..], [News::Map(0, _)]));
        let at = first.offset(0);
        drop(first);
        let (again, news) = heap.take(FIRST_REGION).unwrap();
        assert!(news.is_empty());
        assert_eq!((again.region(), again.offset(0)), (0, at));
    }

    #[test]
    fn large_regions_are_kept_while_calls_are_large() {
        let heap = Heap::default();
        drop(heap.take(KEEP + 1).unwrap());
        assert!(heap.take(KEEP).unwrap().1.is_empty());
        let (_block, news) = heap.take(1).unwrap();
        assert!(matches!(news[..], [News::Unmap(0), News::Map(1, _)]), "{news:?}");
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
                let mut taken: Vec<_> = blocks.iter().map(|b| (b.region(), b.offset(0), b.len)).collect();
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
