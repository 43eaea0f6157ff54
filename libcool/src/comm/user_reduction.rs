//! Reductions by functions of the program, which only the ranks can call.
//!
//! The agents distribute to each rank its part of all vectors, the ranks combine them, and the
//! agents distribute the results. This moves as many bytes as a reduction by the agents and is as
//! reproducible, because each element is combined in rank order. Short vectors are sent to all
//! ranks in one step instead.

use super::started_fold::{StartedFold, bytes_of, space};
use super::{Comm, Pending, SharedComm, Start};
use crate::Operation;
use crate::call::{Arrays, CallingRank, CheckedCollective, Collective};
use crate::error::Error;
use crate::session::StartedCall;
use bytemuck::Pod;
use std::sync::Arc;

/// Vectors are sent whole to every rank if the copies of all ranks together have at most this many
/// bytes.
const SMALL: usize = 64 << 10;

/// A function that combines two vectors of elements: it must overwrite the left one, which is that
/// of the smaller ranks, with the result.
pub type Combine<'f> = dyn FnMut(&mut [u8], &[u8]) + 'f;

/// A reduction by a function at this rank.
struct UserReduction<'c, 'f> {
    shape: ReductionShape,
    combine: &'c mut Combine<'f>,
}

#[derive(Clone, Debug)]
struct ReductionShape {
    operation: Operation,
    rank: usize,
    size: usize,
    /// Size of an element, in bytes.
    element: usize,
    /// Length of a rank's vector, in bytes.
    bytes: usize,
    /// For a reduce_scatter in unequal parts: the number of elements of each.
    counts: Option<Vec<usize>>,
}

impl<'c, 'f> UserReduction<'c, 'f> {
    fn new(
        inner: &SharedComm,
        checked: &CheckedCollective<'_, '_>,
        element: usize,
        combine: &'c mut Combine<'f>,
    ) -> UserReduction<'c, 'f> {
        let shape = ReductionShape {
            operation: checked.operation,
            rank: inner.rank,
            size: inner.size(),
            element,
            bytes: checked.input().map_or(0, <[u8]>::len),
            counts: checked.counts.map(<[usize]>::to_vec),
        };
        UserReduction { shape, combine }
    }
}

impl Comm {
    /// As [`Comm::reduce`], with a function instead of an [`Op`](crate::Op).
    ///
    /// The function combines the vectors of all ranks in rank order, as in `f(f(first, second),
    /// third)`, so it need not be commutative. Elements may be of any plain type. All ranks must
    /// pass the same function.
    ///
    /// # Errors
    /// As [`Comm::reduce`]. The message may name the operations that implement the reduction.
    pub fn reduce_with<T: Pod>(
        &self,
        send: &[T],
        recv: &mut [T],
        f: impl FnMut(T, T) -> T,
        root: usize,
    ) -> Result<(), Error> {
        self.typed_user_op(Operation::Reduce, root, send, recv, f)
    }

    /// As [`Comm::allreduce`], with a function; see [`Comm::reduce_with`].
    ///
    /// ```
    /// # fn main() -> Result<(), cool::Error> {
    /// # cool::launch(|comm| -> Result<(), cool::Error> {
    /// // The product of matrices is not commutative.
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

    /// As [`Comm::reduce_scatter`], with a function; see [`Comm::reduce_with`].
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

    /// As [`Comm::scan`], with a function; see [`Comm::reduce_with`].
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

    /// As [`Comm::exscan`], with a function; see [`Comm::reduce_with`].
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

    /// Executes any of these reductions on bytes, for bindings to other languages.
    ///
    /// An element has `element` bytes, regardless of the types of the arrays; counts and ranges are
    /// in elements. `combine` is called with two vectors of the same number of elements: whole
    /// vectors, or the same part of both. They begin at multiples of the element size in memory
    /// that is aligned to 16 bytes. A reduce_scatter may have counts, and all operations may work
    /// in place.
    ///
    /// # Errors
    /// If the arguments are invalid, or the call fails.
    pub fn fold(
        &self,
        collective: Collective<'_, '_>,
        element: usize,
        combine: &mut Combine<'_>,
    ) -> Result<(), Error> {
        let checked = self.inner.check_fold(collective, element)?;
        let mut reduction = UserReduction::new(&self.inner, &checked, element, combine);
        let bytes = checked.input().map_or(0, <[u8]>::len);
        if bytes.saturating_mul(self.size()) <= SMALL {
            self.fold_small(&mut reduction, checked)
        } else {
            self.fold_large(&mut reduction, checked)
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
        let (send, recv) = (bytemuck::cast_slice::<T, u8>(send), bytemuck::cast_slice_mut::<T, u8>(recv));
        let arrays = Arrays::Apart(Some(send.into()), Some(recv.into()));
        self.fold(Collective { root, ..Collective::new(operation, arrays) }, element, &mut combine)
    }

    /// Reduces short vectors: sends all of them to every rank, which combines them.
    fn fold_small(
        &self,
        reduction: &mut UserReduction<'_, '_>,
        checked: CheckedCollective<'_, '_>,
    ) -> Result<(), Error> {
        let send = checked.input().unwrap_or_default();
        let bytes = send.len() * self.size();
        let mut space = space(bytes);
        let all = bytes_of(&mut space, bytes);
        self.allgather(send, all)?;
        if let Some(recv) = checked.into_output() {
            reduction.finish(all, recv);
        }
        Ok(())
    }

    /// Reduces long vectors: sends each rank its part of all vectors, which it combines, and
    /// distributes the results.
    fn fold_large(
        &self,
        reduction: &mut UserReduction<'_, '_>,
        checked: CheckedCollective<'_, '_>,
    ) -> Result<(), Error> {
        let size = self.size();
        let parts = reduction.parts();
        let mine = parts[self.rank()];
        let mut space = space(mine * size);
        let all = bytes_of(&mut space, mine * size);
        let row = |_| parts.iter().copied();
        let rows: Vec<usize> = (0..size).flat_map(row).collect();
        self.alltoallv(checked.input().unwrap_or_default(), all, &rows)?;
        let (operation, root) = (checked.operation, checked.root as usize);
        let recv = checked.into_output();
        match operation {
            Operation::Scan | Operation::Exscan => {
                let column = |rank: usize| std::iter::repeat_n(parts[rank], size);
                let counts: Vec<usize> = (0..size).flat_map(column).collect();
                reduction.prefixes(all, mine, operation == Operation::Exscan);
                match recv {
                    Some(recv) => self.alltoallv(all, recv, &counts),
                    // Rank 0 has no predecessors, so it ignores the data it receives.
                    None => self.alltoallv(all, &mut vec![0; parts.iter().sum()], &counts),
                }
            }
            Operation::ReduceScatter => {
                let result = reduction.combined(all, mine, size);
                recv.into_iter().for_each(|recv| recv.copy_from_slice(result));
                Ok(())
            }
            Operation::Reduce => {
                let result = reduction.combined(all, mine, size);
                self.gatherv(result, recv.unwrap_or_default(), &parts, root)
            }
            _ => self.allgatherv(reduction.combined(all, mine, size), recv.unwrap_or_default(), &parts),
        }
    }
}

impl<'c> Start<'c> {
    /// Starts [`Comm::fold`].
    ///
    /// The data is exchanged in a single call, because a second one could not precede calls that
    /// were started later. A reduce_scatter sends each rank its part of all vectors, as the
    /// blocking form does; a reduce sends all vectors to the root; other operations send all
    /// vectors to all ranks. The thread that waits for the call combines them.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable.
    pub fn fold<'a>(
        self,
        collective: Collective<'_, 'a>,
        element: usize,
        combine: impl FnMut(&mut [u8], &[u8]) + Send + Sync + 'a,
    ) -> Result<Pending<'a>, Error> {
        let (comm, timeout, _) = self.parts();
        let inner = &comm.inner;
        let checked = inner.check_fold(collective, element)?;
        let mut combine: Box<SharedCombine<'a>> = Box::new(combine);
        let reduction = UserReduction::new(inner, &checked, element, &mut *combine);
        let (size, rank, root) = (inner.size(), inner.rank, checked.root as usize);
        let send = checked.input().unwrap_or_default();
        let to_root = checked.operation == Operation::Reduce;
        let scatters = checked.operation == Operation::ReduceScatter;
        let parts = reduction.parts();
        let bytes_received = match scatters {
            true => parts[rank] * size,
            false if to_root && rank != root => 0,
            false => send.len() * size,
        };
        let mut space = space(bytes_received);
        let arrays = Arrays::Apart(Some(send.into()), Some(bytes_of(&mut space, bytes_received).into()));
        let rows: Vec<usize> = (0..size).flat_map(|_| parts.iter().copied()).collect();
        let moved = match (scatters, to_root) {
            (true, _) => Collective { counts: Some(&rows), ..Collective::new(Operation::Alltoall, arrays) },
            (_, true) => Collective { root, ..Collective::new(Operation::Gather, arrays) },
            _ => Collective::new(Operation::Allgather, arrays),
        };
        let shape = reduction.shape;
        let started = inner.start_apart(moved, timeout)?;
        let finish = move |all: &mut [u8], recv: &mut [u8]| {
            UserReduction { shape, combine: &mut *combine }.finish(all, recv);
        };
        let folding = StartedFold { space, bytes: bytes_received, finish: Box::new(finish) };
        Ok(match started {
            StartedCall::Pending(request) => Pending::folding(Arc::clone(inner), request, folding, checked),
            StartedCall::Done(cost) => {
                inner.account(cost);
                Pending::folded(Arc::clone(inner), folding, checked)
            }
        })
    }
}

impl SharedComm {
    fn check_fold<'s, 'r>(
        &self,
        collective: Collective<'s, 'r>,
        element: usize,
    ) -> Result<CheckedCollective<'s, 'r>, Error> {
        let name = if collective.operation.combines() { collective.name() } else { "fold" };
        let caller = CallingRank { rank: self.rank, size: self.size() };
        collective.check_fold(caller, element).map_err(|reason| self.argument_error(name, reason))
    }
}

/// A [`Combine`] that any thread may call.
type SharedCombine<'f> = dyn FnMut(&mut [u8], &[u8]) + Send + Sync + 'f;

impl ReductionShape {
    /// Returns the length in bytes of the part that each rank combines: its own part of a
    /// reduce_scatter, otherwise parts of nearly equal lengths.
    fn parts(&self) -> Vec<usize> {
        let ReductionShape { element, bytes, size, .. } = *self;
        let elements = bytes / element;
        match &self.counts {
            Some(counts) => counts.iter().map(|count| count * element).collect(),
            None => (0..size)
                .map(|rank| (elements / size + usize::from(rank < elements % size)) * element)
                .collect(),
        }
    }
}

impl UserReduction<'_, '_> {
    fn parts(&self) -> Vec<usize> {
        self.shape.parts()
    }

    /// Combines the vectors that contribute to this rank's result. `all` contains them in rank
    /// order, either whole or, for a reduce_scatter, only this rank's part of each.
    fn finish(&mut self, all: &mut [u8], recv: &mut [u8]) {
        let ReductionShape { operation, rank, size, bytes, .. } = self.shape;
        let vectors = match operation {
            Operation::Scan => rank + 1,
            Operation::Exscan => rank,
            _ => size,
        };
        if operation != Operation::ReduceScatter {
            recv.copy_from_slice(self.combined(all, bytes, vectors));
        } else if all.len() == bytes * size {
            let start: usize = self.parts()[..rank].iter().sum();
            let result = self.combined(all, bytes, vectors);
            recv.copy_from_slice(&result[start..start + recv.len()]);
        } else {
            recv.copy_from_slice(self.combined(all, recv.len(), vectors));
        }
    }

    /// Combines `vectors` vectors of `bytes` bytes each into the first one, and returns it.
    fn combined<'a>(&mut self, all: &'a mut [u8], bytes: usize, vectors: usize) -> &'a [u8] {
        let (result, rest) = all.split_at_mut(bytes);
        for vector in rest.chunks_exact(bytes.max(1)).take(vectors.saturating_sub(1)) {
            (self.combine)(result, vector);
        }
        result
    }

    /// Replaces each vector with the combination of all vectors up to it, or before it if
    /// `exclusive`.
    fn prefixes(&mut self, all: &mut [u8], bytes: usize, exclusive: bool) {
        let vectors = self.shape.size;
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
