//! Pointers and codes into what the library takes. Here is all that must be trusted of the caller: that memory
//! is there as long as it says.

use crate::codes::{cool_comm, cool_op, cool_type, elements_of_code, op_of};
use crate::comm::COMMS;
use crate::error::CError;
use cool_rust::{
    Array, ArrayMut, Arrays, Collective, Comm, Elements, Error, Op, Operation, OwnCounts, Pending, Type,
};
use std::ffi::c_void;
use std::sync::Arc;

/// `COOL_IN_PLACE` of the header.
const IN_PLACE: usize = usize::MAX;

/// One call as C gives it.
pub(crate) struct CallArguments {
    operation: Operation,
    send: *const c_void,
    recv: *mut c_void,
    count: ElementCount,
    dtype: cool_type,
    op: Option<cool_op>,
    root: usize,
    comm: cool_comm,
}

/// How many elements.
pub(crate) enum ElementCount {
    /// As the operation counts them (cool.h).
    Each(usize),
    /// Of each part: one for each rank, or for each pair of ranks.
    Parts(*const usize),
}

/// [`OwnCounts`], copied.
pub(crate) enum OwnedCounts {
    /// Of a root.
    OfRoot(Vec<usize>),
    /// Of each rank of an alltoall.
    OfRank(Vec<usize>, Vec<usize>),
}

/// The communicator of a number.
pub(crate) fn find_comm(number: cool_comm) -> Result<Arc<Comm>, CError> {
    COMMS.get(number, Arc::clone)
}

/// What an array of the type of a code holds.
pub(crate) fn elements_of(code: cool_type) -> Result<Elements, CError> {
    elements_of_code(code).ok_or_else(|| CError::Argument(format!("there is no type {code} of elements")))
}

/// Bytes of a range of memory that has elements of some bytes.
pub(crate) fn bytes_of(element: usize, elements: usize) -> Result<usize, CError> {
    let bytes = elements.checked_mul(element).filter(|bytes| isize::try_from(*bytes).is_ok());
    bytes.ok_or_else(|| CError::Argument(format!("{elements} elements are beyond any array")))
}

/// # Safety
/// Unless it is null, `bytes` bytes can be read there as long as the result is used.
pub(crate) unsafe fn bytes<'a>(name: &str, data: *const c_void, bytes: usize) -> Result<&'a [u8], CError> {
    match (data.is_null(), bytes) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(CError::Argument(format!("{name} is null, but has {bytes} bytes to it"))),
        // SAFETY: as promised.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(data.cast(), bytes) }),
    }
}

/// # Safety
/// Unless it is null, `bytes` bytes can be written there, and nobody else uses them, as long as the result is used.
pub(crate) unsafe fn bytes_mut<'a>(
    name: &str,
    data: *mut c_void,
    bytes: usize,
) -> Result<&'a mut [u8], CError> {
    match (data.is_null(), bytes) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(CError::Argument(format!("{name} is null, but has {bytes} bytes to it"))),
        // SAFETY: as promised.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), bytes) }),
    }
}

/// # Safety
/// Unless it is null, `n` numbers can be read there.
pub(crate) unsafe fn numbers(name: &str, data: *const usize, n: usize) -> Result<Vec<usize>, CError> {
    // SAFETY: as promised; numbers may be copied byte by byte, wherever they begin.
    let raw = unsafe { bytes(name, data.cast(), n * size_of::<usize>()) }?;
    Ok(raw.as_chunks().0.iter().copied().map(usize::from_ne_bytes).collect())
}

/// How memory that is read and memory that is written, each as where it begins and its bytes, lie to each other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BufferOverlap {
    /// They share nothing, or one is empty.
    Apart,
    /// One lies within the other: in that, where what is sent and what is received begin.
    Within(usize, usize),
}

/// # Errors
/// If they overlap otherwise.
pub(crate) fn overlap(send: (usize, usize), recv: (usize, usize)) -> Result<BufferOverlap, CError> {
    let end = |(start, bytes): (usize, usize)| start.saturating_add(bytes);
    if send.1 == 0 || recv.1 == 0 || end(send) <= recv.0 || end(recv) <= send.0 {
        return Ok(BufferOverlap::Apart);
    }
    let is_within = |a: (usize, usize), b: (usize, usize)| b.0 <= a.0 && end(a) <= end(b);
    if is_within(send, recv) {
        Ok(BufferOverlap::Within(send.0 - recv.0, 0))
    } else if is_within(recv, send) {
        Ok(BufferOverlap::Within(0, recv.0 - send.0))
    } else {
        let text = "send and recv overlap, and neither lies within the other; pass COOL_IN_PLACE as send, or other memory";
        Err(CError::Argument(text.to_owned()))
    }
}

impl CallArguments {
    /// One that combines nothing, with root 0.
    pub(crate) fn new(
        operation: Operation,
        send: *const c_void,
        recv: *mut c_void,
        count: ElementCount,
        dtype: cool_type,
        comm: cool_comm,
    ) -> CallArguments {
        CallArguments { operation, send, recv, count, dtype, op: None, root: 0, comm }
    }

    pub(crate) fn op(self, op: cool_op) -> CallArguments {
        CallArguments { op: Some(op), ..self }
    }

    pub(crate) fn root(self, root: usize) -> CallArguments {
        CallArguments { root, ..self }
    }

    /// Starts the call.
    ///
    /// # Safety
    /// What `send`, `recv` and the counts point to is there, is as long as the operation and the counts say, and is
    /// used by nobody else: `send` and the counts until this returns, `recv` until the call is done.
    pub(crate) unsafe fn start(self) -> Result<Pending<'static>, CError> {
        // SAFETY: as promised.
        unsafe { self.with_collective(|comm, collective| comm.start().collective(collective)) }
    }

    /// Runs the call to its end.
    ///
    /// # Safety
    /// As for [`CallArguments::start`], until this returns.
    pub(crate) unsafe fn run(self) -> Result<(), CError> {
        // SAFETY: as promised.
        unsafe { self.with_collective(Comm::collective) }
    }

    /// # Safety
    /// As for [`CallArguments::start`].
    unsafe fn with_collective<R>(
        self,
        then: impl FnOnce(&Comm, Collective<'_, 'static>) -> Result<R, Error>,
    ) -> Result<R, CError> {
        let dtype = elements_of(self.dtype)?;
        // SAFETY: as promised.
        unsafe { self.with_arrays(dtype, dtype.bytes(), then) }
    }

    /// Has a reduction by a function carried out, on elements of some bytes.
    ///
    /// # Safety
    /// As for [`CallArguments::start`], or [`CallArguments::run`], by what `then` does.
    pub(crate) unsafe fn fold<R>(
        self,
        element: usize,
        then: impl FnOnce(&Comm, Collective<'_, 'static>) -> Result<R, Error>,
    ) -> Result<R, CError> {
        if element == 0 || self.operation == Operation::Barrier {
            return Err(CError::Argument(
                "elements of 0 bytes, or of a barrier, are not combined".to_owned(),
            ));
        }
        // SAFETY: as promised.
        unsafe { self.with_arrays(Type::U8.into(), element, then) }
    }

    /// # Safety
    /// As for [`CallArguments::start`].
    unsafe fn with_arrays<R>(
        self,
        dtype: Elements,
        element: usize,
        then: impl FnOnce(&Comm, Collective<'_, 'static>) -> Result<R, Error>,
    ) -> Result<R, CError> {
        let comm = find_comm(self.comm)?;
        let (size, rank) = (comm.size(), comm.rank());
        if self.operation == Operation::Barrier {
            return Ok(then(&comm, Collective::new(self.operation, Arrays::None))?);
        }
        let op = self.op.map(|op| op_of(op).ok_or_else(|| CError::Argument(format!("there is no op {op}"))));
        let op: Option<Op> = op.transpose()?;
        let pairs = if self.operation == Operation::Alltoall { size * size } else { size };
        let counts: Option<Vec<usize>> = match self.count {
            ElementCount::Each(_) => None,
            ElementCount::Parts(parts) => {
                // SAFETY: as promised.
                Some(unsafe { numbers("counts", parts, pairs) }?)
            }
        };
        let (send, recv) = self.elements(rank, size, counts.as_deref())?;
        let in_place = self.send.addr() == IN_PLACE || self.operation == Operation::Bcast;
        let at_root = rank == self.root;
        let arrays = if in_place {
            // Both lengths are known: it is that of the array which has all parts, where this rank has all.
            let has = match self.operation {
                Operation::Gather => (!at_root).then_some(send),
                Operation::Scatter => at_root.then_some(send),
                Operation::ReduceScatter => Some(send),
                _ => None,
            };
            // SAFETY: as promised.
            let data = unsafe { bytes_mut("recv", self.recv, bytes_of(element, has.unwrap_or(recv))?) }?;
            Arrays::InPlace(whole(ArrayMut::new(dtype, data))?)
        } else {
            let to_root = matches!(self.operation, Operation::Reduce | Operation::Gather);
            let sends = self.operation != Operation::Scatter || at_root;
            let send = if sends { bytes_of(element, send)? } else { 0 };
            let recv = if to_root && !at_root { 0 } else { bytes_of(element, recv)? };
            // SAFETY: as promised.
            unsafe { self.arrays((dtype, element), send, recv) }?
        };
        let counts = counts.as_deref();
        let collective = Collective { operation: self.operation, root: self.root, op, counts, arrays };
        Ok(then(&comm, collective)?)
    }

    /// The arrays of these many bytes at `send` and at `recv`.
    ///
    /// # Safety
    /// As for [`CallArguments::start`].
    unsafe fn arrays<'a>(
        &self,
        (dtype, element): (Elements, usize),
        send: usize,
        recv: usize,
    ) -> Result<Arrays<'a, 'static>, CError> {
        match overlap((self.send.addr(), send), (self.recv.addr(), recv))? {
            BufferOverlap::Apart => {
                // SAFETY: as promised.
                let send = unsafe { bytes("send", self.send, send) }?;
                // SAFETY: as promised.
                let recv = unsafe { bytes_mut("recv", self.recv, recv) }?;
                let (send, recv) = (Array::new(dtype, send), ArrayMut::new(dtype, recv));
                Ok(Arrays::Apart(Some(whole(send)?), Some(whole(recv)?)))
            }
            BufferOverlap::Within(send_at, recv_at) => {
                let outer = if send_at == 0 && send >= recv { self.send.cast_mut() } else { self.recv };
                // SAFETY: as promised. What is sent lies in the same memory as what is received, which may be written.
                let data = unsafe { bytes_mut("recv", outer, send.max(recv)) }?;
                if !send_at.is_multiple_of(element) || !recv_at.is_multiple_of(element) {
                    return Err(CError::Argument("send and recv overlap within an element".to_owned()));
                }
                let of = |at: usize, bytes: usize| at / element..(at + bytes) / element;
                let data = whole(ArrayMut::new(dtype, data))?;
                Ok(Arrays::Within(data, of(send_at, send), of(recv_at, recv)))
            }
        }
    }

    /// Has a call carried out whose ranks know their own counts only: those that `own` makes of a communicator, with the
    /// elements of `send` and of `recv`.
    ///
    /// # Safety
    /// As for [`CallArguments::run`], as long as `own` says.
    pub(crate) unsafe fn run_with_own_counts(
        self,
        own: impl FnOnce(&Comm) -> Result<(OwnedCounts, usize, usize), CError>,
    ) -> Result<(), CError> {
        let (comm, dtype) = (find_comm(self.comm)?, elements_of(self.dtype)?);
        let (own, send, recv) = own(&comm)?;
        let (send, recv) = (bytes_of(dtype.bytes(), send)?, bytes_of(dtype.bytes(), recv)?);
        let arrays = if self.send.addr() == IN_PLACE {
            // SAFETY: as promised.
            let data = unsafe { bytes_mut("recv", self.recv, recv) }?;
            Arrays::InPlace(whole(ArrayMut::new(dtype, data))?)
        } else {
            // SAFETY: as promised.
            unsafe { self.arrays((dtype, dtype.bytes()), send, recv) }?
        };
        let counts = match &own {
            OwnedCounts::OfRoot(counts) => OwnCounts::OfRoot(counts),
            OwnedCounts::OfRank(sent, received) => OwnCounts::OfRank(sent, received),
        };
        let collective = Collective { root: self.root, ..Collective::new(self.operation, arrays) };
        Ok(comm.collective_of_own(collective, counts)?)
    }

    /// The elements of `send` and of `recv`.
    fn elements(&self, rank: usize, size: usize, counts: Option<&[usize]>) -> Result<(usize, usize), CError> {
        let count = match (&self.count, counts) {
            (ElementCount::Each(count), _) => *count,
            (ElementCount::Parts(_), Some(parts)) if self.operation == Operation::Alltoall => {
                let out = sum(parts[rank * size..][..size].iter())?;
                return Ok((out, sum(parts.iter().skip(rank).step_by(size))?));
            }
            (ElementCount::Parts(_), parts) => {
                let parts = parts.unwrap_or_default();
                let (own, all) = (parts.get(rank).copied().unwrap_or(0), sum(parts.iter())?);
                return Ok(match self.operation {
                    Operation::Scatter | Operation::ReduceScatter => (all, own),
                    _ => (own, all),
                });
            }
        };
        let all = || count.checked_mul(size).ok_or_else(too_many);
        Ok(match self.operation {
            Operation::Gather | Operation::Allgather => (count, all()?),
            Operation::Scatter | Operation::ReduceScatter => (all()?, count),
            Operation::Alltoall => (all()?, all()?),
            _ => (count, count),
        })
    }
}

pub(crate) fn sum<'a>(mut parts: impl Iterator<Item = &'a usize>) -> Result<usize, CError> {
    parts.try_fold(0usize, |sum, part| sum.checked_add(*part)).ok_or_else(too_many)
}

fn too_many() -> CError {
    CError::Argument("the counts are beyond any array".to_owned())
}

/// The bytes were counted by their elements.
fn whole<A>(array: Option<A>) -> Result<A, CError> {
    array.ok_or_else(|| CError::Argument("an array ends within an element".to_owned()))
}
