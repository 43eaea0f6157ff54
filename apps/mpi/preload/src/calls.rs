//! Interception of calls: the decision, and the corresponding call of COOL. Data that is only moved
//! is sent as bytes, because ranks may describe the same bytes by different types. Reduced data
//! must have the same predefined type at all ranks.

use crate::failure::MpiCallFailure;
use crate::groups::{CommunicatorState, CoolGroup, communicator};
use crate::host::{HostMpi, MpiHandle, host};
use crate::initialization::difference_of_settings;
use crate::report::report;
use crate::typed_memory::TypedMemory;
use crate::wait;
use cool::{Array, ArrayMut, Arrays, Collective, Elements, Op, Operation, PairType, Type};
use cool_mpi::{
    CallTally, ErrorClass, InterceptMode, MpiSettings, PairValue, PassThroughReason, ReducedType,
};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Returns the user's settings.
pub(crate) fn settings() -> &'static MpiSettings {
    static SETTINGS: OnceLock<MpiSettings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let read = MpiSettings::read(|name| Some(std::env::var_os(name)?.to_string_lossy().into_owned()));
        read.unwrap_or_else(|e| {
            report(&format!("collectives stay with the host's MPI library: {e}"));
            MpiSettings::off()
        })
    })
}

/// Statistics of this rank's calls, if they are requested.
pub(crate) static TALLY: Mutex<CallTally> = Mutex::new(CallTally::new());
/// Whether the program has called `MPI_Finalize`. No call is intercepted after that.
pub(crate) static FINALIZED: AtomicBool = AtomicBool::new(false);

/// Why a call was not executed successfully.
#[derive(Debug)]
enum NotExecuted {
    /// The call is passed through to the host's library.
    Fallback(PassThroughReason),
    Failed(MpiCallFailure),
}

impl From<PassThroughReason> for NotExecuted {
    fn from(refusal: PassThroughReason) -> NotExecuted {
        NotExecuted::Fallback(refusal)
    }
}

impl<E: Into<MpiCallFailure>> From<E> for NotExecuted {
    fn from(failure: E) -> NotExecuted {
        NotExecuted::Failed(failure.into())
    }
}

/// Decides whether to intercept a call, and executes it. Returns MPI's return code, or `None` if
/// the call must be passed through to the host's library.
fn attempt(
    operation: Operation,
    comm: MpiHandle,
    body: impl FnOnce(&InterceptedCall) -> Result<(), NotExecuted>,
) -> Option<c_int> {
    let bytes = Cell::new(0);
    let outcome = InterceptedCall::enter(operation, comm, &bytes).and_then(|call| body(&call));
    if settings().stats {
        let left = if let Err(NotExecuted::Fallback(refusal)) = outcome { Some(refusal) } else { None };
        TALLY.lock().unwrap_or_else(PoisonError::into_inner).count(operation, left, bytes.get());
    }
    match outcome {
        Ok(()) => Some(0),
        Err(NotExecuted::Fallback(_)) => None,
        // The host's library has already called an error handler.
        Err(NotExecuted::Failed(MpiCallFailure::Host { code, .. })) => Some(code),
        Err(NotExecuted::Failed(failure)) => Some(fail(operation, comm, &failure)),
    }
}

/// Reports a failed call to the user, and calls the communicator's error handler. Returns MPI's
/// return code.
fn fail(operation: Operation, comm: MpiHandle, failure: &MpiCallFailure) -> c_int {
    let host = host();
    let comm = host.abi.handle(comm);
    report(&match (failure, communicator(host, comm)) {
        // The message already contains rank and operation.
        (MpiCallFailure::Cool(e), _) => e.to_string(),
        (_, Some(known)) => format!("rank {}: {operation}: {failure}", known.rank),
        (_, None) => format!("{operation}: {failure}"),
    });
    let code = host.abi.error(failure.class());
    // SAFETY: the communicator belongs to the program.
    unsafe { (host.functions.call_errhandler)(comm, code) };
    code
}

/// Reports a call that must be passed through although its counts exceed those of the host's
/// library. Returns MPI's return code.
pub(crate) fn count_exceeds_int(function: &str, comm: MpiHandle) -> c_int {
    let host = host();
    report(&format!(
        "{function} of the host's MPI library counts in int, but the program's call has larger counts"
    ));
    let code = host.abi.error(ErrorClass::Count);
    // SAFETY: the communicator belongs to the program.
    unsafe { (host.functions.call_errhandler)(host.abi.handle(comm), code) };
    code
}

/// Returns the number of ranks of a communicator, and the number of ranks from which one of them
/// gathers: in an intercommunicator, those of the remote group. Returns zeros if `comm` is not a
/// valid communicator.
pub(crate) fn sizes(comm: MpiHandle) -> (usize, usize) {
    let host = host();
    let comm = host.abi.handle(comm);
    let Some(known) = Some(comm).filter(|comm| host.is_comm(*comm)).and_then(|comm| communicator(host, comm))
    else {
        return (0, 0);
    };
    let mut others = 0;
    if known.inter {
        // SAFETY: an intercommunicator, and memory for a number.
        unsafe { (host.functions.comm_remote_size)(comm, &raw mut others) };
    }
    (known.size, if known.inter { usize::try_from(others).unwrap_or(0) } else { known.size })
}

/// A call that may be intercepted.
struct InterceptedCall<'b> {
    operation: Operation,
    host: &'static HostMpi,
    comm: MpiHandle,
    communicator: Arc<CommunicatorState>,
    /// Bytes of the type signature, for the statistics. They are 0 until they are known.
    bytes: &'b Cell<u64>,
}

impl InterceptedCall<'_> {
    /// Returns the call if its operation and communicator allow interception, and otherwise the
    /// reason why they do not.
    fn enter(
        operation: Operation,
        comm: MpiHandle,
        bytes: &Cell<u64>,
    ) -> Result<InterceptedCall<'_>, NotExecuted> {
        settings().admit(operation)?;
        if FINALIZED.load(Ordering::Relaxed) {
            return Err(PassThroughReason::Off.into());
        }
        if let Some(why) = difference_of_settings() {
            return Err(match settings().mode {
                InterceptMode::Require => MpiCallFailure::Required(why).into(),
                _ => PassThroughReason::Off.into(),
            });
        }
        let host = host();
        let comm = host.abi.handle(comm);
        if !host.is_comm(comm) {
            return Err(PassThroughReason::Arguments.into());
        }
        let communicator = communicator(host, comm).ok_or(PassThroughReason::Arguments)?;
        match (communicator.inter, communicator.size) {
            (true, _) => Err(PassThroughReason::Intercommunicator.into()),
            (false, 1) => Err(PassThroughReason::Alone.into()),
            _ => Ok(InterceptedCall { operation, host, comm, communicator, bytes }),
        }
    }

    fn rank(&self) -> usize {
        self.communicator.rank
    }

    fn size(&self) -> usize {
        self.communicator.size
    }

    fn root(&self, root: c_int) -> Result<usize, PassThroughReason> {
        let root = usize::try_from(root).ok().filter(|root| *root < self.size());
        root.ok_or(PassThroughReason::Arguments)
    }

    fn is_in_place(&self, data: *const c_void) -> bool {
        data.addr() == self.host.abi.in_place()
    }

    fn typed_memory(
        &self,
        data: *const c_void,
        count: i64,
        datatype: MpiHandle,
    ) -> Result<TypedMemory, PassThroughReason> {
        TypedMemory::new(self.host, data, count, datatype).ok_or(PassThroughReason::Arguments)
    }

    /// Returns an array with one part per rank.
    fn for_all_ranks(&self, part: &TypedMemory) -> Result<TypedMemory, PassThroughReason> {
        part.repeated(self.size()).ok_or(PassThroughReason::Arguments)
    }

    /// Returns COOL's elements and reduction for MPI's `datatype` and `op`. `one` must describe
    /// memory of this type.
    fn reduction(
        &self,
        datatype: MpiHandle,
        op: MpiHandle,
        one: &TypedMemory,
    ) -> Result<(Elements, Op), PassThroughReason> {
        let op = self.host.reduce_op(self.host.abi.handle(op)).ok_or(PassThroughReason::Reduction)?;
        let class =
            self.host.number_class(self.host.abi.handle(datatype)).ok_or(PassThroughReason::Elements)?;
        let elements = class.elements(one.element_bytes(), op).ok_or(PassThroughReason::Elements)?;
        Ok((reduced_elements(elements), op))
    }

    /// Returns the group that executes the call, given the bytes of its type signature.
    fn group(&self, bytes: u64) -> Result<Arc<CoolGroup>, NotExecuted> {
        self.bytes.set(bytes);
        settings().admit_bytes(self.operation, bytes)?;
        match self.communicator.group(self.host, self.comm, settings().groups)? {
            Ok(group) => {
                settings().admit_order(self.operation, bytes, group.order)?;
                Ok(group)
            }
            Err(why) if settings().mode == InterceptMode::Require => {
                Err(MpiCallFailure::Required(why).into())
            }
            Err(_) => Err(PassThroughReason::NoGroup.into()),
        }
    }

    fn run(&self, group: &CoolGroup, collective: Collective<'_, '_>) -> Result<(), NotExecuted> {
        let pending = group.start().collective(collective)?;
        Ok(wait::for_call(self.host, self.comm, pending)?)
    }
}

/// Returns the corresponding elements of libcool.
fn reduced_elements(combined: ReducedType) -> Elements {
    match combined {
        ReducedType::Element(dtype) => dtype.into(),
        ReducedType::Pair(PairValue::I16) => PairType::I16.into(),
        ReducedType::Pair(PairValue::I32) => PairType::I32.into(),
        ReducedType::Pair(PairValue::I64) => PairType::I64.into(),
        ReducedType::Pair(PairValue::F32) => PairType::F32.into(),
        ReducedType::Pair(PairValue::F64) => PairType::F64.into(),
    }
}

/// Returns bytes as an array of libcool.
fn bytes(bytes: &[u8]) -> Option<Array<'_>> {
    Array::new(Type::U8, bytes)
}

fn bytes_mut(bytes: &mut [u8]) -> Option<ArrayMut<'_>> {
    ArrayMut::new(Type::U8, bytes)
}

fn in_place(elements: impl Into<Elements>, bytes: &mut [u8]) -> Arrays<'_, '_> {
    ArrayMut::new(elements, bytes).map_or(Arrays::None, Arrays::InPlace)
}

/// # Safety
/// The arguments must be valid for `MPI_Bcast`.
pub(crate) unsafe fn bcast(
    data: *mut c_void,
    count: i64,
    datatype: MpiHandle,
    root: c_int,
    comm: MpiHandle,
) -> Option<c_int> {
    attempt(Operation::Bcast, comm, |call| {
        let message = call.typed_memory(data, count, datatype)?;
        let root = call.root(root)?;
        let group = call.group(message.length())?;
        // SAFETY: guaranteed by the caller; the root's buffer is not written.
        let mut buffer = unsafe {
            if root == call.rank() { message.incoming_filled(call.comm)? } else { message.incoming()? }
        };
        let arrays = in_place(Type::U8, buffer.bytes());
        call.run(&group, Collective { root, ..Collective::new(Operation::Bcast, arrays) })?;
        if root == call.rank() { Ok(()) } else { Ok(buffer.finish(call.comm)?) }
    })
}

/// Executes a reduction or scan. Only reduce has a root.
///
/// # Safety
/// The arguments must be valid for the MPI function.
pub(crate) unsafe fn reduction(
    operation: Operation,
    (send, recv): (*const c_void, *mut c_void),
    count: i64,
    (datatype, op): (MpiHandle, MpiHandle),
    root: c_int,
    comm: MpiHandle,
) -> Option<c_int> {
    attempt(operation, comm, |call| {
        let root = call.root(root)?;
        let vector = call.typed_memory(recv, count, datatype)?;
        let (elements, op) = call.reduction(datatype, op, &vector)?;
        let group = call.group(vector.length())?;
        let vector = vector.as_reduced(elements)?;
        let receives = operation != Operation::Reduce || root == call.rank();
        let collective = |arrays| Collective { root, op: Some(op), ..Collective::new(operation, arrays) };
        if call.is_in_place(send) {
            // SAFETY: guaranteed by the caller.
            let mut vector = unsafe { vector.incoming() }?;
            return call.run(&group, collective(in_place(elements, vector.bytes())));
        }
        let written = if receives { vector.addresses() } else { 0..0 };
        let send = call.typed_memory(send, count, datatype)?.as_reduced(elements)?;
        // SAFETY: guaranteed by the caller.
        let send = unsafe { send.outgoing(call.comm, written) }?;
        // SAFETY: guaranteed by the caller.
        let mut vector = if receives { Some(unsafe { vector.incoming() }?) } else { None };
        let recv = vector.as_mut().and_then(|vector| ArrayMut::new(elements, vector.bytes()));
        call.run(&group, collective(Arrays::Apart(Array::new(elements, &send), recv)))
    })
}

/// Executes `MPI_Reduce_scatter`, or `MPI_Reduce_scatter_block` with equal counts. `counts` must
/// return the number of elements of a rank's part.
///
/// # Safety
/// The arguments must be valid for the MPI function.
pub(crate) unsafe fn reduce_scatter(
    (send, recv): (*const c_void, *mut c_void),
    counts: &dyn Fn(usize) -> i64,
    (datatype, op): (MpiHandle, MpiHandle),
    comm: MpiHandle,
) -> Option<c_int> {
    attempt(Operation::ReduceScatter, comm, |call| {
        let counts = elements(call.size(), counts)?;
        let own = counts.get(call.rank()).copied().unwrap_or(0);
        let own = call.typed_memory(recv, own as i64, datatype)?;
        let all = counts.iter().try_fold(0i64, |sum, count| sum.checked_add(*count as i64));
        let all = all.ok_or(PassThroughReason::Arguments)?;
        let in_place = call.is_in_place(send);
        let all = call.typed_memory(if in_place { recv } else { send }, all, datatype)?;
        let (elements, op) = call.reduction(datatype, op, &all)?;
        let group = call.group(all.length())?;
        let (own, all) = (own.as_reduced(elements)?, all.as_reduced(elements)?);
        // In place, the sent data is copied, because the result overwrites its start.
        // SAFETY: guaranteed by the caller.
        let send = unsafe { all.outgoing(call.comm, own.addresses()) }?;
        // SAFETY: guaranteed by the caller.
        let mut recv = unsafe { own.incoming() }?;
        let arrays = Arrays::Apart(Array::new(elements, &send), ArrayMut::new(elements, recv.bytes()));
        let collective = Collective::new(Operation::ReduceScatter, arrays);
        call.run(&group, Collective { op: Some(op), counts: Some(&counts), ..collective })
    })
}

/// Returns the counts that the program passed, one per rank, or the reason if one of them is
/// negative.
fn elements(size: usize, counts: &dyn Fn(usize) -> i64) -> Result<Vec<usize>, PassThroughReason> {
    (0..size).map(|rank| usize::try_from(counts(rank)).map_err(|_| PassThroughReason::Arguments)).collect()
}

/// A buffer as the program passed it.
#[derive(Clone, Copy)]
pub(crate) struct BufferArgument {
    pub(crate) data: *const c_void,
    pub(crate) count: i64,
    pub(crate) datatype: MpiHandle,
}

impl BufferArgument {
    fn typed_memory(self, call: &InterceptedCall) -> Result<TypedMemory, PassThroughReason> {
        call.typed_memory(self.data, self.count, self.datatype)
    }
}

/// # Safety
/// The arguments must be valid for `MPI_Gather`.
pub(crate) unsafe fn gather(
    send: BufferArgument,
    recv: BufferArgument,
    root: c_int,
    comm: MpiHandle,
) -> Option<c_int> {
    attempt(Operation::Gather, comm, |call| {
        let root = call.root(root)?;
        let collective = |arrays| Collective { root, ..Collective::new(Operation::Gather, arrays) };
        if root != call.rank() {
            let part = send.typed_memory(call)?;
            let group = call.group(call.for_all_ranks(&part)?.length())?;
            // SAFETY: guaranteed by the caller.
            let out = unsafe { part.outgoing(call.comm, 0..0) }?;
            return call.run(&group, collective(Arrays::Apart(bytes(&out), None)));
        }
        let part = recv.typed_memory(call)?;
        let all = call.for_all_ranks(&part)?;
        let group = call.group(all.length())?;
        let own = match call.is_in_place(send.data) {
            true => part.part(first(root, recv.count), part.count())?,
            false => send.typed_memory(call)?,
        };
        // SAFETY: guaranteed by the caller. An in-place part is copied, because it is within the
        // written memory.
        let out = unsafe { own.outgoing(call.comm, all.addresses()) }?;
        // SAFETY: guaranteed by the caller.
        let mut all = unsafe { all.incoming() }?;
        call.run(&group, collective(Arrays::Apart(bytes(&out), bytes_mut(all.bytes()))))?;
        Ok(all.finish(call.comm)?)
    })
}

/// Returns the index of a rank's part among parts of equal length.
fn first(rank: usize, count: i64) -> isize {
    (rank as isize).saturating_mul(isize::try_from(count).unwrap_or(isize::MAX))
}

/// # Safety
/// The arguments must be valid for `MPI_Scatter`.
pub(crate) unsafe fn scatter(
    send: BufferArgument,
    recv: BufferArgument,
    root: c_int,
    comm: MpiHandle,
) -> Option<c_int> {
    attempt(Operation::Scatter, comm, |call| {
        let root = call.root(root)?;
        let collective = |arrays| Collective { root, ..Collective::new(Operation::Scatter, arrays) };
        if root != call.rank() {
            let part = recv.typed_memory(call)?;
            let group = call.group(call.for_all_ranks(&part)?.length())?;
            // SAFETY: guaranteed by the caller.
            let mut part = unsafe { part.incoming() }?;
            call.run(&group, collective(Arrays::Apart(None, bytes_mut(part.bytes()))))?;
            return Ok(part.finish(call.comm)?);
        }
        let part = send.typed_memory(call)?;
        let all = call.for_all_ranks(&part)?;
        let group = call.group(all.length())?;
        if call.is_in_place(recv.data) {
            // The root's part stays where it is.
            // SAFETY: guaranteed by the caller.
            let out = unsafe { all.outgoing(call.comm, 0..0) }?;
            let mut own = vec![0; part.bytes()];
            return call.run(&group, collective(Arrays::Apart(bytes(&out), bytes_mut(&mut own))));
        }
        let own = recv.typed_memory(call)?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { all.outgoing(call.comm, own.addresses()) }?;
        // SAFETY: guaranteed by the caller.
        let mut own = unsafe { own.incoming() }?;
        call.run(&group, collective(Arrays::Apart(bytes(&out), bytes_mut(own.bytes()))))?;
        Ok(own.finish(call.comm)?)
    })
}

/// # Safety
/// The arguments must be valid for `MPI_Allgather`.
pub(crate) unsafe fn allgather(send: BufferArgument, recv: BufferArgument, comm: MpiHandle) -> Option<c_int> {
    attempt(Operation::Allgather, comm, |call| {
        let part = recv.typed_memory(call)?;
        let all = call.for_all_ranks(&part)?;
        let group = call.group(all.length())?;
        let in_place = call.is_in_place(send.data);
        let own = match in_place {
            true => part.part(first(call.rank(), recv.count), part.count())?,
            false => send.typed_memory(call)?,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { exchange(call, &group, Operation::Allgather, (own, in_place), all) }
    })
}

/// # Safety
/// The arguments must be valid for `MPI_Alltoall`.
pub(crate) unsafe fn alltoall(send: BufferArgument, recv: BufferArgument, comm: MpiHandle) -> Option<c_int> {
    attempt(Operation::Alltoall, comm, |call| {
        let all = call.for_all_ranks(&recv.typed_memory(call)?)?;
        let group = call.group(all.length())?;
        let in_place = call.is_in_place(send.data);
        let out = if in_place { all } else { call.for_all_ranks(&send.typed_memory(call)?)? };
        // SAFETY: guaranteed by the caller.
        unsafe { exchange(call, &group, Operation::Alltoall, (out, in_place), all) }
    })
}

/// Executes an operation in which every rank sends and receives equal parts.
///
/// # Safety
/// The arguments must be valid for the MPI function.
unsafe fn exchange(
    call: &InterceptedCall,
    group: &CoolGroup,
    operation: Operation,
    (out, is_in_place): (TypedMemory, bool),
    all: TypedMemory,
) -> Result<(), NotExecuted> {
    if is_in_place && all.is_flat()? {
        // SAFETY: guaranteed by the caller.
        let mut all = unsafe { all.incoming() }?;
        return call.run(group, Collective::new(operation, in_place(Type::U8, all.bytes())));
    }
    // SAFETY: guaranteed by the caller.
    let out = unsafe { out.outgoing(call.comm, all.addresses()) }?;
    // SAFETY: guaranteed by the caller.
    let mut all = unsafe { all.incoming() }?;
    let arrays = Arrays::Apart(bytes(&out), bytes_mut(all.bytes()));
    call.run(group, Collective::new(operation, arrays))?;
    Ok(all.finish(call.comm)?)
}

/// Executes `MPI_Allgatherv`. For each rank's part, `count` must return the number of elements, and
/// `place` the displacement in elements.
///
/// # Safety
/// The arguments must be valid for the MPI function.
pub(crate) unsafe fn allgatherv(
    send: BufferArgument,
    (recv, datatype): (*mut c_void, MpiHandle),
    count: &dyn Fn(usize) -> i64,
    place: &dyn Fn(usize) -> i64,
    comm: MpiHandle,
) -> Option<c_int> {
    attempt(Operation::Allgather, comm, |call| {
        let counts = elements(call.size(), count)?;
        let one = call.typed_memory(recv, 1, datatype)?;
        let mut parts = Vec::with_capacity(counts.len());
        for (rank, count) in counts.iter().enumerate() {
            let place = isize::try_from(place(rank)).map_err(|_| PassThroughReason::Arguments)?;
            parts.push(one.part(place, *count)?);
        }
        let lengths: Vec<usize> = parts.iter().map(TypedMemory::bytes).collect();
        let length = lengths.iter().try_fold(0u64, |sum, bytes| sum.checked_add(*bytes as u64));
        let group = call.group(length.ok_or(PassThroughReason::Arguments)?)?;
        let own = if call.is_in_place(send.data) { parts[call.rank()] } else { send.typed_memory(call)? };
        // All parts, one after the other.
        let mut all = vec![0; lengths.iter().sum()];
        // SAFETY: guaranteed by the caller; the call writes none of the program's memory.
        let out = unsafe { own.outgoing(call.comm, 0..0) }?;
        let arrays = Arrays::Apart(bytes(&out), bytes_mut(&mut all));
        let collective = Collective::new(Operation::Allgather, arrays);
        call.run(&group, Collective { counts: Some(&lengths), ..collective })?;
        drop(out);
        let mut left = all.as_slice();
        for part in parts {
            let (bytes, rest) = left.split_at(part.bytes());
            left = rest;
            // SAFETY: guaranteed by the caller.
            unsafe { part.fill(bytes, call.comm) }?;
        }
        Ok(())
    })
}
