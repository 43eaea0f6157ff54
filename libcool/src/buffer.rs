//! Arrays of the program in memory that is shared with the agent.

#![allow(
    unsafe_code,
    reason = "shared memory becomes an array by its address; every block says why it is sound"
)]

use crate::element::Element;
use crate::session::SharedBlock;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// An array of numbers in memory that is shared with the agent, made by [`Comm::alloc`](crate::Comm::alloc), and used
/// as a slice.
pub struct Buffer<T: Element> {
    start: NonNull<T>,
    len: usize,
    /// Keeps the memory.
    _block: Arc<SharedBlock>,
    _elements: PhantomData<T>,
}

// SAFETY: within this process it alone has the memory, as a Vec has its own; elements are plain numbers.
unsafe impl<T: Element> Send for Buffer<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Buffer<T> {}

impl<T: Element> Buffer<T> {
    /// The first `len` elements of a registered block, which is long enough; zeroed here.
    pub(crate) fn new(start: NonNull<u8>, len: usize, block: Arc<SharedBlock>) -> Buffer<T> {
        let mut buffer = Buffer { start: start.cast(), len, _block: block, _elements: PhantomData };
        buffer.fill(T::zeroed());
        buffer
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the block has `len` elements, begins at a page, where any element may, and is mapped as long as self has
        // it. All bytes are valid elements. Within this process nobody else reaches its pages. The agent writes to them
        // only in calls that wait and borrow them mutably, and in those whose caller has promised by `Comm::lending` not to be
        // here meanwhile; a call whose agent falls silent does not return before the
        // pages that it was to receive into are cut off from the agent (or says by its error that the system had no
        // memory for that). The agent never writes to what a call sends.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; self is borrowed for it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
