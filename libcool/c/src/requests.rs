//! Pending calls.

use crate::codes::{cool_request, cool_status};
use crate::error::{CError, guarded};
use crate::handles::HandleTable;
use crate::pointers::put;
use cool_rust::Pending;
use std::ffi::c_int;
use std::time::Duration;

/// Requests of all ranks of this process.
pub(crate) static REQUESTS: HandleTable<Pending<'static>> = HandleTable::new("request");

/// Starts a call and stores its request.
///
/// # Safety
/// `request` must point to a request.
pub(crate) unsafe fn start_request(
    request: *mut cool_request,
    start: impl FnOnce() -> Result<Pending<'static>, CError>,
) -> cool_status {
    guarded(|| {
        // SAFETY: the caller guarantees this. The place is checked first, because a started call
        // has an effect.
        unsafe { put("request", request, 0) }?;
        let started = REQUESTS.add(start()?);
        // SAFETY: the caller guarantees this.
        unsafe { put("request", request, started) }
    })
}

/// Waits until a call is complete, and frees the request.
#[unsafe(no_mangle)]
pub extern "C" fn cool_wait(request: cool_request) -> cool_status {
    guarded(|| Ok(REQUESTS.take(request)?.wait()?))
}

/// Waits until a call is complete, but at most for `microseconds`. Stores 1 in `done` if it is,
/// otherwise 0.
///
/// Once it is complete, received data is available, and cool_wait, which must still free the
/// request, returns at once. The function may be called repeatedly with short waits. If the call
/// failed, returns its error and frees the request.
///
/// # Safety
/// `done` must point to an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_wait_for(
    request: cool_request,
    microseconds: u64,
    done: *mut c_int,
) -> cool_status {
    guarded(|| {
        let mut pending = REQUESTS.take(request)?;
        let is_done = pending.wait_for(Duration::from_micros(microseconds))?;
        REQUESTS.put_back(request, pending);
        // SAFETY: the caller guarantees this.
        unsafe { put("done", done, c_int::from(is_done)) }
    })
}

/// Waits for all of `n` calls and frees their requests. Returns the first error, after all have
/// completed.
///
/// # Safety
/// `requests` must point to `n` requests.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_wait_all(requests: *const cool_request, n: usize) -> cool_status {
    guarded(|| {
        if requests.is_null() && n > 0 {
            return Err(CError::Argument("requests is null".to_owned()));
        }
        let mut first = Ok(());
        for place in 0..n {
            // SAFETY: the caller guarantees this.
            let request = unsafe { requests.add(place).read_unaligned() };
            let done = REQUESTS.take(request).and_then(|pending| Ok(pending.wait()?));
            first = first.and(done);
        }
        first
    })
}

/// Stores 1 in `done` if cool_wait would return at once, otherwise 0.
///
/// # Safety
/// `done` must point to an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_test(request: cool_request, done: *mut c_int) -> cool_status {
    guarded(|| {
        let is_done = REQUESTS.get(request, Pending::is_done)??;
        // SAFETY: the caller guarantees this.
        unsafe { put("done", done, c_int::from(is_done)) }
    })
}
