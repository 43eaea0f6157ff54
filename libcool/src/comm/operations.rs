//! The operations whose parts are all equally long, on slices.

use super::Comm;
use crate::element::{Element, Op};
use crate::error::Error;
use crate::operation::Operation;
use crate::session::Request;

impl Comm {
    /// Sends the root's `data` to all: at the other ranks, `data` is overwritten with it.
    ///
    /// # Errors
    /// If there is no such root, or the call fails.
    pub fn bcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        let name = "bcast";
        let root = self.checked_root(name, root)?;
        let count = data.len();
        let (send, receive) =
            if root as usize == self.rank { (Some(&*data), None) } else { (None, Some(data)) };
        self.call(Request { root, ..Request::of(name, Operation::Bcast, count, send, receive) })
    }

    /// Combines all ranks' `send`, element by element, into the root's `recv`. Only the root's `recv` is
    /// looked at; the others may pass `&mut []`.
    ///
    /// # Errors
    /// If the root's `recv` is not as long as its `send`, there is no such root, or the call fails.
    pub fn reduce<T: Element>(&self, send: &[T], recv: &mut [T], op: Op, root: usize) -> Result<(), Error> {
        let name = "reduce";
        let root = self.checked_root(name, root)?;
        let recv = self.at_root(root, recv);
        if let Some(recv) = &recv {
            self.same_length(name, send.len(), recv.len())?;
        }
        let request = Request::of(name, Operation::Reduce, send.len(), Some(send), recv);
        self.call(Request { root, op: Some(op), ..request })
    }

    /// Combines all ranks' `send`, element by element, into every rank's `recv`.
    ///
    /// # Errors
    /// If `recv` is not as long as `send`, or the call fails.
    pub fn allreduce<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), Error> {
        let name = "allreduce";
        self.same_length(name, send.len(), recv.len())?;
        let request = Request::of(name, Operation::Allreduce, send.len(), Some(send), Some(recv));
        self.call(Request { op: Some(op), ..request })
    }

    /// Combines all ranks' `send`, element by element, and deals the result out in `size()` equal parts:
    /// rank i's `recv` gets the i-th. [`Comm::reduce_scatter_counts`] deals out parts of any lengths.
    ///
    /// # Errors
    /// If `send` is not `size()` times as long as `recv`, or the call fails.
    pub fn reduce_scatter<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), Error> {
        let name = "reduce_scatter";
        self.parts(name, ("send", send.len()), ("recv", recv.len()))?;
        let request = Request::of(name, Operation::ReduceScatter, recv.len(), Some(send), Some(recv));
        self.call(Request { op: Some(op), ..request })
    }

    /// Combines the `send` of this rank and of all before it, element by element, into `recv`.
    ///
    /// # Errors
    /// If `recv` is not as long as `send`, or the call fails.
    pub fn scan<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), Error> {
        let name = "scan";
        self.same_length(name, send.len(), recv.len())?;
        let request = Request::of(name, Operation::Scan, send.len(), Some(send), Some(recv));
        self.call(Request { op: Some(op), ..request })
    }

    /// Combines the `send` of all ranks before this one, element by element, into `recv`. Rank 0 has none
    /// before it: its `recv` stays as it is.
    ///
    /// # Errors
    /// If `recv` is not as long as `send`, or the call fails.
    pub fn exscan<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), Error> {
        let name = "exscan";
        self.same_length(name, send.len(), recv.len())?;
        let recv = (self.rank > 0).then_some(recv);
        let request = Request::of(name, Operation::Exscan, send.len(), Some(send), recv);
        self.call(Request { op: Some(op), ..request })
    }

    /// Puts all ranks' `send`, in rank order, into the root's `recv`. Only the root's `recv` is looked at;
    /// the others may pass `&mut []`.
    ///
    /// # Errors
    /// If the root's `recv` is not `size()` times as long as `send`, there is no such root, or the call
    /// fails.
    pub fn gather<T: Element>(&self, send: &[T], recv: &mut [T], root: usize) -> Result<(), Error> {
        let name = "gather";
        let root = self.checked_root(name, root)?;
        let recv = self.at_root(root, recv);
        if let Some(recv) = &recv {
            self.parts(name, ("recv", recv.len()), ("send", send.len()))?;
        }
        self.call(Request { root, ..Request::of(name, Operation::Gather, send.len(), Some(send), recv) })
    }

    /// Puts all ranks' `send`, in rank order, into every rank's `recv`.
    ///
    /// # Errors
    /// If `recv` is not `size()` times as long as `send`, or the call fails.
    pub fn allgather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), Error> {
        let name = "allgather";
        self.parts(name, ("recv", recv.len()), ("send", send.len()))?;
        self.call(Request::of(name, Operation::Allgather, send.len(), Some(send), Some(recv)))
    }

    /// Deals the root's `send` out in `size()` equal parts: rank i's `recv` gets the i-th. Only the root's
    /// `send` is looked at; the others may pass `&[]`.
    ///
    /// # Errors
    /// If the root's `send` is not `size()` times as long as `recv`, there is no such root, or the call
    /// fails.
    pub fn scatter<T: Element>(&self, send: &[T], recv: &mut [T], root: usize) -> Result<(), Error> {
        let name = "scatter";
        let root = self.checked_root(name, root)?;
        let send = self.at_root(root, send);
        if let Some(send) = send {
            self.parts(name, ("send", send.len()), ("recv", recv.len()))?;
        }
        self.call(Request { root, ..Request::of(name, Operation::Scatter, recv.len(), send, Some(recv)) })
    }

    /// Deals every rank's `send` out in `size()` equal parts, the i-th to rank i, whose `recv` gets its parts
    /// in rank order: a transposition.
    ///
    /// # Errors
    /// If `send` is not `size()` equal parts, `recv` is not as long as `send`, or the call fails.
    pub fn alltoall<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), Error> {
        let name = "alltoall";
        let part = self.equal_parts(name, ("send", send.len()))?;
        self.same_length(name, send.len(), recv.len())?;
        self.call(Request::of(name, Operation::Alltoall, part, Some(send), Some(recv)))
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// If the call fails.
    pub fn barrier(&self) -> Result<(), Error> {
        self.call(Request::barrier())
    }
}
