//! Going on after a failure: who is left, and a group of those.

use crate::arguments::find_comm;
use crate::codes::{cool_comm, cool_status};
use crate::comm::{COMMS, put};
use crate::error::{CError, guarded};
use std::sync::Arc;

/// A group of the ranks that are left, in their old order; it works after calls of this group have failed. A rank is
/// gone if it has ended or freed its communicator, its agent is gone, or it does not come within the shortest timeout
/// that any has set. All ranks that are left call this; cool_free the old group afterwards.
///
/// # Safety
/// `rest` points to a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_shrink(comm: cool_comm, rest: *mut cool_comm) -> cool_status {
    guarded(|| {
        let new = COMMS.add(Arc::new(find_comm(comm)?.shrink()?));
        // SAFETY: as promised.
        unsafe { put("rest", rest, new) }
    })
}

/// Puts the bitwise and of what all ranks give that are left in `flags`, and who is gone in `gone`: as many as there is
/// `room` for, and into `count` how many there are. It works after calls of this group have failed. All ranks that are
/// left call this.
///
/// # Safety
/// `flags` points to this rank's number, `count` to a number, and `gone` has room for `room` numbers, or `room` is 0.
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
        // SAFETY: as promised.
        let agreed = find_comm(comm)?.agree(unsafe { flags.read() })?;
        // SAFETY: as promised.
        unsafe {
            put("flags", flags, agreed.flags)?;
            put_list(gone, room, count, &agreed.gone)
        }
    })
}

/// Lets all calls of a group fail with COOL_REVOKED that are under way or come later, at every rank. Only cool_agree
/// and cool_shrink work afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn cool_revoke(comm: cool_comm) -> cool_status {
    guarded(|| Ok(find_comm(comm)?.revoke()?))
}

/// The ranks of the group from which cool_shrink made this one that are not in it: as many as there is `room` for, and
/// into `count` how many there are.
///
/// # Safety
/// `count` points to a number, and `gone` has room for `room` numbers, or `room` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_gone(
    comm: cool_comm,
    gone: *mut usize,
    room: usize,
    count: *mut usize,
) -> cool_status {
    // SAFETY: as promised.
    guarded(|| unsafe { put_list(gone, room, count, find_comm(comm)?.gone()) })
}

/// # Safety
/// As for cool_gone.
unsafe fn put_list(list: *mut usize, room: usize, count: *mut usize, ranks: &[usize]) -> Result<(), CError> {
    if list.is_null() && room > 0 {
        return Err(CError::Argument(format!("gone is null, but has room for {room} ranks")));
    }
    for (place, rank) in ranks.iter().take(room).enumerate() {
        // SAFETY: there are fewer than `room`, for which the caller has made room.
        unsafe { list.add(place).write(*rank) };
    }
    // SAFETY: as promised.
    unsafe { put("count", count, ranks.len()) }
}
