//! Arrays of the program in memory that is shared with the agent.

#![allow(
    unsafe_code,
    reason = "shared memory is used as an array through its address; each block explains why it is sound"
)]

use crate::element::Element;
use crate::session::SharedBlock;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// An array of numbers in memory that is shared with the agent. [`Comm::alloc`](crate::Comm::alloc)
/// creates it, and it dereferences to a slice.
pub struct Buffer<T: Element> {
    start: NonNull<T>,
    len: usize,
    /// Keeps the memory alive.
    _block: Arc<SharedBlock>,
    _elements: PhantomData<T>,
}

// SAFETY: within this process the buffer has exclusive access to the memory, as a Vec has. Elements
// are plain numbers.
unsafe impl<T: Element> Send for Buffer<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Buffer<T> {}

impl<T: Element> Buffer<T> {
    /// Returns the first `len` elements of a registered block, set to zero. The block must be long
    /// enough.
    pub(crate) fn new(start: NonNull<u8>, len: usize, block: Arc<SharedBlock>) -> Buffer<T> {
        let mut buffer = Buffer { start: start.cast(), len, _block: block, _elements: PhantomData };
        buffer.fill(T::zeroed());
        buffer
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the block contains `len` elements, begins at a page boundary and hence is aligned
        // for any element, and stays mapped as long as self holds it. All byte values are valid
        // elements. No other code of this process accesses its pages.
        //
        // The agent writes to these pages only during calls that wait and borrow them mutably, and
        // during calls that were started with `Comm::lending`, for which the caller promised not to
        // access them. If the agent stops responding, the call does not return before the pages
        // that it should receive into are disconnected from the agent (or its error states that the
        // system had no memory for that). The agent never writes to memory that a call sends.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
