//! Many calls under way, and which of them is done first.

use crate::codes::{cool_queue, cool_request, cool_status};
use crate::comm::put;
use crate::error::guarded;
use crate::handles::HandleTable;
use crate::messages::cool_message;
use crate::requests::REQUESTS;
use cool_rust::CompletionQueue;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

/// Of all ranks of this process.
static QUEUES: HandleTable<Arc<CompletionQueue<'static, u64>>> = HandleTable::new("queue");

/// A queue that tells which of many calls is done first; they may be of several communicators. Any number of threads may add
/// calls and wait for the next; one suffices for all calls of a process.
///
/// # Safety
/// `queue` points to a queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_queue_new(queue: *mut cool_queue) -> cool_status {
    // SAFETY: as promised.
    guarded(|| unsafe { put("queue", queue, QUEUES.add(Arc::default())) })
}

/// Gives a call to a queue, with a token by which the program knows it. The request is the queue's from now on: neither wait
/// for it nor test it.
#[unsafe(no_mangle)]
pub extern "C" fn cool_queue_add(queue: cool_queue, request: cool_request, token: u64) -> cool_status {
    guarded(|| {
        let queue = QUEUES.get(queue, Arc::clone)?;
        Ok(queue.add(REQUESTS.take(request)?, token)?)
    })
}

/// Waits for a call of a queue that is done, also for one that another thread adds meanwhile, but at most for
/// `microseconds`. `done` gets 1, or 0 if there was none; `token` gets that of the call, and `message`, unless it is null, what
/// came, if it was a receive. If the call failed, its error is returned, and `done` and `token` are set all the same.
///
/// # Safety
/// `done` and `token` point to numbers; `message` points to one, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_queue_next(
    queue: cool_queue,
    microseconds: u64,
    done: *mut c_int,
    token: *mut u64,
    message: *mut cool_message,
) -> cool_status {
    guarded(|| {
        // SAFETY: as promised; nothing is taken for done, whatever goes wrong.
        unsafe { put("done", done, 0).and_then(|()| put("token", token, 0)) }?;
        let queue = QUEUES.get(queue, Arc::clone)?;
        let Some(call) = queue.next(Duration::from_micros(microseconds)) else { return Ok(()) };
        // SAFETY: as promised.
        unsafe { put("done", done, 1).and_then(|()| put("token", token, call.token)) }?;
        let received = call.result?;
        if !message.is_null() {
            // SAFETY: as promised.
            unsafe { put("message", message, received.into()) }?;
        }
        Ok(())
    })
}

/// Frees a queue. Its calls go on without their results.
#[unsafe(no_mangle)]
pub extern "C" fn cool_queue_free(queue: cool_queue) -> cool_status {
    guarded(|| QUEUES.take(queue).map(drop))
}
