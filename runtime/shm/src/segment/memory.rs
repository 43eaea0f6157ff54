//! The memory operations on which the rules of a segment rely. Ranks use those of a [`Region`];
//! `model_tests` runs the same rules on memory of which the model checker loom explores the order
//! of accesses.

use super::{RankPart, WORDS_ARE_WITHIN};
use crate::pages::OutOfBounds;
use crate::region::Region;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A word that several ranks access atomically.
pub trait SharedWord {
    /// Returns the value.
    fn load(&self, order: Ordering) -> u64;

    /// Stores a value.
    fn store(&self, value: u64, order: Ordering);

    /// Stores a value and returns the previous one.
    fn swap(&self, value: u64, order: Ordering) -> u64;

    /// Adds to the value and returns the previous one.
    fn fetch_add(&self, more: u64, order: Ordering) -> u64;

    /// Stores `new` if the value is `current`, sequentially consistently.
    ///
    /// # Errors
    /// Returns the value if it is another one.
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64>;
}

/// The memory of a segment.
pub trait SegmentMemory {
    /// The words of this memory.
    type Word: SharedWord;

    /// Returns the word at an offset, which must be a multiple of 8 within the segment.
    fn word(&self, offset: u64) -> &Self::Word;

    /// Copies bytes to an offset.
    ///
    /// # Errors
    /// Returns an error if the range exceeds the segment.
    fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds>;

    /// Copies bytes from an offset.
    ///
    /// # Errors
    /// Returns an error if the range exceeds the segment.
    fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> Result<(), OutOfBounds>;

    /// Wakes the ranks that sleep on the bell of the part at an offset, after a sequentially
    /// consistent fence.
    fn wake(&self, part: u64);

    /// Issues a memory fence.
    fn fence(order: Ordering);
}

impl SharedWord for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    #[inline]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::swap(self, value, order)
    }

    #[inline]
    fn fetch_add(&self, more: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_add(self, more, order)
    }

    #[inline]
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        AtomicU64::compare_exchange(self, current, new, Ordering::SeqCst, Ordering::SeqCst)
    }
}

impl SegmentMemory for Region {
    type Word = AtomicU64;

    #[inline]
    fn word(&self, offset: u64) -> &AtomicU64 {
        let at = self.address(offset, 8).expect(WORDS_ARE_WITHIN);
        // SAFETY: the bytes are mapped as long as the region is borrowed. The offset is a multiple
        // of their size from the start of a page. All users of this module access them only as an
        // atomic word.
        unsafe { at.cast::<AtomicU64>().as_ref() }
    }

    fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        std::ops::Deref::deref(self).copy_in(offset, bytes)
    }

    fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        std::ops::Deref::deref(self).copy_out(offset, bytes)
    }

    #[inline]
    fn wake(&self, part: u64) {
        RankPart { region: self, at: part }.wake_sleepers();
    }

    #[inline]
    fn fence(order: Ordering) {
        fence(order);
    }
}
