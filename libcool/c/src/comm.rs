//! Communicators: where they come from and what they say of themselves.

use crate::arguments::{bytes, find_comm};
use crate::codes::{cool_comm, cool_operation, cool_status, operation_of};
use crate::error::{CError, guarded};
use crate::handles::HandleTable;
use cool_rust::Comm;
use std::borrow::Cow;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Of all ranks of this process.
pub(crate) static COMMS: HandleTable<Arc<Comm>> = HandleTable::new("communicator");

/// Writes a result where the caller wants it.
///
/// # Safety
/// Unless it is null, a `T` can be written there.
pub(crate) unsafe fn put<T>(name: &str, place: *mut T, value: T) -> Result<(), CError> {
    if place.is_null() {
        return Err(CError::Argument(format!("{name} is null")));
    }
    // SAFETY: as promised.
    unsafe { place.write(value) };
    Ok(())
}

/// All ranks of the program, as the launcher started them: `cool run`, srun, mpirun, torchrun. Waits for all.
///
/// # Safety
/// `world` points to a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_world(world: *mut cool_comm) -> cool_status {
    guarded(|| {
        let comm = COMMS.add(Arc::new(Comm::world()?));
        // SAFETY: as promised.
        unsafe { put("world", world, comm) }
    })
}

/// # Safety
/// Unless it is null, there is a string.
unsafe fn text<'a>(name: &str, string: *const c_char) -> Result<Cow<'a, str>, CError> {
    if string.is_null() {
        return Err(CError::Argument(format!("{name} is null")));
    }
    // SAFETY: as promised.
    Ok(unsafe { CStr::from_ptr(string) }.to_string_lossy())
}

/// A group of processes that have agreed on a key by themselves: rank `rank` of `size`, with all others of the same user
/// that give the same `key` (1 to 200 bytes). Waits until all `size` have come, for at most `milliseconds`. No launcher is
/// needed. The agent is the one at `socket`; if that is null, at COOL_SOCKET, or else the only one in /run/cool. A key can be
/// used again when its group has been made, but a random one cannot meet a process that was left over.
///
/// # Safety
/// `key` is a string, and so is `socket`, unless it is null; `comm` points to a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_join(
    key: *const c_char,
    rank: usize,
    size: usize,
    milliseconds: u64,
    socket: *const c_char,
    comm: *mut cool_comm,
) -> cool_status {
    guarded(|| {
        // SAFETY: as promised.
        let key = unsafe { text("key", key) }?;
        let timeout = Duration::from_millis(milliseconds);
        let joined = if socket.is_null() {
            Comm::join(&key, rank, size, timeout)?
        } else {
            // SAFETY: as promised.
            let socket = unsafe { CStr::from_ptr(socket) };
            Comm::join_at(Path::new(OsStr::from_bytes(socket.to_bytes())), &key, rank, size, timeout)?
        };
        // SAFETY: as promised.
        unsafe { put("comm", comm, COMMS.add(Arc::new(joined))) }
    })
}

/// The communicator again, as `again`, whose calls fail when they make no progress for `milliseconds`, whatever
/// cool_set_timeout says: for the timeout of one call. Nothing is sent. Free both; the rank has left the group when all are freed.
///
/// # Safety
/// `again` points to a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_with_timeout(
    comm: cool_comm,
    milliseconds: u64,
    again: *mut cool_comm,
) -> cool_status {
    guarded(|| {
        let new = find_comm(comm)?.with_timeout(Duration::from_millis(milliseconds));
        // SAFETY: as promised.
        unsafe { put("again", again, COMMS.add(Arc::new(new))) }
    })
}

/// The communicator again, as `again`, to which started calls lend their arrays: memory of cool_alloc is used where it is,
/// as by calls that wait, without a copy when a call starts and when it is done. Who starts a call by it promises, until
/// that was waited for, not to write to what it sends, and neither to read nor to write what it receives into. Nothing is
/// sent. Free both; the rank has left the group when all are freed.
///
/// # Safety
/// The promise is kept; `again` points to a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_lending(comm: cool_comm, again: *mut cool_comm) -> cool_status {
    guarded(|| {
        // SAFETY: as promised.
        let new = unsafe { find_comm(comm)?.lending() };
        // SAFETY: as promised.
        unsafe { put("again", again, COMMS.add(Arc::new(new))) }
    })
}

/// What cool_launch runs: gets the world, and what was given to cool_launch; returns 0 if all went well.
pub type cool_program = Option<unsafe extern "C" fn(world: cool_comm, context: *mut c_void) -> c_int>;

/// What goes through threads that promise nothing of it.
#[derive(Clone, Copy)]
struct ProgramContext(*mut c_void);

// SAFETY: it is only handed on; the caller of cool_launch has promised that its program may use it in threads.
unsafe impl Send for ProgramContext {}
// SAFETY: as above.
unsafe impl Sync for ProgramContext {}

impl ProgramContext {
    fn get(self) -> *mut c_void {
        self.0
    }
}

/// Runs a program as the rank that a launcher started this process as; in a process that was started by hand, as 4
/// ranks (COOL_EMBEDDED sets another number) in threads of this process, with agents on loopback. The world is freed
/// when the program returns. `result` gets the first result that is not 0.
///
/// # Safety
/// The program can be run in several threads with this context; `result` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_launch(
    program: cool_program,
    context: *mut c_void,
    result: *mut c_int,
) -> cool_status {
    guarded(|| {
        let program = program.ok_or_else(|| CError::Argument("program is null".to_owned()))?;
        let context = ProgramContext(context);
        let results = cool_rust::launch(|comm| {
            let world = COMMS.add(Arc::new(comm));
            // SAFETY: as promised.
            let result = unsafe { program(world, context.get()) };
            // The program may have freed it.
            let _ = COMMS.take(world);
            result
        })?;
        let first = results.into_iter().find(|result| *result != 0);
        // SAFETY: as promised.
        unsafe { put("result", result, first.unwrap_or(0)) }
    })
}

/// This rank's number in a group, from 0.
///
/// # Safety
/// `rank` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_rank(comm: cool_comm, rank: *mut usize) -> cool_status {
    // SAFETY: as promised.
    guarded(|| unsafe { put("rank", rank, find_comm(comm)?.rank()) })
}

/// The number of ranks of a group.
///
/// # Safety
/// `size` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_size(comm: cool_comm, size: *mut usize) -> cool_status {
    // SAFETY: as promised.
    guarded(|| unsafe { put("size", size, find_comm(comm)?.size()) })
}

/// The group's number in the network, as errors and `cool groups` have it.
///
/// # Safety
/// `group` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_group(comm: cool_comm, group: *mut u64) -> cool_status {
    // SAFETY: as promised.
    guarded(|| unsafe { put("group", group, find_comm(comm)?.group()) })
}

/// Where a rank runs: its node, counted over the group with racks in order, and its rack.
///
/// # Safety
/// `node` and `rack` point to numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_place(
    comm: cool_comm,
    rank: usize,
    node: *mut usize,
    rack: *mut usize,
) -> cool_status {
    guarded(|| {
        let comm = find_comm(comm)?;
        let place = comm.place(rank).ok_or_else(|| CError::Argument(format!("there is no rank {rank}")))?;
        // SAFETY: as promised.
        unsafe { put("node", node, place.node).and_then(|()| put("rack", rack, place.rack)) }
    })
}

/// Splits a group: ranks that give the same color form a new group, ordered by `key`, then by rank. Who gives a
/// negative color is in none and gets 0. All ranks of the group call this.
///
/// # Safety
/// `part` points to a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_split(
    comm: cool_comm,
    color: i64,
    key: i64,
    part: *mut cool_comm,
) -> cool_status {
    guarded(|| {
        let new = find_comm(comm)?.split(u64::try_from(color).ok(), key)?;
        // SAFETY: as promised.
        unsafe { put("part", part, new.map_or(0, |comm| COMMS.add(Arc::new(comm)))) }
    })
}

/// A group of the same ranks, whose calls do not meet those of the first. All ranks of the group call this.
///
/// # Safety
/// `copy` points to a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_dup(comm: cool_comm, copy: *mut cool_comm) -> cool_status {
    guarded(|| {
        let new = COMMS.add(Arc::new(find_comm(comm)?.dup()?));
        // SAFETY: as promised.
        unsafe { put("copy", copy, new) }
    })
}

/// A group of `n` of the ranks, in that order; the others get 0. All ranks of the group call this alike.
///
/// # Safety
/// `ranks` has `n` numbers, and `part` points to a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_subset(
    comm: cool_comm,
    ranks: *const usize,
    n: usize,
    part: *mut cool_comm,
) -> cool_status {
    guarded(|| {
        let beyond = || CError::Argument(format!("{n} ranks are beyond any group"));
        let len = n
            .checked_mul(size_of::<usize>())
            .filter(|len| isize::try_from(*len).is_ok())
            .ok_or_else(beyond)?;
        // SAFETY: as promised; numbers may be copied byte by byte, wherever they begin.
        let raw = unsafe { bytes("ranks", ranks.cast(), len) }?;
        let ranks: Vec<usize> = raw.as_chunks().0.iter().copied().map(usize::from_ne_bytes).collect();
        let new = find_comm(comm)?.subset(&ranks)?;
        // SAFETY: as promised.
        unsafe { put("part", part, new.map_or(0, |comm| COMMS.add(Arc::new(comm)))) }
    })
}

/// Leaves a group. Calls that are under way are finished.
#[unsafe(no_mangle)]
pub extern "C" fn cool_free(comm: cool_comm) -> cool_status {
    guarded(|| COMMS.take(comm).map(drop))
}

/// Lets later calls fail when they make no progress for `milliseconds`; 5 minutes if never set.
#[unsafe(no_mangle)]
pub extern "C" fn cool_set_timeout(comm: cool_comm, milliseconds: u64) -> cool_status {
    guarded(|| {
        find_comm(comm)?.set_timeout(Duration::from_millis(milliseconds));
        Ok(())
    })
}

/// Lets what this rank's node multicasts for later calls of the group give way to whatever else uses its path, if
/// `background` is not 0: it takes what others leave.
#[unsafe(no_mangle)]
pub extern "C" fn cool_set_background(comm: cool_comm, background: c_int) -> cool_status {
    guarded(|| {
        find_comm(comm)?.set_background(background != 0);
        Ok(())
    })
}

/// Forces the plan of later calls of an operation, as `cool plan` writes it; "" leaves it to the agents again. All
/// ranks force the same.
///
/// # Safety
/// `plan` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_set_plan(
    comm: cool_comm,
    operation: cool_operation,
    plan: *const c_char,
) -> cool_status {
    guarded(|| {
        let operation = operation_of(operation)
            .ok_or_else(|| CError::Argument(format!("there is no operation {operation}")))?;
        // SAFETY: as promised.
        let plan = unsafe { text("plan", plan) }?;
        Ok(find_comm(comm)?.set_plan(operation, &plan)?)
    })
}
