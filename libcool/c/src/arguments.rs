//! Pointers and codes into what the library takes. Here is all that must be trusted of the caller: that memory
//! is there as long as it says.

use crate::codes::{cool_comm, cool_op, cool_type, op_of, type_of};
use crate::comm::COMMS;
use crate::error::Wrong;
use cool_rust::{Array, ArrayMut, Arrays, Collective, Comm, Error, Op, Operation, Pending, Type};
use std::ffi::c_void;
use std::sync::Arc;

/// `COOL_IN_PLACE` of the header.
const IN_PLACE: usize = usize::MAX;

/// One call as C gives it.
pub(crate) struct Call {
    operation: Operation,
    send: *const c_void,
    recv: *mut c_void,
    count: Count,
    dtype: cool_type,
    op: Option<cool_op>,
    root: usize,
    comm: cool_comm,
}

/// How many elements.
pub(crate) enum Count {
    /// As the operation counts them (cool.h).
    Each(usize),
    /// Of each part: one for each rank, or for each pair of ranks.
    Parts(*const usize),
}

/// The communicator of a number.
pub(crate) fn comm_of(number: cool_comm) -> Result<Arc<Comm>, Wrong> {
    COMMS.look(number, Arc::clone)
}

/// The type of a code.
pub(crate) fn elements_of(code: cool_type) -> Result<Type, Wrong> {
    type_of(code).ok_or_else(|| Wrong::Argument(format!("there is no type {code} of elements")))
}

/// Elements of a range of memory.
pub(crate) fn bytes_of(dtype: Type, elements: usize) -> Result<usize, Wrong> {
    let bytes = elements.checked_mul(dtype.bytes()).filter(|bytes| isize::try_from(*bytes).is_ok());
    bytes.ok_or_else(|| Wrong::Argument(format!("{elements} elements are beyond any array")))
}

/// # Safety
/// Unless it is null, `bytes` bytes can be read there as long as the result is used.
pub(crate) unsafe fn bytes<'a>(name: &str, data: *const c_void, bytes: usize) -> Result<&'a [u8], Wrong> {
    match (data.is_null(), bytes) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Wrong::Argument(format!("{name} is null, but has {bytes} bytes to it"))),
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
) -> Result<&'a mut [u8], Wrong> {
    match (data.is_null(), bytes) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(Wrong::Argument(format!("{name} is null, but has {bytes} bytes to it"))),
        // SAFETY: as promised.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), bytes) }),
    }
}

/// Memory that is read and memory that is written must not be the same.
pub(crate) fn apart(send: &[u8], recv: &[u8]) -> Result<(), Wrong> {
    let (send, recv) = (send.as_ptr_range(), recv.as_ptr_range());
    if send.start < recv.end && recv.start < send.end {
        return Err(Wrong::Argument("send and recv overlap; pass COOL_IN_PLACE as send instead".to_owned()));
    }
    Ok(())
}

impl Call {
    /// One that combines nothing, with root 0.
    pub(crate) fn new(
        operation: Operation,
        send: *const c_void,
        recv: *mut c_void,
        count: Count,
        dtype: cool_type,
        comm: cool_comm,
    ) -> Call {
        Call { operation, send, recv, count, dtype, op: None, root: 0, comm }
    }

    pub(crate) fn op(self, op: cool_op) -> Call {
        Call { op: Some(op), ..self }
    }

    pub(crate) fn root(self, root: usize) -> Call {
        Call { root, ..self }
    }

    /// Starts the call.
    ///
    /// # Safety
    /// What `send`, `recv` and the counts point to is there, is as long as the operation and the counts say, and is
    /// used by nobody else: `send` and the counts until this returns, `recv` until the call is done.
    pub(crate) unsafe fn start(self) -> Result<Pending<'static>, Wrong> {
        // SAFETY: as promised.
        unsafe { self.carry_out(|comm, collective| comm.start().collective(collective)) }
    }

    /// Runs the call to its end.
    ///
    /// # Safety
    /// As for [`Call::start`], until this returns.
    pub(crate) unsafe fn run(self) -> Result<(), Wrong> {
        // SAFETY: as promised.
        unsafe { self.carry_out(Comm::collective) }
    }

    /// # Safety
    /// As for [`Call::start`].
    unsafe fn carry_out<R>(
        self,
        then: impl FnOnce(&Comm, Collective<'_, 'static>) -> Result<R, Error>,
    ) -> Result<R, Wrong> {
        let comm = comm_of(self.comm)?;
        let (size, rank) = (comm.size(), comm.rank());
        if self.operation == Operation::Barrier {
            return Ok(then(&comm, Collective::new(self.operation, Arrays::None))?);
        }
        let dtype = elements_of(self.dtype)?;
        let op = self.op.map(|op| op_of(op).ok_or_else(|| Wrong::Argument(format!("there is no op {op}"))));
        let op: Option<Op> = op.transpose()?;
        let pairs = if self.operation == Operation::Alltoall { size * size } else { size };
        let counts: Option<Vec<usize>> = match self.count {
            Count::Each(_) => None,
            Count::Parts(parts) => {
                // SAFETY: as promised; numbers may be copied byte by byte, wherever they begin.
                let raw = unsafe { bytes("counts", parts.cast(), pairs * size_of::<usize>()) }?;
                Some(raw.as_chunks().0.iter().copied().map(usize::from_ne_bytes).collect())
            }
        };
        let (send, recv) = self.elements(rank, size, counts.as_deref())?;
        let in_place = self.send.addr() == IN_PLACE || self.operation == Operation::Bcast;
        let to_root = matches!(self.operation, Operation::Reduce | Operation::Gather);
        let arrays = if in_place {
            // SAFETY: as promised.
            let data = unsafe { bytes_mut("recv", self.recv, bytes_of(dtype, recv)?) }?;
            Arrays::InPlace(whole(ArrayMut::new(dtype, data))?)
        } else {
            let sends = self.operation != Operation::Scatter || rank == self.root;
            let send = if sends { bytes_of(dtype, send)? } else { 0 };
            let recv = if to_root && rank != self.root { 0 } else { bytes_of(dtype, recv)? };
            // SAFETY: as promised.
            let send = unsafe { bytes("send", self.send, send) }?;
            // SAFETY: as promised.
            let recv = unsafe { bytes_mut("recv", self.recv, recv) }?;
            apart(send, recv)?;
            Arrays::Apart(Some(whole(Array::new(dtype, send))?), Some(whole(ArrayMut::new(dtype, recv))?))
        };
        let counts = counts.as_deref();
        let collective = Collective { operation: self.operation, root: self.root, op, counts, arrays };
        Ok(then(&comm, collective)?)
    }

    /// The elements of `send` and of `recv`.
    fn elements(&self, rank: usize, size: usize, counts: Option<&[usize]>) -> Result<(usize, usize), Wrong> {
        let count = match (&self.count, counts) {
            (Count::Each(count), _) => *count,
            (Count::Parts(_), Some(parts)) if self.operation == Operation::Alltoall => {
                let out = sum(parts[rank * size..][..size].iter())?;
                return Ok((out, sum(parts.iter().skip(rank).step_by(size))?));
            }
            (Count::Parts(_), parts) => {
                let parts = parts.unwrap_or_default();
                let (own, all) = (parts.get(rank).copied().unwrap_or(0), sum(parts.iter())?);
                return Ok(match self.operation {
                    Operation::Scatter | Operation::ReduceScatter => (all, own),
                    _ => (own, all),
                });
            }
        };
        let all = || count.checked_mul(size).ok_or_else(beyond);
        Ok(match self.operation {
            Operation::Gather | Operation::Allgather => (count, all()?),
            Operation::Scatter | Operation::ReduceScatter => (all()?, count),
            Operation::Alltoall => (all()?, all()?),
            _ => (count, count),
        })
    }
}

fn sum<'a>(mut parts: impl Iterator<Item = &'a usize>) -> Result<usize, Wrong> {
    parts.try_fold(0usize, |sum, part| sum.checked_add(*part)).ok_or_else(beyond)
}

fn beyond() -> Wrong {
    Wrong::Argument("the counts are beyond any array".to_owned())
}

/// The bytes were counted by their elements.
fn whole<A>(array: Option<A>) -> Result<A, Wrong> {
    array.ok_or_else(|| Wrong::Argument("an array ends within an element".to_owned()))
}
