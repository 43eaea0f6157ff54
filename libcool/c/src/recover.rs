//! Recovery after a failure: agreement of the survivors, and a new group of them.

use crate::codes::{cool_comm, cool_status};
use crate::comm::{COMMS, find_comm};
use crate::error::{CError, guarded};
use crate::pointers::put;
use std::sync::Arc;

/// Creates a group of the surviving ranks, in their old order, and stores its communicator in
/// `rest`. All survivors must call this. It works after calls of this group have failed.
///
/// A rank counts as lost if it has ended or freed its communicator, its agent is unreachable, or it
/// does not call this within the shortest timeout that any survivor has set. The old group should
/// be freed afterwards, by cool_free.
///
/// # Safety
/// `rest` must point to a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_shrink(comm: cool_comm, rest: *mut cool_comm) -> cool_status {
    guarded(|| {
        let new = COMMS.add(Arc::new(find_comm(comm)?.shrink()?));
        // SAFETY: the caller guarantees this.
        unsafe { put("rest", rest, new) }
    })
}

/// Replaces `flags` with the bitwise AND of the flags of all surviving ranks. Writes the lost ranks
/// to `gone`, at most `room` of them, and stores their total number in `count`. All survivors must
/// call this. It works after calls of this group have failed.
///
/// # Safety
/// `flags` must point to this rank's flags, `count` to a number, and `gone` must have room for
/// `room` numbers, or `room` must be 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_agree(
    comm: cool_comm,
    flags: *mut u64,
    gone: *mut usize,
    room: usize,
    count: *mut usize,
) -> cool_status {
    guarded(|| {
        if flags.is_null() {
            return Err(CError::Argument("flags is null".to_owned()));
        }
        // SAFETY: the caller guarantees this.
        let agreed = find_comm(comm)?.agree(unsafe { flags.read() })?;
        // SAFETY: the caller guarantees this.
        unsafe {
            put("flags", flags, agreed.flags)?;
            put_list(gone, room, count, &agreed.gone)
        }
    })
}

/// Makes all pending and later calls of the group fail with COOL_REVOKED, at every rank. Only
/// cool_agree and cool_shrink work afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn cool_revoke(comm: cool_comm) -> cool_status {
    guarded(|| Ok(find_comm(comm)?.revoke()?))
}

/// Writes the lost ranks of the group from which cool_shrink created this one to `gone`, at most
/// `room` of them, and stores their total number in `count`.
///
/// # Safety
/// `count` must point to a number, and `gone` must have room for `room` numbers, or `room` must be
/// 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_gone(
    comm: cool_comm,
    gone: *mut usize,
    room: usize,
    count: *mut usize,
) -> cool_status {
    // SAFETY: the caller guarantees this.
    guarded(|| unsafe { put_list(gone, room, count, find_comm(comm)?.gone()) })
}

/// Writes a list of ranks and its length.
///
/// # Safety
/// As for cool_gone.
unsafe fn put_list(list: *mut usize, room: usize, count: *mut usize, ranks: &[usize]) -> Result<(), CError> {
    if list.is_null() && room > 0 {
        return Err(CError::Argument(format!("gone is null, but has room for {room} ranks")));
    }
    for (place, rank) in ranks.iter().take(room).enumerate() {
        // SAFETY: the index is less than `room`, and the caller guarantees that there is room.
        unsafe { list.add(place).write(*rank) };
    }
    // SAFETY: the caller guarantees this.
    unsafe { put("count", count, ranks.len()) }
}
