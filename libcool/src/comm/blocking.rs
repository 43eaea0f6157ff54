//! The operations in their blocking form, on slices of types known at compile time.
//!
//! Operations with `counts` are MPI's v-forms: `counts` contains the number of elements of each
//! rank's part, in rank order; any count may be 0. All ranks must pass the same counts, because
//! every agent compiles the schedule of its own ranks and needs the lengths of all parts for that.
//! A program in which ranks know only their own lengths can exchange them first by
//! [`Comm::allgather`].

use super::Comm;
use crate::Op;
use crate::call::Collective;
use crate::element::Element;
use crate::error::Error;

impl Comm {
    /// Executes any operation, on arrays of types that are known only at run time.
    ///
    /// # Errors
    /// If the arguments are invalid, or the call fails.
    pub fn collective(&self, collective: Collective<'_, '_>) -> Result<(), Error> {
        self.waiting().collective(collective)?.wait()
    }

    /// Sends the root's `data` to all ranks, where it overwrites `data`.
    ///
    /// # Errors
    /// If there is no such root, or the call fails.
    pub fn bcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        self.waiting().bcast(data, root)?.wait()
    }

    /// Combines the `send` arrays of all ranks, element by element, into the root's `recv`. Other
    /// ranks may pass `&mut []` as `recv`, which is ignored.
    ///
    /// # Errors
    /// If the root's `recv` and `send` differ in length, there is no such root, or the call fails.
    pub fn reduce<T: Element>(&self, send: &[T], recv: &mut [T], op: Op, root: usize) -> Result<(), Error> {
        self.waiting().reduce(send, recv, op, root)?.wait()
    }

    /// As [`Comm::reduce`], with `data` as input; the result overwrites it at the root.
    ///
    /// # Errors
    /// If there is no such root, or the call fails.
    pub fn reduce_in_place<T: Element>(&self, data: &mut [T], op: Op, root: usize) -> Result<(), Error> {
        self.waiting().reduce_in_place(data, op, root)?.wait()
    }

    /// Combines the `send` arrays of all ranks, element by element, into the `recv` of every rank.
    ///
    /// # Errors
    /// If `recv` and `send` differ in length, or the call fails.
    pub fn allreduce<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), Error> {
        self.waiting().allreduce(send, recv, op)?.wait()
    }

    /// As [`Comm::allreduce`], with `data` as input; the result overwrites it.
    ///
    /// # Errors
    /// If the call fails.
    pub fn allreduce_in_place<T: Element>(&self, data: &mut [T], op: Op) -> Result<(), Error> {
        self.waiting().allreduce_in_place(data, op)?.wait()
    }

    /// Combines the `send` arrays of all ranks, element by element, and distributes the result in
    /// `size()` equal parts: rank i receives the i-th. Use [`Comm::reduce_scatter_counts`] for
    /// parts of unequal lengths.
    ///
    /// # Errors
    /// If `send` is not `size()` times as long as `recv`, or the call fails.
    pub fn reduce_scatter<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), Error> {
        self.waiting().reduce_scatter(send, recv, op)?.wait()
    }

    /// As [`Comm::reduce_scatter`], with `data` as input; this rank's part of the result overwrites
    /// its beginning.
    ///
    /// # Errors
    /// If `data` does not consist of `size()` equal parts, or the call fails.
    pub fn reduce_scatter_in_place<T: Element>(&self, data: &mut [T], op: Op) -> Result<(), Error> {
        self.waiting().reduce_scatter_in_place(data, op)?.wait()
    }

    /// As [`Comm::reduce_scatter`], in parts of unequal lengths: rank i receives `counts[i]`
    /// elements of the result. All ranks must pass the same counts.
    ///
    /// # Errors
    /// If there is not one count for each rank, `send` or `recv` has another length than the counts
    /// require, or the call fails.
    pub fn reduce_scatter_counts<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        op: Op,
    ) -> Result<(), Error> {
        self.waiting().reduce_scatter_counts(send, recv, counts, op)?.wait()
    }

    /// As [`Comm::reduce_scatter_in_place`], in parts of unequal lengths as in
    /// [`Comm::reduce_scatter_counts`].
    ///
    /// # Errors
    /// If there is not one count for each rank, `data` has another length than the counts require,
    /// or the call fails.
    pub fn reduce_scatter_counts_in_place<T: Element>(
        &self,
        data: &mut [T],
        counts: &[usize],
        op: Op,
    ) -> Result<(), Error> {
        self.waiting().reduce_scatter_counts_in_place(data, counts, op)?.wait()
    }

    /// Combines the `send` arrays of this rank and all preceding ranks, element by element, into
    /// `recv`.
    ///
    /// # Errors
    /// If `recv` and `send` differ in length, or the call fails.
    pub fn scan<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), Error> {
        self.waiting().scan(send, recv, op)?.wait()
    }

    /// As [`Comm::scan`], with `data` as input; the result overwrites it.
    ///
    /// # Errors
    /// If the call fails.
    pub fn scan_in_place<T: Element>(&self, data: &mut [T], op: Op) -> Result<(), Error> {
        self.waiting().scan_in_place(data, op)?.wait()
    }

    /// Combines the `send` arrays of all preceding ranks, element by element, into `recv`. At rank
    /// 0, which has no predecessors, `recv` is unchanged.
    ///
    /// # Errors
    /// If `recv` and `send` differ in length, or the call fails.
    pub fn exscan<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), Error> {
        self.waiting().exscan(send, recv, op)?.wait()
    }

    /// As [`Comm::exscan`], with `data` as input; the result overwrites it, except at rank 0.
    ///
    /// # Errors
    /// If the call fails.
    pub fn exscan_in_place<T: Element>(&self, data: &mut [T], op: Op) -> Result<(), Error> {
        self.waiting().exscan_in_place(data, op)?.wait()
    }

    /// Concatenates the `send` arrays of all ranks, in rank order, in the root's `recv`. Other
    /// ranks may pass `&mut []` as `recv`, which is ignored.
    ///
    /// # Errors
    /// If the root's `recv` is not `size()` times as long as `send`, there is no such root, or the
    /// call fails.
    pub fn gather<T: Element>(&self, send: &[T], recv: &mut [T], root: usize) -> Result<(), Error> {
        self.waiting().gather(send, recv, root)?.wait()
    }

    /// As [`Comm::gather`], with the root's `data` as all `size()` equal parts, of which the root
    /// must have filled its own. At other ranks, `data` is the part to send; they may call
    /// [`Comm::gather`] instead.
    ///
    /// # Errors
    /// If the root's `data` does not consist of `size()` equal parts, there is no such root, or the
    /// call fails.
    pub fn gather_in_place<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        self.waiting().gather_in_place(data, root)?.wait()
    }

    /// As [`Comm::gather`], with parts of unequal lengths: rank i sends `counts[i]` elements. All
    /// ranks must pass the same counts.
    ///
    /// # Errors
    /// If there is not one count for each rank, `send` or the root's `recv` has another length than
    /// the counts require, there is no such root, or the call fails.
    pub fn gatherv<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        self.waiting().gatherv(send, recv, counts, root)?.wait()
    }

    /// As [`Comm::gather_in_place`], with parts of unequal lengths as in [`Comm::gatherv`].
    ///
    /// # Errors
    /// If there is not one count for each rank, `data` has another length than the counts require,
    /// there is no such root, or the call fails.
    pub fn gatherv_in_place<T: Element>(
        &self,
        data: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        self.waiting().gatherv_in_place(data, counts, root)?.wait()
    }

    /// Concatenates the `send` arrays of all ranks, in rank order, in the `recv` of every rank.
    ///
    /// # Errors
    /// If `recv` is not `size()` times as long as `send`, or the call fails.
    pub fn allgather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), Error> {
        self.waiting().allgather(send, recv)?.wait()
    }

    /// As [`Comm::allgather`], with `data` as all `size()` equal parts; each rank must have filled
    /// its own, which is the `rank()`-th.
    ///
    /// # Errors
    /// If `data` does not consist of `size()` equal parts, or the call fails.
    pub fn allgather_in_place<T: Element>(&self, data: &mut [T]) -> Result<(), Error> {
        self.waiting().allgather_in_place(data)?.wait()
    }

    /// As [`Comm::allgather`], with parts of unequal lengths: rank i sends `counts[i]` elements.
    /// All ranks must pass the same counts.
    ///
    /// # Errors
    /// If there is not one count for each rank, `send` or `recv` has another length than the counts
    /// require, or the call fails.
    pub fn allgatherv<T: Element>(&self, send: &[T], recv: &mut [T], counts: &[usize]) -> Result<(), Error> {
        self.waiting().allgatherv(send, recv, counts)?.wait()
    }

    /// As [`Comm::allgatherv`], with `data` as all parts; each rank must have filled its own.
    ///
    /// # Errors
    /// If there is not one count for each rank, `data` has another length than the counts require,
    /// or the call fails.
    pub fn allgatherv_in_place<T: Element>(&self, data: &mut [T], counts: &[usize]) -> Result<(), Error> {
        self.waiting().allgatherv_in_place(data, counts)?.wait()
    }

    /// Distributes the root's `send` in `size()` equal parts: rank i receives the i-th. Other ranks
    /// may pass `&[]` as `send`, which is ignored.
    ///
    /// # Errors
    /// If the root's `send` is not `size()` times as long as `recv`, there is no such root, or the
    /// call fails.
    pub fn scatter<T: Element>(&self, send: &[T], recv: &mut [T], root: usize) -> Result<(), Error> {
        self.waiting().scatter(send, recv, root)?.wait()
    }

    /// As [`Comm::scatter`], with the root's `data` as all `size()` equal parts, which stay
    /// unchanged. At other ranks, the received part overwrites `data`; they may call
    /// [`Comm::scatter`] instead.
    ///
    /// # Errors
    /// If the root's `data` does not consist of `size()` equal parts, there is no such root, or the
    /// call fails.
    pub fn scatter_in_place<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        self.waiting().scatter_in_place(data, root)?.wait()
    }

    /// As [`Comm::scatter`], in parts of unequal lengths: rank i receives `counts[i]` elements. All
    /// ranks must pass the same counts.
    ///
    /// # Errors
    /// If there is not one count for each rank, the root's `send` or `recv` has another length than
    /// the counts require, there is no such root, or the call fails.
    pub fn scatterv<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        self.waiting().scatterv(send, recv, counts, root)?.wait()
    }

    /// As [`Comm::scatter_in_place`], in parts of unequal lengths as in [`Comm::scatterv`].
    ///
    /// # Errors
    /// If there is not one count for each rank, `data` has another length than the counts require,
    /// there is no such root, or the call fails.
    pub fn scatterv_in_place<T: Element>(
        &self,
        data: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        self.waiting().scatterv_in_place(data, counts, root)?.wait()
    }

    /// Distributes every rank's `send` in `size()` equal parts, the i-th to rank i. Each rank's
    /// `recv` contains the received parts in rank order. This is a transposition.
    ///
    /// # Errors
    /// If `send` does not consist of `size()` equal parts, `recv` and `send` differ in length, or
    /// the call fails.
    pub fn alltoall<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), Error> {
        self.waiting().alltoall(send, recv)?.wait()
    }

    /// As [`Comm::alltoall`], with `data` as the `size()` equal parts; the received parts overwrite
    /// them.
    ///
    /// # Errors
    /// If `data` does not consist of `size()` equal parts, or the call fails.
    pub fn alltoall_in_place<T: Element>(&self, data: &mut [T]) -> Result<(), Error> {
        self.waiting().alltoall_in_place(data)?.wait()
    }

    /// As [`Comm::alltoall`], in parts of unequal lengths: `counts[i * size() + j]` elements are
    /// sent from rank i to rank j. All ranks must pass the same counts: all of them, row by row.
    ///
    /// ```
    /// # fn main() -> Result<(), cool::Error> {
    /// # cool::launch(|comm| -> Result<(), cool::Error> {
    /// // Each rank knows only its own counts, but every rank must pass all of them.
    /// let mine: Vec<u64> = (0..comm.size()).map(|to| (comm.rank() * to) as u64).collect();
    /// let mut all = vec![0; comm.size() * comm.size()];
    /// comm.allgather(&mine, &mut all)?;
    /// let counts: Vec<usize> = all.iter().map(|count| *count as usize).collect();
    ///
    /// let send = vec![comm.rank() as u8; mine.iter().sum::<u64>() as usize];
    /// let mut recv = vec![0; (0..comm.size()).map(|from| counts[from * comm.size() + comm.rank()]).sum()];
    /// comm.alltoallv(&send, &mut recv, &counts)
    /// # })?.into_iter().collect()
    /// # }
    /// ```
    ///
    /// # Errors
    /// If there is not one count for each pair of ranks, `send` or `recv` has another length than
    /// the counts require, or the call fails.
    pub fn alltoallv<T: Element>(&self, send: &[T], recv: &mut [T], counts: &[usize]) -> Result<(), Error> {
        self.waiting().alltoallv(send, recv, counts)?.wait()
    }

    /// As [`Comm::alltoallv`], with `data` as the parts; the received parts overwrite them, so as
    /// many elements must be received from each rank as are sent to it.
    ///
    /// # Errors
    /// If there is not one count for each pair of ranks, the counts of the two directions between
    /// two ranks differ, `data` has another length than the counts require, or the call fails.
    pub fn alltoallv_in_place<T: Element>(&self, data: &mut [T], counts: &[usize]) -> Result<(), Error> {
        self.waiting().alltoallv_in_place(data, counts)?.wait()
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// If the call fails.
    pub fn barrier(&self) -> Result<(), Error> {
        self.waiting().barrier()?.wait()
    }
}
