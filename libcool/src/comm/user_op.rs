//! Reductions by functions of the program, which only the ranks can call. The agents move each rank its part of
//! all vectors, the ranks combine, and the agents move the results: as many bytes as a reduction by the agents,
//! and as reproducible, since each element is combined in rank order. Small vectors go to all ranks in one step.

use super::Comm;
use crate::Operation;
use crate::collective::{Arrays, Caller, Collective};
use crate::error::Error;
use bytemuck::Pod;
use std::ops::Range;

/// Vectors whose copies from all ranks fit into this go whole to every rank.
const SMALL: usize = 64 << 10;

/// How two vectors of elements combine: the left one, of the smaller ranks, is overwritten with the result.
pub type Combine<'f> = dyn FnMut(&mut [u8], &[u8]) + 'f;

/// A reduction by a function.
struct UserOp<'c, 'f> {
    comm: &'c Comm,
    /// Bytes of an element.
    element: usize,
    /// Bytes of a rank's vector.
    bytes: usize,
    combine: &'c mut Combine<'f>,
}

impl Comm {
    /// [`Comm::reduce`] by a function: all ranks' `send` in rank order, `f(f(first, second), third)`, so it need not
    /// be commutative. Elements may be of any plain type. All ranks pass the same function.
    ///
    /// # Errors
    /// As [`Comm::reduce`]. The text may name the operations by which it is carried out.
    pub fn reduce_with<T: Pod>(
        &self,
        send: &[T],
        recv: &mut [T],
        f: impl FnMut(T, T) -> T,
        root: usize,
    ) -> Result<(), Error> {
        self.typed_user_op(Operation::Reduce, root, send, recv, f)
    }

    /// [`Comm::allreduce`] by a function; see [`Comm::reduce_with`].
    ///
    /// ```
    /// # fn main() -> Result<(), cool::Error> {
    /// # cool::launch(|comm| -> Result<(), cool::Error> {
    /// // Matrices: not commutative.
    /// let mine = [[1u64, comm.rank() as u64], [0, 1]];
    /// let mut product = [[[0; 2]; 2]];
    /// let times = |a: [[u64; 2]; 2], b: [[u64; 2]; 2]| {
    ///     std::array::from_fn(|i| std::array::from_fn(|j| a[i][0] * b[0][j] + a[i][1] * b[1][j]))
    /// };
    /// comm.allreduce_with(&[mine], &mut product, times)?;
    /// assert_eq!(product[0], [[1, 6], [0, 1]]);
    /// # Ok(())
    /// # })?.into_iter().collect()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Comm::allreduce`].
    pub fn allreduce_with<T: Pod>(
        &self,
        send: &[T],
        recv: &mut [T],
        f: impl FnMut(T, T) -> T,
    ) -> Result<(), Error> {
        self.typed_user_op(Operation::Allreduce, 0, send, recv, f)
    }

    /// [`Comm::reduce_scatter`] by a function; see [`Comm::reduce_with`].
    ///
    /// # Errors
    /// As [`Comm::reduce_scatter`].
    pub fn reduce_scatter_with<T: Pod>(
        &self,
        send: &[T],
        recv: &mut [T],
        f: impl FnMut(T, T) -> T,
    ) -> Result<(), Error> {
        self.typed_user_op(Operation::ReduceScatter, 0, send, recv, f)
    }

    /// [`Comm::scan`] by a function; see [`Comm::reduce_with`].
    ///
    /// # Errors
    /// As [`Comm::scan`].
    pub fn scan_with<T: Pod>(
        &self,
        send: &[T],
        recv: &mut [T],
        f: impl FnMut(T, T) -> T,
    ) -> Result<(), Error> {
        self.typed_user_op(Operation::Scan, 0, send, recv, f)
    }

    /// [`Comm::exscan`] by a function; see [`Comm::reduce_with`].
    ///
    /// # Errors
    /// As [`Comm::exscan`].
    pub fn exscan_with<T: Pod>(
        &self,
        send: &[T],
        recv: &mut [T],
        f: impl FnMut(T, T) -> T,
    ) -> Result<(), Error> {
        self.typed_user_op(Operation::Exscan, 0, send, recv, f)
    }

    /// Any of these on bytes, for bindings to other languages: elements have `element` bytes, and `combine` gets
    /// whole vectors, which begin at multiples of 16 bytes, or of `element` after that.
    ///
    /// # Errors
    /// If the arguments make no sense, or the call fails.
    pub fn fold(
        &self,
        operation: Operation,
        root: usize,
        element: usize,
        send: &[u8],
        recv: &mut [u8],
        combine: &mut Combine<'_>,
    ) -> Result<(), Error> {
        let name = "fold";
        if element == 0 || !send.len().is_multiple_of(element) {
            let reason =
                format!("send has {} bytes, which are no whole elements of {element} bytes", send.len());
            return Err(self.inner.wrong(name, reason));
        }
        if !operation.combines() {
            return Err(self.inner.wrong(name, format!("{operation} combines nothing")));
        }
        let caller = Caller { rank: self.rank(), size: self.size() };
        caller
            .user_op(operation, root, send.len() / element, recv.len() / element)
            .map_err(|reason| self.inner.wrong(Collective::new(operation, Arrays::None).name(), reason))?;
        let mut reduction = UserOp { comm: self, element, bytes: send.len(), combine };
        if send.len().saturating_mul(self.size()) <= SMALL {
            reduction.small(operation, root, send, recv)
        } else {
            reduction.large(operation, root, send, recv)
        }
    }

    fn typed_user_op<T: Pod>(
        &self,
        operation: Operation,
        root: usize,
        send: &[T],
        recv: &mut [T],
        mut f: impl FnMut(T, T) -> T,
    ) -> Result<(), Error> {
        let element = size_of::<T>();
        let mut combine = |left: &mut [u8], right: &[u8]| {
            for (left, right) in left.chunks_exact_mut(element).zip(right.chunks_exact(element)) {
                let both = (bytemuck::pod_read_unaligned(left), bytemuck::pod_read_unaligned(right));
                left.copy_from_slice(bytemuck::bytes_of(&f(both.0, both.1)));
            }
        };
        let (send, recv) = (bytemuck::cast_slice(send), bytemuck::cast_slice_mut(recv));
        self.fold(operation, root, element, send, recv, &mut combine)
    }
}

/// Bytes that begin where any element may.
fn space(bytes: usize) -> Vec<u128> {
    vec![0; bytes.div_ceil(size_of::<u128>())]
}

fn bytes_of(space: &mut [u128], bytes: usize) -> &mut [u8] {
    &mut bytemuck::cast_slice_mut(space)[..bytes]
}

impl UserOp<'_, '_> {
    /// All vectors go to every rank.
    fn small(
        &mut self,
        operation: Operation,
        root: usize,
        send: &[u8],
        recv: &mut [u8],
    ) -> Result<(), Error> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let mut space = space(send.len() * size);
        let all = bytes_of(&mut space, send.len() * size);
        self.comm.allgather(send, all)?;
        let vectors = match operation {
            Operation::Scan => rank + 1,
            Operation::Exscan if rank == 0 => return Ok(()),
            Operation::Exscan => rank,
            _ => size,
        };
        let result = self.combined(all, send.len(), vectors);
        match operation {
            Operation::ReduceScatter => recv.copy_from_slice(&result[rank * recv.len()..][..recv.len()]),
            Operation::Reduce if rank != root => {}
            _ => recv.copy_from_slice(result),
        }
        Ok(())
    }

    /// Each rank gets its part of all vectors.
    fn large(
        &mut self,
        operation: Operation,
        root: usize,
        send: &[u8],
        recv: &mut [u8],
    ) -> Result<(), Error> {
        let (comm, size) = (self.comm, self.comm.size());
        let parts: Vec<usize> = (0..size).map(|rank| self.part(rank).len()).collect();
        let mine = parts[comm.rank()];
        let mut space = space(mine * size);
        let all = bytes_of(&mut space, mine * size);
        let row = |_| parts.iter().copied();
        comm.alltoallv(send, all, &(0..size).flat_map(row).collect::<Vec<_>>())?;
        match operation {
            Operation::Scan | Operation::Exscan => {
                self.prefixes(all, mine, operation == Operation::Exscan);
                let column = |rank: usize| std::iter::repeat_n(parts[rank], size);
                let counts: Vec<usize> = (0..size).flat_map(column).collect();
                if operation == Operation::Exscan && comm.rank() == 0 {
                    // Nothing is before it; what it hears is of no meaning.
                    return comm.alltoallv(all, &mut vec![0; recv.len()], &counts);
                }
                comm.alltoallv(all, recv, &counts)
            }
            Operation::ReduceScatter => {
                recv.copy_from_slice(self.combined(all, mine, size));
                Ok(())
            }
            Operation::Reduce => comm.gatherv(self.combined(all, mine, size), recv, &parts, root),
            _ => comm.allgatherv(self.combined(all, mine, size), recv, &parts),
        }
    }

    /// The bytes of a vector that a rank combines: as equal parts as can be.
    fn part(&self, rank: usize) -> Range<usize> {
        let (elements, size) = (self.bytes / self.element, self.comm.size());
        let start = |rank: usize| rank * (elements / size) + rank.min(elements % size);
        start(rank) * self.element..start(rank + 1) * self.element
    }

    /// The first of `vectors` vectors of `bytes` bytes each, after all were combined into it.
    fn combined<'a>(&mut self, all: &'a mut [u8], bytes: usize, vectors: usize) -> &'a [u8] {
        let (result, rest) = all.split_at_mut(bytes);
        for vector in rest.chunks_exact(bytes.max(1)).take(vectors - 1) {
            (self.combine)(result, vector);
        }
        result
    }

    /// Each vector becomes the combination of all up to it, or of all before it.
    fn prefixes(&mut self, all: &mut [u8], bytes: usize, exclusive: bool) {
        let vectors = self.comm.size();
        let (mut own, mut so_far) = (space(bytes), space(bytes));
        let (own, so_far) = (bytes_of(&mut own, bytes), bytes_of(&mut so_far, bytes));
        so_far.copy_from_slice(&all[..bytes]);
        for start in (1..vectors).map(|vector| vector * bytes) {
            let vector = &mut all[start..][..bytes];
            own.copy_from_slice(vector);
            if exclusive {
                vector.copy_from_slice(so_far);
            }
            (self.combine)(so_far, own);
            if !exclusive {
                vector.copy_from_slice(so_far);
            }
        }
    }
}
