//! Memory that is shared with the agent.

use crate::codes::{cool_comm, cool_status};
use crate::comm::find_comm;
use crate::error::{CError, guarded};
use crate::pointers::put;
use cool_rust::Buffer;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Allocated buffers, by address.
static BUFFERS: LazyLock<Mutex<HashMap<usize, Buffer<u8>>>> = LazyLock::new(Mutex::default);

/// Allocates `bytes` zero bytes that are shared with the agent, for any type of elements, and
/// stores their address in `data`. The caller must free them by cool_dealloc. The memory may
/// outlive the communicator.
///
/// Blocking calls of this communicator, and calls that were started through cool_lending, send from
/// and receive into such memory without a copy. A copy is still made if a call works in place, or
/// receives into a part of the memory that does not begin and end at multiples of the system's page
/// size or at its ends. A call that fails may have overwritten a part of the memory that it
/// receives into.
///
/// # Safety
/// `data` must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_alloc(bytes: usize, comm: cool_comm, data: *mut *mut c_void) -> cool_status {
    guarded(|| {
        // SAFETY: the caller guarantees this. Checked first, so that the memory is not leaked.
        unsafe { put("data", data, ptr::null_mut()) }?;
        // Even buffers of 0 bytes have distinct addresses.
        let mut buffer = find_comm(comm)?.alloc::<u8>(bytes)?;
        let start = buffer.as_mut_ptr();
        buffers(|buffers| buffers.insert(start.addr(), buffer));
        // SAFETY: the caller guarantees this.
        unsafe { put("data", data, start.cast()) }
    })
}

/// Frees memory of cool_alloc. Does nothing for NULL. A call of another thread that still uses the
/// memory keeps it until it is complete.
#[unsafe(no_mangle)]
pub extern "C" fn cool_dealloc(data: *mut c_void) -> cool_status {
    guarded(|| match buffers(|buffers| buffers.remove(&data.addr())) {
        Some(_) => Ok(()),
        None if data.is_null() => Ok(()),
        None => {
            Err(CError::Argument(format!("{data:p} was not returned by cool_alloc, or was freed already")))
        }
    })
}

fn buffers<R>(f: impl FnOnce(&mut HashMap<usize, Buffer<u8>>) -> R) -> R {
    // Every change to the table is complete when the lock is released, so a panic elsewhere is
    // harmless.
    f(&mut BUFFERS.lock().unwrap_or_else(PoisonError::into_inner))
}
