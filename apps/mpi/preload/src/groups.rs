//! The group of COOL that a communicator receives at its first call that may be intercepted, or the
//! reason why it has none. Either all ranks of a communicator have a group, or none has: they vote
//! by the allreduce of the host's library. The vote cannot be confused with a call of the program,
//! because all ranks are in the same call when they vote.

use crate::failure::MpiCallFailure;
use crate::host::{HostMpi, MpiHandle, host};
use crate::report::report;
use crate::typed_memory::check;
use crate::wait;
use cool::Comm;
use cool_mpi::{
    Communicators, KEY_BYTES, REASON_BYTES, RankOrder, first_to_fail, group_key, reason, reason_bytes, vote,
};
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How long ranks wait for each other when they join. All of them are already in the call.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// MPI's calls must wait as long as all ranks live, so the timeout is a year.
const CALL_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// State of a communicator.
#[derive(Debug)]
pub(crate) struct CommunicatorState {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// Whether it is an intercommunicator.
    pub(crate) inter: bool,
    /// The group, or the reason why there is none; `None` before the first attempt.
    group: Mutex<Option<Result<Arc<CoolGroup>, String>>>,
}

/// A group of COOL.
#[derive(Debug)]
pub(crate) struct CoolGroup {
    comm: Comm,
    pub(crate) order: RankOrder,
}

impl std::ops::Deref for CoolGroup {
    type Target = Comm;

    fn deref(&self) -> &Comm {
        &self.comm
    }
}

/// Number of open groups of this process.
static OPEN_GROUPS: AtomicUsize = AtomicUsize::new(0);

impl CoolGroup {
    fn new(comm: Comm) -> CoolGroup {
        comm.set_timeout(CALL_TIMEOUT);
        OPEN_GROUPS.fetch_add(1, Ordering::Relaxed);
        let rack = |rank| comm.place(rank).map(|place| place.rack);
        let racks: Vec<usize> = (0..comm.size()).filter_map(rack).collect();
        CoolGroup { order: RankOrder::from_racks(&racks), comm }
    }
}

impl Drop for CoolGroup {
    fn drop(&mut self) {
        OPEN_GROUPS.fetch_sub(1, Ordering::Relaxed);
    }
}

static COMMUNICATORS: Mutex<Communicators<CommunicatorState>> = Mutex::new(Communicators::new());

/// Locks the table. A panic elsewhere leaves it consistent, because every change is a single step.
fn communicators() -> MutexGuard<'static, Communicators<CommunicatorState>> {
    COMMUNICATORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the state of a communicator. The first call requests it from the host's library. Returns
/// `None` if the library fails.
pub(crate) fn communicator(host: &HostMpi, comm: MpiHandle) -> Option<Arc<CommunicatorState>> {
    if let Some(known) = communicators().get(comm) {
        return Some(known);
    }
    let (mut inter, mut rank, mut size) = (0, 0, 0);
    let functions = &host.functions;
    // SAFETY: a communicator of the program, and memory for numbers.
    let codes = unsafe {
        [
            (functions.comm_test_inter)(comm, &raw mut inter),
            (functions.comm_rank)(comm, &raw mut rank),
            (functions.comm_size)(comm, &raw mut size),
            // The attribute makes the library call `on_comm_free`. Its value is not used.
            (functions.set_attr)(comm, keyval(host)?, std::ptr::null_mut()),
        ]
    };
    let (rank, size) = (usize::try_from(rank).ok()?, usize::try_from(size).ok()?);
    let group = Mutex::new(None);
    let known = CommunicatorState { rank, size, inter: inter != 0, group };
    (codes == [0; 4]).then(|| communicators().insert(comm, known))
}

/// Returns the key of the attribute that MPI deletes when a communicator is freed, which calls
/// [`on_comm_free`].
fn keyval(host: &HostMpi) -> Option<c_int> {
    static KEYVAL: OnceLock<Option<c_int>> = OnceLock::new();
    *KEYVAL.get_or_init(|| {
        let mut number = 0;
        // SAFETY: two functions with MPI's signatures, and memory for a number.
        let code = unsafe {
            (host.functions.create_keyval)(
                do_not_copy_attribute,
                on_comm_free,
                &raw mut number,
                std::ptr::null_mut(),
            )
        };
        (code == 0).then_some(number)
    })
}

/// Is called when a communicator is duplicated. The copy must not inherit the attribute, because it
/// has no group.
extern "C" fn do_not_copy_attribute(
    _comm: MpiHandle,
    _keyval: c_int,
    _extra: *mut c_void,
    _value: *mut c_void,
    _copy: *mut c_void,
    flag: *mut c_int,
) -> c_int {
    if let Some(flag) = std::ptr::NonNull::new(flag) {
        // SAFETY: MPI passes memory for the result.
        unsafe { flag.write(0) };
    }
    0
}

/// Is called when the program frees a communicator. Removes its state.
extern "C" fn on_comm_free(
    comm: MpiHandle,
    _keyval: c_int,
    _value: *mut c_void,
    _extra: *mut c_void,
) -> c_int {
    let freed = communicators().remove(host().abi.handle(comm));
    // Leaves the group. The lock is already released, so other threads need not wait for that.
    drop(freed);
    0
}

/// Leaves all groups.
pub(crate) fn leave_all() {
    let all = communicators().take_all();
    drop(all);
}

impl CommunicatorState {
    /// Returns the state of `MPI_COMM_WORLD` for a single use, without a group.
    pub(crate) fn of_world(host: &HostMpi) -> Option<CommunicatorState> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: an initialized library has this communicator; memory for numbers.
        let codes = unsafe {
            [
                (host.functions.comm_rank)(host.world, &raw mut rank),
                (host.functions.comm_size)(host.world, &raw mut size),
            ]
        };
        let (rank, size) = (usize::try_from(rank).ok()?, usize::try_from(size).ok()?);
        let group = Mutex::new(None);
        (codes == [0; 2]).then_some(CommunicatorState { rank, size, inter: false, group })
    }

    /// Returns the first rank with another text than rank 0, and both texts, or `None` if all texts
    /// are equal. The texts are truncated to [`REASON_BYTES`]. All ranks must call this.
    pub(crate) fn find_different_text(
        &self,
        host: &HostMpi,
        comm: MpiHandle,
        text: &str,
    ) -> Result<Option<(usize, [String; 2])>, MpiCallFailure> {
        let own: [u8; REASON_BYTES] = reason_bytes(text);
        let mut expected = own;
        self.broadcast(host, comm, 0, &mut expected)?;
        let same = if own == expected { Ok(()) } else { Err(text.to_owned()) };
        let different = self.agree(host, comm, &same)?;
        Ok(different.map(|(first, found)| (first, [reason(&expected), found])))
    }

    /// Returns the communicator's group, or the reason why it has none. The first call creates the
    /// group, if this process has fewer than `most`; all ranks of the communicator must be in the
    /// same call.
    pub(crate) fn group(
        &self,
        host: &'static HostMpi,
        comm: MpiHandle,
        most: usize,
    ) -> Result<Result<Arc<CoolGroup>, String>, MpiCallFailure> {
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*group {
            return Ok(known.clone());
        }
        let envelope = self.make(host, comm, most)?.map_err(|(first, why)| self.report(first, &why));
        Ok(group.insert(envelope).clone())
    }

    /// Reports to the user, at rank 0 and once per reason, that rank `first` cannot join. Returns
    /// the message, which is the same at all ranks.
    fn report(&self, first: usize, why: &str) -> String {
        static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let whole = format!("rank {first} of {}: {why}", self.size);
        let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.insert(why.to_owned()) && self.rank == 0 {
            report(&format!("collectives stay with the host's MPI library: {whole}"));
        }
        whole
    }

    /// Creates the group, or returns the first rank that cannot join it, and the reason.
    fn make(
        &self,
        host: &'static HostMpi,
        comm: MpiHandle,
        most: usize,
    ) -> Result<Result<Arc<CoolGroup>, (usize, String)>, MpiCallFailure> {
        let key = check_can_join(most).and_then(|()| new_key());
        if let Some(why) = self.agree(host, comm, &key)? {
            return Ok(Err(why));
        }
        // The key of rank 0 is used.
        let mut key = key.unwrap_or([0; KEY_BYTES]);
        self.broadcast(host, comm, 0, &mut key)?;
        let (rank, size) = (self.rank, self.size);
        let joined = wait::for_thread(host, comm, move || {
            Comm::join(&String::from_utf8_lossy(&key), rank, size, JOIN_TIMEOUT)
        });
        let joined = joined.unwrap_or_else(|| Err(no_thread(rank)));
        let joined = joined.map(CoolGroup::new).map_err(|e| e.to_string());
        let why = self.agree(host, comm, &joined)?;
        Ok(match (why, joined) {
            (None, Ok(group)) => Ok(Arc::new(group)),
            (Some(why), _) => Err(why),
            // Unreachable, because all ranks have joined.
            (None, Err(why)) => Err((self.rank, why)),
        })
    }

    /// Returns `None` if all ranks can continue; otherwise the first rank that cannot, and its
    /// reason.
    fn agree<T>(
        &self,
        host: &HostMpi,
        comm: MpiHandle,
        can: &Result<T, String>,
    ) -> Result<Option<(usize, String)>, MpiCallFailure> {
        let mine = vote(can.is_ok(), self.rank, self.size);
        let mut least: c_int = 0;
        // SAFETY: a number to read, and one to write.
        let code = unsafe {
            let (mine, least) = ((&raw const mine).cast(), (&raw mut least).cast());
            (host.functions.allreduce)(mine, least, 1, host.int, host.min, comm)
        };
        check("PMPI_Allreduce", code)?;
        let Some(first) = first_to_fail(least, self.size) else { return Ok(None) };
        let words = can.as_ref().err().map(String::as_str).unwrap_or_default();
        let mut words: [u8; REASON_BYTES] = reason_bytes(words);
        self.broadcast(host, comm, first, &mut words)?;
        Ok(Some((first, reason(&words))))
    }

    fn broadcast(
        &self,
        host: &HostMpi,
        comm: MpiHandle,
        root: usize,
        bytes: &mut [u8],
    ) -> Result<(), MpiCallFailure> {
        let (data, count) = (bytes.as_mut_ptr().cast(), bytes.len() as c_int);
        // SAFETY: a buffer of that length, which fits an int.
        check("PMPI_Bcast", unsafe { (host.functions.bcast)(data, count, host.byte, root as c_int, comm) })
    }
}

/// Checks whether this rank can join a group: there must be an agent that accepts this user, and
/// the number of groups must be below the limit.
fn check_can_join(most: usize) -> Result<(), String> {
    let groups = OPEN_GROUPS.load(Ordering::Relaxed);
    if groups >= most {
        return Err(format!(
            "{groups} groups are open already; free communicators, or raise COOL_MPI_GROUPS"
        ));
    }
    let socket = cool::agent_socket().map_err(|e| e.to_string())?;
    UnixStream::connect(&socket).map(drop).map_err(|e| {
        let socket = socket.display();
        format!("no agent at {socket}: {e}; start cool-nodeagent on this node")
    })
}

fn new_key() -> Result<[u8; KEY_BYTES], String> {
    let mut random = [0; KEY_BYTES / 2];
    getrandom::fill(&mut random).map_err(|e| format!("cannot create a random key for a group: {e}"))?;
    Ok(group_key(random))
}

fn no_thread(rank: usize) -> cool::Error {
    let source = std::io::Error::other("no thread could be started");
    cool::Error::Thread { rank, operation: "join", source }
}
