//! Memory that is shared with the agent.

use crate::arguments::find_comm;
use crate::codes::{cool_comm, cool_status};
use crate::comm::put;
use crate::error::{CError, guarded};
use cool_rust::Buffer;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{LazyLock, Mutex, PoisonError};

/// By where each begins.
static BUFFERS: LazyLock<Mutex<HashMap<usize, Buffer<u8>>>> = LazyLock::new(Mutex::default);

/// `bytes` zeros in memory that is shared with the agent, for any type of elements: calls of this communicator that wait
/// (and those that begin with cool_i, by cool_lending) take what they send from there, and put there what they receive,
/// without a copy; what is overwritten in place is copied all the same before it is sent, and so is what comes into a part of
/// the memory that does not begin and end at multiples of the system's page size or at the ends. A call that fails may have
/// overwritten a part of what it was to receive. The memory outlives its communicator; give it back by cool_dealloc.
///
/// # Safety
/// `data` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_alloc(bytes: usize, comm: cool_comm, data: *mut *mut c_void) -> cool_status {
    guarded(|| {
        // SAFETY: as promised; so it is not forgotten where the memory is.
        unsafe { put("data", data, ptr::null_mut()) }?;
        // Also of no bytes each has a place of its own.
        let mut buffer = find_comm(comm)?.alloc::<u8>(bytes)?;
        let start = buffer.as_mut_ptr();
        buffers(|buffers| buffers.insert(start.addr(), buffer));
        // SAFETY: as promised.
        unsafe { put("data", data, start.cast()) }
    })
}

/// Gives back what cool_alloc gave, or NULL. A call that still uses it in another thread keeps it until that is done.
#[unsafe(no_mangle)]
pub extern "C" fn cool_dealloc(data: *mut c_void) -> cool_status {
    guarded(|| match buffers(|buffers| buffers.remove(&data.addr())) {
        Some(_) => Ok(()),
        None if data.is_null() => Ok(()),
        None => Err(CError::Argument(format!(
            "{data:p} is nothing that cool_alloc gave, or it was given back before"
        ))),
    })
}

fn buffers<R>(f: impl FnOnce(&mut HashMap<usize, Buffer<u8>>) -> R) -> R {
    // Every change to the table is whole, so a panic elsewhere spoils nothing.
    f(&mut BUFFERS.lock().unwrap_or_else(PoisonError::into_inner))
}
