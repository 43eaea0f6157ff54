//! Conversion of the arguments of a collective from C to those of the library. The caller must
//! guarantee that memory exists and is as large as the arguments state.

use crate::codes::{cool_comm, cool_op, cool_type, elements_of_code, op_of};
use crate::comm::find_comm;
use crate::error::CError;
use crate::pointers::{bytes, bytes_mut, numbers};
use cool_rust::{
    Array, ArrayMut, Arrays, Collective, Comm, Elements, Error, Op, Operation, OwnCounts, Pending, Type,
};
use std::ffi::c_void;

/// `COOL_IN_PLACE` of the header.
const IN_PLACE: usize = usize::MAX;

/// The arguments of a collective, as passed by C.
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

/// Number of elements of a collective.
pub(crate) enum ElementCount {
    /// One count, with the meaning that cool.h defines for the operation.
    Each(usize),
    /// One count for each part: for each rank, or for each pair of ranks.
    Parts(*const usize),
}

/// A copy of [`OwnCounts`].
pub(crate) enum OwnedCounts {
    /// Counts of the root.
    OfRoot(Vec<usize>),
    /// Counts of each rank of an alltoall.
    OfRank(Vec<usize>, Vec<usize>),
}

/// Returns the element type with a code.
pub(crate) fn elements_of(code: cool_type) -> Result<Elements, CError> {
    elements_of_code(code).ok_or_else(|| CError::Argument(format!("there is no type {code} of elements")))
}

/// Returns the size in bytes of `elements` elements of `element` bytes.
pub(crate) fn bytes_of(element: usize, elements: usize) -> Result<usize, CError> {
    let bytes = elements.checked_mul(element).filter(|bytes| isize::try_from(*bytes).is_ok());
    bytes.ok_or_else(|| CError::Argument(format!("{elements} elements exceed the size of any array")))
}

/// How the memory of a send and a receive buffer overlaps.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BufferOverlap {
    /// The buffers are disjoint, or one is empty.
    Apart,
    /// One buffer lies within the other. The fields are the offsets of the send and the receive
    /// buffer in the larger one.
    Within(usize, usize),
}

/// Returns how two buffers overlap; each is passed as its address and size in bytes.
///
/// # Errors
/// If they overlap partially.
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
    /// Returns the arguments of an operation without a reduction, with root 0.
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
    /// `send`, `recv` and the counts must point to memory of the size that the operation and the
    /// counts require. No other code may access `send` and the counts until this returns, nor
    /// `recv` until the call is complete.
    pub(crate) unsafe fn start(self) -> Result<Pending<'static>, CError> {
        // SAFETY: the caller guarantees this.
        unsafe { self.with_collective(|comm, collective| comm.start().collective(collective)) }
    }

    /// Executes the call.
    ///
    /// # Safety
    /// As for [`CallArguments::start`], until this returns.
    pub(crate) unsafe fn run(self) -> Result<(), CError> {
        // SAFETY: the caller guarantees this.
        unsafe { self.with_collective(Comm::collective) }
    }

    /// Passes the collective to `then`.
    ///
    /// # Safety
    /// As for [`CallArguments::start`].
    unsafe fn with_collective<R>(
        self,
        then: impl FnOnce(&Comm, Collective<'_, 'static>) -> Result<R, Error>,
    ) -> Result<R, CError> {
        let dtype = elements_of(self.dtype)?;
        // SAFETY: the caller guarantees this.
        unsafe { self.with_arrays(dtype, dtype.bytes(), then) }
    }

    /// Passes a reduction by a function, on elements of `element` bytes, to `then`.
    ///
    /// # Safety
    /// As for [`CallArguments::start`] or [`CallArguments::run`], depending on `then`.
    pub(crate) unsafe fn fold<R>(
        self,
        element: usize,
        then: impl FnOnce(&Comm, Collective<'_, 'static>) -> Result<R, Error>,
    ) -> Result<R, CError> {
        if element == 0 || self.operation == Operation::Barrier {
            return Err(CError::Argument(
                "a reduction requires elements of at least 1 byte, and an operation other than barrier"
                    .to_owned(),
            ));
        }
        // SAFETY: the caller guarantees this.
        unsafe { self.with_arrays(Type::U8.into(), element, then) }
    }

    /// Passes the collective with its arrays to `then`.
    ///
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
                // SAFETY: the caller guarantees this.
                Some(unsafe { numbers("counts", parts, pairs) }?)
            }
        };
        let (send, recv) = self.elements(rank, size, counts.as_deref())?;
        let in_place = self.send.addr() == IN_PLACE || self.operation == Operation::Bcast;
        let at_root = rank == self.root;
        let arrays = if in_place {
            // An in-place call has one array. At a rank that has the parts of all ranks, it has the
            // length of all parts.
            let has = match self.operation {
                Operation::Gather => (!at_root).then_some(send),
                Operation::Scatter => at_root.then_some(send),
                Operation::ReduceScatter => Some(send),
                _ => None,
            };
            // SAFETY: the caller guarantees this.
            let data = unsafe { bytes_mut("recv", self.recv, bytes_of(element, has.unwrap_or(recv))?) }?;
            Arrays::InPlace(whole(ArrayMut::new(dtype, data))?)
        } else {
            let to_root = matches!(self.operation, Operation::Reduce | Operation::Gather);
            let sends = self.operation != Operation::Scatter || at_root;
            let send = if sends { bytes_of(element, send)? } else { 0 };
            let recv = if to_root && !at_root { 0 } else { bytes_of(element, recv)? };
            // SAFETY: the caller guarantees this.
            unsafe { self.arrays((dtype, element), send, recv) }?
        };
        let counts = counts.as_deref();
        let collective = Collective { operation: self.operation, root: self.root, op, counts, arrays };
        Ok(then(&comm, collective)?)
    }

    /// Returns the arrays with these sizes in bytes at `send` and `recv`.
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
                // SAFETY: the caller guarantees this.
                let send = unsafe { bytes("send", self.send, send) }?;
                // SAFETY: the caller guarantees this.
                let recv = unsafe { bytes_mut("recv", self.recv, recv) }?;
                let (send, recv) = (Array::new(dtype, send), ArrayMut::new(dtype, recv));
                Ok(Arrays::Apart(Some(whole(send)?), Some(whole(recv)?)))
            }
            BufferOverlap::Within(send_at, recv_at) => {
                let outer = if send_at == 0 && send >= recv { self.send.cast_mut() } else { self.recv };
                // SAFETY: the caller guarantees this. The send buffer is part of the same memory as
                // the receive buffer, which is writable.
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

    /// Executes a call in which each rank knows only its own counts. `own` returns these counts and
    /// the numbers of elements of `send` and `recv` for a communicator.
    ///
    /// # Safety
    /// As for [`CallArguments::run`], with the lengths that `own` returns.
    pub(crate) unsafe fn run_with_own_counts(
        self,
        own: impl FnOnce(&Comm) -> Result<(OwnedCounts, usize, usize), CError>,
    ) -> Result<(), CError> {
        let (comm, dtype) = (find_comm(self.comm)?, elements_of(self.dtype)?);
        let (own, send, recv) = own(&comm)?;
        let (send, recv) = (bytes_of(dtype.bytes(), send)?, bytes_of(dtype.bytes(), recv)?);
        let arrays = if self.send.addr() == IN_PLACE {
            // SAFETY: the caller guarantees this.
            let data = unsafe { bytes_mut("recv", self.recv, recv) }?;
            Arrays::InPlace(whole(ArrayMut::new(dtype, data))?)
        } else {
            // SAFETY: the caller guarantees this.
            unsafe { self.arrays((dtype, dtype.bytes()), send, recv) }?
        };
        let counts = match &own {
            OwnedCounts::OfRoot(counts) => OwnCounts::OfRoot(counts),
            OwnedCounts::OfRank(sent, received) => OwnCounts::OfRank(sent, received),
        };
        let collective = Collective { root: self.root, ..Collective::new(self.operation, arrays) };
        Ok(comm.collective_of_own(collective, counts)?)
    }

    /// Returns the numbers of elements of `send` and `recv`.
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
    CError::Argument("the sum of counts exceeds the size of any array".to_owned())
}

/// Unwraps an array, whose size is a multiple of its element size.
fn whole<A>(array: Option<A>) -> Result<A, CError> {
    array.ok_or_else(|| CError::Argument("an array ends within an element".to_owned()))
}
