//! Queues of pending calls that return the first one to complete.

use crate::codes::{cool_queue, cool_request, cool_status};
use crate::error::guarded;
use crate::handles::HandleTable;
use crate::messages::cool_message;
use crate::pointers::put;
use crate::requests::REQUESTS;
use cool_rust::CompletionQueue;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

/// Queues of all ranks of this process.
static QUEUES: HandleTable<Arc<CompletionQueue<'static, u64>>> = HandleTable::new("queue");

/// Creates a queue that returns the first of many pending calls to complete, and stores it in
/// `queue`.
///
/// The calls may belong to several communicators. Any number of threads may add calls and wait for
/// completions; a single thread suffices for all calls of a process.
///
/// # Safety
/// `queue` must point to a queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_queue_new(queue: *mut cool_queue) -> cool_status {
    // SAFETY: the caller guarantees this.
    guarded(|| unsafe { put("queue", queue, QUEUES.add(Arc::default())) })
}

/// Adds a request to a queue, with a token that identifies the call. The queue owns the request
/// from now on, so the caller must neither wait for it nor test it.
#[unsafe(no_mangle)]
pub extern "C" fn cool_queue_add(queue: cool_queue, request: cool_request, token: u64) -> cool_status {
    guarded(|| {
        let queue = QUEUES.get(queue, Arc::clone)?;
        Ok(queue.add(REQUESTS.take(request)?, token)?)
    })
}

/// Waits for a completed call of a queue, including calls that other threads add meanwhile, but at
/// most for `microseconds`.
///
/// Stores 1 in `done`, the token of the call in `token`, and the received message, for a receive,
/// in `message` unless that is NULL. Stores 0 in `done` if no call has completed. If the call
/// failed, returns its error; `done` and `token` are set then, too.
///
/// # Safety
/// `done` must point to an int, `token` to a number, and `message` to a cool_message or be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_queue_next(
    queue: cool_queue,
    microseconds: u64,
    done: *mut c_int,
    token: *mut u64,
    message: *mut cool_message,
) -> cool_status {
    guarded(|| {
        // SAFETY: the caller guarantees this. Set first, so that no call is reported if an error
        // follows.
        unsafe { put("done", done, 0).and_then(|()| put("token", token, 0)) }?;
        let queue = QUEUES.get(queue, Arc::clone)?;
        let Some(call) = queue.next(Duration::from_micros(microseconds)) else { return Ok(()) };
        // SAFETY: the caller guarantees this.
        unsafe { put("done", done, 1).and_then(|()| put("token", token, call.token)) }?;
        let received = call.result?;
        if !message.is_null() {
            // SAFETY: the caller guarantees this.
            unsafe { put("message", message, received.into()) }?;
        }
        Ok(())
    })
}

/// Frees a queue. Its calls are still executed, without their results.
#[unsafe(no_mangle)]
pub extern "C" fn cool_queue_free(queue: cool_queue) -> cool_status {
    guarded(|| QUEUES.take(queue).map(drop))
}
