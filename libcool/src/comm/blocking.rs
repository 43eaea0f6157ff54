//! The operations that wait for their results, on slices whose types the compiler knows.
//!
//! In those with `counts`, MPI's v-forms, `counts` has the number of elements of each rank's part, in rank order;
//! any may be 0. All ranks pass the same: every agent makes the schedule of its own ranks, and for that needs to know
//! what the others send. A program whose ranks know only their own lengths calls [`Comm::allgather`] on them first.

use super::Comm;
use crate::Op;
use crate::call::Collective;
use crate::element::Element;
use crate::error::Error;

impl Comm {
    /// Any operation, on arrays whose types are known only when the program runs.
    ///
    /// # Errors
    /// If the arguments make no sense, or the call fails.
    pub fn collective(&self, collective: Collective<'_, '_>) -> Result<(), Error> {
        self.waiting().collective(collective)?.wait()
    }

    /// Sends the root's `data` to all: at the other ranks, `data` is overwritten with it.
    ///
    /// # Errors
    /// If there is no such root, or the call fails.
    pub fn bcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        self.waiting().bcast(data, root)?.wait()
    }

    /// Combines all ranks' `send`, element by element, into the root's `recv`. Only the root's `recv` is
    /// looked at; the others may pass `&mut []`.
    ///
    /// # Errors
    /// If the root's `recv` is not as long as its `send`, there is no such root, or the call fails.
    pub fn reduce<T: Element>(&self, send: &[T], recv: &mut [T], op: Op, root: usize) -> Result<(), Error> {
        self.waiting().reduce(send, recv, op, root)?.wait()
    }

    /// [`Comm::reduce`] of what all ranks have in `data`, which the result overwrites at the root.
    ///
    /// # Errors
    /// If there is no such root, or the call fails.
    pub fn reduce_in_place<T: Element>(&self, data: &mut [T], op: Op, root: usize) -> Result<(), Error> {
        self.waiting().reduce_in_place(data, op, root)?.wait()
    }

    /// Combines all ranks' `send`, element by element, into every rank's `recv`.
    ///
    /// # Errors
    /// If `recv` is not as long as `send`, or the call fails.
    pub fn allreduce<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), Error> {
        self.waiting().allreduce(send, recv, op)?.wait()
    }

    /// [`Comm::allreduce`] of what all ranks have in `data`, which the result overwrites.
    ///
    /// # Errors
    /// If the call fails.
    pub fn allreduce_in_place<T: Element>(&self, data: &mut [T], op: Op) -> Result<(), Error> {
        self.waiting().allreduce_in_place(data, op)?.wait()
    }

    /// Combines all ranks' `send`, element by element, and deals the result out in `size()` equal parts:
    /// rank i's `recv` gets the i-th. [`Comm::reduce_scatter_counts`] deals out parts of any lengths.
    ///
    /// # Errors
    /// If `send` is not `size()` times as long as `recv`, or the call fails.
    pub fn reduce_scatter<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), Error> {
        self.waiting().reduce_scatter(send, recv, op)?.wait()
    }

    /// [`Comm::reduce_scatter`] of what all ranks have in `data`, whose beginning this rank's part of the result overwrites.
    ///
    /// # Errors
    /// If `data` is not `size()` equal parts, or the call fails.
    pub fn reduce_scatter_in_place<T: Element>(&self, data: &mut [T], op: Op) -> Result<(), Error> {
        self.waiting().reduce_scatter_in_place(data, op)?.wait()
    }

    /// [`Comm::reduce_scatter`] in parts of unequal lengths: rank i receives `counts[i]` elements of the
    /// result. All ranks pass the same counts.
    ///
    /// # Errors
    /// If there is not one count for each rank, `send` or `recv` is not as long as they say, or the call fails.
    pub fn reduce_scatter_counts<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        op: Op,
    ) -> Result<(), Error> {
        self.waiting().reduce_scatter_counts(send, recv, counts, op)?.wait()
    }

    /// [`Comm::reduce_scatter_in_place`] in parts of unequal lengths, as in [`Comm::reduce_scatter_counts`].
    ///
    /// # Errors
    /// If there is not one count for each rank, `data` is not as long as they say, or the call fails.
    pub fn reduce_scatter_counts_in_place<T: Element>(
        &self,
        data: &mut [T],
        counts: &[usize],
        op: Op,
    ) -> Result<(), Error> {
        self.waiting().reduce_scatter_counts_in_place(data, counts, op)?.wait()
    }

    /// Combines the `send` of this rank and of all before it, element by element, into `recv`.
    ///
    /// # Errors
    /// If `recv` is not as long as `send`, or the call fails.
    pub fn scan<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), Error> {
        self.waiting().scan(send, recv, op)?.wait()
    }

    /// [`Comm::scan`] of what all ranks have in `data`, which the result overwrites.
    ///
    /// # Errors
    /// If the call fails.
    pub fn scan_in_place<T: Element>(&self, data: &mut [T], op: Op) -> Result<(), Error> {
        self.waiting().scan_in_place(data, op)?.wait()
    }

    /// Combines the `send` of all ranks before this one, element by element, into `recv`. Rank 0 has none
    /// before it: its `recv` stays as it is.
    ///
    /// # Errors
    /// If `recv` is not as long as `send`, or the call fails.
    pub fn exscan<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), Error> {
        self.waiting().exscan(send, recv, op)?.wait()
    }

    /// [`Comm::exscan`] of what all ranks have in `data`, which the result overwrites, except at rank 0.
    ///
    /// # Errors
    /// If the call fails.
    pub fn exscan_in_place<T: Element>(&self, data: &mut [T], op: Op) -> Result<(), Error> {
        self.waiting().exscan_in_place(data, op)?.wait()
    }

    /// Puts all ranks' `send`, in rank order, into the root's `recv`. Only the root's `recv` is looked at;
    /// the others may pass `&mut []`.
    ///
    /// # Errors
    /// If the root's `recv` is not `size()` times as long as `send`, there is no such root, or the call
    /// fails.
    pub fn gather<T: Element>(&self, send: &[T], recv: &mut [T], root: usize) -> Result<(), Error> {
        self.waiting().gather(send, recv, root)?.wait()
    }

    /// [`Comm::gather`] of the `size()` equal parts of the root's `data`, of which it has filled its own; at the other ranks `data` is
    /// what they send, who may as well call [`Comm::gather`].
    ///
    /// # Errors
    /// If the root's `data` is not `size()` equal parts, there is no such root, or the call fails.
    pub fn gather_in_place<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        self.waiting().gather_in_place(data, root)?.wait()
    }

    /// [`Comm::gather`] of parts of unequal lengths: rank i sends `counts[i]` elements. All ranks pass the
    /// same counts.
    ///
    /// # Errors
    /// If there is not one count for each rank, `send` or the root's `recv` is not as long as they say, there is
    /// no such root, or the call fails.
    pub fn gatherv<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        self.waiting().gatherv(send, recv, counts, root)?.wait()
    }

    /// [`Comm::gather_in_place`] of parts of unequal lengths, as in [`Comm::gatherv`].
    ///
    /// # Errors
    /// If there is not one count for each rank, `data` is not as long as they say, there is no such root, or the call fails.
    pub fn gatherv_in_place<T: Element>(
        &self,
        data: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        self.waiting().gatherv_in_place(data, counts, root)?.wait()
    }

    /// Puts all ranks' `send`, in rank order, into every rank's `recv`.
    ///
    /// # Errors
    /// If `recv` is not `size()` times as long as `send`, or the call fails.
    pub fn allgather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), Error> {
        self.waiting().allgather(send, recv)?.wait()
    }

    /// [`Comm::allgather`] of the `size()` equal parts of `data`, of which each rank has filled its own, the
    /// `rank()`-th.
    ///
    /// # Errors
    /// If `data` is not `size()` equal parts, or the call fails.
    pub fn allgather_in_place<T: Element>(&self, data: &mut [T]) -> Result<(), Error> {
        self.waiting().allgather_in_place(data)?.wait()
    }

    /// [`Comm::allgather`] of parts of unequal lengths: rank i sends `counts[i]` elements. All ranks pass the
    /// same counts.
    ///
    /// # Errors
    /// If there is not one count for each rank, `send` or `recv` is not as long as they say, or the call fails.
    pub fn allgatherv<T: Element>(&self, send: &[T], recv: &mut [T], counts: &[usize]) -> Result<(), Error> {
        self.waiting().allgatherv(send, recv, counts)?.wait()
    }

    /// [`Comm::allgatherv`] of the parts of `data`, of which each rank has filled its own.
    ///
    /// # Errors
    /// If there is not one count for each rank, `data` is not as long as they say, or the call fails.
    pub fn allgatherv_in_place<T: Element>(&self, data: &mut [T], counts: &[usize]) -> Result<(), Error> {
        self.waiting().allgatherv_in_place(data, counts)?.wait()
    }

    /// Deals the root's `send` out in `size()` equal parts: rank i's `recv` gets the i-th. Only the root's
    /// `send` is looked at; the others may pass `&[]`.
    ///
    /// # Errors
    /// If the root's `send` is not `size()` times as long as `recv`, there is no such root, or the call
    /// fails.
    pub fn scatter<T: Element>(&self, send: &[T], recv: &mut [T], root: usize) -> Result<(), Error> {
        self.waiting().scatter(send, recv, root)?.wait()
    }

    /// [`Comm::scatter`] of the `size()` equal parts of the root's `data`, which stays as it is; at the other ranks `data` is overwritten
    /// with their part, who may as well call [`Comm::scatter`].
    ///
    /// # Errors
    /// If the root's `data` is not `size()` equal parts, there is no such root, or the call fails.
    pub fn scatter_in_place<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        self.waiting().scatter_in_place(data, root)?.wait()
    }

    /// [`Comm::scatter`] in parts of unequal lengths: rank i receives `counts[i]` elements. All ranks pass the
    /// same counts.
    ///
    /// # Errors
    /// If there is not one count for each rank, the root's `send` or `recv` is not as long as they say, there is
    /// no such root, or the call fails.
    pub fn scatterv<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        self.waiting().scatterv(send, recv, counts, root)?.wait()
    }

    /// [`Comm::scatter_in_place`] in parts of unequal lengths, as in [`Comm::scatterv`].
    ///
    /// # Errors
    /// If there is not one count for each rank, `data` is not as long as they say, there is no such root, or the call fails.
    pub fn scatterv_in_place<T: Element>(
        &self,
        data: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        self.waiting().scatterv_in_place(data, counts, root)?.wait()
    }

    /// Deals every rank's `send` out in `size()` equal parts, the i-th to rank i, whose `recv` gets its parts
    /// in rank order: a transposition.
    ///
    /// # Errors
    /// If `send` is not `size()` equal parts, `recv` is not as long as `send`, or the call fails.
    pub fn alltoall<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), Error> {
        self.waiting().alltoall(send, recv)?.wait()
    }

    /// [`Comm::alltoall`] of the `size()` equal parts of `data`, which are overwritten with those received.
    ///
    /// # Errors
    /// If `data` is not `size()` equal parts, or the call fails.
    pub fn alltoall_in_place<T: Element>(&self, data: &mut [T]) -> Result<(), Error> {
        self.waiting().alltoall_in_place(data)?.wait()
    }

    /// [`Comm::alltoall`] in parts of unequal lengths: `counts[i * size() + j]` elements go from rank i to
    /// rank j. All ranks pass the same counts: all of them, row by row.
    ///
    /// ```
    /// # fn main() -> Result<(), cool::Error> {
    /// # cool::launch(|comm| -> Result<(), cool::Error> {
    /// // Each rank knows how much it sends to whom; all need to know.
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
    /// If there is not one count for each pair of ranks, `send` or `recv` is not as long as they say, or the
    /// call fails.
    pub fn alltoallv<T: Element>(&self, send: &[T], recv: &mut [T], counts: &[usize]) -> Result<(), Error> {
        self.waiting().alltoallv(send, recv, counts)?.wait()
    }

    /// [`Comm::alltoallv`] of the parts of `data`, which are overwritten with those received: as much comes from each rank as goes to it.
    ///
    /// # Errors
    /// If there is not one count for each pair of ranks, two that belong together differ, `data` is not as long as they say,
    /// or the call fails.
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
