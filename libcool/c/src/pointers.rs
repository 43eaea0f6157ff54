//! Access to the memory to which C's pointers refer.
//!
//! All trust in the caller is concentrated here: the caller must guarantee that memory exists and
//! is as large as the arguments state.

use crate::error::CError;
use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_void};

/// Returns the memory at `data` as a slice.
///
/// # Safety
/// `data` must be null, or `bytes` bytes must be readable there as long as the result is used.
pub(crate) unsafe fn bytes<'a>(name: &str, data: *const c_void, bytes: usize) -> Result<&'a [u8], CError> {
    match (data.is_null(), bytes) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(CError::Argument(format!("{name} is null, but must have {bytes} bytes"))),
        // SAFETY: the caller guarantees this.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(data.cast(), bytes) }),
    }
}

/// Returns the memory at `data` as a mutable slice.
///
/// # Safety
/// `data` must be null, or `bytes` bytes must be writable there, and no other code may access them,
/// as long as the result is used.
pub(crate) unsafe fn bytes_mut<'a>(
    name: &str,
    data: *mut c_void,
    bytes: usize,
) -> Result<&'a mut [u8], CError> {
    match (data.is_null(), bytes) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(CError::Argument(format!("{name} is null, but must have {bytes} bytes"))),
        // SAFETY: the caller guarantees this.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), bytes) }),
    }
}

/// Copies `n` numbers.
///
/// # Safety
/// `data` must be null, or `n` numbers must be readable there.
pub(crate) unsafe fn numbers(name: &str, data: *const usize, n: usize) -> Result<Vec<usize>, CError> {
    let length = n
        .checked_mul(size_of::<usize>())
        .ok_or_else(|| CError::Argument(format!("{name}: {n} numbers do not fit into memory")))?;
    // SAFETY: the caller guarantees this. Numbers are copied byte by byte, so they need not be
    // aligned.
    let raw = unsafe { bytes(name, data.cast(), length) }?;
    Ok(raw.as_chunks().0.iter().copied().map(usize::from_ne_bytes).collect())
}

/// Stores a result at `place`.
///
/// # Safety
/// `place` must be null, or a `T` must be writable there.
pub(crate) unsafe fn put<T>(name: &str, place: *mut T, value: T) -> Result<(), CError> {
    if place.is_null() {
        return Err(CError::Argument(format!("{name} is null")));
    }
    // SAFETY: the caller guarantees this.
    unsafe { place.write(value) };
    Ok(())
}

/// Returns a string argument.
///
/// # Safety
/// `string` must be null or a valid string.
pub(crate) unsafe fn text<'a>(name: &str, string: *const c_char) -> Result<Cow<'a, str>, CError> {
    if string.is_null() {
        return Err(CError::Argument(format!("{name} is null")));
    }
    // SAFETY: the caller guarantees this.
    Ok(unsafe { CStr::from_ptr(string) }.to_string_lossy())
}
