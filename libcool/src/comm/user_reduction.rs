//! Reductions by functions of the program, which only the ranks can call. The agents move each rank its part of
//! all vectors, the ranks combine, and the agents move the results: as many bytes as a reduction by the agents,
//! and as reproducible, since each element is combined in rank order. Small vectors go to all ranks in one step.

use super::Pending;
use super::{Comm, SharedComm, Start};
use crate::Operation;
use crate::call::{Arrays, CallingRank, CheckedCollective, Collective};
use crate::error::Error;
use bytemuck::Pod;
use std::sync::Arc;

/// Vectors whose copies from all ranks fit into this go whole to every rank.
const SMALL: usize = 64 << 10;

/// How two vectors of elements combine: the left one, of the smaller ranks, is overwritten with the result.
pub type Combine<'f> = dyn FnMut(&mut [u8], &[u8]) + 'f;

/// A reduction by a function, as this rank sees it.
struct UserReduction<'c, 'f> {
    shape: ReductionShape,
    combine: &'c mut Combine<'f>,
}

#[derive(Clone, Debug)]
struct ReductionShape {
    operation: Operation,
    rank: usize,
    size: usize,
    /// Bytes of an element.
    element: usize,
    /// Bytes of a rank's vector.
    bytes: usize,
    /// Of a reduce_scatter in unequal parts: the elements of each.
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

    /// Any of these on bytes, for bindings to other languages: elements have `element` bytes, whatever the arrays say, by which
    /// counts and ranges are counted, and `combine` gets whole vectors, which begin at multiples of 16 bytes, or of `element` after
    /// that. A reduce_scatter may have counts, and all may be done in place.
    ///
    /// # Errors
    /// If the arguments make no sense, or the call fails.
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

    /// All vectors go to every rank.
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

    /// Each rank gets its part of all vectors.
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
                    // Nothing is before rank 0; what it hears is of no meaning.
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
    /// [`Comm::fold`], in one step, since no other could come before calls that were started later: a reduce_scatter gets each
    /// rank its part of all vectors, as when it is waited for; a reduce sends all vectors to the root, the others send all to
    /// all. This rank's part is combined by whoever waits for the call, in that thread.
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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
        let request = inner.start_apart(moved, timeout)?;
        let finish = move |all: &mut [u8], recv: &mut [u8]| {
            UserReduction { shape, combine: &mut *combine }.finish(all, recv);
        };
        let folding = StartedFold { space, bytes: bytes_received, finish: Box::new(finish) };
        Ok(Pending::folding(Arc::clone(inner), request, folding, checked))
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

/// What a started reduction does when all vectors have come.
pub(crate) struct StartedFold<'a> {
    space: Vec<u128>,
    bytes: usize,
    finish: Box<FinishReduction<'a>>,
}

/// Combines what has come to what this rank receives.
type FinishReduction<'a> = dyn FnOnce(&mut [u8], &mut [u8]) + Send + Sync + 'a;

/// A [`Combine`] that any thread may call.
type SharedCombine<'f> = dyn FnMut(&mut [u8], &[u8]) + Send + Sync + 'f;

impl std::fmt::Debug for StartedFold<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StartedFold").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl StartedFold<'_> {
    /// Where the vectors of all ranks come.
    pub(crate) fn vectors(&mut self) -> &mut [u8] {
        bytes_of(&mut self.space, self.bytes)
    }

    /// All have come.
    pub(crate) fn finish(mut self, recv: &mut [u8]) {
        (self.finish)(bytes_of(&mut self.space, self.bytes), recv);
    }
}

/// Bytes that begin where any element may.
fn space(bytes: usize) -> Vec<u128> {
    vec![0; bytes.div_ceil(size_of::<u128>())]
}

fn bytes_of(space: &mut [u128], bytes: usize) -> &mut [u8] {
    &mut bytemuck::cast_slice_mut(space)[..bytes]
}

impl ReductionShape {
    /// The bytes of the vector that a rank combines: what it is to have, or as equal parts as can be.
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

    /// Combines all vectors that this rank's result is of, which are there in rank order: all of each, or of a reduce_scatter
    /// this rank's part alone.
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

    /// The first of `vectors` vectors of `bytes` bytes each, after all were combined into it.
    fn combined<'a>(&mut self, all: &'a mut [u8], bytes: usize, vectors: usize) -> &'a [u8] {
        let (result, rest) = all.split_at_mut(bytes);
        for vector in rest.chunks_exact(bytes.max(1)).take(vectors.saturating_sub(1)) {
            (self.combine)(result, vector);
        }
        result
    }

    /// Each vector becomes the combination of all up to it, or of all before it.
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
