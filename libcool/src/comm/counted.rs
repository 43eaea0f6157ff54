//! The operations with parts of unequal lengths, MPI's v-forms.
//!
//! `counts` has the number of elements of each rank's part, in rank order; any may be 0. All ranks pass the same:
//! every agent makes the schedule of its own ranks, and for that needs to know what the others send. A
//! program whose ranks know only their own lengths calls [`Comm::allgather`] on them first.

use super::Comm;
use crate::element::{Element, Op};
use crate::error::Error;
use crate::operation::Operation;
use crate::session::Request;

/// How many counts there must be, in words.
const ONE_EACH: &str = "one for each rank";

impl Comm {
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
        let name = "gatherv";
        let root = self.checked_root(name, root)?;
        self.own_part(name, ("send", send.len()), counts)?;
        let recv = self.at_root(root, recv);
        if let Some(recv) = &recv {
            self.sum_of_counts(name, ("recv", recv.len()), counts)?;
        }
        let request = Request::of(name, Operation::Gather, 0, Some(send), recv);
        self.call(Request { root, counts: Some(counts), ..request })
    }

    /// [`Comm::allgather`] of parts of unequal lengths: rank i sends `counts[i]` elements. All ranks pass the
    /// same counts.
    ///
    /// # Errors
    /// If there is not one count for each rank, `send` or `recv` is not as long as they say, or the call fails.
    pub fn allgatherv<T: Element>(&self, send: &[T], recv: &mut [T], counts: &[usize]) -> Result<(), Error> {
        let name = "allgatherv";
        self.own_part(name, ("send", send.len()), counts)?;
        self.sum_of_counts(name, ("recv", recv.len()), counts)?;
        let request = Request::of(name, Operation::Allgather, 0, Some(send), Some(recv));
        self.call(Request { counts: Some(counts), ..request })
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
        let name = "scatterv";
        let root = self.checked_root(name, root)?;
        self.own_part(name, ("recv", recv.len()), counts)?;
        let send = self.at_root(root, send);
        if let Some(send) = send {
            self.sum_of_counts(name, ("send", send.len()), counts)?;
        }
        let request = Request::of(name, Operation::Scatter, 0, send, Some(recv));
        self.call(Request { root, counts: Some(counts), ..request })
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
        let name = "reduce_scatter_counts";
        self.own_part(name, ("recv", recv.len()), counts)?;
        self.sum_of_counts(name, ("send", send.len()), counts)?;
        let request = Request::of(name, Operation::ReduceScatter, 0, Some(send), Some(recv));
        self.call(Request { op: Some(op), counts: Some(counts), ..request })
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
        let (name, size) = ("alltoallv", self.size());
        self.counted(name, counts.len(), ("one for each pair of ranks", size * size))?;
        self.sum_of_counts(name, ("send", send.len()), &counts[self.rank * size..][..size])?;
        self.sum_of_counts(name, ("recv", recv.len()), counts.iter().skip(self.rank).step_by(size))?;
        let request = Request::of(name, Operation::Alltoall, 0, Some(send), Some(recv));
        self.call(Request { counts: Some(counts), ..request })
    }

    /// There is a count for each rank, and an array is as long as this rank's.
    fn own_part(
        &self,
        operation: &'static str,
        array: (&'static str, usize),
        counts: &[usize],
    ) -> Result<(), Error> {
        self.counted(operation, counts.len(), (ONE_EACH, self.size()))?;
        self.sum_of_counts(operation, array, &counts[self.rank..=self.rank])
    }
}
