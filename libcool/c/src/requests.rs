//! Calls under way.

use crate::codes::{cool_request, cool_status};
use crate::comm::put;
use crate::error::{CError, guarded};
use crate::handles::HandleTable;
use cool_rust::Pending;
use std::ffi::c_int;
use std::time::Duration;

/// Of all ranks of this process.
pub(crate) static REQUESTS: HandleTable<Pending<'static>> = HandleTable::new("request");

/// Starts a call; where its request goes.
///
/// # Safety
/// `request` points to a request.
pub(crate) unsafe fn start_request(
    request: *mut cool_request,
    start: impl FnOnce() -> Result<Pending<'static>, CError>,
) -> cool_status {
    // SAFETY: as promised.
    guarded(|| unsafe { put("request", request, REQUESTS.add(start()?)) })
}

/// Waits until a call is done, and frees the request.
#[unsafe(no_mangle)]
pub extern "C" fn cool_wait(request: cool_request) -> cool_status {
    guarded(|| Ok(REQUESTS.take(request)?.wait()?))
}

/// Waits until a call is done, but at most for `microseconds`; `done` gets 1 or 0. If it is done, what it received is there;
/// cool_wait then returns at once, and frees the request. It can be called again and again, with waits as short as one likes.
/// If the call failed, that is told here, and the request is freed.
///
/// # Safety
/// `done` points to a number.
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
        // SAFETY: as promised.
        unsafe { put("done", done, c_int::from(is_done)) }
    })
}

/// Waits for all of `n` calls and frees their requests. The error is that of the first that failed.
///
/// # Safety
/// There are `n` requests at `requests`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_wait_all(requests: *const cool_request, n: usize) -> cool_status {
    guarded(|| {
        if requests.is_null() && n > 0 {
            return Err(CError::Argument("requests is null".to_owned()));
        }
        let mut first = Ok(());
        for place in 0..n {
            // SAFETY: as promised.
            let request = unsafe { requests.add(place).read_unaligned() };
            let done = REQUESTS.take(request).and_then(|pending| Ok(pending.wait()?));
            first = first.and(done);
        }
        first
    })
}

/// Whether cool_wait would return at once: `done` gets 1 or 0.
///
/// # Safety
/// `done` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_test(request: cool_request, done: *mut c_int) -> cool_status {
    guarded(|| {
        let is_done = REQUESTS.get(request, Pending::is_done)??;
        // SAFETY: as promised.
        unsafe { put("done", done, c_int::from(is_done)) }
    })
}
