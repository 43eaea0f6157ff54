//! Communicators: their creation and properties.

use crate::codes::{cool_comm, cool_operation, cool_status, operation_of};
use crate::error::{CError, guarded};
use crate::handles::HandleTable;
use crate::pointers::{bytes, put, text};
use cool_rust::Comm;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Communicators of all ranks of this process.
pub(crate) static COMMS: HandleTable<Arc<Comm>> = HandleTable::new("communicator");

/// Returns the communicator with a number.
pub(crate) fn find_comm(number: cool_comm) -> Result<Arc<Comm>, CError> {
    COMMS.get(number, Arc::clone)
}

/// Stores the communicator of all ranks of the program in `world`. Returns when all ranks have
/// joined.
///
/// The program must have been started by a launcher: `cool run`, srun, mpirun or torchrun.
///
/// # Safety
/// `world` must point to a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_world(world: *mut cool_comm) -> cool_status {
    guarded(|| {
        let comm = COMMS.add(Arc::new(Comm::world()?));
        // SAFETY: the caller guarantees this.
        unsafe { put("world", world, comm) }
    })
}

/// Joins a group of processes that agreed on a key, as rank `rank` of `size`, and stores its
/// communicator in `comm`.
///
/// The group consists of all processes of the same user that pass the same `key` (1 to 200 bytes).
/// Returns when all `size` ranks have joined, or COOL_TIMEOUT after `milliseconds`. No launcher is
/// needed. `socket` is the socket of the agent. If it is NULL, the process uses the socket that the
/// environment variable COOL_SOCKET names, or else the only one in /run/cool. A key can be used
/// again after its group was created, but keys should be random, because a leftover process of an
/// earlier run may otherwise join.
///
/// # Safety
/// `key` must be a string, `socket` a string or NULL, and `comm` must point to a communicator.
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
        // SAFETY: the caller guarantees this.
        let key = unsafe { text("key", key) }?;
        let timeout = Duration::from_millis(milliseconds);
        let joined = if socket.is_null() {
            Comm::join(&key, rank, size, timeout)?
        } else {
            // SAFETY: the caller guarantees this.
            let socket = unsafe { CStr::from_ptr(socket) };
            Comm::join_at(Path::new(OsStr::from_bytes(socket.to_bytes())), &key, rank, size, timeout)?
        };
        // SAFETY: the caller guarantees this.
        unsafe { put("comm", comm, COMMS.add(Arc::new(joined))) }
    })
}

/// Stores a further handle of the communicator in `again`. Calls through it fail after
/// `milliseconds` without progress, regardless of cool_set_timeout, for example to set the timeout
/// of a single call.
///
/// Nothing is sent. The caller must free both handles; the rank leaves the group when all are
/// freed.
///
/// # Safety
/// `again` must point to a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_with_timeout(
    comm: cool_comm,
    milliseconds: u64,
    again: *mut cool_comm,
) -> cool_status {
    guarded(|| {
        let new = find_comm(comm)?.with_timeout(Duration::from_millis(milliseconds));
        // SAFETY: the caller guarantees this.
        unsafe { put("again", again, COMMS.add(Arc::new(new))) }
    })
}

/// Stores a further handle of the communicator in `again`, for started calls that use memory of
/// cool_alloc without a copy, as blocking calls do.
///
/// Until a call that was started through it has been waited for, the caller must not write to the
/// memory that it sends, nor read or write the memory that it receives into. Nothing is sent. The
/// caller must free both handles; the rank leaves the group when all are freed.
///
/// # Safety
/// The caller must follow these rules, and `again` must point to a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_lending(comm: cool_comm, again: *mut cool_comm) -> cool_status {
    guarded(|| {
        // SAFETY: the caller guarantees this.
        let new = unsafe { find_comm(comm)?.lending() };
        // SAFETY: the caller guarantees this.
        unsafe { put("again", again, COMMS.add(Arc::new(new))) }
    })
}

/// A program for cool_launch. It gets the communicator of all ranks and the context that was passed
/// to cool_launch, and must return 0 on success.
pub type cool_program = Option<unsafe extern "C" fn(world: cool_comm, context: *mut c_void) -> c_int>;

/// The context of a program, which is passed to the threads of all ranks.
#[derive(Clone, Copy)]
struct ProgramContext(*mut c_void);

// SAFETY: the pointer is only passed on. The caller of cool_launch guarantees that its program may
// use it in several threads.
unsafe impl Send for ProgramContext {}
// SAFETY: as above.
unsafe impl Sync for ProgramContext {}

impl ProgramContext {
    fn get(self) -> *mut c_void {
        self.0
    }
}

/// Runs a program as the rank for which a launcher started this process. In a process that was
/// started by hand, runs it as 4 ranks (COOL_EMBEDDED sets another number), in threads of this
/// process with agents on loopback.
///
/// The communicator is freed when the program returns. Stores the first result other than 0 in
/// `result`, or 0 if there is none.
///
/// # Safety
/// The program must be callable in several threads with this context, and `result` must point to an
/// int.
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
            // SAFETY: the caller guarantees this.
            let result = unsafe { program(world, context.get()) };
            // The program may have freed the communicator.
            let _ = COMMS.take(world);
            result
        })?;
        let first = results.into_iter().find(|result| *result != 0);
        // SAFETY: the caller guarantees this.
        unsafe { put("result", result, first.unwrap_or(0)) }
    })
}

/// Stores this rank's number in `rank`, from 0.
///
/// # Safety
/// `rank` must point to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_rank(comm: cool_comm, rank: *mut usize) -> cool_status {
    // SAFETY: the caller guarantees this.
    guarded(|| unsafe { put("rank", rank, find_comm(comm)?.rank()) })
}

/// Stores the number of ranks of the group in `size`.
///
/// # Safety
/// `size` must point to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_size(comm: cool_comm, size: *mut usize) -> cool_status {
    // SAFETY: the caller guarantees this.
    guarded(|| unsafe { put("size", size, find_comm(comm)?.size()) })
}

/// Stores the group's number in the network, as errors and `cool groups` show it, in `group`.
///
/// # Safety
/// `group` must point to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_group(comm: cool_comm, group: *mut u64) -> cool_status {
    // SAFETY: the caller guarantees this.
    guarded(|| unsafe { put("group", group, find_comm(comm)?.group()) })
}

/// Stores the location of a rank: the index of its node within the group, where nodes are numbered
/// rack by rack, and its rack.
///
/// # Safety
/// `node` and `rack` must point to numbers.
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
        // SAFETY: the caller guarantees this.
        unsafe { put("node", node, place.node).and_then(|()| put("rack", rack, place.rack)) }
    })
}

/// Splits the group. Ranks that pass the same color form a new group, ordered by `key`, and by rank
/// where keys are equal. Stores its communicator in `part`, or 0 at a rank that passes a negative
/// color. All ranks of the group must call this.
///
/// # Safety
/// `part` must point to a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_split(
    comm: cool_comm,
    color: i64,
    key: i64,
    part: *mut cool_comm,
) -> cool_status {
    guarded(|| {
        let new = find_comm(comm)?.split(u64::try_from(color).ok(), key)?;
        // SAFETY: the caller guarantees this.
        unsafe { put("part", part, new.map_or(0, |comm| COMMS.add(Arc::new(comm)))) }
    })
}

/// Creates a group of the same ranks, whose calls are independent of those of this group, and
/// stores its communicator in `copy`. All ranks of the group must call this.
///
/// # Safety
/// `copy` must point to a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_dup(comm: cool_comm, copy: *mut cool_comm) -> cool_status {
    guarded(|| {
        let new = COMMS.add(Arc::new(find_comm(comm)?.dup()?));
        // SAFETY: the caller guarantees this.
        unsafe { put("copy", copy, new) }
    })
}

/// Creates a group of `n` of the ranks, in the given order, and stores its communicator in `part`,
/// or 0 at other ranks. All ranks of the group must call this with the same `ranks`.
///
/// # Safety
/// `ranks` must point to `n` numbers, and `part` to a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_subset(
    comm: cool_comm,
    ranks: *const usize,
    n: usize,
    part: *mut cool_comm,
) -> cool_status {
    guarded(|| {
        let beyond = || CError::Argument(format!("a group cannot have {n} ranks"));
        let len = n
            .checked_mul(size_of::<usize>())
            .filter(|len| isize::try_from(*len).is_ok())
            .ok_or_else(beyond)?;
        // SAFETY: the caller guarantees this. Numbers are copied byte by byte, so they need not be
        // aligned.
        let raw = unsafe { bytes("ranks", ranks.cast(), len) }?;
        let ranks: Vec<usize> = raw.as_chunks().0.iter().copied().map(usize::from_ne_bytes).collect();
        let new = find_comm(comm)?.subset(&ranks)?;
        // SAFETY: the caller guarantees this.
        unsafe { put("part", part, new.map_or(0, |comm| COMMS.add(Arc::new(comm)))) }
    })
}

/// Leaves the group. Pending calls are still executed.
#[unsafe(no_mangle)]
pub extern "C" fn cool_free(comm: cool_comm) -> cool_status {
    guarded(|| COMMS.take(comm).map(drop))
}

/// Sets the time without progress after which later calls fail. The default is 5 minutes.
#[unsafe(no_mangle)]
pub extern "C" fn cool_set_timeout(comm: cool_comm, milliseconds: u64) -> cool_status {
    guarded(|| {
        find_comm(comm)?.set_timeout(Duration::from_millis(milliseconds));
        Ok(())
    })
}

/// Sets whether multicasts of this rank's node for later calls of the group yield to other traffic:
/// if `background` is not 0, they use only the capacity that other traffic leaves.
#[unsafe(no_mangle)]
pub extern "C" fn cool_set_background(comm: cool_comm, background: c_int) -> cool_status {
    guarded(|| {
        find_comm(comm)?.set_background(background != 0);
        Ok(())
    })
}

/// Forces the plan of later calls of an operation, as `cool plan` prints it. "" lets the agents
/// choose again. All ranks must force the same plan. Returns COOL_INVALID if the plan cannot
/// execute the operation; the message lists the plans that can.
///
/// # Safety
/// `plan` must be a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_set_plan(
    comm: cool_comm,
    operation: cool_operation,
    plan: *const c_char,
) -> cool_status {
    guarded(|| {
        let operation = operation_of(operation)
            .ok_or_else(|| CError::Argument(format!("there is no operation {operation}")))?;
        // SAFETY: the caller guarantees this.
        let plan = unsafe { text("plan", plan) }?;
        Ok(find_comm(comm)?.set_plan(operation, &plan)?)
    })
}
